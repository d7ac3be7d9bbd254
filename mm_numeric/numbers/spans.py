"""The numbers of a batch of labels, as flat tensors.

Axes    k number tokens, m numbers, n supervised rows (rows whose next token has a label)

Spans are made once per batch, on the CPU, in the collator. Every numeric loss is then a gather, a
softmax over [k, classes] and a segment sum, without loops and without searching on the GPU.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import torch
from torch import Tensor

from mm_numeric.answers import ROLES, Mark
from mm_numeric.moved import RenamedSettings
from mm_numeric.numbers.numerals import Numeral, find_numerals
from mm_numeric.numbers.vocabulary import NumberVocabulary

IGNORE_INDEX = -100
"""Label of a token without a loss, as in transformers."""


def shifted(labels: Tensor) -> Tensor:
    """Shift labels [b, t] to the positions that predict them (causal models)."""
    return torch.nn.functional.pad(labels[:, 1:], (0, 1), value=IGNORE_INDEX)


class TokenNumber(NamedTuple):
    """One number in one sequence of tokens."""

    value: float
    sign: int
    positions: tuple[int, ...]
    """Positions of its number tokens in the sequence."""

    targets: tuple[int, ...]
    """Class of each number token in the vocabulary."""

    places: tuple[int, ...]
    """Place of the last digit of each number token: 0 units, 1 tens, -1 tenths."""

    role: str = "free"
    group: int = -1


def numbers_in_labels(
    labels: Sequence[int],
    vocabulary: NumberVocabulary,
    *,
    digit_runs: bool = False,
    thousands_separators: bool = False,
) -> list[TokenNumber]:
    """Find the numbers in the text of one sequence of labels; every role is ``free``.

    A number is skipped, and trained with cross-entropy alone, if one of its digits is in a token
    that is not a number token (``mp3``) or that contains digits of two numbers (``5-7``).

    ``IGNORE_INDEX`` ends a number like any other token. The options are those of ``find_numerals``.
    """
    pieces = [vocabulary.spelling.get(label, " ") for label in labels]
    at = [position for position, piece in enumerate(pieces) for _ in piece]
    numbers = []
    for numeral in find_numerals(
        "".join(pieces), digit_runs=digit_runs, thousands_separators=thousands_separators
    ):
        number = _from_pieces(numeral, at, labels, vocabulary)
        if number is not None:
            numbers.append(number)
    whole = [
        _whole(vocabulary.classes[label], position, vocabulary)
        for position, label in enumerate(labels)
        if label in vocabulary.classes and not vocabulary.tokens[vocabulary.classes[label]].digits
    ]
    return sorted(numbers + whole, key=lambda number: number.positions)


def numbers_in_answer(
    text: str,
    marks: Iterable[Mark],
    ids: Sequence[int],
    offsets: Sequence[tuple[int, int]],
    vocabulary: NumberVocabulary,
) -> list[TokenNumber]:
    """Find the marked numbers of one answer in its tokens, with the roles of their marks.

    ``ids`` are the tokens of ``text``, and ``offsets`` the start and end character of each token.

    Raises:
        ValueError: If a mark has no numeric loss: it is not a number, or one of its digits is not
            in a number token or shares a token with another number.
    """
    classes = [vocabulary.classes.get(token) for token in ids]
    at: dict[int, int] = {}
    whole: dict[tuple[int, int], int] = {}
    for i, (j, (start, end)) in enumerate(zip(classes, offsets, strict=True)):
        if j is None or start == end:
            continue
        if not vocabulary.tokens[j].digits:
            whole[start, end] = i
        elif "".join(filter(str.isdigit, text[start:end])) == vocabulary.tokens[j].digits:
            at.update(dict.fromkeys(range(start, end), i))
    numbers = []
    for mark in marks:
        if (mark.start, mark.end) in whole:
            position = whole[mark.start, mark.end]
            number = _whole(vocabulary.classes[ids[position]], position, vocabulary)
        else:
            number = _marked_numeral(text, mark, at, ids, vocabulary)
        numbers.append(number._replace(role=mark.role, group=mark.group))
    return numbers


def _marked_numeral(
    text: str,
    mark: Mark,
    at: Mapping[int, int],
    ids: Sequence[int],
    vocabulary: NumberVocabulary,
) -> TokenNumber:
    """Read one marked number of digits; ``at`` maps a character to its token."""
    numeral = Numeral(mark.start, mark.end, text[mark.start : mark.end])
    if find_numerals(numeral.text, thousands_separators=True) != [
        Numeral(0, len(numeral.text), numeral.text)
    ]:
        raise ValueError(f"the answer {text!r} marks {numeral.text!r}, which is not a number.")
    for character in numeral.places():
        if character not in at:
            raise ValueError(
                f"the answer {text!r}: the digit {text[character]!r} at character {character} is "
                "not in a number token, so that it has no numeric loss."
            )
    number = _from_pieces(numeral, at, ids, vocabulary)
    if number is None:
        raise ValueError(
            f"the answer {text!r}: a token of {numeral.text!r} at character {numeral.start} also "
            "contains digits of another number, so that it has no numeric loss."
        )
    return number


def _from_pieces(
    numeral: Numeral,
    at: Sequence[int] | Mapping[int, int],
    ids: Sequence[int],
    vocabulary: NumberVocabulary,
) -> TokenNumber | None:
    """Return a number with its tokens; None if a token has no digits or digits of two numbers.

    ``at`` has the position in ``ids`` of the token of each character.
    """
    places: dict[int, list[int]] = {}
    for character, place in numeral.places().items():
        places.setdefault(at[character], []).append(place)
    targets = [vocabulary.classes.get(ids[position]) for position in places]
    for target, its_places in zip(targets, places.values(), strict=True):
        if target is None or len(vocabulary.tokens[target].digits) != len(its_places):
            return None
    return TokenNumber(
        value=numeral.value,
        sign=numeral.sign,
        positions=tuple(places),
        targets=tuple(target for target in targets if target is not None),
        places=tuple(min(its_places) for its_places in places.values()),
    )


def _whole(target: int, position: int, vocabulary: NumberVocabulary) -> TokenNumber:
    value = vocabulary.tokens[target].value
    sign = -1 if value < 0 else 1
    return TokenNumber(value, sign, positions=(position,), targets=(target,), places=(0,))


@dataclass(frozen=True, eq=False)
class NumberSpans:
    """The numbers of a batch.

    Attributes:
        row: [k] index of the supervised row that predicts the number token.
        target: [k] class of the number token in the vocabulary.
        place: [k] power of ten of the token's last digit: 0 units, 1 tens, -1 tenths.
        number: [k] index of its number, 0 to m - 1.
        value: [m] numeric value, float64, including the sign.
        sign: [m] +1 or -1.
        role: [m] index into ``mm_numeric.answers.ROLES``.
        group: [m] index of its box, polygon or time in the sample; -1 without one.
        sample: [m] index of its sample in the batch.
        samples: [] number of samples in the batch, including those without numbers.
        boxes: [q, 4] indices of the numbers x1, y1, x2 and y2 of each box: a group of a sample with
            two numbers of role ``x``, two of role ``y`` and no others.
        times: [r, 2] indices of the hour and the minute of each time.
        supervised: [n] position of each supervised row among the b * t positions of the batch; None
            if the rows were selected before.
    """

    row: Tensor
    target: Tensor
    place: Tensor
    number: Tensor
    value: Tensor
    sign: Tensor
    role: Tensor
    group: Tensor
    sample: Tensor
    samples: Tensor
    boxes: Tensor
    times: Tensor
    supervised: Tensor | None = None

    @classmethod
    def build(
        cls,
        numbers: Sequence[Sequence[TokenNumber]],
        rows: Sequence[Mapping[int, int]],
        supervised: Sequence[int] | None = None,
    ) -> "NumberSpans":
        """Make the spans of a batch.

        ``rows`` maps, for each sample, positions to the supervised rows that predict them.
        ``supervised`` has the position of each supervised row among the b * t positions.
        """
        found = [(s, number) for s, sample in enumerate(numbers) for number in sample]
        tokens = [
            (rows[s][position], target, place, m)
            for m, (s, number) in enumerate(found)
            for position, target, place in zip(
                number.positions, number.targets, number.places, strict=True
            )
        ]
        columns = torch.tensor(tokens, dtype=torch.long).reshape(-1, 4).T.contiguous()
        row, target, place, number = columns
        return cls(
            row=row,
            target=target,
            place=place,
            number=number,
            value=torch.tensor([n.value for _, n in found], dtype=torch.float64),
            sign=torch.tensor([n.sign for _, n in found], dtype=torch.long),
            role=torch.tensor([ROLES.index(n.role) for _, n in found], dtype=torch.long),
            group=torch.tensor([n.group for _, n in found], dtype=torch.long),
            sample=torch.tensor([s for s, _ in found], dtype=torch.long),
            samples=torch.tensor(len(numbers)),
            boxes=_grouped(found, ("x", "y", "x", "y")),
            times=_grouped(found, ("hour", "minute")),
            supervised=None if supervised is None else torch.tensor(supervised, dtype=torch.long),
        )

    @classmethod
    @RenamedSettings({"thousands": "thousands_separators"}).accept_old_arguments
    def from_labels(
        cls,
        labels: Tensor,
        vocabulary: NumberVocabulary,
        *,
        digit_runs: bool = False,
        thousands_separators: bool = False,
    ) -> "NumberSpans":
        """Find the numbers of a batch in the text of its labels.

        The supervised rows are the positions of ``labels`` that are not ``IGNORE_INDEX``, counted
        from left to right and top to bottom.

        Labels are [b, t], the token that each row predicts (shift before the call), and are read on
        the CPU; labels on a GPU cost one synchronisation, so call this in the collator. The options
        are those of ``find_numerals``.
        """
        numbers, rows = [], []
        supervised: list[int] = []
        for i, sequence in enumerate(labels.tolist()):
            at = [p for p, label in enumerate(sequence) if label != IGNORE_INDEX]
            rows.append({p: len(supervised) + row for row, p in enumerate(at)})
            supervised += [i * len(sequence) + p for p in at]
            numbers.append(
                numbers_in_labels(
                    sequence,
                    vocabulary,
                    digit_runs=digit_runs,
                    thousands_separators=thousands_separators,
                )
            )
        return cls.build(numbers, rows, supervised).to(labels.device)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "NumberSpans":
        """Return the spans on a device."""
        return self._each(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> "NumberSpans":
        """Return the spans in page-locked memory; DataLoader calls this for ``pin_memory=True``."""
        return self._each(Tensor.pin_memory)

    def _each(self, change: Callable[[Tensor], Tensor]) -> "NumberSpans":
        """Return the spans with a function applied to every tensor."""
        there = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "supervised"}
        supervised = None if self.supervised is None else change(self.supervised)
        changed = {name: change(tensor) for name, tensor in there.items()}
        return NumberSpans(**changed, supervised=supervised)


def _grouped(found: Sequence[tuple[int, TokenNumber]], roles: tuple[str, ...]) -> Tensor:
    """Return the numbers of each group with exactly these roles, in this order, [q, roles]."""
    groups: dict[tuple[int, int], list[int]] = {}
    for m, (sample, number) in enumerate(found):
        if number.group >= 0:
            groups.setdefault((sample, number.group), []).append(m)
    table = []
    for members in groups.values():
        of_role: dict[str, list[int]] = {}
        for m in members:
            of_role.setdefault(found[m][1].role, []).append(m)
        if sorted(found[m][1].role for m in members) == sorted(roles):
            table.append([of_role[role].pop(0) for role in roles])
    return torch.tensor(table, dtype=torch.long).reshape(-1, len(roles))
