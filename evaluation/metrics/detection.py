"""Many shapes in an image: what was found of them, and what was found that is not there.

The figures ``hmean``, ``precision`` and ``recall`` are those of the ICDAR 2015 script of the Robust
Reading Competition (incidental scene text, localisation), which is used for Total-Text and CTW1500,
too, with their polygons. In each image

1. a detection is left out when more than half of its area is in one region to be ignored;
2. IoU is the shared area over the sum of both areas less the shared one;
3. truths are gone through in the order of the file, and each takes the first free detection with
   an IoU above 0.5 (not the best one, and not the best assignment);

precision is matched / detected and recall matched / truths, both summed over the data set.

The figures ``..._at_t`` are of pairs with an IoU of at least t, the best pair of an image first:
they do not depend on an order. Here a detection in a region to be ignored is left out only if it is
in no pair, so that the ground truth itself is always a perfect answer. With labels, those of a pair
must be the same. A missing image, or an answer that could not be read, is an image in which
nothing was found.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mm_numeric.answers import Instances
from mm_numeric.evaluation.metrics.base import Columns, Metric, Scorer, hmean_of, mean_of, share_of
from mm_numeric.evaluation.metrics.boxes import SIZE_LIMITS_PX, SIZES, THRESHOLDS, size_name
from mm_numeric.evaluation.metrics.polygon_iou import (
    Bools,
    Pairs,
    Shapes,
    gather,
    ious,
    one_to_one,
    overlapping,
)

IGNORED_SHARE = 0.5
"""A detection more of which is in one region to be ignored is left out."""

MATCHED_IOU = 0.5
"""A match has an IoU above it."""


def score_instances(
    predictions: Sequence[Instances | None],
    targets: Sequence[Instances],
    *,
    labelled: bool = False,
) -> dict[str, NDArray[np.float64]]:
    """Judge each image.

    Args:
        predictions: None where the answer could not be read, or there is none.
        targets: As many, in the order of the ground truth's file.
        labelled: Whether a detection finds a thing of its own label only. A region to be ignored
            that has no label is ignored under any.

    Returns:
        One value an image for each column, all of them counts but ``paired_iou``, a sum, and
        ``unreadable``. ``matched`` and ``detected`` are those of ICDAR 2015, ``truths`` those not
        to be ignored; ``paired_at_t`` counts pairs with an IoU of at least t, the best first, and
        ``counted`` the detections in a pair or outside of ignored regions; ``..._small`` and so on
        count pairs of 0.5 and truths by the size of the truth, and detections by that of their
        truth or, without, by their own.
    """
    detections, truths, pairs, outside, care = paired(predictions, targets, labelled=labelled)
    iou = ious(detections, pairs.detection, truths, pairs.truth, pairs.shared)
    above = pairs.at((iou > MATCHED_IOU) & outside[pairs.detection])
    matched = above.at(one_to_one(above))
    order = np.argsort(-iou, kind="stable")
    order = order[iou[order] >= THRESHOLDS[0]]
    best = order[one_to_one(pairs.at(order))]
    pairs, iou = pairs.at(best), iou[best]
    counts = outside.copy()
    counts[pairs.detection] = True

    def count(shapes: Shapes, which: Any, weights: Any = None) -> NDArray[np.float64]:
        found = np.bincount(shapes.image[which], weights, minlength=len(targets))
        return found.astype(np.float64)

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
    columns["unreadable"] = np.array([p is None for p in predictions], dtype=np.float64)
    return columns


class Paired(NamedTuple):
    """The shapes of many images, and which of them overlap."""

    detections: Shapes
    truths: Shapes
    pairs: Pairs
    """Of truths to be found and detections of any kind."""

    outside: Bools
    """Which detections are in no region to be ignored."""

    care: Bools
    """Which truths are to be found."""


def paired(
    predictions: Sequence[Instances | None],
    targets: Sequence[Instances],
    *,
    labelled: bool = False,
    added_px: float = 0.0,
) -> Paired:
    """Pair detections with the truths that they overlap, and find those in ignored regions.

    Args:
        predictions: None where nothing was found.
        targets: As many.
        labelled: Whether only shapes of one label are paired.
        added_px: What one script adds to the area of a detection here, so as not to divide by 0.

    Raises:
        ValueError: If there are not as many predictions as targets.
    """
    if len(predictions) != len(targets):
        raise ValueError(f"{len(predictions)} predictions for {len(targets)} targets.")
    found = [() if prediction is None else prediction.items for prediction in predictions]
    wanted = [target.items for target in targets]
    detections, truths = (gather([[i.shape for i in p] for p in side]) for side in (found, wanted))
    care = np.array([not i.ignore for items in wanted for i in items], dtype=np.bool_)
    pairs = overlapping(detections, truths)
    if labelled:
        said = np.array([i.label for items in found for i in items], dtype=object)
        meant = np.array([i.label for items in wanted for i in items], dtype=object)
        alike = said[pairs.detection] == meant[pairs.truth]
        pairs = pairs.at(alike | (~care & (meant == ""))[pairs.truth])
    inside = pairs.shared / (detections.areas[pairs.detection] + added_px) > IGNORED_SHARE
    outside = np.ones(len(detections.areas), dtype=np.bool_)
    outside[pairs.detection[inside & ~care[pairs.truth]]] = False
    return Paired(detections, truths, pairs.at(care[pairs.truth]), outside, care)


def number_of(target: Instances) -> str:
    """Return how many things there are to be found, in steps."""
    count = sum(not item.ignore for item in target.items)
    if count < 2:
        return str(count)
    return ("2 to 5", "6 to 20", "more than 20")[int(np.digitize(count, (6, 21)))]


def median_size_of(target: Instances) -> str:
    """Return the median size of the things to be found: small, medium or large, as COCO has it."""
    areas = gather([[item.shape for item in target.items if not item.ignore]]).areas
    return size_name(float(np.median(areas))) if len(areas) else "nothing to be found"


def share(name: str, label: str, value: Callable[[Columns], Any], *, good: bool = True) -> Metric:
    """Return a metric that is a share."""
    return Metric(name=name, label=label, unit="%", higher_is_better=good, value=value)


_part_of = partial(share_of, nothing=float("nan"))  # where other tools have no say
_ICDAR2015 = (
    share("hmean", "Hmean", hmean_of(("matched", "detected"), ("matched", "truths"))),
    share("precision", "precision", share_of("matched", "detected")),
    share("recall", "recall", share_of("matched", "truths")),
)
_AT_HALF = f"paired_at_{THRESHOLDS[0]:g}"
_PAIRS = (
    *(
        share(
            f"f1_at_{t:g}",
            f"F1@{t:g}",
            hmean_of((f"paired_at_{t:g}", "counted"), (f"paired_at_{t:g}", "truths")),
        )
        for t in THRESHOLDS
    ),
    share("precision_at_0.5", "precision@0.5", share_of(_AT_HALF, "counted")),
    share("recall_at_0.5", "recall@0.5", share_of(_AT_HALF, "truths")),
    share("mean_iou_of_pairs", "mean IoU of pairs", _part_of("paired_iou", _AT_HALF)),
)
_BY_SIZE = (
    *(share(f"recall_{s}", f"recall, {s}", _part_of(f"paired_{s}", f"truths_{s}")) for s in SIZES),
    *(
        share(f"precision_{s}", f"precision, {s}", _part_of(f"paired_{s}", f"counted_{s}"))
        for s in SIZES
    ),
    share(
        "invalid_detections",
        "invalid shapes",
        share_of("invalid_detections", "shapes_read"),
        good=False,
    ),
    share("unreadable", "unreadable", mean_of("unreadable"), good=False),
)
_NTIL = share("ntil_accuracy_at_0.5", "NTIL Acc@0.5", share_of(_AT_HALF, "truths"))
_BUCKETS = {"instances": number_of, "median size": median_size_of}
SHARED_RULES = {
    "invalid polygons": "made valid (shapely.make_valid), and counted; what covers nothing stays a "
    "detection",
    "unreadable answer": "nothing was found in the image; its truths count",
    "sums": "over the data set",
}
"""What is the same for all groups of figures."""

_PAIRS_RULES = {
    "variant": "one-to-one pairs",
    "thresholds": list(THRESHOLDS),
    "comparison": "IoU >= t",
    "matching": "the pair with the highest IoU first; of equal ones the first truth, then the "
    "first detection",
    "ignored regions": "a detection in no pair is left out when more than 0.5 of it is in one",
    "sizes": "COCO's (area below 32^2, below 96^2, from 96^2): of the truth, and of the detection "
    "where it has none",
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
            "matching": "truths in the order of the file, each takes the first free detection",
            "ignored regions": "a detection is left out when more than 0.5 of it is in one",
            "labels": "not looked at",
            **SHARED_RULES,
        },
        "*_at_t, mean_iou_of_pairs, *_small, *_medium, *_large": {
            **_PAIRS_RULES,
            "labels": "not looked at",
        },
        "ntil_accuracy_at_0.5": {
            "variant": "share of truths that are in a pair of at least 0.5: recall_at_0.5 under "
            "the name of a table whose definition is not published",
        },
    },
)
"""Words of an image: no labels."""

LABELLED_DETECTION = Scorer(
    columns=partial(score_instances, labelled=True),
    metrics=(*_PAIRS, *_BY_SIZE),
    buckets=_BUCKETS,
    protocols={
        "all": {**_PAIRS_RULES, "labels": "must be equal, letter by letter"},
    },
)
"""Things of several kinds."""
