r"""Regular expressions over bytes, and their derivatives: the texts that may follow a prefix.

An ``Expression`` is a set of texts. To compute its derivative by a byte, take the texts that begin
with this byte, and remove the byte (Brzozowski 1964, doi 10.1145/321239.321249). Equal expressions
are the same object. They are therefore the states of an automaton that is built during its use.

The cost of a text is an upper bound of its number of tokens: each byte costs 1. But a token with a
name, such as ``<loc0012>``, costs 1 in total: its ``<`` is replaced by the byte ``MARK``, which no
other token contains, and the rest of the name costs nothing.

``parse_regex`` reads the syntax of ``mm_numeric.geometry.grammar``: literals, ``.``, classes of
ASCII characters (``[^a-z\x00]``), groups, ``|`` and the quantifiers ``* + ? {m} {m,} {m,n}``. A
class with ``^``, and ``.``, also contain every character that is not ASCII.
"""

import math
import re
from collections.abc import Iterable, Iterator
from functools import cached_property, reduce
from typing import Any

from mm_numeric.geometry.grammar import escape

MARK = 0xFF
"""The byte that begins the name of a token such as ``<loc0012>``; it never occurs in UTF-8."""


class Expression:
    """A set of texts as a regular expression.

    Attributes:
        kind: ``nothing`` (no text), ``empty`` (the empty text), ``byte``, ``then``, ``either`` or
            ``repeat``.
        parts: The expressions and numbers that this expression is made of.
        ends: True if the empty text is in the set.
        least: Cost of the cheapest text; infinite if the tokenizer has tokens for no text.
        most: Cost of the most expensive text.
        first: The bytes with which a text may begin; bit i is set for byte i.
    """

    __slots__ = ("derivatives", "ends", "first", "kind", "least", "most", "parts")

    def __init__(self, kind: str, parts: tuple[object, ...]) -> None:
        self.kind, self.parts = kind, parts
        self.derivatives: dict[int, Expression] = {}
        self.ends, self.first = False, 0
        self.least = self.most = math.inf


class Expressions:
    """Creates expressions, and caches them so that equal expressions are the same object.

    Attributes:
        spelled: Bit mask of the bytes that are the whole text of a token.
        excluded: Bit mask of the bytes that no text may contain.
    """

    def __init__(self, spelled: frozenset[int], excluded: int = 0) -> None:
        self.spelled = sum(1 << byte for byte in spelled)
        self.excluded = excluded
        self._made: dict[tuple[object, ...], Expression] = {}
        self._classes = {(1 << 256) - 1}
        self._representatives: list[int] | None = None
        self.nothing = self._make("nothing")
        self.empty = self._make("empty")
        self.empty.ends, self.empty.least, self.empty.most = True, 0, 0

    def _make(self, kind: str, *parts: object) -> Expression:
        key = kind, *parts
        if key not in self._made:
            self._made[key] = Expression(kind, parts)
        return self._made[key]

    def byte(self, mask: int, *, is_free: bool = False) -> Expression:
        """Return the texts of one byte in the bit mask ``mask``; if ``is_free``, they cost 0."""
        mask &= ~self.excluded
        if not mask:
            return self.nothing
        if mask not in self._classes:
            self._classes.add(mask)
            self._representatives = None
        made = self._make("byte", mask, is_free)
        can_be_spelled = is_free or mask & self.spelled
        made.first, made.most = mask, 0 if is_free else 1
        made.least = made.most if can_be_spelled else math.inf
        return made

    def then(self, left: Expression, right: Expression) -> Expression:
        """Return the texts of ``left``, each followed by a text of ``right``."""
        if self.nothing in (left, right):
            return self.nothing
        if left is self.empty or right is self.empty:
            return right if left is self.empty else left
        if left.kind == "then":
            first, second = left.parts
            return self.then(first, self.then(second, right))  # type: ignore[arg-type]
        made = self._make("then", left, right)
        made.ends = left.ends and right.ends
        made.least, made.most = left.least + right.least, left.most + right.most
        made.first = left.first | (right.first if left.ends else 0)
        return made

    def either(self, *options: Expression) -> Expression:
        """Return the texts of all ``options``."""
        found: set[Expression] = set()
        for option in options:
            found |= set(option.parts) if option.kind == "either" else {option}  # type: ignore[arg-type]
        found.discard(self.nothing)
        if len(found) < 2:
            return found.pop() if found else self.nothing
        made = self._make("either", *sorted(found, key=id))
        made.ends = any(option.ends for option in found)
        made.least = min(option.least for option in found)
        made.most = max(option.most for option in found)
        made.first = reduce(int.__or__, (option.first for option in found))
        return made

    def repeat(self, inner: Expression, least: int, most: int | None) -> Expression:
        """Return ``least`` or more texts of ``inner`` in a row, at most ``most`` unless None."""
        if most == 0 or inner in (self.nothing, self.empty):
            return self.nothing if least and inner is self.nothing else self.empty
        if least == most == 1:
            return inner
        made = self._make("repeat", inner, least, most)
        made.ends = not least or inner.ends
        made.least = least * inner.least if least else 0
        made.most = math.inf if most is None else most * inner.most
        made.first = inner.first
        return made

    def derivative(self, expression: Expression, byte: int) -> Expression:
        """Return the texts that begin with ``byte``, without this byte."""
        if not expression.first >> byte & 1:
            return self.nothing
        found = expression.derivatives.get(byte)
        if found is None:
            found = expression.derivatives[byte] = self._derive(expression, byte)
        return found

    def _derive(self, expression: Expression, byte: int) -> Expression:
        parts: tuple[Any, ...] = expression.parts
        match expression.kind:
            case "byte":
                return self.empty
            case "then":
                left, right = parts
                found = self.then(self.derivative(left, byte), right)
                return self.either(found, self.derivative(right, byte)) if left.ends else found
            case "either":
                return self.either(*(self.derivative(option, byte) for option in parts))
            case "repeat":
                inner, least, most = parts
                others = self.repeat(inner, max(least - 1, 0), None if most is None else most - 1)
                return self.then(self.derivative(inner, byte), others)
        raise AssertionError(expression.kind)  # the other kinds have no first byte

    def successors(self, expression: Expression) -> Iterator[tuple[int, Expression]]:
        """Yield each byte that a text may begin with, and the derivative by this byte."""
        if self._representatives is None:
            masks = sorted(self._classes)
            first: dict[tuple[int, ...], int] = {}
            self._representatives = [
                first.setdefault(tuple(mask >> byte & 1 for mask in masks), byte)
                for byte in range(256)
            ]
        for byte in range(256):
            if expression.first >> byte & 1:
                yield byte, self.derivative(expression, self._representatives[byte])


