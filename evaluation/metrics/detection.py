"""Detection of many shapes per image: precision, recall and their harmonic mean.

``hmean``, ``precision`` and ``recall`` follow the ICDAR 2015 script of the Robust Reading
Competition (incidental scene text, localisation), which is also used for the polygons of Total-Text
and CTW1500. In each image

1. a detection is excluded if more than half of its area lies in one ignored region;
2. IoU is intersection over union;
3. truths are visited in the order of the file, and each matches the first unmatched detection with
   an IoU above 0.5 (neither the best detection nor the best assignment).

Precision is matched / detected and recall is matched / truths, both summed over the data set.

Metrics ``..._at_t`` count pairs with an IoU of at least t, matched greedily by decreasing IoU, so
they do not depend on the order of the file. A detection in an ignored region is excluded only if it
is in no pair, so that the ground truth itself always scores 1. If labels are used, both shapes of a
pair have the same label. A missing image or an unparseable answer counts as an image without
detections.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mm_numeric.answers import Instances
from mm_numeric.evaluation.metrics.base import (
    RowColumns,
    Scorer,
    hmean_of,
    percentage,
    share_of,
    unparseable,
)
from mm_numeric.evaluation.metrics.boxes import SIZE_LIMITS_PX, SIZES, THRESHOLDS, size_name
from mm_numeric.evaluation.metrics.polygon_iou import (
    Bools,
    Pairs,
    Shapes,
    collect_shapes,
    greedy_one_to_one,
    ious,
    overlapping_pairs,
)

IGNORED_SHARE = 0.5
"""A detection is excluded if more than this share of its area lies in one ignored region."""

MATCHED_IOU = 0.5
"""IoU that a match of the ICDAR 2015 script must exceed."""


def score_instances(
    predictions: Sequence[Instances | None],
    targets: Sequence[Instances],
    *,
    labelled: bool = False,
) -> RowColumns:
    """Score each image; the targets are in the order of the ground truth file.

    If ``labelled``, a detection only matches truths with its label; an ignored region without a
    label applies to every label.

    The columns are counts, except the sum ``paired_iou`` and the flag ``unreadable``. ``matched``
    and ``detected`` follow ICDAR 2015; ``truths`` excludes ignored regions. ``paired_at_t`` counts
    pairs with an IoU of at least t, and ``counted`` the detections that are in a pair or outside of
    ignored regions. ``..._small`` and so on count truths and pairs (IoU at least 0.5) by the size
    of the truth, and detections by the size of their truth or, if unpaired, by their own.
    """
    detections, truths, pairs, outside, care = pair_detections(
        predictions, targets, labelled=labelled
    )
    iou = ious(detections, pairs.detection, truths, pairs.truth, pairs.intersection)
    above = pairs.select((iou > MATCHED_IOU) & outside[pairs.detection])
    matched = above.select(greedy_one_to_one(above))
    order = np.argsort(-iou, kind="stable")
    order = order[iou[order] >= THRESHOLDS[0]]
    best = order[greedy_one_to_one(pairs.select(order))]
    pairs, iou = pairs.select(best), iou[best]
    counts = outside.copy()
    counts[pairs.detection] = True

    def count(shapes: Shapes, which: Any, weights: Any = None) -> NDArray[np.float64]:
        counts_per_image = np.bincount(shapes.image[which], weights, minlength=len(targets))
        return counts_per_image.astype(np.float64)

    columns = {
        "matched": count(truths, matched.truth),
        "detected": count(detections, outside),
        "counted": count(detections, counts),
        "truths": count(truths, care),
        **{f"paired_at_{t:g}": count(truths, pairs.truth[iou >= t]) for t in THRESHOLDS},
        "paired_iou": count(truths, pairs.truth, iou),
    }
    truth_size = np.digitize(truths.areas, SIZE_LIMITS_PX)
    detection_size = np.digitize(detections.areas, SIZE_LIMITS_PX)
    detection_size[pairs.detection] = truth_size[pairs.truth]
    for size, name in enumerate(SIZES):
        columns[f"paired_{name}"] = count(truths, pairs.truth[truth_size[pairs.truth] == size])
        columns[f"counted_{name}"] = count(detections, counts & (detection_size == size))
        columns[f"truths_{name}"] = count(truths, care & (truth_size == size))
    columns["shapes_read"] = count(detections, slice(None))
    columns["invalid_detections"] = count(detections, detections.invalid)
    columns["invalid_truths"] = count(truths, truths.invalid)
    columns["unreadable"] = unparseable(predictions)
    return columns


class PairedDetections(NamedTuple):
    """The shapes of many images and their overlapping pairs."""

    detections: Shapes
    truths: Shapes
    pairs: Pairs
    """Overlapping pairs of detections and truths, without ignored regions."""

    outside: Bools
    """Whether each detection lies outside of every ignored region."""

    care: Bools
    """Whether each truth counts, that is, is not an ignored region."""


def pair_detections(
    predictions: Sequence[Instances | None],
    targets: Sequence[Instances],
    *,
    labelled: bool = False,
    added_px: float = 0.0,
) -> PairedDetections:
    """Return the overlapping pairs of detections and truths, and the detections to exclude.

    If ``labelled``, both shapes of a pair must have the same label. ``added_px`` is added to the
    area of a detection before it is compared with ignored regions, as in Total-Text's script.
    """
    if len(predictions) != len(targets):
        raise ValueError(f"{len(predictions)} predictions for {len(targets)} targets.")
    predicted = [() if prediction is None else prediction.items for prediction in predictions]
    true = [target.items for target in targets]
    detections, truths = (
        collect_shapes([[item.shape for item in items] for items in side])
        for side in (predicted, true)
    )
    care = np.array([not i.ignore for items in true for i in items], dtype=np.bool_)
    pairs = overlapping_pairs(detections, truths)
    if labelled:
        predicted_labels = np.array([i.label for items in predicted for i in items], dtype=object)
        true_labels = np.array([i.label for items in true for i in items], dtype=object)
        same_label = predicted_labels[pairs.detection] == true_labels[pairs.truth]
        pairs = pairs.select(same_label | (~care & (true_labels == ""))[pairs.truth])
    inside = pairs.intersection / (detections.areas[pairs.detection] + added_px) > IGNORED_SHARE
    outside = np.ones(len(detections.areas), dtype=np.bool_)
    outside[pairs.detection[inside & ~care[pairs.truth]]] = False
    return PairedDetections(detections, truths, pairs.select(care[pairs.truth]), outside, care)


def number_of(target: Instances) -> str:
    """Return the bucket of an image by its number of non-ignored truths, such as ``2 to 5``."""
    count = sum(not item.ignore for item in target.items)
    if count < 2:
        return str(count)
    return ("2 to 5", "6 to 20", "more than 20")[int(np.digitize(count, (6, 21)))]


def median_size_of(target: Instances) -> str:
    """Return COCO's size category of the median area of the non-ignored truths."""
    areas = collect_shapes([[item.shape for item in target.items if not item.ignore]]).areas
    return size_name(float(np.median(areas))) if len(areas) else "nothing to be found"


