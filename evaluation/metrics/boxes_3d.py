"""Metrics of boxes in space: precision, recall and F1 of pairs, centre error, and AP as in Omni3D.

f1_at_0.25       Boxes of one label in an image are paired one-to-one, greedily by decreasing IoU,
                 from 0.25 on. An unpaired detection with this IoU with an ignored box of its label
                 does not count. All counts are sums over the images
centre_error     mean distance in metres between the centres of these pairs
ap_15, ap_25     AP at one IoU, averaged over the labels; ``ap`` is the mean over IoU 0.05 to 0.5,
                 and ``ap_near``, ``ap_medium`` and ``ap_far`` the same for true boxes with a depth
                 of up to 10, up to 35 and above 35 metres

AP has the rules of COCO, with depths in place of areas. An ignored box is matched once, if no other
box fits. Boxes with a negative depth are ignored, as in the script, if they are true or unmatched.
Qwen3-VL's report has ``ap_15`` of boxes that all have the confidence 1. AP then depends on the
order of the images, so that boxes of equal confidence are averaged here (``ties`` of ``coco_ap``).
Boxes without confidences are ranked as equal. A box with a size of 0 or less has the IoU 0.

For two of its data sets, Omni3D's script also ignores detections that are far from every true box;
that is not done here.

Source: https://github.com/facebookresearch/omni3d, cubercnn/evaluation/omni3d_evaluation.py
(Omni3Deval). Its IoU of 32-bit numbers (PyTorch3D) is computed here with 64 bits, to 1e-6.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from mm_numeric.answers import Box3D, Boxes3D
from mm_numeric.evaluation.metrics import base
from mm_numeric.evaluation.metrics.coco_ap import Rules, rank_sides
from mm_numeric.evaluation.metrics.coco_matching import IouOfPairs, Side, find_overlaps
from mm_numeric.evaluation.metrics.coco_rows import checked_scores, flat_scores
from mm_numeric.evaluation.metrics.detection import number_of
from mm_numeric.evaluation.metrics.polygon_iou import Floats, Ints, Pairs, greedy_one_to_one
from mm_numeric.evaluation.metrics.ranking import Ranking, ranking_metrics
from mm_numeric.geometry.boxes_3d import rotation_matrices

LEAST_IOU = 0.25
"""IoU from which boxes are paired."""

OMNI3D = Rules(
    ties="averaged",
    thresholds=tuple(np.linspace(0.05, 0.5, 10).tolist()),
    percents=(15, 25, 50),
    areas={"near": (0, 10), "medium": (10, 35), "far": (35, 1e5)},
)

_MOST_PAIRS = 2000  # whose planes are intersected at once
_FIRST, _SECOND = np.triu_indices(12, 1)  # pairs of the planes of two boxes
_OTHER = (np.arange(12) != _FIRST[:, None]) & (np.arange(12) != _SECOND[:, None])
_PARALLEL = 1e-9  # sine of the angle between two planes
# Planes of two boxes must not coincide. So one box is larger by this share of its largest size, in
# each direction by another one, which is far above rounding errors and below any annotation's.
_LARGER = 1e-8 * (1 + np.arange(6) / 7)


def box_ious(a: Floats, b: Floats) -> Floats:
    """Compute the IoU of p pairs of boxes in space, [p], given their numbers, [p, 9]."""
    volumes = [own[:, 3:6].clip(min=0).prod(axis=1) for own in (a, b)]
    reach = sum(np.linalg.norm(own[:, 3:6], axis=1) / 2 for own in (a, b))
    near = np.linalg.norm(a[:, :3] - b[:, :3], axis=1) < reach
    near &= np.minimum(a[:, 3:6], b[:, 3:6]).min(axis=1, initial=np.inf) > 0
    shared = np.zeros(len(a))
    for start in range(0, int(near.sum()), _MOST_PAIRS):
        at = np.flatnonzero(near)[start : start + _MOST_PAIRS]
        shared[at] = _shared_volumes(a[at], b[at])
    shared = np.clip(shared, 0, np.minimum(*volumes))
    return np.divide(shared, volumes[0] + volumes[1] - shared, out=np.zeros(len(a)), where=near)


def _shared_volumes(a: Floats, b: Floats) -> Floats:
    """Compute the volume that two boxes share, [p], from the edges of this polyhedron.

    A volume is the sum over its faces of area x distance / 3, and an area is the sum over its edges
    of length x distance / 2, with signed distances from any point. An edge is the part within
    all planes of the line in which two planes intersect.
    """
    planes = [_planes(a, a[:, :3]), _planes(b, a[:, :3], _LARGER)]
    normals, offsets = (np.concatenate(own, axis=1) for own in zip(*planes, strict=True))
    one, two = normals[:, _FIRST], normals[:, _SECOND]
    d_one, d_two = offsets[:, _FIRST], offsets[:, _SECOND]
    along = np.cross(one, two)  # [p, edges, 3]
    sine = np.linalg.norm(along, axis=-1)
    crosses = sine > _PARALLEL
    sine[~crosses] = 1.0
    along /= sine[..., None]
    cosine = (one * two).sum(axis=-1)
    s_one, s_two = (d_two - cosine * d_one) / sine, (d_one - cosine * d_two) / sine
    start = d_one[..., None] * one + s_one[..., None] * np.cross(along, one)
    speed = along @ normals.swapaxes(1, 2)  # [p, edges, planes]
    slack = offsets[:, None] - start @ normals.swapaxes(1, 2)
    with np.errstate(over="ignore"):
        ends = slack / np.where(speed == 0, 1e-300, speed)
    upper = np.where(_OTHER & (speed >= 0), ends, np.inf).min(axis=-1)
    lower = np.where(_OTHER & (speed < 0), ends, -np.inf).max(axis=-1)
    lengths = np.where(crosses & (upper > lower), upper - lower, 0.0)
    return np.asarray((lengths * (d_one * s_one + d_two * s_two)).sum(axis=-1) / 6)


def _planes(boxes: Floats, origin: Floats, larger: Floats | float = 0.0) -> tuple[Floats, Floats]:
    """Return the outward normals, [p, 6, 3], of the faces of boxes, and their distances, [p, 6]."""
    axes = rotation_matrices(boxes[:, 6:]).swapaxes(1, 2)
    normals = np.concatenate([axes, -axes], axis=1)
    halves = np.tile(boxes[:, 3:6] / 2, 2)
    halves += halves.max(axis=1, keepdims=True) * larger
    return normals, (normals @ (boxes[:, :3] - origin)[..., None])[..., 0] + halves


def _compare(
    predictions: Sequence[Boxes3D | None], targets: Sequence[Boxes3D]
) -> tuple[Side, Side, list[str], IouOfPairs, tuple[Floats, Floats]]:
    """Return the detections, the true boxes, the labels, the function of IoUs, and the centres."""
    images = [[() if own is None else own.items for own in side] for side in (predictions, targets)]
    labels = sorted({item.label for side in images for items in side for item in items})
    (detections, found), (truths, true) = (_side(side, labels) for side in images)

    def iou(at: Ints, at_truth: Ints) -> Floats:
        return box_ious(found[at], true[at_truth])

    return detections, truths, labels, iou, (found[:, :3], true[:, :3])


def _side(images: Sequence[Sequence[Box3D]], labels: Sequence[str]) -> tuple[Side, Floats]:
    """Return the boxes of all images as arrays, and their numbers, [n, 9]."""
    flat = [item for items in images for item in items]
    numbers = np.array([item.numbers for item in flat], dtype=np.float64).reshape(-1, 9)
    ignored = np.array([item.ignore for item in flat], dtype=np.bool_)
    side = Side(
        image=np.repeat(np.arange(len(images)), [len(items) for items in images]),
        label=np.array([labels.index(item.label) for item in flat], dtype=np.int64),
        areas=np.where(ignored, -1.0, numbers[:, 2]),  # depths; -1 is in no range of depths
        scores=np.zeros(len(flat)),
        crowd=np.zeros(len(flat), dtype=np.bool_),
    )
    return side, numbers


def score_boxes(
    predictions: Sequence[Boxes3D | None], targets: Sequence[Boxes3D]
) -> base.RowColumns:
    """Compare boxes in space with true boxes.

    Columns (numbers per image): ``paired``, ``counted`` (detections that are paired or not in an
    ignored box), ``truths`` (not ignored), ``paired_iou`` and ``centre_error`` (sums over the
    pairs, in metres), and ``unreadable``: 1 if the answer is unparseable, otherwise 0.
    """
    detections, truths, _, iou_of_pairs, centres = _compare(predictions, targets)
    ignored = truths.areas < 0
    group, truth_group = (s.label * len(targets) + s.image for s in (detections, truths))
    kept = np.argsort(group, kind="stable")
    at, truth, iou = find_overlaps(kept, group, truth_group, iou_of_pairs, LEAST_IOU)
    order = np.lexsort((kept[at], truth, -iou))
    pairs = Pairs(kept[at][order], truth[order], iou[order])
    counts = np.ones(len(detections), dtype=np.bool_)
    counts[pairs.detection[ignored[pairs.truth]]] = False
    pairs = pairs.select(~ignored[pairs.truth])
    pairs = pairs.select(greedy_one_to_one(pairs))
    counts[pairs.detection] = True
    apart = np.linalg.norm(centres[0][pairs.detection] - centres[1][pairs.truth], axis=1)

    def count(image: Ints, weights: Floats | None = None) -> Floats:
        return np.bincount(image, weights, minlength=len(targets)).astype(np.float64)

    image = truths.image[pairs.truth]
    return {
        "paired": count(image),
        "counted": count(detections.image[counts]),
        "truths": count(truths.image[~ignored]),
        "paired_iou": count(image, pairs.intersection),
        "centre_error": count(image, apart),
        "unreadable": base.unparseable(predictions),
    }


def rank_boxes(
    predictions: Sequence[Boxes3D | None],
    targets: Sequence[Boxes3D],
    scores: Sequence[Sequence[float | None] | None],
) -> Ranking:
    """Compute AP as in Omni3D of boxes, which are ranked by ``scores``."""
    flat = list(flat_scores(scores, [() if own is None else own.items for own in predictions]))
    detections, truths, labels, iou, _ = _compare(predictions, targets)
    if flat:
        detections = replace(detections, scores=checked_scores(flat, OMNI3D.ties, len(truths)))
    ranking = rank_sides(detections, truths, len(targets), iou, labels, OMNI3D)
    return replace(ranking, title="Omni3D")


_PRECISION, _RECALL = ("paired", "counted"), ("paired", "truths")
_METRICS = (
    base.percentage("f1_at_0.25", "F1@0.25", base.hmean_of(_PRECISION, _RECALL)),
    base.percentage("precision_at_0.25", "precision@0.25", base.share_of(*_PRECISION)),
    base.percentage("recall_at_0.25", "recall@0.25", base.share_of(*_RECALL)),
    base.percentage("mean_iou_of_pairs", "mean IoU of pairs", base.part_of("paired_iou", "paired")),
    base.error_metric("centre_error", "centre error", "m", base.part_of("centre_error", "paired")),
    base.UNREADABLE,
)
BOXES_3D = base.Scorer(
    columns=score_boxes,
    metrics=_METRICS,
    buckets={"instances": number_of},
    counts={"matched": "paired", "truths": "truths", "detections": "counted"},
    ranked=base.RankRules(
        rank=rank_boxes,
        needs_scores=False,
        metrics=(*_METRICS, *ranking_metrics(n for n in OMNI3D.metric_names if n[:2] == "ap")),
        protocol={
            "omni3d_ap": {
                **OMNI3D.protocol("of the rows (predict: mean probability of tokens)"),
                "variant": "Omni3D, omni3d_evaluation.py: AP3D; areas are depths in metres",
                "detections far from every truth": "wrong; the script ignores them for two of its "
                "data sets",
                "shapes": "turned boxes in space",
                "ignored regions": "matched once, if no other box fits; neither correct nor wrong",
            }
        },
    ),
    protocols={
        "all": {
            "variant": "one-to-one pairs of boxes in space with an IoU of at least 0.25",
            "matching": "greedy by decreasing IoU; labels must be equal, including case",
            "ignored regions": "an unpaired detection with this IoU with one does not count",
            "unreadable answer": "no detections in the image; its truths count",
        }
    },
)
"""Scorer for boxes in space."""
