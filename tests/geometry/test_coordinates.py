"""Places to text and back: the exact text of every family, and an inverse that is one.

Coordinates are rounded once, from the original pixels, as the published recipes do.
"""

import json
import re
import time
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from examples import examples
from hypothesis import example, given
from hypothesis import strategies as st

from mm_numeric.answers import Box, Instance, Instances, Polygon, Unreadable
from mm_numeric.geometry.coordinates import COORDINATES, Coordinates
from mm_numeric.geometry.frames import NO_LOCATION_TOKENS, TOKENS_REMOVED, Frame, Resize, View

SMART = {"kind": "smart", "min_pixels": 56 * 56, "max_pixels": 1280 * 28 * 28}
RESIZES = {  # as the hub's checkpoints of each family have it
    "paligemma": Resize(kind="squash", side=224),
    "qwen2_vl": Resize(factor=28, **SMART),
    "qwen2_5_vl": Resize(factor=28, **SMART),
    "qwen3_vl": Resize(factor=32, **SMART),
    "llava": Resize(kind="letterbox", side=336),
    "yi_vl": Resize(kind="letterbox", side=448),
    "internvl": Resize(kind="squash", side=448),
    "gemma3": Resize(kind="squash", side=896),
    "deepseek": Resize(kind="none"),
    "glm_v": Resize(kind="none"),
    "florence2": Resize(kind="squash", side=768),
}


def presets_of(family):
    """Return the family's own preset of coordinates, and those for any family."""
    return [COORDINATES[name] for name in COORDINATES if name == family or name not in RESIZES]


# One image of 640 x 480 pixels, one box. By hand, for LLaVA: the padded square has a side of 640,
# the image begins 80 below its top: (100 + 80) / 640 = 0.28125 -> 0.281.
GOLDEN = {
    "paligemma": "<loc0213><loc0080><loc0746><loc0512> red car",
    "qwen2_vl": "<|object_ref_start|>red car<|object_ref_end|>"
    "<|box_start|>(78,208),(500,729)<|box_end|>",
    "qwen2_5_vl": '[{"bbox_2d": [50, 99, 322, 347], "label": "red car"}]',
    "qwen3_vl": '[{"bbox_2d": [78, 208, 500, 729], "label": "red car"}]',
    "llava": "red car [0.078, 0.281, 0.500, 0.672]",
    "yi_vl": "red car (78,281),(500,671)",
    "internvl": "<ref>red car</ref><box>[[78, 208, 500, 729]]</box>",
    "deepseek": "<|ref|>red car<|/ref|><|det|>[[78, 208, 500, 728]]<|/det|>",
    "glm_v": "red car <|begin_of_box|>[[78,208,500,729]]<|end_of_box|>",
    "gemma3": '[{"box_2d": [208, 78, 729, 500], "label": "red car"}]',
    "florence2": "red car<loc_78><loc_208><loc_500><loc_729>",
}
BOX = Box(50.0, 100.0, 320.0, 350.0)


@pytest.mark.parametrize("family", GOLDEN)
def test_the_text_of_every_family(family):
    frame = Frame(640, 480, RESIZES[family].view(640, 480), COORDINATES[family])
    written = frame.write([Instance(BOX, "red car")])
    assert written.text == GOLDEN[family]
    (found,) = frame.read(written.text).items
    assert found.label == "red car"
    for corner, wanted in zip(found.shape.points, BOX.points, strict=True):
        assert corner == pytest.approx(wanted, abs=max(frame.step_px) / 2 + 1e-9)
    assert frame.write([found]) == written
    numbers = [written.text[mark.start : mark.end] for mark in written.marks]
    assert [mark.role for mark in written.marks] == [*frame.coordinates.order] * 2
    assert len(numbers) == 4
    assert {mark.group for mark in written.marks} == {0}


@pytest.mark.parametrize("name", COORDINATES)
def test_lists_polygons_and_nothing_come_back(name):
    frame = Frame(640, 480, RESIZES["llava"].view(640, 480), COORDINATES[name])
    quad = Polygon(((10.0, 10.0), (100.0, 12.0), (98.0, 40.0), (9.0, 38.0)))
    items = [Instance(BOX), Instance(quad), Instance(BOX, "a"), Instance(quad, "b c")]
    for chosen in (items, items[1:2], items[:2], items[2:3], items[3:], []):
        written = frame.write(chosen)
        found = frame.read(written.text).items
        assert [i.label for i in found] == [i.label for i in chosen]
        assert [type(i.shape) for i in found] == [type(i.shape) for i in chosen]
        assert frame.write(found) == written
        points = sum(len(i.shape.points) for i in chosen)
        assert len(written.marks) == 2 * points


