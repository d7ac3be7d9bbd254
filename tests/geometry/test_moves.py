"""Shapes that move with the pixels of their image."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageDraw

from mm_numeric.answers import Box, Instance, Instances, Number, Polygon
from mm_numeric.geometry.masks import box_and_point, mask_contains, mask_of
from mm_numeric.geometry.moves import Affine, KeptShare, moved_mask, moved_shape

MIRROR = Affine.scaling(-1, 1, left=100)
PIXELS = st.floats(-200, 200)


@given(st.floats(-45, 45), st.floats(0.2, 4), PIXELS, PIXELS, PIXELS, PIXELS)
def test_the_inverse_moves_back(degrees, factor, left, top, x, y):
    turn, resize = Affine.rotation(degrees, (left, top)), Affine.scaling(factor, -1, left, top)
    for move in (turn, resize):
        assert move.inverse().point(move.point((x, y))) == pytest.approx((x, y), abs=1e-7)


@given(st.lists(st.tuples(PIXELS, PIXELS), min_size=4, max_size=7))
def test_mirroring_twice_gives_the_polygon_back(points):
    """From the same first corner on, in the same direction."""
    twice = moved_shape(moved_shape(Polygon(tuple(points)), MIRROR), MIRROR)
    assert np.allclose(twice.points, points)


def test_a_mirrored_polygon_keeps_its_direction():
    clockwise = Polygon(((10, 10), (30, 10), (30, 20)))
    assert moved_shape(clockwise, MIRROR) == Polygon(((90, 10), (70, 20), (70, 10)))


def test_a_turned_box_is_around_the_turned_ellipse():
    angles = np.linspace(0, 2 * np.pi, 10_001)
    x, y = 40 + 20 * np.cos(angles), 50 + 8 * np.sin(angles)
    turn = Affine.rotation(25, (10, 10))
    xs, ys = turn.point((x, y))
    found = moved_shape(Box(20, 42, 60, 58), turn)
    wanted = (xs.min(), ys.min(), xs.max(), ys.max())
    assert (found.x1, found.y1, found.x2, found.y2) == pytest.approx(wanted, abs=1e-5)


def test_boxes_are_clipped_and_lost_below_the_share():
    move = Affine.scaling(1, 1, left=-10)
    kept = KeptShare(0.75, 4)
    assert kept.shape(Box(0, 0, 40, 20), move, (100, 100)) == Box(0, 0, 30, 20)
    assert kept.shape(Box(0, 0, 39, 20), move, (100, 100)) is None
    assert kept.shape(Box(-90, 0, -80, 20), move, (100, 100)) is None
    for cut in (Polygon(((5, 5), (40, 5), (40, 20))), Polygon(((2, 50),))):
        assert kept.shape(cut, move, (100, 100)) is None


def test_objects_stay_as_large_as_the_smallest_or_as_they_were():
    half, kept = Affine.scaling(0.5, 0.5), KeptShare(0.5, 4)
    assert kept.shape(Box(0, 0, 8, 30), half, (100, 100)) == Box(0, 0, 4, 15)
    assert kept.shape(Box(0, 0, 7, 30), half, (100, 100)) is None
    assert kept.shape(Box(0, 0, 2, 2), Affine.scaling(1, 1), (100, 100)) == Box(0, 0, 2, 2)


def test_one_lost_object_loses_the_answer_and_one_to_ignore_does_not():
    move, kept = Affine.scaling(1, 1, left=-50), KeptShare(0.75, 4)
    lost, right = Instance(Box(0, 0, 20, 20)), Instance(Box(60, 0, 90, 20), "a", point=(70, 9))
    assert kept.answer(Instances((lost, right)), move, (100, 100)) is None
    crowd = Instance(Box(0, 0, 20, 20), ignore=True)
    found = kept.answer(Instances((crowd, right)), move, (100, 100))
    assert found.items[1] == Instance(Box(10, 0, 40, 20), "a", point=(20, 9))
    outside = Instances((Instance(Box(40, 0, 90, 20), point=(45, 9)),))
    assert kept.answer(outside, move, (100, 100)) is None
    assert kept.answer(Number("7"), move, (100, 100)) == Number("7")


def test_a_mask_moves_as_its_pixels():
    image = Image.new("L", (40, 30))
    ImageDraw.Draw(image).polygon([(3, 4), (30, 9), (12, 25)], fill=255)
    mask = mask_of(np.asarray(image))
    mirrored = moved_mask(mask, Affine.scaling(-1, 1, left=40), (40, 30))
    assert mirrored == mask_of(np.asarray(image)[:, ::-1])
    window = moved_mask(mask, Affine.scaling(1, 1, -10, -5), (20, 22))
    assert window == mask_of(np.asarray(image.crop((10, 5, 30, 27))))
    box, point = box_and_point(mask)
    item = Instance(box, point=point, mask=mask)
    moved = KeptShare(0.5, 4).answer(Instances((item,)), Affine.rotation(9, (20, 15)), (40, 30))
    (found,) = moved.items
    assert found.shape == box_and_point(found.mask)[0]
    x, y = (np.array([edge]) for edge in found.point)
    assert mask_contains(found.mask, x, y).all()
