"""Rank labels by how badly they fit the answers of a model that was not trained on their rows.

Each label has two values. Both are large for a wrong label if the model is right:

    improbability   mean loss of a token of the label's text under the model, in nats: long labels
                    have larger sums, so that a list with a missing box would look right
    distance        between the label and the answer of the model by a decoding rule (the median of
                    numbers and times, or ``mbr``): minutes on the dial, |x - y| of numbers,
                    1 - IoU of boxes, the largest ``ObjectFault`` of lists, 1 for other answers
                    that differ

``suspicion`` combines both; the largest is ranked first.
"""

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from mm_numeric.answers import ClockTime, Example, Instance, Instances, Number, Unreadable
from mm_numeric.baselines.baseline import Baseline
from mm_numeric.config.data import Sources, named
from mm_numeric.config.decoding import MBR
from mm_numeric.config.schema import Config
from mm_numeric.data.collator import BATCH_KEYS, make_collator
from mm_numeric.data.examples import examples_to_answer
from mm_numeric.evaluation.metrics.number_errors import signed_log
from mm_numeric.evaluation.metrics.polygon_iou import Pairs, greedy_one_to_one
from mm_numeric.geometry.frames import Frame
from mm_numeric.inference.calibrate import known_ids
from mm_numeric.inference.generate import LoadedModel, predict, read_model
from mm_numeric.inference.number_distribution import Floats
from mm_numeric.inference.risks import by_type, find_risk, iou_matrix
from mm_numeric.io.files import read_rows
from mm_numeric.io.log import progress
from mm_numeric.losses.cross_entropy import chunks, to_compute_dtype
from mm_numeric.models.loading import load_family
from mm_numeric.registry import RISK_OF_ANSWER
from mm_numeric.runs.folder import PREDICTIONS, decoded_name
from mm_numeric.tasks.base import Task
from mm_numeric.training.output_head import output_head, selected_logits

OVERLOOKED, BADLY_LOCATED, SWAPPED = "overlooked", "badly located", "swapped class"
_SAME_PLACE_IOU = 0.5
"""IoU from which two objects of different classes are the same object."""


class ObjectFault(NamedTuple):
    """A possible fault of one object in a list."""

    kind: str
    score: float
    """0 to 1."""

    item: Instance
    """The object of the label; of an overlooked object, that of the model's answer."""


@dataclass(frozen=True, kw_only=True)
class RankedLabel:
    """The label of a row, set against the distribution of a model."""

    example: Example
    """The row; ``example.answer`` is the label."""

    answer: Any
    """The answer of the model; None if its text could not be parsed."""

    texts: tuple[str, str]
    """The label and the answer as text: JSON if they are shapes, in pixels; "" for None."""

    improbability: float
    """Mean loss of a token of the label's text, in nats."""

    tokens: int
    """Number of tokens of the label's text, with its end token."""

    distance: float
    """Distance of the label to the answer; nan if the answer could not be parsed."""

    faults: Sequence[ObjectFault] = ()
    """The possible faults of a list of objects, the worst first."""

    rank: int = 0
    """1 for the label that should be checked first."""


def object_faults(
    label: Instances, answer: Instances, confidences: Sequence[float]
) -> list[ObjectFault]:
    """Return the possible faults of a list of objects, the worst first.

    The kinds are those of ObjectLab (Tkachenko et al. 2023, arXiv:2309.00832). Objects of the same
    class match one-to-one, greedily by decreasing IoU. The score of a fault is the confidence of
    the answer's object, one of ``confidences``, times

        badly located   1 - IoU, if it matches an object of the label
        swapped class   IoU, if it matches none, but has an IoU of 0.5 or more with an object of
                        another class, which has no match either
        overlooked      1, if it is neither

    Objects with ``ignore`` in the label have no faults, and their matches neither.
    """
    shapes: list[list[Any]] = [[item.shape for item in side.items] for side in (answer, label)]
    iou = iou_matrix(*shapes)
    names = [np.array([item.label for item in side.items], object) for side in (answer, label)]
    same = names[0][:, None] == names[1]
    partner = _matched(np.where(same, iou, 0))
    left = np.ones_like(iou, dtype=np.bool_)
    left[[*partner], :] = left[:, [*partner.values()]] = False
    others = _matched(np.where(left & ~same & (iou >= _SAME_PLACE_IOU), iou, 0))
    faults = []
    for i, (item, own) in enumerate(zip(answer.items, confidences, strict=True)):
        kind, share, shown = OVERLOOKED, 1.0, item
        if (at := partner.get(i, others.get(i))) is not None:
            shown = label.items[at]
            kind, share = (BADLY_LOCATED, 1 - iou[i, at]) if i in partner else (SWAPPED, iou[i, at])
        if not shown.ignore:
            faults.append(ObjectFault(kind, float(own * share), shown))
    return sorted(faults, key=lambda fault: -fault.score)