PARTS = st.one_of(st.just(0.0), st.just(1.0), st.floats(0, 1))  # of an edge
SIZES = st.tuples(st.integers(1, 4000), st.integers(1, 3000))


@st.composite
def points_in_images(draw):
    """Return an image's size and a point of it, often on an edge or of whole pixels."""
    size = draw(SIZES)
    place = [draw(PARTS) * edge for edge in size]
    return size, tuple([float(round(x)) for x in place] if draw(st.booleans()) else place)


def frames_of(family, size):
    """Return a frame of an image for each preset that a family is tried with."""
    resize = RESIZES[family]
    if resize.kind == "smart" and max(size) > 200 * min(size):
        return []
    return [Frame(*size, resize.view(*size), coordinates) for coordinates in presets_of(family)]


@pytest.mark.parametrize("family", RESIZES)
@given(case=points_in_images())
@example(case=((1, 1), (1.0, 0.0)))
@example(case=((4000, 3000), (4000.0, 3000.0)))
@examples(40)
def test_an_error_is_at_most_half_a_step(family, case):
    size, point = case
    for frame in frames_of(family, size):
        coordinates = frame.coordinates
        found = frame.decode(*frame.encode(point))
        # The far edge cannot be written where the range is exclusive: one step less is the last.
        ends = frame.decode(*map(coordinates.largest, frame.edges))
        for at, wanted, step, last in zip(found, point, frame.step_px, ends, strict=True):
            error, beyond = abs(at - wanted), max(wanted - last, 0.0)
            assert error <= max(step / 2, beyond) * (1 + 1e-9) + 1e-9, coordinates
            if coordinates.clamp == "inclusive":
                assert error <= step / 2 * (1 + 1e-9) + 1e-9, coordinates


@pytest.mark.parametrize("family", RESIZES)
@given(size=SIZES, part=st.floats(0, 1))
@examples(40)
def test_a_grid_s_own_points_come_back_as_they_are(family, size, part):
    for frame in frames_of(family, size):
        levels = [round(part * frame.coordinates.largest(edge)) for edge in frame.edges]
        point = frame.decode(*levels)
        inside = 0 < point[0] < size[0] and 0 < point[1] < size[1]
        if RESIZES[family].kind == "letterbox" and not inside:
            continue  # a level of the padding, which is read as a point of the edge
        assert list(frame.encode(point)) == levels, frame.coordinates
        assert frame.decode(*frame.encode(point)) == point, frame.coordinates


@pytest.mark.parametrize("family", RESIZES)
def test_a_quantised_shape_is_what_is_read_back(family):
    triangle = Polygon(((10.3, 20.7), (600.1, 30.9), (300.5, 470.2)))
    for frame in frames_of(family, (640, 480)):
        x, y = (frame.coordinates.largest(edge) for edge in frame.edges)
        far, beyond = frame.decode(x, y), frame.decode(x + 2, y + 2)  # not moved to the edge
        assert all(b > max(edge, f) for b, f, edge in zip(beyond, far, (640, 480), strict=True))
        for shape in (Box(10.3, 20.7, 600.1, 470.2), triangle):
            text = frame.write([Instance(shape, "")]).text
            assert frame.quantised(shape) == frame.read(text).items[0].shape, frame.coordinates


def level(coordinates, position, edge):
    """Return the coordinate of a position in an image that is not resized."""
    frame = Frame(edge, edge, Resize(kind="none").view(edge, edge), coordinates)
    return frame.encode((position, 0.0))[0]


def test_the_far_edge_of_an_exclusive_grid_is_its_last_step():
    ways = Coordinates(max_value=1000, clamp="exclusive"), Coordinates(max_value=1000)
    assert [level(way, 640.0, 640) for way in ways] == [999, 1000]
    pixels = Coordinates(clamp="exclusive"), Coordinates()
    assert [level(way, 640.0, 640) for way in pixels] == [639, 640]


def test_floor_reads_the_middle_of_a_step():
    floor = Coordinates(max_value=1000, rounding="floor")
    assert level(floor, 0.9999, 1000) == 0
    assert floor.position(0, 1000) == 0.5
    assert floor.position(1000, 1000) == 1000
    assert level(floor, 0.3 * 1000, 1000) == 300  # 299.99999999999994 steps are 300


