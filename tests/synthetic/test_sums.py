"""Generated expressions and products are worked out, and depend on their seed alone."""

import json
import re

import pytest

from mm_numeric.config.data import DataSource
from mm_numeric.data.examples import load_examples
from mm_numeric.synthetic.sums import Arithmetic, Multiplication
from mm_numeric.tasks.number_questions import Arithmetic as Task

BOTH = ("interpolation", "extrapolation")


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"operators": "+-", "numbers": (-9, 9), "terms": (2, 2), "longer": (9, 9)},
        {"largest_answer": 99},
    ],
)
def test_every_expression_is_worked_out(settings, tmp_path):
    made = Arithmetic(rows=400, seed=3, categories=BOTH, **settings)
    rows = read(made.write(tmp_path))
    assert [row["category"] for row in rows[:4]] == [*BOTH, *BOTH]
    for row in rows:
        expression = re.search(r"[(\d-].*[\d)]", row["question"])[0]
        assert eval(expression) == int(row["answer"])  # written by the generator under test
        assert set(re.findall(r"(?<=\d)\)* ([-+*])", expression)) <= set(made.operators)
        count = len(re.findall(r"\d+", expression))
        low, high = made.terms if row["category"] == "interpolation" else made.longer
        assert low <= count <= high
        assert abs(int(row["answer"])) <= made.largest_answer


def test_a_report_describes_the_questions():
    settings = {"terms": (2, 3), "longer": (4, 4), "numbers": (0, 9)}
    described = Arithmetic(**settings).describe()
    assert described == "expressions of 2 to 3 numbers, 0 to 9, with + - * and brackets"
    described = Arithmetic(categories=BOTH, **settings).describe()
    assert described.startswith("expressions of 2 to 3 numbers or 4 numbers, 0 to 9, with")
    assert Multiplication(digits=2).describe() == "two factors of 1 to 2 digits"
    described = Multiplication(categories=BOTH, digits=2).describe()
    assert described == "two factors of 1 to 2 digits or two factors, one of 3 digits"


def test_what_cannot_be_drawn_is_said(tmp_path):
    made = Arithmetic(rows=1, operators="*", numbers=(50, 60), largest_answer=60)
    with pytest.raises(ValueError, match=r"no expression of 2 to 4 numbers within 60 in 10000"):
        made.write(tmp_path)


def test_every_product_is_right(tmp_path):
    rows = read(Multiplication(digits=2, rows=400, seed=3, categories=BOTH).write(tmp_path))
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
    alone = read(Arithmetic(rows=10, seed=1).write(folders[0]))
    assert {row["category"] for row in alone} == {"interpolation"}
    assert read(Arithmetic(rows=20, seed=1).write(folders[1]))[:10] == alone
    both = read(Arithmetic(rows=10, seed=1, categories=BOTH).write(folders[2]))
    assert [r for r in both if r["category"] == "interpolation"] == alone[::2]
    assert read(Arithmetic(rows=10, seed=2).write(folders[3])) != alone


def test_rows_are_of_the_categories_that_the_settings_name(tmp_path):
    source = DataSource(synthetic=Arithmetic(rows=6, seed=2, categories=BOTH))
    examples = load_examples(Task(), source, tmp_path, training=False)
    assert [example.buckets["category"] for example in examples] == [*BOTH, *BOTH, *BOTH]
    assert all(example.image is None for example in examples)
    with pytest.raises(
        ValueError, match=r"categories: there is no category 'inter'\. Known: extra"
    ):
        Arithmetic(categories=("inter",))
    with pytest.raises(ValueError, match=r"categories are some of interpolation, extrapolation"):
        Arithmetic(categories=())


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
    ],
)
def test_settings_that_draw_nothing_are_rejected(settings, message):
    with pytest.raises(ValueError, match=message):
        Arithmetic(**settings)


@pytest.mark.parametrize("settings", [{"digits": 0}, {"question": "What is {a}?"}])
def test_invalid_factors_are_rejected(settings):
    with pytest.raises(ValueError, match=r"digits is 1|question needs"):
        Multiplication(**settings)
