"""A loaded run answers single images as ``predict`` answers rows."""

from pathlib import Path

import pytest
from clock_run import clock_images, clock_run

from mm_numeric.answers import (
    Box,
    ClockTime,
    EmbeddedImage,
    Instance,
    Instances,
    Number,
    Unreadable,
)
from mm_numeric.api import predict
from mm_numeric.config.reader import read_config
from mm_numeric.inference.ask import Answer, LoadedRun, in_words, labels_of, number_of, prompt_of
from mm_numeric.tasks.base import task_class
from mm_numeric.training.run import train


@pytest.fixture(scope="module")
def run():
    """Return a run whose answers are all times, and are all explored."""
    return LoadedRun(clock_run(), constrain=True, branches=80, batch_size=2)


def test_answers_and_confidences_are_those_of_predict(run, tmp_path):
    settings = {"constrain": True, "branches": 80, "batch_size": 2}
    own = predict(clock_run(), None, tmp_path / "own.jsonl", limit=3, decode="median", **settings)
    found = list(run.answer([Path(row["image"]) for row in own.rows], compare_rules=True))
    assert len(found) == len(own.rows) == 3
    for answered, row in zip(found, own.rows, strict=True):
        assert str(answered.answers["median"].answer) == row["parsed"]
        assert answered.answers["median"].confidence == row["decode"]["confidence"]
        assert answered.answers["greedy"].text == row["greedy"]
        probabilities = [candidate.probability for candidate in answered.candidates]
        assert probabilities == sorted(probabilities, reverse=True)
        assert sum(probabilities) == pytest.approx(row["decode"]["covered"], abs=1e-6)


def test_the_rule_of_the_run_is_the_default(run):
    (answered,) = run.answer(clock_images()[:1])
    assert list(answered.answers) == ["greedy"]
    assert answered.answers["greedy"].summary.startswith(answered.answers["greedy"].text + ", conf")


def test_bytes_are_answered_as_the_file(run):
    path = clock_images()[0]
    image = EmbeddedImage("image", "that was sent", path.read_bytes)
    found = [next(run.answer([source])).answers for source in (image, path)]
    assert found[0] == found[1]


def test_an_image_that_cannot_be_read_is_one_sentence(run):
    image = EmbeddedImage("image", "that was sent", lambda: b"no image")
    with pytest.raises(ValueError, match=r"^the image that was sent cannot be read \(it is not a "):
        next(run.answer([image]))


def test_lists_are_shortened_for_greedy_alone():
    with pytest.raises(ValueError, match="max_objects shorten greedy answers"):
        LoadedRun(clock_run(), decode="median", max_objects=1)


@pytest.mark.parametrize(
    ("task", "options", "asked", "prompt"),
    [
        ("clock", {}, None, "the first prompt"),
        ("clock", {}, "Which hour?", "Which hour?"),
        ("grounding", {"prompt": "Find {phrase}."}, "a cup", "Find a cup."),
        ("grounding", {}, r"\1 {phrase}", r"Locate: \1 {phrase}"),
        ("grounding", {}, None, None),
        ("detection", {"classes": ("cup",)}, None, "the first prompt"),
        ("detection", {}, "cups", "Locate every object of these classes: cups."),
        ("measurement", {"prompt": "{question} In {unit}."}, "How warm?", "How warm?"),
    ],
)
def test_a_question_fills_the_gap_in_the_prompt(task, options, asked, prompt):
    assert prompt_of(task_class(task, "test")(**options), asked, "the first prompt") == prompt


def test_answers_arein_words():
    line = {"text": "10:", "parsed": None, "scores": [0.934, 0.1]}
    cups = Instances((Instance(Box(1, 2.4, 3, 4), "cup"), Instance(Box(5, 6, 7, 8))))
    assert in_words(Unreadable("no time"), line) == "no answer (no time) in '10:'"
    assert in_words(ClockTime(7, 5), line) == "7:05"
    assert in_words(Number("3.50"), line) == "3.50"
    assert in_words(Box(1, 2.4, 3, 4), line) == "[1, 2, 3, 4]"
    assert in_words(Instances(()), line) == "no objects"
    answer = Answer(cups, in_words(cups, line), 0.5, labels_of(cups, line))
    assert answer.summary == "2 objects, confidence 50.0 %"
    assert answer.lines == ["cup 93 % [1, 2, 3, 4]", "10 % [5, 6, 7, 8]"]
    assert answer._replace(token_scores=[0.585, 0.2]).lines == [
        "cup 93 % [1, 2, 3, 4], token probability 58 %",
        "10 % [5, 6, 7, 8], token probability 20 %",
    ]
    assert labels_of(cups, {}) == ["cup", ""]


def test_numbers_of_answers():
    assert number_of(ClockTime(12, 5)) == 5
    assert number_of(Number("-1.5")) == -1.5
    assert number_of(Box(1, 2, 3, 4)) is None


@pytest.mark.slow
def test_likely_lists_are_shortened_as_the_answer_is(tmp_path):
    config = read_config("detection_tiny", [
        "data.train.synthetic.rows=8", "data.test.synthetic.rows=1",
        "trainer.max_steps=1", "predict.samples=8",
        "trainer.per_device_train_batch_size=2", f"trainer.output_dir={tmp_path / 'run'}",
        f"data.cache={tmp_path}", "predict.max_new_tokens=60", "predict.constrain=true",
    ])  # fmt: skip
    train(config)
    image = next(tmp_path.glob("objects-*/images/000000.png"))
    counts = []
    for overrides in ((), ("predict.max_objects=1",)):
        run = LoadedRun(tmp_path / "run", overrides=overrides)
        (found,) = run.answer([image], compare_rules=True)
        assert list(found.answers) == ["greedy", "mbr"]
        counts.append(max(len(own.answer.items) for own in found.candidates))
    assert counts[0] > counts[1] == 1