def test_original_pixels_are_not_resized():
    frame = Frame(640, 200, RESIZES["llava"].view(640, 200), COORDINATES["pixels_original"])
    assert frame.write([Instance(Box(600, 0, 640, 200))]).text == "[600, 0, 640, 200]"


@pytest.mark.parametrize("point", [(641.5, 10.0), (-2.0, 10.0), (10.0, 481.5), (float("nan"), 1.0)])
def test_a_point_outside_the_image_is_rejected(point):
    frame = Frame(640, 480, RESIZES["llava"].view(640, 480), COORDINATES["llava"])
    with pytest.raises(ValueError, match="outside the image of 640 x 480 pixels"):
        frame.encode(point)


def test_a_point_within_a_pixel_of_the_image_is_on_its_edge():
    frame = Frame(640, 480, RESIZES["qwen2_vl"].view(640, 480), COORDINATES["qwen2_vl"])
    assert frame.encode((640.9, -0.9)) == (1000, 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"space": "padded"}, "space is one of resized, original, not 'padded'"),
        ({"order": "yxyx"}, "order is one of xy, yx"),
        ({"clamp": "none"}, "clamp is one of inclusive, exclusive, not 'none'"),
        ({"rounding": "up"}, "rounding is one of round, floor, not 'up'"),
        ({"format": "xml"}, "format is one of brackets"),
        ({"max_value": 0}, "max_value is 1 to 1000000"),
        ({"max_value": 10**400}, "max_value is 1 to 1000000"),
        ({"max_value": 1}, "max_value 1 needs decimals"),
        ({"decimals": 7}, "decimals is 0 to 6"),
        (
            {"format": "loc"},
            "format 'loc' has coordinates from 0 to 1023 and requires max_value 1023, or 1024 with",
        ),
    ],
)
def test_text_that_cannot_be_read_back_is_rejected(change, message):
    with pytest.raises(ValueError, match=message):
        replace(COORDINATES["relative_1000"], **change)


UNCLEAR = [
    "car(12,3)",  # a point, or a truncated box
    "seat (4,2)(12,3),(45,67)",  # the label may be "seat (4,2)"
    "(1,2),(3,2),(3,4),(1,4)(5,6),(7,8)",  # a box, or the first half of a quadrilateral
    "(1,2),(3,2), (3,4),(1,4)",  # two boxes, or a quadrilateral
]


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("llava", "", "empty answer"),
        ("llava", "There is no car.", "no coordinates"),
        ("llava", "[0.1, 0.2, 0.3", "cut off within a shape"),
        ("llava", "[0.1, 0.2, 0.3]", "an odd number of coordinates"),
        ("llava", "[ ]", "no coordinates"),
        pytest.param(
            "llava", f"[0.1, 0.2, 0.3, {'9' * 5000}]", "a coordinate beyond any image", id="digits"
        ),
        (
            "qwen2_vl",
            f"<|box_start|>(1,2),(3,-1{'0' * 20})<|box_end|>",
            "a coordinate beyond any image",
        ),
        ("qwen2_vl", "<|box_start|>(12,3", "cut off within a shape"),
        ("qwen3_vl", '[{"bbox_2d": [1, 2', "cut off within a shape"),
        ("paligemma", "<loc0001><loc00", "cut off within a shape"),
        ("florence2", "a car<loc_1><loc_20><loc_999>", "cut off within a shape"),
        ("florence2", f"a car<poly>{'<loc_20>' * 9}", "cut off within a shape"),
        ("florence2", "<lo", NO_LOCATION_TOKENS),
        ("yi_vl", "(12,3),(4", "cut off within a shape"),
        # Answers without their special tokens.
        ("qwen2_vl", "There is no car.", "no coordinates"),
        ("qwen2_vl", "car(12,3),(45,67),(8", "cut off within a shape"),
        ("qwen2_vl", "<|object_ref_start|>car<|object_ref_end|>", "no coordinates"),
        *(("qwen2_vl", text, TOKENS_REMOVED) for text in UNCLEAR),
        *(("paligemma", text, NO_LOCATION_TOKENS) for text in (" red car", " ; ", "")),
    ],
)
def test_why_a_text_holds_no_shape(name, text, reason):
    frame = Frame(640, 480, RESIZES[name].view(640, 480), COORDINATES[name])
    found = frame.read(text)
    assert found == Unreadable(reason)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("llava", "Sure! The car is at [ 0.078,0.281, 0.500 ,0.672 ]."),
        ("llava", "[.078, .281, .5, .672]"),
        ("qwen2_vl", "<|box_start|> (78, 208), (500, 729) <|box_end|>"),
        ("qwen2_vl", "<|object_ref_start|>car<|object_ref_end|>(78,208),(500,729)"),
        ("qwen3_vl", '```json\n[\n\t{"bbox_2d": [78, 208, 500, 729], "label": "car"}\n]\n```'),
        ("qwen3_vl", '{"label": "car", "bbox_2d":[78,208,500,729]}'),
        ("paligemma", "<loc0213> <loc0080><loc0746><loc0511> car"),
        ("florence2", "a <loc_78> <loc_208><loc_500><loc_729>"),
    ],
)
def test_habits_of_models_are_read(name, text):
    frame = Frame(640, 480, RESIZES[name].view(640, 480), COORDINATES[name])
    (found,) = frame.read(text).items
    for corner, wanted in zip(found.shape.points, BOX.points, strict=True):
        assert corner == pytest.approx(wanted, abs=max(frame.step_px) / 2 + 1e-9)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "internvl",
            "<ref>car</ref><box>[[1, 2, 3, 4], [5, 6, 7, 8]]</box>"
            "<ref>a</ref><box>[[9, 8, 7, 6]]</box>",
        ),
        ("internvl", "car[[1,2,3,4],[5,6,7,8]]a[[9,8,7,6]]"),
    ],
)
def test_several_boxes_within_one_pair_of_tags_have_one_label(name, text):
    """InternVL's documentation writes all boxes of a class so, and DeepSeek-VL2 and GLM do."""
    frame = Frame(640, 480, RESIZES["llava"].view(640, 480), COORDINATES[name])
    assert [item.label for item in frame.read(text).items] == ["car", "car", "a"]
    spans = ["".join(re.findall("[1-9]", text[slice(*s)])) for s in frame.read(text).spans]
    assert spans == ["1234", "5678", "9876"]
    assert frame.read(text[: text.index("7")]) == Unreadable("cut off within a shape")


