"""The numbers in a batch of labels."""

from dataclasses import fields, replace

import pytest
import torch
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from tokens import TOKENIZER, VOCABULARY, labels_of

from mm_numeric.answers import ROLES, Mark
from mm_numeric.numbers.numerals import find_numerals
from mm_numeric.numbers.spans import (
    IGNORE_INDEX,
    NumberSpans,
    Packed,
    numbers_in_answer,
    numbers_in_labels,
)


def characters(text):
    """Return the offsets of a tokenizer with one token a character."""
    return [(i, i + 1) for i in range(len(text))]


def marked(text, marks=None, offsets=None, ids=None):
    """Read an answer through its marks; all of its numerals when there are none."""
    if marks is None:
        marks = [Mark(numeral.start, numeral.end) for numeral in find_numerals(text)]
    return numbers_in_answer(
        text,
        marks,
        ids if ids is not None else TOKENIZER.ids(text),
        offsets or characters(text),
        VOCABULARY,
    )


@given(st.text(alphabet="0123456789.-:, ab", max_size=20))
@examples(100)
def test_labels_and_marks_agree(text):
    assert numbers_in_labels(TOKENIZER.ids(text), VOCABULARY) == marked(text)


@pytest.mark.parametrize(
    ("text", "values", "places"),
    [
        ("-3.25", [-3.25], [(0, -1, -2)]),
        ("1,234", [1, 234], [(0,), (2, 1, 0)]),
        ("007", [7], [(2, 1, 0)]),
        ("12:34", [12, 34], [(1, 0), (1, 0)]),
        ("0.05", [0.05], [(0, -1, -2)]),
        ("3-5", [3, 5], [(0,), (0,)]),
        ("1.2.3", [1.2, 3], [(0, -1), (0,)]),
        ("-5", [-5], [(0,)]),
        ("3_4", [3, 4], [(0,), (0,)]),  # what is not trained on ends a number
        ("_._", [], []),
    ],
)
def test_numbers_in_labels(text, values, places):
    found = numbers_in_labels(labels_of(text)[0].tolist(), VOCABULARY)
    assert [number.value for number in found] == values
    assert [number.places for number in found] == places
    assert [number.sign for number in found] == [-1 if value < 0 else 1 for value in values]
    for number in found:
        assert [int(text[position]) for position in number.positions] == list(number.targets)


def test_digit_runs_in_labels():
    found = numbers_in_labels(TOKENIZER.ids("-3.015"), VOCABULARY, digit_runs=True)
    assert [number.value for number in found] == [3, 15]
    assert [number.places for number in found] == [(0,), (2, 1, 0)]


def test_the_spans_of_a_batch():
    labels = labels_of("__12", "ab__", "_-3.5", "7", width=5)
    spans = NumberSpans.from_labels(labels, VOCABULARY)
    # Supervised rows: 12 are 0 and 1; ab are 2 and 3; -3.5 are 4 to 7; 7 is 8.
    assert spans.position.tolist() == [0, 1, 5, 7, 8]
    assert spans.target.tolist() == [1, 2, 3, 5, 7]
    assert spans.place.tolist() == [1, 0, 0, -1, 0]
    assert spans.from_right.tolist() == [1, 0, 1, 0, 0]
    assert spans.worth.tolist() == [10, 1, 1, 0.1, 1]
    assert spans.number.tolist() == [0, 0, 1, 1, 2]
    assert spans.value.tolist() == [12, -3.5, 7]
    assert spans.value.dtype == torch.float64
    assert spans.sign.tolist() == [1, -1, 1]
    assert spans.sample.tolist() == [0, 2, 3]
    assert spans.role.tolist() == [ROLES.index("free")] * 3
    assert spans.group.tolist() == [-1] * 3
    assert spans.samples == 4


def test_rows_are_where_the_label_is():
    """A number at the edges of the batch, and everywhere: the row's label is the target's id."""
    labels = labels_of("1__2", "34_5", "__-6")
    spans = NumberSpans.from_labels(labels, VOCABULARY)
    supervised = labels[labels != IGNORE_INDEX]
    ids = torch.tensor([token.id for token in VOCABULARY.tokens])
    assert spans.number.tolist() == [0, 1, 2, 2, 3, 4]
    torch.testing.assert_close(supervised[spans.position], ids[spans.target], rtol=0, atol=0)


@pytest.mark.parametrize("labels", [labels_of("ab"), labels_of("___"), torch.zeros(0, 3).long()])
def test_a_batch_without_numbers(labels):
    spans = NumberSpans.from_labels(labels, VOCABULARY)
    assert len(spans.position) == len(spans.place) == len(spans.value) == len(spans.sample) == 0
    assert spans.position.dtype == spans.target.dtype == torch.long
    assert spans.samples == len(labels)


def test_to_moves_every_tensor():
    spans = NumberSpans.from_labels(labels_of("1.5"), VOCABULARY).to("meta")
    names = {f.name for f in fields(NumberSpans)} - {"samples"}
    assert all(getattr(spans, name).device.type == "meta" for name in names)
    assert spans.samples.item() == 1
    assert NumberSpans.build([], []).to("meta").supervised is None


def test_the_supervised_rows_are_found_again():
    labels = labels_of("__12", "ab__", "_-3.5", "7", width=5)
    spans = NumberSpans.from_labels(labels, VOCABULARY)
    expected = (labels != IGNORE_INDEX).flatten().nonzero().squeeze(1)
    assert torch.equal(spans.supervised, expected)


