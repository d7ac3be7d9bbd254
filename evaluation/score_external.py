"""Score detections of other tools (text files or COCO JSON) with the scorers of this library."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mm_numeric.answers import Instance, Instances, Unreadable
from mm_numeric.evaluation import formats
from mm_numeric.evaluation.score import (
    Scores,
    check_shapes,
    finite,
    in_unit,
    indented_table,
    read_answers,
    scores_of,
    write_scores,
)
from mm_numeric.files import write_text
from mm_numeric.geometry.row_shapes import instance_row
from mm_numeric.registry import PROTOCOLS, choose, unknown
from mm_numeric.run_folder import RESULTS

COCO_AP = "coco_ap"
"""Name of the COCO AP protocol. AP has no value per image, thus no bootstrap interval."""


def score_files(
    predictions: Path,
    truth: Path,
    *,
    protocol: str | None = None,
    lines: str | None = None,
    out: Path | None = None,
) -> Scores:
    """Score detections that another tool wrote.

    Args:
        predictions: A folder or zip of text files, or a JSON file of COCO results; see ``formats``.
        truth: Ground truth in the same format.
        protocol: Rules of scoring, one of ``PROTOCOLS``. None means ``icdar2015`` for text files
            and ``labelled`` (labels must be equal) for JSON.
        lines: Shape on each line of the text files, such as ``quad``, one of ``formats.LINES``. If
            None, the shape is derived from the first line.
        out: The folder for results.json and scores.jsonl; nothing is written when None.
    """
    found, wanted = _read(predictions, truth, lines)
    text = formats.is_text(truth)
    name = protocol or ("icdar2015" if text else "labelled")
    if name == COCO_AP or name not in PROTOCOLS:
        raise unknown(name, [*PROTOCOLS, COCO_AP], "protocol", str(predictions))
    rows, answers, targets = [], [], []
    for image, target in wanted.instances.items():
        answer: Any = found.instances.get(image, Unreadable("no file for the image"))
        read = isinstance(answer, Instances)
        rows.append(
            {
                "id": image,
                "image": None,
                "target": [instance_row(item) for item in target.items],
                "text": None,
                "parsed": [instance_row(item) for item in answer.items] if read else None,
                "reason": None if read else answer.reason,
            }
        )
        answers.append(answer)
        targets.append(target)
    scorer = choose(name, PROTOCOLS, "protocol", str(predictions))
    scores = scores_of(name, scorer, rows, answers, targets)
    if out is not None:
        _check_not_overwritten(out, predictions, truth)
        head = {"predictions": str(predictions), "truth": str(truth), "protocol": name}
        write_scores(scores, out, head)
    return scores


def rank_files(
    predictions: Path,
    truth: Path,
    *,
    ties: str = "official",
    lines: str | None = None,
    out: Path | None = None,
) -> dict[str, float]:
    """Compute COCO's average precision and recall for detections that another tool wrote.

    Args:
        predictions: As in ``score_files``. All detections need a confidence score, except that
            ``ties="averaged"`` also accepts files without any scores.
        truth: Ground truth in the same format.
        ties: Treatment of equal scores, ``official`` or ``averaged``; see ``metrics.coco_ap``.
        lines: As in ``score_files``.
        out: The folder for results.json; nothing is written when None.
    """
    from mm_numeric.evaluation.metrics import coco_ap

    if formats.is_text(truth):
        found, wanted = _read(predictions, truth, lines)
        names = list(wanted.instances)
        # The texts of words are not categories: all words belong to one category.
        answers, targets = (
            [_unlabelled(side.instances.get(name, Instances(()))) for name in names]
            for side in (found, wanted)
        )
        scores = [found.scores.get(name, ()) for name in names]
        figures = coco_ap.average_precision(answers, targets, scores, ties=ties)
    else:
        _check_same_format(predictions, truth)
        dataset, results = formats.read_coco_truth(truth), formats.read_coco_results(predictions)
        figures = coco_ap.coco_average_precision(dataset, results, ties=ties)
    if out is not None:
        _check_not_overwritten(out, predictions, truth)
        head = {
            "predictions": str(predictions),
            "truth": str(truth),
            "protocol": COCO_AP,
            "protocols": {"all": coco_ap.protocol(ties, "as the files have them")},
        }
        _write_ranked(out, head, figures)
    return figures


def rank_predictions(
    predictions: Path,
    *,
    task_name: str | None = None,
    ties: str = "official",
    out: Path | None = None,
    keep: str | None = None,
) -> dict[str, float]:
    """Compute COCO's average precision and recall for a predictions.jsonl.

    Args:
        predictions: As in ``score``, with the field ``scores``: one confidence per predicted shape.
            ``mm-numeric predict`` writes the mean probability of the tokens of each shape.
        task_name: As in ``score``.
        ties: Treatment of equal scores, ``official`` or ``averaged``; see ``metrics.coco_ap``.
        out: The folder for results.json; the folder of the predictions when None.
        keep: As in ``score``.
    """
    from mm_numeric.evaluation.metrics.coco_ap import average_precision, protocol

    read = read_answers(predictions, task_name=task_name, keep=keep)
    check_shapes(read, COCO_AP, predictions)
    answers = [answer if isinstance(answer, Instances) else None for answer in read.answers]
    scores = [row.get("scores") for row in read.rows]
    try:
        figures = average_precision(answers, read.targets, scores, ties=ties)
    except ValueError as error:
        raise ValueError(f"{predictions}: {error}") from error
    head = {
        "task": read.name,
        "task_version": read.task.version,
        "predictions": str(predictions),
        "rows": len(read.rows),
        "protocols": {"all": protocol(ties, "of the rows (predict: mean probability of tokens)")},
    }
    _write_ranked(out or predictions.parent, head, figures)
    return figures


def _write_ranked(folder: Path, head: Mapping[str, Any], figures: Mapping[str, float]) -> None:
    shown = {name: finite(value) for name, value in figures.items()}
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / RESULTS, json.dumps({**head, "metrics": shown}, indent=1) + "\n")


def ranked_table(figures: Mapping[str, float]) -> str:
    """Format COCO's AP and AR metrics as a table for a terminal."""
    rows = [
        (name[:2].upper() + name[2:].replace("_", " "), in_unit(finite(value), "%"))
        for name, value in figures.items()
    ]
    return f"COCO average precision and recall of boxes (pycocotools)\n{indented_table(rows)}"


