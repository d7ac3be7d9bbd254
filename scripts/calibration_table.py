"""Train small models, calibrate them, and print their gaps before and after.

    python scripts/calibration_table.py runs/calibration                   all models; hours
    python scripts/calibration_table.py runs/calibration clock_rows_750    one of them

The gap is the mean confidence minus the share of correct answers, on test rows. The calibration is
fitted to 500 other rows with clean labels, without the questions that the model was trained on. The
test rows of ``sums`` are 1,000 other rows, also without training questions, which short sums often
are. ``clock_late`` has training labels that are late by an exponential of mean 10 minutes, and its
answers are decoded by three rules. Finished work is kept: the same command does the rest, and
prints the table of all finished models.
"""

import argparse
import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mm_numeric import calibrate, predict, read_config, score, train
from mm_numeric.answers import ClockTime
from mm_numeric.config.data import listed
from mm_numeric.data.examples import generated_rows
from mm_numeric.evaluation.metrics.calibration import gap_text
from mm_numeric.inference.calibrate import known_ids
from mm_numeric.io.files import read_rows, write_text
from mm_numeric.runs.folder import CALIBRATION, FINISHED, PREDICTIONS, RESULTS, decoded_name

CLOCK, TRAIN = ["trainer.max_steps=1200"], "data.train.synthetic"
MODELS: dict[str, tuple[str, str, list[str]]] = {
    **{
        f"clock_rows_{rows}": ("clock_tiny", "median", [*CLOCK, f"{TRAIN}.rows={rows}"])
        for rows in (750, 1500, 3000, 12000)
    },
    **{
        f"clock_noise_{noise}": (
            "clock_tiny",
            "median",
            [*CLOCK, f"{TRAIN}.noise_minutes={noise}"],
        )
        for noise in (0, 2, 10, 20)
    },
    "clock_late": ("clock_tiny", "median", [*CLOCK, f"{TRAIN}.noise_minutes=0"]),
    "sums": ("arithmetic_tiny", "median", ["trainer.max_steps=1900"]),
    "boxes": ("grounding_tiny", "mbr", []),
    "text_boxes": ("text_detection_tiny", "mbr", []),
}
"""The config, the decoding rule and the changed settings of each model. Clocks have 12,000 rows and
labels with noise of 5 minutes, unless the name says otherwise."""

LATE_MINUTES = 10.0
LATE_RULES = ("greedy", "median", {"for": "quantile_0.3"})


def late_rows(rows: Path, out: Path) -> None:
    """Write synthetic clocks whose labels are late by an exponential of mean 10 minutes."""
    draw, lines = random.Random(0), []
    for _, row in read_rows(rows):
        minutes = ClockTime(*map(int, str(row["time"]).split(":"))).minutes
        late = ClockTime.from_minutes(round(minutes + draw.expovariate(1 / LATE_MINUTES)))
        lines.append(json.dumps({**row, "time": str(late)}) + "\n")
    write_text(out, "".join(lines))


def make(folder: Path, name: str) -> None:
    """Train, calibrate and score one model, unless this is done already."""
    base, rule, changes = MODELS[name]
    run, cache = folder / name, folder / "cache"
    changes = [*changes, "objective=ce", f"trainer.output_dir={run}", f"data.cache={cache}"]
    config = read_config(base, changes)
    test = config.data.test
    others = replace(test, synthetic=replace(test.synthetic, rows=500, seed=3))
    fresh = generated_rows(others, cache)
    if name == "clock_late":
        (source,) = listed(config.data.train)
        rows = generated_rows(source, cache)
        late = rows.with_name("late.jsonl")
        late_rows(rows, late)
        config = read_config(base, [*changes, f"data.train={{path: {late}}}"])
    if not (run / FINISHED).is_file():
        train(config, resume=run.is_dir())
    if not (run / decoded_name(CALIBRATION, rule)).is_file():
        calibrate(run, fresh, decode=rule)
    data = None
    if name == "sums":
        others = replace(test, synthetic=replace(test.synthetic, rows=1000, seed=4))
        data = generated_rows(others, cache).with_name("new.jsonl")
        known = known_ids(config, others) or set()
        rows = [row for _, row in read_rows(data.with_name("rows.jsonl")) if row["id"] not in known]
        write_text(data, "".join(json.dumps(row) + "\n" for row in rows))
    out = run / decoded_name(PREDICTIONS, rule)
    score(predict(run, data, out, decode=rule).path)
    for decode in LATE_RULES if name == "clock_late" else ():
        risk = decode if isinstance(decode, str) else decode["for"]
        score(predict(run, out=run / f"late.{risk}.jsonl", decode=decode).path)


def lines_of(folder: Path, name: str) -> Sequence[str]:
    """Return the lines of a model in the table, if it is there."""
    run, rule = folder / name, MODELS[name][1]
    path = run / decoded_name(RESULTS, rule)
    if not path.is_file():
        return []
    found = json.loads(path.read_text("utf-8"))["protocols"]["task"]["calibration"]
    raw, applied = found["raw"], run / decoded_name(CALIBRATION, rule)
    kind = json.loads(applied.read_text("utf-8"))["applied"]
    cells = [
        name, rule, f"{raw['right']:.3f}", f"{raw['mean_confidence']:.3f}", gap_text(raw["gap"]),
        f"{raw['ece']:.3f}", gap_text(found["gap"]), f"{found['ece']:.3f}", kind,
    ]  # fmt: skip
    lines = [f"| {' | '.join(cells)} |"]
    for path in sorted(run.glob("late.*.jsonl.results.json")):
        metrics = json.loads(path.read_text("utf-8"))["protocols"]["task"]["metrics"]
        within = 100 * metrics["within_5_minutes"]["value"]
        lines.append(f"{path.name.split('.jsonl')[0]}: {within:.1f} % within 5 minutes")
    return lines


def main() -> None:
    """Make the models, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("models", nargs="*", choices=[[], *MODELS], metavar="MODEL")
    arguments = parser.parse_args()
    folder: Path = arguments.folder
    for name in arguments.models or MODELS:
        make(folder, name)
    header = ["model", "rule", "correct", "confidence", "gap", "ECE", "gap after", "ECE after", ""]
    print(f"| {' | '.join(header)} |\n|{'---|' * len(header)}")
    for line in (line for name in MODELS for line in lines_of(folder, name)):
        print(line)


if __name__ == "__main__":
    main()
