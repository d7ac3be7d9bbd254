"""Metrics for the detection of many shapes per image: precision, recall and their harmonic mean.

Words: a detection is a predicted shape, a truth is a ground-truth shape, and a pair is a detection
matched to a truth. An ignored region is a truth that need not be detected, such as illegible text.

``hmean``, ``precision`` and ``recall`` follow the ICDAR 2015 script of the Robust Reading
Competition (incidental scene text, localisation), which is also used for the polygons of Total-Text
and CTW1500. In each image

1. a detection is excluded if more than half of its area lies in one ignored region;
2. truths are visited in the order of the file. Each matches the first unmatched detection with
   IoU > 0.5, even if a later detection fits better.

Precision = matched / detections and recall = matched / truths; all counts are sums over the images.

The script computes areas with the package Polygon (Polygon2, Polygon3). The area of a polygon that
crosses itself is the absolute value of the shoelace formula, in which the polygon's loops may
cancel each other. Intersections follow the even-odd rule. ``hmean``, ``precision`` and ``recall``
do the same, so an IoU may exceed 1. For all other metrics, such a polygon is repaired.

Metrics named ``..._at_t`` match greedily by decreasing IoU and count pairs with IoU >= t. The order
of the file does not matter for them. They exclude a detection in an ignored region only if it is
unpaired; therefore the ground truth itself always scores 1. Object detection only pairs shapes with
the same label. A missing image or an unparseable answer counts as an image without detections.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import shapely
from numpy.typing import NDArray

from mm_numeric.answers import Instances
from mm_numeric.evaluation.metrics import repeats
from mm_numeric.evaluation.metrics.base import (
    THRESHOLDS,
    UNREADABLE,
    RankRules,
    RowColumns,
    Scorer,
    Success,
    hmean_of,
    part_of,
    percentage,
    share_of,
    unparseable,
)
from mm_numeric.evaluation.metrics.boxes import SIZE_LIMITS_PX, SIZES, size_name
from mm_numeric.evaluation.metrics.coco_ap import METRIC_NAMES, Rules, rank_answers
from mm_numeric.evaluation.metrics.coco_rows import collect_masks, mask_sizes, overlapping_masks
from mm_numeric.evaluation.metrics.polygon_iou import (
    Bools,
    Floats,
    Pairs,
    Shapes,
    collect_shapes,
    greedy_one_to_one,
    ious,
    overlapping_pairs,
)
from mm_numeric.evaluation.metrics.ranking import Ranking, ranking_metrics

IGNORED_SHARE = 0.5
"""A detection is excluded if more than this fraction of its area is in one ignored region."""

MATCHED_IOU = 0.5
"""Two shapes match under the ICDAR 2015 rules if their IoU is greater than this."""


def score_instances(
    predictions: Sequence[Instances | None], targets: Sequence[Instances], *, labelled: bool = False
) -> RowColumns:
    """Compare detections (predicted shapes) with truths (true shapes), and count them per image.

    If ``labelled``, a detection only matches truths with the same label. An ignored region, such as
    illegible text, applies to all labels if it has no label.

    ``matched`` and ``detected`` count pairs and detections under the ICDAR 2015 rules,
    ``paired_at_t`` counts pairs with IoU >= t, and ``counted`` counts detections that are paired or
    outside of ignored regions. Columns such as ``counted_small`` count one COCO size; a paired
    detection is counted by the size of its truth, any other detection by its own size.
    ``paired_iou`` is the sum of the IoUs of all pairs.
    """
    found = pair_detections(predictions, targets, labelled=labelled)
    detections, truths, care = found.detections, found.truths, found.care
    matched, official = found.icdar2015_pairs()
    pairs, iou, counts = found.best_pairs()

    def count(shapes: Shapes, which: Any, weights: Any = None) -> NDArray[np.float64]:
        counts_per_image = np.bincount(shapes.image[which], weights, minlength=len(targets))
        return counts_per_image.astype(np.float64)

    columns = {
        "matched": count(truths, matched.truth),
        "detected": count(detections, official),
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
    return columns | repeats.columns_of(predictions)


def count_labels(
    predictions: Sequence[Instances | None], targets: Sequence[Instances]
) -> dict[str, NDArray[np.int64]]:
    """Count the true shapes, the detections and the pairs (by IoU threshold) of each label.

    A detection is counted under the predicted label. So a box with a wrong label is an error of two
    labels. Labels that only occur in ignored regions or excluded detections are left out.
    """
    found = pair_detections(predictions, targets, labelled=True)
    pairs, iou, counted = found.best_pairs()
    predicted = [i.label for p in predictions if p is not None for i in p.items]
    true = [i.label for target in targets for i in target.items]
    number: dict[str, int] = {}
    of_predicted, of_true = (
        np.array([number.setdefault(label, len(number)) for label in own], dtype=np.int64)
        for own in (predicted, true)
    )
    groups = [
        of_true[found.care],
        of_predicted[counted],
        *(of_true[pairs.truth[iou >= threshold]] for threshold in THRESHOLDS),
    ]
    columns = np.stack([np.bincount(own, minlength=len(number)) for own in groups], axis=1)
    return {label: columns[i] for label, i in sorted(number.items()) if columns[i].any()}


class PairedDetections(NamedTuple):
    """Predicted shapes (detections) and true shapes (truths) of many images, and their overlaps."""

    detections: Shapes
    truths: Shapes
    pairs: Pairs
    """All overlapping detections and truths. Truths that are ignored regions are left out."""

    ignored: Pairs
    """All overlapping detections and ignored regions."""

    care: Bools
    """True for a truth that is not an ignored region, [truths]."""

    def outside_ignored(self, areas: Floats, added_px: float = 0.0) -> Bools:
        """Return True for each detection that is not in an ignored region, [detections].

        A detection is in an ignored region if their intersection is larger than half of the
        detection's area (from ``areas``, [detections]) plus ``added_px``. Total-Text's script adds
        1 square pixel.
        """
        area = areas[self.ignored.detection] + added_px
        share = np.divide(self.ignored.intersection, area, out=np.zeros_like(area), where=area > 0)
        outside = np.ones(len(areas), dtype=np.bool_)
        outside[self.ignored.detection[share > IGNORED_SHARE]] = False
        return outside

    def icdar2015_pairs(self) -> tuple[Pairs, Bools]:
        """Match detections with truths as the script of ICDAR 2015 does.

        Also return a mask, [detections]: True for detections that the script does not exclude.
        """
        outside = self.outside_ignored(self.detections.ring_areas)
        is_above = ious(self.detections, self.truths, self.pairs, ring_areas=True) > MATCHED_IOU
        above = self.pairs.select(is_above & outside[self.pairs.detection])
        return above.select(greedy_one_to_one(above)), outside

    def best_pairs(self) -> tuple[Pairs, Floats, Bools]:
        """Match detections with truths one-to-one, greedily by decreasing IoU, with IoU >= 0.5.

        Return the p pairs, their IoU, [p], and a mask, [detections]: True for detections that are
        paired or outside of ignored regions.
        """
        iou = ious(self.detections, self.truths, self.pairs)
        order = np.argsort(-iou, kind="stable")
        order = order[iou[order] >= THRESHOLDS[0]]
        best = order[greedy_one_to_one(self.pairs.select(order))]
        pairs = self.pairs.select(best)
        counts = self.outside_ignored(self.detections.areas)
        counts[pairs.detection] = True
        return pairs, iou[best], counts


def objects_right(
    predictions: Sequence[Instances | None], targets: Sequence[Instances], *, labelled: bool = False
) -> list[Floats]:
    """Return for each image an array that tells which detections are correct: 1, 0 or nan.

    The value is 1 if the detection is paired with a truth at an IoU of at least 0.5, nan if it is
    excluded because it lies in an ignored region, and otherwise 0. If ``labelled``, both shapes of
    a pair must have the same label. An unparseable answer has an empty array.
    """
    found = pair_detections(predictions, targets, labelled=labelled)
    pairs, _, counts = found.best_pairs()
    right = np.where(counts, 0.0, np.nan)
    right[pairs.detection] = 1.0
    sizes = [0 if prediction is None else len(prediction.items) for prediction in predictions]
    return np.split(right, np.cumsum(sizes)[:-1])


def pair_detections(
    predictions: Sequence[Instances | None],
    targets: Sequence[Instances],
    *,
    labelled: bool = False,
    repair: Callable[[NDArray[np.object_]], NDArray[np.object_]] = shapely.make_valid,
) -> PairedDetections:
    """Find all overlapping pairs of a predicted shape and a true shape or ignored region.

    If ``labelled``, both shapes of a pair must have the same label. ``repair`` is a function from
    invalid shapely polygons to valid geometries. If true shapes have masks, masks are compared.
    """
    if len(predictions) != len(targets):
        raise ValueError(f"{len(predictions)} predictions for {len(targets)} targets.")
    predicted = [() if prediction is None else prediction.items for prediction in predictions]
    true = [target.items for target in targets]
    care = np.array([not i.ignore for items in true for i in items], dtype=np.bool_)
    if sizes := mask_sizes(true):
        (detections, masks), (truths, true_masks) = (
            collect_masks(side, sizes) for side in (predicted, true)
        )
        pairs = overlapping_masks(detections, masks, truths, true_masks)
    else:
        detections, truths = (
            collect_shapes([[item.shape for item in items] for items in side], repair)
            for side in (predicted, true)
        )
        pairs = overlapping_pairs(detections, truths)
    if labelled:
        predicted_labels = np.array([i.label for items in predicted for i in items], dtype=object)
        true_labels = np.array([i.label for items in true for i in items], dtype=object)
        same_label = predicted_labels[pairs.detection] == true_labels[pairs.truth]
        pairs = pairs.select(same_label | (~care & (true_labels == ""))[pairs.truth])
    cares = care[pairs.truth]
    return PairedDetections(detections, truths, pairs.select(cares), pairs.select(~cares), care)


def scores_by_iou(
    predictions: Sequence[Instances | None], targets: Sequence[Instances]
) -> list[list[float]]:
    """Return artificial confidences that rank detections by best IoU: AP is as high as possible."""
    found = pair_detections(predictions, targets, labelled=True)
    best = np.zeros(len(found.detections.image))
    np.maximum.at(best, found.pairs.detection, ious(found.detections, found.truths, found.pairs))
    ranks = np.argsort(np.argsort(best, kind="stable")).astype(np.float64).tolist()
    items = [() if prediction is None else prediction.items for prediction in predictions]
    return [[ranks.pop(0) for _ in own] for own in items]


def number_of(target: Instances) -> str:
    """Return the bucket of an image by its number of true shapes, such as ``2 to 5``."""
    count = sum(not item.ignore for item in target.items)
    if count < 2:
        return str(count)
    return ("2 to 5", "6 to 20", "more than 20")[int(np.digitize(count, (6, 21)))]


def median_size_of(target: Instances) -> str:
    """Return COCO's size, such as ``small``, for the median area of the true shapes in an image."""
    areas = collect_shapes([[item.shape for item in target.items if not item.ignore]]).areas
    return size_name(float(np.median(areas))) if len(areas) else "nothing to be found"


