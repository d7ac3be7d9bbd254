"""Measure the time of scoring, and check that it grows linearly with the number of images.

    python scripts/benchmarks/bench_scoring.py
    python scripts/benchmarks/bench_scoring.py --images 2000 --repeats 5
    python scripts/benchmarks/bench_scoring.py --boxes 100000 1000000
    python scripts/benchmarks/bench_scoring.py --files-only --rows 100000 1000000

The images are synthetic, with five words each, most of them detected, and one wrong detection. Each
scorer is timed on n, 2n and 4n images; a linear cost has ratios near 2 and 4. Times are the best of
several rounds, in seconds of processor time, without reading files or bootstrap intervals.

ICDAR 2015 is also timed next to the loop over images, truths and detections of
``tests/helpers/reference_detection.py``. COCO AP is timed once for each of ``--boxes``, next to
pycocotools and, if it is installed, faster-coco-eval. Compare ratios of one run, not its seconds.

``--rows`` runs `mm-numeric score` on files of clock times, with intervals, in a process with one
thread, and prints its processor time and memory; ``--files-only`` does nothing else.
"""

import argparse
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # from a checkout, whether installed or not
sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "helpers"))

import numpy as np
from _bench_coco import compare_ap
from reference_detection import icdar2015

from mm_numeric.answers import Box, Instance, Instances, Polygon, Shape
from mm_numeric.evaluation.metrics.boxes import shape_ious
from mm_numeric.evaluation.metrics.detection import score_instances
from mm_numeric.evaluation.metrics.deteval import score_total_text
from mm_numeric.evaluation.metrics.polygon_iou import collect_shapes, overlapping_pairs

WORDS = 5


def quad(x: float, y: float, width: float, height: float, slant: float) -> Polygon:
    """Return a slanted quadrilateral."""
    corners = ((x, y), (x + width, y + slant), (x + width, y + height + slant), (x, y + height))
    return Polygon(corners)


def box(x: float, y: float, width: float, height: float, _: float) -> Box:
    """Return an upright box."""
    return Box(x, y, x + width, y + height)


def images(
    count: int, make: Callable[..., Shape], words: int = WORDS
) -> tuple[list[Instances], list[Instances]]:
    """Return predictions and targets."""
    draw = np.random.default_rng(0)
    sides: tuple[list[Instances], list[Instances]] = ([], [])
    for _ in range(count):
        places = draw.uniform((0, 0, 20, 8, -4), (1200, 700, 120, 40, 4), (words, 5))
        near = places + draw.normal(0, 1.5, places.shape)
        near[-1, :2] = draw.uniform(0, 700, 2)
        for side, rows in zip(sides, (near, places), strict=True):
            side.append(Instances(tuple(Instance(make(*row)) for row in rows.tolist())))
    return sides


def seconds(run: Callable[[], object], repeats: int) -> float:
    """Return the processor time of the fastest run, in seconds."""
    found = []
    for _ in range(repeats):
        start = time.process_time()
        run()
        found.append(time.process_time() - start)
    return min(found)


def growth(name: str, score: Callable[..., object], sizes: Sequence[int], repeats: int) -> None:
    """Print the times for all sizes and their ratios."""
    taken = []
    for size in sizes:
        predictions, targets = images(size, quad)
        taken.append(seconds(lambda p=predictions, t=targets: score(p, t), repeats))  # type: ignore[misc]
    ratios = " ".join(f"{each / taken[0]:6.2f}" for each in taken[1:])
    print(f"{name:<34}" + " ".join(f"{each:8.3f}" for each in taken) + f"   {ratios}")


def compare_with_loop(count: int, repeats: int) -> None:
    """Print the times of the ICDAR 2015 scorer and of a loop, and check that they agree."""
    predictions, targets = images(count, quad)
    ours = seconds(lambda: score_instances(predictions, targets), repeats)
    loop = seconds(lambda: icdar2015(predictions, targets), 1)
    columns = score_instances(predictions, targets)
    mine = [columns[name].tolist() for name in ("matched", "detected", "truths")]
    same = np.array_equal(np.array(mine).T, np.array(icdar2015(predictions, targets)))
    print(f"\nICDAR 2015 of {count} images, next to a loop; counts equal: {same}")
    print(f"  all columns of the scorer       {ours:8.3f}")
    print(f"  loop, ICDAR 2015 only           {loop:8.3f}   {loop / ours:6.2f} x ours")


