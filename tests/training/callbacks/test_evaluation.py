"""Evaluation during training: same metrics as predict and score, no effect on the training."""

import functools
import json
import math
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from check_data_runs import config_of
from rank_runs import run as run_on_ranks
from rectangles import boxes, write_rectangles
from run_files import cut_off
from safetensors.torch import load_file
from tiny_models import small_config, tiny_family
from transformers import Qwen2VLForConditionalGeneration

from mm_numeric.answers import Box, Instance
from mm_numeric.config.data import EvaluateConfig
from mm_numeric.data.examples import load_examples
from mm_numeric.evaluation.report.run_page import run_page
from mm_numeric.evaluation.score import score
from mm_numeric.geometry.coordinates import COORDINATES
from mm_numeric.geometry.frames import Frame, Resize
from mm_numeric.inference import progress
from mm_numeric.inference.generate import predict
from mm_numeric.io.files import write_json
from mm_numeric.runs.folder import last_checkpoint
from mm_numeric.settings import read_yaml
from mm_numeric.training.callbacks import evaluation as module
from mm_numeric.training.callbacks.evaluation import (
    EvaluationCallback,
    evaluated_rows,
    evaluation_data,
    with_schedule,
)
from mm_numeric.training.run import train
from mm_numeric.training.setup import training_arguments

BEST = "mean_deviation_minutes"
ROWS = 7


