"""Fixtures that several rooms use, and the groups of tests that run in one process."""

import gc
import io
import itertools
import logging
import os
from collections import Counter
from pathlib import Path

import examples  # noqa: F401  registers the profiles of hypothesis
import pytest

# Before torch and transformers are imported. No test asks the network. One thread: the models are
# tiny, and the processes of pytest-xdist would wait for each other's threads.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_DEACTIVATE_ASYNC_LOAD"] = "1"  # threads for weights that are there at once

gc.disable()  # until all is imported and collected: a third of the time, and there is no garbage


def pytest_addoption(parser):
    parser.addoption(
        "--simulated-device",
        action="store_true",
        help="run on tests/helpers/simulated_device.py: for tests marked device alone",
    )
    parser.addoption("--new-pythons", action="store_true", help="see Fork in helpers/processes.py")


def pytest_configure(config):
    if config.option.markexpr != "device":  # before triton is imported: kernels run on the CPU
        os.environ.setdefault("TRITON_INTERPRET", "1")
    if config.option.new_pythons:
        os.environ["MM_NUMERIC_NEW_PYTHONS"] = "1"
    if config.option.simulated_device:
        import simulated_device

        os.environ["ACCELERATE_TORCH_DEVICE"] = simulated_device.NAME
        simulated_device.install()


CHUNK = 20
"""How many quick tests of a module one process runs in turn: pytest-xdist hands out groups."""

FORKED = "forked"
FORKING = {"budget", "predict_ranks", "processes", "rank_runs", "served_models", "train_runs"}
"""Helpers that start processes. Tests with them are one group, of about a third of the time: the
process that all are forked from takes five seconds to start. Other helpers of these tests are in
other modules, such as ``run_files``."""


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(config, items):
    """Assign tests to the processes of pytest-xdist in groups, the longest groups first.

    Those that start processes are one group, and so are those of a module that share a fixture of
    it. The cases of a slow test are a group of their own. The others are cut into chunks.
    """
    if not getattr(config.option, "loadgroup", False):  # set in the processes of pytest-xdist
        return
    groups = [_group(item, i // CHUNK) for i, item in enumerate(items)]
    slow = {g for g, item in zip(groups, items, strict=True) if item.get_closest_marker("slow")}
    for group, item in zip(groups, items, strict=True):
        item.add_marker(pytest.mark.xdist_group(group))
    # Backwards by name: the rooms that train models come before data and config.
    numbers = {group: i for i, group in enumerate(sorted(set(groups), reverse=True))}
    order = {
        item: (g != FORKED, g not in slow, numbers[g])
        for g, item in zip(groups, items, strict=True)
    }
    items.sort(key=order.__getitem__)


def _group(item, chunk):
    """Return the name of the group of a test."""
    for each in vars(item.module).values():
        if getattr(each, "__module__", getattr(each, "__name__", "")) in FORKING:
            return FORKED
    fixtures = item._fixtureinfo.name2fixturedefs.values()
    if any(fixture[-1].scope == "module" for fixture in fixtures):
        return item.module.__name__
    if item.get_closest_marker("slow"):
        return item.nodeid.partition("[")[0]
    return f"{item.module.__name__}:{chunk}"


def pytest_collection_finish(session):
    """Hide what is imported from the garbage collector, which accelerate runs in every training."""
    if getattr(session.config.option, "loadgroup", False):
        lost = [item.nodeid for item in session.items if "@" not in item.nodeid]
        # pytest 9.2 and pytest-xdist 3.8: each process made the fixtures of every module again.
        assert not lost, f"pytest-xdist does not see the groups of tests: {lost[:3]}"
        # Each is sent from process to process several times; one had 17 million characters.
        long = [item.nodeid[:99] for item in session.items if len(item.nodeid) > 1000]
        assert not long, f"give these cases a short name, with pytest.param(..., id=...): {long}"
    if "MM_NUMERIC_TEST_LOSSES" not in os.environ:  # set where transformers is too old for families
        from cheap_lookups import make_cheap

        make_cheap()
    gc.freeze()
    gc.enable()


def pytest_terminal_summary(terminalreporter):
    """Say in one line which tests were skipped, and why."""
    reasons = Counter(
        report.longrepr[2].removeprefix("Skipped: ")
        for report in terminalreporter.stats.get("skipped", ())
        if isinstance(report.longrepr, tuple)
    )
    if reasons:
        listed = "; ".join(f"{count} x {reason}" for reason, count in reasons.most_common())
        terminalreporter.write_line(f"skipped: {listed}")


def pytest_runtest_teardown(item, nextitem):
    """Do the same with what a module has imported."""
    if nextitem is None or nextitem.module is not item.module:
        gc.collect()
        gc.freeze()


FOLDERS = itertools.count()


@pytest.fixture
def tmp_path(request, tmp_path_factory):
    """A folder of a test. pytest's own lists those of all earlier tests first, and adds a link."""
    name = f"{request.node.originalname[:30]}{next(FOLDERS)}"
    return tmp_path_factory.mktemp(name, numbered=False)


@pytest.fixture
def logged():
    """What the library logs during a test, as a StringIO."""
    library, text = logging.getLogger("mm_numeric"), io.StringIO()
    handler, level = logging.StreamHandler(text), library.level
    library.addHandler(handler)
    library.setLevel(logging.INFO)
    yield text
    library.setLevel(level)
    library.removeHandler(handler)


@pytest.fixture(scope="session")
def finished_runs(tmp_path_factory):
    """A folder with a finished run, a stopped one and a comparison, for all processes."""
    from filelock import FileLock
    from finished_runs import make_runs

    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "finished_runs"
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            made = folder.with_name(f"{folder.name}.unfinished")
            make_runs(made)
            made.rename(folder)
    return folder


@pytest.fixture(scope="session")
def clock_examples():
    """A clock task and rendered examples of it."""
    from tiny_models import clocks

    return clocks(24)


FEW_RESAMPLES = {"comparison", "config", "evaluation", "inference", "tasks"}


@pytest.fixture(autouse=True)
def few_resamples(request, monkeypatch):
    """Draw fewer resamples, except in the tests of metrics, which include those of intervals."""
    rooms = {*request.path.relative_to(Path(__file__).parent).parts}
    if rooms & FEW_RESAMPLES and "metrics" not in rooms:
        from mm_numeric.evaluation.metrics import bootstrap

        monkeypatch.setattr(bootstrap, "RESAMPLES", 200)
