"""Plant faults in the labels of synthetic rows, and count how many of them a ranking finds.

    python scripts/experiments/planted_faults.py FOLDER [--cleanlab /tmp/cl]

For each task, one tiny model is trained on rows of which 2 % have a fault of each kind. It then
ranks 1,000 other rows, in one trial for each kind, of which 5 % have a fault of this kind. The
table has the share of faults among the 50 first rows of a ranking: that of ``mm-numeric labels``,
by improbability (the mean loss of a token), summed loss or distance alone, and for boxes by
ObjectLab of cleanlab, which gets the same answers.
"""

import argparse
import json
import random
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mm_numeric.answers import HALF_DAY_MINUTES, ClockTime
from mm_numeric.api import train
from mm_numeric.config.data import DataSource
from mm_numeric.config.reader import read_config
from mm_numeric.config.schema import Config
from mm_numeric.data.examples import generated_rows
from mm_numeric.io.files import read_rows, write_text
from mm_numeric.labels.rank import RankedLabel, judged_labels, suspicion
from mm_numeric.runs.folder import is_resumable
from mm_numeric.synthetic.clock_faces import Clocks
from mm_numeric.synthetic.scenes import Objects

Row = dict[str, Any]
Values = NDArray[np.float64]
Plant = Callable[[Row, random.Random], Row | None]
"""Returns a row with a planted fault; None if the row cannot have one."""

CLASSES = ("circle", "square")
TRAINED, RANKED, TEST_SHARE, TRAIN_SHARE = 12_000, 1_000, 0.05, 0.02


def _shifted(low: float, high: float) -> Plant:
    def plant(row: Row, rng: random.Random) -> Row:
        hour, minute = map(int, row["time"].split(":"))
        minutes = ClockTime(hour, minute).minutes + round(rng.uniform(low, high))
        return {**row, "time": str(ClockTime.from_minutes(minutes))}

    return plant


def _noisy(row: Row, rng: random.Random) -> Row:
    shift = 0
    while shift == 0:
        shift = round(rng.gauss(0, 5))
    return _shifted(shift, shift)(row, rng)


def _one_object(change: Callable[[Row, random.Random], Row | None]) -> Plant:
    """Return a function that changes one object of a row; None removes the object."""

    def plant(row: Row, rng: random.Random) -> Row | None:
        asked = [
            i for i, own in enumerate(row["instances"]) if own["label"] in ("circle", "square")
        ]
        if not asked:
            return None
        at = rng.choice(asked)
        changed = change(row["instances"][at], rng)
        if changed == row["instances"][at]:
            return None
        others = [own for i, own in enumerate(row["instances"]) if i != at]
        found = [*others[:at], changed, *others[at:]] if changed else others
        return {**row, "instances": found}

    return plant


def _turned(item: Row, _: random.Random) -> Row:
    x1, y1, x2, y2 = item["box"]
    return {**item, "box": [y1, x1, y2, x2]}


def _moved(item: Row, rng: random.Random) -> Row:
    x1, y1, x2, y2 = item["box"]
    dx, dy = (rng.choice([-1, 1]) * 0.35 * (end - start) for start, end in ((x1, x2), (y1, y2)))
    dx, dy = min(max(dx, -x1), 84 - x2), min(max(dy, -y1), 84 - y2)
    return {**item, "box": [x1 + dx, y1 + dy, x2 + dx, y2 + dy]}


def _renamed(item: Row, _: random.Random) -> Row:
    return {**item, "label": "square" if item["label"] == "circle" else "circle"}


KINDS: Mapping[str, Mapping[str, Plant]] = {
    "clock": {
        "random time": _shifted(1, HALF_DAY_MINUTES - 1),
        "10 to 30 minutes late": _shifted(10, 30),
        "noise of 5 minutes": _noisy,
    },
    "detection": {
        "missing box": _one_object(lambda _, __: None),
        "x and y exchanged": _one_object(_turned),
        "moved by a third": _one_object(_moved),
        "other class": _one_object(_renamed),
    },
}
GENERATORS = {
    "clock": (Clocks(rows=TRAINED, seed=1), Clocks(rows=RANKED, seed=2)),
    "detection": tuple(
        Objects(rows=rows, seed=seed, width_px=84, height_px=84, least=2, most=2, large=1.0)
        for rows, seed in ((TRAINED, 1), (RANKED, 2))
    ),
}
RATES = {"clock": 1.0e-3, "detection": 2.0e-3}
STEPS = {"clock": 1300, "detection": 800}


def planted(rows: list[Row], plant: Plant, share: float, rng: random.Random) -> dict[str, Row]:
    """Plant a fault in a share of the rows, and return id -> changed row."""
    found: dict[str, Row] = {}
    for row in rng.sample(rows, len(rows)):
        changed = plant(row, rng)
        if changed is not None:
            found[row["id"]] = changed
        if len(found) == round(share * len(rows)):
            break
    return found


