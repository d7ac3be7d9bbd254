"""Read the detections of any detector, and the true shapes from files of the same format.

Text files and COCO JSON are described in ``detections``.
"""

from pathlib import Path
from typing import Any

from mm_numeric.answers import Instance, Instances, Unreadable
from mm_numeric.evaluation.answers import detections as formats
from mm_numeric.evaluation.answers.source import AnswerRows, AnswerSource
from mm_numeric.evaluation.metrics.base import Scorer
from mm_numeric.evaluation.metrics.coco_ap import Rules, coco_scorer, rank_rows
from mm_numeric.evaluation.metrics.coco_rows import sorted_ids
from mm_numeric.geometry.row_shapes import instance_row
from mm_numeric.registry import PROTOCOLS, RANK_FIELDS, choose

COCO_AP = "coco_ap"
"""Name of the protocol whose settings are ``Rules``."""

_SOURCE = "as the files have them"


def default_protocol(truth: Path) -> str:
    """Return the protocol of detections that are scored without naming one."""
    return "icdar2015" if formats.is_text(truth) else "labelled"


def read_truth_files(
    source: AnswerSource, truth: Path, protocol: str | Rules | None
) -> tuple[AnswerRows, Scorer]:
    """Read detections and true shapes; return a row for each image, and the scorer.

    ``protocol`` is a name, or the settings of COCO's average precision.
    """
    predictions, is_text = source.predictions, formats.is_text(truth)
    rules = protocol if isinstance(protocol, Rules) else None
    name = COCO_AP if isinstance(protocol, Rules) else protocol or default_protocol(truth)
    if formats.is_text(predictions) != is_text:
        raise ValueError(
            f"{predictions} and {truth} have different formats; use text files (a folder or a zip) "
            "for both, or COCO JSON for both."
        )
    where = f"{predictions}, with the truth {truth}"
    read = AnswerRows(name, where, {"truth": str(truth)})
    if rules is not None and not is_text:
        return read, _coco_rows(read, predictions, truth, rules)
    scorer: Scorer = choose(name, PROTOCOLS, "protocol", str(predictions))
    if rules is not None:
        scorer = coco_scorer(rules, _SOURCE)
    found, wanted = _read(source, truth, is_text=is_text)
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
    """Add a row for each image of a COCO file, and return a scorer that ranks its entries.

    The entries are ranked as they are: masks, and boxes without rounding errors. So the rows have
    no shapes.
    """
    masks = rules.iou == "segm"
    dataset = formats.read_coco_truth(truth, masks=masks)
    results = formats.read_coco_results(predictions, dataset, masks=masks)
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


def _read(
    source: AnswerSource, truth: Path, *, is_text: bool
) -> tuple[formats.Detections, formats.Detections]:
    predictions, lines = source.predictions, source.lines
    if is_text:
        wanted = formats.read_text_files(truth, truth=True, lines=lines)
        found = formats.read_text_files(predictions, truth=False, lines=lines)
    else:
        dataset = formats.read_coco_truth(truth)
        results = formats.read_coco_results(predictions, dataset)
        wanted = formats.coco_detections(dataset, dataset["annotations"])
        found = formats.coco_detections(dataset, results)
    for image in found.instances:
        if image not in wanted.instances:
            raise ValueError(
                f"{predictions}: the image {image!r} is not in the ground truth {truth}; "
                "remove it, or add its ground truth."
            )
    return found, wanted


def _unlabelled(instances: Instances) -> Instances:
    return Instances(tuple(Instance(i.shape, "", i.ignore) for i in instances.items))
