"""The rows of a training: mixed by weight, measured, and encoded once."""

import dataclasses
import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mixed_rows import write_mixed
from PIL import Image
from tiny_models import examples_of, small_config, tiny_family

from mm_numeric.config.data import DataConfig, DataSource
from mm_numeric.data.collator import EncodedAnswers, TrainingCollator, make_collator
from mm_numeric.data.examples import load_examples
from mm_numeric.data.framing import compute_frame
from mm_numeric.data.images import image_size
from mm_numeric.data.lengths import new_tokens_for, with_new_tokens
from mm_numeric.data.training_set import TrainingRows, mixed_epoch
from mm_numeric.families.qwen2_vl import Qwen2VL
from mm_numeric.inference.generate import predict
from mm_numeric.models.loading import load_family, model_source
from mm_numeric.tasks.clock import Clock
from mm_numeric.training import run

WEIGHTS = st.lists(st.floats(0.05, 20), min_size=1, max_size=4)


def test_training_rows_keep_what_a_source_gave(tmp_path):
    rows = write_mixed(tmp_path, "tt")
    other = write_mixed(tmp_path / "b", "t")
    other.write_text(other.read_text().replace('"0"', '"z"', 1))
    config = small_config(
        tmp_path, "task={name: 'mixed_rows:Counts'}",
        f"data.train=[{{path: {rows}, weight: 1}}, {{path: {other}, weight: 3}}]",
    )  # fmt: skip
    found = TrainingRows(config)
    epoch = found.for_trainer(make_collator(config, tiny_family()))
    assert [e.id for e in epoch].count("z") >= 3
    assert found.metadata()["rows"] == 3


@given(st.data())
def test_an_epoch_ends_when_every_row_was_in_it(data):
    weights = data.draw(WEIGHTS)
    sizes = st.lists(st.integers(1, 9), min_size=len(weights), max_size=len(weights))
    sources = [[(i, j) for j in range(n)] for i, n in enumerate(data.draw(sizes))]
    epoch = mixed_epoch(sources, weights)
    assert set(epoch) == {row for source in sources for row in source}
    assert epoch.count(epoch[-1]) == 1  # the last one was still missing
    for source in sources:
        counts = [epoch.count(row) for row in source]
        assert max(counts) - min(counts) <= 1


def test_a_small_source_comes_again_for_its_weight():
    assert "".join(mixed_epoch(["ab", "xyz"], [2, 1])) == "axbaybaz"


def test_a_source_that_is_tested_on_has_no_weight():
    rows = DataSource(path="a.jsonl", weight=2)
    assert DataConfig(train=(rows, rows), test=DataSource(path="b.jsonl"))
    with pytest.raises(ValueError, match="test sets weight, which only training sources"):
        DataConfig(train=rows, test=rows)


def replace_rows(config, path):
    """Return a config with the training rows of a file."""
    data = dataclasses.replace(config.data, train=DataSource(path=str(path)))
    return dataclasses.replace(config, data=data)


def rows(folder, sizes, *, declared):
    """Write a row per number of objects; return the file."""
    lines = []
    for i, count in enumerate(sizes):
        Image.new("RGB", (400, 90 + i)).save(folder / f"{i}.png")
        boxes = [{"box": [3 * n, 1, 300 + n % 90, 80], "label": "cup"} for n in range(count)]
        size = {"width": 400, "height": 90 + i} if declared else {}
        lines.append({"id": str(i), "image": f"{i}.png", "instances": boxes, **size})
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


