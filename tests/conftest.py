"""Fixtures that several rooms use."""

import pytest


@pytest.fixture(scope="session")
def clock_examples():
    """A clock task and rendered examples of it."""
    from tiny_models import clocks

    return clocks(24)