CAR, DOG = (f"<|object_ref_start|>{label}<|object_ref_end|>" for label in ("car", "dog"))
BOXES = ["<|box_start|>(1,2),(3,4)<|box_end|>", "<|box_start|>(5,6),(7,8)<|box_end|>"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        # As Florence2Processor.post_process_generation reads it.
        ("florence2", "car" + 8 * "<loc_1>" + "dog" + 4 * "<loc_1>"),
        ("qwen2_vl", CAR + BOXES[0] + BOXES[1] + DOG + BOXES[0]),
        ("qwen2_vl", f"There is {CAR}{BOXES[0]},\n{BOXES[1]}, and {DOG} at {BOXES[0]}."),
        ("qwen2_vl", "car(1,2),(3,4)(5,6),(7,8)dog(1,2),(3,4)"),
    ],
)
def test_a_box_directly_after_another_one_has_its_label(name, text):
    """And text around the tags of a label is no part of it."""
    frame = Frame(640, 480, RESIZES["llava"].view(640, 480), COORDINATES[name])
    assert [item.label for item in frame.read(text).items] == ["car", "car", "dog"]


@pytest.mark.parametrize(
    ("text", "labels"),
    [("[[1, 2, 3, 4], [5, 6, 7, 8]]", ["", ""]), ("a [1, 2, 3, 4], b [5, 6, 7, 8]", ["a", "b"])],
)
def test_a_separator_of_other_tools_is_no_label(text, labels):
    frame = Frame(640, 480, RESIZES["llava"].view(640, 480), COORDINATES["relative_1000"])
    assert [item.label for item in frame.read(text).items] == labels


def test_an_empty_list_may_be_in_a_code_fence():
    """As Qwen2.5-VL and Qwen3-VL write every list."""
    frame = Frame(640, 480, RESIZES["qwen3_vl"].view(640, 480), COORDINATES["qwen3_vl"])
    assert frame.read("```json\n[]\n```") == frame.read("[]") == Instances(())


WHOLE = [  # shapes of several formats
    "[0.1, 0.2, 0.3, 0.4]",
    "<|box_start|>(1,2),(3,4)<|box_end|>",
    '"bbox_2d": [1, 2, 3, 4]',
    "(1,2),",
    "(1,2),(3,4)",
    "<box>[[1, 2, 3, 4]]</box>",
    "<|begin_of_box|>[[1,2,3,4]]<|end_of_box|>",
    "<loc0001>" * 4,
    f"<poly>{'<loc_12>' * 6}</poly>",
    "<|box_start|><1><2><3><4><|box_end|>",
]
PIECES = [
    *(
        "(",
        "[",
        '"',
        '"\\',
        "\\",
        "<loc",
        "(1,",
        "(1,2),",
        ' "label":',
        '"label": "',
        "<|box_start|>",
    ),
    *("<|box_start|>(1,2", '{"bbox_2d": [1, 2, ', '{"label": "a", ', "1", "1 ", ", ", " ", "a "),
]


