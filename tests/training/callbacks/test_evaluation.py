"""Evaluation during training: same metrics as predict and score, no effect on the training."""

import functools
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from rank_runs import cut_run as cut
from rank_runs import run as run_on_ranks
from safetensors.torch import load_file
from tiny_models import small_config, tiny_family
from transformers import Qwen2VLForConditionalGeneration

from mm_numeric.evaluation.score import score
from mm_numeric.inference.digit_distribution import write_digit_distribution
from mm_numeric.inference.generate import predict
from mm_numeric.runs.folder import last_checkpoint
from mm_numeric.training.callbacks.evaluation import (
    EvaluationCallback,
    evaluated_rows,
    evaluation_data,
)
from mm_numeric.training.run import train

BEST = "mean_deviation_minutes"
ROWS = 7


def job(folder: Path, evaluate: str = "", *overrides: str):
    """Return a run of six steps whose answers change after each step."""
    return small_config(
        folder,
        "task={name: 'hashed_clock:HashedClock'}",
        "trainer.learning_rate=1.0e-2",
        "trainer.save_total_limit=null",
        "predict.batch_size=3",
        "predict.max_new_tokens=6",
        *([f"evaluate={{rows: {ROWS}, {evaluate}}}"] if evaluate else []),
        *overrides,
    )


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.open()]


def timeless(run: Path) -> list[dict]:
    """Return the log without values that differ between runs, such as times."""
    return [
        {name: figure for name, figure in line.items() if name not in ("speed", "memory")}
        for line in lines(run / "log.jsonl")
    ]


def evaluations(run: Path) -> dict[int, dict[str, float]]:
    return {line["step"]: line["eval"] for line in lines(run / "log.jsonl") if "eval" in line}


def losses(run: Path) -> list[dict]:
    return [line for line in timeless(run) if "loss" in line]


def facts(run: Path) -> dict:
    return json.loads((run / "run.json").read_text())


def predicted(run: Path, out: Path, **settings: str) -> list[dict]:
    """Return what predict answers to the rows that are evaluated, all of which are due there."""
    predict(run, None, out, limit=ROWS, trust_remote_code=True, **settings)
    return [line | {"rows_due": ROWS} for line in lines(out)]


def afterwards(run: Path, out: Path) -> tuple[list[dict], dict[str, float]]:
    """Return what predict and score say of the rows that are evaluated."""
    rows = predicted(run, out)
    scores = score(out, task_name="hashed_clock:HashedClock", partial=True, write=False)
    figures = {m.name: float(m.value(scores.columns)) for m in scores.scorer.metrics}
    return rows, {**figures, "failures": sum(scores.failures.values())}


def assert_same_as_afterwards(run: Path, out: Path) -> None:
    rows, figures = afterwards(run, out)
    assert len(rows) == ROWS
    assert lines(run / "evaluation" / "predictions.jsonl") == rows
    assert evaluations(run)[facts(run)["steps"]] == figures


@pytest.mark.parametrize(
    ("parts", "file"),
    [
        ("modules={}", "model.safetensors"),
        ("modules={language: adapted}", "adapter_model.safetensors"),
    ],
)
@pytest.mark.slow
def test_figures_are_those_of_predict_and_score_and_training_is_not_touched(tmp_path, parts, file):
    """Dropout of adapters makes the weights depend on every random number that is drawn."""
    more = (parts, "lora={dropout: 0.5}") if "adapted" in parts else (parts,)
    train(job(tmp_path / "plain", "", *more))
    train(job(tmp_path / "evaluated", f"every_steps: 4, best: {BEST}", *more))
    plain, run = tmp_path / "plain" / "run", tmp_path / "evaluated" / "run"
    whole, other = (load_file(r / "model" / file) for r in (plain, run))
    assert all(torch.equal(other[name], value) for name, value in whole.items())
    assert losses(run) == losses(plain)
    assert list(evaluations(run)) == [4, 6]
    assert_same_as_afterwards(run, tmp_path / "out.jsonl")
    kept = facts(run)["best"]
    _, figures = afterwards(run / "best", tmp_path / "best.jsonl")
    assert kept == {"step": kept["step"], "metric": BEST, "value": figures[BEST]}
    assert (run / "best" / "model" / file).is_file()
    assert not (plain / "evaluation").exists()
    assert "best" not in facts(plain)