_ICDAR2015 = (
    percentage("hmean", "Hmean", hmean_of(("matched", "detected"), ("matched", "truths"))),
    percentage("precision", "precision", share_of("matched", "detected")),
    percentage("recall", "recall", share_of("matched", "truths")),
)
_AT_HALF = f"paired_at_{THRESHOLDS[0]:g}"
_PAIR_METRICS = (
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
    percentage("mean_iou_of_pairs", "mean IoU of pairs", part_of("paired_iou", _AT_HALF)),
)
_SIZE_METRICS = (
    *(
        percentage(f"recall_{s}", f"recall, {s}", part_of(f"paired_{s}", f"truths_{s}"))
        for s in SIZES
    ),
    *(
        percentage(f"precision_{s}", f"precision, {s}", part_of(f"paired_{s}", f"counted_{s}"))
        for s in SIZES
    ),
    percentage(
        "invalid_detections",
        "invalid shapes",
        share_of("invalid_detections", "shapes_read"),
        good=False,
    ),
    UNREADABLE,
    *repeats.METRICS,
)
_COUNTS = {
    "truths": "truths",
    "detections": "detected",
    "invalid detections": "invalid_detections",
    "invalid truths": "invalid_truths",
}
_NTIL = percentage("ntil_accuracy_at_0.5", "NTIL Acc@0.5", share_of(_AT_HALF, "truths"))
_BUCKETS = {"instances": number_of, "median size": median_size_of}
SHARED_RULES = {
    "invalid polygons": "made valid (shapely.make_valid) and counted; a shape without area stays a "
    "detection",
    "unreadable answer": "no detections in the image; its truths count",
    "sums": "over the data set",
}
"""Rules that are the same for all detection metrics, as stored in results.json."""