def exact_rows(task: str, at: int, cache: Path) -> list[Row]:
    """Return the generated rows, with absolute paths of their images."""
    file = generated_rows(DataSource(synthetic=GENERATORS[task][at]), cache)
    return [
        {**row, "image": str(file.parent.resolve() / row["image"])} for _, row in read_rows(file)
    ]


def write_lines(path: Path, rows: list[Row]) -> Path:
    """Write rows as JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, "".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def trained(task: str, folder: Path) -> Config:
    """Train the model of a task on rows with faults of all kinds, unless it is trained."""
    rows, rng, changed = exact_rows(task, 0, folder / "cache"), random.Random(0), dict[str, Row]()
    for plant in KINDS[task].values():
        changed |= planted(rows, plant, TRAIN_SHARE, rng)
    file = write_lines(folder / task / "train.jsonl", [changed.get(r["id"], r) for r in rows])
    config = read_config(
        f"{task}_tiny",
        [
            f"data.train={{path: {file}}}",
            f"data.test.synthetic.rows={RANKED}",
            f"data.cache={folder / 'cache'}",
            "objective=ce",
            "evaluate=null",
            f"trainer.output_dir={folder / task / 'run'}",
            f"trainer.max_steps={STEPS[task]}",
            f"trainer.learning_rate={RATES[task]}",
            "trainer.use_cpu=true",
            "compare=null",
        ],
    )
    if not (config.output_dir / "run.json").is_file():
        train(config, resume=is_resumable(config.output_dir))
    return config


def judged(task: str, folder: Path) -> tuple[dict[str, dict[str, str]], dict[str, RankedLabel]]:
    """Return kind of fault -> id of a row -> id of its copy with the fault; and id -> label."""
    config = trained(task, folder)
    rows, rng = exact_rows(task, 1, folder / "cache"), random.Random(1)
    copies, names = [*rows], {}
    for kind, plant in KINDS[task].items():
        changed = planted(rows, plant, TEST_SHARE, rng)
        names[kind] = {own: f"{own}/{kind}" for own in changed}
        copies += [{**row, "id": names[kind][own]} for own, row in changed.items()]
    source = DataSource(path=str(write_lines(folder / task / "rows.jsonl", copies)))
    labels = judged_labels(config.output_dir, source, folder / task)
    return names, {own.example.id: own for own in labels}


def cleanlab_scores(labels: list[RankedLabel], answers: Mapping[str, Row]) -> Values:
    """Return 1 - the score of ObjectLab in cleanlab, for lines of predictions.jsonl."""
    from cleanlab.object_detection.rank import get_label_quality_scores

    given, predicted = [], []
    for own in labels:
        items = own.example.answer.items
        given.append({
            "bboxes": np.array([[*item.shape.points[0], *item.shape.points[1]] for item in items])
            .reshape(-1, 4),
            "labels": np.array([CLASSES.index(item.label) for item in items], np.int64),
        })  # fmt: skip
        line = answers[own.example.id]
        found = [
            [[*item["box"], score]
             for item, score in zip(line["parsed"] or [], line.get("scores", []), strict=True)
             if item["label"] == name]
            for name in CLASSES
        ]  # fmt: skip
        predicted.append([np.array(boxes, np.float64).reshape(-1, 5) for boxes in found])
    scores: Values = 1 - get_label_quality_scores(given, predicted, verbose=False)
    return scores


def precision(scores: Values, bad: NDArray[np.bool_]) -> float:
    """Return the share of faults among the largest scores, as many as there are faults."""
    order = np.random.default_rng(0).permutation(len(bad))  # equal scores in a random order
    order = order[np.argsort(-scores[order], kind="stable")]
    return float(bad[order[: bad.sum()]].mean())


def main() -> None:
    """Print the precision at the number of planted faults."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cleanlab", help="folder with cleanlab and what it needs")
    arguments = parser.parse_args()
    sys.path += [arguments.cleanlab] if arguments.cleanlab else []
    for task, kinds in KINDS.items():
        names, labels = judged(task, arguments.folder)
        files = (arguments.folder / task).glob("predictions.*.jsonl")
        answers = {row["id"]: row for file in files for _, row in read_rows(file)}
        for kind in kinds:
            ids = [names[kind].get(own, own) for own in labels if "/" not in own]
            trial, bad = [labels[own] for own in ids], np.array(["/" in own for own in ids])
            columns = {
                "labels": suspicion(trial),
                "improbability": np.array([own.improbability for own in trial]),
                "summed loss": np.array([own.improbability * own.tokens for own in trial]),
                "distance": np.array([own.distance for own in trial]),
            }
            if task == "detection" and arguments.cleanlab:
                columns["cleanlab"] = cleanlab_scores(trial, answers)
            shares = "  ".join(f"{n} {precision(v, bad):.2f}" for n, v in columns.items())
            print(f"{task:10} {kind:22} {bad.sum()} of {len(bad)}  {shares}", flush=True)


if __name__ == "__main__":
    main()