@pytest.mark.slow
@pytest.mark.parametrize("declared", [True, False])
def test_the_longest_answer_equals_a_loop_over_all(tmp_path, declared):
    path = rows(tmp_path, [0, 3, 12, 12, 5], declared=declared)
    config = small_config(tmp_path, "task=detection", "model.family=qwen2_5_vl")
    family = load_family(config, model_source(config, tmp_path))
    found = load_examples(config.task, DataSource(path=str(path)), tmp_path, training=True)
    expected = 0
    for i, example in enumerate(found):
        frame = compute_frame(family, example, (400, 90 + i))
        tokens = family.answer(config.task.format(example.answer, frame).text).ids
        expected = max(expected, len(tokens))
    rows_of_run = TrainingRows(replace_rows(config, path))
    rows_of_run.for_trainer(make_collator(config, family))
    assert rows_of_run.longest_answer == expected > 100
    measured = with_new_tokens(config, expected).predict.max_new_tokens
    assert measured == new_tokens_for(expected)
    assert 1.25 * expected <= measured < 1.25 * expected + 1
    fixed = small_config(tmp_path, "task=detection", "predict.max_new_tokens=7")
    assert with_new_tokens(fixed, expected) is fixed


def test_answers_beyond_the_memory_are_encoded_again(tmp_path, clock_examples):
    task, examples = clock_examples
    small = EncodedAnswers(max_tokens=1)
    collate = TrainingCollator(tiny_family(), task, tiny_family().vocabulary(), encoded=small)
    lengths = collate.lengths(examples[:3])
    first, second, third = (
        small.find(example, tiny_family().frame(*image_size(example.image)))
        for example in examples[:3]
    )
    assert first.written.text == str(examples[0].answer)
    assert second is None  # there was space for one
    assert third is not None  # the latest
    changed = dataclasses.replace(examples[0], answer=examples[1].answer)
    assert small.find(changed, None) is None
    assert collate.lengths(examples[:3]) == lengths


@pytest.mark.slow
def test_a_run_predicts_with_what_its_training_answers_need(tmp_path):
    """A time has up to 6 tokens with its end; config.yaml stays as it was."""
    config = small_config(tmp_path)
    assert config.predict.max_new_tokens is None
    run.train(config)
    facts = json.loads((config.output_dir / "run.json").read_text(encoding="utf-8"))
    assert facts["max_new_tokens"] == new_tokens_for(6)
    assert "max_new_tokens: null" in (config.output_dir / "config.yaml").read_text("utf-8")
    out = tmp_path / "predictions.jsonl"
    predict(config.output_dir, None, out)
    made = json.loads(out.with_name(f"{out.name}.made_by.json").read_text(encoding="utf-8"))
    assert made["max_new_tokens"] == new_tokens_for(6)


def test_streamed_answers_are_not_measured(tmp_path):
    config = small_config(tmp_path)
    assert with_new_tokens(config, 0) is config
    with pytest.raises(ValueError, match=r"predict\.max_new_tokens is not set, and no training"):
        _ = config.predict.new_tokens


def counting(monkeypatch, owner, name, counts):
    """Count the calls of a method by its first argument."""
    method = getattr(owner, name)

    def counted(self, first, *rest):
        counts[first] += 1
        return method(self, first, *rest)

    monkeypatch.setattr(owner, name, counted)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        [],
        ["data.max_tokens=200"],
        ["predict.max_new_tokens=9"],
        ["data.max_tokens=200", "trainer.train_sampling_strategy=group_by_length"],
    ],
)
def test_each_answer_of_an_epoch_is_formatted_and_tokenised_once(tmp_path, monkeypatch, settings):
    """The rows are measured before the training, and their answers are kept for the batches."""
    config = small_config(
        tmp_path, "data.train.synthetic.rows=8",
        "trainer.num_train_epochs=1", "trainer.max_steps=-1",
        "trainer.save_strategy='no'", *settings,
    )  # fmt: skip
    formatted, tokenised, collators = Counter(), Counter(), []
    counting(monkeypatch, Clock, "format", formatted)
    counting(monkeypatch, Qwen2VL, "answer", tokenised)
    monkeypatch.setattr(
        run, "make_collator", lambda *args: collators.append(make_collator(*args)) or collators[-1]
    )
    run.train(config)
    answers = Counter(example.answer for example in examples_of(config))
    assert formatted == answers
    assert tokenised == Counter({str(answer): count for answer, count in answers.items()})
    assert len(collators) == 1
