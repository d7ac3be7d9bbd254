"""Which tokens of a tokenizer are numbers, and what they are worth."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_DIGITS = tuple("0123456789")
_SPACE_MARKS = "▁Ġ "  # SentencePiece, byte-level BPE, plain
_SEVERAL_DIGITS = re.compile(rf"[{_SPACE_MARKS}]?[0-9]{{2,}}")


@dataclass(frozen=True)
class NumberVocabulary:
    """The number tokens of a tokenizer; the tokenizer itself is read, never changed.

    The order of the number tokens is the order of the classes of every numeric loss: class ``j``
    has the id ``token_ids[j]`` and the value ``values[j]``.

    Attributes:
        token_ids: The id of each number token, in ascending order of value.
        values: What each token is worth.
        point_ids: Tokens that are a decimal point.
        minus_ids: Tokens that are a minus sign.
    """

    token_ids: tuple[int, ...]
    values: tuple[float, ...]
    point_ids: frozenset[int] = frozenset()
    minus_ids: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        """Refuse tables that do not belong together."""
        if len(self.token_ids) != len(self.values) or len(set(self.token_ids)) < 2:
            raise ValueError(
                "NumberVocabulary: token_ids and values must pair up, with at least two different "
                f"ids; got {len(self.token_ids)} ids and {len(self.values)} values."
            )

    @classmethod
    def from_tokenizer(cls, tokenizer: Any) -> "NumberVocabulary":
        """Read the ten digit tokens of a tokenizer.

        Only the bare ASCII digits count: byte tokens (``<0x30>``), words (``nan``) and digits of
        other scripts have no value here.

        Args:
            tokenizer: Anything with ``get_vocab() -> dict[str, int]``.

        Raises:
            ValueError: If a digit has no token of its own, or if the tokenizer also has tokens of
                several digits, which a loss over digits would pass over in silence.
        """
        vocabulary: dict[str, int] = tokenizer.get_vocab()
        name = getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__
        missing = [digit for digit in _DIGITS if digit not in vocabulary]
        if missing:
            raise ValueError(
                f"tokenizer {name}: no token for the digit{'s' if len(missing) > 1 else ''} "
                f"{', '.join(missing)}. Numeric losses need each of 0 to 9 as a token of its own: "
                "use a tokenizer that writes numbers digit by digit."
            )
        several = [token for token in vocabulary if _SEVERAL_DIGITS.fullmatch(token)]
        if several:
            raise ValueError(
                f"tokenizer {name}: {len(several)} tokens hold several digits, such as "
                f"{min(several)!r}, and a loss over digits would never see them. "
                "Use a tokenizer that writes numbers digit by digit (LLaMA-2, Qwen2)."
            )
        return cls(
            token_ids=tuple(vocabulary[digit] for digit in _DIGITS),
            values=tuple(float(digit) for digit in _DIGITS),
            # A point behind a space starts something else: "3 .5" holds 3 and 5, not 3.5.
            point_ids=frozenset([vocabulary["."]] if "." in vocabulary else []),
            minus_ids=_marked(vocabulary, "-"),
        )

    def skeleton(self, ids: Sequence[int]) -> str:
        """Spell token ids with one character each: a digit, ``.``, ``-``, or a space for the rest.

        Positions in the result are positions in ``ids``, so that numbers can be found in tokens
        with the reader that finds them in text.
        """
        spelling = self._spelling
        return "".join([spelling.get(token, " ") for token in ids])

    @property
    def _spelling(self) -> dict[int, str]:
        spelling = {
            token: str(int(v)) for token, v in zip(self.token_ids, self.values, strict=True)
        }
        spelling.update(dict.fromkeys(self.point_ids, "."))
        spelling.update(dict.fromkeys(self.minus_ids, "-"))
        return spelling

    def __len__(self) -> int:
        """Return the number of classes."""
        return len(self.token_ids)


def _marked(vocabulary: dict[str, int], character: str) -> frozenset[int]:
    """Return the ids of a character, alone or behind a mark for a space."""
    spellings = [character, *(mark + character for mark in _SPACE_MARKS)]
    return frozenset(vocabulary[s] for s in spellings if s in vocabulary)