def _matched(iou: Floats) -> dict[int, int]:
    """Match rows and columns with an IoU above 0 one-to-one, greedily by decreasing IoU."""
    rows, columns = np.nonzero(iou)
    order = np.argsort(-iou[rows, columns], kind="stable")
    pairs = Pairs(rows[order], columns[order], iou[rows, columns][order])
    pairs = pairs.select(greedy_one_to_one(pairs))
    return dict(zip(pairs.detection.tolist(), pairs.truth.tolist(), strict=True))


def label_distance(label: Any, answer: Any, *, log: bool = False) -> float:
    """Return the distance of a label to an answer that is no list; see the head of this module.

    With ``log``, numbers are compared on the scale sign(x) log10(1 + |x|).
    """
    if log and isinstance(label, Number):
        one, two = signed_log(np.array([label.value, answer.value]))
        return float(abs(one - two))
    name = by_type(RISK_OF_ANSWER, type(label), "exact")
    return float(find_risk(name, "labels").costs([answer], [label])[0, 0])


def token_losses(loaded: LoadedModel, examples: Sequence[Example]) -> list[Floats]:
    """Return the loss of each token of each example's label, in nats; the end token is the last.

    Raises ValueError for a baseline, whose loss is not that of a text.
    """
    source, family = loaded.source, loaded.family
    if isinstance(family, Baseline):
        raise ValueError(
            f"{source.source}: the baseline {family.name} predicts numbers without a distribution "
            "over texts; name a run without model.baseline."
        )
    config = replace(source.config, data=replace(source.config.data, max_tokens=None))
    collator = replace(make_collator(config, family), skip_unreadable_images=False)
    size, found = config.predict.batch_size, list[Floats]()
    starts = range(0, len(examples), size)
    for start in progress(starts, desc="reading labels", unit="batch"):
        found += _batch_losses(loaded, collator(examples[start : start + size]))
    return found


@torch.no_grad()
def _batch_losses(loaded: LoadedModel, batch: Mapping[str, Any]) -> list[Floats]:
    """Return the losses of the answer tokens of each row of a batch of ``TrainingCollator``."""
    model, mask = loaded.model, batch["supervised"]
    inputs = {
        name: value.to(model.device) for name, value in batch.items() if name not in BATCH_KEYS
    }
    positions, labels = (
        own.to(model.device) for own in (batch["spans"].supervised, batch["labels"])
    )
    precision = loaded.source.precision
    with nullcontext() if precision is None else precision.computing(model.device):
        logits = selected_logits(model, output_head(model), inputs, positions, mask.numel())
    pieces = chunks(len(labels), logits.shape[-1], logits.device)
    each = [
        cross_entropy(to_compute_dtype(logits[own]), labels[own], reduction="none")
        for own in pieces
    ]
    rows = mask[: len(batch["origin"].ids)]  # without a dummy image row
    losses: Floats = torch.cat(each).double().cpu().numpy()
    return np.split(losses, rows.sum(dim=1).cumsum(dim=0)[:-1].tolist())


def ranked(labels: Sequence[RankedLabel]) -> list[RankedLabel]:
    """Return the labels with their ranks, the label that fits its model least first."""
    order = np.argsort(-suspicion(labels), kind="stable").tolist()
    return [replace(labels[at], rank=rank) for rank, at in enumerate(order, start=1)]


def default_rule(label: Any) -> str:
    """Return the decoding rule of the answers that labels like ``label`` are compared with."""
    return "median" if isinstance(label, ClockTime | Number) else MBR


def suspicion(labels: Sequence[RankedLabel]) -> Floats:
    """Return how badly each label fits its model: improbability * (1 + share), [n].

    The share is the rank of the label's distance, divided by ``n``, and 0 for a label without a
    distance. It has no unit, unlike the distance.

    Of 50 planted faults among 1,000 labels, the first 50 labels by this product, by improbability,
    by distance and by the summed loss of the tokens have: random times .96, .94, .84, .96; times
    10 to 30 minutes late .86, .84, .34, .84; missing boxes .86, .82, .32, .26; moved boxes .92,
    .90, .16, .86 (``scripts/experiments/planted_faults.py``).
    """
    improbability = np.array([own.improbability for own in labels])
    shares = _ranks(np.array([own.distance for own in labels])) / len(labels)
    found: Floats = improbability * (1 + np.nan_to_num(shares))
    return found


