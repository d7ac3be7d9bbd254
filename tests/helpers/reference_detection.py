"""Each protocol of detection in plain loops: one image, one pair at a time.

Slow on purpose, and written from the official scripts, not from the code under test.
"""

import functools

import numpy as np
import shapely

from mm_numeric.answers import Box


@functools.cache  # each pair of an image asks for two
def outline(shape):
    """What a shape covers."""
    if isinstance(shape, Box):
        if shape.x1 >= shape.x2 or shape.y1 >= shape.y2:
            return shapely.Polygon()
        return shapely.box(shape.x1, shape.y1, shape.x2, shape.y2)
    if len(shape.points) < 3:
        return shapely.Polygon()
    found = shapely.Polygon(shape.points)
    return found if found.is_valid else shapely.make_valid(found)


def both(a, b):
    """The area that two outlines share."""
    return a.intersection(b).area if a.area and b.area else 0.0


def iou(a, b):
    """A intersection B over A + B - intersection."""
    either = a.area + b.area - both(a, b)
    return both(a, b) / either if either > 0 else 0.0


def share(part, whole):
    return part / whole if whole else 0.0


def hmean(precision, recall):
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def images(predictions, targets):
    """Outlines of detections and truths, and which truths are "care"."""
    for prediction, target in zip(predictions, targets, strict=True):
        detections = [] if prediction is None else [outline(i.shape) for i in prediction.items]
        truths = [outline(i.shape) for i in target.items]
        yield detections, truths, [not i.ignore for i in target.items]


def in_dont_care(detection, truths, care):
    """Whether more than half of a detection is in one don't-care region."""
    for truth, cares in zip(truths, care, strict=True):
        if cares or not detection.area:
            continue
        if both(detection, truth) / detection.area > 0.5:
            return True
    return False


def ring(shape):
    """The corners of a shape, in the order in which they were written."""
    if isinstance(shape, Box):
        return [(shape.x1, shape.y1), (shape.x2, shape.y1), (shape.x2, shape.y2),
                (shape.x1, shape.y2)] if outline(shape).area else []  # fmt: skip
    return list(shape.points)


def ring_area(shape):
    """``area()`` of the package Polygon: the absolute value of the shoelace formula."""
    points = ring(shape)
    turned = zip(points, points[1:] + points[:1], strict=True)
    return 0.5 * abs(sum((x1 + x2) * (y2 - y1) for (x1, y1), (x2, y2) in turned))


def icdar2015(predictions, targets, correct=lambda truth, detection: True):
    """Matched, detected and truths of each image, as in ``script.py`` of ICDAR 2015's task 4.1.

    Of the pairs, those count whose labels are ``correct``: task 4.4 compares texts.
    ``&`` of the package Polygon follows the even-odd rule, as ``shapely.make_valid`` does.
    """
    rows = []
    for prediction, target in zip(predictions, targets, strict=True):
        detections = [] if prediction is None else [i.shape for i in prediction.items]
        truths = [i.shape for i in target.items]
        dont_care_truths = [n for n, i in enumerate(target.items) if i.ignore]
        dont_care_detections = []
        for d, detection in enumerate(detections):
            for g in dont_care_truths:
                shared, area = both(outline(truths[g]), outline(detection)), ring_area(detection)
                if (0 if area == 0 else shared / area) > 0.5:
                    dont_care_detections.append(d)
                    break
        truth_taken, detection_taken = [False] * len(truths), [False] * len(detections)
        matched = 0
        for g, truth in enumerate(truths):
            for d, detection in enumerate(detections):
                if truth_taken[g] or detection_taken[d]:
                    continue
                if g in dont_care_truths or d in dont_care_detections:
                    continue
                shared = both(outline(truth), outline(detection))
                union = ring_area(detection) + ring_area(truth) - shared
                if (shared / union if union else 0) > 0.5:
                    truth_taken[g] = detection_taken[d] = True
                    texts = target.items[g].label, prediction.items[d].label
                    matched += correct(*texts)
        rows.append(
            (matched, len(detections) - len(dont_care_detections),
             len(truths) - len(dont_care_truths))
        )  # fmt: skip
    return rows


def best_first(predictions, targets, least=0.5, labelled=False):
    """IoU, truth and detection of each pair of each image, best first; which detections count."""
    found = []
    for (detections, truths, care), prediction, target in zip(
        images(predictions, targets), predictions, targets, strict=True
    ):
        names = [] if prediction is None else [i.label for i in prediction.items]
        wanted = [i.label for i in target.items]
        counted = []
        for detection, name in zip(detections, names, strict=True):
            alike = [not labelled or label in (name, "") for label in wanted]
            regions = [t for t, same in zip(truths, alike, strict=True) if same]
            cares = [c for c, same in zip(care, alike, strict=True) if same]
            counted.append(not in_dont_care(detection, regions, cares))
        pairs = []
        while True:
            best = None
            for g, truth in enumerate(truths):
                for d, detection in enumerate(detections):
                    taken = any(g == pair[1] or d == pair[2] for pair in pairs)
                    if not care[g] or taken:
                        continue
                    if labelled and wanted[g] != names[d]:
                        continue
                    overlap = iou(truth, detection)
                    if overlap >= least and (best is None or overlap > best[0]):
                        best = (overlap, g, d)
            if best is None:
                break
            pairs.append(best)
            counted[best[2]] = True  # whatever it lies in
        found.append((pairs, counted))
    return found


