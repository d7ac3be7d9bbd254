"""Answers score the same with and without special tokens, or a reason of their own is counted."""

import re

import pytest
from examples import examples
from hypothesis import assume, given
from hypothesis import strategies as st
from result_files import write_lines

from mm_numeric.answers import Box, Instance, Instances, Polygon, Unreadable
from mm_numeric.evaluation.score import score
from mm_numeric.families.tiny import tiny_qwen2_tokenizer
from mm_numeric.geometry.coordinates import COORDINATES
from mm_numeric.geometry.frames import NO_LOCATION_TOKENS, TOKENS_REMOVED, Frame, Resize
from mm_numeric.tasks.answer_part import without_end_tokens
from mm_numeric.tasks.detection import Detection
from mm_numeric.tasks.text_detection import TextDetection

END = "<|im_end|>"
PLAIN = tiny_qwen2_tokenizer()
LOCATIONS = tiny_qwen2_tokenizer()  # of a fine-tuned model whose location tokens are special
LOCATIONS.add_special_tokens(
    {"additional_special_tokens": [f"<loc{i:04d}>" for i in range(1024)]},
    replace_extra_special_tokens=False,
)


def frame_of(name):
    return Frame(640, 480, Resize(kind="none").view(640, 480), COORDINATES[name])


def stripped(text, tokenizer):
    """Return an answer as an engine returns it that removes special tokens."""
    ids = tokenizer(text + END, add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids, skip_special_tokens=False) == text + END
    return tokenizer.decode(ids, skip_special_tokens=True)


def quad(x, y):
    return Polygon(((x, y), (x + 40.0, y), (x + 40.0, y + 12.0), (x, y + 12.0)))


def box(i):
    return Box(10.0 + 50 * i, 20.0, 48.0 + 50 * i, 90.0 + i)


ANSWERS = {
    "detection": [
        (Instances((Instance(box(0), "red car"), Instance(box(1), "blue bus 7"))), 0),
        (Instances((Instance(box(2)), Instance(box(3)), Instance(box(4)))), 1),
        (Instances((Instance(quad(8.0, 8.0), "sign (left)"),)), 0),
        (Instances(()), 0),
        (Instances((Instance(box(5), "dog"),)), 4),
    ],
    "text_detection": [
        (Instances(tuple(Instance(quad(50.0 * i, 9.0 * i)) for i in range(9))), 0),
        (Instances((Instance(quad(9.0, 30.0)),)), 3),
        (Instances(()), 0),
    ],
}
"""Task -> (answer of the model, how many pixels the truth is to the right of it)."""


def moved(item, by):
    points = tuple((x + by, y) for x, y in item.shape.points)
    shape = Box(*points[0], *points[1]) if isinstance(item.shape, Box) else Polygon(points)
    return Instance(shape, item.label)


def scored(folder, task, name, change):
    """Score the answers in a coordinate format, after ``change`` of their texts."""
    frame, rows = frame_of(name), []
    tasks = {"detection": Detection(shape="polygon"), "text_detection": TextDetection()}
    for i, (answer, by) in enumerate(ANSWERS[task]):
        target = Instances(tuple(moved(item, by) for item in answer.items))
        rows.append(
            {
                "id": str(i),
                "task": task,
                "text": change(tasks[task].format(answer, frame).text),
                "target": tasks[task].record(target),
                "frame": frame.to_dict(),
            }
        )
    path = write_lines(folder / "predictions.jsonl", rows)
    return score(path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "task"),
    [
        *((n, "detection") for n in {way.format: n for n, way in COORDINATES.items()}.values()),
        *((n, "text_detection") for n in ("qwen2_vl", "paligemma", "llava")),
    ],
)
def test_each_format_scores_the_same_without_special_tokens(tmp_path, name, task):
    changes = [lambda t: t, lambda t: t + END, lambda t: stripped(t, PLAIN)]
    found = [scored(tmp_path, task, name, change) for change in changes]
    for other in found[1:]:
        assert other.metrics() == found[0].metrics()
        assert [r["parsed"] for r in other.rows] == [r["parsed"] for r in found[0].rows]
    assert not found[0].failures
    assert found[0].metrics()["f1_at_0.5"]["value"] == 1


