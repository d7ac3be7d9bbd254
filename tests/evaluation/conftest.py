"""Fixtures of the tests of scoring, reports and check-data."""

import pytest

from mm_numeric.evaluation.metrics import bootstrap


@pytest.fixture(autouse=True)
def few_resamples(request, monkeypatch):
    """Draw fewer resamples, except in the tests of metrics, which include those of intervals."""
    if "metrics" not in request.path.parts:
        monkeypatch.setattr(bootstrap, "RESAMPLES", 200)
