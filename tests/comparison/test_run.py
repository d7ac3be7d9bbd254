"""compare: one warm start a seed, the same batches, killed and gone on with."""

import json
import os
import shutil
import signal
import time
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from finished_comparison import GOOD, POOR, comparison, settings
from PIL import Image
from planned import seed_configs
from processes import NEW_PYTHONS, Fork, Job
from run_files import same
from safetensors.torch import load_file
from tiny_models import small_config

from mm_numeric.cli import main as cli
from mm_numeric.comparison.engines import local
from mm_numeric.comparison.plan import open_runs
from mm_numeric.comparison.run import compare, execute_here
from mm_numeric.distributed.ranks import EveryRankError
from mm_numeric.evaluation.report.comparison_page import terminal_text
from mm_numeric.evaluation.report.report import write_report
from mm_numeric.evaluation.report.results import read_comparison
from mm_numeric.evaluation.report.summary_file import read_summary
from mm_numeric.inference import generate
from mm_numeric.io.atomic_files import locked
from mm_numeric.runs.folder import claim, write_config
from mm_numeric.training.trainer import NumericTrainer

SMALL = ("compare.objectives=[ce, {name: strong, preset: ntl_was, numeric_weight: 0.8}]",
         "compare.seeds=[0]", "trainer.max_steps=2", "compare.warm_start.max_steps=2",
         "compare.jobs=1", "data.train.synthetic.rows=8", "data.test.synthetic.rows=4",
         "trainer.save_strategy='no'")  # fmt: skip

READING = {"valid": True, "hours": 1, "minutes": 5}


@pytest.mark.parametrize("seeds", [None, [0]])
def test_a_launcher_is_rejected_before_anything_is_written(tmp_path, monkeypatch, seeds):
    monkeypatch.setenv("WORLD_SIZE", "2")
    config = small_config(tmp_path, *SMALL)
    with pytest.raises(EveryRankError, match=r"start compare without a launcher such as torchrun"):
        compare(config, seeds=seeds)
    assert not Path(config.compare.output_dir).exists()


def test_every_objective_starts_from_the_warm_start_of_its_seed(tmp_path):
    warm, *runs = seed_configs(small_config(tmp_path, "compare.seeds=[3]"), 3)
    assert [run.objective.name for run in runs] == ["ce", "ce_times_1.3", "emd", "ntl_was", "ntil"]
    assert warm.objective.name == "ce"
    assert warm.trainer["max_steps"] == 700
    assert {run.model.name for run in runs} == {str(warm.output_dir / "model")}
    for run in runs:
        assert run.trainer["seed"] == 3
        differing = {k for k in run.trainer if run.trainer[k] != runs[0].trainer[k]}
        assert differing <= {"output_dir"}


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [None, [0]])
def test_a_finished_row_does_not_have_the_answers_of_other_predict_settings(tmp_path, seeds):
    def of(number):
        row = f"{{name: long, preset: ce, with: {{predict.max_new_tokens: {number}}}}}"
        rows = ("compare.control=null", f"compare.objectives=[{row}, ce]")
        return small_config(tmp_path, *SMALL, *rows)

    (tmp_path / "compare").mkdir()
    write_config(tmp_path / "compare", of(8))
    for run in seed_configs(of(8), 0):
        claim(run.output_dir, run)
        (run.output_dir / "run.json").touch()
    message = r"seed0/long contains another run: predict\.max_new_tokens is 8 there and 16 here\."
    with pytest.raises(ValueError, match=message):
        compare(of(16), seeds=seeds)


@pytest.mark.slow
def test_rows_of_another_config_leave_the_summary_with_a_warning(tmp_path, capsys):
    folder, few = tmp_path / "both", ["data.train.synthetic.rows=4", "data.test.synthetic.rows=4"]
    few += ["compare.decode=[greedy]"]
    both = comparison(folder, {"ce": (GOOD, POOR), "emd": (POOR, GOOD)}, overrides=few)
    for run in folder.glob("seed*/*"):
        (run / "results.json").touch()
    write_config(folder, both)
    compare(both)
    compare(both)
    assert "summary.json" not in capsys.readouterr().err
    compare(settings(folder, ["emd"], seeds=[5], overrides=few))
    assert "both: its summary.json and report have ce, seed 3, which" in capsys.readouterr().err
    assert read_summary(folder)["objectives"] == ["emd"]


