"""Any layout of a text is read in any frame, with the range and the order that the frame declares.

The answers quoted are of published models, or of their issues: QwenLM/Qwen3-VL, OpenGVLab/InternVL,
deepseek-ai/DeepSeek-VL2, OpenBMB/MiniCPM-V, wentaoyuan/RoboPoint, Gemini's documentation.
"""

import gc
import re
import time
from dataclasses import replace

import numpy as np
import pytest
from examples import examples
from hypothesis import assume, given
from hypothesis import strategies as st

from mm_numeric.answers import Box, Instance, Instances, Polygon, Unreadable
from mm_numeric.geometry.click_formats import ClickFormat
from mm_numeric.geometry.coordinates import COORDINATE_FORMATS, COORDINATES, Coordinates
from mm_numeric.geometry.frame_presets import FrameRule
from mm_numeric.geometry.frames import LOCATION_TOKENS, TOKENS_REMOVED, Frame, Resize
from mm_numeric.geometry.layouts import find_shapes
from mm_numeric.tasks.detection import Detection
from mm_numeric.tasks.grounding import Grounding
from mm_numeric.tasks.pointing import Click, Pointing
from mm_numeric.tasks.text_spotting import TextSpotting

DIGITS = [name for name, text in COORDINATE_FORMATS.items() if not text.bins]
LAYOUTS = [n for n in DIGITS if not isinstance(COORDINATE_FORMATS[n], ClickFormat)]
FRAMES = {own.format: name for name, own in COORDINATES.items() if not own.bins}.values()
"""A preset of each text format with digits that a preset has."""


def frame_of(name, size=(1000, 800)):
    return Frame(*size, Resize(kind="none").view(*size), COORDINATES[name])


PIXELS = frame_of("pixels_original")


def boxes_of(text, frame=PIXELS, **options):
    found = Detection(**options).parse(text, frame)
    assert isinstance(found, Instances), found
    return [(i.label, *i.shape.points[0], *i.shape.points[1]) for i in found.items]


CAT, DOG = ("cat", 10, 20, 110, 220), ("dog", 30, 40, 300, 400)


