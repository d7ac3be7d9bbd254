"""Which tokens of a tokenizer are numbers, and what they are worth."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

_SPACE_MARKS = "▁Ġ"  # of SentencePiece and of byte-level BPE
_NAME = re.compile(r"<.+>", re.DOTALL)  # <0x31>, <extra_id_7>, <|im_end|>: a name, not text
_PIECE = re.compile(r" *[-.,]*[0-9]+(?:[.,][0-9]+)*[-.,]*")
_MATTERS = re.compile(r"[-.,0-9]")
_DIGIT = re.compile(r"[0-9]")


class NumberToken(NamedTuple):
    """A token that is a number, or a piece of one."""

    id: int

    value: float
    """What its digits are worth in units of the last of them (15 for ``015``, 5 for ``0.5``), or
    what a list or a mapping of your own says."""

    alphabet: str
    """Which tokens could stand in its place: a softmax runs over one alphabet. Pieces of numbers
    are in one alphabet when they differ in their digits alone: it is their text with every digit as
    0 and a space mark as a space (``0``, `` 000``, ``0.0``). A list or a mapping of your own is an
    alphabet by itself."""

    digits: str = ""
    """The digits of a piece of a number; empty for a token that is a number on its own."""


@dataclass(frozen=True)
class NumberVocabulary:
    """The number tokens of a tokenizer; the tokenizer itself is read, never changed.

    The order of the tokens is the order of the classes of every numeric loss.

    Attributes:
        tokens: In ascending order of value within each alphabet, one alphabet after the other.
        spelling: What every token that matters to the reading of a number adds to the text: digits,
            signs, points and commas, with a space mark as a space.
    """

    tokens: tuple[NumberToken, ...]
    spelling: Mapping[int, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        """Refuse tables that no softmax can run over."""
        if len({token.id for token in self.tokens}) < len(self.tokens) or len(self.tokens) < 2:
            raise ValueError(
                "NumberVocabulary: there must be at least two tokens, each with an id of its own; "
                f"got {[token.id for token in self.tokens[:5]]}."
            )
        if not all(math.isfinite(token.value) for token in self.tokens):
            raise ValueError("NumberVocabulary: the value of a token must be finite.")
        if list(self.tokens) != sorted(self.tokens, key=_order):
            raise ValueError("NumberVocabulary: sort the tokens by alphabet, value and id.")

    @classmethod
    def from_tokenizer(cls, tokenizer: Any) -> "NumberVocabulary":
        """Read every token of a tokenizer, and keep those that write numbers.

        A number token is made of ASCII digits, with points, commas and a sign between or around
        them, and maybe a mark for the space in front: ``7``, ``015``, ``Ġ42``, ``▁3.``, ``-24``.
        Byte tokens (``<0x30>``), special tokens, words (``nan``), digits of other scripts and
        tokens that mix digits with letters (``mp3``) are none.

        Args:
            tokenizer: Anything with ``get_vocab() -> dict[str, int]``; ``all_special_ids`` is read
                where there is one.

        Raises:
            ValueError: If one of the ten digits has no token of its own.
        """
        vocabulary: dict[str, int] = tokenizer.get_vocab()
        missing = [digit for digit in "0123456789" if digit not in vocabulary]
        if missing:
            raise ValueError(
                f"tokenizer {_name(tokenizer)}: no token for the digit"
                f"{'s' if len(missing) > 1 else ''} {', '.join(missing)}. Numeric losses read "
                "numbers from tokens of digits: use a tokenizer that has them, or say with "
                "NumberVocabulary.from_tokens which tokens are numbers."
            )
        joined = [token for token in vocabulary if token.startswith("##") and token[2:].isdigit()]
        if joined:
            raise ValueError(
                f"tokenizer {_name(tokenizer)}: tokens like {joined[0]!r} (WordPiece) go on with "
                "the word before them, which is not read: use the tokenizer of a generative model."
            )
        special = set(getattr(tokenizer, "all_special_ids", ()))
        tokens, spelling = [], {}
        for token, index in vocabulary.items():
            if not _MATTERS.search(token) or index in special or _NAME.fullmatch(token):
                continue
            text = re.sub(f"[{_SPACE_MARKS}]", " ", token)
            spelling[index] = text
            if _PIECE.fullmatch(text):
                digits = "".join(_DIGIT.findall(text))
                tokens.append(NumberToken(index, float(int(digits)), _DIGIT.sub("0", text), digits))
        return cls(tuple(sorted(tokens, key=_order)), spelling)

    @classmethod
    def from_tokens(
        cls, tokenizer: Any, tokens: Iterable[str] | Mapping[str, float]
    ) -> "NumberVocabulary":
        """Take tokens that are numbers on their own, each a whole one: location tokens, words.

        Args:
            tokenizer: Anything with ``get_vocab() -> dict[str, int]``.
            tokens: What each token is worth; a list is worth 0, 1, 2 ... in its order, such as
                ``[f"<loc{i:04d}>" for i in range(1024)]``. They share one softmax. Add digits with
                ``NumberVocabulary.from_tokenizer(tokenizer) | ...``.

        Raises:
            ValueError: If the tokenizer lacks one of them.
        """
        vocabulary: dict[str, int] = tokenizer.get_vocab()
        if not isinstance(tokens, Mapping):
            tokens = list(tokens)
            twice = [token for token in dict.fromkeys(tokens) if tokens.count(token) > 1]
            if twice:
                raise ValueError(f"from_tokens: the token {twice[0]!r} stands in the list twice.")
            tokens = {token: float(i) for i, token in enumerate(tokens)}
        missing = [token for token in tokens if token not in vocabulary]
        if missing:
            more = f" and {len(missing) - 1} more of the {len(tokens)}" if len(missing) > 1 else ""
            raise ValueError(
                f"tokenizer {_name(tokenizer)}: no token {missing[0]!r}{more}. Add the tokens to "
                "the tokenizer and the model first, or leave them out."
            )
        alphabet = f"{next(iter(tokens), '')} ..."  # no piece has a space behind a digit
        found = [
            NumberToken(vocabulary[token], float(value), alphabet)
            for token, value in tokens.items()
        ]
        return cls(tuple(sorted(found, key=_order)))

    def __or__(self, other: "NumberVocabulary") -> "NumberVocabulary":
        """Return the number tokens of both.

        A token that is a number on its own in either is one here, and not read as text.
        """
        both = sorted((*self.tokens, *other.tokens), key=lambda token: not token.digits)
        tokens = {token.id: token for token in both}
        spelling = {**self.spelling, **other.spelling}
        for index in [i for i in spelling if i in tokens and not tokens[i].digits]:
            del spelling[index]
        return NumberVocabulary(tuple(sorted(tokens.values(), key=_order)), spelling)

    @cached_property
    def classes(self) -> dict[int, int]:
        """The class of each number token's id."""
        return {token.id: j for j, token in enumerate(self.tokens)}

    def __len__(self) -> int:
        """Return the number of classes."""
        return len(self.tokens)


def _order(token: NumberToken) -> tuple[str, float, int]:
    """Return what tokens are sorted by."""
    return token.alphabet, token.value, token.id


def _name(tokenizer: Any) -> str:
    """Return what a tokenizer is called, for errors."""
    return getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__
