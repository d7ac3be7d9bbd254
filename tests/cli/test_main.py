"""The command line: fast to start, and one error message for each mistake of a user."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import thermometer
from processes import python

import mm_numeric as mm_numeric_package
from mm_numeric import registry
from mm_numeric.cli import main as cli
from mm_numeric.cli.overview import GROUPS
from mm_numeric.config.reader import CONFIGS, read_config

CONFIG = """\
task: clock
data: {{train: {{path: {rows}}}, test: {{path: {rows}}}}}
model: {{name: tiny, dtype: float32}}
trainer: {{output_dir: {out}, max_steps: 1, report_to: none}}
"""


def mm_numeric(*arguments, cwd=None, **more):
    """Run the real command."""
    command = [sys.executable, "-m", "mm_numeric", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, **more)


def forked(*arguments, cwd):
    """Run the command in a process that does not import everything anew."""
    return python("-m", "mm_numeric", *arguments, cwd=cwd)


@pytest.mark.slow
def test_what_loads_nothing_heavy():
    code = """
import sys
from mm_numeric.cli.main import main
for arguments in (["--help"], ["ls"], ["check", "clock_tiny"], ["check", "--explain", "task"]):
    try:
        main(arguments)
    except SystemExit as end:
        assert end.code == 0
    heavy = {"torch", "transformers", "numpy.linalg", "PIL"} & set(sys.modules)
    allowed = {"numpy.linalg", "PIL"} if arguments[0] == "check" else set()
    assert not heavy - allowed, (arguments, heavy)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_ls_lists_everything(capsys):
    from mm_numeric.geometry.coordinates import COORDINATES
    from mm_numeric.losses.presets import PRESETS, SUMMARIES

    assert cli.main(["ls", "--all"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:8] == [
        f"tasks: {', '.join(registry.TASKS)}",
        f"families: {', '.join([*registry.FAMILIES, registry.API])}",
        f"baselines: {', '.join(registry.BASELINES)}",
        f"coordinates: {', '.join(COORDINATES)}",
        f"loss terms: {', '.join(registry.TERMS)}",
        f"risks: {', '.join(registry.RISKS)}",
        f"rewards: {', '.join(sorted(registry.REWARDS))}",
        f"formats: {', '.join(registry.IMPORTERS)}",
    ]
    names = [line.split()[0] for line in lines if line.startswith("  ")]
    others = [name for name in PRESETS if name not in SUMMARIES]
    configs = sorted(path.stem for path in CONFIGS.glob("*.yaml"))
    assert names == [*SUMMARIES, *others, *configs]
    assert f"  ntil                {SUMMARIES['ntil']}" in lines
    assert "  ntl_huber           1 ce + 0.3 (ntl_huber), balance fixed" in lines
    assert "  ce_times_1.3        1.3 ce, balance fixed" in lines
    of_configs = [line for line in lines if line.startswith("  ") and line.split()[0] in configs]
    assert len({re.match(r"  \S+ +", line).end() for line in of_configs}) == 1
    assert sum(line.endswith("prints the estimate for your rows).") for line in lines) == 3
    assert cli.main(["ls"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "  and 8 variants and controls: mm-numeric ls --all" in lines
    assert not any(line.startswith("  ntl_huber ") for line in lines)


def test_help_has_lines_to_paste(capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["--help"])
    assert end.value.code == 0
    said = capsys.readouterr().out
    verbs = "ls cp check prepare check-data train predict score compare report"
    found = re.findall(rf"\n    ({verbs.replace(' ', '|')})\s", said)
    assert " ".join(found) == verbs
    assert "mm-numeric train mine.yaml objective=emd" in said


def test_what_check_prints_is_the_same_config(capsys, tmp_path):
    overrides = ["trainer.learning_rate=3.0e-4", "objective.numeric_weight=0.8"]
    assert cli.main(["check", "clock_tiny", *overrides]) == 0
    printed = capsys.readouterr().out
    path = tmp_path / "clock_tiny.yaml"
    path.write_text(printed, encoding="utf-8")
    assert read_config(path) == read_config("clock_tiny", overrides)
    assert "#   per_device_eval_batch_size: 8" in printed.splitlines()
    assert "#   max_steps:" not in printed


def test_without_a_command_the_commands_are_listed_in_groups(capsys):
    assert cli.main([]) == 2
    said = capsys.readouterr().err
    assert "several objectives:\n    compare     compare objectives over several seeds" in said
    listed = re.findall(r"\n    ([a-z-]+)\s", said)
    assert listed == [name for group in GROUPS.values() for name in group]
    for name in listed:  # each is a command, and no command is missing
        with pytest.raises(SystemExit):
            cli.main([name, "--help"])
    assert capsys.readouterr().out.count("usage: mm-numeric ") == len(listed)
    with pytest.raises(SystemExit) as end:
        cli.main(["trian"])
    assert end.value.code == 2
    error = capsys.readouterr().err
    assert "COMMAND: there is no command 'trian'. Did you mean 'train'? Known: " in error
    assert set(error.rpartition("Known: ")[2].strip(".\n").split(", ")) == set(listed)


def test_version(capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"mm-numeric {mm_numeric_package.__version__}\n"


def test_files_of_other_tools_are_scored(capsys, tmp_path):
    for name in ("gt", "res"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}_1.txt").write_text("0,0,10,0,10,10,0,10,0.5", encoding="utf-8")
    command = ["score", str(tmp_path / "res"), "--truth", str(tmp_path / "gt")]
    assert cli.main(command) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "1 row, protocol icdar2015; 95 % bootstrap intervals over test rows"
    counts = "matched 1, truths 1, detections 1, invalid detections 0, invalid truths 0"
    assert said[1] == f"{counts}, longest run of one shape 1"
    assert said[2].split() == ["Hmean", "100.00", "%", "2.50", "%", "to", "100.00", "%"]
    assert "recall, large" in said[-1]
    assert said[-1].startswith("metrics without a value: ")
    assert cli.main([*command, "--protocol", "coco_ap", "--lines", "quad"]) == 0
    assert "AP 50                         100.00 %" in capsys.readouterr().out


def test_every_protocol_is_in_the_help(capsys):
    from mm_numeric.evaluation.answers.detections import LINES

    with pytest.raises(SystemExit):
        cli.main(["score", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert f"scored: {', '.join(registry.PROTOCOLS)}" in said
    assert f"files: {', '.join(LINES)}" in said


def test_a_mistake_is_one_line_of_the_real_command_too(tmp_path):
    done = mm_numeric("check", "clock_tiny", "objective=ntill", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("mm-numeric: clock_tiny.yaml, objective: there is no objective")
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_with_debug_the_traceback_is_shown(tmp_path):
    debug = {**os.environ, "MM_NUMERIC_DEBUG": "1"}
    done = mm_numeric("check", "none.yaml", cwd=tmp_path, env=debug)
    assert done.returncode == 1
    assert "Traceback" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"image": "a.png", "time": "25:00"}, "'25:00' is not a time on a 12-hour"),
        ({"image": "none.png", "time": "7:05"}, "there is no image "),
    ],
)
def test_train_answers_bad_rows_with_one_line(tmp_path, rows, message):
    (tmp_path / "a.png").write_bytes(b"")
    (tmp_path / "rows.jsonl").write_text(json.dumps(rows), encoding="utf-8")
    text = CONFIG.format(rows=tmp_path / "rows.jsonl", out=tmp_path / "run")
    (tmp_path / "mine.yaml").write_text(text, encoding="utf-8")
    done = forked("train", "mine.yaml", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("mm-numeric: ")
    assert f"line 1: {message}" in done.stderr
    assert done.stderr.count("\n") == 1


def test_cp_copies_and_does_not_overwrite(capsys, tmp_path):
    mine = tmp_path / "mine.yaml"
    assert cli.main(["cp", "clock_tiny", str(mine)]) == 0
    hint = "copied from clock_tiny.yaml, with the output folder runs/mine; use it with `mm-numeric"
    assert f"{hint} check {mine}`" in capsys.readouterr().out
    text = mine.read_text(encoding="utf-8")
    assert f"#   mm-numeric compare {mine}   " in text
    found = read_config(str(mine), ()).to_dict()
    assert found["trainer"].pop("output_dir") == "runs/mine"
    assert found["compare"].pop("output_dir") == "runs/mine_compare"
    shipped = read_config("clock_tiny", ()).to_dict()
    del shipped["trainer"]["output_dir"], shipped["compare"]["output_dir"]
    assert found == shipped
    for name in CONFIGS.glob("*.yaml"):
        copied, folder = cli._renamed(name.read_text(encoding="utf-8"), name.stem, Path("own.yaml"))
        assert (folder, f"runs/{name.stem}" in copied) == ("runs/own", False)
    mine.write_text("mine", encoding="utf-8")
    assert cli.main(["cp", "clock_tiny", str(mine)]) == 2
    assert f"{mine} exists; name another file." in capsys.readouterr().err
    assert mine.read_text(encoding="utf-8") == "mine"
    mine = tmp_path / "mine.json"
    assert cli.main(["cp", "zero2", str(mine)]) == 0
    assert mine.read_bytes() == (CONFIGS / "deepspeed" / "zero2.json").read_bytes()
    assert f"train ... trainer.deepspeed={mine}`" in capsys.readouterr().out


@pytest.mark.slow
def test_a_reader_who_leaves_is_no_crash():
    """As `mm-numeric ls | head -1`, made certain: nobody reads from the start."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "mm_numeric", "ls"]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert done.stderr == ""
    assert done.returncode == 141


def test_being_stopped_is_no_crash(capsys, monkeypatch):
    def stopped(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_ls", stopped)
    assert cli.main(["ls"]) == 130
    assert capsys.readouterr().err == "mm-numeric: interrupted; finished work is kept.\n"


def test_overrides_may_follow_an_option(tmp_path, capsys):
    wanted = f"trainer.output_dir={tmp_path / 'none'}"
    assert cli.main(["train", "clock_tiny", "objective=emd", "--resume", wanted]) == 2
    assert f"{tmp_path / 'none'}: no checkpoint to resume from" in capsys.readouterr().err


@pytest.mark.slow
def test_a_module_in_the_working_directory_is_found(tmp_path):
    (tmp_path / f"{thermometer.MODULE}.py").write_text(thermometer.SOURCE, encoding="utf-8")
    command = [Path(sys.executable).with_name("mm-numeric"), "check", "clock_tiny"]
    command += [f"task={thermometer.NAME}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"name: {thermometer.NAME}" in done.stdout
