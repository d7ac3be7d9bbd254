"""Print what the runs of ./scripts/demo show, what they do not show, and the next command."""

import argparse
from pathlib import Path

from mm_numeric.config.decoding import GREEDY
from mm_numeric.evaluation.metrics.intervals import ENOUGH_SEEDS
from mm_numeric.evaluation.report.results import Comparison, read_comparison


def main() -> None:
    """Print the lines of the comparison in a folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="output folder of ./scripts/demo")
    folder = parser.parse_args().folder
    print("\n" + "\n".join(lines(read_comparison(folder), folder)))


def lines(found: Comparison, folder: Path) -> list[str]:
    """Return lines on what was compared, the effects of rule and loss, and the next command.

    A rule is clear if it is better than greedy decoding in every run. A loss is not clear with
    fewer than five seeds.
    """
    metric, summary = found.metrics[0], found.summary
    names, seeds, rules = summary["objectives"], summary["seeds"], [*_rules(found)]
    sign = 1 if metric.higher_is_better else -1
    best = max(names, key=lambda name: sign * _value(found, name, GREEDY))
    gains = {
        (name, rule): [
            sign * (after - before)
            for before, after in zip(
                _seeds(found, name, GREEDY), _seeds(found, name, rule), strict=True
            )
        ]
        for name in names
        for rule in rules[1:]
    }
    better = sum(gain > 0 for own in gains.values() for gain in own)
    runs = sum(map(len, gains.values()))
    largest = max(gains, key=lambda key: sum(gains[key]))
    before, after = (metric.value(_value(found, largest[0], rule)) for rule in (GREEDY, largest[1]))
    spread = max(max(own) - min(own) for own in (_seeds(found, name, GREEDY) for name in names))
    most = "reads most clocks" if sign > 0 else f"has the smallest {metric.label}"
    differ = str(metric.value(spread)).replace("%", " points")
    clocks = str(summary["facts"]["test rows"]).partition(" ")[0]
    again = f'./scripts/demo "compare.seeds={[*range(ENOUGH_SEEDS)]}" compare.output_dir={folder}'
    return [
        f"Compared: {len(names)} losses ({', '.join(names)}), decoded by {' and '.join(rules)}, on "
        f"{len(seeds)} seeds and {clocks} test clocks: {metric.label}.",
        f"{'Clear' if better == runs else 'Not clear'}: the rule. {rules[1].capitalize()} decoding "
        f"is better in {better} of {runs} runs, most for {largest[0]}: {before}, then {after}.",
        f"{'Not clear' if len(seeds) < ENOUGH_SEEDS else 'See the report'}: the loss. {best} "
        f"{most} in these runs ({metric.value(_value(found, best, GREEDY))}, greedily), but "
        f"the seeds of one loss differ by up to {differ}.",
        f"Next, with {ENOUGH_SEEDS} seeds (the finished ones are kept): {again}",
    ]


def _rules(found: Comparison) -> dict[str, object]:
    return next(iter(found.summary["decoding"].values()))


def _value(found: Comparison, name: str, rule: str) -> float:
    return float(found.summary["decoding"][name][rule][found.metrics[0].name]["value"])


def _seeds(found: Comparison, name: str, rule: str) -> list[float]:
    return found.summary["decoding"][name][rule][found.metrics[0].name]["seeds"]


if __name__ == "__main__":
    main()
