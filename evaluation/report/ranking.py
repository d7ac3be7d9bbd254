"""Rank test questions by their answers, the worst first, for the galleries of a report."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import NamedTuple, TypeVar

from mm_numeric.evaluation.report.results import ScoredRow, Scores

T = TypeVar("T")


class Ranked(NamedTuple):
    """A test question, the seed whose answers to it are the worst, and their mean error."""

    id: str
    seed: int
    error: float


def worst_first(scores: Scores, error: Callable[[ScoredRow], float]) -> list[Ranked]:
    """Rank the test questions by the answers of their worst seed, the largest error first.

    The error of a seed is the mean of ``error(row)`` over the objectives.
    """
    errors: dict[tuple[str, int], list[float]] = defaultdict(list)
    for (_, seed), rows in scores.items():
        for row in rows:
            errors[str(row["id"]), seed].append(error(row))
    worst: dict[str, Ranked] = {}
    for id_, seed in sorted(errors):
        found = Ranked(id_, seed, fmean(errors[id_, seed]))
        if id_ not in worst or found.error > worst[id_].error:
            worst[id_] = found
    return sorted(worst.values(), key=lambda own: (-own.error, own.id))


def order_text(what: str, scores: Scores) -> str:
    """Return a sentence on the order of a gallery; ``what`` names the error that was compared."""
    objectives, seeds = ({key[i] for key in scores} for i in range(2))
    mean = f"the mean {what} over the objectives" if len(objectives) > 1 else f"the {what}"
    if len(seeds) == 1:
        return f"Worst first, by {mean}."
    return f"Worst first, by {mean}; each with the answers of its worst seed."


def spread_evenly(values: Sequence[T], count: int) -> list[T]:
    """Select at most ``count`` evenly spaced items of a sequence, including the last item."""
    count = min(count, len(values))
    return [values[len(values) * (k + 1) // count - 1] for k in range(count)]
