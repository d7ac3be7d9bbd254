"""Random texts of a regular expression: walks through its automaton."""

from mm_numeric.inference.expressions import Expressions, parse_regex

EVERY_BYTE = frozenset(range(256))


class Walks:
    """Draws texts that a regular expression matches; ``rest_of`` narrows it."""

    def __init__(self, regex, rest_of=None):
        self.make, self.rest_of = Expressions(EVERY_BYTE), rest_of
        self.start = parse_regex(regex, self.make)
        self.options = {}

    def draw(self, rng, longest=120):
        """Return a random text, which ends soon after ``longest`` bytes."""
        written, at, rest_of = bytearray(), self.start, self.rest_of
        while True:
            if at not in self.options:
                self.options[at] = list(self.make.successors(at))
            options = self.options[at]
            if not options or (at.ends and (len(written) > longest or rng.random() < 0.15)):
                return written.decode()
            if len(written) > longest:
                byte, at = min(options, key=lambda pair: pair[1].least)
            else:
                byte, at = options[int(rng.random() * len(options))]
            written.append(byte)
            rest = rest_of(written.decode(errors="replace")) if rest_of else None
            if rest is not None:
                at, rest_of = parse_regex(rest, self.make), None
