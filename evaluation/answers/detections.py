"""Read the detections that any detector wrote, and true shapes in files of the same format.

Text files: a folder or a zip with one UTF-8 file per image. ``res_img_1.txt`` has the detections
for ``gt_img_1.txt``; both files may also have the same name. Each line has the coordinates of
one shape. Its confidence (detections only) and its text may follow:

    box           x1,y1,x2,y2[,confidence][,text]
    quad          x1,y1,x2,y2,x3,y3,x4,y4[,confidence][,text]
    polygon       x1,y1,x2,y2,...[,confidence][,text]
    polygon_yx    y1,x1,y2,x2,...[,confidence][,text]

The confidence is a number from 0 to 1. The text may contain commas and may be quoted. In ground
truth, the text ``###`` marks an ignored region. So does ``Arabic,###``: the MLT data set writes the
script before the text. The mark ``####`` before the text of a polygon is removed. Corners may be
clockwise or counterclockwise. The user can set the format of the lines, such as ``quad``. The
default is ``box`` if the first line begins with 4 or 5 numbers, and ``quad`` if with 8 or 9.

COCO JSON: detections are a list of results, and ground truth is an instances file. Crowd
annotations are ignored regions.

Tables (.csv, .tsv): a box per row, with the columns image, x1, y1, x2, y2, label and, for
detections, score. ``_COLUMNS`` has other names of the columns. A row without coordinates is an
image without objects. Detections in a table may have a COCO file as ground truth.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from mm_numeric.answers import Box, Instance, Instances, Polygon, Shape, Unreadable
from mm_numeric.evaluation.answers.source import AnswerRows, AnswerSource
from mm_numeric.evaluation.metrics.base import Scorer
from mm_numeric.evaluation.metrics.coco_ap import Rules, coco_scorer, rank_rows
from mm_numeric.evaluation.metrics.coco_rows import sorted_ids
from mm_numeric.geometry.row_shapes import finite_numbers, finite_xywh, instance_row
from mm_numeric.io.files import (
    is_wanted,
    listed_rows,
    read_json,
    read_rows,
    require_file,
    zipped_files,
)
from mm_numeric.io.log import logger
from mm_numeric.registry import PROTOCOLS, RANK_FIELDS, choose

LINES = ("box", "quad", "polygon", "polygon_yx")
"""Formats of a line in a text file; ``polygon_yx`` has y before x."""

_COLUMNS = {
    "image_id": ("image", "image_id", "file_name", "filename", "image_path"),
    **{edge: (edge, f"{edge[0]}{end}", f"{edge[0]}_{end}")
       for edge, end in (("x1", "min"), ("y1", "min"), ("x2", "max"), ("y2", "max"))},
    "category_id": ("label", "class_name", "name", "category", "class"),
    "score": ("score", "confidence", "conf"),
}  # fmt: skip
"""Maps each field of a box in a table to the names of its column; the first that exists is read."""

COCO_AP = "coco_ap"
"""Name of the protocol whose settings are ``Rules``."""

IGNORED = "###"
_SOURCE = "as the files have them"
_NUMBER = re.compile(r"\s*[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?\s*")
_QUOTED = re.compile(r'\s*"(.*)"\s*', re.DOTALL)
_SIZES = {"box": 4, "quad": 8}


@dataclass(frozen=True)
class Detections:
    """The shapes of each image with their confidence scores."""

    instances: Mapping[str, Instances]
    """Image name -> shapes."""

    scores: Mapping[str, Sequence[float | None]]
    """Image name -> one confidence per shape; None for a shape without confidence."""


def is_text(path: Path) -> bool:
    """Return True if detections are text files in a folder or zip, False if they are COCO JSON."""
    return path.is_dir() or path.suffix.lower() == ".zip"


def read_text_files(path: Path, *, truth: bool, lines: str | None = None) -> Detections:
    """Read shapes and their confidences from a folder or a zip of files that end with ``.txt``.

    Ground truth (``truth``) has no confidences. ``lines`` is the format of a line, one of
    ``LINES``; None to detect it from the first line.
    """
    if lines is not None and lines not in LINES:
        raise ValueError(f"lines is one of {', '.join(LINES)}, not {lines!r}.")
    declared = lines is not None
    instances: dict[str, Instances] = {}
    scores: dict[str, Sequence[float | None]] = {}
    for where, name, numbered in _text_files(path):
        image = re.sub(r"^(?:poly_)?(?:gt|res)_", "", PurePosixPath(name).stem)
        if image in instances:
            raise ValueError(f"{where}: a second file of the image {image!r}; keep one.")
        items, own = [], []
        for number, line in numbered:
            at = f"{where}, line {number}"
            lines = lines or _content_of(line, at)
            item, score = _read_line(line.strip("\r"), lines, declared, truth, at)
            items.append(item)
            own.append(score)
        instances[image], scores[image] = Instances(tuple(items)), own
    if not instances:
        raise ValueError(f"{path}: there is no .txt file in it; add one for each image.")
    return Detections(instances, scores)


def _text_files(path: Path) -> Iterator[tuple[str, str, list[tuple[int, str]]]]:
    """Yield for each file: path for error messages, name, non-empty lines with their numbers."""
    files: Iterable[tuple[str, str, bytes]]
    if path.is_dir():
        found = sorted(file for file in path.iterdir() if is_wanted(file.name, (".txt",)))
        for file in found:
            require_file(file)
        files = ((str(file), file.name, file.read_bytes()) for file in found)
    else:
        zipped = zipped_files(path, (".txt",))
        files = ((f"{path}, {name}", PurePosixPath(name).name, own) for name, own in zipped)
    for where, name, content in files:
        try:
            lines = content.decode("utf-8-sig").split("\n")
        except UnicodeDecodeError as error:
            raise ValueError(f"{where}: not UTF-8 ({error}).") from error
        yield where, name, [own for own in enumerate(lines, start=1) if own[1].strip()]


def _content_of(line: str, where: str) -> str:
    """Return ``box`` if a line begins with 4 or 5 numbers, and ``quad`` if with 8 or 9."""
    count = _numbers_before(line.split(","))
    for name, size in _SIZES.items():
        if count in (size, size + 1):
            return name
    raise ValueError(
        f"{where}: it begins with {count} numbers, but a box has 4 and a quad 8; declare the "
        f"content of the lines: {', '.join(LINES)}."
    )


def _numbers_before(fields: Sequence[str]) -> int:
    """Count the numbers before the first field that is not a number: 2 for ``["5", "6", "a"]``."""
    numbers = (i for i, field in enumerate(fields) if not _NUMBER.fullmatch(field))
    return next(numbers, len(fields))


def _read_line(
    line: str, lines: str, declared: bool, truth: bool, where: str
) -> tuple[Instance, float | None]:
    """Parse a line such as ``0,0,9,9,0.8,text`` into a shape and its confidence (or None)."""
    body, marked, text = line.partition(",####") if lines not in _SIZES else (line, "", "")
    fields = body.split(",")
    count = _numbers_before(fields)
    size = _SIZES.get(lines, count - count % 2)
    if count < size or size < min(_SIZES.get(lines, 6), 6):
        raise ValueError(
            f"{where}: expected {_SIZES.get(lines, 'at least 6')} numbers first, for a "
            f"{lines.removesuffix('_yx')}, found {line!r:.60}."
        )
    rest = fields[size:]
    if not declared and _numbers_before(rest) > 1:
        raise ValueError(
            f"{where}: {count} numbers, but the first line holds a {lines} of {size}; declare the "
            f"content of the lines: {', '.join(LINES)}."
        )
    score = None
    if rest and not truth and _NUMBER.fullmatch(rest[0]):
        if 0 <= float(rest[0]) <= 1:
            score = float(rest.pop(0))
        elif lines not in _SIZES:
            raise ValueError(
                f"{where}: {count} numbers are not pairs, and the last is no confidence (0 to 1)."
            )
    text = text if marked else ",".join(rest)
    quoted = _QUOTED.fullmatch(text)
    text = quoted[1].replace('\\"', '"').replace("\\\\", "\\") if quoted else text.strip()
    ignore = truth and (text == IGNORED or text.endswith(f",{IGNORED}"))
    numbers = finite_numbers([float(field) for field in fields[:size]], where)
    shape = _shape(numbers, lines)
    if truth and isinstance(shape, Box) and (shape.x2 < shape.x1 or shape.y2 < shape.y1):
        raise ValueError(
            f"{where}: the box {line!r:.60} is reversed; write the smaller x and y first."
        )
    return Instance(shape, "" if ignore else text, ignore), score


def _shape(numbers: Sequence[float], lines: str) -> Shape:
    if lines == "box":
        return Box(*numbers)
    points = zip(numbers[::2], numbers[1::2], strict=True)
    return Polygon(tuple((y, x) if lines == "polygon_yx" else (x, y) for x, y in points))


def is_table(path: Path) -> bool:
    """Return True if a file is a table of boxes, with a column ``x1`` or another name of it."""
    if path.suffix not in (".csv", ".tsv"):
        return False
    first = next(read_rows(path), ("", {}))[1]
    return any(name in first for name in _COLUMNS["x1"])


def _read_table(path: Path) -> tuple[list[str], list[dict[str, Any]]]:
    """Return the images of a table, and its boxes as COCO entries with labels as categories."""
    images, boxes = dict[str, None](), []
    for where, row in read_rows(path):
        columns = {
            field: next((name for name in names if name in row), "")
            for field, names in _COLUMNS.items()
        }
        missing = [_COLUMNS[f][0] for f, name in columns.items() if not name and f != "score"]
        if missing:
            raise ValueError(
                f"{where}: no column {missing[0]!r}; a table of boxes has the columns image, x1, "
                f"y1, x2, y2, label and, for detections, score. Found: {', '.join(row)}."
            )
        values = {field: row[name] for field, name in columns.items() if name}
        images[str(values["image_id"])] = None
        edges = [values[edge] for edge in ("x1", "y1", "x2", "y2")]
        if not any(edges):
            continue
        numbers = [float(n) if _NUMBER.fullmatch(n or "") else n for n in edges]
        x1, y1, x2, y2 = finite_numbers(numbers, f"{where}: x1, y1, x2, y2")
        box = {**values, "bbox": [x1, y1, x2 - x1, y2 - y1], "where": where}
        if score := values.get("score"):
            box["score"] = float(score) if _NUMBER.fullmatch(score) else score
        boxes.append(box)
    return [*images], boxes


def read_coco_truth(path: Path, *, masks: bool = False) -> dict[str, Any]:
    """Read and validate the ground truth in a COCO instances file, or in a table of boxes.

    Each annotation needs ``segmentation`` if ``masks``, and otherwise ``bbox``.
    """
    if is_table(path):
        names, boxes = _read_table(path)
        for box in boxes:
            if min(box["bbox"][2:]) <= 0:
                raise ValueError(
                    f"{box['where']}: the box has no area, or is reversed; x1 is smaller than x2, "
                    "and y1 than y2."
                )
        labels = dict.fromkeys(box["category_id"] for box in boxes)
        return {
            "images": [{"id": name, "file_name": name} for name in names],
            "categories": [{"id": label, "name": label} for label in labels],
            "annotations": [
                {**box, "id": i, "area": box["bbox"][2] * box["bbox"][3]}
                for i, box in enumerate(boxes, start=1)
            ],
        }
    found = read_json(path)
    if not isinstance(found, dict):
        raise ValueError(f"{path}: expected an object with images and annotations, found a list.")
    for name in ("images", "annotations", "categories"):
        rows = found.get(name)
        if not isinstance(rows, list):
            raise ValueError(f'{path}: no "{name}" (a list); an instances file needs it.')
        for number, row in enumerate(rows, start=1):
            has_id = isinstance(row, dict) and type(row.get("id")) in (int, str)
            if name != "annotations" and not has_id:
                raise ValueError(f'{path}, {name}, {number}: no "id" in {row!r:.60}.')
    for number, row in enumerate(found["annotations"], start=1):
        _check_coco_row(row, f"{path}, annotation {number}", masks)
    annotations = _with_known_ids(found["annotations"], found, path)
    known = {image["id"] for image in found["images"]}
    for number, row in enumerate(annotations, start=1):
        if row["image_id"] not in known:
            raise ValueError(
                f"{path}, annotation {number}: the image {row['image_id']!r} is not among the "
                "images."
            )
    return {**found, "annotations": annotations}


def read_coco_results(
    path: Path, dataset: Mapping[str, Any], *, masks: bool = False
) -> list[dict[str, Any]]:
    """Read and validate COCO results: detections with boxes, or with masks if ``masks``.

    The boxes may also be in a table. Ids of images and categories are converted to the ids in
    ``dataset``, the ground truth. An ``image_id`` may be the name of the image file, with or
    without folder and suffix (Ultralytics), and a ``category_id`` the name of the category.
    """
    found = _read_table(path)[1] if is_table(path) else read_json(path)
    rows = listed_rows(found, path) if found else found
    if not isinstance(rows, list):
        raise ValueError(f"{path}: expected a list of results, [{{...}}, ...].")
    for number, row in enumerate(rows, start=1):
        where = f"{path}, result {number}"
        _check_coco_row(row, where, masks)
        if row.get("score") is not None:
            finite_numbers([row["score"]], f"{where}, score")
    rows = _with_known_ids(rows, dataset, path)
    images = {image["id"]: image.get("file_name") for image in dataset["images"]}
    for number, row in enumerate(rows, start=1):
        if row["image_id"] not in images:
            such = "".join(f", such as {own!r} of {images[own]!r}" for own in list(images)[:1])
            raise ValueError(
                f"{path}, result {number}: the image {row['image_id']!r} is not in the ground "
                f"truth, neither as an id nor as the name of a file{such}; remove it, or add its "
                "ground truth."
            )
    _warn_of_categories(rows, dataset, path)
    return rows


def _with_known_ids(
    rows: list[dict[str, Any]], dataset: Mapping[str, Any], path: Path
) -> list[dict[str, Any]]:
    """Return COCO entries with their image and category ids replaced by those of the data set.

    An id may have another type (0 and "0"), and an image id may be the name of the image file. Each
    kind of replacement is logged. Ids of a kind stay unchanged if one of them cannot be found.
    """
    names = [_file_names(image) for image in dataset["images"]]
    images = [(image["id"], {str(image["id"])}) for image in dataset["images"]]
    files = [(image["id"], own) for image, own in zip(dataset["images"], names, strict=True)]
    categories = [(own["id"], {str(own["id"])}) for own in dataset["categories"]]
    labels = [(own["id"], {str(own.get("name"))}) for own in dataset["categories"]]
    for field, ways in (
        ("image_id", {"ids of another type": images, "names of image files": files}),
        ("category_id", {"ids of another type": categories, "names of categories": labels}),
    ):
        used = dict.fromkeys(row[field] for row in rows)
        if used.keys() <= {own for own, _ in next(iter(ways.values()))}:
            continue
        for what, known in ways.items():
            counts = Counter(name for _, own in known for name in own)
            found = {name: own for own, texts in known for name in texts if counts[name] == 1}
            if all(str(value) in found for value in used):
                first = next(iter(used))
                message = "%s: %s has %s, such as %r for %r."
                logger.info(message, path, field, what, first, found[str(first)])
                rows = [{**row, field: found[str(row[field])]} for row in rows]
                break
    return rows


def _file_names(image: Mapping[str, Any]) -> set[str]:
    """Return the names by which results may call an image: a/042.jpg, a/042, 042.jpg, 042, 42."""
    file = PurePosixPath(str(image.get("file_name") or "").replace("\\", "/"))
    if not file.name:
        return set()
    stem = {str(int(file.stem))} if file.stem.isdecimal() else set()
    return {str(file), str(file.with_suffix("")), file.name, file.stem, *stem}


def _warn_of_categories(
    rows: Sequence[Mapping[str, Any]], dataset: Mapping[str, Any], path: Path
) -> None:
    known = {own["id"] for own in dataset["categories"]}
    unknown = sorted({row["category_id"] for row in rows} - known, key=str)[:5]
    if not unknown:
        return
    cause = ""
    if 0 in unknown and 0 not in known and 1 in known:
        cause = (
            "; they begin at 0, and those of the truth at 1: if the score is near 0, add 1 to each "
            "category_id"
        )
    logger.warning(
        "%s: categories that the truth does not have: %s%s.",
        path, ", ".join(map(str, unknown)), cause,
    )  # fmt: skip


def coco_detections(dataset: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> Detections:
    """Collect the boxes of each image from COCO entries; the category name is the label."""
    names = {c["id"]: str(c.get("name", c["id"])) for c in dataset["categories"]}
    instances: dict[str, list[Instance]] = {str(image["id"]): [] for image in dataset["images"]}
    scores: dict[str, list[float | None]] = {image_id: [] for image_id in instances}
    for row in rows:
        x, y, width, height = map(float, row["bbox"])
        label = names.get(row["category_id"], str(row["category_id"]))
        ignore = bool(row.get("iscrowd") or row.get("ignore"))
        image_id = str(row["image_id"])
        item = Instance(Box(x, y, x + width, y + height), label, ignore)
        instances.setdefault(image_id, []).append(item)
        scores.setdefault(image_id, []).append(row.get("score"))
    return Detections({k: Instances(tuple(items)) for k, items in instances.items()}, scores)


def _check_coco_row(row: Any, where: str, masks: bool) -> None:
    if not isinstance(row, dict):
        raise ValueError(f'{where}: expected an object {{"image_id": ...}}, found {row!r:.40}.')
    for name in ("image_id", "category_id"):
        if row.get(name) is None:
            raise ValueError(f'{where}: no "{name}".')
        if type(row[name]) not in (int, str):
            raise ValueError(f"{where}: {name} {row[name]!r:.40} is neither a number nor a text.")
    if row.get("iscrowd") not in (0, 1, None):
        raise ValueError(f"{where}: iscrowd is 0 or 1, not {row['iscrowd']!r:.40}.")
    if masks:  # masks are validated when they are decoded, which needs the image size
        return
    if row.get("bbox") is None:
        raise ValueError(
            f'{where}: no "bbox"; masks are scored with --protocol coco_ap --iou segm.'
            if row.get("segmentation")
            else f'{where}: no "bbox".'
        )
    finite_xywh(row["bbox"], f"{where}: bbox")


def default_protocol(truth: Path) -> str:
    """Return the default protocol for detections; ``truth`` is the path of the ground truth."""
    return "icdar2015" if is_text(truth) else "labelled"


def read_truth_files(
    source: AnswerSource, truth: Path, protocol: str | Rules | None
) -> tuple[AnswerRows, Scorer]:
    """Read detections and true shapes; return a row per image, and the scorer of ``protocol``."""
    predictions = source.predictions
    rules = protocol if isinstance(protocol, Rules) else None
    name = COCO_AP if isinstance(protocol, Rules) else protocol or default_protocol(truth)
    if is_text(predictions) != is_text(truth):
        raise ValueError(
            f"{predictions} and {truth} have different formats; use text files (a folder or a zip) "
            "for both, or COCO JSON for both."
        )
    where = f"{predictions}, with the truth {truth}"
    read = AnswerRows(name, where, {"truth": str(truth)})
    if rules is not None and not is_text(truth):
        return read, _coco_rows(read, predictions, truth, rules)
    scorer: Scorer = choose(name, PROTOCOLS, "protocol", str(predictions))
    if rules is not None:
        scorer = coco_scorer(rules, _SOURCE)
    found, wanted = _read(source, truth)
    missing = Unreadable("no file for the image") if rules is None else Instances(())
    for image, target in wanted.instances.items():
        answer: Any = found.instances.get(image, missing)
        if rules is not None:
            # The texts of words are not categories: all words belong to one category.
            answer, target = _unlabelled(answer), _unlabelled(target)
        _add_row(read, image, answer, target)
        if name == COCO_AP:
            read.rows[-1][RANK_FIELDS[0]] = list(found.scores.get(image, ()))
    return read, scorer


def _coco_rows(read: AnswerRows, predictions: Path, truth: Path, rules: Rules) -> Scorer:
    """Add a row for each image of a COCO file, and return a scorer that ranks the file's entries.

    The rows have no shapes: the scorer reads the entries of the files, because these may be masks,
    and because converting their boxes to corners would cause rounding errors.
    """
    masks = rules.iou == "segm"
    dataset = read_coco_truth(truth, masks=masks)
    results = read_coco_results(predictions, dataset, masks=masks)
    for image in sorted_ids({row["id"] for row in dataset["images"]}):
        read.rows.append({"id": str(image), "image": None, "reason": None})
        read.answers.append(Instances(()))
        read.targets.append(Instances(()))
    return coco_scorer(rules, _SOURCE, lambda *_: rank_rows(dataset, results, rules))


def _add_row(read: AnswerRows, image: str, answer: Any, target: Instances) -> None:
    is_read = isinstance(answer, Instances)
    read.rows.append(
        {
            "id": image,
            "image": None,
            "target": [instance_row(item) for item in target.items],
            "text": None,
            "parsed": [instance_row(item) for item in answer.items] if is_read else None,
            "reason": None if is_read else answer.reason,
        }
    )
    read.answers.append(answer)
    read.targets.append(target)


def _read(source: AnswerSource, truth: Path) -> tuple[Detections, Detections]:
    predictions, lines = source.predictions, source.lines
    if is_text(truth):
        wanted = read_text_files(truth, truth=True, lines=lines)
        found = read_text_files(predictions, truth=False, lines=lines)
    else:
        dataset = read_coco_truth(truth)
        results = read_coco_results(predictions, dataset)
        wanted = coco_detections(dataset, dataset["annotations"])
        found = coco_detections(dataset, results)
    for image in found.instances:
        if image not in wanted.instances:
            raise ValueError(
                f"{predictions}: the image {image!r} is not in the ground truth {truth}; "
                "remove it, or add its ground truth."
            )
    return found, wanted


def _unlabelled(instances: Instances) -> Instances:
    return Instances(tuple(Instance(i.shape, "", i.ignore) for i in instances.items))
