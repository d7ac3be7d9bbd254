"""Batches: what is padded, what is supervised, and which numbers are in it."""

import dataclasses

import pytest
import torch
from PIL import Image
from tiny_models import tiny_family, tiny_model

from mm_numeric.answers import ROLES, ClockTime
from mm_numeric.data.collator import BATCH_KEYS, TrainingCollator
from mm_numeric.data.lengths import LengthLimit
from mm_numeric.losses.numeric_loss import NumericLoss
from mm_numeric.numbers.spans import IGNORE_INDEX, NumberSpans
from mm_numeric.numbers.vocabulary import NumberVocabulary


@pytest.fixture
def collator(clock_examples):
    task, _ = clock_examples
    family = tiny_family()
    return TrainingCollator(family, task, NumberVocabulary.from_tokenizer(family.tokenizer))


def batch_of(collator, clock_examples, *times):
    examples = [dataclasses.replace(clock_examples[1][i], answer=ClockTime(*time))
                for i, time in enumerate(times)]  # fmt: skip
    return collator(examples)


def test_only_the_answer_and_its_end_are_supervised(collator, clock_examples):
    batch = batch_of(collator, clock_examples, (7, 5), (12, 59))
    tokenizer = collator.family.tokenizer
    assert tokenizer.decode(batch["labels"]) == "7:05<|im_end|>12:59<|im_end|>"


def test_each_supervised_row_stands_right_before_its_token(collator, clock_examples):
    batch = batch_of(collator, clock_examples, (7, 5), (12, 59))
    after = batch["supervised"].roll(1, dims=1)
    assert torch.equal(batch["input_ids"][after], batch["labels"])


def test_padding_is_neither_attended_to_nor_supervised(collator, clock_examples):
    batch = batch_of(collator, clock_examples, (7, 5), (12, 59))
    assert batch["attention_mask"][0, -1] == 0
    assert batch["attention_mask"][1].all()
    assert not batch["supervised"][0, -2:].any()


def test_spans_know_hours_and_minutes(collator, clock_examples):
    spans = batch_of(collator, clock_examples, (7, 5), (12, 59))["spans"]
    assert spans.value.tolist() == [7, 5, 12, 59]
    assert [ROLES[i] for i in spans.role] == ["hour", "minute", "hour", "minute"]
    assert spans.sample.tolist() == [0, 0, 1, 1]
    assert spans.place.tolist() == [0, 1, 0, 1, 0, 1, 0]
    assert spans.position.tolist() == [0, 2, 3, 5, 6, 8, 9]
    assert spans.samples == 2


def test_spans_from_the_task_equal_spans_from_label_ids(collator, clock_examples):
    batch = batch_of(collator, clock_examples, (7, 5), (12, 59), (10, 0))
    rectangle = torch.full(batch["supervised"].shape, IGNORE_INDEX)
    rectangle[batch["supervised"]] = batch["labels"]
    found = NumberSpans.from_labels(rectangle, collator.vocabulary)
    for field in dataclasses.fields(NumberSpans):
        if field.name not in ("role", "group", "times", "supervised"):  # known to one of them
            assert torch.equal(getattr(found, field.name), getattr(batch["spans"], field.name))


def test_digit_runs_read_the_same_numbers_in_a_time(collator, clock_examples):
    runs = dataclasses.replace(collator, digit_runs=True)
    batch = batch_of(runs, clock_examples, (7, 5), (12, 59))
    assert batch["spans"].value.tolist() == [7, 5, 12, 59]
    assert batch["spans"].position.tolist() == [0, 2, 3, 5, 6, 8, 9]


def test_an_image_that_no_frame_takes_is_named_with_its_row(collator, clock_examples, tmp_path):
    Image.new("RGB", (3, 900)).save(tmp_path / "a.png")
    example = dataclasses.replace(clock_examples[1][0], image=tmp_path / "a.png", where="x, line 3")
    with pytest.raises(ValueError, match="x, line 3: an image of 3 x 900 pixels has an aspect"):
        collator([example])


def test_a_question_that_cannot_be_asked_is_named_with_its_row(collator, clock_examples):
    example = dataclasses.replace(
        clock_examples[1][0], prompt="What is <|image_pad|>?", where="x, line 3"
    )
    with pytest.raises(ValueError, match=r"x, line 3: .*remove .* or correct the chat template"):
        collator([clock_examples[1][1], example])


def unreadable(folder, example):
    (folder / "cut.png").write_bytes(example.image.read_bytes()[:100])
    return dataclasses.replace(example, id="cut", image=folder / "cut.png")


def test_a_row_whose_image_cannot_be_read_is_left_out(collator, clock_examples, tmp_path):
    good, bad = clock_examples[1][:2], unreadable(tmp_path, clock_examples[1][2])
    with pytest.raises(ValueError, match="cannot be read"):
        collator([good[0], bad, good[1]])
    collator = dataclasses.replace(collator, skip_unreadable_images=True)
    batch, wanted = collator([good[0], bad, good[1]]), collator(good)
    for key in ("input_ids", "labels", "supervised", "pixel_values"):
        assert torch.equal(batch[key], wanted[key])
    assert batch["spans"].samples == 2
    assert batch["origin"].ids == wanted["origin"].ids == (good[0].id, good[1].id)
    assert batch["origin"].skipped.keys() == {"cut"}


@pytest.mark.parametrize("digit_runs", [False, True])
def test_a_batch_without_a_readable_image_is_nothing_to_learn(
    collator, clock_examples, tmp_path, digit_runs
):
    """It is a step all the same, with a gradient of 0 in every part of the model."""
    changes = {"skip_unreadable_images": True, "digit_runs": digit_runs}
    collator = dataclasses.replace(collator, **changes)
    batch = collator([unreadable(tmp_path, clock_examples[1][0])] * 2)
    labels, supervised, spans, origin = (batch.pop(key) for key in BATCH_KEYS)
    assert (len(labels), int(supervised.sum()), int(spans.samples)) == (0, 0, 0)
    assert origin.ids == ()
    model = tiny_model()
    logits = model(**batch, logits_to_keep=supervised).logits
    result = NumericLoss("ntil_soft", vocabulary=collator.vocabulary)(logits, labels, spans)
    result.loss.backward()
    assert result.loss == 0
    gradients = [parameter.grad for parameter in model.parameters()]
    assert all(gradient is not None and not gradient.any() for gradient in gradients)


def test_a_batch_of_rows_that_are_too_long_has_a_short_row(collator, clock_examples, monkeypatch):
    """The model has no positions for their questions, even unanswered."""
    monkeypatch.setattr(collator.family, "max_positions", 60)
    limit = LengthLimit(60, "drop")
    collator = dataclasses.replace(collator, length_limit=limit)
    long = dataclasses.replace(clock_examples[1][0], id="long", prompt="time " * 60, image=None)
    batch = collator([long])
    assert batch["origin"].skipped.keys() == {"long"}
    assert batch["input_ids"].shape[1] < 60
    assert len(batch["labels"]) == 0
