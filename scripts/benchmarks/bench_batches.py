"""Measure padding-free batches, cached image features and workers on the CPU, at a small size.

    python scripts/benchmarks/bench_batches.py                 in about four minutes
    python scripts/benchmarks/bench_batches.py --rounds 5 --threads 1
    python scripts/benchmarks/bench_batches.py --only jpegs    workers of the data loader

The model is a Qwen2.5-VL with random weights (hidden 128, 4 layers; vision tower: hidden 32, 6
layers) and LoRA on its language model, in float32. Micro-batches have 4 rows (8 for the cache). In
a round, all kinds of batches are measured in turn, and ratios are computed within a round. Times
are CPU times, which other processes change less; with workers, they are those of a clock on the
wall, and the model is smaller, so that JPEGs of 4 megapixels take most of the time. ``bench_gpu
--only batches images`` measures Qwen2.5-VL-7B.

tokens/s    tokens of questions, images and answers, without padding; median
rows/s      rows per second; median
x first     ratio to the first line in the same round; median
"""

import argparse
import os
import statistics
import sys
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).parents[2]))  # from a checkout, whether installed or not

import torch
from _gpu_batches import (
    CACHE,
    FLASH,
    PADDING,
    Size,
    measure_cache,
    measure_images,
    measure_padding,
)
from _gpu_jobs import Record
from _gpu_model import qwen2_5_vl
from _measure import table

QUESTIONS = Size(qwen2_5_vl(toy=True), "", 64, 4, 200, 2000, 112, epochs=1)
IMAGES = Size(qwen2_5_vl(toy=True), "", 16, 8, 24, 24, 448)
JPEGS = Size(qwen2_5_vl(toy=True), "", 64, 4, 24, 24, 2000, most_pixels=448**2, epochs=1)


def main() -> None:
    """Measure and print both tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=2, help="rounds (default: 2)")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (default: 1)")
    parser.add_argument("--only", choices=("padding", "cache", "jpegs"), help="one table")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    kinds = [name for name in PADDING if name != FLASH]
    for table_name, names, measure, size in (
        ("padding", kinds, measure_padding, QUESTIONS),
        ("cache", CACHE, measure_cache, IMAGES),
        ("jpegs", ("0 workers", "2 workers"), measure_images, JPEGS),
    ):
        if options.only not in (None, table_name):
            continue
        if size is not JPEGS:
            _enlarge(size)
        rounds = [
            {name: measure(name, size=size, device="cpu") for name in names}
            for _ in range(options.rounds)
        ]
        print(f"questions of {size.shortest} to {size.longest} tokens, images of {size.side_px} px")
        print("\n".join(_lines(rounds)), end="\n\n", flush=True)


def _enlarge(size: Size) -> None:
    """Enlarge the tiny model, so that its times are meaningful."""
    text, vision = size.model.text_config, size.model.vision_config
    text.hidden_size, text.intermediate_size, text.num_hidden_layers = 128, 512, 4
    text.layer_types = ["full_attention"] * 4
    text.rope_parameters["mrope_section"] = [4, 6, 6]
    vision.hidden_size, vision.intermediate_size, vision.depth = 32, 128, 6
    vision.out_hidden_size, vision.fullatt_block_indexes = 128, [2, 5]


def _lines(rounds: list[dict[str, Record]]) -> list[str]:
    """Return the lines of a table with medians over the rounds."""
    first, rows = next(iter(rounds[0])), []
    for name in rounds[0]:
        speeds, before = (
            [float(str(turn[each]["tokens_per_second"])) for turn in rounds]
            for each in (name, first)
        )
        times = [speed / other for speed, other in zip(speeds, before, strict=True)]
        middle, ratio = statistics.median(speeds), statistics.median(times)
        images = statistics.median(float(str(turn[name]["rows_per_second"])) for turn in rounds)
        span = f"{min(times):.2f} to {max(times):.2f}"
        rows.append(
            [
                name,
                f"{middle:,.0f}",
                f"{images:.2f}",
                f"{ratio:.2f}",
                span,
                f"{rounds[0][name]['loss']:.6f}",
            ]
        )
    return table(["", "tokens/s", "rows/s", "x first", "range", "loss"], rows)


if __name__ == "__main__":
    main()
