"""Find the numbers in the labels of a batch, and store them and their tokens as flat tensors.

Axes    b samples, t positions, n positions with a label (supervised), m numbers, k labels that are
        number tokens, q boxes, r clock times

A span is the range of tokens that spells a number. Spans are built once per batch, in the collator
on the CPU. The numeric losses then need no loops on the GPU: they gather the logits at number
tokens, compute a softmax over all number tokens, and sum over the tokens of each number.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mm_numeric.answers import ROLES, Mark
from mm_numeric.numbers.numerals import Numeral, find_numerals
from mm_numeric.numbers.vocabulary import NumberVocabulary

IGNORE_INDEX = -100
"""Label of a token without a loss, as in transformers."""

_LARGEST_PLACE = 300  # below the float64 maximum, so that sums of digits stay finite
_ALIGNMENT = 8  # bytes: the size of int64 and float64, the largest dtypes

_BUFFER = "_buffer"
"""Attribute of ``NumberSpans`` (not a field): the buffer that the tensors are views of."""


def shifted(labels: Tensor) -> Tensor:
    """Shift labels [samples, positions] left by one, so that they are aligned with the logits."""
    return torch.nn.functional.pad(labels[:, 1:], (0, 1), value=IGNORE_INDEX)


def aligned_labels(labels: Tensor | None, shift: bool) -> Tensor:
    """Return labels [b, t]; if ``shift``, shift them left by one to align them with the logits."""
    if labels is None:
        raise ValueError(
            "a batch has no labels: the data collator must return `labels` [b, t], -100 to ignore."
        )
    return shifted(labels) if shift else labels


def document_ids(position_ids: Tensor, *, shift: bool) -> Tensor:
    """Return for each label [b, t] the index of its document, in rows of packed documents.

    A document starts where ``position_ids`` [b, t] decrease, or stay 0 after a document of one
    token. Within a document, they may increase by any number or stay the same. If ``shift`` is
    True, the result is for labels shifted left by one, as decoder-only models need.
    """
    step = position_ids.diff(dim=1)
    falls = (step < 0) | ((step == 0) & (position_ids[:, 1:] == 0))
    starts = torch.nn.functional.pad(falls, (1, 0))
    return aligned_documents(starts.cumsum(dim=1), shift=shift)


def aligned_documents(documents: Tensor, *, shift: bool) -> Tensor:
    """Return the index of the packed document that each label [b, t] belongs to.

    ``documents`` [b, t] has the document index of each input token. If ``shift`` is True, the
    labels are shifted left by one, and the document indices are shifted in the same way.
    """
    return torch.cat([documents[:, 1:], documents[:, -1:]], dim=1) if shift else documents


def packed_documents(batch: Mapping[str, Any]) -> Tensor | None:
    """Return for each shifted label [b, t] the index of its document, if a row has several.

    The documents are found from ``position_ids`` [b, t], which decrease where a document begins.
    Without them, ``attention_mask`` [b, t] has a number for each document, and 0 for padding. None
    if the batch has neither. Labels are shifted left, as only decoder-only models are packed.
    """
    positions, mask = (
        found if isinstance(found, Tensor) and found.shape == batch["labels"].shape else None
        for found in (batch.get("position_ids"), batch.get("attention_mask"))
    )
    if positions is not None:
        return document_ids(positions, shift=True) + 1
    return None if mask is None else aligned_documents(mask, shift=True)


class TokenNumber(NamedTuple):
    """One number in a token sequence: its value, its sign (1 or -1), its tokens and its meaning.

    ``role`` is the meaning, such as ``hour``. Numbers of one box or time share a ``group``.
    """

    value: float
    sign: int
    positions: tuple[int, ...]
    """Positions of the number's tokens in the sequence."""

    targets: tuple[int, ...]
    """Class of each token: its index in ``NumberVocabulary.tokens``."""

    places: tuple[int, ...]
    """Power of ten of the last digit of each token: 0 units, 1 tens, -1 tenths."""

    role: str = "free"
    group: int = -1


