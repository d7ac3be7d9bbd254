"""Read the files of DOTA's devkit: true objects (``labelTxt``) and detections (``Task1_*.txt``).

Both are folders or zips of text files, whose fields are separated by spaces.

    labelTxt/P0706.txt    one file per image; its first lines may begin with ``imagesource:`` and
                          ``gsd:``. An object is x1 y1 x2 y2 x3 y3 x4 y4 class [difficult]
    Task1_plane.txt       one file per class, as the devkit merges them. A detection is
                          image score x1 y1 x2 y2 x3 y3 x4 y4

Difficult objects are ignored regions. Other files among the detections are not read.

Source: https://github.com/CAPTAIN-WHU/DOTA_devkit, dota_evaluation_task1.py.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from mm_numeric.answers import Instance, Instances, Polygon
from mm_numeric.evaluation.answers.detections import Detections, text_files
from mm_numeric.geometry.row_shapes import DOTA_HEADERS, parse_numbers, read_dota_object

_TASK = "Task1_"


@dataclass(frozen=True)
class DotaDetections(Detections):
    """The detections of each image, and what the devkit knows from their files."""

    lines: Mapping[str, Sequence[int]]
    """Image name -> number of the line of each detection, which orders equal confidences."""

    classes: Sequence[str]
    """The classes that have a file."""


def read_dota_truth(path: Path) -> Detections:
    """Read the true objects of each image from a folder or zip ``labelTxt``."""
    instances = {}
    for where, name, lines in text_files(path):
        items = (
            read_dota_object(line, f"{where}, line {number}")
            for number, line in lines
            if not line.startswith(DOTA_HEADERS)
        )
        instances[PurePosixPath(name).stem] = Instances(tuple(items))
    if not instances:
        raise ValueError(f"{path}: there is no .txt file in it; add one for each image.")
    return Detections(instances, {})


def read_dota_detections(path: Path) -> DotaDetections:
    """Read the detections of each class from a folder or zip of ``Task1_CLASS.txt``."""
    items: dict[str, list[Instance]] = {}
    scores: dict[str, list[float | None]] = {}
    lines: dict[str, list[int]] = {}
    classes = []
    for where, name, numbered in text_files(path):
        if not name.startswith(_TASK):
            continue
        label = PurePosixPath(name).stem.removeprefix(_TASK)
        classes.append(label)
        for number, line in numbered:
            fields, at = line.split(), f"{where}, line {number}"
            if len(fields) != 10:
                raise ValueError(
                    f"{at}: {len(fields)} fields, but a detection of DOTA has an image, a score "
                    f"and eight numbers: {line.strip()!r:.60}."
                )
            score, *numbers = parse_numbers(fields[1:], at)
            quad = Polygon(tuple(zip(numbers[::2], numbers[1::2], strict=True)))
            items.setdefault(fields[0], []).append(Instance(quad, label))
            scores.setdefault(fields[0], []).append(score)
            lines.setdefault(fields[0], []).append(number)
    if not classes:
        raise ValueError(
            f"{path}: there is no file {_TASK}CLASS.txt in it, such as {_TASK}plane.txt; name the "
            "folder of the merged detections, which has one file per class."
        )
    instances = {image: Instances(tuple(own)) for image, own in items.items()}
    return DotaDetections(instances, scores, lines, classes)
