"""Parameters of tests that run for every model family: with --quick, for two of them."""

from collections.abc import Iterable

import pytest

QUICK = ("qwen2_vl", "t5")


def marked(cases: Iterable[str | tuple]) -> list:
    """Return cases, which are or begin with a family; those of all but two families are slow."""
    found = []
    for case in cases:
        values = (case,) if isinstance(case, str) else case
        found.append(pytest.param(*values, marks=[] if values[0] in QUICK else [pytest.mark.slow]))
    return found