@pytest.mark.parametrize("key", ["data.test", "compare.select_on"])
def test_rows_without_an_answer_are_found_before_training(tmp_path, key):
    paths = []
    for name in ("data.train", "data.test", "compare.select_on"):
        Image.new("RGB", (60, 60)).save(tmp_path / f"{name}.png")
        row = {"id": name, "image": f"{name}.png"} | ({} if name == key else {"answer": READING})
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row))
        paths.append(f"{name}={{path: {tmp_path / name}.jsonl}}")
    tune = "compare.tune={trainer.learning_rate: [1.0e-3, 2.0e-3]}"
    config = small_config(tmp_path, *SMALL, "task=clockbench", tune, *paths)
    with pytest.raises(ValueError, match=rf"{key}\.jsonl, line 1: the row has no answer, and `com"):
        compare(config)
    assert not Path(config.compare.output_dir).exists()


@pytest.mark.slow
def test_a_comparison_runs_to_its_table_and_is_not_run_twice(tmp_path):
    """With a learning rate of 0 every objective ends as the warm start, bit for bit."""
    small = (*SMALL, "trainer.learning_rate=0.0")
    config = small_config(tmp_path, *small)
    folder = compare(config)
    for name in ("ce", "ce_times_1.3", "strong"):
        assert same(folder / "seed0" / "warm_start", folder / "seed0" / name)
    summary = read_summary(folder)
    assert list(summary["table"]) == ["ce", "ce_times_1.3", "strong"]
    assert summary["table"]["ce"]["within_5_minutes"]["difference"] is None
    assert summary["table"]["strong"]["within_5_minutes"]["difference"] is not None
    assert "strong" in terminal_text(read_comparison(folder))
    written = {p: p.stat().st_mtime_ns for p in folder.glob("seed0/*/model/*.safetensors")}
    assert len(written) == 4
    compare(config)
    assert {p: p.stat().st_mtime_ns for p in written} == written
    compare(small_config(tmp_path, *small, "compare.objectives=[ce, emd]"))
    assert {p: p.stat().st_mtime_ns for p in written} == written
    for weights in folder.glob("seed0/*/model"):  # as if copied from another machine without them
        shutil.rmtree(weights)
    compare(config)
    assert read_summary(folder)["table"] == summary["table"]
    assert not list(folder.glob("seed0/*/model"))
    with pytest.raises(ValueError, match=r"another run: trainer\.learning_rate"):
        compare(small_config(tmp_path, *SMALL, "trainer.learning_rate=2.0e-3"))
    with pytest.raises(ValueError, match=r"another run: trainer\.max_steps is 2 there"):
        compare(small_config(tmp_path, *small, "compare.warm_start.max_steps=3"))


