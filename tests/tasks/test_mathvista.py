"""MathVista's questions: the published prompts, answers read back, rows refused."""

import pytest

from mm_numeric.answers import ShortAnswer, Text, Unreadable
from mm_numeric.evaluation.metrics.mathvista import MATHVISTA
from mm_numeric.tasks.mathvista import MathVista

CHOICE = {
    "id": "1",
    "image": "1.jpg",
    "question": "Which shape?",
    "choices": ["circle", "square"],
    "answer": "square",
    "question_type": "multi_choice",
    "answer_type": "text",
    "metadata": {"task": "vqa", "skills": ["geometry", "logic"], "img_width": 3, "split": "mine"},
}


def free(answer, answer_type, **more):
    row = {**CHOICE, "choices": None, "answer": answer, "question_type": "free_form"}
    return {**row, "question": "How much?", "answer_type": answer_type, **more}


ROWS = [
    CHOICE,
    free("5", "integer"),
    free("-12", "integer", unit="g"),
    free("1.2", "float", precision=1),
    free("0.25", "float", precision=2.0),
    free("[2, 8.5]", "list"),
]


def read(row, training=True, **options):
    (example,) = MathVista(**options).examples([("rows, line 1", row)], training=training)
    return example


@pytest.mark.parametrize(
    ("row", "query"),
    [
        (
            CHOICE,
            "Hint: Please answer the question and provide the correct option letter, e.g., A, B, "
            "C, D, at the end.\nQuestion: Which shape?\nChoices:\n(A) circle\n(B) square",
        ),
        (
            ROWS[2],
            "Hint: Please answer the question requiring an integer answer and provide the final "
            "value, e.g., 1, 2, 3, at the end.\nQuestion: How much? (Unit: g)",
        ),
        (
            ROWS[3],
            "Hint: Please answer the question requiring a floating-point number with one decimal "
            "place and provide the final value, e.g., 1.2, 1.3, 1.4, at the end.\nQuestion: How "
            "much?",
        ),
        (
            ROWS[4],
            "Hint: Please answer the question requiring a floating-point number with two decimal "
            "places and provide the final value, e.g., 1.23, 1.34, 1.45, at the end.\nQuestion: "
            "How much?",
        ),
        (
            ROWS[5],
            "Hint: Please answer the question requiring a Python list as an answer and provide the "
            "final list, e.g., [1, 2, 3], [1.2, 1.3, 1.4], at the end.\nQuestion: How much?",
        ),
    ],
)
def test_the_prompt_is_the_published_query(row, query):
    assert read(row).prompt == query
    assert read({**row, "query": "As they put it"}).prompt == "As they put it"
    assert read(row, prompt="{query}\nBe brief.").prompt == f"{query}\nBe brief."


@pytest.mark.parametrize(
    ("row", "text", "numbers"),
    [
        (ROWS[0], "B", []),
        (ROWS[1], "5", ["5"]),
        (ROWS[2], "-12", ["-12"]),
        (ROWS[3], "1.2", ["1.2"]),
        (ROWS[4], "0.25", ["0.25"]),
        (ROWS[5], "[2, 8.5]", ["2", "8.5"]),
    ],
)
def test_what_is_written_is_right_by_every_rule(row, text, numbers):
    task, example = MathVista(), read(row)
    written = task.format(example.answer)
    assert written.text == text
    assert [text[m.start : m.end] for m in written.marks] == numbers
    back = task.parse(written.text)
    assert task.format(back).text == text
    columns = MATHVISTA.judge([back], [example.answer])
    assert [columns[name][0] for name in ("strict", "rules", "rules_2023")] == [1, 1, 1]
    assert task.recorded(task.record(example.answer)) == example.answer
    assert task.record(back) == text


def test_an_answer_knows_its_question():
    assert read(CHOICE).answer == ShortAnswer(
        text="square",
        question_type="multi_choice",
        answer_type="text",
        choices=("circle", "square"),
        labels={"task": ("vqa",), "skills": ("geometry", "logic"), "split": ("mine",)},
    )
    assert read(ROWS[4]).answer.precision == 2
    assert read({**CHOICE, "answer": ""}, training=False).answer is None
    assert MathVista().parse(" \n") == Unreadable("empty answer")
    assert MathVista().parse("so B") == Text("so B")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image": None}, r'^rows, line 1: no image; each row needs "image"'),
        ({"question": " "}, r'^rows, line 1: no "question" \(a text\)\.'),
        ({"answer": "triangle"}, r"line 1: the answer 'triangle' is not one of the choices\."),
        ({"answer": ""}, r"line 1: no answer to train on; remove the row\."),
        ({"answer": 5}, r"line 1: the answer 5 is not a text; put it in quotes\."),
        ({"choices": ["square"]}, r"line 1: 1 choices; multi_choice has 2 to 26\."),
        ({"choices": "square"}, r"line 1: choices 'square' is not a list of texts\."),
        ({"answer_type": "integer"}, r"'multi_choice' with answer_type 'integer'; it is multi_cho"),
        (
            {"metadata": {"split": "testmini"}},
            r"MathVista's testmini, which is licensed for testing",
        ),
        ({"metadata": {"split": "test"}}, r"MathVista's test, which is licensed for testing only"),
        ({"metadata": []}, r"line 1: metadata \[\] is not an object\."),
        (free("5.0", "integer"), r"line 1: the answer '5\.0' is not of type integer\."),
        (free("1/2", "float", precision=1), r"the answer '1/2' is not of type float\."),
        (free("2, 8", "list"), r"the answer '2, 8' is not of type list\."),
        (free("1.2", "float"), r"line 1: precision None of a float; it is 1 or 2\."),
        (free("1.2", "float", precision=3), r"line 1: precision 3 of a float; it is 1 or 2\."),
    ],
)
def test_a_bad_row_is_one_sentence(change, message):
    with pytest.raises(ValueError, match=message):
        read({**CHOICE, **change})


def test_rows_for_testing_are_tested():
    assert read({**CHOICE, "metadata": {"split": "testmini"}}, training=False).answer


def test_a_prompt_without_the_question_is_rejected():
    with pytest.raises(ValueError, match=r"prompt needs \{query\} in it"):
        MathVista(prompt="Answer!")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("B", r"the target 'B' is not an object"),
        ({**CHOICE, "answer": ""}, r"the target has no answer"),
        ({"answer": "B"}, r"the target: question_type None with answer_type None"),
    ],
)
def test_an_invalid_target_is_rejected(value, message):
    with pytest.raises(ValueError, match=message):
        MathVista().recorded(value)
