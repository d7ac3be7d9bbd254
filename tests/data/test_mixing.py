"""Several sources by weight: exact shares at every moment, and every row in an epoch."""

from collections import Counter
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mm_numeric.config.data import DataConfig, DataSource
from mm_numeric.data.mixing import mixed_epoch, weighted_round_robin

WEIGHTS = st.lists(st.floats(0.05, 20), min_size=1, max_size=4)


@given(WEIGHTS)
def test_each_source_has_its_share_all_along(weights):
    drawn = list(islice(weighted_round_robin(weights), 200))
    for count in (1, 7, 50, 200):
        had = Counter(drawn[:count])
        for i, weight in enumerate(weights):
            assert abs(had[i] - count * weight / sum(weights)) < len(weights)


@given(st.data())
def test_an_epoch_ends_when_every_row_was_in_it(data):
    weights = data.draw(WEIGHTS)
    sizes = st.lists(st.integers(1, 9), min_size=len(weights), max_size=len(weights))
    sources = [[(i, j) for j in range(n)] for i, n in enumerate(data.draw(sizes))]
    epoch = mixed_epoch(sources, weights)
    assert set(epoch) == {row for source in sources for row in source}
    assert epoch.count(epoch[-1]) == 1  # the last one was still missing
    for source in sources:
        counts = [epoch.count(row) for row in source]
        assert max(counts) - min(counts) <= 1


def test_a_small_source_comes_again_for_its_weight():
    assert "".join(mixed_epoch(["ab", "xyz"], [2, 1])) == "axbaybaz"


def test_a_source_that_is_tested_on_has_no_weight():
    rows = DataSource(path="a.jsonl", weight=2)
    assert DataConfig(train=(rows, rows), test=DataSource(path="b.jsonl"))
    with pytest.raises(ValueError, match="test sets weight, which only training sources"):
        DataConfig(train=rows, test=rows)


def test_the_first_of_sources_that_are_equally_behind_is_next():
    assert list(islice(weighted_round_robin([1, 1, 1]), 6)) == [0, 1, 2, 0, 1, 2]
    assert list(islice(weighted_round_robin([1, 3]), 8)) == [1, 0, 1, 1, 1, 0, 1, 1]