@pytest.mark.slow
def test_rows_with_settings_of_their_own_have_their_own_warm_start(tmp_path):
    """The other rows are what they are without them, bit for bit, and nothing is run twice."""
    weights = "seed0/{}/model/model.safetensors"
    plain = compare(small_config(tmp_path, *SMALL))
    before = {p: p.stat().st_mtime_ns for p in plain.glob(weights.format("*"))}
    grid = "compare.grid={objective: [ce, emd], modules.vision: {trained: null, frozen: frozen}}"
    folder = compare(small_config(tmp_path, *SMALL, grid))
    assert folder == plain
    assert {p: p.stat().st_mtime_ns for p in before} == before
    summary = read_summary(folder)
    assert summary["objectives"][3:] == [
        "ce_trained", "ce_frozen", "emd_trained", "emd_frozen",
    ]  # fmt: skip
    assert list(summary["other_warm_starts"]) == ["warm_start_frozen"]
    starts = {run["objective"]: run["warm_start"] for run in summary["runs"]}
    assert starts["ce"] == starts["emd_trained"] == "seed0/warm_start"
    assert starts["emd_frozen"] == "seed0/warm_start_frozen"
    assert summary["references"]["emd_frozen"] == "ce_frozen"
    assert summary["table"]["emd_frozen"]["within_5_minutes"]["difference"] is not None
    assert summary["facts"]["other settings"] == (
        "ce_trained, emd_trained (modules.vision: null, from warm_start); "
        'ce_frozen, emd_frozen (modules.vision: "frozen", from warm_start_frozen)'
    )
    assert "warm_start_frozen" in terminal_text(read_comparison(folder))

    def loaded(name):
        return load_file(folder / weights.format(name))

    ce, frozen = loaded("ce"), loaded("ce_frozen")
    assert all(torch.equal(ce[key], value) for key, value in loaded("ce_trained").items())
    start = loaded("warm_start_frozen")
    moved = {key.split(".")[1] for key in frozen if not torch.equal(frozen[key], start[key])}
    assert "visual" not in moved
    assert moved
    page = (write_report(folder)[0]).read_text(encoding="utf-8")
    assert "warm_start_frozen" in page


def wait_after_warm_start(trainer, *args, step=NumericTrainer.training_step):
    """Do a step of a warm start; wait in the first step of the run after it."""
    if Path(trainer.args.output_dir).name != "warm_start":
        time.sleep(60)
    return step(trainer, *args)


def compare_and_wait(words: list[str]) -> int:
    os.environ.pop(NEW_PYTHONS, None)  # they would not wait
    NumericTrainer.training_step = wait_after_warm_start
    return compare_in_forks(words)


def compare_in_forks(words: list[str]) -> int:
    local.subprocess = SimpleNamespace(Popen=Fork)
    return cli.main(words)


def children(process: int) -> list[Path]:
    """Return what /proc has of the processes that a process has started."""
    found = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [Path("/proc", child) for child in found]


def is_alive(process: Path) -> bool:
    """Return True if a process has not ended; one that nobody waits for stays in /proc."""
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
def test_a_killed_comparison_of_two_processes_goes_on(tmp_path):
    """The process after the kill prints nothing when it ends.

    In .ci/run it is a new Python, which prints nothing while it imports all either.
    """
    two = ("compare.objectives=[ce]", "compare.control=null", "compare.seeds=[0, 1]")
    config = small_config(tmp_path, *SMALL, *two, "compare.jobs=2")
    file = tmp_path / "small.yaml"
    file.write_text(config.to_yaml())
    job = Job(compare_and_wait, ["compare", str(file)], tmp_path / "killed.txt")
    folder = tmp_path / "compare"
    deadline = time.monotonic() + 120
    while not any(folder.glob("seed*/warm_start/results.json")) and time.monotonic() < deadline:
        time.sleep(0.05)
    others = children(job.processes[0].pid)
    assert len(others) == 2
    os.kill(job.processes[0].pid, signal.SIGKILL)  # and not the two
    assert job.wait() == [-signal.SIGKILL]
    deadline = time.monotonic() + 30
    while any(map(is_alive, others)) and time.monotonic() < deadline:
        time.sleep(0.05)  # they notice that their parent is gone
    kept = {p: p.stat().st_mtime_ns for p in folder.glob("seed*/*/results.json")}
    assert 0 < len(kept) < 4
    compare(config, seeds=[0])  # in this process, so that one run is left for another
    left = open_runs(config, [1])
    execute_here(left[:-1])
    log = folder / "job0.log"
    before = len(log.read_text())
    job = Job(compare_in_forks, ["compare", str(file)], tmp_path / "resumed.txt")
    assert job.wait() == [0], job.text()
    assert {p: p.stat().st_mtime_ns for p in kept} == kept
    said = log.read_text()[before:]
    assert said.startswith("mm-numeric: 4 runs: "), said
    assert "mm-numeric: training seed1/ce\n" in said
    assert said.splitlines()[-1].startswith("step 2/2 "), said
    assert "Warning" not in said
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["seeds"] == [0, 1]
    assert "report:" in job.text()
    assert (folder / "report.html").is_file()