@pytest.mark.slow
def test_answers_are_decoded_as_predict_decodes_them(tmp_path):
    explore = ("predict.samples=8", "predict.max_new_tokens=40", "trainer.learning_rate=1.0e-3")
    train(job(tmp_path, "every_steps: 6, decode: median", *explore))
    run, out = tmp_path / "run", tmp_path / "median.jsonl"
    rows = lines(run / "evaluation" / "predictions.jsonl")
    assert rows == predicted(run, out, decode="median")
    assert all(row["decode"]["rule"] == "median" for row in rows)
    assert any(row["text"] != row["greedy"] for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "weights", "autocast"),
    [
        (["trainer.bf16=true"], "float32", "bfloat16"),
        (["trainer.bf16=true", "modules={language: adapted}"], "float32", "bfloat16"),
        (["model.dtype=bfloat16"], "bfloat16", None),
        ([], "float32", None),
    ],
)
def test_answers_are_computed_in_the_precision_of_the_training(
    tmp_path, monkeypatch, overrides, weights, autocast
):
    seen, forward = set(), Qwen2VLForConditionalGeneration.forward

    @functools.wraps(forward)
    def recording(model, *args, **kwargs):
        enabled = torch.is_autocast_enabled("cpu")
        seen.add((model.dtype, torch.get_autocast_dtype("cpu") if enabled else None))
        return forward(model, *args, **kwargs)

    monkeypatch.setattr(Qwen2VLForConditionalGeneration, "forward", recording)
    wanted = (getattr(torch, weights), autocast and getattr(torch, autocast))
    more = ["predict.decode=median", "trainer.max_steps=2", *overrides]
    train(job(tmp_path, "every_steps: 2, decode: median", *more))
    run, out = tmp_path / "run", tmp_path / "p.jsonl"
    assert seen == {wanted}
    seen.clear()
    rows = predicted(run, out)
    assert seen == {wanted}
    assert rows == lines(run / "evaluation" / "predictions.jsonl")
    seen.clear()
    write_digit_distribution(run, trust_remote_code=True)
    assert seen == {wanted}
    made_by = json.loads(Path(f"{out}.made_by.json").read_text(encoding="utf-8"))
    for found in (facts(run), made_by):
        assert found["precision"] == {"weights": weights, "autocast": autocast}


@pytest.mark.parametrize(("fsdp", "stage"), [("", 3), ("full_shard", 0)])
def test_ranks_that_share_weights_cannot_decode_by_a_rule(tmp_path, fsdp, stage):
    config = job(tmp_path, "every_steps: 6, decode: median")
    plugin = SimpleNamespace(zero_stage=stage)
    args = SimpleNamespace(deepspeed_plugin=plugin, fsdp=fsdp, should_save=False)
    trainer = SimpleNamespace(args=args)
    with pytest.raises(ValueError, match=r"evaluate\.decode: median .* use greedy, DDP or ZeRO-2"):
        EvaluationCallback(
            trainer, config, tiny_family(), evaluated_rows(config, evaluation_data(config)), dict
        )


@pytest.mark.parametrize(("metric", "best"), [(BEST, min), ("minute_accuracy", max)])
@pytest.mark.slow
def test_the_best_is_kept_and_known_again_after_a_resume(tmp_path, metric, best):
    config = job(tmp_path, f"every_steps: 1, best: {metric}")
    train(config)
    run = tmp_path / "run"
    figures = {step: found[metric] for step, found in evaluations(run).items()}
    assert list(figures) == [1, 2, 3, 4, 5, 6]
    assert len(set(figures.values())) > 1
    step = best(figures, key=figures.get)
    assert facts(run)["best"] == {"step": step, "metric": metric, "value": figures[step]}
    assert facts(run / "best")["steps"] == step
    assert not facts(run)["stopped_early"]
    _, found = afterwards(run / "best", tmp_path / "best.jsonl")
    assert found[metric] == figures[step]
    whole, logged = facts(run)["best"], timeless(run)
    cut(run, 2)
    train(config, resume=True)
    assert facts(run)["best"] == whole
    assert timeless(run) == logged