TR, TP, FSC_K, K = 0.7, 0.6, 0.8, 2


def total_text_shared(a, b):
    """``area_of_intersection`` of polygon_fast.py."""
    a, b = (shapely.Polygon(points) if len(points) > 2 else shapely.Polygon() for points in (a, b))
    return float(a.buffer(0).intersection(b.buffer(0)).area)


def total_text_area(points):
    """``area`` of polygon_fast.py."""
    return float(shapely.Polygon(points).area) if len(points) > 2 else 0.0


def total_text_ratio(shared, area):
    """Rounded as in Deteval.py, which stops at a polygon of area 0; here it overlaps nothing."""
    return np.round(shared / area, 2) if area else 0.0


def deteval_total_text(predictions, targets):
    """Sums for recall and precision, and how many truths and detections, of each image.

    Step by step as in Evaluation_Protocol/Python_scripts/Deteval.py of cs-chan/Total-Text-Dataset,
    in the version since April 2019.
    """
    rows = []
    for prediction, target in zip(predictions, targets, strict=True):
        detections = [] if prediction is None else [ring(i.shape) for i in prediction.items]
        for region in (ring(i.shape) for i in target.items if i.ignore):
            detections = [
                d
                for d in detections
                if not total_text_shared(d, region) / (total_text_area(d) + 1.0) > 0.5
            ]
        truths = [ring(i.shape) for i in target.items if not i.ignore]
        sigma, tau = np.zeros((2, len(truths), len(detections)))
        for g, truth in enumerate(truths):
            for d, detection in enumerate(detections):
                areas = total_text_area(truth), total_text_area(detection)
                if all(areas):
                    shared = total_text_shared(detection, truth)
                    sigma[g, d] = total_text_ratio(shared, areas[0])
                    tau[g, d] = total_text_ratio(shared, areas[1])
        recall, precision = total_text_credits(sigma, tau)
        rows.append((recall, precision, len(truths), len(detections)))
    return rows


def total_text_credits(sigma, tau):
    """The functions ``one_to_one``, ``one_to_many`` and ``many_to_one`` of Deteval.py."""
    truth_flag, detection_flag = np.zeros(sigma.shape[0]), np.zeros(sigma.shape[1])
    recall = precision = 0.0
    for g in range(sigma.shape[0]):
        own_sigma, own_tau = np.where(sigma[g, :] > TR)[0], np.where(tau[g, :] > TP)[0]
        # All entries of the columns of these detections: those with other truths count, too.
        column_sigma = np.where(sigma[:, own_sigma] > TR)[0]
        column_tau = np.where(tau[:, own_tau] > TP)[0]
        if len(own_sigma) == len(own_tau) == len(column_sigma) == len(column_tau) == 1:
            recall, precision = recall + 1.0, precision + 1.0
            truth_flag[g] = 1
            detection_flag[own_sigma] = 1
    for g in range(sigma.shape[0]):
        if truth_flag[g] > 0 or (sigma[g, :] > 0).sum() < K:
            continue
        found = np.where((tau[g, :] >= TP) & (detection_flag == 0))[0]
        if len(found) == 1:
            if tau[g, found[0]] >= TP and sigma[g, found[0]] >= TR:
                recall, precision = recall + 1.0, precision + 1.0
                truth_flag[g] = detection_flag[found[0]] = 1
        elif sigma[g, found].sum() >= TR:
            recall, precision = recall + FSC_K, precision + len(found) * FSC_K
            truth_flag[g] = detection_flag[found] = 1
    for d in range(sigma.shape[1]):
        if detection_flag[d] > 0 or (tau[:, d] > 0).sum() < K:
            continue
        found = np.where((sigma[:, d] >= TP) & (truth_flag == 0))[0]
        if len(found) == 1:
            if tau[found[0], d] >= TP and sigma[found[0], d] >= TR:
                recall, precision = recall + 1.0, precision + 1.0
                truth_flag[found[0]] = detection_flag[d] = 1
        elif tau[found, d].sum() >= TP:
            recall, precision = recall + len(found) * FSC_K, precision + FSC_K
            truth_flag[found] = detection_flag[d] = 1
    return recall, precision
