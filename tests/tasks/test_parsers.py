"""Parsers are total: any text gives an answer or a reason, in time linear in the text."""

import random

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from mm_numeric.answers import Box, Instance, Instances, Polygon, Unreadable
from mm_numeric.geometry.coordinates import COORDINATE_FORMATS, COORDINATES
from mm_numeric.geometry.frames import Frame, Resize
from mm_numeric.tasks.detection import Detection
from mm_numeric.tasks.grounding import Grounding
from mm_numeric.tasks.pointing import Click, Pointing
from mm_numeric.tasks.text_detection import TextDetection

PARSERS = {
    "click": (Click(), Instances),
    "grounding": (Grounding(), Box),
    "detection": (Detection(), Instances),
    "pointing": (Pointing(), Instances),
    "text_detection": (TextDetection(), Instances),
    "rotated boxes": (Detection(shape="rotated_box"), Instances),
}
WORDS = '0 1 23 1000 -5 0.25 1e9 <loc0000> <loc1023> <loc12 : , . ( ) [ ] { } < > " \\ ` é 図'
WHOLE = [
    "[0.1, 0.2, 0.3, 0.4]",
    "<|box_start|>(1,2),(3,4)<|box_end|>",
    '"bbox_2d": [1, 2, 3, 4]',
    '"box_2d": [1, 2, 3, 4]',
    '"point_2d": [1, 2]',
    "(1,2),(3,4)",
    "<box>[[1, 2, 3, 4]]</box>",
    "<|begin_of_box|>[[1,2,3,4]]<|end_of_box|>",
    "<loc0001>" * 4,
    "<loc_12>" * 4,
    f"<poly>{'<loc_12>' * 6}</poly>",
    "<|box_start|><1><2><3><4><|box_end|>",
]
ACTIONS = ['{"action": "left_click", "coordinate": [1, 2]}', "pyautogui.click(x=1, y=2)"]
PIECES = [
    *{
        t
        for layout in COORDINATE_FORMATS.values()
        for t in vars(layout).values()
        if isinstance(t, str)
    },
    *WORDS.split(" "),
    *WHOLE,
    *ACTIONS,
    *(
        "<think>",
        "</think>",
        "<answer>",
        "</answer>",
        "none",
        "[]",
        " ",
        "\n",
        "\ud800",
        "\x00",
        "9" * 30,
        "label",
        "bbox_2d",
    ),
]


def frame_of(name, size=(640, 480)):
    resize = Resize(kind="letterbox", side=336)
    return Frame(*size, resize.view(*size), COORDINATES[name])


def random_text(rng):
    """Return a text of pieces of every layout, in no order, some of it written by a layout."""
    return "".join(rng.choice(PIECES) for _ in range(rng.randint(0, 20)))


