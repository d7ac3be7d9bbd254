"""Several data sets mixed by weight, evenly and without chance: whose turn it is."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def turns(weights: Sequence[float]) -> Iterator[int]:
    """Yield without end which source the next row is from.

    After n rows each source has had its share of n, to less than one row for two sources: the one
    that is farthest behind is next, the first of equals.
    """
    total = sum(weights)
    shares = [weight / total for weight in weights]
    had = [0] * len(shares)
    drawn = 0
    while True:
        drawn += 1
        behind = [share * drawn - count for share, count in zip(shares, had, strict=True)]
        chosen = behind.index(max(behind))
        had[chosen] += 1
        yield chosen


def mixed_epoch(sources: Sequence[Sequence[T]], weights: Sequence[float]) -> list[T]:
    """Return the rows of an epoch: it ends when every row was in it at least once.

    Args:
        sources: The rows of each, at least one.
        weights: The share of each is this over their sum.
    """
    rows: list[T] = []
    had = [0] * len(sources)
    left = len(sources)
    for chosen in turns(weights):
        source = sources[chosen]
        rows.append(source[had[chosen] % len(source)])
        had[chosen] += 1
        left -= had[chosen] == len(source)
        if not left:
            return rows
    raise AssertionError  # turns have no end
