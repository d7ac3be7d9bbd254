"""Made-up images of shapes, with all that is hard about them."""

import numpy as np

from mm_numeric.answers import Box, Instance, Instances, Polygon

LABELS = ("", "cat", "dog")


def rectangle(x, y, width, height, as_polygon):
    """An upright box, as it is or as a polygon."""
    if not as_polygon:
        return Box(x, y, x + width, y + height)
    return Polygon(((x, y), (x + width, y), (x + width, y + height), (x, y + height)))


def quad(draw, whole):
    """Four corners near those of a box, in either sense of rotation."""
    x, y = draw.uniform(0, 60, 2)
    width, height = draw.uniform(8, 30, 2)
    points = np.array([[x, y], [x + width, y], [x + width, y + height], [x, y + height]])
    points += draw.uniform(-3, 3, (4, 2))
    points = np.round(points) if whole else points
    return Polygon(tuple(map(tuple, points[:: draw.choice([1, -1])].tolist())))


def tangle(draw):
    """A few points of a coarse grid: it crosses or touches itself, or is a line, or a point."""
    count = draw.integers(1, 9)
    return Polygon(tuple(map(tuple, (draw.integers(0, 6, (count, 2)) * 6.0).tolist())))


def shape(draw, kind):
    """Any shape."""
    if kind == "tangles":
        return tangle(draw)
    if kind == "quads":
        return quad(draw, whole=draw.random() < 0.5)
    x, y, width, height = (draw.integers(0, 8, 4) * 4.0).tolist()
    if kind == "boxes" and draw.random() < 0.1:
        width = -width  # reversed
    return rectangle(x, y, width, height, as_polygon=kind == "rectangles")


def moved(draw, original):
    """A shape near another one; a half or a quarter of it, often, so that there are ties."""
    if isinstance(original, Box):
        x1, y1, x2, y2 = original.x1, original.y1, original.x2, original.y2
        cut = draw.choice([0, 0, 0.25, 0.5])
        return Box(x1, y1, x2 - cut * (x2 - x1), y2) if draw.random() < 0.7 else original
    points = np.array(original.points)
    return Polygon(tuple(map(tuple, (points + draw.integers(-2, 3, 2)).tolist())))


KINDS = ("boxes", "rectangles", "quads", "tangles", "mixed")


def made_up(count, seed, kind="mixed", most=6):
    """Return predictions and targets of ``count`` images."""
    draw = np.random.default_rng(seed)
    predictions, targets = [], []
    for _ in range(count):
        kinds = KINDS[:4] if kind == "mixed" else (kind,)
        truths = [shape(draw, draw.choice(kinds)) for _ in range(draw.integers(0, most))]
        found = [moved(draw, s) for s in truths if draw.random() < 0.8]
        found += [moved(draw, s) for s in truths if draw.random() < 0.3]
        found += [shape(draw, draw.choice(kinds)) for _ in range(draw.integers(0, 3))]
        draw.shuffle(found)
        targets.append(
            Instances(
                tuple(Instance(s, str(draw.choice(LABELS)), draw.random() < 0.25) for s in truths)
            )
        )
        labelled = tuple(Instance(s, str(draw.choice(LABELS[1:]))) for s in found)
        predictions.append(None if draw.random() < 0.05 else Instances(labelled))
    return predictions, targets
