"""Folds of one file of rows: each is tested by one seed, and trained on by the other seeds."""

import numpy as np
import pytest
from finished_comparison import write_run
from hypothesis import given
from hypothesis import strategies as st
from planned import seed_configs
from result_files import write_lines

from mm_numeric.comparison.seeds import describe_seeds
from mm_numeric.comparison.summary import write_summary
from mm_numeric.config.data import DataSource, Fold
from mm_numeric.config.reader import read_config
from mm_numeric.data.examples import load_examples
from mm_numeric.evaluation.metrics.intervals import seed_interval
from mm_numeric.tasks.grounding import Grounding

ROWS = [{"id": f"q{i}", "question": f"What is {i} plus 1?", "answer": i + 1} for i in range(40)]


def folded(folder, *overrides):
    """Return the config of a comparison with three folds of a file in ``folder``."""
    write_lines(folder / "rows.jsonl", ROWS)
    file = f"path: {folder / 'rows.jsonl'}"
    return read_config(
        "multiplication_tiny",
        [
            f"compare={{output_dir: {folder / 'compare'}, seeds: [0, 1, 2], control: null}}",
            "compare.objectives=[ce, emd]",
            "compare.vary=null",
            f"data.train={{{file}, fold: not 0 of 3}}",
            f"data.test={{{file}, fold: 0 of 3}}",
            *overrides,
        ],
    )


@given(st.text(), st.integers(2, 9))
def test_every_name_is_in_exactly_one_fold(name, count):
    folds = [Fold(index, count, False).contains(name) for index in range(count)]
    others = [Fold(index, count, True).contains(name) for index in range(count)]
    assert sum(folds) == 1
    assert others == [not own for own in folds]


@pytest.mark.parametrize("text", ["0", "5 of 5", "0 of 1", "-1 of 5", "not of 5", "0 of 5 "])
def test_other_texts_are_no_folds(text):
    with pytest.raises(
        ValueError, match=r"fold is one of two folds or more, from 0 of 5 to 4 of 5"
    ):
        DataSource(path="rows.jsonl", fold=text)


def test_each_seed_tests_one_fold_and_trains_on_the_others(tmp_path):
    config, tested = folded(tmp_path, "compare.seeds=[0, 1, 2, 3, 4, 5]"), []
    for seed in range(6):
        (data,) = {run.data for run in seed_configs(config, seed)}
        train, test = (
            {own.id for own in load_examples(config.task, source, tmp_path, training=False)}
            for source in (data.train, data.test)
        )
        assert not train & test
        assert train | test == {row["id"] for row in ROWS}
        tested.append(test)
    assert tested[:3] == tested[3:]
    assert set.union(*tested[:3]) == {row["id"] for row in ROWS}
    assert "each seed tests on another fold" in describe_seeds(config, has_noise=False)
    fixed = folded(tmp_path, "compare.vary=[weights]")
    assert {run.data.test.fold for run in seed_configs(fixed, 1)} == {"0 of 3"}


def test_rows_of_one_image_are_in_one_fold(tmp_path):
    for name in "abcdefgh":
        (tmp_path / f"{name}.png").write_bytes(b"")
    size = {"width": 9, "height": 9, "box": [1, 1, 5, 5]}
    rows = [{"id": f"{name}{i}", "image": f"{name}.png", "phrase": f"number {i}", **size}
            for name in "abcdefgh" for i in range(4)]  # fmt: skip
    write_lines(tmp_path / "rows.jsonl", rows)
    source = DataSource(path=str(tmp_path / "rows.jsonl"), fold="1 of 2")
    images = [
        own.image.name for own in load_examples(Grounding(), source, tmp_path, training=False)
    ]
    assert 0 < len(set(images)) < 8
    assert all(images.count(name) == 4 for name in images)


