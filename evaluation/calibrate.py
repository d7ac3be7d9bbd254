"""Fit the calibration of a run to its answers to rows that were neither trained on nor are tested.

``mm_numeric.inference.calibrate`` has the maps and the file that they are stored in.
"""

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from mm_numeric.answers import EmbeddedImage, Example
from mm_numeric.config.data import Sources, listed, named
from mm_numeric.config.schema import Config
from mm_numeric.data.examples import load_examples
from mm_numeric.evaluation.answers.confidence import gap_text, reliability_entry
from mm_numeric.evaluation.score import score
from mm_numeric.evaluation.table import Table
from mm_numeric.inference.calibrate import Calibration, Fitted, Supports, cross_validated, log_loss
from mm_numeric.io.files import read_json, sha256_of
from mm_numeric.io.log import logger

FEWEST = 20
"""Number of questions from which a calibration is fitted."""

RAW = "raw"

_OF_THE_FILE = ("rows", "precision", "calibration")  # the rest of its record: the run and settings


def fit_calibration(config: Config, source: Sources, predictions: Path, rule: str) -> Calibration:
    """Fit the maps to the answers in a file that ``predict`` wrote with ``calibrates=True``.

    Raises ValueError if the task does not define correct answers, or if there are too few answers.
    """
    scores = score(predictions, task_name=config.task_name, scorer=config.task.scorer, write=False)
    confidences = scores.confidences
    if confidences is None:
        raise ValueError(
            f"{predictions}: the task {config.task_name} does not define when an answer with a "
            "confidence is correct, so that there is nothing to calibrate."
        )
    rows = scores.rows
    known = known_ids(config, source)
    kept = [
        (known is None or rows[i]["id"] not in known)
        and rows[i]["decode"]["confidence"] is not None  # unparseable answers have none
        for i in confidences.index.tolist()
    ]
    raw, right = confidences.confidence[kept], confidences.right[kept]
    groups = confidences.groups[kept]
    used = [rows[i] for i in confidences.index[kept].tolist()]
    if (count := len(np.unique(groups))) < FEWEST:
        raise ValueError(
            f"{named(source)}: {count} questions with a parseable answer are neither training nor "
            f"test questions; a calibration needs at least {FEWEST}, better 250. Give more rows."
        )
    supports = None
    if not confidences.per_object and all(row["decode"]["support"] for row in used):
        supports = Supports.of([row["decode"]["support"] for row in used])
    held_out = cross_validated(raw, right, groups, supports)
    fitted = Fitted.of(raw, right, supports)
    made_by = read_json(predictions.with_name(f"{predictions.name}.made_by.json"))
    return Calibration(
        rule=rule,
        settings={name: own for name, own in made_by.items() if name not in _OF_THE_FILE},
        correct=confidences.correct,
        per_object=confidences.per_object,
        applied=min(held_out, key=lambda name: log_loss(held_out[name], right)),
        platt=fitted.platt,
        temperature=fitted.temperature,
        rows=len({row["id"] for row in used}),
        left_out=sum(row["id"] in (known or ()) for row in rows),
        checked=known is not None,
        data=named(source),
        reliability={
            name: {
                "log_loss": log_loss(values, right),
                **reliability_entry(values, right, groups),
            }
            for name, values in {RAW: raw, **held_out}.items()
        },
    )


def known_ids(config: Config, source: Sources) -> set[str] | None:
    """Return the ids of the rows whose question is a training or a test question.

    Questions are equal if their prompts and the contents of their images are. Returns None, with a
    warning, if the rows of the run cannot be read here.
    """
    cache = Path(config.data.cache)
    own = load_examples(config.task, source, cache, training=False)
    sizes = {image.stat().st_size for e in own for image in e.images if isinstance(image, Path)}
    content = lru_cache(None)(lambda image: _content(image, sizes))

    def questions(examples: Iterable[Example]) -> set[tuple[Any, ...]]:
        return {(e.prompt, *map(content, e.images)) for e in examples}

    found: set[tuple[Any, ...]] = set()
    for others in (config.data.train, config.data.test):
        try:
            # One after another: the same ids in two sources are no error here.
            for each in listed(others):
                found |= questions(load_examples(config.task, each, cache, training=False))
        except (ValueError, OSError) as error:
            logger.warning(
                "%s: not compared with the training and test rows of the run: %s",
                named(source),
                error,
            )
            return None
    return {e.id for e in own if not found.isdisjoint(questions([e]))}


def _content(image: Any, sizes: set[int]) -> Any:
    """Return a key of the content of an image; files of another size than all of ours differ."""
    if isinstance(image, EmbeddedImage):
        return str(image)
    size = image.stat().st_size
    return sha256_of(image) if size in sizes else size


def calibration_text(found: Calibration) -> str:
    """Format a calibration for a terminal: the gap before and after it, on folds not fitted."""
    what = "objects" if found.per_object else "answers"
    lines = [
        f"{found.reliability[RAW]['count']:,} {what} to {found.rows:,} rows, decoded by "
        f"{found.rule} (correct: {found.correct}); each map is fitted without the fifth of the "
        "rows that it is judged on"
    ]
    if found.left_out:
        text = f"{found.left_out:,} rows are left out: training or test questions of the run"
        if found.left_out > found.rows / 4:
            text += "; the others may be harder than those that you will ask"
        lines.append(text)
    lines.append(reliability_table(found).to_terminal(indent=2))
    return "\n".join(lines)


def reliability_table(found: Calibration) -> Table:
    """Return the table of mean confidence, share correct, gap, ECE and log loss of each map."""
    rows = [
        [
            name + " (applied)" * (name == found.applied),
            f"{own['mean_confidence']:.3f}",
            f"{own['right']:.3f}",
            gap_text(own["gap"]),
            f"{own['ece']:.3f}",
            f"{own['log_loss']:.3f}",
        ]
        for name, own in found.reliability.items()
    ]
    header = ["map", "mean confidence", "correct", "gap", "ECE", "log loss"]
    return Table.of(header, rows, title=f"Calibration, decoded by {found.rule}")
