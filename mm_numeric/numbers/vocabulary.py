"""The number tokens of a tokenizer (tokens with a numeric value): ids, values and digits."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

_SPACE_MARKS = "▁Ġ"  # space markers of SentencePiece and byte-level BPE
_NAME = re.compile(r"<.+>", re.DOTALL)  # <0x31>, <extra_id_7>, <|im_end|>: a name, not text
_PIECE = re.compile(r" *[-.,]*[0-9]+(?:[.,][0-9]+)*[-.,]*")
_MATTERS = re.compile(r"[-.,0-9]")
_DIGIT = re.compile(r"[0-9]")


class NumberToken(NamedTuple):
    """A token with a numeric value, such as ``42``, or ``<loc0005>`` for the number 5."""

    id: int

    value: float
    """The digits read as an integer (15 for ``015``, 5 for ``0.5``), or the value that was passed
    to ``NumberVocabulary.from_tokens``."""

    digit_group: str
    """Name of the digit group: the tokens that compete in one softmax. Digit tokens that differ
    only in their digits are one group. The group is named by the tokens' text with zeros for digits
    (``0``, `` 000``, ``0.0``). Each call of ``from_tokens`` makes one group."""

    digits: str = ""
    """The token's digits as text; empty for tokens of ``NumberVocabulary.from_tokens``."""


