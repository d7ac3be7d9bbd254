"""Print the metrics of guesses for a config's test rows, made from answers of its training rows.

    python scripts/guesses.py counting_tiny
    python scripts/guesses.py temporal_spans_tiny --metric mean_iou

The kinds of guesses are those of ``mm_numeric.evaluation.guesses``. For any predictions file,
``mm-numeric score`` prints guesses that are made from answers of the test rows.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # from a checkout, whether installed or not

from mm_numeric.config.reader import read_config
from mm_numeric.evaluation.check_data.check import check_data
from mm_numeric.evaluation.guesses import GuessedRows, guess_metrics
from mm_numeric.evaluation.score_text import in_unit


def main() -> None:
    """Print the metric of each kind of guess."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("config", help="a config with training and test rows")
    parser.add_argument("settings", nargs="*", help="settings to change, as for mm-numeric train")
    parser.add_argument("--rows", type=int, default=400, help="training and test rows to read")
    parser.add_argument(
        "--metric", help="name of the metric, such as mean_iou (default: the first)"
    )
    args = parser.parse_args()
    try:
        report = check_data(read_config(args.config, args.settings), limit=args.rows)
    except (OSError, ValueError) as error:
        sys.exit(f"guesses: {error}")
    train, test = (source.examples for source in report.sources)
    scorer = report.sources[1].scorer
    assert scorer is not None
    metrics = {metric.name: metric for metric in scorer.metrics}
    if args.metric is not None and args.metric not in metrics:
        parser.error(f"--metric is one of {', '.join(metrics)}, not {args.metric!r}")
    metric = metrics.get(args.metric, scorer.metrics[0])
    rows = [*train, *test]
    guessed = GuessedRows(
        scorer=scorer,
        task=report.config.task,
        targets=[row.example.answer for row in rows],
        frames=[row.frame for row in rows],
        sizes_px=[row.size_px for row in rows],
        prompts=[row.example.prompt for row in rows],
    )
    for kind, values in guess_metrics(guessed, train_rows=len(train)).items():
        print(f"{kind:30} {metric.label} {in_unit(values[metric.name], metric.unit)}")


if __name__ == "__main__":
    main()
