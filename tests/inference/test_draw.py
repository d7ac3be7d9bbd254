"""Answers are drawn where they are."""

import pytest
from PIL import Image, ImageColor

from mm_numeric.answers import Box, ClockTime, Instance, Instances, Number, Polygon
from mm_numeric.inference.draw import ANSWER_COLOUR, draw_hands, draw_shapes, drawn_answer

ORANGE = ImageColor.getrgb(ANSWER_COLOUR)


def blank(width=100, height=100):
    return Image.new("RGB", (width, height), "white")


def drawn(image):
    return {
        (x, y)
        for x in range(image.width)
        for y in range(image.height)
        if image.getpixel((x, y)) == ORANGE
    }


@pytest.mark.parametrize(
    ("time", "hour", "minute"),
    [
        (ClockTime(3, 0), (70, 50), (50, 15)),
        (ClockTime(12, 15), (53, 30), (85, 50)),
        (ClockTime(6, 30), (45, 69), (50, 85)),  # the hour hand is half an hour after 6
        (ClockTime(9, 45), (31, 45), (15, 50)),
    ],
)
def test_the_hands_point_to_the_time(time, hour, minute):
    image = blank()
    draw_hands(image, time, ANSWER_COLOUR)
    for x, y in (hour, minute):
        assert min(abs(a - x) + abs(b - y) for a, b in drawn(image)) <= 2
    ends = [p for p in drawn(image) if (p[0] - 50) ** 2 + (p[1] - 50) ** 2 > 30**2]
    assert all(abs(x - minute[0]) < 12 and abs(y - minute[1]) < 12 for x, y in ends)


def test_shapes_are_outlines_at_their_scaled_place():
    image = blank()
    shapes = [Instance(Box(5, 10, 20, 30)), Instance(Polygon(((40, 40),)))]
    draw_shapes(image, [*shapes, Instance(Box(0, 0, 1e9, 1))], ANSWER_COLOUR, scale=2)
    found = drawn(image)
    assert {(10, 20), (40, 20), (40, 60), (10, 60), (25, 20), (80, 80), (82, 81)} <= found
    assert (25, 40) not in found
    assert (90, 80) not in found


@pytest.mark.parametrize(
    "answer", [ClockTime(3, 0), Instances((Instance(Box(1, 1, 5, 5), "größe"),)), Number("7"), None]
)
def test_a_small_image_is_enlarged_and_has_a_caption(answer):
    texts = ["größe 90 %"] if isinstance(answer, Instances) else []
    image = drawn_answer(blank(40, 20), (40, 20), answer, "an answer", texts)
    assert image.size == (480, 240 + 36)
    assert min(image.crop((0, 240, 480, 276)).convert("L").tobytes()) < 100
    assert bool(drawn(image)) is not (answer is None or isinstance(answer, Number))


def test_a_large_image_is_made_smaller():
    assert drawn_answer(blank(2560, 100), (2560, 100), None, "").size == (1280, 50 + 36)