def numbers_in_labels(
    labels: Sequence[int],
    vocabulary: NumberVocabulary,
    *,
    digit_runs: bool = False,
    thousands_separators: bool = False,
    documents: Sequence[int] | None = None,
) -> list[TokenNumber]:
    """Find the numbers in one sequence of label ids.

    A number is skipped if one of its tokens also contains letters (``mp3``) or digits of another
    number (``5-7``). A position with ``IGNORE_INDEX`` separates two numbers, and so does a change
    of ``documents``, the index of each label's document. ``digit_runs`` reads each sequence of
    digits as an integer, ``thousands_separators`` reads ``1,234`` as 1234.
    """
    pieces = [vocabulary.spelling.get(label, " ") for label in labels]
    if documents is not None:
        for position in range(1, len(pieces)):
            if documents[position] != documents[position - 1]:
                pieces[position] = " " + pieces[position]
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
    """Find the numbers of an answer that get a numeric loss, and their tokens.

    The task selects the numbers. For each number, ``marks`` has the start and end character in the
    answer ``text``, and what the number means, for example the x coordinate of the first box.
    ``ids`` are the token ids of the answer, and ``offsets`` are their start and end characters.

    Raises:
        ValueError: If the marked text is not a number, or if one of its digits is not in a number
            token or shares a token with another number.
    """
    classes = [vocabulary.classes.get(token) for token in ids]
    at: dict[int, int] = {}
    whole: dict[tuple[int, int], int] = {}
    for i, (j, (start, end)) in enumerate(zip(classes, offsets, strict=True)):
        if start == end:
            continue
        if j is None:
            if vocabulary.partial:  # the other tokens of the number still have a numeric loss
                at.update(dict.fromkeys(range(start, end), i))
        elif not vocabulary.tokens[j].digits:
            whole[start, end] = i
        elif "".join(filter(str.isdigit, text[start:end])) == vocabulary.tokens[j].digits:
            at.update(dict.fromkeys(range(start, end), i))
    numbers = []
    for mark in marks:
        if (mark.start, mark.end) in whole:
            position = whole[mark.start, mark.end]
            number = _whole(vocabulary.classes[ids[position]], position, vocabulary)
        else:
            found = _marked_numeral(text, mark, at, ids, vocabulary)
            if found is None:
                continue
            number = found
        numbers.append(number._replace(role=mark.role, group=mark.group))
    return numbers


def _marked_numeral(
    text: str, mark: Mark, at: Mapping[int, int], ids: Sequence[int], vocabulary: NumberVocabulary
) -> TokenNumber | None:
    """Return the value and the tokens of the number at the position ``mark`` in an answer.

    Return None if the vocabulary has only single digits as number tokens, and the number is made of
    other tokens, such as one token ``42``.
    """
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
    if number is None and not vocabulary.partial:
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
    """Return the value of a number that was found in a text, and the tokens of its digits.

    ``at[i]`` is the index in ``ids`` of the token that contains character i of the text. A digit is
    unusable if it is not in a number token, or if its token has digits of another number. Return
    None if a digit is unusable. If ``vocabulary.partial`` is True, instead leave out the unusable
    digits, and return None only if all digits are unusable.
    """
    places: dict[int, list[int]] = {}
    for character, place in numeral.places().items():
        places.setdefault(at[character], []).append(place)
    tokens = []
    for position, its_places in places.items():
        target = vocabulary.classes.get(ids[position])
        if target is not None and len(vocabulary.tokens[target].digits) == len(its_places):
            tokens.append((position, target, min(its_places)))
        elif not vocabulary.partial:
            return None
    if not tokens:
        return None
    positions, targets, last_places = zip(*tokens, strict=True)
    return TokenNumber(numeral.value, numeral.sign, positions, targets, last_places)


def _whole(target: int, position: int, vocabulary: NumberVocabulary) -> TokenNumber:
    value = vocabulary.tokens[target].value
    sign = -1 if value < 0 else 1
    return TokenNumber(value, sign, positions=(position,), targets=(target,), places=(0,))