@pytest.mark.parametrize("task", ANSWERS)
def test_location_tokens_that_were_removed_are_a_reason_of_their_own(tmp_path, task):
    found = scored(tmp_path, task, "paligemma", lambda text: stripped(text, LOCATIONS))
    assert found.failures == {NO_LOCATION_TOKENS: len(ANSWERS[task]) - 1}  # "none" is still there
    assert (
        "special tokens were removed; decode with skip_special_tokens=False" in NO_LOCATION_TOKENS
    )


points = st.tuples(st.integers(0, 640).map(float), st.integers(0, 480).map(float))
shapes = st.one_of(
    st.tuples(points, points).map(lambda p: Box(*p[0], *p[1])),
    st.lists(points, min_size=1, max_size=9).filter(lambda p: len(p) != 2).map(tuple).map(Polygon),
)
labels = st.one_of(st.text("ab 12(),.-[]:", max_size=9), st.sampled_from(["", "car", "at (1,2)"]))
JOINS = re.compile(r"\)\s*,|,\s*\(|^\s*,")
"""Labels with a comma next to a point, which makes it a part of the shape, ``at (1,2),(3,4)``, or
at their beginning, where it is a separator of shapes."""


items = st.lists(st.tuples(shapes, labels), max_size=4)


def written(frame, shapes_and_labels):
    """Return shapes and labels as text, unless it has no single meaning even with all tokens."""
    found = [label for _, label in shapes_and_labels]
    assume(not any(JOINS.search(label) or label.strip() in ("none", "[") for label in found))
    try:
        return frame.write([Instance(*item) for item in shapes_and_labels]).text
    except ValueError:  # the label has text of the format
        assume(False)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen2_vl", "paligemma", "llava", "yi_vl", "qwen3_vl", "gemma3"])
@given(items=items)
@examples(20)
def test_an_answer_without_special_tokens_is_the_same_or_has_a_reason(name, items):
    frame = frame_of(name)
    text = written(frame, items)
    tokenizer = LOCATIONS if name == "paligemma" else PLAIN
    with_tokens = frame.read(without_end_tokens(text + END))
    found = frame.read(stripped(text, tokenizer))
    if isinstance(found, Unreadable) and found.reason in (TOKENS_REMOVED, NO_LOCATION_TOKENS):
        assert name in ("qwen2_vl", "paligemma")
        return
    assert found == with_tokens


@pytest.mark.slow
@given(items=items, part=st.floats(0, 1))
@examples(80)
def test_a_truncated_answer_without_special_tokens_has_no_shape_of_its_own(items, part):
    """Only the last shape may be one that looks complete after its second or fourth point."""
    frame = frame_of("qwen2_vl")
    text = written(frame, items)
    whole = frame.read(text)
    plain = stripped(text, PLAIN)
    found = frame.read(plain[: round(part * len(plain))])
    if isinstance(found, Unreadable) or not found.items:
        return
    *complete, last = found.items
    assert complete == list(whole.items[: len(complete)])
    original = whole.items[len(complete)]
    assert last.label == original.label
    points = last.shape.points
    assert points == original.shape.points[: len(points)]
    assert len(points) in (2, 4)
    assert len(points) == len(original.shape.points) or not found.cut


@given(items=st.lists(shapes, min_size=2, max_size=4), between=st.sampled_from([", ", " ,", ",\n"]))
@examples(50)
def test_shapes_that_are_joined_by_another_separator_are_not_one_shape(items, between):
    assume(any(len(shape.points) > 1 for shape in items))  # single points join alike
    frame = frame_of("qwen2_vl")
    plain = between.join(stripped(frame.write([Instance(s)]).text, PLAIN) for s in items)
    found = frame.read(plain)
    assert isinstance(found, Unreadable)
    assert found.reason == TOKENS_REMOVED


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("(1,2),(3,4),(5,6)", TOKENS_REMOVED),  # of a quadrilateral
        ("(1,2),(3,4), (5,6),(7,8)", TOKENS_REMOVED),  # two boxes
        ("(1,2),(3,4),", "cut off within a shape"),
        ("car(1,2),(3,4)bus(5,6),(7,8),(9,10)", TOKENS_REMOVED),
    ],
)
def test_what_is_left_of_several_or_truncated_shapes_is_no_shape(text, reason):
    assert frame_of("qwen2_vl").read(text) == Unreadable(reason)