@dataclass(frozen=True)
class NumberVocabulary:
    """The number tokens of a tokenizer, over which the numeric losses compute softmaxes.

    Attributes:
        tokens: The number tokens, sorted by digit group, value and id. A digit group is a set of
            tokens that compete in one softmax, such as the digits 0 to 9.
        spelling: Maps token id to text for all tokens with a digit, minus, point or comma. Space
            markers (``▁``, ``Ġ``) are replaced by spaces.
        partial: Applies to numbers with some tokens that are not in ``tokens``. True: the other
            tokens of the number have a numeric loss. False: no token of the number has one.
    """

    tokens: tuple[NumberToken, ...]
    spelling: Mapping[int, str] = field(default_factory=dict, repr=False)
    partial: bool = False

    def __post_init__(self) -> None:
        if len({token.id for token in self.tokens}) < len(self.tokens) or len(self.tokens) < 2:
            raise ValueError(
                "NumberVocabulary: at least two tokens with different ids are required; "
                f"got {[token.id for token in self.tokens[:5]]}."
            )
        if not all(math.isfinite(token.value) for token in self.tokens):
            raise ValueError("NumberVocabulary: the value of a token must be finite.")
        order = sorted(self.tokens, key=lambda token: (token.digit_group, token.value, token.id))
        object.__setattr__(self, "tokens", tuple(order))

    @classmethod
    def from_tokenizer(cls, tokenizer: Any) -> "NumberVocabulary":
        """Select the number tokens of a tokenizer from the text of all its tokens.

        A number token has ASCII digits, optionally with points, commas and minus signs, and
        optionally a space marker at the start: ``7``, ``015``, ``Ġ42``, ``▁3.``, ``-24``.
        Byte tokens (``<0x30>``), special tokens, words (``nan``), digits of other scripts and
        tokens with digits and letters (``mp3``) are not number tokens.

        The tokenizer is any object with ``get_vocab() -> dict[str, int]``, and optionally
        ``all_special_ids``. Each of the ten digits must be one of its tokens.
        """
        if not hasattr(tokenizer, "get_vocab"):
            raise ValueError(
                "NumberVocabulary.from_tokenizer takes a tokenizer, such as that of "
                f"AutoTokenizer.from_pretrained(...), not {tokenizer!r:.60}; pass the tokenizer of "
                "the model, or a NumberVocabulary as vocabulary=."
            )
        vocabulary: dict[str, int] = tokenizer.get_vocab()
        missing = [digit for digit in "0123456789" if digit not in vocabulary]
        if missing:
            raise ValueError(
                f"tokenizer {_name(tokenizer)}: no token for the digit"
                f"{'s' if len(missing) > 1 else ''} {', '.join(missing)}. Use a tokenizer "
                "that has them, or list the number tokens with NumberVocabulary.from_tokens."
            )
        joined = [token for token in vocabulary if token.startswith("##") and token[2:].isdigit()]
        if joined:
            raise ValueError(
                f"tokenizer {_name(tokenizer)}: tokens like {joined[0]!r} (WordPiece) continue "
                "the previous word, which is unsupported: use the tokenizer of a generative model."
            )
        special = set(getattr(tokenizer, "all_special_ids", ()))
        tokens, spelling = [], {}
        for token, index in vocabulary.items():
            if not _MATTERS.search(token) or index in special or _NAME.fullmatch(token):
                continue
            spelling[index] = text = _spelled(token)
            if _PIECE.fullmatch(text):
                digits = "".join(_DIGIT.findall(text))
                tokens.append(NumberToken(index, float(int(digits)), _DIGIT.sub("0", text), digits))
        return cls(tuple(tokens), spelling)

    @classmethod
    def from_tokens(
        cls, tokenizer: Any, tokens: Iterable[str] | Mapping[str, float]
    ) -> "NumberVocabulary":
        """Create a vocabulary of tokens that each represent a number, such as ``<loc0005>``.

        Args:
            tokenizer: Any object with ``get_vocab() -> dict[str, int]``.
            tokens: Mapping from tokens to values, or a list of tokens with the values 0, 1, 2 ...,
                for example ``[f"<loc{i:04d}>" for i in range(1024)]``. All compete in one softmax.
                Add digits with ``NumberVocabulary.from_tokenizer(tokenizer) | this_vocabulary``.
        """
        vocabulary: dict[str, int] = tokenizer.get_vocab()
        if not isinstance(tokens, Mapping):
            tokens = list(tokens)
            twice = [token for token in dict.fromkeys(tokens) if tokens.count(token) > 1]
            if twice:
                raise ValueError(f"from_tokens: the token {twice[0]!r} appears twice in the list.")
            tokens = {token: float(i) for i, token in enumerate(tokens)}
        missing = [token for token in tokens if token not in vocabulary]
        if missing:
            more = f" and {len(missing) - 1} more of the {len(tokens)}" if len(missing) > 1 else ""
            raise ValueError(
                f"tokenizer {_name(tokenizer)}: no token {missing[0]!r}{more}. Add the tokens to "
                "the tokenizer and the model first, or leave them out."
            )
        group = f"{next(iter(tokens), '')} ..."  # groups of digit tokens have other names
        found = (
            NumberToken(vocabulary[token], float(value), group) for token, value in tokens.items()
        )
        return cls(tuple(found))

    def require_tokenizer(self, tokenizer: Any) -> None:
        """Raise ValueError if the id of a number token is another token in ``tokenizer``.

        The tokenizer has ``convert_ids_to_tokens``, as those of transformers. Tokens that were
        passed to ``from_tokens`` are not compared.
        """
        ids = [token.id for token in self.tokens if token.id in self.spelling]
        for index, token in zip(ids, tokenizer.convert_ids_to_tokens(ids), strict=True):
            if token is None or _spelled(token) != self.spelling[index]:
                raise ValueError(
                    f"the token {index} is {self.spelling[index]!r} in the number vocabulary and "
                    f"{token!r} in the tokenizer {_name(tokenizer)}: make the vocabulary from it, "
                    "with NumberVocabulary.from_tokenizer(tokenizer)."
                )

    def __or__(self, other: "NumberVocabulary") -> "NumberVocabulary":
        """Return the union of two vocabularies.

        If both contain the same token, such as ``42``, a value that was passed to ``from_tokens``
        has priority over the value read from the token's digits.
        """
        both = sorted((*self.tokens, *other.tokens), key=lambda token: not token.digits)
        tokens = {token.id: token for token in both}
        spelling = {**self.spelling, **other.spelling}
        for index in [i for i in spelling if i in tokens and not tokens[i].digits]:
            del spelling[index]
        return NumberVocabulary(tuple(tokens.values()), spelling, self.partial or other.partial)

    def only_digits(self) -> "NumberVocabulary":
        """Return a vocabulary of the tokens that are one bare digit, ``0`` to ``9``.

        These are the number tokens of the ntloss package by default. Tokens with several digits or
        with a space marker are left out.
        """
        digits = tuple(token for token in self.tokens if token.digits and token.digit_group == "0")
        if len(digits) < 2:
            raise ValueError(
                "number_tokens: digits requires tokens that are one digit; there are none."
            )
        return NumberVocabulary(digits, self.spelling, partial=True)

    @cached_property
    def classes(self) -> dict[int, int]:
        """Map the id of each number token to its index in ``tokens``."""
        return {token.id: j for j, token in enumerate(self.tokens)}

    def __len__(self) -> int:
        return len(self.tokens)


def _spelled(token: str) -> str:
    """Return the text of a vocabulary's token, with spaces in place of space markers."""
    return re.sub(f"[{_SPACE_MARKS}]", " ", token)


def _name(tokenizer: Any) -> str:
    return getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__
