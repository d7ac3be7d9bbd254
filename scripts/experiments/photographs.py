"""Fetch the photographs of photographs.yaml from their sources, and write the rows.

    python scripts/experiments/photographs.py data/photographs

images/           826 photographs of eight repositories, at most 168 pixels wide and high
grounding.jsonl   1,011 rows: a phrase such as "the raccoon", and the box of this one object.
                  ``category`` is the source. Photographs that are alike have one ``fold_group``:
                  cards and cubes of one series, and nearly equal photographs of other sources
selection.jsonl   174 of these rows, to choose settings on
folds.jsonl       the other 837 rows, in other groups

The rows are in photographs.jsonl.xz. git downloads the named commit of each repository and checks
its content; each photograph is compared with a hash of the one that the box was scaled for.
``--repositories URL`` reads copies, such as URL/datitran/raccoon_dataset, and ``--images DIR``
the scaled photographs themselves. docs/comparisons/photographs.md has the licences.
"""

import argparse
import json
import lzma
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

ROWS = Path(__file__).with_name("photographs.jsonl.xz")
FIELDS = ("id", "image", "width", "height", "phrase", "box", "category", "fold_group")
FILES = {
    "grounding": ("folds", "selection"),
    "folds": ("folds",),
    "selection": ("selection",),
}
SIDE_PX, LARGEST_DISTANCE = 168, 6
SOURCES = {
    "raccoon": ("datitran/raccoon_dataset", "93938849", "images"),
    "blood_cells": ("Shenggan/BCCD_Dataset", "d272fb14", "BCCD"),
    "coco": ("lightly-ai/coco128_yolo", "6d6f7a05", "images"),
    "cards": (
        "EdjeElectronics/TensorFlow-Object-Detection-API-Tutorial-Train-Multiple-Objects-Windows-10",
        "c1645825",
        "images",
    ),
    "rubik": ("99Arrzel/yolov9-rubik-premodelt", "a5dc2997", "dataset"),
    "rabbit": ("ayten2301/rabbit", "eea75573", "train"),
    "nuts": ("Tony607/object_detection_demo", "88a07073", "data/images"),
    "bottles": ("AyeshaImran-61/Bottle-Detection-YOLO", "662a9254", "dataset"),
}
"""Source -> GitHub repository, commit, folder."""


def main() -> None:
    """Write the folder."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--repositories", default="https://github.com", metavar="URL")
    parser.add_argument("--images", type=Path, metavar="DIR")
    args = parser.parse_args()
    (args.folder / "images").mkdir(parents=True, exist_ok=True)
    rows = read_rows(ROWS)
    for source, (name, commit, within) in SOURCES.items():
        wanted = {row["image"]: row for row in rows if row["category"] == source}
        if args.images is None:
            copy = args.folder / "repositories" / source
            files = check_out(f"{args.repositories}/{name}", commit, within, copy)
        else:
            files = [args.images / image for image in wanted]
        for row in wanted.values():
            pattern = row["file"] if args.images is None else row["image"]
            write_image(row, [own for own in files if fnmatchcase(own.name, pattern)], args.folder)
        print(f"{source}: {len(wanted)} photographs")
    for name, parts in FILES.items():
        lines = (
            json.dumps({own: row[own] for own in FIELDS}) for row in rows if row["part"] in parts
        )
        (args.folder / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in lines))


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows; ``file`` is a pattern of the name of the original, ``hash`` is its hash."""
    return [json.loads(line) for line in lzma.decompress(path.read_bytes()).splitlines()]


def check_out(url: str, commit: str, within: str, folder: Path) -> list[Path]:
    """Check out a folder of a repository into ``folder``, and return the paths of its images."""
    git = ["git", "-C", str(folder)]
    if not folder.exists():
        clone = ["git", "clone", "--quiet", "--no-checkout", "--filter=blob:none", url, str(folder)]
        subprocess.run(clone, check=True)
        subprocess.run([*git, "sparse-checkout", "set", within], check=True)
    subprocess.run([*git, "checkout", "--quiet", commit], check=True)
    suffixes = (".jpg", ".jpeg", ".png")
    return [path for path in (folder / within).rglob("*") if path.suffix.lower() in suffixes]


def write_image(row: Mapping[str, Any], files: Iterable[Path], folder: Path) -> None:
    """Write the first of several files that looks like the photograph of the row, scaled."""
    target = folder / "images" / row["image"]
    for path in files:
        for is_turned in (False, True):  # the boxes of some cameras' photographs ignore Exif
            original = Image.open(path, formats=["JPEG", "PNG"])
            image = scaled(ImageOps.exif_transpose(original) if is_turned else original)
            distance = (int(difference_hash(image), 16) ^ int(row["hash"], 16)).bit_count()
            if image.size == (row["width"], row["height"]) and distance <= LARGEST_DISTANCE:
                if image.size == original.size:  # of --images
                    shutil.copyfile(path, target)
                else:
                    image.save(target, quality=85, progressive=True)
                return
    sys.exit(
        f"{row['image']}: no file of the source {row['category']} is this photograph; looked for "
        f"{row['file']}, {row['width']} x {row['height']} pixels after scaling."
    )


def scaled(image: Image.Image) -> Image.Image:
    """Return an image whose longer side has 168 pixels."""
    factor = SIDE_PX / max(image.size)
    size = (round(image.width * factor), round(image.height * factor))
    image = image.convert("RGB")
    return image if size == image.size else image.resize(size, Image.Resampling.LANCZOS)


def difference_hash(image: Image.Image) -> str:
    """Return 64 bits in hexadecimal: is each pixel of 8 x 8 brighter than its left neighbour?"""
    grey = np.asarray(image.convert("L").resize((9, 8), Image.Resampling.BOX), np.int16)
    bits = (grey[:, 1:] > grey[:, :-1]).ravel()
    return f"{int(''.join(map(str, bits.astype(int))), 2):016x}"


if __name__ == "__main__":
    main()