def job(folder: Path, evaluate: str = "", *overrides: str):
    """Return a run of four steps whose answers change after each step."""
    return small_config(
        folder,
        "task={name: 'hashed_clock:HashedClock'}",
        "trainer.learning_rate=1.0e-2",
        "trainer.max_steps=4",
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


def last_evaluation(run: Path) -> list[dict]:
    """Return the lines of the last evaluation in the order of the file of rows."""
    return sorted(lines(run / "evaluation" / "predictions.jsonl"), key=lambda line: line["id"])


def predicted(run: Path, out: Path, **settings: str) -> list[dict]:
    """Return what predict answers to the rows that are evaluated, all of which are due there."""
    predict(run, None, out, limit=ROWS, trust_remote_code=True, **settings)
    return [line | {"rows_due": ROWS} for line in lines(out)]


def afterwards(run: Path, out: Path) -> tuple[list[dict], dict[str, float]]:
    """Return what predict and score say of the rows that are evaluated."""
    rows = predicted(run, out)
    scores = score(out, task_name="hashed_clock:HashedClock", partial=True, write=False)
    values = {m.name: float(m.value(scores.columns)) for m in scores.scorer.metrics}
    figures = {name: value for name, value in values.items() if not math.isnan(value)}
    return rows, {**figures, "failures": sum(scores.failures.values())}


def assert_same_as_afterwards(run: Path, out: Path) -> None:
    rows, figures = afterwards(run, out)
    assert len(rows) == ROWS
    assert last_evaluation(run) == rows
    assert evaluations(run)[facts(run)["steps"]] == pytest.approx(figures, rel=1e-12)
    copied = out.with_name(f"copied_{out.name}")  # the two whole batches of 3
    assert predict(run, None, copied, limit=6, trust_remote_code=True, reuse=True) == 0
    ids = {line["id"] for line in lines(run / "evaluation" / "predictions.jsonl")[:6]}
    assert lines(copied) == [line for line in lines(out) if line["id"] in ids]


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
    drawn = []
    train(
        job(tmp_path / "evaluated", f"every_steps: 3, best: {BEST}", *more),
        draw=lambda run: drawn.append(list(evaluations(run))),
    )
    assert drawn == [[3], [3, 4], [3, 4]]
    plain, run = tmp_path / "plain" / "run", tmp_path / "evaluated" / "run"
    whole, other = (load_file(r / "model" / file) for r in (plain, run))
    assert all(torch.equal(other[name], value) for name, value in whole.items())
    assert losses(run) == losses(plain)
    assert list(evaluations(run)) == [3, 4]
    assert_same_as_afterwards(run, tmp_path / "out.jsonl")
    kept = facts(run)["best"]
    _, figures = afterwards(run / "best", tmp_path / "best.jsonl")
    assert kept == {**kept, "metric": BEST, "value": pytest.approx(figures[BEST], rel=1e-12)}
    assert (run / "best" / "model" / file).is_file()
    assert not (plain / "evaluation").exists()
    assert "best" not in facts(plain)


@pytest.mark.slow
def test_answers_are_decoded_as_predict_decodes_them(tmp_path):
    explore = ("predict.samples=4", "predict.max_new_tokens=20", "trainer.learning_rate=1.0e-3")
    train(job(tmp_path, "every_steps: 4, decode: median", *explore))
    run, out = tmp_path / "run", tmp_path / "median.jsonl"
    rows = last_evaluation(run)
    assert rows == predicted(run, out, decode="median")
    assert all(row["decode"]["rule"] == "median" for row in rows)
    assert any(row["text"] != row["greedy"] for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "weights", "autocast"),
    [
        (["trainer.bf16=true", "modules={language: adapted}"], "float32", "bfloat16"),
        (["model.dtype=bfloat16"], "bfloat16", None),
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
    more = ["predict.decode=median", "predict.samples=2", "trainer.max_steps=1", *overrides]
    train(job(tmp_path, "every_steps: 1, decode: median", *more))
    run, out = tmp_path / "run", tmp_path / "p.jsonl"
    assert seen == {wanted}
    seen.clear()
    rows = predicted(run, out)
    assert seen == {wanted}
    assert rows == last_evaluation(run)
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


@pytest.mark.parametrize(("metric", "best"), [(BEST, min), ("hour_accuracy", max)])
@pytest.mark.slow
def test_the_best_is_kept_and_known_again_after_a_resume(tmp_path, metric, best):
    config = job(tmp_path, f"every_steps: 1, best: {metric}")
    train(config)
    run = tmp_path / "run"
    figures = {step: found[metric] for step, found in evaluations(run).items()}
    assert list(figures) == [1, 2, 3, 4]
    assert len(set(figures.values())) > 1
    step = best(figures, key=figures.get)
    assert facts(run)["best"] == {"step": step, "metric": metric, "value": figures[step]}
    assert facts(run / "best")["steps"] == step
    assert not facts(run)["stopped_early"]
    _, found = afterwards(run / "best", tmp_path / "best.jsonl")
    assert found[metric] == pytest.approx(figures[step], rel=1e-12)
    whole, logged = facts(run)["best"], timeless(run)
    cut_off(run, 2)
    train(config, resume=True)
    assert facts(run)["best"] == whole
    assert timeless(run) == logged


@pytest.mark.slow
def test_patience_ends_a_training_that_gets_no_better(tmp_path):
    """A rate of 0 changes nothing; a run killed after its end is not trained further."""
    config = job(
        tmp_path,
        f"every_steps: 1, best: {BEST}, patience: 2",
        "trainer.learning_rate=0.0",
        "trainer.save_steps=1",
    )
    train(config)
    run = tmp_path / "run"
    for resume in (False, True):
        if resume:
            cut_off(run, 3)
            train(config, resume=True)
        assert facts(run)["steps"] == 3
        assert facts(run)["stopped_early"]
        assert facts(run)["best"]["step"] == 1
        assert list(evaluations(run)) == [1, 2, 3]
        assert last_checkpoint(run).name == "checkpoint-3"


@pytest.mark.slow
def test_a_kill_while_the_best_is_replaced_loses_neither(tmp_path):
    config = job(tmp_path, f"every_steps: 4, best: {BEST}", "trainer.save_steps=4")
    train(config)
    run = tmp_path / "run"
    cut_off(run, 4)
    (run / "best").rename(run / "best.unfinished")
    (run / "best/model").mkdir(parents=True)  # what is left of the one before
    train(config, resume=True)
    assert facts(run)["best"]["step"] == 4
    assert not (run / "best.unfinished").exists()


@pytest.mark.parametrize(
    ("evaluate", "message"),
    [
        ("every_steps: 0", r"evaluate: every_steps must be at least 1, not 0\."),
        ("every_steps: 1, patience: 2", r"evaluate: patience requires a metric; set best"),
        ("evry_steps: 1", r"evaluate: there is no setting 'evry_steps'\. Did you mean 'every_st"),
        ("rows: 0", r"evaluate: rows must be at least 1, not 0"),
        ("every_steps: 1, data: {}", r"evaluate\.data: set exactly one of path .* and synthetic"),
    ],
)
def test_a_wrong_setting_is_one_sentence(tmp_path, evaluate, message):
    with pytest.raises(ValueError, match=message):
        small_config(tmp_path, f"evaluate={{{evaluate}}}")


@pytest.mark.parametrize(
    ("overrides", "every"),
    [
        ((), None),  # 6 steps of 4 rows are less than an epoch of 40
        (("trainer.max_steps=9",), None),
        (("trainer.max_steps=10",), 10),  # 12 rows are evaluated, and more than a tenth is trained
        (("trainer.max_steps=59",), 59),
        (("trainer.max_steps=60",), 30),
        (("trainer.max_steps=5", "trainer.gradient_accumulation_steps=2"), 5),
        (("trainer.max_steps=1000",), 100),  # at most ten times
        (("trainer.max_steps=-1", "trainer.num_train_epochs=2"), 20),
        (("trainer.max_steps=1000", "evaluate=null"), None),
        (("trainer.max_steps=1000", "data.stream=true"), None),
        (("trainer.max_steps=1000", "evaluate={rows: 100}"), 100),
        (("trainer.max_steps=1000", "evaluate={rows: 2}"), 100),
        (("evaluate={rows: 2}",), 6),  # a setting of one's own needs no epoch
        (("trainer.max_steps=60", "evaluate={rows: 2}"), 6),
        (("evaluate={every_steps: 4}",), 4),
    ],
)
def test_a_training_of_an_epoch_is_evaluated_up_to_ten_times(tmp_path, overrides, every):
    config = small_config(tmp_path, *overrides)
    args = training_arguments(config)
    loaded = evaluation_data(config)
    rows = None if config.data.stream else 40
    planned = with_schedule(config, args, rows, loaded)
    assert (planned.evaluate and planned.evaluate.every_steps) == every
    if loaded and rows and every and config.evaluate == EvaluateConfig():
        unlabelled = [*loaded[:-1], replace(loaded[-1], answer=None)]
        assert with_schedule(config, args, rows, unlabelled).evaluate is None


def test_a_training_of_an_epoch_shows_a_metric_and_how_to_switch_it_off(tmp_path, capsys):
    more = ("data.train.synthetic.rows=4", "trainer.max_steps=2", "trainer.save_strategy='no'")
    run = train(job(tmp_path, "", *more)).parent
    said = capsys.readouterr().err
    assert said.startswith("evaluation: 12 of 12 rows every 2 of 2 steps; set evaluate.rows or ")
    assert "evaluate=null to switch it off\n" in said
    assert re.search(r"\nstep 2/2  evaluation  within_5_minutes \S+  within_1_minute \S+  ex", said)
    assert list(evaluations(run)) == [2]
    assert read_yaml(run / "config.yaml")["evaluate"]["every_steps"] is None


@pytest.mark.slow
def test_an_evaluation_in_one_batch_shows_how_far_it_is(tmp_path, monkeypatch):
    written, pages = [], []
    monkeypatch.setattr(progress, "_WRITTEN_S", 0.0)
    file = tmp_path / "run" / "progress.json"

    def note(path, value):
        write_json(path, value)
        if path == file:
            written.append(value)

    def score_noted(*arguments, **options):
        pages.append(run_page(tmp_path / "run", trust_remote_code=True).sections[0])
        return score(*arguments, **options)

    monkeypatch.setattr(progress, "write_json", note)
    monkeypatch.setattr(module, "score", score_noted)
    train(job(tmp_path, "every_steps: 4", f"predict.batch_size={ROWS}"))
    passes = len(written) - 2  # besides the start and the end of the batch
    assert passes > 1
    tokens = [own["tokens"] for own in written]
    assert tokens == [*range(0, (passes + 1) * ROWS, ROWS), passes * ROWS]
    assert [own["answered"] for own in written] == [0] * (passes + 1) + [ROWS]
    assert {(own["step"], own["rows"]) for own in written} == {(4, ROWS)}
    left = [own["seconds_left"] for own in written]
    assert left[0] is None
    assert left[-1] == 0
    assert min(left[1:-1]) > 0
    answered = f"Evaluating at step 4: {ROWS} of {ROWS} rows are answered, {tokens[-1]} tokens"
    assert pages[0].blocks[-1] == f"{answered} generated, about 0 min 0 s left."
    assert not file.exists()


@pytest.mark.slow
def test_the_number_of_rows_is_chosen_once_for_all_evaluations_of_a_run(
    tmp_path, monkeypatch, capsys
):
    """Whatever the time that later ones, or a resumed training, would have."""
    monkeypatch.setattr(module, "_FEWEST_ROWS", 5)
    monkeypatch.setattr(module, "_TIME_SHARE", 0.0)
    config = job(tmp_path, "", "evaluate={every_steps: 2}")
    train(config, draw=lambda _: monkeypatch.setattr(module, "_TIME_SHARE", 1e9))
    run = tmp_path / "run"
    assert (
        "\nevaluation: 6 of 12 rows each time, because a row takes about "
        in capsys.readouterr().err
    )
    assert json.loads((run / "evaluation" / "rows.json").read_text()) == {"rows": 6}
    known = timeless(run)
    cut_off(run, 2)
    train(config, resume=True)
    assert timeless(run) == known
    rows = lines(run / "evaluation" / "predictions.jsonl")
    assert [row["rows_due"] for row in rows] == [6] * 6


def test_rows_of_a_sorted_file_are_evaluated_from_all_its_parts(tmp_path):
    """The first half of the file has other times than the second half."""
    times = ["1:00"] * 20 + ["2:00"] * 20
    rows = [{"id": str(i), "image": "a.png", "time": time} for i, time in enumerate(times)]
    (tmp_path / "a.png").touch()
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    config = job(tmp_path, f"data: {{path: {tmp_path}/rows.jsonl}}")
    found = evaluated_rows(config, evaluation_data(config))
    assert sorted(example.answer.hour for example in found) == [1] * 4 + [2] * 3


@pytest.mark.parametrize(
    ("rows", "training_s", "per_row", "chosen"),
    [
        (None, 400.0, 1.0, 104),  # 100 fit into a quarter, in batches of 8
        (None, 100.0, 1.0, 56),  # at least 50
        (None, 400.0, 0.1, 200),
        (None, None, 1.0, 200),  # before the first step
        (200, 100.0, 1.0, 200),  # set by the user
    ],
)
def test_the_number_of_rows_fits_into_a_quarter_of_the_training(
    tmp_path, rows, training_s, per_row, chosen
):
    (tmp_path / "evaluation").mkdir()
    callback = SimpleNamespace(
        trainer=SimpleNamespace(args=SimpleNamespace(should_save=True)),
        config=SimpleNamespace(output_dir=tmp_path),
        settings=EvaluateConfig(rows=rows),
        examples=list(range(200)),
    )
    EvaluationCallback._choose_rows(callback, per_row, training_s, multiple=8)
    assert callback.examples == list(range(chosen))
    assert json.loads((tmp_path / "evaluation" / "rows.json").read_text()) == {"rows": chosen}


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
    steps = ("trainer.max_steps=3", "predict.max_new_tokens=3")
    settings = {"ddp": (), "zero3": ("trainer.deepspeed=zero3",), "few": ("predict.batch_size=5",)}
    for mode, setting in settings.items():
        more = ("trainer.per_device_train_batch_size=2", *steps, *setting)
        config = job(tmp_path / mode, evaluate, *more)
        files.append(tmp_path / mode / "job.yaml")
        files[-1].parent.mkdir()
        files[-1].write_text(config.to_yaml())
    run_on_ranks(2, [str(file) for file in files])
    train(job(tmp_path / "one", evaluate, *steps))
    for mode in ("one", "ddp", "zero3"):
        run = tmp_path / mode / "run"
        assert_same_as_afterwards(run, tmp_path / f"{mode}.jsonl")
        _, figures = afterwards(run / "best", tmp_path / f"{mode}.best.jsonl")
        assert facts(run)["best"]["value"] == pytest.approx(figures[BEST], rel=1e-12)
        assert facts(run)["best"]["step"] == facts(run / "best")["steps"]
        assert list(evaluations(run)) == [2, 3]
    # Each rank answered 4 rows at a time, and `predict` would answer 5.
    assert not any((tmp_path / "few").rglob("predictions.jsonl.made_by.json"))


ORANGE = (0xF0, 0x6A, 0x0A)
BLUE = (0x15, 0x50, 0xC8)


class Recorder(ModuleType):
    """A module with the functions of trackio and W&B that are used, which records their calls."""

    def __init__(self, name):
        super().__init__(name)
        self.logged = []

    @staticmethod
    def Image(image, caption=None):  # noqa: N802
        return np.array(image), caption

    def log(self, values):
        self.logged.append(values)


@pytest.fixture
def evaluated(tmp_path):
    """Return what ``EvaluationCallback`` needs to score answers, and these: boxes moved by 5 px."""
    config = config_of(tmp_path, write_rectangles(tmp_path / "rows", count=10))
    (tmp_path / "run").mkdir()
    examples = load_examples(config.task, config.data.test, tmp_path, training=False)
    frame = Frame(80, 60, Resize(kind="none").view(80, 60), COORDINATES["qwen2_vl"])
    lines = []
    for example, (x1, y1, x2, y2) in zip(examples, boxes(10), strict=True):
        moved = frame.write([Instance(Box(x1 + 5, y1, x2 + 5, y2))]).text
        text = "nowhere" if example.id == "3" else moved
        lines.append({"id": example.id, "image": None, "task": "grounding", "text": text,
                      "target": {"box": [x1, y1, x2, y2]}, "frame": frame.to_dict()})  # fmt: skip
    return config, examples, lines


def score_at_step_40(evaluated, *report_to):
    """Score the answers as an evaluation at step 40 does."""
    config, examples, lines = evaluated
    trainer = SimpleNamespace(
        args=SimpleNamespace(report_to=[*report_to]), state=SimpleNamespace(global_step=40)
    )
    callback = SimpleNamespace(config=config, trainer=trainer, examples=examples)
    return EvaluationCallback._score(callback, lines)


@pytest.mark.parametrize("name", ["trackio", "wandb"])
def test_the_first_images_are_logged_with_their_boxes_and_texts(evaluated, monkeypatch, name):
    module = Recorder(name)
    monkeypatch.setitem(sys.modules, name, module)
    metrics = score_at_step_40(evaluated, "tensorboard", name)
    assert metrics["eval_failures"] == 1
    (values,) = module.logged
    assert values.pop("train/global_step") == 40
    assert list(values) == [f"predictions/{i}" for i in range(8)]
    x1, y1, x2, y2 = boxes(10)[1]
    pixels, caption = values["predictions/1"]
    middle = (y1 + y2) // 2
    assert tuple(pixels[middle, x1]) == BLUE
    assert tuple(pixels[middle, x2 + 5]) == ORANGE
    assert caption.startswith(f"1: {evaluated[2][1]['text']} (true: {{'box': [")
    pixels, caption = values["predictions/3"]
    assert caption.startswith("3: nowhere (true: ")
    assert not (pixels == ORANGE).all(axis=-1).any()
    assert (pixels == BLUE).all(axis=-1).any()


@pytest.mark.parametrize("task", ["click", "pointing"])
def test_points_are_drawn(tmp_path, monkeypatch, task):
    rows = write_rectangles(tmp_path / "rows", count=2)
    region = {"polygon": [10, 10, 30, 10, 30, 30], "point": [25, 15]}
    if task == "pointing":
        named = [json.loads(line) | {"instances": [region]} for line in rows.open()]
        rows.write_text("".join(json.dumps(row) + "\n" for row in named))
    config = config_of(tmp_path, rows, task=task)
    (tmp_path / "run").mkdir()
    examples = load_examples(config.task, config.data.test, tmp_path, training=False)
    frame = Frame(80, 60, Resize(kind="none").view(80, 60), COORDINATES["relative_1000"])
    lines = [{"id": e.id, "image": None, "task": task, "text": "[500, 500]",
              "target": config.task.record(e.answer), "frame": frame.to_dict()}
             for e in examples]  # fmt: skip
    module = Recorder("trackio")
    monkeypatch.setitem(sys.modules, "trackio", module)
    score_at_step_40((config, examples, lines), "trackio")
    pixels, _ = module.logged[0]["predictions/1"]
    assert tuple(pixels[30, 40]) == ORANGE
    assert (pixels == BLUE).all(axis=-1).any()


def test_other_reporters_get_no_images(evaluated, monkeypatch):
    module = Recorder("trackio")
    monkeypatch.setitem(sys.modules, "trackio", module)
    score_at_step_40(evaluated, "tensorboard")
    assert module.logged == []
