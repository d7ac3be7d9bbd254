"""Metrics of text spotting: the end-to-end and the word spotting protocol of ICDAR 2015.

A detection is a predicted shape, a truth is a ground-truth shape; their texts are their labels.

Both protocols match shapes by the rules of detection (``hmean``), without comparing texts. A pair
is correct if its texts are equal, ignoring case, and only correct pairs count as found:

end-to-end      A truth may have one of the characters ``!?.:,*"()·[]/'`` at its beginning, at its
                end or at both, which the detection may leave out.
word spotting   Only words are scored. ``'s`` at the end of a truth and hyphens at both ends are
                removed, and the characters above become spaces. If a single word of at least three
                Latin or Greek letters and hyphens (no digits) is left, the detection must equal it.
                All other truths are ignored regions.

The scorer uses no lexicon: in the competition, participants correct their answers with a lexicon
before they submit them, as the option ``lexicon`` of the task does. Both protocols omit detections
with ``ignore``, such as words without a match in the lexicon; these only count for ``hmean``.

Source: the script of the Robust Reading Competition, https://rrc.cvc.uab.es, challenge 4, task 4
(E2E_iou_1_1.py; ``WORD_SPOTTING``, ``ONLY_REMOVE_FIRST_LAST_CHARACTER``). The script fails on a
truth with an empty text; here, such a truth only equals a detection with an empty text.
"""

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from mm_numeric.answers import Instance, Instances
from mm_numeric.evaluation.metrics import repeats
from mm_numeric.evaluation.metrics.base import (
    Metric,
    RowColumns,
    Scorer,
    Success,
    hmean_of,
    percentage,
    share_of,
)
from mm_numeric.evaluation.metrics.detection import (
    TEXT_DETECTION,
    PairedDetections,
    pair_detections,
    score_instances,
)
from mm_numeric.evaluation.metrics.polygon_iou import Bools, Floats, Pairs

_SPECIAL = "!?.:,*\"()·[]/'"
_AS_SPACES = str.maketrans(dict.fromkeys(_SPECIAL, " "))
_WORD = re.compile("[-a-zA-ZÀ-ÖØ-öø-ƿǄ-ɿΆ-Ͽ]{3,}")  # without the signs × and ÷
_Equal = Callable[[str, str], bool]


def score_words(
    predictions: Sequence[Instances | None], targets: Sequence[Instances]
) -> RowColumns:
    """Compare predicted words with true words, and count them per image.

    The columns of ``detection.score_instances`` are included. For each protocol, further columns
    count pairs with equal texts, detections that are not excluded, and truths that are not ignored.
    """
    columns = score_instances(predictions, targets)
    images = len(targets)
    submitted = list(map(_submitted, predictions))
    words = [Instances(tuple(map(_as_word, target.items))) for target in targets]
    for name, wanted, are_equal in (
        ("end_to_end", targets, _equal_end_to_end),
        ("word_spotting", words, operator.eq),
    ):
        found, pairs, official, correct = _compared(submitted, wanted, are_equal)
        for what, image in (
            ("correct", found.truths.image[pairs.truth[correct]]),
            ("detected", found.detections.image[official]),
            ("truths", found.truths.image[found.care]),
        ):
            columns[f"{name}_{what}"] = np.bincount(image, minlength=images).astype(np.float64)
    return columns


def words_right(
    predictions: Sequence[Instances | None], targets: Sequence[Instances]
) -> list[Floats]:
    """Return for each image an array that tells which predicted words are correct: 1, 0 or nan.

    The value is 1 if the word is correct in the end-to-end protocol. It is nan if the word is
    excluded because it lies in an ignored region or has ``ignore``. Otherwise it is 0.
    """
    submitted = list(map(_submitted, predictions))
    _, pairs, official, correct = _compared(submitted, targets, _equal_end_to_end)
    own = np.where(official, 0.0, np.nan)
    own[pairs.detection[correct]] = 1.0
    ignored = [i.ignore for p in predictions if p is not None for i in p.items]
    right = np.full(len(ignored), np.nan)
    right[~np.array(ignored, dtype=np.bool_)] = own
    sizes = [0 if prediction is None else len(prediction.items) for prediction in predictions]
    return np.split(right, np.cumsum(sizes)[:-1])


