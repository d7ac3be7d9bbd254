"""Messages and progress bars on stderr: one line, once, on rank 0."""

import subprocess
import sys
import warnings

import pytest
from tqdm import tqdm

from mm_numeric import cli
from mm_numeric.log import (
    ALL_RANKS,
    ONCE,
    logger,
    progress,
    set_verbosity,
    warnings_as_messages,
    without_repeats,
)
from mm_numeric.registry import choose


@pytest.fixture(autouse=True)
def _default_level():
    yield
    set_verbosity()


def test_only_rank_0_writes_unless_the_record_is_for_all(capsys, monkeypatch):
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        logger.info("step %d", 3)
        logger.error("bad row", extra=ALL_RANKS)
    lines = ["mm-numeric: step 3", "mm-numeric: bad row", "mm-numeric: bad row"]
    assert capsys.readouterr().err.splitlines() == lines


def test_a_comparison_writes_the_same_table_once(capsys):
    with without_repeats():
        for text in ("a", "b", "a"):
            logger.info(text, extra=ONCE)
            logger.info("step 1")
    logger.info("a", extra=ONCE)
    lines = [line.removeprefix("mm-numeric: ") for line in capsys.readouterr().err.splitlines()]
    assert lines == ["a", "step 1", "b", "step 1", "step 1", "a"]


@pytest.mark.parametrize(
    ("options", "levels"),
    [({}, ["info", "error"]), ({"quiet": True}, ["error"]),
     ({"verbose": True}, ["debug", "info", "error"])],
)  # fmt: skip
def test_verbosity(capsys, options, levels):
    set_verbosity(**options)
    for level in ("debug", "info", "error"):
        getattr(logger, level)(level)
    assert capsys.readouterr().err.splitlines() == [f"mm-numeric: {level}" for level in levels]


@pytest.mark.parametrize(
    "arguments",
    [["--quiet", "ls"], ["ls", "--quiet"], ["prepare", "none", "x", "--quiet"]],
)
def test_global_options_may_stand_before_or_after_the_command(arguments, capsys):
    cli.main(arguments)
    capsys.readouterr()
    logger.warning("not written")
    assert capsys.readouterr().err == ""


def test_verbose_adds_the_traceback_of_an_error(capsys):
    assert cli.main(["check", "none.yaml", "--verbose"]) == 2
    *rest, last = capsys.readouterr().err.splitlines()
    assert any(line.startswith("Traceback") for line in rest)
    assert last.startswith("mm-numeric: none.yaml: there is no such file.")


@pytest.mark.slow
def test_a_warning_of_this_library_is_one_line(tmp_path):
    shipped = subprocess.run(
        [sys.executable, "-m", "mm_numeric", "check", "clock_tiny"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert shipped.stderr == ""
    old = shipped.stdout.replace("on_bad_image:", "on_bad_picture:")
    assert old != shipped.stdout
    (tmp_path / "old.yaml").write_text(old, encoding="utf-8")
    command = [sys.executable, "-m", "mm_numeric", "check", "old.yaml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stderr == (
        "mm-numeric: old.yaml: data.on_bad_picture is now data.on_bad_image; "
        "the old name stops working in 0.3.\n"
    )
    assert subprocess.run([*command, "--quiet"], cwd=tmp_path, capture_output=True, text=True,
                          check=True).stderr == ""  # fmt: skip


def test_a_warning_is_logged_once_and_those_of_others_are_left_alone(capsys, monkeypatch):
    others = []
    monkeypatch.setattr(warnings, "showwarning", lambda message, *_, **__: others.append(message))
    with warnings_as_messages():
        for _ in range(2):
            choose("mm_numeric.evaluation.boxes:BOXES", {}, "scorer", "mine.yaml, scorer")
        warnings.warn("not ours", FutureWarning, stacklevel=1)
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert err.startswith("mm-numeric: mine.yaml, scorer: mm_numeric.evaluation.boxes:BOXES has mo")
    assert [str(message) for message in others] == ["not ours"]


@pytest.mark.parametrize(
    ("module", "verbose", "shown"),
    [("transformers.modeling_utils", False, False), ("transformers.modeling_utils", True, True),
     ("transformers.training_args", False, True), ("torch.cuda", False, False),
     ("torchvision.io", False, True), ("my_tasks", False, True)],
)  # fmt: skip
def test_future_warnings_about_calls_between_libraries_are_not_shown(
    monkeypatch, module, verbose, shown
):
    seen = []
    monkeypatch.setattr(warnings, "showwarning", lambda message, *_, **__: seen.append(message))
    set_verbosity(verbose=verbose)
    with warnings_as_messages():
        warnings.simplefilter("default", append=True)
        warnings.warn_explicit("old", FutureWarning, "file.py", 1, module)
    assert len(seen) == shown


@pytest.mark.parametrize(
    ("rank", "terminal", "quiet", "shown"),
    [("0", True, False, True), ("1", True, False, False), ("0", False, False, False),
     ("0", True, True, False)],
)  # fmt: skip
def test_where_a_progress_bar_is_shown(monkeypatch, rank, terminal, quiet, shown):
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    set_verbosity(quiet=quiet)
    bar = progress(range(3), desc="counting", unit="row")
    assert isinstance(bar, tqdm)
    assert bar.disable is not shown
    assert list(bar) == [0, 1, 2]