@pytest.mark.slow
@pytest.mark.parametrize("name", COORDINATES)
def test_any_text_has_an_answer_or_a_reason(name):
    """12,000 texts over all ways to write coordinates and all parsers."""
    frame, rng = frame_of(name), random.Random(name)
    read = 0
    for _ in range(12_000 // len(COORDINATES) // len(PARSERS) + 1):
        text = random_text(rng)
        for task, kind in PARSERS.values():
            found = task.read(text, frame)
            assert isinstance(found, kind | Unreadable)
            assert not isinstance(found, Unreadable) or found.reason
            read += not isinstance(found, Unreadable)
            if isinstance(found, Instances):
                assert found == task.read(text, frame)
    assert read > 12  # not all of it is noise


@given(st.text(max_size=200))
@examples(150)
def test_any_unicode_is_read(text):
    for name in ("qwen2_vl", "qwen3_vl", "paligemma", "llava", "yi_vl"):
        for task, kind in PARSERS.values():
            assert isinstance(task.read(text, frame_of(name)), kind | Unreadable)


shapes = st.one_of(
    st.tuples(*[st.integers(0, 300)] * 4).map(
        lambda e: Box(e[0], e[1], e[0] + 1.0 + e[2], e[1] + 1.0 + e[3] / 2)
    ),
    st.lists(st.tuples(st.floats(0, 640), st.floats(0, 480)), min_size=3, max_size=14).map(
        lambda points: Polygon(tuple(points))
    ),
)
labels = st.sampled_from(["", "a", "red car", "naïve 図", "7 dogs", "x-y", "it's"])


@given(drawn=st.lists(st.builds(Instance, shapes, labels), max_size=6))
@examples(40)
def test_every_written_answer_is_read_as_itself(drawn):
    task = Detection(shape="polygon", order="rows")
    drawn.sort(key=lambda item: bool(item.label))  # after a label, one without would have it too
    for name in COORDINATES:
        frame, items = frame_of(name), drawn
        text = frame.coordinates.text
        if not text.close and not text.polygon_close:  # only equal lengths show the shapes' ends
            items = [item for item in items if isinstance(item.shape, Box)]
        written = task.format(Instances(tuple(items)), frame)
        found = task.parse(written.text, frame)
        assert not found.cut, name
        assert found.malformed == 0, name
        assert [item.label for item in found.items] == [item.label for item in items], name
        assert task.format(found, frame) == written, name


@pytest.mark.parametrize("name", COORDINATES)
def test_forty_words_cut_within_a_number_are_thirty_nine_and_one_cut(name):
    frame = frame_of(name)
    quads = [
        Polygon(((x, y), (x + 40.0, y), (x + 40.0, y + 12.0), (x, y + 12.0)))
        for y in range(10, 170, 20)
        for x in range(110, 600, 100)
    ]
    written = TextDetection().format(Instances(tuple(map(Instance, quads))), frame)
    assert len(quads) == 40
    for mark in written.marks[-8:]:
        end = max(mark.start + 1, mark.end - 1)  # within the numeral
        found = TextDetection().parse(written.text[:end], frame)
        assert len(found.items) == 39
        assert found.cut
    assert not TextDetection().parse(written.text, frame).cut


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty answer"),
        ("none", "no box"),
        ("No such thing.", "no coordinates"),
        ("[0.1, 0.2, 0.3]", "an odd number of coordinates"),
        ("[0.1, 0.2, 0.3, 0.4, 0.5, 0.6]", "no box"),
        ("[0.5, 0.2, 0.3, 0.4]", "reversed box"),
        ("[1.5, 1.2, 1.8, 1.4]", "outside the image"),
        ("[0.1, 0.2, 0.3", "cut off within a shape"),
        ("the the the the the the", "no coordinates"),
    ],
)
def test_what_is_no_box_has_its_own_reason(text, reason):
    assert Grounding().parse(text, frame_of("llava")) == Unreadable(reason)


PIXELS = "qwen2_5_vl"


@pytest.mark.parametrize(
    ("name", "text", "box"),
    [
        (PIXELS, "The 2 men are at (358,24,486,249).", (358, 24, 486, 249)),
        (PIXELS, "It is at [358, 24, 486, 249]", (358, 24, 486, 249)),
        (PIXELS, "From (358, 24), (486, 249), I think", (358, 24, 486, 249)),
        (PIXELS, "((358 24), (486 249))", (358, 24, 486, 249)),
        (PIXELS, "[[1,2,3,4],[5,6,7,8]]", (1, 2, 3, 4)),
        (PIXELS, "see (1) and (358,24,486,249)", (358, 24, 486, 249)),
        (PIXELS, "(486,249,358,24)", (486, 249, 358, 24)),  # the metric swaps the corners
        (PIXELS, "at 358, 24, 486, 249", None),
        (PIXELS, "(1,2),(3,4),(5,6),(7,8)", None),
        (PIXELS, "(358,24,486", None),
        (PIXELS, '[{"bbox_2d": [358, 24, 486, 24', None),
        ("llava", "(0.5,0.5,0.75,0.75)", (320, 240, 480, 400)),
        ("gemma3", "at (250, 500, 750, 1000)", (320, 120, 640, 360)),
        ("paligemma", "(1,2,3,4)", None),
    ],
)
def test_a_box_in_prose_is_read_in_the_coordinates_of_the_frame(name, text, box):
    size = (640, 480)
    resize = Resize(kind="letterbox" if name == "llava" else "none", side=336)
    frame = Frame(*size, resize.view(*size), COORDINATES[name])
    found = Grounding().parse(text, frame)
    if box is None:
        assert isinstance(found, Unreadable)
        assert found.lenient is None
    elif box[0] > box[2]:
        assert found == Unreadable("reversed box")
        assert found.lenient == Box(*box)
    else:
        assert (*found.points[0], *found.points[1]) == pytest.approx(box)
