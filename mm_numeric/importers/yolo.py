"""Import YOLO data sets: ``data.yaml``, and one text file of labels per image.

data.yaml         path: .   train: images/train   val: images/val   names: [helmet, vest]
labels/train/1.txt for images/train/1.jpg, with one object per line:

    0 0.5 0.5 0.2 0.1               class, centre x, centre y, width, height
    0 0.1 0.1 0.4 0.1 0.4 0.3       class and the points of a polygon (segmentation, rotated boxes)

All coordinates are fractions of the image's width and height, which are read from the images. As
in Ultralytics, coordinates up to 1 % outside of the image are moved to its edge, an object that is
repeated in a file counts once, and an image without a label file has no objects.

Source: https://docs.ultralytics.com/datasets/detect. The image paths of rows are relative to the
folder of the data set; set it as `images` of the data source in a config.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from mm_numeric.importers.importer import (
    IMAGE_SUFFIXES,
    DeclaredClasses,
    FileImporter,
    ImageFolder,
    ImportedItem,
    InvalidRowError,
    Option,
    SkippedLine,
    image_row,
    of_shape,
    parse_box,
    parse_number,
    parse_polygon,
)
from mm_numeric.numbers.numerals import whole_number
from mm_numeric.settings import read_yaml

_BEYOND = 0.01  # fraction of the image by which a coordinate may lie outside


@dataclass(frozen=True, kw_only=True)
class Yolo(FileImporter):
    """Importer for YOLO data sets: data.yaml and text files of labels, one row per image."""

    version = 2  # 2: repeated objects count once

    split: Annotated[str, Option("split to convert", choices=("train", "val", "test"))]

    def files(self, inputs: Sequence[Path]) -> list[Path]:
        """Return data.yaml and the label files of the split, given data.yaml or its folder."""
        if len(inputs) != 1:
            raise ValueError("yolo: name one data.yaml, or the folder that has it.")
        path = inputs[0] / "data.yaml" if inputs[0].is_dir() else inputs[0]
        if path.suffix not in (".yaml", ".yml") or not path.is_file():
            raise ValueError(f"{path}: there is no such YAML file; name the data.yaml.")
        labels = (_labels_of(image) for image in self._images(path, read_yaml(path)))
        return [path, *(file for file in labels if file.is_file())]

    def rows(self, files: Sequence[Path]) -> Iterator[ImportedItem]:
        """Yield one row per image of the split, and an error per invalid line."""
        return super().rows(files[:1])

    def entries(self, path: Path) -> Iterator[tuple[str, str, Any]]:
        """Yield the classes of the data set, and each image of the split."""
        settings = read_yaml(path)
        _check_kind(path, settings)
        names, folder = _class_names(path, settings), ImageFolder(_root(path, settings))
        yield str(path), "", DeclaredClasses(tuple(names.values()), tuple(names))
        for image in self._images(path, settings):
            yield str(_labels_of(image)), "", (image, names, folder)

    def items(self, where: str, identity: str, entry: Any) -> Iterator[ImportedItem]:
        """Yield an error per invalid line of a label file, and the row with the other objects."""
        image, names, folder = entry
        if not image.is_relative_to(folder.folder):
            raise InvalidRowError("image", f"{image} is not in the folder {folder.folder}.")
        name = image.relative_to(folder.folder).as_posix()
        fields = {"id": name, **folder.fields(name)}
        file = _labels_of(image)
        raw = file.read_bytes() if file.is_file() else b""
        # Like Ultralytics, split lines at a single \r, too; else three boxes become one polygon.
        lines = enumerate(raw.decode("utf-8-sig", errors="replace").splitlines(), start=1)
        objects = ((f"line {number}", line) for number, line in lines if line.strip())
        size = fields["width"], fields["height"]
        read = partial(_new_object, seen=set(), names=names, size=size)
        yield from image_row(where, fields, objects, read)

    def _images(self, path: Path, settings: Mapping[str, Any]) -> list[Path]:
        given = settings.get(self.split)
        sources = [given] if isinstance(given, str) else given
        if not isinstance(sources, list) or not all(isinstance(s, str) for s in sources):
            known = [name for name in ("train", "val", "test") if settings.get(name)]
            raise ValueError(
                f"{path}: no split {self.split!r} (a folder of images); it has {', '.join(known)}."
            )
        root, found = _root(path, settings), []
        for source in sources:
            folder = root / source
            if not folder.exists() and source.startswith("../"):  # as Roboflow writes it
                folder = root / source.removeprefix("../")
            if folder.is_dir():
                inside = (p for p in folder.rglob("*") if p.suffix.lower() in IMAGE_SUFFIXES)
                found += sorted(inside)
            elif folder.is_file() and folder.suffix == ".txt":
                lines = folder.read_text(encoding="utf-8").splitlines()
                found += [folder.parent / line.strip() for line in lines if line.strip()]
            else:
                raise ValueError(f"{path}: the images of {self.split} are missing: {folder}.")
        if not found:
            raise ValueError(f"{path}: no images in {', '.join(sources)}.")
        return found


def _check_kind(path: Path, settings: Mapping[str, Any]) -> None:
    """Raise ValueError for a data set of poses, whose keypoints would be read as a polygon."""
    if settings.get("kpt_shape") is not None:
        raise ValueError(
            f"{path}: kpt_shape declares keypoints (pose), which are not imported; give the labels "
            "of a detection or segmentation data set."
        )


def _root(path: Path, settings: Mapping[str, Any]) -> Path:
    """Return the data set's folder: ``path`` in data.yaml if it exists, or data.yaml's folder."""
    given = settings.get("path")
    folder = path.parent / given if isinstance(given, str) else path.parent
    return folder if folder.is_dir() else path.parent


def _class_names(path: Path, settings: Mapping[str, Any]) -> dict[int, str]:
    names = settings.get("names")
    found = dict(enumerate(names)) if isinstance(names, list) else names
    valid = isinstance(found, Mapping) and all(
        type(key) is int and isinstance(name, str) and name for key, name in found.items()
    )
    if not (found and valid):
        raise ValueError(f"{path}: no names (a list of classes, or their numbers and names).")
    return dict(found)


def _labels_of(image: Path) -> Path:
    """Return the label file of an image: the last folder ``images`` in its path is ``labels``."""
    parts = list(image.parts)
    at = [i for i, part in enumerate(parts[:-1]) if part == "images"]
    if at:
        parts[at[-1]] = "labels"
    return Path(*parts).with_suffix(".txt")


def _new_object(
    line: str, seen: set[str], names: Mapping[int, str], size: tuple[int, int]
) -> dict[str, Any] | SkippedLine:
    found = _object(line, names, size)
    if repr(found) in seen:
        return SkippedLine("repeated objects")
    seen.add(repr(found))
    return found


def _object(line: str, names: Mapping[int, str], size: tuple[int, int]) -> dict[str, Any]:
    first, *rest = line.split()
    # Ultralytics writes numbers with %g: 6e-05 for a coordinate near the edge.
    numbers = [parse_number(text, exponent=True) for text in rest]
    if len(numbers) != 4 and (len(numbers) < 6 or len(numbers) % 2):
        raise InvalidRowError(
            "numbers", f"expected 4 numbers after the class, or points, found {len(numbers)}."
        )
    if not all(-_BEYOND <= number <= 1 + _BEYOND for number in numbers):
        raise InvalidRowError("numbers", "coordinates are fractions of the image, from 0 to 1.")
    inside = [min(max(number, 0.0), 1.0) for number in numbers]
    width, height = size
    pixels = [n * (height if i % 2 else width) for i, n in enumerate(inside)]
    if len(numbers) > 4:
        shape = {"polygon": parse_polygon(pixels)}
    else:
        x, y, w, h = pixels
        # Floats may put a box a billionth of a pixel outside; parse_box rounds to 6 decimals.
        shape = {"box": parse_box([x - w / 2, y - h / 2, x + w / 2, y + h / 2])}
    number = whole_number(first)
    if number is None or number not in names:
        known = f"0 to {max(names)}" if len(names) > 1 else "0"
        with of_shape(shape):
            raise InvalidRowError(
                "class", f"the class {first!r:.20} is not a number in names ({known})."
            )
    return {**shape, "label": names[number]}
