"""Fixtures that several rooms use."""

import os

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported: no test asks the network


@pytest.fixture(scope="session")
def clock_examples():
    """A clock task and rendered examples of it."""
    from tiny_models import clocks

    return clocks(24)
