"""Each protocol of detection in plain loops: one image, one pair at a time.

Slow on purpose, and written from the official scripts, not from the code under test.
"""

import numpy as np
import shapely

from mm_numeric.answers import Box


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


def icdar2015(predictions, targets):
    """Matched, detected and truths of each image, as in ``script.py`` of ICDAR 2015's task 4.1.

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
                    matched += 1
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


def deteval_total_text(predictions, targets, tr=0.7, tp=0.6, fsc_k=0.8, k=2):
    """Sums for recall and precision, and how many truths and detections, of each image."""
    rows = []
    for all_detections, all_truths, care in images(predictions, targets):
        detections = []
        for detection in all_detections:
            inside = [
                both(detection, truth) / (detection.area + 1.0)
                for truth, cares in zip(all_truths, care, strict=True)
                if not cares
            ]
            if not any(part > 0.5 for part in inside):
                detections.append(detection)
        truths = [truth for truth, cares in zip(all_truths, care, strict=True) if cares]
        sigma = np.zeros((len(truths), len(detections)))
        tau = np.zeros((len(truths), len(detections)))
        for g, truth in enumerate(truths):
            for d, detection in enumerate(detections):
                shared = both(detection, truth)
                sigma[g, d] = np.round(shared / truth.area, 2) if truth.area else 0
                tau[g, d] = np.round(shared / detection.area, 2) if detection.area else 0
        recall = precision = 0.0
        truth_used, detection_used = [False] * len(truths), [False] * len(detections)
        for g in range(len(truths)):
            good_sigma = [d for d in range(len(detections)) if sigma[g, d] > tr]
            good_tau = [d for d in range(len(detections)) if tau[g, d] > tp]
            if len(good_sigma) == 1 and len(good_tau) == 1:
                recall, precision = recall + 1, precision + 1
                truth_used[g] = detection_used[good_sigma[0]] = True
        for g in range(len(truths)):
            if truth_used[g] or sum(sigma[g, d] > 0 for d in range(len(detections))) < k:
                continue
            good = [d for d in range(len(detections)) if tau[g, d] >= tp and not detection_used[d]]
            if len(good) == 1:
                if sigma[g, good[0]] >= tr:
                    recall, precision = recall + 1, precision + 1
                    truth_used[g] = detection_used[good[0]] = True
            elif sum(sigma[g, d] for d in good) >= tr:
                recall, precision = recall + fsc_k, precision + len(good) * fsc_k
                truth_used[g] = True
                for d in good:
                    detection_used[d] = True
        for d in range(len(detections)):
            if detection_used[d] or sum(tau[g, d] > 0 for g in range(len(truths))) < k:
                continue
            good = [g for g in range(len(truths)) if sigma[g, d] >= tp and not truth_used[g]]
            if len(good) == 1:
                if tau[good[0], d] >= tp and sigma[good[0], d] >= tr:
                    recall, precision = recall + 1, precision + 1
                    truth_used[good[0]] = detection_used[d] = True
            elif sum(tau[g, d] for g in good) >= tp:
                recall, precision = recall + len(good) * fsc_k, precision + fsc_k
                detection_used[d] = True
                for g in good:
                    truth_used[g] = True
        rows.append((recall, precision, len(truths), len(detections)))
    return rows


def rectangle(shape):
    """The upright box around a shape; None for a reversed box."""
    xs, ys = zip(*shape.points, strict=True)
    if isinstance(shape, Box) and (shape.x1 > shape.x2 or shape.y1 > shape.y2):
        return None
    return min(xs), min(ys), max(xs), max(ys)


def pixels(a, b):
    """The pixels that two boxes share, where a box of one corner has one."""
    if a is None or b is None:
        return 0.0
    across = min(a[2], b[2]) - max(a[0], b[0]) + 1
    down = min(a[3], b[3]) - max(a[1], b[1]) + 1
    return across * down if across >= 0 and down >= 0 else 0.0


def deteval_icdar2013(predictions, targets, least_recall=0.8, least_precision=0.4, split=0.8):
    """Sums for recall and precision, and how many truths and detections, of each image."""
    rows = []
    for prediction, target in zip(predictions, targets, strict=True):
        detections = [] if prediction is None else [rectangle(i.shape) for i in prediction.items]
        truths = [rectangle(i.shape) for i in target.items]
        care = [not i.ignore for i in target.items]
        counted = [True] * len(detections)
        recalls = np.zeros((len(truths), len(detections)))
        precisions = np.zeros((len(truths), len(detections)))
        for g, truth in enumerate(truths):
            for d, detection in enumerate(detections):
                shared = pixels(truth, detection)
                recalls[g, d] = shared / pixels(truth, truth) if truth else 0
                precisions[g, d] = shared / pixels(detection, detection) if detection else 0
                if not care[g] and precisions[g, d] > least_precision:
                    counted[d] = False
        every_truth, every_detection = range(len(truths)), range(len(detections))

        def fits(g, d, recalls=recalls, precisions=precisions):
            return recalls[g, d] >= least_recall and precisions[g, d] >= least_precision

        def truth_overlaps(g, recalls=recalls, counted=counted):
            return sum(counted[d] and recalls[g, d] > 0 for d in range(len(counted)))

        def detection_overlaps(d, recalls=recalls, care=care):
            return sum(care[g] and recalls[g, d] > 0 for g in range(len(care)))

        truth_free, detection_free = [True] * len(truths), [True] * len(detections)
        recall = precision = 0.0
        for g in every_truth:
            for d in every_detection:
                if not (truth_free[g] and detection_free[d] and care[g] and counted[d]):
                    continue
                if sum(fits(g, other) for other in every_detection) != 1:
                    continue
                if sum(fits(other, d) for other in every_truth) != 1 or not fits(g, d):
                    continue
                if truth_overlaps(g) != 1 or detection_overlaps(d) != 1:
                    continue
                a, b = truths[g], detections[d]
                centers = [((r[0] + r[2] + 1) / 2, (r[1] + r[3] + 1) / 2) for r in (a, b)]
                apart = np.hypot(centers[0][0] - centers[1][0], centers[0][1] - centers[1][1])
                diagonals = sum(np.hypot(r[2] - r[0] + 1, r[3] - r[1] + 1) for r in (a, b))
                if 2 * apart / diagonals < 1:
                    truth_free[g] = detection_free[d] = False
                    recall, precision = recall + 1, precision + 1
        for g in every_truth:
            if not care[g] or not truth_free[g]:
                continue
            many = [
                d
                for d in every_detection
                if detection_free[d] and counted[d] and precisions[g, d] >= least_precision
            ]
            enough = round(sum(recalls[g, d] for d in many), 4) >= least_recall
            if enough and truth_overlaps(g) >= 2:
                truth_free[g] = False
                recall += 1 if len(many) == 1 else split
                precision += 1 if len(many) == 1 else split * len(many)
                for d in many:
                    detection_free[d] = False
        for d in every_detection:
            if not counted[d] or not detection_free[d]:
                continue
            many = [
                g
                for g in every_truth
                if truth_free[g] and care[g] and recalls[g, d] >= least_recall
            ]
            enough = round(sum(precisions[g, d] for g in many), 4) >= least_precision
            if enough and detection_overlaps(d) >= 2:
                detection_free[d] = False
                recall += len(many)
                precision += 1
                for g in many:
                    truth_free[g] = False
        rows.append((recall, precision, sum(care), sum(counted)))
    return rows