@pytest.mark.slow
def test_patience_ends_a_training_that_gets_no_better(tmp_path):
    """A rate of 0 changes nothing; a run killed behind its end is not trained further."""
    config = job(
        tmp_path,
        f"every_steps: 1, best: {BEST}, patience: 2",
        "trainer.learning_rate=0.0",
        "trainer.save_steps=1",
    )
    train(config)
    run = tmp_path / "run"
    for _ in range(2):
        assert facts(run)["steps"] == 3
        assert facts(run)["stopped_early"]
        assert facts(run)["best"]["step"] == 1
        assert list(evaluations(run)) == [1, 2, 3]
        assert last_checkpoint(run).name == "checkpoint-3"
        cut(run, 3)
        train(config, resume=True)


@pytest.mark.slow
def test_a_kill_while_the_best_is_replaced_loses_neither(tmp_path):
    config = job(tmp_path, f"every_steps: 6, best: {BEST}")
    train(config)
    run = tmp_path / "run"
    cut(run, 6)
    (run / "best").rename(run / "best.old.unfinished")
    train(config, resume=True)
    assert facts(run)["best"]["step"] == 6
    assert not (run / "best.old.unfinished").exists()


@pytest.mark.parametrize(
    ("evaluate", "message"),
    [
        ("every_steps: 0", r"evaluate: every_steps must be at least 1, not 0\."),
        ("every_steps: 1, patience: 2", r"evaluate: patience requires a metric; set best"),
        ("evry_steps: 1", r"evaluate: there is no setting 'evry_steps'\. Did you mean 'every_st"),
        ("rows: 5", r"evaluate: the setting 'every_steps' is missing\."),
        ("every_steps: 1, data: {}", r"evaluate\.data: set exactly one of path .* and render"),
    ],
)
def test_a_wrong_setting_is_one_sentence(tmp_path, evaluate, message):
    with pytest.raises(ValueError, match=message):
        small_config(tmp_path, f"evaluate={{{evaluate}}}")


def test_what_cannot_be_scored_is_said_before_anything_is_written(tmp_path):
    with pytest.raises(
        ValueError, match=r"^clock_tiny, evaluate\.best: there is no metric 'accuracy'\..* Known: "
    ):
        train(job(tmp_path, "every_steps: 1, best: accuracy"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("skip", ["stop", "skip"])
def test_an_unreadable_image_to_evaluate_is_found_before_the_first_step(tmp_path, skip):
    (tmp_path / "a.png").write_bytes(b"no image")
    (tmp_path / "rows.jsonl").write_text('{"id": "1", "image": "a.png", "time": "7:05"}')
    data = f"every_steps: 1, data: {{path: {tmp_path}/rows.jsonl}}"
    with pytest.raises(ValueError, match=r"rows\.jsonl, line 1: the image \S+a\.png cannot be rea"):
        train(job(tmp_path, data, f"data.on_bad_image={skip}"))
    assert not (tmp_path / "run" / "log.jsonl").exists()


@pytest.mark.slow
def test_two_ranks_share_the_rows_and_score_as_one(tmp_path):
    """Three batches for two ranks: one of them has none left, and ZeRO-3 needs it all the same."""
    files, evaluate = [], f"every_steps: 2, best: {BEST}"
    steps = ("trainer.max_steps=3",)
    for mode in ("ddp", "zero3"):
        setting = () if mode == "ddp" else (f"trainer.deepspeed={mode}",)
        more = ("trainer.per_device_train_batch_size=2", *steps, *setting)
        config = job(tmp_path / mode, evaluate, *more)
        files.append(tmp_path / mode / "job.yaml")
        files[-1].parent.mkdir()
        files[-1].write_text(config.to_yaml())
    run_on_ranks(2, [str(file) for file in files])
    train(job(tmp_path / "one", evaluate, *steps))
    first = evaluations(tmp_path / "one" / "run")
    for mode in ("one", "ddp", "zero3"):
        run = tmp_path / mode / "run"
        assert_same_as_afterwards(run, tmp_path / f"{mode}.jsonl")
        _, figures = afterwards(run / "best", tmp_path / f"{mode}.best.jsonl")
        assert facts(run)["best"]["value"] == figures[BEST]
        assert facts(run)["best"]["step"] == facts(run / "best")["steps"]
        assert list(evaluations(run)) == list(first) == [2, 3]
