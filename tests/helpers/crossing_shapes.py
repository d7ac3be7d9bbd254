"""Polygons with integer corners, some of which cross themselves, drawn by Python's own generator.

The figures that official scripts print for them are constants of the tests, so that the drawing
must not depend on numpy's generators.
"""

import random
from itertools import pairwise

from mm_numeric.answers import Instance, Instances, Polygon


def instances(rings, ignored=()):
    """Convert rings, lists of corners, to the shapes of one image."""
    shapes = (Polygon(tuple((float(x), float(y)) for x, y in ring)) for ring in rings)
    return Instances(tuple(Instance(s, ignore=i in ignored) for i, s in enumerate(shapes)))


def _quad(draw, reach):
    """Return the corners of a word, each moved by at most ``reach`` pixels."""
    x, y = draw.randrange(0, 200), draw.randrange(0, 120)
    width, height = draw.randrange(20, 90), draw.randrange(10, 40)
    corners = [(x, y), (x + width, y), (x + width, y + height), (x, y + height)]
    return [(a + draw.randint(-reach, reach), b + draw.randint(-reach, reach)) for a, b in corners]


def moved_quads(count, seed, reach=25):
    """Return for each image the predicted rings, the true rings, and the ignored truths.

    Corners are moved by up to ``reach`` pixels, so that many quadrilaterals cross themselves. Some
    predictions have two corners exchanged or one corner twice.
    """
    draw = random.Random(seed)
    images = []
    for _ in range(count):
        truths = [_quad(draw, draw.choice((2, 2, reach))) for _ in range(draw.randint(1, 7))]
        found = []
        for truth in truths:
            spread = draw.choice((1, 4, 4, reach))
            ring = [(x + draw.randint(-spread, spread), y + draw.randint(-spread, spread))
                    for x, y in truth]  # fmt: skip
            spoiled = draw.random()
            if spoiled < 0.2:
                ring[2], ring[3] = ring[3], ring[2]
            elif spoiled < 0.3:
                ring[1] = ring[0]
            if draw.random() < 0.85:
                found.append(ring)
        draw.shuffle(found)
        images.append((found, truths, [i for i in range(len(truths)) if draw.random() < 0.25]))
    return images


def split_words(count, seed):
    """Return images like ``moved_quads``, whose words are split, merged or found twice."""
    draw = random.Random(seed)
    images = []
    for _ in range(count):
        found, truths = [], []
        for row in range(draw.randint(1, 4)):
            cuts = sorted(draw.sample(range(0, 200, 5), draw.randint(2, 5)))
            ends = list(pairwise(cuts))
            top, bottom = 40 * row, 40 * row + 24
            parts = [_strip(draw, a, b, top, bottom) for a, b in ends]
            whole = [_strip(draw, cuts[0], cuts[-1], top, bottom)]
            split, merged = (parts, whole) if draw.random() < 0.5 else (whole, parts)
            found += split
            truths += merged
            if draw.random() < 0.4:  # a second detection of the first word, or a second truth
                copy = _strip(draw, cuts[0], ends[0][1], top, bottom)
                (found if draw.random() < 0.6 else truths).append(copy)
        draw.shuffle(found)
        images.append((found, truths, [i for i in range(len(truths)) if draw.random() < 0.1]))
    return images


def _strip(draw, left, right, top, bottom):
    """Return a polygon of six corners around a word; one in eight crosses itself."""
    middle, bend = (left + right) // 2, draw.randint(-4, 4)
    right -= draw.randint(0, 2)
    ring = [(left, top), (middle, top + bend), (right, top), (right, bottom),
            (middle, bottom + bend), (left, bottom)]  # fmt: skip
    if draw.random() < 1 / 8:
        ring[4], ring[5] = ring[5], ring[4]
    return ring