_MASKS = "pixels by pycocotools, if the rows have masks (max_points of detection)"
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
    metrics=(*_ICDAR2015, *_PAIR_METRICS, _NTIL, *_SIZE_METRICS),
    buckets=_BUCKETS,
    counts={"matched": "matched", **_COUNTS},
    largest=repeats.LARGEST,
    success=Success(label="IoU of at least 0.5 with a true shape", objects=objects_right),
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
            "invalid polygons": "as in the script (package Polygon): area by the shoelace formula, "
            "intersection by the even-odd rule; counted; a shape without area stays a detection",
        },
        "*_at_t, mean_iou_of_pairs, *_small, *_medium, *_large": {
            **_PAIRS_RULES,
            "labels": "ignored",
        },
        "ntil_accuracy_at_0.5": {
            "variant": "share of truths in a pair with an IoU of at least 0.5: recall_at_0.5 "
            "under the name used in a table whose definition is not published"
        },
        **repeats.RULES,
    },
)
"""Scorer for text detection, which ignores labels."""


def _rank(
    predictions: Sequence[Instances | None],
    targets: Sequence[Instances],
    scores: Sequence[Sequence[float | None] | None] | None = None,
) -> Ranking:
    masks = mask_sizes([target.items for target in targets])
    rules = Rules(iou="segm" if masks else "bbox")
    return rank_answers(predictions, targets, scores, rules, may_be_empty=True)


LABELLED_DETECTION = Scorer(
    columns=partial(score_instances, labelled=True),
    labels=count_labels,
    metrics=(*_PAIR_METRICS, *_SIZE_METRICS),
    ranked=RankRules(
        rank=_rank,
        metrics=(*_PAIR_METRICS, *ranking_metrics(METRIC_NAMES), *_SIZE_METRICS),
        protocol={
            "coco_ap": {
                **Rules().protocol("of the rows (predict: mean probability of tokens)"),
                "shapes": f"upright boxes around them; {_MASKS}",
            }
        },
    ),
    buckets=_BUCKETS,
    counts={"matched": _AT_HALF, **_COUNTS, "detections": "counted"},
    largest=repeats.LARGEST,
    success=Success(
        label="IoU of at least 0.5 with a true shape of the same label",
        objects=partial(objects_right, labelled=True),
    ),
    protocols={
        "all": {**_PAIRS_RULES, "labels": "must be equal, including case", "shapes": _MASKS},
        **repeats.RULES,
    },
)
"""Scorer for object detection, where labels must be equal."""
