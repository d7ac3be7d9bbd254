"""Deterministic weighted interleaving of several data sources."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def weighted_round_robin(weights: Sequence[float]) -> Iterator[int]:
    """Yield endlessly the index of the source that the next sample is taken from.

    The share of a source is its weight divided by the sum of the weights. Of n samples, share * n
    should come from it. The next sample is from the source that is furthest below this number (on a
    tie, the first). With two sources, the number of samples from each is within 1 of share * n.
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
    """Return the samples of one epoch, with the sources interleaved by their weights.

    The epoch ends when every sample has occurred at least once; small sources are repeated.
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
