"""Print the smallest effect that a planned comparison can find, from the runs of its tuning.

    python scripts/experiments/findable.py scripts/experiments/products.yaml [KEY=VALUE ...]

Each line is about a family of hypotheses with greedy decoding. Its standard deviation is that of
the paired differences between the best trials of the two rows of a hypothesis, over
``compare.tune_seeds``, pooled over the hypotheses. With ``compare.seeds``, a true difference of the
printed size would be found in 80 % of repetitions of the experiment, after the correction.
"""

import sys
from math import sqrt

from mm_numeric.comparison.rows import compared_rows, read_comparison
from mm_numeric.comparison.selection import read_selection
from mm_numeric.config.decoding import GREEDY
from mm_numeric.evaluation.metrics.intervals import smallest_effect


def main() -> None:
    """Print a line for each family."""
    config = read_comparison(sys.argv[1], sys.argv[2:])
    rows = compared_rows(config)
    selection = read_selection(config, rows)
    if selection is None:
        sys.exit("The tuning is not finished: run `mm-numeric compare` with --seeds and its seeds.")
    best = {row.name: selection.values[selection.best(row.trials).name] for row in rows}
    names = [metric.name for metric in selection.metrics]
    seeds = len(config.comparison.seeds)
    for group in config.comparison.hypotheses:
        if group.against is None or {*group.rules, group.against_rule or GREEDY} != {GREEDY}:
            continue
        at = names.index(group.metric)
        apart = [best[name][:, at] - best[group.against][:, at] for name in group.objectives]
        variance = sum(own.var(ddof=1) for own in apart) / len(apart)
        found = smallest_effect(sqrt(variance / seeds), seeds - 1, len(apart))
        against = best[group.against][:, at].mean()
        print(
            f"{group.family}: {len(apart)} hypotheses, {seeds} seeds, standard deviation "
            f"{sqrt(variance):.4f}; findable {group.metric} {found:.4f}, {found / against:.1%} of "
            f"{group.against} ({against:.4f})"
        )


if __name__ == "__main__":
    main()
