"""Deterministic weighted interleaving of several data sources."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def weighted_round_robin(weights: Sequence[float]) -> Iterator[int]:
    """Yield the source index of each next row, indefinitely.

    The next source is the one with the largest deficit, the first one on a tie. After n rows of two
    sources, the count of each source differs from its share of n by at most one row.
    """
    total = sum(weights)
    shares = [weight / total for weight in weights]
    counts = [0] * len(shares)
    drawn = 0
    while True:
        drawn += 1
        deficits = [share * drawn - count for share, count in zip(shares, counts, strict=True)]
        chosen = deficits.index(max(deficits))
        counts[chosen] += 1
        yield chosen


def mixed_epoch(sources: Sequence[Sequence[T]], weights: Sequence[float]) -> list[T]:
    """Return the rows of one epoch, which ends once every row has occurred at least once.

    The share of a source is its weight divided by the sum of the weights.
    """
    rows: list[T] = []
    counts = [0] * len(sources)
    incomplete = len(sources)
    for chosen in weighted_round_robin(weights):
        source = sources[chosen]
        rows.append(source[counts[chosen] % len(source)])
        counts[chosen] += 1
        incomplete -= counts[chosen] == len(source)
        if not incomplete:
            return rows
    raise AssertionError  # weighted_round_robin never ends