_ASCII = (1 << 128) - 1
_QUANTIFIER = re.compile(r"[*+?]|\{([0-9]+)(,([0-9]*))?\}")
_NAMED = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "0": "\0"}
_MARKED = "\ue000"  # stands for the < of a token's name
_UTF8 = (
    ((0xC2, 0xDF), (0x80, 0xBF)),
    ((0xE0, 0xE0), (0xA0, 0xBF), (0x80, 0xBF)),
    ((0xE1, 0xEC), (0x80, 0xBF), (0x80, 0xBF)),
    ((0xED, 0xED), (0x80, 0x9F), (0x80, 0xBF)),
    ((0xEE, 0xEF), (0x80, 0xBF), (0x80, 0xBF)),
    ((0xF0, 0xF0), (0x90, 0xBF), (0x80, 0xBF), (0x80, 0xBF)),
    ((0xF1, 0xF3), (0x80, 0xBF), (0x80, 0xBF), (0x80, 0xBF)),
    ((0xF4, 0xF4), (0x80, 0x8F), (0x80, 0xBF), (0x80, 0xBF)),
)
"""Ranges of the bytes of UTF-8 characters that are not ASCII (RFC 3629, section 4)."""


def parse_regex(regex: str, make: Expressions, names: Iterable[str] = ()) -> Expression:
    """Convert a regular expression, which must match the whole text, to an ``Expression``.

    ``names`` are prefixes of the names of single tokens, each starting with ``<``:
    ``<|box_end|>``, ``<loc``. Where ``regex`` contains one of them, escaped by ``grammar.escape``,
    the text up to the next ``>`` is one token. Unsupported syntax raises ValueError.
    """
    for name in names:
        escaped = escape(name)
        regex = regex.replace(escaped, _MARKED + escaped[1:])
    parser = _Parser(regex, make)
    found = parser.options()
    if parser.at < len(regex):
        raise parser.error("an unmatched )")
    return found