def test_rows_of_one_group_are_in_one_fold(tmp_path):
    for i in range(24):
        (tmp_path / f"{i}.png").write_bytes(b"")
    size = {"width": 9, "height": 9, "box": [1, 1, 5, 5], "phrase": "a cup"}
    rows = [{"id": str(i), "image": f"{i}.png", "fold_group": i % 8, **size} for i in range(24)]
    write_lines(tmp_path / "rows.jsonl", rows)
    source = DataSource(path=str(tmp_path / "rows.jsonl"), fold="1 of 2")
    examples = load_examples(Grounding(), source, tmp_path, training=False)
    groups = [int(own.id) % 8 for own in examples]
    assert 0 < len(set(groups)) < 8
    assert all(groups.count(group) == 3 for group in groups)
    assert [own.group for own in examples] == [str(group) for group in groups]  # of the intervals


def test_the_interval_of_folds_is_that_of_independent_rows(tmp_path):
    config = folded(tmp_path)
    rng, errors = np.random.default_rng(0), {"ce": [], "emd": []}
    for run in (run for seed in range(3) for run in seed_configs(config, seed)):
        rows = load_examples(config.task, run.data.test, tmp_path, training=False)
        wrong = rng.integers(0, 5, len(rows))
        errors[run.objective.name].append(wrong[np.argsort([row.id for row in rows])])
        write_run(run.output_dir, {})
        lines = [{"id": row.id, "task": "arithmetic", "text": str(int(row.answer.value + off)),
                  "target": str(row.answer.value), "rows_due": len(rows)}
                 for row, off in zip(rows, wrong.tolist(), strict=True)]  # fmt: skip
        write_lines(run.output_dir / "predictions.jsonl", lines)
    summary = write_summary(config, tmp_path / "compare")
    assert (summary["rows"], summary["rows_due"]) == (len(ROWS), len(ROWS))
    assert summary["guesses"]["random answer"]["accuracy"] < 0.1
    found = summary["table"]["emd"]["mae"]["difference"]
    apart = [emd - ce for ce, emd in zip(errors["ce"], errors["emd"], strict=True)]
    draws = [own[np.random.default_rng(fold).integers(len(own), size=(500, len(own)))].mean(axis=1)
             for fold, own in enumerate(apart)]  # fmt: skip
    low, high, _ = seed_interval([own.mean() for own in apart], np.array(draws))
    assert (found["low"], found["high"]) == pytest.approx((low, high))
    assert found["seeds"] == pytest.approx([own.mean() for own in apart])
    assert "fold 0 of 3; 1 of 3; 2 of 3" in summary["facts"]["test rows"]


def test_a_folder_with_answers_to_another_fold_is_an_error(tmp_path):
    config = folded(tmp_path)
    for run in (run for seed in range(3) for run in seed_configs(config, seed)):
        source = config.data.test if run.objective.name == "emd" else run.data.test
        rows = load_examples(config.task, source, tmp_path, training=False)
        write_run(run.output_dir, {})
        lines = [{"id": row.id, "task": "arithmetic", "text": "1", "target": str(row.answer.value)}
                 for row in rows]  # fmt: skip
        write_lines(run.output_dir / "predictions.jsonl", lines)
    with pytest.raises(ValueError, match=r"seed1/emd and seed1/ce answer different rows"):
        write_summary(config, tmp_path / "compare")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.train.fold=null", r"set train\.fold to not 0 of 3"),
        ("data.train.fold=not 1 of 3", r"set train\.fold to not 0 of 3"),
        ("data.test={synthetic: {name: multiplication, rows: 9, seed: 5}, fold: 0 of 3}",
         r"fold is not for synthetic rows; give test rows another seed"),
    ],
)  # fmt: skip
def test_rows_are_not_trained_and_tested(tmp_path, override, message):
    with pytest.raises(ValueError, match=message):
        folded(tmp_path, override)


def test_an_ensemble_needs_the_same_rows(tmp_path):
    config = folded(tmp_path, "compare.ensemble=true", "compare.decode=[greedy, median]")
    with pytest.raises(ValueError, match=r"compare\.ensemble: the runs of an ensemble answer the"):
        seed_configs(config, 0)
