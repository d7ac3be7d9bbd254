"""Rank labels by how badly they fit the answers of a model that was not trained on their rows.

Each label has two values. Both are large for a wrong label if the model is right:

    improbability   mean loss of a token of the label's text, in nats: long labels have larger sums,
                    so that a list with a missing box would look right
    distance        from the answer of the model by a decoding rule (the median of numbers and
                    times, or ``mbr``): minutes on the dial, |x - y| of numbers, 1 - IoU of boxes,
                    the largest ``ObjectFault`` of lists, 1 for other answers that differ
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from mm_numeric.answers import ClockTime, Example, Instance, Instances, Number, Unreadable
from mm_numeric.comparison.plan import planned_runs
from mm_numeric.comparison.run import RunFailedError, compare
from mm_numeric.comparison.seeds import with_resolved_vary
from mm_numeric.config.data import DataSource, Sources, named
from mm_numeric.config.decoding import GREEDY, MBR
from mm_numeric.config.reader import config_from_dict
from mm_numeric.config.schema import Config
from mm_numeric.data.collator import BATCH_KEYS, make_collator
from mm_numeric.data.examples import examples_to_answer
from mm_numeric.evaluation.metrics.matching import FOUND_IOU
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
from mm_numeric.training.output_head import output_head, selected_logits

OVERLOOKED, BADLY_LOCATED, SWAPPED = "overlooked", "badly located", "swapped class"


class ObjectFault(NamedTuple):
    """A possible fault of one object in a list."""

    kind: str
    score: float  # 0 to 1
    item: Instance  # the object of the label; of an overlooked object, that of the model's answer


class RankedLabel(NamedTuple):
    """The label of a row, ``example.answer``, and the answer of a model to it."""

    example: Example
    line: Mapping[str, Any]  # of predictions.jsonl
    answer: Any  # None if its text could not be parsed; then the distance is nan
    improbability: float
    tokens: int  # of the label's text, with its end token
    distance: float
    faults: Sequence[ObjectFault] = ()  # of a list of objects, the worst first


def object_faults(
    label: Instances, answer: Instances, confidences: Sequence[float]
) -> list[ObjectFault]:
    """Return the possible faults of a list of objects, the worst first.

    The kinds are those of ObjectLab (Tkachenko et al. 2023, arXiv:2309.00832). Objects match
    one-to-one, greedily by decreasing IoU: first those of the same class, then those of different
    classes with an IoU of 0.5 or more. The score is the confidence of the answer's object times
    1 - IoU (badly located), the IoU (swapped class), or 1 without a match (overlooked).

    Objects with ``ignore`` in the label have no faults, and their matches neither. Points have no
    area, and so no IoU and no faults.
    """
    shapes: list[list[Any]] = [[item.shape for item in side.items] for side in (answer, label)]
    iou = iou_matrix(*shapes)
    one, two = (np.array([item.label for item in side.items], object) for side in (answer, label))
    same = one[:, None] == two
    rows, columns = np.nonzero(iou * (same | (iou >= FOUND_IOU)))
    order = np.lexsort((-iou[rows, columns], ~same[rows, columns]))
    pairs = Pairs(rows[order], columns[order], iou[rows, columns][order])
    pairs = pairs.select(greedy_one_to_one(pairs))
    partners = dict(zip(pairs.detection.tolist(), pairs.truth.tolist(), strict=True))
    faults = []
    for i, (item, confidence) in enumerate(zip(answer.items, confidences, strict=True)):
        kind, share, shown = OVERLOOKED, 1.0, item
        if (at := partners.get(i)) is not None:
            shown = label.items[at]
            kind, share = (BADLY_LOCATED, 1 - iou[i, at]) if same[i, at] else (SWAPPED, iou[i, at])
        if not shown.ignore and len(item.shape.points) > 1:
            faults.append(ObjectFault(kind, float(confidence * share), shown))
    return sorted(faults, key=lambda fault: -fault.score)


@torch.no_grad()
def token_losses(loaded: LoadedModel, examples: Sequence[Example]) -> list[Floats]:
    """Return the loss of each token of each example's label, in nats; the end token is the last."""
    model, config, precision = loaded.model, loaded.source.config, loaded.source.precision
    collator = make_collator(config, loaded.family)
    collator = replace(collator, length_limit=None, skip_unreadable_images=False)
    size, found = config.predict.batch_size, list[Floats]()
    for start in progress(range(0, len(examples), size), desc="reading labels", unit="batch"):
        batch = collator(examples[start : start + size])
        inputs = {k: own.to(model.device) for k, own in batch.items() if k not in BATCH_KEYS}
        mask, labels = batch["supervised"], batch["labels"].to(model.device)
        positions = batch["spans"].supervised.to(model.device)
        with precision.computing(model.device) if precision else nullcontext():
            logits = selected_logits(model, output_head(model), inputs, positions, mask.numel())
        each = [  # in chunks, because the float32 copy of all logits is large
            cross_entropy(to_compute_dtype(logits[own]), labels[own], reduction="none")
            for own in chunks(len(labels), logits.shape[-1], logits.device)
        ]
        counts = mask[: len(batch["origin"].ids)].sum(dim=1)  # without a dummy image row
        losses = torch.cat(each).double().cpu().numpy()
        found += np.split(losses, counts.cumsum(dim=0)[:-1].tolist())
    return found


