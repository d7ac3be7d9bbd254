"""Print the mean number of tokens of an answer, next to the first metrics, for each row.

    python scripts/experiments/answer_tokens.py runs/location_tokens

The greedy answers of a finished comparison are tokenised as in training, with the end token. Each
number is a mean over the seeds, with the smallest and the largest one in parentheses.
"""

import argparse
from pathlib import Path

from mm_numeric.inference.generate import read_model
from mm_numeric.io.files import read_rows
from mm_numeric.models.loading import load_family
from mm_numeric.runs.folder import PREDICTIONS, RESULTS
from mm_numeric.runs.results_file import TASK, read_sections


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    runs: dict[str, list[Path]] = {}
    for run in sorted(parser.parse_args().folder.glob("seed*/*/")):
        if (run / RESULTS).is_file():
            runs.setdefault(run.name, []).append(run)
    for name, folders in runs.items():
        columns = {"tokens": [mean_tokens(run) for run in folders]}
        for run in folders:
            metrics = read_sections(run / RESULTS)[TASK]["metrics"]
            for metric in list(metrics)[:3]:
                columns.setdefault(metric, []).append(metrics[metric]["value"])
        cells = (
            f"{metric} {sum(own) / len(own):.3f} ({min(own):.3f} to {max(own):.3f})"
            for metric, own in columns.items()
        )
        print(f"{name:<20} {'  '.join(cells)}")


def mean_tokens(run: Path) -> float:
    """Return the mean length of the answers of a run, in tokens."""
    model = read_model(run, None, trust_remote_code=False)
    family = load_family(model.config, model.source)
    answers = [row["text"] for _, row in read_rows(run / PREDICTIONS)]
    return sum(len(family.answer(text).ids) for text in answers) / len(answers)


if __name__ == "__main__":
    main()
