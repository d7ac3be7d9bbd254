"""Simulated comparisons of two objectives, and how often intervals contain the true difference.

    python tests/helpers/interval_coverage.py    # from the repository root, with PYTHONPATH=.

prints the coverage of three kinds of intervals, and how often three hypotheses without any effect
have a corrected p-value of at most .05. Each row of a comparison is right under one of the
objectives only (+1 or -1) in a share of the cases, which depends on a difference of
3 points, the seed (normal, 3 points), and how much the row itself favours an objective.
"""

import numpy as np

from mm_numeric.evaluation.metrics.intervals import holm, seed_interval, student_quantile

TRUE, ROWS, BETWEEN_SEEDS = 0.03, 500, 0.03
SETTINGS = {
    "seeds alone": {"discordant": 0.12, "row_effect": 0.0},
    "rows, too": {"discordant": 0.25, "row_effect": 0.1},
    "rows above all": {"discordant": 0.25, "row_effect": 0.15},
}
"""Share of rows that only one objective answers correctly, and the spread of it between rows."""


def simulated(seeds, repetitions, *, discordant, row_effect, between=BETWEEN_SEEDS, true=TRUE):
    """Yield (differences of the seeds, [seeds]; differences on resampled rows, [seeds, 300])."""
    rng = np.random.default_rng(0)
    # How often each resample draws each row: the same resamples for every comparison, for speed.
    counts = np.random.default_rng(1).multinomial(ROWS, [1 / ROWS] * ROWS, size=300)
    shares = counts.T / ROWS
    for _ in range(repetitions):
        of_seed = rng.normal(0, between, (seeds, 1))
        mean = true + of_seed + rng.choice([-row_effect, row_effect], ROWS)
        drawn = rng.random((seeds, ROWS))
        gained, lost = drawn < (discordant + mean) / 2, drawn > 1 - (discordant - mean) / 2
        differences = gained.astype(float) - lost
        yield differences.mean(axis=1), differences @ shares


def chosen(values, draws):
    """Return the interval of the library."""
    return seed_interval(values, draws)[:2]


def student(values, draws):
    """Return Student's t over seeds, which takes the test rows for given."""
    width = student_quantile(len(values) - 1) * values.std(ddof=1) / len(values) ** 0.5
    return values.mean() - width, values.mean() + width


def bootstrap(values, draws):
    """Return the percentiles of a bootstrap over seeds and rows, used before."""
    at = np.random.default_rng(1).integers(len(values), size=(draws.shape[1], len(values)))
    means = np.take_along_axis(draws.T, at, axis=1).mean(axis=1)
    return tuple(np.percentile(means, [2.5, 97.5]))


def coverage(interval, seeds, repetitions, **setting):
    """Return the share of simulated comparisons whose interval contains the true difference."""
    found = [interval(*own) for own in simulated(seeds, repetitions, **setting)]
    return np.mean([low <= TRUE <= high for low, high in found])


def family_error(seeds, families, *, hypotheses=3, **setting):
    """Return the share of families of hypotheses without any effect that have a clear one."""
    runs = simulated(seeds, families * hypotheses, true=0.0, **setting)
    wrong = 0
    for _ in range(families):
        p = {at: seed_interval(*next(runs)).p for at in range(hypotheses)}
        wrong += min(holm(p).values()) <= 0.05
    return wrong / families


def main():
    """Print the coverage of each interval for 2, 3, 5 and 10 seeds, and the error of families."""
    for name, setting in SETTINGS.items():
        for seeds in (2, 3, 5, 10):
            shares = [
                f"{interval.__name__} {coverage(interval, seeds, 2000, **setting):.3f}"
                for interval in (bootstrap, student, chosen)
            ]
            print(f"{name}, {seeds} seeds: {', '.join(shares)}")
        for seeds in (5, 10):
            for between in (0.0, BETWEEN_SEEDS):
                error = family_error(seeds, 1000, between=between, **setting)
                print(f"{name}, {seeds} seeds of spread {between}: family error {error:.3f}")


if __name__ == "__main__":
    main()
