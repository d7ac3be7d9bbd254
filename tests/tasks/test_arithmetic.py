"""Generated expressions and products are worked out, and depend on their seed alone."""

import json
import re

import pytest

from mm_numeric.config.data import DataSource
from mm_numeric.data.examples import load_examples, render_rows
from mm_numeric.tasks.arithmetic import Arithmetic, Multiplication
from mm_numeric.tasks.clock import Clock

BOTH = ("interpolation", "extrapolation")


@pytest.mark.parametrize(
    "task",
    [
        Arithmetic(),
        Arithmetic(operators="+-", numbers=(-9, 9), terms=(2, 2), longer=(9, 9)),
        Arithmetic(largest_answer=99),
    ],
)
def test_every_expression_is_worked_out(task, tmp_path):
    rows = read(task.render(tmp_path, 400, 3, BOTH))
    assert [row["category"] for row in rows[:4]] == [*BOTH, *BOTH]
    for row in rows:
        expression = re.search(r"[(\d-].*[\d)]", row["question"])[0]
        assert eval(expression) == int(row["answer"])  # written by the renderer under test
        assert set(re.findall(r"(?<=\d)\)* ([-+*])", expression)) <= set(task.operators)
        count = len(re.findall(r"\d+", expression))
        low, high = task.terms if row["category"] == "interpolation" else task.longer
        assert low <= count <= high
        assert abs(int(row["answer"])) <= task.largest_answer


def test_a_task_says_what_is_trained():
    told = Arithmetic(terms=(2, 3), longer=(4, 4), numbers=(0, 9)).describe()
    assert "expressions of 2 to 3 numbers, 0 to 9, with + - * and brackets" in told
    assert told.endswith("extrapolation 4 numbers.")
    assert "one factor of 6." in Multiplication().describe()


def test_what_cannot_be_drawn_is_said(tmp_path):
    task = Arithmetic(operators="*", numbers=(50, 60), largest_answer=60)
    with pytest.raises(ValueError, match=r"no expression of 2 to 4 numbers within 60 in 10000"):
        task.render(tmp_path, 1, 0)


def test_every_product_is_right(tmp_path):
    rows = read(Multiplication(digits=2).render(tmp_path, 400, 3, BOTH))
    lengths = {category: set() for category in BOTH}
    for row in rows:
        a, b = re.findall(r"\d+", row["question"])
        assert int(a) * int(b) == int(row["answer"])
        lengths[row["category"]].add((len(a), len(b)))
    assert lengths["interpolation"] == {(1, 1), (1, 2), (2, 1), (2, 2)}
    assert lengths["extrapolation"] == {(3, 1), (3, 2), (3, 3), (1, 3), (2, 3)}


def test_rows_depend_on_their_seed_and_category_alone(tmp_path):
    folders = [tmp_path / name for name in "abcd"]
    for folder in folders:
        folder.mkdir()
    task = Arithmetic()
    alone = read(task.render(folders[0], 10, 1))
    assert {row["category"] for row in alone} == {"interpolation"}
    assert read(task.render(folders[1], 20, 1))[:10] == alone
    both = read(task.render(folders[2], 10, 1, BOTH))
    assert [r for r in both if r["category"] == "interpolation"] == alone[::2]
    assert read(task.render(folders[3], 10, 2)) != alone


def test_a_source_renders_the_categories_that_it_names(tmp_path):
    source = DataSource(render=6, seed=2, categories=BOTH)
    examples = load_examples(Arithmetic(), source, tmp_path, training=False)
    assert [example.buckets["category"] for example in examples] == [*BOTH, *BOTH, *BOTH]
    assert all(example.image is None for example in examples)
    other = render_rows(Arithmetic(), DataSource(render=6, seed=2), tmp_path)
    assert other != render_rows(Arithmetic(), source, tmp_path)
    with pytest.raises(
        ValueError, match=r"categories: there is no category 'inter'\. Known: extra"
    ):
        render_rows(Arithmetic(), DataSource(render=6, categories=("inter",)), tmp_path)
    with pytest.raises(ValueError, match=r"data\.categories: the task Clock has none"):
        render_rows(Clock(), source, tmp_path)
    with pytest.raises(ValueError, match=r"categories require render"):
        DataSource(path="a.jsonl", categories=BOTH)


def read(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"operators": "+/"}, "operators are some of"),
        ({"operators": ""}, "operators are some of"),
        ({"terms": (1, 2)}, r"terms is \[from, to\]"),
        ({"longer": (3,)}, r"longer is \[from, to\]"),
        ({"numbers": (-100, 9), "largest_answer": 99}, "largest_answer 99 is less than a number"),
        ({"numbers": (9, 0)}, r"numbers is \[smallest, largest\], not \[9, 0\]"),
        ({"questions": ("What?",)}, r"questions each need \{expression\}"),
        ({"prompt": "What?"}, r"prompt needs \{question\}"),
    ],
)
def test_settings_that_draw_nothing_are_rejected(settings, message):
    with pytest.raises(ValueError, match=message):
        Arithmetic(**settings)


@pytest.mark.parametrize("settings", [{"digits": 0}, {"question": "What is {a}?"}])
def test_invalid_factors_are_rejected(settings):
    with pytest.raises(ValueError, match=r"digits is 1|question needs"):
        Multiplication(**settings)
