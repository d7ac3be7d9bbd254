"""Deterministic weighted interleaving of several data sources."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def weighted_round_robin(weights: Sequence[float]) -> Iterator[int]:
    """Yield indefinitely the index of the source from which to draw the next row.

    The share of a source is its weight divided by the sum of the weights. Of n rows, share * n
    should come from it. The next row is drawn from the source that is furthest below this number
    (on a tie, the first). With two sources, the number of rows from each is within 1 of share * n.
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
    """Return the rows of one epoch, in which sources are interleaved by their weights.

    The epoch ends as soon as every row of every source has occurred at least once.
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
