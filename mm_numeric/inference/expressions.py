r"""Regular expressions over bytes, and what may follow a text that has been written.

An ``Expression`` is a set of texts. Its derivative by a byte is the set of their ends, for those
that begin with this byte (Brzozowski 1964, doi 10.1145/321239.321249). Equal expressions are the
same object, so that expressions serve as the states of an automaton that is built while it is used.

The cost of a text is the number of tokens that spell it if each token is one byte, except for
tokens such as ``<loc0012>``. Such a token is spelled as the byte ``MARK`` instead of ``<``, which
no other token contains, followed by the rest of its name, which costs nothing.
"""

import math
from collections.abc import Iterator
from functools import reduce
from typing import Any

MARK = 0xFF
"""The byte that begins the name of a token such as ``<loc0012>``; it never occurs in UTF-8."""


class Expression:
    """A set of texts as a regular expression.

    Attributes:
        kind: ``nothing`` (no text), ``empty`` (the empty text), ``byte``, ``then``, ``either`` or
            ``repeat``.
        parts: The expressions and numbers that it consists of.
        ends: True if the empty text is in the set.
        least: Cost of the cheapest text; infinite if no text can be spelled.
        most: Cost of the most expensive text.
        first: The bytes that a text may begin with; bit i is set for byte i.
    """

    __slots__ = ("derivatives", "ends", "first", "kind", "least", "most", "parts")

    def __init__(self, kind: str, parts: tuple[object, ...]) -> None:
        self.kind, self.parts = kind, parts
        self.derivatives: dict[int, Expression] = {}
        self.ends, self.first = False, 0
        self.least = self.most = math.inf


class Expressions:
    """Makes expressions.

    Attributes:
        spelled: The bytes that are a token of their own, a bit for each.
        excluded: Bytes that no text may contain, a bit for each.
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
        """Return the texts of one byte in ``mask``; ``is_free`` if they cost nothing."""
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
        """Return ``least`` to ``most`` texts of ``inner`` in a row; None is any number."""
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
        """Return the ends of those texts that begin with ``byte``, without this byte."""
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