def _ranks(values: Floats) -> Floats:
    """Return the rank of each value, from 1, [n]; equal values share theirs, and nan has nan."""
    _, at, count = np.unique(values, return_inverse=True, return_counts=True)
    ranks: Floats = (np.cumsum(count) - (count - 1) / 2)[at]
    return np.where(np.isnan(values), math.nan, ranks)


def judged_labels(
    run: Path,
    source: Sources | None,
    out: Path,
    *,
    decode: str | None = None,
    log: bool = False,
    trust_remote_code: bool = False,
) -> list[RankedLabel]:
    """Return the labels of rows, set against a run that was not trained on them, without ranks.

    The answers of the run are generated by ``predict``, which continues after an interruption.
    Raises ValueError if a row has no label, or if the question of a row of ``source`` is a training
    question of the run: a model repeats the labels that it was trained on.

    Args:
        run: Folder of a finished run.
        source: The rows; None: the test rows of the run, whose answers are in its own folder.
        out: Folder for the answers to other rows.
        decode: Decoding rule of the answers; None: that of ``default_rule``.
        log: Compare numbers on the scale sign(x) log10(1 + |x|).
        trust_remote_code: Allow a config that refers to Python code, such as a task of your own.
    """
    model = read_model(run, None, trust_remote_code)
    config, examples = model.config, examples_to_answer(model.config, source)
    require_labels(examples)
    if source is not None:
        _require_unseen(config, run, source, len(examples))
    rule = decode or default_rule(examples[0].answer)
    file = (run if source is None else out) / decoded_name(PREDICTIONS, rule)
    predict(run, source, file, decode=rule, trust_remote_code=trust_remote_code)
    loaded = LoadedModel(model, load_family(config, model.source))
    losses = token_losses(loaded, examples)
    lines = {str(line["id"]): line for _, line in read_rows(file)}
    return [
        _compared(config.task, example, lines[example.id], loss, log=log)
        for example, loss in zip(examples, losses, strict=True)
    ]


def require_labels(examples: Sequence[Example]) -> None:
    """Raise ValueError if a row has no label."""
    if bare := [example for example in examples if example.answer is None]:
        raise ValueError(
            f"{bare[0].where}: the row has no label, and so {len(bare)} of {len(examples)}; remove "
            "these rows."
        )


def _require_unseen(config: Config, run: Path, source: Sources, count: int) -> None:
    """Raise ValueError if a run was trained on one of ``count`` rows."""
    if known := known_ids(config, source, (config.data.train,)):
        raise ValueError(
            f"{named(source)}: {len(known)} of {count} rows are training rows of {run}, such as "
            f"{min(known)!r}, and a model repeats labels that it was trained on; remove these "
            "rows, or add --folds 5 to train models that have not seen them."
        )


def _compared(
    task: Task, example: Example, line: Mapping[str, Any], losses: Floats, *, log: bool
) -> RankedLabel:
    """Compare the label of an example with the model's answer, a line of predictions.jsonl."""
    frame, label = line["frame"], example.answer
    answer = task.read(line["text"], None if frame is None else Frame.from_dict(frame))
    texts = _text(task.record(label)), _text(line["parsed"])
    own = RankedLabel(
        example=example,
        answer=None,
        texts=texts,
        improbability=float(losses.mean()),
        tokens=len(losses),
        distance=math.nan,
    )
    if isinstance(answer, Unreadable):
        return own
    if isinstance(label, Instances) and not _has_points(label, answer):
        faults = object_faults(label, answer, line.get("scores") or [1.0] * len(answer.items))
        distance = max((fault.score for fault in faults), default=0.0)
        return replace(own, answer=answer, distance=distance, faults=faults)
    return replace(own, answer=answer, distance=label_distance(label, answer, log=log))


def _text(record: Any) -> str:
    if record is None or isinstance(record, str):
        return record or ""
    return json.dumps(record, ensure_ascii=False)


def _has_points(*lists: Instances) -> bool:
    return any(len(item.shape.points) == 1 for own in lists for item in own.items)