class _Parser:
    """Recursive descent parser; ``at`` is the index of the next character."""

    def __init__(self, regex: str, make: Expressions) -> None:
        self.regex, self.make, self.at = regex, make, 0
        self.in_name = False  # True within the name of a token, where characters cost nothing

    @cached_property
    def not_ascii(self) -> Expression:
        """The expression of one character that is not ASCII."""
        ranges = [[_mask(range(low, high + 1)) for low, high in bytes_] for bytes_ in _UTF8]
        others = (self._row(self.make.byte(mask) for mask in masks) for masks in ranges)
        return self.make.either(*others)

    def error(self, found: str) -> ValueError:
        """Return an error with the current position and the unsupported syntax ``found`` there."""
        near = self.regex[max(self.at - 10, 0) : self.at + 10].replace(_MARKED, "<")
        return ValueError(
            f"the grammar of the task has {found} at character {self.at} ({near!r}); write "
            "literals, classes of ASCII characters, (?:...), | and quantifiers only."
        )

    def options(self) -> Expression:
        """Parse alternatives up to ``)`` or the end."""
        found = [self._sequence()]
        while self._next() == "|":
            self.at += 1
            found.append(self._sequence())
        return self.make.either(*found)

    def _next(self) -> str:
        return self.regex[self.at : self.at + 1]

    def _row(self, items: Iterable[Expression]) -> Expression:
        found = self.make.empty
        for item in reversed(list(items)):
            found = self.make.then(item, found)
        return found

    def _sequence(self) -> Expression:
        found = []
        while self._next() not in ("", "|", ")"):
            item = self._item()
            quantifier = _QUANTIFIER.match(self.regex, self.at)
            if quantifier:
                self.at = quantifier.end()
                item = self.make.repeat(item, *_times(quantifier))
                if self._next() in ("?", "+", "*"):
                    raise self.error("a lazy or possessive quantifier")
            found.append(item)
        return self._row(found)

    def _item(self) -> Expression:
        character = self._next()
        if character == "(":
            if self.regex.startswith("(?", self.at) and not self.regex.startswith("(?:", self.at):
                raise self.error("a group other than (?:...)")
            self.at += 3 if self.regex.startswith("(?:", self.at) else 1
            found = self.options()
            if self._next() != ")":
                raise self.error("an unclosed (")
            self.at += 1
            return found
        if character == "[":
            return self._class()
        if character in "^$*+?{":
            raise self.error(f"the character {character}")
        self.at += 1
        if character == ".":
            return self._characters(_ASCII & ~_mask([10]), with_others=True)
        return self._literal(self._escaped() if character == "\\" else character)

    def _literal(self, character: str) -> Expression:
        if character == _MARKED:
            self.in_name = True
            return self.make.byte(1 << MARK)
        found = self._row(
            self.make.byte(1 << byte, is_free=self.in_name) for byte in character.encode()
        )
        self.in_name = self.in_name and character != ">"
        return found

    def _escaped(self) -> str:
        """Return the character that an escape sequence represents, from after the backslash."""
        character, code = self._next(), self.regex[self.at + 1 : self.at + 3]
        if character == "x" and re.fullmatch("[0-9a-fA-F]{2}", code) and int(code, 16) < 128:
            self.at += 3
            return chr(int(code, 16))
        if not character or (character.isalnum() and character not in _NAMED):
            raise self.error(f"the escape \\{character}")
        self.at += 1
        return _NAMED.get(character, character)

    def _class(self) -> Expression:
        self.at += 1
        negated = self._next() == "^"
        self.at += negated
        mask, is_first = 0, True
        while self._next() != "]" or is_first:
            low = high = self._member()
            if self._next() == "-" and self.regex[self.at + 1 : self.at + 2] != "]":
                self.at += 1
                high = self._member()
            mask |= _mask(range(low, high + 1))
            is_first = False
        self.at += 1
        return self._characters(_ASCII & ~mask if negated else mask, with_others=negated)

    def _member(self) -> int:
        character = self._next()
        self.at += 1
        if character == "\\":
            character = self._escaped()
        if not character or not character.isascii():
            raise self.error("an unclosed class, or one with a character that is not ASCII,")
        return ord(character)

    def _characters(self, mask: int, *, with_others: bool) -> Expression:
        found = self.make.byte(mask, is_free=self.in_name)
        return self.make.either(found, self.not_ascii) if with_others else found


def _times(quantifier: re.Match[str]) -> tuple[int, int | None]:
    if quantifier[0] in "*+?":
        return {"*": (0, None), "+": (1, None), "?": (0, 1)}[quantifier[0]]
    least = int(quantifier[1])
    if quantifier[2] is None:
        return least, least
    return least, int(quantifier[3]) if quantifier[3] else None


def _mask(members: Iterable[int]) -> int:
    return sum(1 << member for member in set(members))
