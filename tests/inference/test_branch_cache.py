"""Prompts are divided into groups with similar numbers of branches."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mm_numeric.inference.branch_cache import similar_counts


@given(st.lists(st.integers(0, 90), min_size=1, max_size=70).map(np.array), st.integers(1, 4))
def test_every_prompt_with_branches_is_in_one_group_and_padding_shrinks(counts, most):
    groups = similar_counts(counts, most)
    assert len(groups) <= most
    assert sorted(np.concatenate([[], *groups])) == np.flatnonzero(counts).tolist()
    assert all((np.diff(group) > 0).all() for group in groups)
    padded = sum(len(group) * counts[group].max() for group in groups)
    saved = np.count_nonzero(counts) * counts.max() - padded
    assert saved >= 256 * (len(groups) - 1)


@pytest.mark.parametrize(
    ("counts", "sizes"),
    [([64] * 8 + [4] * 56, [8, 56]), ([33] * 60 + [30] * 4, [64]), ([0, 0], []), ([70, 0, 1], [2])],
)
def test_groups_of_some_batches(counts, sizes):
    assert sorted(map(len, similar_counts(np.array(counts)))) == sizes
