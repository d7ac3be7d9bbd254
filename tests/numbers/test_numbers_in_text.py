"""Numbers in text, from rendered rows to a comparison: T5 and GPT-2, by category."""

import json

import pytest
from result_files import section
from tiny_models import CACHE

from mm_numeric.comparison.summary import read_run_scores, write_summary
from mm_numeric.config.reader import read_config
from mm_numeric.evaluation.report.comparison_page import terminal_text
from mm_numeric.evaluation.report.results import read_comparison
from mm_numeric.evaluation.score import score
from mm_numeric.inference.generate import predict
from mm_numeric.training.run import train

pytestmark = pytest.mark.slow

FIGURES = [
    f"{name}_{category}"
    for category in ("interpolation", "extrapolation")
    for name in ("accuracy", "mae", "r2")
]


def settings(folder, *more):
    """Return arithmetic_tiny, made smaller."""
    return read_config(
        "arithmetic_tiny",
        [
            f"trainer.output_dir={folder / 'run'}",
            f"compare.output_dir={folder}",
            f"data.cache={CACHE}",
            "data.train.synthetic.rows=64",
            "data.test.synthetic.rows=12",
            "trainer.max_steps=2",
            "trainer.per_device_train_batch_size=4",
            *more,
        ],
    )


def test_the_best_weights_may_be_those_of_a_category(tmp_path):
    evaluate = "evaluate={every_steps: 1, rows: 6, best: mae_extrapolation}"
    config = settings(tmp_path, evaluate)
    train(config)
    kept = json.loads((config.output_dir / "best" / "run.json").read_text(encoding="utf-8"))
    assert kept["best"]["metric"] == "mae_extrapolation"
    with pytest.raises(ValueError, match=r"evaluate\.best: there is no metric 'mae_far'"):
        train(settings(tmp_path / "other", evaluate.replace("extrapolation", "far")))


@pytest.mark.parametrize(("family", "task"), [("t5", "arithmetic"), ("causal_lm", "mathematics")])
def test_what_is_rendered_is_trained_answered_and_scored(tmp_path, family, task):
    config = settings(tmp_path, f"model.family={family}")
    if task == "mathematics":
        rows = tmp_path / "rows.jsonl"
        lines = [
            {"id": str(i), "question": f"Half of {i}?", "answer": f"{i}/2", "category": c}
            for i, c in enumerate(["interpolation", "extrapolation"] * 4)
        ]
        rows.write_text("".join(json.dumps({**r, "module": "m"}) + "\n" for r in lines))
        source = f"{{path: {rows}}}"
        config = settings(
            tmp_path, "task=mathematics", f"data.train={source}", f"data.test={source}"
        )
    train(config)
    predictions = tmp_path / "predictions.jsonl"
    rows = predict(config.output_dir, None, predictions)
    found = [json.loads(line) for line in predictions.read_text(encoding="utf-8").splitlines()]
    assert [row["buckets"]["category"] for row in found[:2]] == ["interpolation", "extrapolation"]
    assert all(row["image"] is None for row in found)
    score(predictions)
    results = section(tmp_path)
    assert list(results["metrics"])[:6] == FIGURES
    assert results["rows"] == rows
    assert ("module" in results["buckets"]) == (task == "mathematics")


def write_run(folder, answers):
    """Write the folder of a finished run: an answer to each of 1, 2, 3 twice, by category."""
    folder.mkdir(parents=True)
    facts = {"parameters": 1, "rows": 64, "steps": 2, "machine": "m", "batch_rows": 4}
    facts |= {"seconds": 1, "resumed": False, "versions": {}}
    (folder / "run.json").write_text(json.dumps(facts), encoding="utf-8")
    rows = [
        {
            "id": f"{category}{target}",
            "task": "arithmetic",
            "text": text,
            "target": str(target),
            "buckets": {"category": category},
        }
        for category, texts in zip(("interpolation", "extrapolation"), answers, strict=True)
        for target, text in enumerate(texts, start=1)
    ]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "predictions.jsonl").write_text(lines, encoding="utf-8")


def test_the_table_has_columns_for_each_category(tmp_path):
    config = settings(
        tmp_path, "compare.objectives=[ce, ntl_was]", "compare.control=null", "compare.seeds=[0, 1]"
    )
    for seed in (0, 1):
        write_run(tmp_path / f"seed{seed}" / "warm_start", ["???", "???"])
        write_run(tmp_path / f"seed{seed}" / "ce", ["12x", "9" * 3])
        write_run(tmp_path / f"seed{seed}" / "ntl_was", ["123", "129"])
    summary = write_summary(config, tmp_path)
    assert [metric["name"] for metric in summary["metrics"]][:7] == [*FIGURES, "accuracy"]
    ce, ntl = summary["table"]["ce"], summary["table"]["ntl_was"]
    assert ce["accuracy_interpolation"]["value"] == pytest.approx(2 / 3)
    assert ntl["accuracy_interpolation"]["value"] == 1
    assert ce["mae_interpolation"]["value"] == 6 / 3  # unreadable: -3 for 3
    assert ce["mae_extrapolation"]["value"] == (8 + 7 + 6) / 3
    assert ntl["r2_extrapolation"]["value"] == 1 - 36 / 2
    assert ntl["accuracy_interpolation"]["difference"]["value"] == pytest.approx(1 / 3)
    for figures in (ce, ntl):
        for name in ("accuracy_interpolation", "mae_extrapolation", "accuracy"):
            assert figures[name]["low"] <= figures[name]["value"] <= figures[name]["high"]
    assert summary["facts"]["test rows"] == "6 (synthetic arithmetic, seed 2)"
    table = terminal_text(read_comparison(tmp_path))
    head = table.splitlines()[1]
    for label in ("interpolation accuracy", "extrapolation MAE", "extrapolation R²"):
        assert label in head
    assert "+33.3 points" in table
    assert read_run_scores(tmp_path / "seed0" / "ce").metrics_on_rows[0].rows.tolist() == [3, 4, 5]