def _read(
    predictions: Path, truth: Path, lines: str | None
) -> tuple[formats.Detections, formats.Detections]:
    """Read detections and ground truth; raise ValueError for an image without ground truth."""
    _check_same_format(predictions, truth)
    if formats.is_text(truth):
        wanted = formats.read_text_files(truth, truth=True, lines=lines)
        found = formats.read_text_files(predictions, truth=False, lines=lines)
    else:
        dataset, results = formats.read_coco_truth(truth), formats.read_coco_results(predictions)
        wanted = formats.coco_detections(dataset, dataset["annotations"])
        found = formats.coco_detections(dataset, results)
    for image in found.instances:
        if image not in wanted.instances:
            raise ValueError(
                f"{predictions}: the image {image!r} is not in the ground truth {truth}; "
                "remove it, or add its ground truth."
            )
    return found, wanted


def _check_same_format(predictions: Path, truth: Path) -> None:
    if formats.is_text(predictions) != formats.is_text(truth):
        raise ValueError(
            f"{predictions} and {truth} have different formats; use text files (a folder or a zip) "
            "for both, or COCO JSON for both."
        )


def _check_not_overwritten(out: Path, predictions: Path, truth: Path) -> None:
    for path in (predictions, truth):
        if path.resolve() == (out / RESULTS).resolve():
            raise ValueError(f"{path} would be overwritten by the results; choose another folder.")


def _unlabelled(instances: Instances) -> Instances:
    return Instances(tuple(Instance(i.shape, "", i.ignore) for i in instances.items))