@pytest.mark.slow
@pytest.mark.parametrize("name", {way.format: name for name, way in COORDINATES.items()}.values())
def test_reading_takes_time_linear_in_the_text(name):  # one preset of each text format
    frame = Frame(640, 480, RESIZES["llava"].view(640, 480), COORDINATES[name])
    shape = frame.write([Instance(BOX, "a")]).text
    started = time.process_time()
    for piece in (*PIECES, *WHOLE):
        run = piece * (5_000 // len(piece))
        for text in (f"{run}x", f"{shape}{run}x", f"{run}x{shape}"):
            found = frame.read(text)
            assert piece in WHOLE or isinstance(found, Unreadable) == (shape not in text)
    assert time.process_time() - started < 2.5  # squared it would be longer


def test_labels_go_with_their_own_object():
    frame = Frame(640, 480, RESIZES["qwen3_vl"].view(640, 480), COORDINATES["qwen3_vl"])
    text = (
        '[{"label": "a {\\"x\\"}", "bbox_2d": [1, 2, 3, 4]}, {"bbox_2d": [1, 2, 3, 4]}, '
        '{"bbox_2d": [5, 6, 7, 8], "label": "b, [1]"}]'
    )
    assert [i.label for i in frame.read(text).items] == ['a {"x"}', "", "b, [1]"]


@pytest.mark.parametrize("label", ["a [1, 2]", "; a", " a"])
def test_a_label_that_could_not_be_read_back_is_rejected(label):
    frame = Frame(640, 480, RESIZES["llava"].view(640, 480), COORDINATES["llava"])
    with pytest.raises(ValueError, match="contains text of the coordinate format"):
        frame.write([Instance(BOX, label)])


@pytest.mark.parametrize("name", ["qwen2_vl", "internvl", "deepseek", "florence2"])
def test_a_shape_that_would_have_the_label_before_it_is_rejected(name):
    frame = Frame(640, 480, RESIZES["llava"].view(640, 480), COORDINATES[name])
    with pytest.raises(ValueError, match="would have the label of the shape before it, 'a'"):
        frame.write([Instance(BOX, "a"), Instance(BOX)])


def test_a_frame_is_plain_data():
    frame = Frame(640, 480, RESIZES["llava"].view(640, 480), COORDINATES["llava"])
    raw = json.loads(json.dumps(frame.to_dict()))
    assert Frame.from_dict(raw) == frame


@pytest.mark.parametrize("name", ["relative_1000", "llava", "pixels_original", "pixels_resized"])
@pytest.mark.parametrize("space", ["original", "resized"])
def test_a_step_is_the_distance_of_neighbouring_coordinates(name, space):
    coordinates = replace(COORDINATES[name], space=space)
    frame = Frame(640, 480, Resize(kind="squash", side=336).view(640, 480), coordinates)
    (left, top), (right, bottom) = frame.decode(1, 1), frame.decode(2, 2)
    assert (right - left, bottom - top) == pytest.approx(frame.step_px)
    assert frame.step_px[0] != frame.step_px[1] or "pixels" in name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"width_px": None}, r"frame\.width_px: None is not a whole number"),
        ({"height_px": 0}, "frame: an image of 640 x 0 pixels has no pixels"),
        ({"view": 5}, r"frame\.view: expected settings"),
        ({"view": {"width_px": 3}}, r"frame\.view: the setting 'height_px' is missing"),
        ({"scale_x": 0.0}, r"frame\.view: sizes in pixels are at least 1, and scales above 0"),
        ({"scale_y": float("inf")}, r"frame\.view: scales and offsets are finite"),
        ({"offset_x_px": "1"}, r"frame\.view\.offset_x_px: '1' is not a number"),
        ({"coordinates": {"decimals": 1.5}}, r"frame\.coordinates\.decimals: 1.5 is not a whole"),
        ({"coordinates": {"order": "yxyx"}}, r"frame\.coordinates: order is one of xy, yx"),
    ],
)
def test_what_is_no_frame_is_one_sentence(change, message):
    raw = Frame(640, 480, RESIZES["llava"].view(640, 480), COORDINATES["llava"]).to_dict()
    (name, value) = next(iter(change.items()))
    (raw if name in raw else raw["view"])[name] = value
    with pytest.raises(ValueError, match=message):
        Frame.from_dict(raw)


