r"""Fine-tune a small detector on repeated boxes, and print what predict.stop_duplicates changes.

    mm-numeric train detection_tiny task.order=random data.train.synthetic.most=3 \
        data.train.synthetic.rows=8000 trainer.max_steps=800 trainer.output_dir=runs/detector
    python scripts/repeated_boxes.py runs/detector runs/repeated

Half of the rows list their last object two to ten times, as rows of merged annotation files do, so
that greedy answers repeat it until the token limit. The 100 test rows are clean. The first command
takes 200 seconds of processor time, and the second one less; a finished run is kept.
"""

import argparse
import json
import random
import time
from pathlib import Path

from mm_numeric import predict, read_config, score, train
from mm_numeric.config.data import listed
from mm_numeric.data.examples import generated_rows
from mm_numeric.io.files import read_rows, write_text
from mm_numeric.runs.folder import FINISHED, MODEL, read_run

WAYS = {
    "as generated": {},
    "stop_duplicates: 0.9": {"stop_duplicates": 0.9},
    "stop_duplicates: 0.7": {"stop_duplicates": 0.7},
    "max_objects: 2": {"max_objects": 2},
    "constrain": {"constrain": True},
    "constrain, stop_duplicates: 0.9": {"constrain": True, "stop_duplicates": 0.9},
}
METRICS = ("duplicates", "truncated", "precision_at_0.5", "recall_at_0.5", "f1_at_0.5", "ap")


def repeated(rows: Path, out: Path) -> None:
    """Write rows of circles and squares, half of which repeat their last object."""
    draw, lines = random.Random(0), []
    for _, row in read_rows(rows):
        asked = [item for item in row["instances"] if item["label"] in ("circle", "square")]
        asked.sort(key=lambda item: (item["box"][1], item["box"][0]))
        if draw.random() < 0.5:
            asked += asked[-1:] * draw.randint(1, 9)
        lines.append(json.dumps({**row, "instances": asked}) + "\n")
    out.parent.mkdir(parents=True, exist_ok=True)
    write_text(out, "".join(lines))


def main() -> None:
    """Train, predict in each way, and print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("detector", type=Path, help="a finished run of detection_tiny")
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    folder, before = arguments.folder, read_run(arguments.detector)
    (source,) = listed(before.data.train)
    file = generated_rows(source, Path(before.data.cache))
    rows = folder / "train.jsonl"
    repeated(file, rows)
    config = read_config("detection_tiny", [
        f"data.cache={before.data.cache}", f"data.train={{path: {rows}, images: {file.parent}}}",
        "task.order=rows", f"data.test.synthetic.most={source.synthetic.most}", "evaluate=null",
        f"model.name={arguments.detector / MODEL}", f"trainer.output_dir={folder / 'run'}",
        "trainer.max_steps=150", "trainer.learning_rate=3.0e-4",
    ])  # fmt: skip
    if not (config.output_dir / FINISHED).exists():
        train(config)
    print("| predict | longest run | duplicates per answer | truncated | precision@0.5 "
          "| recall@0.5 | F1@0.5 | AP | seconds of processor time |")  # fmt: skip
    print("|" + "---|" * 9)
    for number, (name, settings) in enumerate(WAYS.items()):
        out = folder / f"{number}.jsonl"
        out.unlink(missing_ok=True)
        start = time.process_time()
        predict(config.output_dir, None, out, limit=100, **settings)
        seconds = time.process_time() - start
        scores = score(out, partial=True, write=False)
        (longest,) = (n for what, n in scores.counts().items() if "run" in what)
        values = [scores.metrics()[metric]["value"] for metric in METRICS]
        shown = [f"{values[0]:.2f}", *(f"{100 * value:.1f} %" for value in values[1:])]
        print("|", " | ".join([name, str(longest), *shown, f"{seconds:.0f}"]), "|")


if __name__ == "__main__":
    main()