# As in other tools, nan if there is nothing to count.
_part_of = partial(share_of, nothing=float("nan"))
_ICDAR2015 = (
    percentage("hmean", "Hmean", hmean_of(("matched", "detected"), ("matched", "truths"))),
    percentage("precision", "precision", share_of("matched", "detected")),
    percentage("recall", "recall", share_of("matched", "truths")),
)
_AT_HALF = f"paired_at_{THRESHOLDS[0]:g}"
_PAIRS = (
    *(
        percentage(
            f"f1_at_{t:g}",
            f"F1@{t:g}",
            hmean_of((f"paired_at_{t:g}", "counted"), (f"paired_at_{t:g}", "truths")),
        )
        for t in THRESHOLDS
    ),
    percentage("precision_at_0.5", "precision@0.5", share_of(_AT_HALF, "counted")),
    percentage("recall_at_0.5", "recall@0.5", share_of(_AT_HALF, "truths")),
    percentage("mean_iou_of_pairs", "mean IoU of pairs", _part_of("paired_iou", _AT_HALF)),
)
_BY_SIZE = (
    *(
        percentage(f"recall_{s}", f"recall, {s}", _part_of(f"paired_{s}", f"truths_{s}"))
        for s in SIZES
    ),
    *(
        percentage(f"precision_{s}", f"precision, {s}", _part_of(f"paired_{s}", f"counted_{s}"))
        for s in SIZES
    ),
    percentage(
        "invalid_detections",
        "invalid shapes",
        share_of("invalid_detections", "shapes_read"),
        good=False,
    ),
    percentage("unreadable", "unreadable", good=False),
)
_NTIL = percentage("ntil_accuracy_at_0.5", "NTIL Acc@0.5", share_of(_AT_HALF, "truths"))
_BUCKETS = {"instances": number_of, "median size": median_size_of}
SHARED_RULES = {
    "invalid polygons": "made valid (shapely.make_valid) and counted; a shape without area stays a "
    "detection",
    "unreadable answer": "no detections in the image; its truths count",
    "sums": "over the data set",
}
"""Rules shared by all groups of metrics."""

_PAIRS_RULES = {
    "variant": "one-to-one pairs",
    "thresholds": list(THRESHOLDS),
    "comparison": "IoU >= t",
    "matching": "greedy by decreasing IoU; on a tie the first truth, then the first detection",
    "ignored regions": "an unpaired detection is excluded if more than 0.5 of it lies in one",
    "sizes": "COCO's (area below 32^2, below 96^2, from 96^2): of the truth, or of the "
    "detection if it is unpaired",
    **SHARED_RULES,
}

TEXT_DETECTION = Scorer(
    columns=score_instances,
    metrics=(*_ICDAR2015, *_PAIRS, _NTIL, *_BY_SIZE),
    buckets=_BUCKETS,
    protocols={
        "hmean, precision, recall": {
            "variant": "ICDAR 2015 script of the Robust Reading Competition; for Total-Text and "
            "CTW1500 the same on their polygons",
            "thresholds": [MATCHED_IOU],
            "comparison": "IoU > t",
            "matching": "truths in file order, each matches the first unmatched detection",
            "ignored regions": "a detection is excluded if more than 0.5 of it lies in one",
            "labels": "ignored",
            **SHARED_RULES,
        },
        "*_at_t, mean_iou_of_pairs, *_small, *_medium, *_large": {
            **_PAIRS_RULES,
            "labels": "ignored",
        },
        "ntil_accuracy_at_0.5": {
            "variant": "share of truths in a pair with an IoU of at least 0.5: recall_at_0.5 "
            "under the name used in a table whose definition is not published",
        },
    },
)
"""Scorer of text detection: shapes without labels."""

LABELLED_DETECTION = Scorer(
    columns=partial(score_instances, labelled=True),
    metrics=(*_PAIRS, *_BY_SIZE),
    buckets=_BUCKETS,
    protocols={
        "all": {**_PAIRS_RULES, "labels": "must be equal, including case"},
    },
)
"""Scorer of object detection: shapes with labels."""
