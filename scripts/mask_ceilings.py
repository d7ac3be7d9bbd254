"""Print how well polygons of few corners cover the masks of a COCO file.

    python scripts/mask_ceilings.py instances_val2017.json
    python scripts/mask_ceilings.py instances_val2017.json --coordinates qwen2_5_vl --points 8 24

Correct answers are formatted, parsed and scored against the masks, as for the ceilings that
``mm-numeric check-data`` prints.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # from a checkout, whether installed or not

from mm_numeric.evaluation.metrics.detection import LABELLED_DETECTION, scores_by_iou
from mm_numeric.geometry.coordinates import COORDINATES
from mm_numeric.geometry.frames import Frame, Resize
from mm_numeric.importers.coco import Coco
from mm_numeric.importers.prepare import prepare
from mm_numeric.tasks.detection import Detection

_METRICS = ("f1_at_0.5", "f1_at_0.75", "f1_at_0.9", "mean_iou_of_pairs", "ap")


def main() -> None:
    """Print a line for each number of corners."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("instances", type=Path, help="an instances file of COCO")
    parser.add_argument("--points", type=int, nargs="+", default=[8, 12, 16, 24, 48])
    parser.add_argument("--coordinates", choices=sorted(COORDINATES), default="qwen3_vl")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.jsonl"
        prepare("coco", Coco(shape="polygon"), [args.instances], path)
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    print("max_points", *(name.rjust(18) for name in _METRICS), "  characters per image")
    for points in args.points:
        values = _ceiling(rows, points, args.coordinates)
        print(f"{points:10}", *(f"{100 * v:18.2f}" for v in values[:-1]), f"{values[-1]:22.0f}")


def _ceiling(rows: list[dict[str, object]], points: int, coordinates: str) -> list[float]:
    task = Detection(shape="polygon", max_points=points)
    targets, answers, characters = [], [], 0
    for example in task.examples(((str(row["id"]), row) for row in rows), training=False):
        size = example.size_px
        frame = Frame(*size, Resize(kind="none").view(*size), COORDINATES[coordinates])
        text = task.format(example.answer, frame).text
        targets.append(example.answer)
        answers.append(task.read(text, frame))
        characters += len(text)
    columns = LABELLED_DETECTION.judge(answers, targets)
    found = {metric.name: float(metric.value(columns)) for metric in LABELLED_DETECTION.metrics}
    ranking = LABELLED_DETECTION.ranked.rank(answers, targets, scores_by_iou(answers, targets))
    found["ap"] = float(ranking.metrics["ap"])
    return [*(found[name] for name in _METRICS), characters / len(rows)]


if __name__ == "__main__":
    main()
