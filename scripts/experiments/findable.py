"""Print what a planned comparison can find, and how often it would find what does not exist.

    python scripts/experiments/findable.py scripts/experiments/products.yaml [KEY=VALUE ...]
    python scripts/experiments/findable.py --results scripts/experiments/products.yaml

The first command uses the runs of the tuning: the best trial of each row, with the seeds of
``compare.tune_seeds``. The second uses the finished runs of ``compare.seeds``. Each line is about a
family of hypotheses; from the tuning, only about families with greedy decoding.

``references``    Mean of the metric of the rows that the hypotheses compare with, such as CE.
``findable``      With ``compare.seeds``, a true difference of this size would be found in 80 % of
                  repetitions of the experiment, after the correction for several hypotheses. The
                  standard deviation is that of paired differences between seeds, pooled over the
                  hypotheses.
``family error``  Share of simulated experiments without any difference in which a hypothesis of
                  the family has a corrected p-value of at most .05; it should be .03 to .05.

A simulated experiment has the paired differences of the real one, changed so that no row of the
table is better. Each difference is split into the parts of its seed, of its test row, and of both.
The part of a seed is multiplied by a random normal number, and the other parts by 1 or -1. The same
factors are used for all hypotheses, which share the answers of a reference. A metric must be a mean
over test rows, such as ``log_mae``.
"""

import argparse
from collections.abc import Mapping, Sequence
from math import sqrt
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mm_numeric.comparison.hypotheses import Hypothesis
from mm_numeric.comparison.rows import compared_rows, read_comparison, stated_hypotheses
from mm_numeric.comparison.selection import SELECTION, chosen_rows, read_selection
from mm_numeric.comparison.summary import read_run_scores, read_runs
from mm_numeric.config.decoding import GREEDY
from mm_numeric.config.schema import Config
from mm_numeric.evaluation.metrics.bootstrap import group_numbers, sample_metrics
from mm_numeric.evaluation.metrics.intervals import holm, seed_interval, smallest_effect
from mm_numeric.evaluation.scores import Scores

Answers = Mapping[tuple[str, str], Sequence[Scores]]
"""Maps (row of the table, decoding rule) to the scores of each seed."""

EXPERIMENTS, RESAMPLES = 2000, 500


class Differences(NamedTuple):
    """The paired differences of the hypotheses of a family."""

    of_rows: NDArray[np.float64]
    """[hypotheses, seeds, test rows]."""

    groups: NDArray[np.int64]
    """Number of the group of each test row, such as its image, from 0."""

    references: NDArray[np.float64]
    """[hypotheses] mean of the metric over the seeds of the row that each is compared with."""


def tuned_answers(config: Config) -> Answers:
    """Return the scores of the best trial of each row on ``compare.select_on``."""
    rows = compared_rows(config)
    selection = read_selection(config, rows)
    if selection is None:
        raise SystemExit("The tuning is not finished: run `mm-numeric compare` with --seeds.")
    folder = Path(config.comparison.output_dir)
    return {
        (row.name, GREEDY): [
            read_run_scores(folder / f"seed{seed}" / selection.best(row.trials).name / SELECTION)
            for seed in config.comparison.tune_seeds
        ]
        for row in rows
    }


def differences(stated: Sequence[Hypothesis], answers: Answers) -> Differences:
    """Return the differences of a family; raise ValueError if a metric is not a mean over rows."""
    found, references, groups = [], [], answers[stated[0].other][0].groups
    for own in stated:
        scores = {key: answers[key] for key in (own.better, own.other)}
        reported = [
            one for one in scores[own.other][0].metrics_on_rows if one.metric.name == own.metric
        ]
        columns = {key: [one.columns for one in seeds] for key, seeds in scores.items()}
        (samples,) = sample_metrics(reported, columns, groups, resamples=2)
        apart = samples[own.better] - samples[own.other]
        of_rows = apart.of_rows()
        if not np.allclose(of_rows.mean(axis=1), apart.values):
            raise ValueError(f"{own.metric} is not a mean over test rows")
        found.append(of_rows)
        references.append(np.mean(samples[own.other].values))
    return Differences(np.stack(found), group_numbers(groups), np.array(references))


def family_error(own: Differences, seeds: int, rng: np.random.Generator) -> float:
    """Return the share of simulated experiments without effect that have a clear difference."""
    counts = np.bincount(own.groups)
    drawn = rng.multinomial(len(counts), np.full(len(counts), 1 / len(counts)), size=RESAMPLES)
    weights = drawn[:, own.groups].T.astype(np.float64)
    weights /= weights.sum(axis=0)
    mean = own.of_rows.mean(axis=(1, 2), keepdims=True)
    of_seeds = own.of_rows.mean(axis=2, keepdims=True) - mean
    of_both = own.of_rows.mean(axis=1, keepdims=True) - mean
    rest = own.of_rows - mean - of_seeds - of_both
    known = own.of_rows.shape[1]
    spread = sqrt(
        known / (known - 1)
    )  # seeds differ by less from their own mean than from the true
    wrong = 0
    for _ in range(EXPERIMENTS):
        at = np.arange(seeds) % known
        signs = rng.choice([-1.0, 1.0], (seeds + 1, len(counts)))[:, own.groups]
        simulated = spread * of_seeds[:, at] * rng.normal(size=(seeds, 1))
        simulated = simulated + of_both * signs[-1] + spread * rest[:, at] * signs[:-1]
        p_values = {
            i: seed_interval(values.mean(axis=1), values @ weights).p
            for i, values in enumerate(simulated)
        }
        wrong += min(holm(p_values).values()) <= 0.05
    return wrong / EXPERIMENTS


def main() -> None:
    """Print a line for each family."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("plan", help="config of the comparison")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--results", action="store_true", help="use the finished runs")
    args = parser.parse_args()
    config = read_comparison(args.plan, args.overrides)
    folder, seeds = Path(config.comparison.output_dir), len(config.comparison.seeds)
    answers = (
        read_runs(config, chosen_rows(config), folder) if args.results else tuned_answers(config)
    )
    families: dict[str, list[Hypothesis]] = {}
    for own in stated_hypotheses(config):
        if own.better in answers and own.other in answers:
            families.setdefault(own.family, []).append(own)
    for family, stated in families.items():
        try:
            own = differences(stated, answers)
        except ValueError as error:
            print(f"{family}: not simulated, because {error}")
            continue
        deviations = own.of_rows.mean(axis=2).std(axis=1, ddof=1)
        error = family_error(own, seeds, np.random.default_rng(0))
        print(f"{family}: {len(stated)} hypotheses, {seeds} seeds; family error {error:.3f}")
        for metric in dict.fromkeys(one.metric for one in stated):
            these = [i for i, one in enumerate(stated) if one.metric == metric]
            deviation = sqrt((deviations[these] ** 2).mean())
            found = smallest_effect(deviation / sqrt(seeds), seeds - 1, len(stated))
            print(
                f"  {metric}: {own.references[these].mean():.2g} of the references, standard "
                f"deviation {deviation:.2g}, findable {found:.2g}"
            )


if __name__ == "__main__":
    main()
