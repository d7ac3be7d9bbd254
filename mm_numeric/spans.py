"""The numbers in a batch of labels, as flat tensors.

Axes    k number tokens, m numbers, n supervised rows (rows whose next token has a label)

They are made once, on the CPU, where the batch is put together. Every numeric loss is then a
gather, a softmax over [k, classes] and a sum by number: no loop, nothing to look for on the GPU.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import torch
from torch import Tensor

from mm_numeric.answers import ROLES, Mark
from mm_numeric.numerals import Numeral, find_numerals
from mm_numeric.vocabulary import NumberVocabulary

IGNORE_INDEX = -100
"""The label of a token that is not trained on, as everywhere in transformers."""


class TokenNumber(NamedTuple):
    """One number in one sequence of tokens."""

    value: float
    sign: int
    positions: tuple[int, ...]
    """Where its number tokens are in the sequence."""

    targets: tuple[int, ...]
    """The class of each in the vocabulary."""

    places: tuple[int, ...]
    """What each stands for: 0 units, 1 tens, -1 tenths."""

    role: str = "free"
    group: int = -1


def numbers_in_labels(
    labels: Sequence[int], vocabulary: NumberVocabulary, *, digit_runs: bool = False
) -> list[TokenNumber]:
    """Find the numbers of one sequence of labels from the ids alone (every role is ``free``).

    Args:
        labels: Token ids; ``IGNORE_INDEX`` ends a number like any other token.
        vocabulary: What the ids are worth.
        digit_runs: Read runs of digits, as ``find_numerals`` says.
    """
    text = vocabulary.skeleton(labels)
    classes = {token: j for j, token in enumerate(vocabulary.token_ids)}
    return [
        _token_number(numeral, [(p, labels[p], p) for p in numeral.places()], classes)
        for numeral in find_numerals(text, digit_runs=digit_runs)
    ]


def numbers_in_answer(
    text: str,
    marks: Iterable[Mark],
    ids: Sequence[int],
    offsets: Sequence[tuple[int, int]],
    vocabulary: NumberVocabulary,
) -> list[TokenNumber]:
    """Find the marked numbers of one answer in its tokens, with the roles that the task gave them.

    Args:
        text: The answer.
        marks: Where its numbers are, from the task that wrote it.
        ids: Its tokens.
        offsets: First and last-plus-one character of each token in ``text``.
        vocabulary: What the ids are worth.

    Raises:
        ValueError: If a mark is not a number, or a digit in it is not a number token of its own:
            a numeric loss would then pass over it in silence.
    """
    classes = {token: j for j, token in enumerate(vocabulary.token_ids)}
    token_at = {start: i for i, (start, end) in enumerate(offsets) if end - start == 1}
    numbers = []
    for mark in marks:
        numeral = Numeral(mark.start, mark.end, text[mark.start : mark.end])
        if find_numerals(numeral.text) != [Numeral(0, len(numeral.text), numeral.text)]:
            raise ValueError(f"the answer {text!r} marks {numeral.text!r}, which is not a number.")
        lost = [c for c in numeral.places() if c not in token_at or ids[token_at[c]] not in classes]
        if lost:
            raise ValueError(
                f"the answer {text!r}: the digit {text[lost[0]]!r} at character {lost[0]} is not a "
                "token of its own, so that a numeric loss cannot see it."
            )
        tokens = [(token_at[c], ids[token_at[c]], c) for c in numeral.places()]
        numbers.append(_token_number(numeral, tokens, classes, mark.role, mark.group))
    return numbers


def _token_number(
    numeral: Numeral,
    tokens: Iterable[tuple[int, int, int]],
    classes: Mapping[int, int],
    role: str = "free",
    group: int = -1,
) -> TokenNumber:
    """Put a number together from its tokens: position, id, character of the numeral."""
    places = numeral.places()
    positions, ids, characters = zip(*tokens, strict=True)
    return TokenNumber(
        value=numeral.value,
        sign=numeral.sign,
        positions=positions,
        targets=tuple(classes[token] for token in ids),
        places=tuple(places[character] for character in characters),
        role=role,
        group=group,
    )


@dataclass(frozen=True, eq=False)
class NumberSpans:
    """The numbers of a batch.

    Attributes:
        row: [k] which supervised row predicts this number token.
        target: [k] which class of the vocabulary it should be.
        place: [k] power of ten of the digit: 0 units, 1 tens, -1 tenths.
        number: [k] which number it belongs to, 0 to m - 1.
        value: [m] the number, float64, sign included.
        sign: [m] +1 or -1.
        role: [m] index into ``mm_numeric.answers.ROLES``.
        group: [m] which box, polygon or time of its sample it belongs to; -1 when none.
        sample: [m] which sample of the batch.
        samples: [] how many samples the batch has, those without numbers included.
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

    @classmethod
    def build(
        cls,
        numbers: Sequence[Sequence[TokenNumber]],
        rows: Sequence[Mapping[int, int]],
    ) -> "NumberSpans":
        """Put the numbers of a batch together.

        Args:
            numbers: The numbers of each sample.
            rows: For each sample, which supervised row of the batch predicts a position of it.
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
        )

    @classmethod
    def from_labels(
        cls, labels: Tensor, vocabulary: NumberVocabulary, *, digit_runs: bool = False
    ) -> "NumberSpans":
        """Find the numbers of a batch from its label ids alone.

        The supervised rows are the positions of ``labels`` that are not ``IGNORE_INDEX``, counted
        from left to right and top to bottom.

        Args:
            labels: [b, t] the token that each row predicts (shift before the call). They are read
                on the CPU: from a GPU that is one synchronisation, so do it where batches are made.
            vocabulary: What the ids are worth.
            digit_runs: Read runs of digits, as ``find_numerals`` says.
        """
        sequences = labels.tolist()
        rows, row = [], 0
        for sequence in sequences:
            supervised = [p for p, label in enumerate(sequence) if label != IGNORE_INDEX]
            rows.append({p: row + i for i, p in enumerate(supervised)})
            row += len(supervised)
        numbers = [numbers_in_labels(s, vocabulary, digit_runs=digit_runs) for s in sequences]
        return cls.build(numbers, rows).to(labels.device)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "NumberSpans":
        """Return the same spans on a device."""
        moved = (getattr(self, f.name).to(device, non_blocking=non_blocking) for f in fields(self))
        return NumberSpans(*moved)

    def pin_memory(self) -> "NumberSpans":
        """Return the same spans in page-locked memory, as DataLoader asks of a batch."""
        return NumberSpans(*(getattr(self, f.name).pin_memory() for f in fields(self)))
