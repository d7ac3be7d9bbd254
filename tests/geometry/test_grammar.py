"""Regular expressions of coordinates and shapes match exactly what a frame writes."""

import functools
import re

import pytest
from examples import examples
from hypothesis import example, given
from hypothesis import strategies as st

from mm_numeric.answers import Box, Instance, Instances, Polygon, Unreadable
from mm_numeric.geometry.coordinates import COORDINATES
from mm_numeric.geometry.frames import Frame, Resize
from mm_numeric.geometry.grammar import (
    LABEL_LENGTH,
    box_regex,
    level_regex,
    list_regex,
    number_regex,
    rest_of_box,
)
from mm_numeric.inference.expressions import Expressions, parse_regex

RESIZES = {
    "squash": Resize(kind="squash", side=224),
    "letterbox": Resize(kind="letterbox", side=336),
    "none": Resize(kind="none"),
}
OFTEN = examples(10)
EDGES = st.integers(2, 2000)
CORNERS = st.lists(st.tuples(*[st.floats(0, 1)] * 4), min_size=1, max_size=3)


@st.composite
def frames_with_boxes(draw):
    """Return the size of an image and some boxes in it."""
    width, height = draw(EDGES), draw(EDGES)
    boxes = []
    for corners in draw(CORNERS):  # as parts of the width and the height
        (x1, x2), (y1, y2) = sorted(corners[:2]), sorted(corners[2:])
        boxes.append(Box(x1 * width, y1 * height, x2 * width, y2 * height))
    return (width, height), boxes


def frame_of(size, name, kind):
    return Frame(*size, RESIZES[kind].view(*size), COORDINATES[name])


@given(low=st.integers(0, 3000), more=st.integers(0, 3000), decimals=st.integers(0, 6))
@examples(200)
def test_a_number_is_in_the_range_and_nothing_else(low, more, decimals):
    pattern = re.compile(number_regex(low, low + more, decimals))
    near = {*range(30), *range(low - 15, low + 15), *range(low + more - 15, low + more + 15)}
    for number in near - set(range(-20, 0)):
        text = f"{number / 10**decimals:.{decimals}f}"
        assert bool(pattern.fullmatch(text)) == (low <= number <= low + more), (text, pattern)
        for other in (f"0{text}", f"-{text}", text + "0", text + ".", ""):
            assert not pattern.fullmatch(other) or (other == text + "0" and not decimals)


def test_a_range_is_one():
    with pytest.raises(ValueError, match="begins at 0 or later"):
        number_regex(3, 2)


@pytest.mark.parametrize("name", COORDINATES)
def test_every_level_matches_as_it_is_written(name):
    coordinates = COORDINATES[name]
    high = coordinates.largest(640)
    pattern = re.compile(level_regex(coordinates, 7, high))
    for level in range(high + 1):
        assert bool(pattern.fullmatch(coordinates.numeral(level))) == (level >= 7)
    if coordinates.bins is None:
        assert not pattern.fullmatch(coordinates.numeral(high + 1))


@pytest.mark.slow
@pytest.mark.parametrize("name", COORDINATES)
@given(case=frames_with_boxes())
@example(case=((4, 2), [Box(0, 0, 0, 2e-311)]))
@OFTEN
def test_boxes_match_and_their_second_corner_is_right_and_below(name, case):
    size, boxes = case
    for kind in RESIZES:
        frame = frame_of(size, name, kind)
        pattern = re.compile(box_regex(frame))
        for box in boxes:
            text = frame.write([Instance(box)]).text
            assert pattern.fullmatch(text), kind
            rests = {i: rest_of_box(frame, text[:i]) for i in range(len(text) + 1)}
            (at,) = [i for i, rest in rests.items() if rest is not None]
            assert re.fullmatch(rests[at], text[at:]), kind
            swapped = frame.write([Instance(Box(*box.points[1], *box.points[0]))]).text
            if swapped != text and box.x1 < box.x2 and box.y1 < box.y2:
                at = next(i for i in range(len(swapped)) if rest_of_box(frame, swapped[:i]))
                assert not re.fullmatch(rest_of_box(frame, swapped[:at]), swapped[at:]), kind


@functools.cache
def labels_of(name):
    text = COORDINATES[name].text
    joined = ",<>;" + "".join(
        part or "" for part in (text.open or "()", text.close, text.polygon_open, text.label_open)
    )
    letters = st.characters(codec="utf-8", exclude_categories=("C", "Z"), exclude_characters="")
    kept = letters.filter(lambda c: text.quoted or c not in joined)
    written = st.text(kept, max_size=20)
    # Where a label comes first, these are read as the end of the shape before it.
    return written if text.quoted else written.filter(lambda label: label[:1] not in ("[", ","))


@pytest.mark.slow
@pytest.mark.parametrize("name", {way.format: name for name, way in COORDINATES.items()}.values())
@given(case=frames_with_boxes(), data=st.data())
@OFTEN
def test_lists_match_with_labels_and_polygons(name, case, data):
    size, boxes = case
    frame = frame_of(size, name, "letterbox")
    labels = sorted((data.draw(labels_of(name)) for _ in boxes), key=bool)  # those without first
    items = [Instance(box, label) for box, label in zip(boxes, labels, strict=True)]
    assert re.fullmatch(list_regex(frame, labels=True), frame.write(items).text, re.DOTALL)
    quads = [Polygon((*b.points, (b.x1, b.y2))) for b in boxes]
    mixed = [Instance(shape) for shape in (*boxes, *quads)]
    text = frame.write(mixed).text
    assert re.fullmatch(list_regex(frame, polygons=True), text)
    assert re.fullmatch(list_regex(frame), frame.write([]).text)
    assert not re.fullmatch(list_regex(frame), text)
    assert not re.fullmatch(list_regex(frame), "")


@pytest.mark.parametrize("name", COORDINATES)
def test_lists_are_within_the_image_as_boxes_are(name):
    frame = frame_of((640, 480), name, "letterbox")
    coordinates = frame.coordinates
    text = frame.write([Instance(Box(0, 0, 640, 480))]).text
    assert re.fullmatch(list_regex(frame), text)
    if coordinates.space == "resized":  # rows of the padding are above the image
        padding = Frame(640, 640, RESIZES["letterbox"].view(640, 640), coordinates)
        text = padding.write([Instance(Box(0, 0, 640, 480))]).text
        assert not re.fullmatch(box_regex(frame), text)
        assert not re.fullmatch(list_regex(frame), text)


def test_a_label_has_a_largest_length():
    frame = frame_of((64, 64), "llava", "letterbox")
    for length, is_one in ((LABEL_LENGTH, True), (LABEL_LENGTH + 1, False)):
        text = frame.write([Instance(Box(0, 0, 9, 9), "a" * length)]).text
        assert bool(re.fullmatch(list_regex(frame, labels=True), text)) == is_one
        assert isinstance(frame.read(text), Instances | Unreadable)


@pytest.mark.parametrize("name", COORDINATES)
@pytest.mark.parametrize("kind", RESIZES)
def test_the_syntax_is_plain(name, kind):
    frame = frame_of((640, 480), name, kind)
    make = Expressions(frozenset(range(256)))
    for regex in (box_regex(frame), list_regex(frame, polygons=True, labels=True)):
        assert regex.isascii()
        parse_regex(regex, make)