@pytest.mark.parametrize("samples", range(5))
def test_the_first_samples_alone(samples):
    labels = labels_of("__12", "ab__", "_-3.5", "7", width=5)
    whole = NumberSpans.from_labels(labels, VOCABULARY)
    whole = replace(
        whole, boxes=torch.tensor([[0, 0, 1, 1], [1, 1, 2, 2]]), times=torch.tensor([[0, 1]])
    )
    kept = labels[:samples]
    found = whole.first(samples, int((kept != IGNORE_INDEX).sum()))
    expected = NumberSpans.from_labels(kept, VOCABULARY)
    for name in {f.name for f in fields(NumberSpans)} - {"boxes", "times"}:
        assert torch.equal(getattr(found, name), getattr(expected, name)), name
    assert len(found.boxes) == max(0, samples - 2)
    assert len(found.times) == (samples > 2)


def test_thousands_are_a_choice():
    labels = labels_of("1,234.5", "12,345,678", "1,23", "0,123")
    plain = NumberSpans.from_labels(labels, VOCABULARY)
    assert plain.value.tolist() == [1, 234.5, 12, 345, 678, 1, 23, 0, 123]
    spans = NumberSpans.from_labels(labels, VOCABULARY, thousands_separators=True)
    assert spans.value.tolist() == [1234.5, 12345678, 1, 23, 0, 123]
    assert spans.place[:5].tolist() == [3, 2, 1, 0, -1]
    (number,) = marked("1,234", [Mark(0, 5)])  # a mark says that it is one number
    assert number.value == 1234


def test_boxes_and_times_are_groups_with_the_right_roles():
    text = "10 20 30 40, 7:05, 1 2 3"
    numerals = find_numerals(text)
    roles = [("y", 0), ("x", 0), ("y", 0), ("x", 0), ("hour", 1), ("minute", 1), ("x", 2), ("y", 2)]
    marks = [
        Mark(n.start, n.end, role, group)
        for n, (role, group) in zip(numerals, [*roles, ("x", 2)], strict=True)
    ]
    rows = [dict(enumerate(range(len(text)))), {}, dict(enumerate(range(len(text))))]
    spans = NumberSpans.build([marked(text, marks), [], marked(text, marks[:4])], rows)
    assert spans.boxes.tolist() == [[1, 0, 3, 2], [10, 9, 12, 11]]  # x1 y1 x2 y2, whatever is first
    assert spans.times.tolist() == [[4, 5]]


def test_roles_and_groups_come_from_the_marks():
    numbers = marked("12:05", [Mark(0, 2, "hour", 3), Mark(3, 5, "minute", 3)])
    spans = NumberSpans.build([numbers], [dict(enumerate(range(10, 15)))])
    assert [ROLES[i] for i in spans.role.tolist()] == ["hour", "minute"]
    assert spans.group.tolist() == [3, 3]
    assert spans.position.tolist() == [10, 11, 13, 14]


def test_a_marked_number_may_be_signed_and_stand_anywhere():
    (number,) = marked("a 3-5", [Mark(3, 5)])  # the task knows that this is a sign
    assert (number.value, number.sign, number.positions) == (-5, -1, (4,))


def test_a_token_in_front_of_a_digit_may_share_its_offset():
    """LLaMA's ▁ has the offset of the character after it."""
    ids = [TOKENIZER.vocabulary[" "], *TOKENIZER.ids("12")]
    (number,) = marked("12", [Mark(0, 2)], [(0, 1), (0, 1), (1, 2)], ids)
    assert number.positions == (1, 2)


@pytest.mark.parametrize("mark", [Mark(0, 1), Mark(0, 5), Mark(1, 4), Mark(4, 6), Mark(3, 3)])
def test_a_mark_that_is_not_a_number_is_rejected(mark):
    with pytest.raises(ValueError, match=r"the answer 'a12:3b' marks .*, which is not a number"):
        marked("a12:3b", [mark])


@pytest.mark.parametrize(
    "offsets",
    [
        [(0, 2), (2, 3), (3, 4)],  # 12 in one token
        [(0, 1), (2, 3), (3, 4)],  # no token for the 2
    ],
)
def test_a_digit_in_no_number_token_is_rejected(offsets):
    with pytest.raises(ValueError, match=r"'12:3': the digit '[12]' at character [01] is not in"):
        marked("12:3", [Mark(0, 2)], offsets, TOKENIZER.ids("12:"))


def test_a_digit_with_an_id_that_is_no_number_token_is_rejected():
    with pytest.raises(ValueError, match="the digit '2' at character 1 is not in a number token"):
        marked("12", [Mark(0, 2)], ids=TOKENIZER.ids("1x"))


# -- tensors in one buffer -------------------------------------------------------------------------

TENSORS = {
    "flags": torch.tensor([[True, False, True]]),
    "scalar": torch.tensor(7),
    "values": torch.tensor([[0.1, -2.0]], dtype=torch.float64),
    "nothing": torch.zeros(0, 4, dtype=torch.long),
    "transposed": torch.arange(6, dtype=torch.int32).reshape(2, 3).T,
    "half": torch.tensor([1.5], dtype=torch.bfloat16),
}


def test_tensors_of_all_dtypes_come_back():
    for packed in (Packed(TENSORS), Packed(TENSORS).to("cpu")):
        found = packed.tensors()
        assert list(found) == list(TENSORS)
        for name, tensor in TENSORS.items():
            assert found[name].dtype == tensor.dtype
            assert torch.equal(found[name], tensor)


def test_a_copy_has_one_tensor():
    packed = Packed(TENSORS).to("meta")
    found = packed.tensors()
    assert len({own.untyped_storage()._cdata for own in found.values()}) == 1
    assert all(own.device.type == "meta" for own in found.values())
    assert found["transposed"].shape == (3, 2)


def test_no_tensors_are_packed_as_well():
    assert Packed({}).tensors() == {}
