"""Tasks of numbers: what is written is read back, and what is rendered is true."""

import json
import re
from pathlib import Path

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from mm_numeric.answers import Number, Unreadable
from mm_numeric.evaluation.score import score
from mm_numeric.numbers.numerals import NUMBER_FORMATS, plain_numbers
from mm_numeric.registry import TASKS
from mm_numeric.tasks.base import task_class
from mm_numeric.tasks.gsm8k import GSM8K, Solution
from mm_numeric.tasks.measurement import ReadInstrument
from mm_numeric.tasks.number_questions import Numbers, RJokes, last_number
from mm_numeric.tasks.temporal_spans import FindSpans

RANDOM = examples(200)
WRITTEN = st.one_of(
    st.integers(-(10**60), 10**60).map(str),
    st.decimals(-1000, 1000, places=3).map(str),
    st.tuples(st.integers(-999, 999), st.integers(1, 999)).map(lambda p: f"{p[0]}/{p[1]}"),
    st.tuples(st.integers(-9, 9), st.integers(-99, 99)).map(lambda p: f"{p[0]}e{p[1]}"),
)


@given(text=WRITTEN)
@RANDOM
def test_what_is_written_is_read_back(text):
    task, number = Numbers(), Number(text)
    written = task.format(number)
    assert written.text == text
    assert task.parse(written.text) == number
    assert task.recorded(json.loads(json.dumps(task.record(number)))).text == text
    digits = "".join(text[mark.start : mark.end] for mark in written.marks)
    assert re.sub("[^0-9]", "", digits) == re.sub("[^0-9]", "", text)


@given(text=WRITTEN)
@RANDOM
def test_the_last_number_of_a_sentence_is_read(text):
    assert last_number(f"Of 3 and 4.5 it is {text}.") == Number(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1,234", "1234"),
        ("-1,234.5", "-1234.5"),
        ("12,34", "34"),
        ("3-5", "5"),
        ("3 - -5", "-5"),
        ("$5.", "5"),
        ("= .5", "0.5"),
        ("-.5", "-0.5"),
        ("\N{MINUS SIGN}7", "-7"),
        ("1.2.3", "1.2"),
        ("1e3 apples", "1000"),
        ("2/7", "2/7"),
        ("007", "7"),
    ],
)
def test_known_readings(text, value):
    assert last_number(text) == Number(value)


def table_of_formats():
    """The rows of the table in docs/tasks.md: a format, a text, and the numbers that it has."""
    page = (Path(__file__).parents[2] / "docs/tasks.md").read_text(encoding="utf-8")
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if '`"1' in line]
    texts = ["1,234", "1.234", "1 234", "3,5"]
    for row in rows:
        number_format = row[0].split('"')[1]
        yield from ((number_format, text, cell) for text, cell in zip(texts, row[3:], strict=True))


@pytest.mark.parametrize(("number_format", "text", "numbers"), [*table_of_formats()])
def test_numbers_are_read_as_the_documentation_says(number_format, text, numbers):
    *others, last = numbers.split(", ")
    assert Numbers(number_format=number_format).parse(f"It is {text}.") == Number(last)
    assert re.findall(r"[0-9.]+", plain_numbers(text, number_format)) == [*others, last]
    solved = GSM8K(number_format=number_format).parse(f"So #### {text}")
    unread = Unreadable("no number behind ####")
    assert solved == (unread if others and "," in text else Solution(numbers.split(", ")[0]))
    read = ReadInstrument(number_format=number_format).parse(f"{text} mV")
    assert (read.text, read.units) == (last, ("mV",))
    found = FindSpans(number_format=number_format).parse(f"{text} to {text} s")
    if not others:
        assert found.spans == ((float(last), float(last)),)
    elif "," in text:
        assert isinstance(found, Unreadable)


def test_every_task_of_numbers_has_the_option():
    for name in TASKS:
        task = task_class(name, "test")
        if issubclass(task, Numbers | FindSpans):
            assert "number_format" in task.reads_by, name
            with pytest.raises(ValueError, match=r"^number_format is one of 1,234\.5, 1\.234,5, "):
                task(number_format="1'234.5")
    assert {number_format for number_format, _, _ in table_of_formats()} == set(NUMBER_FORMATS)