class Packed:
    """Named tensors of any dtype in one buffer of bytes.

    The buffer is copied to a device in one step, because every copy costs the host about the same
    time, whatever its size.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._layout = {name: (own.dtype, own.shape) for name, own in tensors.items()}
        parts = [torch.zeros(0, dtype=torch.uint8)]
        for own in tensors.values():
            # ``view(torch.uint8)`` requires contiguous strides, even of an empty tensor.
            whole = own.clone(memory_format=torch.contiguous_format).flatten().view(torch.uint8)
            parts += [whole, whole.new_zeros(-len(whole) % _ALIGNMENT)]
        self._buffer = torch.cat(parts)

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors by name, as views of the buffer."""
        found, start = {}, 0
        for name, (dtype, shape) in self._layout.items():
            end = start + shape.numel() * dtype.itemsize
            found[name] = self._buffer[start:end].view(dtype).view(shape)
            start = end + -end % _ALIGNMENT
        return found

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "Packed":
        """Return a copy on a device, like ``Tensor.to``."""
        return self._with(self._buffer.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> "Packed":
        """Return a copy in pinned memory."""
        return self._with(self._buffer.pin_memory())

    def _with(self, buffer: Tensor) -> "Packed":
        found = object.__new__(Packed)
        found._layout, found._buffer = self._layout, buffer
        return found


@dataclass(frozen=True, eq=False)
class NumberSpans:
    """The numbers in the labels of a batch: their values, tokens and positions.

    The axes are n positions with a label (supervised), k labels that are number tokens, m numbers,
    q boxes and r clock times.

    Attributes:
        position: [k] index of the number token among the n supervised positions.
        target: [k] index of the number token in ``NumberVocabulary.tokens``.
        place: [k] power of ten of the token's last digit: 0 units, 1 tens, -1 tenths.
        from_right: [k] number of digits after the token: 2, 1, 0 for the digits of 923.
        worth: [k] 10 to the power of ``place``, float64, from 1e-300 to 1e300.
        number: [k] index of the number that the token belongs to, 0 to m - 1.
        value: [m] numeric value, float64, including the sign.
        sign: [m] +1 or -1.
        role: [m] meaning, such as ``x`` or ``hour``, as an index into ``answers.ROLES``.
        group: [m] index of the box, polygon or time, within the sample, that the number belongs
            to; -1 for any other number.
        sample: [m] index of the sample in the batch.
        samples: [] number of samples in the batch, including samples without numbers. This tensor
            stays on the CPU.
        boxes: [q, 4] indices (0 to m - 1) of the numbers x1, y1, x2 and y2 of each box.
        times: [r, 2] indices (0 to m - 1) of the hour and the minute of each time.
        supervised: [n] index of each supervised position in the flattened labels
            [samples * positions]. None if the loss gets logits only at supervised positions.
    """

    position: Tensor
    target: Tensor
    place: Tensor
    from_right: Tensor
    worth: Tensor
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
        """Store the numbers of all samples of a batch as flat tensors.

        The n positions with a label in the batch have the indices 0 to n - 1. ``rows[i]`` maps each
        labelled position of sample i to this index. ``supervised`` lists the same n positions as
        indices into the labels flattened to [samples * positions].
        """
        found = [(s, number) for s, sample in enumerate(numbers) for number in sample]
        tokens = [
            (rows[s][position], target, place, place - min(number.places), m)
            for m, (s, number) in enumerate(found)
            for position, target, place in zip(
                number.positions, number.targets, number.places, strict=True
            )
        ]
        columns = torch.tensor(tokens, dtype=torch.long).reshape(-1, 5).T.contiguous()
        position, target, place, from_right, number = columns
        return cls(
            position=position,
            target=target,
            place=place,
            from_right=from_right,
            worth=10.0 ** place.double().clamp(-_LARGEST_PLACE, _LARGEST_PLACE),
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
    def from_labels(
        cls,
        labels: Tensor,
        vocabulary: NumberVocabulary,
        *,
        digit_runs: bool = False,
        thousands_separators: bool = False,
        documents: Tensor | None = None,
    ) -> "NumberSpans":
        """Find the numbers in labels [samples, positions] that are already shifted by one.

        Positions with ``IGNORE_INDEX`` have no label. Call this in the collator, with labels on the
        CPU: reading them from a GPU would make the CPU wait. ``digit_runs`` reads each sequence of
        digits as an integer, ``thousands_separators`` reads ``1,234`` as 1234. ``documents`` are
        the document ids of packed labels (see ``document_ids``): a number ends with its document.
        """
        if documents is not None and documents.shape != labels.shape:
            raise ValueError(
                f"documents must have the shape of the labels, {list(labels.shape)}, not "
                f"{list(documents.shape)}."
            )
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
                    documents=None if documents is None else documents[i].tolist(),
                )
            )
        found = cls.build(numbers, rows, supervised)
        return found if labels.device.type == "cpu" else found.to(labels.device)

    def first(self, samples: int, supervised: int) -> "NumberSpans":
        """Return the spans of the first ``samples`` samples, which have ``supervised`` labels."""
        numbers = int((self.sample < samples).sum())
        tokens = int((self.number < numbers).sum())
        of_token = ("position", "target", "place", "from_right", "worth", "number")
        sizes = dict.fromkeys(of_token, tokens)
        sizes |= dict.fromkeys(("value", "sign", "role", "group", "sample"), numbers)
        sizes["supervised"] = supervised
        whole = {f.name: getattr(self, f.name) for f in fields(self)}
        cut = {name: whole[name][:n] for name, n in sizes.items() if whole[name] is not None}
        for name in ("boxes", "times"):
            cut[name] = whole[name][(whole[name] < numbers).all(dim=1)]
        return NumberSpans(**cut, samples=self.samples.clamp(max=samples))

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "NumberSpans":
        """Return a copy on a device; all tensors but ``samples`` are copied in one step."""
        return self._with(self._packed().to(device, non_blocking))

    def pin_memory(self) -> "NumberSpans":
        """Return a copy in pinned memory. DataLoader calls this if ``pin_memory=True``."""
        return self._with(self._packed().pin_memory())

    def _packed(self) -> Packed:
        """Return the buffer that the tensors are views of; if there is none, copy them to one."""
        found: Packed | None = vars(self).get(_BUFFER)
        if found is None:
            own = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "samples"}
            found = Packed({name: tensor for name, tensor in own.items() if tensor is not None})
        return found

    def _with(self, packed: Packed) -> "NumberSpans":
        spans = NumberSpans(**packed.tensors(), samples=self.samples)
        object.__setattr__(spans, _BUFFER, packed)
        return spans


def _grouped(found: Sequence[tuple[int, TokenNumber]], roles: tuple[str, ...]) -> Tensor:
    """Return the numbers of each box or clock time, as indices into the list ``found``.

    A box or time is a group of numbers with the given ``roles``; other groups are skipped. For
    ("hour", "minute"), the result is [times, 2]: indices of the hour and minute of each clock time.
    """
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
