"""Each task's grammar matches all that the task writes, and all that it matches is parsed."""

import random
import re

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from rows_of_tasks import ROWS, written_rows
from synthetic_rows import GENERATOR_OF, rows_for
from walks import Walks

from mm_numeric.answers import (
    Box,
    ClockTime,
    Instance,
    Instances,
    Number,
    Polygon,
    Text,
    Unreadable,
)
from mm_numeric.config.data import DataSource
from mm_numeric.data.examples import load_examples
from mm_numeric.geometry.coordinates import COORDINATES
from mm_numeric.geometry.frames import Frame, Resize
from mm_numeric.registry import TASKS
from mm_numeric.settings import read_dataclass
from mm_numeric.tasks.base import BaseTask, task_class

SHAPES = ("click", "detection", "grounding", "pointing", "text_detection", "text_spotting")
OPTIONS = {
    "detection": [{}, {"shape": "polygon", "ask": "each"}],
    "text_detection": [{"shape": "rotated_box"}, {"shape": "box"}],
    "multirc": [{}, {"answer": "yes_no"}],
    "gsm8k": [{}, {"solution": False}, {"plain": True}],
}
EVERY = [(name, options) for name in TASKS for options in OPTIONS.get(name, [{}])]
NAMES = [f"{name}-{'-'.join(map(str, options.values()))}" for name, options in EVERY]
each = pytest.mark.parametrize(("name", "options"), EVERY, ids=NAMES)


def frames_of(name):
    """Return a frame for each coordinate preset, or None where a task has no coordinates."""
    if name not in SHAPES:
        return [None]
    sizes = [(640, 480), (84, 84), (100, 333)]
    resize = Resize(kind="letterbox", side=336)
    return [
        Frame(*sizes[i % 3], resize.view(*sizes[i % 3]), coordinates)
        for i, coordinates in enumerate(COORDINATES.values())
    ]


@pytest.mark.slow
@each
def test_every_text_of_the_grammar_is_parsed(name, options):
    """3,000 random texts over all tasks and coordinates."""
    task, frames, source = task_class(name, "test")(**options), frames_of(name), random.Random(name)
    for frame in frames:
        grammar = task.grammar(frame)
        walks, pattern = Walks(grammar, task.grammar_after(frame)), re.compile(grammar, re.DOTALL)
        for i in range(3_000 // len(EVERY) // len(frames) + 1):
            text = walks.draw(source, 60)
            answer = task.parse(text, frame)
            assert not isinstance(answer, Unreadable), (text, answer)
            if i < 20:
                assert pattern.fullmatch(text)


@pytest.mark.slow
@each
def test_what_a_task_writes_matches(name, options, tmp_path):
    task = task_class(name, "test")(**options)
    if name in GENERATOR_OF:
        own = {"shape": options["shape"]} if name == "detection" and options else {}
        source = read_dataclass(DataSource, rows_for(name, 5, 3, **own), "test")
    else:
        file = written_rows(name if name in ROWS else "mathematics", tmp_path, 5)
        source = DataSource(path=str(file))
    examples = load_examples(task, source, tmp_path / "cache", training=True)
    for example in examples:
        for coordinates in COORDINATES.values():
            size = example.size_px or (64, 60)
            frame = Frame(*size, Resize(kind="squash", side=56).view(*size), coordinates)
            text = task.format(example.answer, frame).text
            assert re.fullmatch(task.grammar(frame), text, re.DOTALL), text


def test_lists_of_labelled_boxes_and_polygons_match_and_come_back():
    task = task_class("detection", "test")(shape="polygon", order="rows")
    polygon = Polygon(((5, 5), (60, 9), (40, 70)))
    items = (Instance(polygon), Instance(Box(3, 4, 50, 51), "sign"), Instance(polygon, "red car"))
    for frame in frames_of("detection"):
        text = task.format(Instances(items), frame).text
        assert re.fullmatch(task.grammar(frame), text, re.DOTALL), text
        found = task.parse(text, frame)
        assert [(type(i.shape), i.label) for i in found.items] == [
            (type(i.shape), i.label) for i in items
        ]


def test_times_are_all_and_no_others():
    task = task_class("clock", "test")()
    written = {str(ClockTime(hour, minute)) for hour in range(1, 13) for minute in range(60)}
    tried = [f"{hour}:{minute:02d}" for hour in range(25) for minute in range(100)]
    tried += [f"0{text}" for text in tried]
    assert {text for text in tried if re.fullmatch(task.grammar(), text)} == written


numerals = st.one_of(
    st.integers(-(10**30), 10**30).map(str),
    st.decimals(allow_nan=False, allow_infinity=False, places=3, min_value=-(10**9),
                max_value=10**9).map(lambda number: f"{number:f}"),
    st.tuples(st.integers(-999, 999), st.integers(1, 10**6)).map(
        lambda pair: f"{pair[0]}/{pair[1]}"
    ),
    st.floats(allow_nan=False, allow_infinity=False).map(lambda number: f"{number:e}"),
)  # fmt: skip


@given(text=numerals)
@examples(200)
def test_numbers_match_and_come_back(text):
    task = task_class("numbers", "test")()
    written = task.format(Number(text)).text
    assert re.fullmatch(task.grammar(), written)
    assert task.parse(written) == Number(text)


@given(text=st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), min_size=1))
@examples(200)
def test_texts_with_a_letter_or_sign_match(text):
    task = task_class("multirc", "test")()
    written = task.format(Text(text)).text
    has_sign = any("!" <= character <= "~" for character in text)
    assert bool(re.fullmatch(task.grammar(), written, re.DOTALL)) == has_sign


def test_a_shape_needs_its_frame_and_another_task_has_no_grammar():
    for name in SHAPES:
        with pytest.raises(ValueError, match="the frame of"):
            task_class(name, "test")().grammar()
    clock, boxes = task_class("clock", "test")(), task_class("detection", "test")()
    assert BaseTask.grammar(clock) is None
    assert clock.grammar_after() is None
    assert boxes.grammar_after(frames_of("detection")[0]) is None