def score_file(rows: int) -> None:
    """Print the processor time and the memory of `mm-numeric score` on a file of clock times."""
    draw = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "predictions.jsonl"
        with file.open("w", encoding="utf-8") as lines:
            for i in range(rows):
                hour, minute = draw.randint(1, 12), draw.randrange(60)
                near = draw.choice((minute, minute, (minute + draw.randrange(60)) % 60))
                text = f"{hour}:{near:02}" if draw.random() < 0.98 else "it is late"
                target = f"{hour}:{minute:02}"
                row = {"id": f"row-{i}", "image": f"images/{i}.png", "task": "clock"}
                lines.write(json.dumps({**row, "text": text, "target": target}) + "\n")
        one_thread = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "mm_numeric", "score", str(file)]
        with subprocess.Popen(
            command, env=one_thread, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with exit code {process.returncode}.")
    seconds, memory = used.ru_utime + used.ru_stime, used.ru_maxrss / 2**10
    print(f"{rows:>12,} clock times   {seconds:8.1f} s of processor time   {memory:8,.0f} MiB")


def time_scorers(options: argparse.Namespace) -> None:
    """Print the times of the scorers without files and intervals."""
    sizes = [options.images * factor for factor in (1, 2, 4)]
    head = " ".join(f"{size:>8}" for size in sizes)
    print(f"{f'images of {WORDS} quads':<34}{head}   2n / n 4n / n")
    growth("ICDAR 2015, F1, sizes", score_instances, sizes, options.repeats)
    growth("DetEval, Total-Text", score_total_text, sizes, options.repeats)

    each = 10
    predictions, targets = images(max(options.pairs // each**2, 1), box, each)
    detections, truths = (
        collect_shapes([[item.shape for item in image.items] for image in side])
        for side in (predictions, targets)
    )
    pairs = len(predictions) * each**2
    print(f"\n{pairs:,} pairs of boxes, {each} x {each} in {len(predictions):,} images")
    taken = seconds(lambda: overlapping_pairs(detections, truths), options.repeats)
    print(f"  intersections                   {taken:8.3f}")
    taken = seconds(lambda: score_instances(predictions, targets), options.repeats)
    print(f"  scored, all columns             {taken:8.3f}")
    a, b = (
        [item.shape for image in side for item in image.items] for side in (predictions, targets)
    )
    a, b = ((side * (options.pairs // len(side) + 1))[: options.pairs] for side in (a, b))
    taken = seconds(lambda: shape_ious(a, b), options.repeats)
    print(f"  {len(a):,} rows of one box each   {taken:8.3f}")
    compare_with_loop(options.images, options.repeats)
    for boxes in options.boxes:
        compare_ap(boxes)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=500, help="n (default: 500)")
    parser.add_argument(
        "--pairs", type=int, default=1_000_000, help="pairs of boxes (default: 1000000)"
    )
    parser.add_argument(
        "--boxes",
        type=int,
        nargs="*",
        default=[100_000, 1_000_000],
        metavar="N",
        help="detections of COCO AP (default: 100000 1000000)",
    )
    parser.add_argument(
        "--rows",
        type=int,
        nargs="*",
        default=[100_000],
        metavar="N",
        help="rows of the files of clock times (default: 100000)",
    )
    parser.add_argument("--files-only", action="store_true", help="score only these files")
    parser.add_argument("--repeats", type=int, default=3, help="timed rounds (default: 3)")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    print(f"{platform.processor() or platform.machine()}, load {load:.1f}, numpy {np.__version__}")
    if not options.files_only:
        time_scorers(options)
    for rows in options.rows:
        score_file(rows)


if __name__ == "__main__":
    main()