def relative(range_, rounded=round):
    """Return a recipe: the position as a share of the image side, times ``range_``, rounded."""
    return lambda pixel, edge, _: rounded(Fraction(pixel, edge) * range_)


def below(number):
    """Return a function that rounds down to a whole number below ``number``."""
    return lambda share: min(int(share), number - 1)


def resized(pixel, edge, seen):
    """Return the pixel of the resized image, at most its last one (Qwen2.5-VL)."""
    return min(round(Fraction(pixel * seen, edge)), seen - 1)


def padded(range_):
    """Return a recipe for a square with the image in the middle, for each side of the image."""

    def recipe(pixel, edge, longest):
        return round(Fraction(pixel + (longest - edge) // 2, longest) * range_)

    return recipe


# How each model's authors write a coordinate. The recipes use no code of the library.
RECIPES = {
    "paligemma": relative(1023),
    "qwen2_vl": relative(1000),
    "qwen2_5_vl": resized,
    "qwen3_vl": relative(1000),
    "llava": padded(1000),
    "yi_vl": padded(999),
    "internvl": relative(1000, rounded=int),
    "gemma3": relative(1000),
    "deepseek": relative(999),
    "glm_v": relative(1000),
    "florence2": relative(1000, rounded=below(1000)),
}
IMAGES = [(640, 427), (1280, 720), (333, 500), (320, 999)]


@pytest.mark.slow
@pytest.mark.parametrize("family", RECIPES)
@pytest.mark.parametrize("size", IMAGES)
def test_every_pixel_is_written_as_in_the_published_recipe(family, size):
    resize, recipe = RESIZES[family], RECIPES[family]
    frame = Frame(*size, resize.view(*size), COORDINATES[family])
    saved = Frame.from_dict(json.loads(json.dumps(frame.to_dict())))
    if resize.kind == "letterbox":
        third = [max(size)] * 2
    else:
        third = [frame.view.width_px, frame.view.height_px]
    for axis in (0, 1):
        wanted, found, read = [], [], []
        for pixel in range(size[axis] + 1):
            point = (float(pixel), 0.0) if axis == 0 else (0.0, float(pixel))
            wanted.append(recipe(pixel, size[axis], third[axis]))
            found.append(frame.encode(point)[axis])
            read.append(saved.encode(point)[axis])
        assert found == wanted
        assert read == wanted  # floats of a saved frame stand for the same quotients


@pytest.mark.parametrize(
    ("family", "width", "pixel"), [("qwen2_vl", 320, 276), ("gemma3", 800, 690)]
)
def test_an_exact_half_is_rounded_to_even(family, width, pixel):
    """Both pixels are at 862.5 of 1000. Through resized pixels they were written as 863."""
    frame = Frame(width, 600, RESIZES[family].view(width, 600), COORDINATES[family])
    assert Fraction(pixel, width) * 1000 == Fraction(1725, 2)
    assert frame.encode((float(pixel), 0.0))[0] == 862
    assert frame.encode((pixel + 1e-9, 0.0))[0] == 863


def test_a_float_is_the_decimal_number_of_its_row():
    grid = Coordinates(max_value=1000)
    assert Fraction(0.96) < Fraction(96, 100)  # the binary number is a little below 1.5 of 1000
    assert level(grid, 0.96, 640) == 2
    assert level(grid, np.float64(0.96), 640) == 2
    assert level(grid, 1e-30, 640) == 0
    floor = Coordinates(max_value=1000, rounding="floor")
    assert level(floor, 0.1 + 0.7, 1000) == 0
    assert level(floor, 2.9999999999999996, 1000) == 3
    assert level(floor, 2.9999, 1000) == 2


def test_a_scale_that_is_no_quotient_of_sizes_is_used_as_it_is():
    view = View(300, 300, 1 / np.pi, 1 / np.pi, offset_x_px=0.123, offset_y_px=-1.5)
    (scale_x, offset_x), (_, offset_y) = view.fractions()
    assert float(scale_x) == view.scale_x
    assert (float(offset_x), float(offset_y)) == (0.123, -1.5)
    frame = Frame(900, 900, view, COORDINATES["relative_1000"])
    assert frame.encode((450.0, 450.0)) == (478, 472)
