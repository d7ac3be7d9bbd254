"""Messages and progress bars on stderr: one line, once, on rank 0."""

import logging
import sys
import warnings
from concurrent.futures import Future

import pytest
import tqdm as tqdm_module
from tqdm import tqdm

from mm_numeric.cli import main as cli
from mm_numeric.io import log as log_module
from mm_numeric.io.log import (
    ALL_RANKS,
    ONCE,
    Waiting,
    logger,
    progress,
    set_verbosity,
    user_warnings_only,
    without_repeats,
)


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


def test_deepspeed_does_not_tell_a_machine_without_gpu_that_it_has_none():
    library = logging.getLogger("DeepSpeed")
    texts = ("Setting accelerator to CPU. If you have GPU or other accelerator, we ...", "other")
    records = [library.makeRecord("DeepSpeed", 30, "", 1, text, (), None) for text in texts]
    assert [bool(library.filter(record)) for record in records] == [False, True]


def test_a_comparison_writes_the_same_table_and_warning_once(capsys):
    with without_repeats():
        for text in ("a", "b", "a"):
            logger.info(text, extra=ONCE)
            logger.info("step 1")
            logger.warning("slow")
    logger.info("a", extra=ONCE)
    lines = [line.removeprefix("mm-numeric: ") for line in capsys.readouterr().err.splitlines()]
    assert lines == ["a", "step 1", "slow", "b", "step 1", "step 1", "a"]


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
    "arguments", [["--quiet", "ls"], ["ls", "--quiet"], ["prepare", "none", "x", "--quiet"]]
)
def test_global_options_may_come_before_or_after_the_command(arguments, capsys):
    cli.main(arguments)
    capsys.readouterr()
    logger.warning("not written")
    assert capsys.readouterr().err == ""


def test_verbose_adds_the_traceback_of_an_error(capsys):
    assert cli.main(["check", "none.yaml", "--verbose"]) == 2
    *rest, last = capsys.readouterr().err.splitlines()
    assert any(line.startswith("Traceback") for line in rest)
    assert last.startswith("mm-numeric: none.yaml: there is no such file.")


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
    with user_warnings_only():
        warnings.simplefilter("default", append=True)
        warnings.warn_explicit("old", FutureWarning, "file.py", 1, module)
    assert len(seen) == shown


@pytest.mark.parametrize(
    ("rank", "terminal", "quiet", "shown"),
    [("0", True, False, True), ("1", True, False, False), ("1", False, False, False),
     ("0", True, True, False), ("0", False, True, False)],
)  # fmt: skip
def test_where_a_progress_bar_is_shown(monkeypatch, rank, terminal, quiet, shown):
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    set_verbosity(quiet=quiet)
    bar = progress(range(3), desc="counting", unit="row")
    assert isinstance(bar, tqdm)
    assert bar.disable is not shown
    assert not shown or bar.unit == " rows"
    assert list(bar) == [0, 1, 2]


@pytest.mark.parametrize(("total", "unit"), [(None, "row"), (12_000, "batch")])
def test_a_pipe_has_a_line_of_the_progress_now_and_then(monkeypatch, capsys, total, unit):
    """Lines are 10 s apart, and after 10 min a sixtieth of the time."""
    now = 0.0
    monkeypatch.setattr(log_module.time, "monotonic", lambda: now)
    monkeypatch.setattr(tqdm_module.std, "time", lambda: now)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False, raising=False)
    bar = progress(desc="counting", unit=unit, total=total)
    at = []
    for second in range(1, 1201):
        now = float(second)
        bar.update(2)
        if (text := capsys.readouterr().err) and bar.n:
            at.append((second, text))
    bar.close()
    assert capsys.readouterr().err == ""
    seconds = [second for second, _ in at]
    assert seconds[:3] == [10, 20, 30]
    assert seconds[-1] - seconds[-2] in (19, 20)
    of, left = (" of 12,000 batches", ", 1:39:50 left") if total else (" rows", "")
    assert at[0][1] == f"counting: 20{of}, 00:10 so far{left}\n"


def test_a_result_that_comes_at_the_end_of_a_wait_is_no_timeout():
    class LateFuture(Future):
        def result(self, timeout=None):
            if not self.done():
                self.set_result(5)
                raise TimeoutError
            return super().result(timeout)

    assert Waiting("an answer").result(LateFuture()) == 5
    failed = Future()
    failed.set_exception(TimeoutError("of the server"))
    with pytest.raises(TimeoutError, match="of the server"):
        Waiting("an answer").result(failed)
