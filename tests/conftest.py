"""Fixtures that several rooms use, and the groups of tests that run in one process."""

import os

import pytest

# Before torch and transformers are imported. No test asks the network. One thread: the models are
# tiny, and the processes of pytest-xdist would wait for each other's threads.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(config, items):
    """Group the tests that share a fixture of their module, and start with the slow groups."""
    if not getattr(config.option, "loadgroup", False):  # set in the processes of pytest-xdist
        return
    for item in items:
        fixtures = item._fixtureinfo.name2fixturedefs.values()
        if any(fixture[-1].scope == "module" for fixture in fixtures):
            item.add_marker(pytest.mark.xdist_group(item.module.__name__))
    slow = {_group(item) for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: _group(item) not in slow)


def _group(item):
    """Return the name of the group of a test: its own name if it has none."""
    marker = item.get_closest_marker("xdist_group")
    return marker.args[0] if marker else item.nodeid


@pytest.fixture(scope="session")
def clock_examples():
    """A clock task and rendered examples of it."""
    from tiny_models import clocks

    return clocks(24)