@pytest.mark.parametrize(
    ("text", "boxes"),
    [
        ('[{"bbox_2d": [10, 20, 110, 220], "label": "cat"}]', [CAT]),
        ("[{'bbox_2d': [10, 20, 110, 220], 'label': 'cat'}]", [CAT]),
        ("[{'label': \"cat\", 'bbox': (10, 20, 110, 220)}]", [CAT]),
        ("Here's the man's cat:\n[{'name': 'cat', 'box': [10, 20, 110, 220]}]", [CAT]),
        ('{"objects": [{"category": "cat", "bbox": [10, 20, 110, 220], "id": 3}]}', [CAT]),
        ('{"name": "cat", "coordinates": [[10, 20], [110, 220]]}', [CAT]),
        ('```json\n[\n\t{"box_2d": [10, 20, 110, 220], "label": "cat"}\n]\n```', [CAT]),
        (
            '[{"bbox_2d": [10, 20, 110, 220], "label": "cat"},\n'
            ' {"bbox_2d": [30, 40, 300, 400], "label": "dog"}]',
            [CAT, DOG],
        ),
        ('{"label": "cat", "bbox_2d": [[10, 20, 110, 220], [30, 40, 300, 400]]}',
         [CAT, ("cat", *DOG[1:])]),
        (
            "<|object_ref_start|>cat<|object_ref_end|><|box_start|>(10,20),(110,220)<|box_end|>"
            "<|object_ref_start|>dog<|object_ref_end|><|box_start|>(30,40),(300,400)<|box_end|>",
            [CAT, DOG],
        ),
        ("<ref>cat</ref><box>[[10, 20, 110, 220]]</box>", [CAT]),
        ("I see a <ref>cat</ref><box>(10,20),(110,220)</box> there", [CAT]),  # Qwen-VL
        ("<ref>cat</ref><box>10 20 110 220</box>", [CAT]),  # MiniCPM-V
        ("<|ref|>cat<|/ref|><|det|>[[10, 20, 110, 220]]<|/det|>", [CAT]),
        ("cat <|begin_of_box|>[[10,20,110,220]]<|end_of_box|>", [CAT]),
        ("cat <|begin_of_box|>[10,20,110,220]<|end_of_box|>", [CAT]),
        ("cat [10, 20, 110, 220]; dog [30, 40, 300, 400]", [CAT, DOG]),
        ("cat (10,20),(110,220); dog (30,40),(300,400)", [CAT, DOG]),
        ("cat (10, 20, 110, 220)", [CAT]),
        ("cat [[10, 20], [110, 220]]", [CAT]),
        ("cat((10 20), (110 220))", [CAT]),
        ("none", []),
        ("[]", []),
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["pixels_original", "pixels_resized", "qwen2_5_vl"])
def test_the_layout_of_a_text_is_detected(text, boxes, name):
    assert boxes_of(text, frame_of(name)) == boxes


def test_the_range_is_that_of_the_frame():
    text = '[{"bbox_2d": [100, 250, 500, 1000], "label": "cat"}]'
    assert boxes_of(text, frame_of("relative_1000")) == [("cat", 100, 200, 500, 800)]
    assert boxes_of("cat [100, 250, 500, 1000]", frame_of("qwen3_vl")) == [
        ("cat", 100, 200, 500, 800)
    ]
    text = text.replace("100, 250, 500, 1000", "0.1, 0.25, 0.5, 1.0")
    assert boxes_of(text, frame_of("unit_2")) == [("cat", 100, 200, 500, 800)]


@pytest.mark.parametrize("key", ["box_2d", "bbox_2d", "bbox", "box"])
def test_a_key_decides_neither_the_order_nor_width_and_height(key):
    text = f'[{{"{key}": [100, 200, 500, 1000], "label": "cat"}}]'
    assert boxes_of(text, frame_of("relative_1000", (1000, 1000))) == [("cat", 100, 200, 500, 1000)]
    assert boxes_of(text, frame_of("gemma3", (1000, 1000))) == [("cat", 200, 100, 1000, 500)]


def test_a_plain_list_is_a_box_of_a_family_that_writes_json():
    box = Grounding().parse("[459,603,817,631]", FrameRule.of_family("qwen2_5_vl").frame(980, 980))
    assert box == Box(459, 603, 817, 631)


SHAPES = st.one_of(
    st.tuples(*[st.integers(0, 300)] * 4).map(
        lambda e: Box(e[0], e[1], e[0] + 1.0 + e[2], e[1] + 1.0 + e[3] / 2)
    ),
    st.lists(st.tuples(st.floats(0, 640), st.floats(0, 480)), min_size=3, max_size=9).map(
        lambda points: Polygon(tuple(points))
    ),
)
WORDS = st.sampled_from(["a", "red car", "naïve 図", "7 dogs", "x-y", "it's"])


@pytest.mark.parametrize("written_as", LAYOUTS)
@given(drawn=st.lists(st.builds(Instance, SHAPES, WORDS), max_size=4))
@examples(6)
def test_what_is_written_in_one_format_is_read_in_every_frame(written_as, drawn):
    points = [len(item.shape.points) for item in drawn]
    # In (1,2),(3,4),(5,6), a last shape that is shorter than all others reads as a truncated one.
    assume(written_as != "parentheses" or len(points) < 2 or points[-1] >= min(points[:-1]))
    task = Detection(shape="polygon", order="rows")
    for name in FRAMES:
        frame = frame_of(name, (640, 480))
        other = replace(frame, coordinates=replace(frame.coordinates, format=written_as))
        written = task.format(Instances(tuple(drawn)), other)
        found = task.parse(written.text, frame)
        if written_as == "parentheses" and found == Unreadable(TOKENS_REMOVED):
            assert (
                frame.coordinates.text.special_tokens
            )  # (1,2),(3,4),(5,6) may be two shapes there
            continue
        assert found == task.parse(written.text, other), name
        assert [item.label for item in found.items] == [item.label for item in drawn], name
        assert task.format(replace(found, spans=()), other) == written, name
        for item, (start, end) in zip(found.items, found.spans, strict=True):
            inside = [m for m in written.marks if start <= m.start and m.end <= end]
            assert len(inside) == 2 * len(item.shape.points)


PARTS = st.lists(st.tuples(st.integers(0, 640), st.integers(0, 480)), min_size=1, max_size=5)


@pytest.mark.parametrize("written_as", DIGITS)
@given(points=PARTS)
@examples(8)
def test_points_that_are_written_in_one_format_are_read_in_every_frame(written_as, points):
    shapes = Instances(tuple(Instance(Polygon((point,))) for point in points))
    for name in FRAMES:
        frame = frame_of(name, (640, 480))
        is_click = isinstance(COORDINATE_FORMATS[written_as], ClickFormat)
        order = "xy" if is_click else frame.coordinates.order
        written_in = replace(frame.coordinates, format=written_as, order=order)
        text = Pointing().format(shapes, replace(frame, coordinates=written_in)).text
        found = Pointing().parse(text, frame)
        assert not isinstance(found, Unreadable), (name, text)
        in_its_own = Pointing().parse(text, replace(frame, coordinates=written_in))
        assert found.items == in_its_own.items, (name, text)
        assert len(found.items) == len(points), (name, text)


def of_robopoint(text, width, height):
    """Return the points of text2pts in robopoint/eval/summarize_vqa.py, without its boxes."""
    found = []
    for match in re.findall(r"\(([-+]?\d+\.?\d*(?:,\s*[-+]?\d+\.?\d*)*?)\)", text):
        vector = [float(number) for number in match.split(",")]
        assert len(vector) == 2
        found.append((vector[0] * width, vector[1] * height))
    return found


@pytest.mark.parametrize("count", range(1, 7))
@pytest.mark.parametrize(
    "name", ["unit_2", "unit_3", "relative_1000", "qwen3_vl", "qwen2_vl_plain"]
)
def test_pairs_in_a_list_are_points(count, name):
    """As RoboPoint, Where2Place and RefSpatial ask for: two to five of them were one box."""
    rng = np.random.default_rng(count)
    share = rng.integers(1, 100, (count, 2)) / 100
    pairs = ", ".join(f"({x:.2f}, {y:.2f})" for x, y in share.tolist())
    wanted = of_robopoint(pairs, 1000, 800)
    frame = frame_of(name)
    if "unit" not in name:
        pairs = ", ".join(f"({round(x * 1000)}, {round(y * 1000)})" for x, y in share.tolist())
    for text in (f"[{pairs}]", f"The free space is at [{pairs}]."):
        for task in (Pointing(), Click()):
            found = task.parse(text, frame)
            assert [i.shape.points[0] for i in found.items] == [pytest.approx(p) for p in wanted]
        starts = [text[a:b].strip("[]") for a, b in Pointing().parse(text, frame).spans]
        assert [s.count("(") for s in starts] == [1] * count  # the probability of each point


@pytest.mark.parametrize(
    "text",
    [
        '{"points": [[100, 200], [300, 400]]}',
        '[{"point_2d": [100, 200]}, {"point_2d": [300, 400]}]',
        "[{'point': [100, 200]}, {'point': [300, 400]}]",
        "[[100, 200], [300, 400]]",
        "(100, 200), (300, 400)",
        '<points x1="100" y1="200" x2="300" y2="400" alt="a">a</points>',
    ],
)
def test_points_in_other_layouts(text):
    found = Pointing().parse(text, PIXELS)
    assert [i.shape.points[0] for i in found.items] == [(100, 200), (300, 400)]


@pytest.mark.parametrize(
    "text",
    [
        "[100, 200, 300, 400]",
        '{"bbox_2d": [100, 200, 300, 400]}',
        '{"bbox_2d": [[100, 200], [300, 400]]}',
        "<|box_start|>(100,200),(300,400)<|box_end|>",
        "<box>[[100, 200, 300, 400]]</box>",
    ],
)
def test_a_box_is_still_clicked_in_its_middle(text):
    (found,) = Click().parse(text, PIXELS).items
    assert found.shape == Polygon(((200, 300),))


def test_pairs_of_a_shape_are_corners():
    text = '[{"poly_2d": [[10, 10], [90, 10], [90, 90]], "label": "a"}]'
    (found,) = Detection(shape="polygon").parse(text, PIXELS).items
    assert found.shape == Polygon(((10, 10), (90, 10), (90, 90)))
    assert boxes_of("[(10, 20), (110, 220)]") == [("", 10, 20, 110, 220)]
    assert boxes_of("[(10, 20, 110, 220), (30, 40, 300, 400)]") == [("", *CAT[1:]), ("", *DOG[1:])]


@pytest.mark.parametrize(
    "text",
    [
        "<loc0213><loc0080><loc0746><loc0512> red car",
        "red car<loc_78><loc_208><loc_500><loc_729>",
        "<|box_start|><78><208><500><729><|box_end|>",
    ],
)
def test_location_tokens_need_a_frame_that_has_them(text):
    for name in FRAMES:
        assert Grounding().parse(text, frame_of(name)) == Unreadable(LOCATION_TOKENS), name


def test_a_frame_of_location_tokens_reads_no_digits():
    for name in ("paligemma", "florence2"):
        text = '[{"bbox_2d": [1, 2, 3, 4]}] (1,2),(3,4) [1, 2, 3, 4]'
        assert isinstance(Grounding().parse(text, frame_of(name)), Unreadable)


def test_the_declared_format_is_read_first():
    frame = frame_of("qwen3_vl")
    text = 'As in [1, 2, 3, 4]: {"bbox_2d": [0, 0, 1000, 1000]} and <box>[[5, 6, 7, 8]]</box>'
    assert boxes_of(text, frame) == [("", 0, 0, 1000, 800)]
    declared = replace(frame, coordinates=COORDINATES["internvl"])
    assert boxes_of(text, declared)[0][1] == pytest.approx(5.5)


@pytest.mark.parametrize(
    ("text", "label"),
    [
        (r"[{'label': 'it\'s', 'bbox': [1, 2, 3, 4]}]", "it's"),
        ("[{'label': \"it's\", 'bbox': [1, 2, 3, 4]}]", "it's"),
        (r"[{'label': 'a \"b\"', 'bbox': [1, 2, 3, 4]}]", 'a "b"'),
        ("[{'label': 'a \"b\"', 'bbox': [1, 2, 3, 4]}]", 'a "b"'),
        (r'[{"label": "a {\"x\"}", "bbox_2d": [1, 2, 3, 4]}]', 'a {"x"}'),
        ('[{"name": "n", "label": "l", "category": "c", "bbox_2d": [1, 2, 3, 4]}]', "l"),
        ('[{"name": "n", "category": "c", "bbox_2d": [1, 2, 3, 4]}]', "c"),
        ('[{"label": "a"}, {"bbox_2d": [1, 2, 3, 4]}, {"label": "b"}]', ""),
        ('[{"category": 3, "bbox_2d": [1, 2, 3, 4], "score": 0.5}]', ""),
        ("Here are the boxes:\n- **cat**: (1, 2, 3, 4)", "cat"),
        ('{"cat": (1, 2, 3, 4)}', "cat"),
    ],
)
def test_labels_of_other_layouts(text, label):
    assert [own[0] for own in boxes_of(text)] == [label]


def test_a_label_that_looks_like_a_key_comes_back():
    for label in ("'bbox': [1, 2, 3, 4]", "'point': [1, ", '"box": [1, 2]'):
        frame = frame_of("qwen3_vl")
        written = frame.write([Instance(Box(0, 0, 100, 80), label)])
        assert [item.label for item in frame.read(written.text).items] == [label]


def test_a_label_of_two_lines_or_of_json_is_a_parse_failure():
    text = "[{'id': {}, 'x': (1), {\"a\ncat [1, 2, 3, 4]; dog [5, 6, 7, 8]"
    found = Detection().parse(text, PIXELS)
    assert ([item.label for item in found.items], found.malformed) == (["dog"], 1)
    for broken in ('[{"box": 3} [1, 2, 3, 4]', '{"bbox_2d": [1, 2, 3, 4], "label": "a\\nb"}'):
        found = Detection().parse(broken, PIXELS)
        assert found == Unreadable("a label of several lines or of JSON")
    assert Detection(classes=("a\nb", "c")).parse(broken, PIXELS).items[0].label == "a\nb"
    assert TextSpotting().parse(broken, PIXELS).items[0].label == "a\nb"
    assert Grounding().parse("The car\nis here: [1, 2, 3, 4]", PIXELS) == Box(1, 2, 3, 4)


def test_an_odd_number_of_tokens_is_a_parse_failure_in_any_order():
    for name in ("gemma3", "qwen3_vl"):
        found = Pointing().parse("<1><2><3>", frame_of(name))
        assert found == Unreadable("an odd number of coordinates")


PIECES = [
    *("(", "[", "{", '"', "'", '"\\', "'\\", "\\", "<box>", "<ref>", "(1,", "[1, ", "(1,2),"),
    *(
        "(1,2)",
        "[1, 2]",
        '"box": ',
        '"box": [',
        "'box': [1, ",
        "'box': (1, ",
        '"box": [1, 2, [3, ',
        "<loc0001>",
    ),
    *(
        '"label": "',
        "'label': '",
        ', "',
        ", '",
        ": ",
        "a ",
        "1 ",
        "\n",
        "<|box_start|>",
        "<a",
        "[]",
    ),
    *('{"box": [1, 2, 3, 4], ', "[1, 2, 3, 4] ", "(1, 2), (3, 4); ", "[(1, 2), (3, 4)], ", ")]"),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "points"),
    [(name, True) for name in {way.format: name for name, way in COORDINATES.items()}.values()]
    + [("qwen2_5_vl", False)],
)
def test_the_time_is_linear_in_the_text(name, points):
    coordinates = COORDINATES[name]

    def seconds(text):
        started = time.process_time()
        find_shapes(text, coordinates, points=points)
        return time.process_time() - started

    def is_linear(unit):  # 8 times the text; 64 times the time would be squared
        longest = seconds(unit * (8_000 // len(unit)))
        return longest < 0.05 or longest < 30 * seconds(unit * (1_000 // len(unit)))

    gc.disable()
    try:
        for unit in PIECES:
            assert any(is_linear(unit) for _ in range(3)), unit
    finally:
        gc.enable()


@given(st.lists(st.sampled_from([*PIECES, "12", ".5", "-3", "é", ", "]), max_size=25))
@examples(100)
def test_any_text_has_shapes_or_none(pieces):
    for name in ("brackets", "json", "qwen_vl", "parentheses"):
        coordinates = Coordinates(max_value=1000, format=name)
        for points in (False, True):
            for shape in find_shapes("".join(pieces), coordinates, points=points).shapes:
                assert all(map(re.compile(r"-?[0-9.]+").fullmatch, shape.numerals))
                assert 0 <= shape.span[0] < shape.span[1]
