"""``predict(reuse=True)`` copies the answers of the last evaluation, or generates its own.

The evaluation of the run answers 20 of 24 test rows, in batches of 8.
"""

import json
import shutil
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from finished_runs import CHECKPOINT, copy_and_enter
from hypothesis import given
from hypothesis import strategies as st

from mm_numeric import predict
from mm_numeric.config.reader import read_config
from mm_numeric.inference import generate as module
from mm_numeric.inference.predictions_file import answer_order
from mm_numeric.training.run import train

ROWS, BATCH, EVALUATED = 24, 8, 20
ANSWERS = Path("run/evaluation/predictions.jsonl")
CONFIG = {
    **CHECKPOINT,
    "model": {"family": "causal_lm", "name": "micro"},
    "trainer": {**CHECKPOINT["trainer"], "output_dir": "run", "max_steps": 2, "save_steps": 2},
    "evaluate": {"every_steps": 2, "rows": EVALUATED},
    "predict": {"batch_size": BATCH, "max_new_tokens": 4},
}


@pytest.fixture(scope="module")
def trained(finished_runs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("copied") / "runs"
    with pytest.MonkeyPatch.context() as patch:
        copy_and_enter(finished_runs, folder, patch)
        shutil.rmtree("run")
        Path("run.yaml").write_text(yaml.safe_dump(CONFIG), encoding="utf-8")
        train(read_config("run.yaml"))
    return folder


@pytest.fixture
def generated(trained, tmp_path, monkeypatch):
    """Enter a copy of the run's folder; return the list of the batches that are generated."""
    copy_and_enter(trained, tmp_path / "runs", monkeypatch)
    batches, generate = [], module.generate

    def counted(model, family, examples, *arguments, **options):
        batches.append([example.id for example in examples])
        return generate(model, family, examples, *arguments, **options)

    monkeypatch.setattr(module, "generate", counted)
    return batches


@given(rows=st.integers(2, 400), share=st.floats(0, 1))
def test_the_first_rows_in_the_order_of_answers_are_spread_evenly(rows, share):
    """For every number of them; the rows may be sorted by class, or alternate between classes."""
    count = max(2, round(share * rows))
    order = answer_order(range(rows))
    first = sorted(order[:count])
    assert sorted(order) == list(range(rows))
    gaps = [after - before for before, after in pairwise([*first, rows])]
    assert max(gaps) <= 2 * rows / count
    if count >= 40:
        assert all({i % period for i in first} == set(range(period)) for period in range(2, 11))


def answers(**options) -> bytes:
    return predict("run", reuse=True, **options).path.read_bytes()


def test_whole_batches_are_copied_and_the_others_are_generated(generated, capsys):
    copied = answers()
    assert [len(batch) for batch in generated] == [BATCH]
    assert "16 of 24 answers are those of the last evaluation" in capsys.readouterr().err
    assert predict("run", out="other.jsonl").path.read_bytes() == copied
    assert [len(batch) for batch in generated] == [BATCH] + [BATCH] * (ROWS // BATCH)
    assert {json.loads(line)["rows_due"] for line in copied.splitlines()} == {ROWS}
    stored = Path("run/predictions.jsonl.made_by.json").read_bytes()
    assert Path("other.jsonl.made_by.json").read_bytes() == stored


def test_all_answers_are_copied_if_all_rows_were_evaluated(generated, trained):
    shutil.rmtree("run")
    train(read_config("run.yaml", ["evaluate.rows=100"]))
    copied = answers()
    assert generated == []
    assert predict("run", out="other.jsonl").path.read_bytes() == copied
    assert copied.count(b"\n") == ROWS


def later_training() -> None:
    """As if the training had gone on: another run.json."""
    facts = json.loads(Path("run/run.json").read_text())
    Path("run/run.json").write_text(json.dumps({**facts, "seconds": facts["seconds"] + 1}))


def resumed_training() -> None:
    """The process that wrote run.json again has not evaluated the model."""
    Path("run/run.json").unlink()
    train(read_config("run.yaml"), resume=True)


def other_row() -> None:
    text = Path("test.jsonl").read_text()
    Path("test.jsonl").write_text(text.replace(" =", "  =", 1))


def other_text() -> None:
    ANSWERS.write_text(ANSWERS.read_text().replace('"text": "', '"text": "1', 1))


def no_record() -> None:
    ANSWERS.with_name("predictions.jsonl.made_by.json").unlink()


@pytest.mark.parametrize(
    "change", [later_training, resumed_training, other_row, other_text, no_record]
)
def test_answers_of_other_weights_or_rows_are_not_copied(generated, change):
    change()
    found = answers()
    assert [len(batch) for batch in generated] == [BATCH] * (ROWS // BATCH)
    assert found.count(b"\n") == ROWS


@pytest.mark.parametrize(
    "options",
    [
        {"decode": "median"},
        {"batch_size": 12},
        {"max_new_tokens": 3},
        {"seed": 1},
        {"overrides": ["predict.batch_size=12"]},
        {"overrides": ["data.largest_image=1000"]},
        {"overrides": ["task.prompt='{question} '"]},
        {"data": "train.jsonl", "limit": 8},
    ],
)
def test_answers_with_other_settings_are_not_copied(generated, options):
    answers(**options)
    limit = options.get("limit", ROWS)
    assert sum(map(len, generated)) == limit


def test_without_reuse_or_with_earlier_answers_nothing_is_copied(generated):
    predict("run", limit=1)
    assert [len(batch) for batch in generated] == [1]
    before = Path("run/predictions.jsonl").read_bytes()
    assert answers().startswith(before)
    assert [len(batch) for batch in generated] == [1] + [BATCH] * (ROWS // BATCH)