def _submitted(prediction: Instances | None) -> Instances | None:
    return prediction and Instances(tuple(i for i in prediction.items if not i.ignore))


def _compared(
    predictions: Sequence[Instances | None], targets: Sequence[Instances], are_equal: _Equal
) -> tuple[PairedDetections, Pairs, Bools, Bools]:
    """Match the words of all images, and compare the texts of the p pairs.

    Return all overlaps, the matched pairs, and two masks: True for detections that are not
    excluded, [detections], and True for pairs with equal texts, [p].
    """
    found = pair_detections(predictions, targets)
    pairs, official = found.icdar2015_pairs()
    detected = [i.label.upper() for p in predictions if p is not None for i in p.items]
    true = [i.label.upper() for target in targets for i in target.items]
    equal = (
        are_equal(true[t], detected[d]) for t, d in zip(pairs.truth, pairs.detection, strict=True)
    )
    return found, pairs, official, np.fromiter(equal, np.bool_, len(pairs.truth))


def _equal_end_to_end(true: str, detected: str) -> bool:
    starts = {0, int(true[:1] in _SPECIAL)}
    ends = {len(true), len(true) - (true[-1:] in _SPECIAL)}
    return any(true[start:end] == detected for start in starts for end in ends)


def _as_word(item: Instance) -> Instance:
    """Return a true word as the word spotting protocol compares it.

    A final ``'s`` and hyphens at both ends are removed, and special characters become spaces. The
    word is marked ``ignore`` unless a single word of three letters or more remains.
    """
    if item.ignore:
        return item
    text = item.label[:-2] if item.label[-2:] in ("'s", "'S") else item.label
    text = text.strip("-").translate(_AS_SPACES).strip()
    return replace(item, label=text, ignore=not _WORD.fullmatch(text))


def _protocol(name: str, label: str) -> tuple[Metric, ...]:
    correct = f"{name}_correct"
    precision, recall = (correct, f"{name}_detected"), (correct, f"{name}_truths")
    return (
        percentage(f"{name}_hmean", f"{label} Hmean", hmean_of(precision, recall)),
        percentage(f"{name}_precision", f"{label} precision", share_of(*precision)),
        percentage(f"{name}_recall", f"{label} recall", share_of(*recall)),
    )


_OF_DETECTION = {metric.name: metric for metric in TEXT_DETECTION.metrics}
_RULES = TEXT_DETECTION.protocols["hmean, precision, recall"]
_SCRIPT = "ICDAR 2015 script of the Robust Reading Competition, challenge 4, task 4"
_TEXTS = "texts must be equal, ignoring case"
TEXT_SPOTTING = Scorer(
    columns=score_words,
    metrics=(
        *_protocol("end_to_end", "end-to-end"),
        *_protocol("word_spotting", "word spotting"),
        replace(_OF_DETECTION["hmean"], label="detection Hmean"),
        *(_OF_DETECTION[name] for name in ("invalid_detections", "unreadable")),
        *repeats.METRICS,
    ),
    largest=repeats.LARGEST,
    buckets=TEXT_DETECTION.buckets,
    counts={"correct": "end_to_end_correct", **TEXT_DETECTION.counts},
    success=Success(label="the shape and the text of a true word", objects=words_right),
    protocols={
        "end_to_end_*": {
            **_RULES,
            "variant": _SCRIPT,
            "labels": f"{_TEXTS}; a special character at an end of a truth may be missing",
        },
        "word_spotting_*": {
            **_RULES,
            "variant": f"{_SCRIPT}, with WORD_SPOTTING",
            "labels": f"{_TEXTS}; truths that are no words are ignored regions",
        },
        "hmean": _RULES,
        **repeats.RULES,
    },
)
"""Scorer for text spotting, whose labels are the texts of words."""