def test_a_process_leaves_out_the_runs_of_another_and_those_that_wait_for_them(
    tmp_path, monkeypatch, logged
):
    runs = open_runs(small_config(tmp_path, *SMALL, "compare.seeds=[0, 1]"), [0, 1])
    names, executed = ("warm_start", "ce", "ce_times_1.3", "strong"), []

    def execute(run):
        executed.append(run.name)
        run.answers.mkdir(parents=True)
        (run.answers / "results.json").touch()

    def finish_the_other(_):
        assert executed == [f"seed1/{name}" for name in names]
        execute(runs[0])
        other.close()

    monkeypatch.setattr("mm_numeric.comparison.run._train_and_score", execute)
    monkeypatch.setattr("mm_numeric.comparison.run.time", SimpleNamespace(sleep=finish_the_other))
    with ExitStack() as other:
        assert runs[0].name == "seed0/warm_start"
        other.enter_context(locked(tmp_path / "compare" / "seed0" / "warm_start.run"))
        execute_here(runs)
    assert executed[4:] == [f"seed0/{name}" for name in names]
    assert logged.getvalue() == "waiting for runs that other processes execute\n"


@pytest.mark.parametrize(
    ("visible", "count", "seen"),
    [
        (None, 0, [None, None, None]),
        (None, 1, [None, None, None]),
        (None, 2, ["0", "1", "0"]),
        ("4, 6,7", 3, ["4", "6", "7"]),
        ("3", 1, [None, None, None]),
    ],
)
def test_each_process_sees_one_of_several_gpus(monkeypatch, visible, count, seen):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    assert [local.one_gpu(job).get("CUDA_VISIBLE_DEVICES") for job in range(3)] == seen


@pytest.mark.slow
def test_a_decoding_rule_that_is_added_is_decoded_and_not_trained(tmp_path, monkeypatch):
    original, asked = generate.predict, []

    def predict(run, *args, rules, **more):
        asked.append((run.name, rules))
        return original(run, *args, rules=rules, **more)

    monkeypatch.setattr(generate, "predict", predict)
    only_ce = ("compare.objectives=[ce]", "compare.control=null")
    folder = compare(small_config(tmp_path, *SMALL, *only_ce))
    names = ["warm_start", "ce"]
    assert asked == [(name, ("greedy",)) for name in names]
    assert read_summary(folder)["calibration"] == {}
    patterns = ("seed0/*/model/model.safetensors", "seed0/*/run.json")
    kept = {path: path.stat().st_mtime_ns for name in patterns for path in folder.glob(name)}
    assert len(kept) == 4
    rules = ("greedy", "median")
    compare(small_config(tmp_path, *SMALL, *only_ce, "compare.decode=[greedy, median]"))
    assert asked[2:] == [(name, rules) for name in names]
    assert {p: p.stat().st_mtime_ns for p in kept} == kept
    summary = read_summary(folder)
    assert list(summary["decoding"]["ce"]) == list(rules)
    assert ", by decoding rule" in terminal_text(read_comparison(folder))
    for name in ("predictions.median.jsonl", "scores.median.jsonl", "results.median.json"):
        assert (folder / "seed0" / "ce" / name).is_file()
    compare(small_config(tmp_path, *SMALL, *only_ce, "compare.decode=[greedy, median]"))
    compare(small_config(tmp_path, *SMALL, *only_ce))
    assert len(asked) == 4


def test_a_seed_that_is_not_in_the_config_is_rejected(tmp_path):
    with pytest.raises(ValueError, match=r"compare\.seeds: 7 is not one of \[0\]"):
        compare(small_config(tmp_path, *SMALL), seeds=[7])