def suspicion(labels: Sequence[RankedLabel]) -> Floats:
    """Return how badly each label fits its model: improbability * (1 + share), [n].

    The share is the rank of the label's distance, from 1, divided by ``n``; without a distance, it
    is 0. docs/data/labels.md compares this product with each value alone.
    """
    distance = np.array([own.distance for own in labels])
    _, at, count = np.unique(distance, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(count) - (count - 1) / 2)[at]  # equal distances share their mean rank
    shares = np.where(np.isnan(distance), 0, ranks / len(labels))
    return np.array([own.improbability for own in labels]) * (1 + shares)


def judged_labels(
    run: Path,
    source: Sources | None,
    out: Path,
    *,
    decode: str | None = None,
    log: bool = False,
    trust_remote_code: bool = False,
) -> list[RankedLabel]:
    """Return the labels of rows, in their order, set against a run that was not trained on them.

    ``predict`` answers the rows of ``source`` by the rule ``decode`` (None: the median of numbers
    and times, ``mbr`` for other answers) in the folder ``out``. If ``source`` is None, the test
    rows of the run are answered in its own folder. With ``log``, numbers are compared on the scale
    sign(x) log10(1 + |x|). Raises ValueError if a row has no label, or if the question of a row of
    ``source`` is a training question of the run.
    """
    model = read_model(run, None, trust_remote_code)
    config, examples = model.config, examples_to_answer(model.config, source)
    check_rows(config, examples)
    if source is not None and (known := known_ids(config, source, (config.data.train,))):
        raise ValueError(
            f"{named(source)}: {len(known)} of {len(examples)} rows are training rows of {run}, "
            f"such as {min(known)!r}, and a model repeats labels that it was trained on; remove "
            "these rows, or add --folds 5 to train models that have not seen them."
        )
    has_median = isinstance(examples[0].answer, ClockTime | Number)
    rule = decode or ("median" if has_median else MBR)
    file = (run if source is None else out) / decoded_name(PREDICTIONS, rule)
    predict(run, source, file, decode=rule, trust_remote_code=trust_remote_code)
    losses = token_losses(LoadedModel(model, load_family(config, model.source)), examples)
    lines, labels = {str(line["id"]): line for _, line in read_rows(file)}, list[RankedLabel]()
    for example, own in zip(examples, losses, strict=True):
        line, distance, faults = lines[example.id], math.nan, list[ObjectFault]()
        frame = None if line["frame"] is None else Frame.from_dict(line["frame"])
        answer = config.task.read(line["text"], frame)
        if isinstance(answer, Unreadable):
            answer = None
        elif isinstance(answer, Instances):
            scores = line.get("scores") or [1.0] * len(answer.items)
            faults = object_faults(example.answer, answer, scores)
            distance = max((fault.score for fault in faults), default=0.0)
        else:
            distance = label_distance(example.answer, answer, log=log)
        loss = float(own.mean())
        labels.append(RankedLabel(example, line, answer, loss, len(own), distance, faults))
    return labels


def check_rows(config: Config, examples: Sequence[Example]) -> None:
    """Raise ValueError for a row without a label, and for a baseline, which writes no texts."""
    if config.model.baseline is not None:
        raise ValueError(
            f"{config.title}, model.baseline: it predicts numbers without a distribution over "
            "texts, so that no label is improbable; use a model without it."
        )
    if bare := [example.where for example in examples if example.answer is None]:
        raise ValueError(
            f"{bare[0]}: the row has no label, and so {len(bare)} of {len(examples)}; remove them."
        )


def label_distance(label: Any, answer: Any, *, log: bool = False) -> float:
    """Return the distance of a label to an answer that is no list; see the head of this module."""
    if log and isinstance(label, Number):
        return float(abs(np.subtract(*signed_log(np.array([label.value, answer.value])))))
    risk = find_risk(by_type(RISK_OF_ANSWER, type(label), "exact"), "labels")
    return float(risk.costs([answer], [label])[0, 0])


def train_folds(config: Config, source: DataSource, folds: int, folder: Path) -> list[Path]:
    """Train a run on all rows of ``source`` but one fold, for each fold; return the run folders.

    The runs are a comparison in ``folder`` whose seeds are the folds. Finished runs are not
    repeated, and an interrupted run resumes from its last checkpoint.
    """
    config.require_weights()
    check_rows(config, examples_to_answer(config, source))
    raw, parts = config.to_dict(), {"train": f"not 0 of {folds}", "test": f"0 of {folds}"}
    raw["data"] |= {name: asdict(replace(source, fold=fold)) for name, fold in parts.items()}
    raw["predict"]["decode"], raw["evaluate"] = GREEDY, None
    raw["compare"] = {
        "output_dir": str(folder),
        "seeds": list(range(folds)),
        "objectives": [raw["objective"]],
        "control": None,
        "jobs": config.compare.jobs if config.compare else 1,
    }
    config = config_from_dict(raw, where=config.title, title=config.title)
    try:
        compare(config)
    except RunFailedError as error:
        raise ValueError(error.args[0]) from error
    planned = planned_runs(with_resolved_vary(config, folder), range(folds))
    return [run.config.output_dir for run in planned]
