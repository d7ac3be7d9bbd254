"""``mm-numeric run``: each step once, resumed after an interruption of any of them."""

import json
import re
import signal
from pathlib import Path

import pytest
import yaml
from finished_runs import CHECKPOINT, copy_and_enter, stopped_after
from PIL import Image

from mm_numeric.cli.main import main
from mm_numeric.io import log
from mm_numeric.io.log import in_stage

AGAIN = "next: mm-numeric run mine.yaml\n"
STEPS = {
    "check-data": "mm_numeric.evaluation.check_data.check.check_data",
    "train": "mm_numeric.training.run.train",
    "predict": "mm_numeric.inference.generate.generate",  # the evaluation has its own name for it
    "score": "mm_numeric.evaluation.score.score",
    "report": "mm_numeric.evaluation.report.report.write_report",
}
"""The function that does each step."""


@pytest.fixture
def mine(finished_runs, tmp_path, monkeypatch):
    """Enter a folder with rows and a config, mine.yaml, whose evaluation answers 16 of 24 rows."""
    copy_and_enter(finished_runs, tmp_path / "runs", monkeypatch)
    trainer = {**CHECKPOINT["trainer"], "output_dir": "all", "save_steps": 4}
    config = {**CHECKPOINT, "trainer": trainer, "evaluate": {"every_steps": 4, "rows": 16}}
    Path("mine.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")


@pytest.fixture
def call(mine, capsys):
    def run() -> tuple[int, str, str]:
        """Return the exit code, stdout and stderr of the command."""
        try:
            code = main(["run", "mine.yaml"])
        except SystemExit as end:
            code = end.code
        return code, *capsys.readouterr()

    return run


def raising(step: str, error: type[BaseException]) -> pytest.MonkeyPatch:
    """Return a context in which a step raises an error at its start."""

    def stop(*arguments, **options):
        raise error

    patch = pytest.MonkeyPatch()
    patch.setattr(STEPS[step], stop)
    return patch


def assert_interrupted(call, step: str, *done: str) -> str:
    """Interrupt a step; assert that the steps ``done`` are not repeated, and return stderr."""
    patches = [raising(step, KeyboardInterrupt), *(raising(own, AssertionError) for own in done)]
    try:
        code, out, err = call()
    finally:
        for patch in patches:
            patch.undo()
    assert (code, out) == (130, AGAIN)
    assert err.endswith("mm-numeric: interrupted; finished work is kept.\n")
    return err


def times() -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in Path("all").rglob("*") if path.is_file()}


def test_a_run_goes_on_after_an_interruption_of_each_step(call):
    assert_interrupted(call, "check-data")
    assert not Path("all").exists()
    with stopped_after(4, signal.SIGINT):
        code, out, err = call()
    assert (code, out) == (130, AGAIN)
    assert "1/5 check-data: ready; " in err
    assert "stopped by SIGINT; saved all/checkpoint-4: resume with the same command" in err
    err = assert_interrupted(call, "predict", "check-data")
    assert json.loads(Path("all/run.json").read_text())["resumed_after"] == 4
    assert "\nTraining resumes after step 4 of 8 (all/checkpoint-4).\n" in err
    assert re.search(r"\nstep 8/8  evaluation  accuracy_interpolation \S+ [▁█]{2}  mae_in", err)
    assert "2/5 train: all/model\n16 of 24 answers are those of the last evaluation: " in err
    assert "3/5" not in err
    assert "3/5" in assert_interrupted(call, "score", "check-data", "train")
    finished = ("check-data", "train", "predict")
    assert "4/5 score: all/results.json\n" in assert_interrupted(call, "report", *finished)
    code, out, err = call()
    found = f"report: {Path('all/report.html').resolve()}\n"
    assert (code, out, err) == (0, found, "5/5 report: all/report.html\n")
    assert "24 answers" in Path("all/report.md").read_text(encoding="utf-8")
    before = times()
    assert call() == (0, found, "")
    assert times() == before
    assert main(["predict", "--model", "all", "--out", "generated.jsonl"]) == 0
    assert Path("all/predictions.jsonl").read_bytes() == Path("generated.jsonl").read_bytes()


def test_answers_follow_the_settings_of_the_config(call):
    """Also if they change after the training. Each bar shows the step that it belongs to."""
    titles = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log, "in_stage", lambda title: titles.append(in_stage(title)) or title)
        assert call()[0] == 0
    assert {"1/5 checking train data", "2/5 evaluating", "3/5 answering"} <= {*titles}
    assert all(re.match(r"[1-5]/5 ", title) for title in titles)
    config = Path("mine.yaml").read_text()
    Path("mine.yaml").write_text(config.replace("max_new_tokens: 4", "max_new_tokens: 3"))
    code, out, err = call()
    assert (code, out) == (2, "")
    assert "(max_new_tokens is 4 there and 3 here); choose another file" in err
    Path("mine.yaml").write_text(config.replace("predict:", "predict:\n  decode: median"))
    code, out, err = call()
    assert code == 0
    assert "answers are those of the last evaluation" not in err
    assert Path("all/results.median.json").is_file()
    assert "median" in Path("all/report.md").read_text(encoding="utf-8")
    assert call() == (0, f"report: {Path('all/report.html').resolve()}\n", "")


def test_data_that_is_not_ready_is_not_trained_on(call):
    with Path("train.jsonl").open("a") as file:
        file.write('{"id": "last", "question": "1 + 1 ="}\n')
    code, out, err = call()
    assert (code, out) == (2, "")
    assert err.startswith("mm-numeric: mine: not ready: 1 thing to fix; ")
    assert "all.check-data.html\nfix 1 (train): " in err
    assert "train.jsonl, line 401" in err
    assert not Path("all").exists()


def test_a_folder_with_other_files_is_an_error_before_the_data_is_checked(call):
    Path("all").mkdir()
    Path("all/notes.txt").touch()
    code, out, err = call()
    assert (code, out) == (2, "")
    assert err.startswith("mm-numeric: all is not empty and contains no run. Choose another folder")
    assert not Path("all.check-data.html").exists()


def test_test_rows_without_an_answer_are_found_before_the_training(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (56, 56)).save("a.png")
    answer = {"answer": {"valid": True, "hours": 1, "minutes": 5}}
    for name, more in (("train", answer), ("test", {})):
        row = {"id": name, "image": "a.png", **more}
        Path(f"{name}.jsonl").write_text(json.dumps(row), encoding="utf-8")
    data = "data={train: {path: train.jsonl}, test: {path: test.jsonl}}"
    assert main(["run", "clock_tiny", "task=clockbench", data, "trainer.output_dir=all"]) == 2
    message = "clock_tiny, data.test: `run` scores the rows, and 1 of them have no answer; add"
    assert message in capsys.readouterr().err
    assert not Path("all").exists()


def test_the_folder_of_another_run_is_kept(mine, capsys):
    assert main(["run", "checkpoint.yaml", "trainer.max_steps=12"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "checkpoint contains another run: trainer.max_steps is 8 there and 12 here." in err


def test_a_launcher_starts_only_the_training(call, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    code, out, err = call()
    assert (code, out) == (2, "")
    assert err == (
        "mm-numeric: run: start it without a launcher such as torchrun. To train on several GPUs, "
        "start `train` with the launcher; `run` with the same config then does the other steps.\n"
    )
