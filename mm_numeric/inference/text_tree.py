"""Compute the distribution of short answers from the ``top_logprobs`` that a server returns.

A chat API returns the tokens of an answer, and in ``top_logprobs`` the likeliest alternatives to
each token. The answers to one question form a tree of tokens, in which each answer is a path. The
probabilities of the next token are known for each prefix of an answer. The probability of a text
is known in three cases:

    The text is one of the answers.
    The text is a time that differs from an answer only in the last token: after ``7:0``, the
    tokens ``5`` and ``6`` complete the times 7:05 and 7:06.
    The text is a number of at least two digits that differs from an answer only in the last token,
    and both tokens have the same number of digits. The text is assumed to end there with the same
    probability as the answer. If a longer answer begins with the text, nothing is assumed.

The continuations of other prefixes are not known, so their probability is left out. If the server
returns no end token, a number may continue: the probability of ``7`` includes that of ``70`` until
an answer with more digits is added.
"""

import math
import re
from collections import defaultdict
from collections.abc import Sequence

_TIME = re.compile(rb"\s*[0-9]{1,2}:[0-9]{2}")
_DIGITS, _DIGIT = re.compile(rb"[0-9]+"), re.compile(rb"[0-9]")
_SPECIAL = re.compile(rb"<\|.+\|>|</s>|<eos>|<end_of_turn>")
_ANSWER = re.compile(r"\s*(?:[0-9]{1,2}:[0-9]{2}|[-+]?[0-9][0-9.,]*)\s*")


def is_short(text: str) -> bool:
    """Return True if a text is one number or one time, with nothing else."""
    return _ANSWER.fullmatch(text) is not None


class TextTree:
    """Prefixes of answers as sequences of tokens, with the probabilities of their next tokens."""

    def __init__(self) -> None:
        self._next: dict[tuple[bytes, ...], dict[bytes, float]] = {}
        self._answers = set[tuple[bytes, ...]]()
        self._ends = set[bytes]()  # tokens after the text of an answer

    def add(
        self,
        text: str,
        tokens: Sequence[tuple[float, bytes]],
        likeliest: Sequence[dict[bytes, float]],
        *,
        is_complete: bool,
    ) -> None:
        """Add an answer; ``is_complete`` is False if it was truncated.

        ``tokens`` has the log probability and the text of each token, including an end token.
        ``likeliest`` has the log probabilities of the likeliest tokens at each position.
        """
        path: tuple[bytes, ...] = ()
        for (logprob, token), top in zip(tokens, likeliest, strict=True):
            if is_complete and path and b"".join(path).strip() == text.encode().strip():
                self._ends.add(token)
            logprobs = {**top, token: logprob}
            known = self._next.setdefault(path, {})
            known.update({other: math.exp(value) for other, value in logprobs.items()})
            path = (*path, token)
        while path and path[-1] in self._ends:
            path = path[:-1]
        if is_complete and b"".join(path).strip() == text.encode().strip():
            self._answers.add(path)

    def probabilities(self) -> dict[str, float]:
        """Return the texts whose probability is known (see the module), with the probability."""
        found: defaultdict[str, float] = defaultdict(float)
        todo: list[tuple[tuple[bytes, ...], float]] = [((), 1.0)]
        while todo:
            path, prob = todo.pop()
            spelled = b"".join(path)
            text = spelled.decode(errors="replace")
            if _TIME.fullmatch(spelled):
                found[text] += prob  # whatever follows it
            elif path in self._next or path in self._answers:
                going, ends = self._after(path)
                found[text] += prob * ends
                todo += [((*path, token), prob * own) for token, own in going.items()]
            elif path and _DIGITS.fullmatch(path[-1]) and len(_DIGIT.findall(spelled)) > 1:
                found[text] += prob * self._end_in_place(path)
        return {text: prob for text, prob in found.items() if prob > 0}

    def _after(self, path: tuple[bytes, ...]) -> tuple[dict[bytes, float], float]:
        """Return the probabilities of the next tokens, and the probability that the answer ends."""
        after = self._next.get(path, {})
        ends = {token for token in after if token in self._ends or _SPECIAL.fullmatch(token)}
        going = {token: own for token, own in after.items() if token not in ends}
        if ends:
            return going, sum(after[token] for token in ends)
        # The server does not show the end token.
        return going, max(0.0, 1 - sum(going.values())) if path in self._answers else 0.0

    def _end_in_place(self, path: tuple[bytes, ...]) -> float:
        """Return the end probability of an answer with another last token of equal length, or 0."""
        *before, last = path
        for other in self._next.get(tuple(before), {}):
            own = (*before, other)
            if own in self._answers and _DIGITS.fullmatch(other) and len(other) == len(last):
                return self._after(own)[1]
        return 0.0