@pytest.mark.parametrize(
    ("number_format", "text", "plain"),
    [
        (
            "1,234.5",
            "-1,234,567.25 of 12,34 and 1,2345; 0,123",
            "-1234567.25 of 12,34 and 1,2345; 0,123",
        ),
        (
            "1.234,5",
            "-1.234.567,25 3.5 3.500 0.500 1,2,3 01.02.2024",
            "-1234567.25 3.5 3500 0.500 1,2,3 01.02.2024",
        ),
        (
            "1 234,5",
            "1\u202f234,5 1\u00a0234 1\u2009234 2024 100 12 34",
            "1234.5 1234 1234 2024 100 12 34",
        ),
        ("1 234.5", "12 345 678.25 V", "12345678.25 V"),
    ],
)
def test_only_numbers_of_the_format_are_rewritten(number_format, text, plain):
    assert plain_numbers(text, number_format) == plain
    assert plain_numbers(plain.replace("3.500", ""), "1,234.5") == plain.replace("3.500", "")


@pytest.mark.parametrize("number_format", NUMBER_FORMATS)
def test_rewriting_takes_linear_time(number_format):
    for part in ("1,234", "1.234", "1 234", "1,", "1.", ".5,", "9", ",234,234"):
        plain_numbers(part * 20_000, number_format)  # quadratic time would take minutes


def test_predictions_and_their_labels_keep_their_formats(tmp_path):
    """The option is about generated texts; a target 1.234 is not 1234."""
    rows = [{"id": "1", "text": "1.234,5 V", "target": "1234.5"},
            {"id": "2", "text": "1,234", "target": "1.234"}]  # fmt: skip
    common = {"task": "numbers", "task_options": {"number_format": "1.234,5"}}
    lines = "".join(json.dumps({**row, **common}) + "\n" for row in rows)
    (tmp_path / "predictions.jsonl").write_text(lines, encoding="utf-8")
    assert score(tmp_path / "predictions.jsonl").metrics()["accuracy"]["value"] == 1
    solution = GSM8K(number_format="1.234,5").read_answer("It is 1,250 m. #### 1,250", "row")
    assert (solution.text, solution.steps) == ("1250", "It is 1,250 m.")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (" ", "empty answer"),
        ("nan, inf, ten", "no number"),
        ("१२", "no number"),
        ("1/0", "division by zero"),
        pytest.param("9" * 1001, "more than 1000 digits", id="many digits"),
    ],
)
def test_what_is_no_number_has_a_reason(text, reason):
    assert last_number(text) == Unreadable(reason)


def test_numbers_are_equal_by_their_value():
    assert Number("5.0") == Number("5") == Number("10/2") == Number("0.5e1")
    assert Number("5.0").text == "5.0"
    assert Number("1" + "0" * 400).value == float("inf")
    assert Number("9007199254740993") != Number("9007199254740992")  # one float64


@pytest.mark.parametrize("text", ["", "-", "1/0", "nan", "1e1000", "१", "1 2", "+1", "1_0", "0x1"])
def test_a_text_that_is_no_number_is_rejected(text):
    with pytest.raises(ValueError, match=r"is not a number|divides by 0"):
        Number(text)


def read(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def examples(task, *rows):
    return list(task.examples([(f"line {i}", row) for i, row in enumerate(rows)], training=True))


def test_rows_of_ones_own():
    task = Numbers(prompt="Q: {question}\nA:")
    one, two = examples(
        task,
        {"id": 1, "question": "How many?", "answer": 12, "image": "a.png"},
        {"id": "b", "question": "What?", "answer": "0.10", "category": "hard"},
    )
    assert one.prompt == "Q: How many?\nA:"
    assert (one.answer, str(one.image), one.buckets) == (Number("12"), "a.png", {})
    assert (two.answer.text, two.image, two.buckets) == ("0.10", None, {"category": "hard"})


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"id": 1, "answer": 1}, 'line 0: no question; each row needs "question"'),
        ({"question": "a", "answer": 1}, 'line 0: no id; each row needs an "id"'),
        ({"id": 1, "question": "a"}, 'line 0: no answer; each row needs "answer"'),
        ({"id": 1, "question": "a", "answer": True}, "line 0: no answer"),
        ({"id": 1, "question": "a", "answer": "b"}, "line 0: the answer 'b' is not a number"),
    ],
)
def test_an_invalid_row_is_rejected(row, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        examples(Numbers(), row)


def test_a_joke_scores_from_0_to_11():
    row = {"id": 1, "question": "Why?", "answer": 11}
    assert examples(RJokes(), row)[0].answer == Number("11")
    for value in (12, -1, "2.5"):
        with pytest.raises(ValueError, match="the score is a whole number, 0 to 11, not "):
            examples(RJokes(), {**row, "answer": value})
