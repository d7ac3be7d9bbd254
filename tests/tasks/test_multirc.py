"""MultiRC: the right answers in words, or yes and no to each; from SuperGLUE's lines."""

import json

import pytest

from mm_numeric.answers import Choice, Text, Unreadable
from mm_numeric.evaluation.score import score
from mm_numeric.tasks.multirc import MultiRC

ANSWERS = [
    {"text": "In 1999", "label": 1},
    {"text": "Never {question}", "label": 0},
    {"text": "5 years ago", "label": 1},
]
ROW = {"id": "3.0", "passage": "It was 1999.", "question": "When was it?", "answers": ANSWERS}
WRONG = [{"text": "So", "label": 0}]
NONE_RIGHT = {"id": "3.1", "passage": "It was 1999.", "question": "Why?", "answers": WRONG}
ASKED = "It was 1999.\n\nQuestion: When was it?"


def read(*rows, training=True, **options):
    placed = [(f"rows, line {i}", row) for i, row in enumerate(rows, start=1)]
    return list(MultiRC(**options).examples(placed, training=training))


def test_the_right_answers_in_words():
    (example,) = read(ROW, NONE_RIGHT)  # a question without one is not counted
    assert (example.id, example.image, example.prompt) == ("3.0", None, ASKED)
    assert example.answer == Text("In 1999 | 5 years ago")
    written = MultiRC().format(example.answer)
    assert written.text == "In 1999 | 5 years ago"
    assert [written.text[m.start : m.end] for m in written.marks] == ["1999", "5"]
    assert MultiRC().parse(f" {written.text}\n") == example.answer
    assert MultiRC().recorded(MultiRC().record(example.answer)) == example.answer


def test_a_correct_answer_without_words_is_not_counted():
    """A target of no words could be trained on, and not be scored."""
    (example,) = read({**ROW, "answers": [{"text": " ", "label": 1}, {"text": "5", "label": 1}]})
    assert example.answer == Text("5")
    assert not read({**ROW, "answers": [{"text": "", "label": 1}]})


def test_yes_or_no_to_each_answer():
    task = MultiRC(answer="yes_no")
    examples = read(ROW, NONE_RIGHT, answer="yes_no")
    assert [example.id for example in examples] == ["3.0.0", "3.0.1", "3.0.2", "3.1.0"]
    assert examples[1].prompt == (
        f"{ASKED}\nAnswer: Never {{question}}\nIs this answer right, yes or no?"
    )
    assert [task.format(example.answer).text for example in examples] == ["yes", "no", "yes", "no"]
    for example in examples:
        assert task.parse(task.format(example.answer).text) == example.answer
        back = task.recorded(task.record(example.answer))
        assert (back.chosen, back.question) == (example.answer.chosen, example.answer.question)
        assert example.answer.question == example.id.rpartition(".")[0]


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("yes", Choice("yes")),
        (" No, it is not.", Choice("no")),
        ('"Yes."', Choice("yes")),
        ("not at all", Unreadable("neither yes nor no")),
        ("I say yes", Unreadable("neither yes nor no")),
        ("", Unreadable("empty answer")),
    ],
)
def test_yes_and_no_are_read_where_an_answer_begins(text, answer):
    assert MultiRC(answer="yes_no").parse(text) == answer


def test_rows_without_labels_are_for_prediction():
    unlabelled = {**ROW, "answers": [{"text": "In 1999"}, {"text": "Never"}]}
    assert [e.answer for e in read(unlabelled, training=False)] == [None]
    found = read(unlabelled, training=False, answer="yes_no")
    assert [e.answer for e in found] == [None, None]
    with pytest.raises(ValueError, match='line 1: an answer has no "label", 0 or 1; each needs'):
        read(unlabelled)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"id": None}, 'line 1: each row needs "id", "passage" and "question"'),
        ({"passage": ""}, 'line 1: each row needs "id", "passage" and "question"'),
        ({"answers": None}, r'line 1: no "answers" \(a list\)'),
        ({"answers": ["a"]}, r"line 1, answers\.0: no \"text\" in 'a'"),
        ({"answers": [{"text": "a", "label": 2}]}, r"answers\.0: the label 2 is neither 0 nor 1"),
        ({"answers": [{"text": "a", "label": "1"}]}, r"the label '1' is neither 0 nor 1"),
    ],
)
def test_a_bad_row_is_one_sentence(change, message):
    with pytest.raises(ValueError, match=message):
        read({**ROW, **change})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"answer": "word"}, "answer is one of text, yes_no, not 'word'"),
        ({"prompt": "{question}"}, r"prompt needs \{passage\} in it"),
    ],
)
def test_a_bad_setting_is_one_sentence(options, message):
    with pytest.raises(ValueError, match=message):
        MultiRC(**options)


@pytest.mark.slow
def test_both_kinds_are_scored_from_a_file(tmp_path):
    options = {"task": "multirc", "task_options": {"answer": "yes_no"}}
    task = MultiRC(answer="yes_no")
    lines = [
        {"id": e.id, "text": text, "target": task.record(e.answer), **options}
        for e, text in zip(
            read(ROW, NONE_RIGHT, answer="yes_no"), ["yes", "yes", "yes", "no"], strict=True
        )
    ]
    path = tmp_path / "predictions.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    metrics = score(path).metrics()
    assert metrics["f1_answers"]["value"] == pytest.approx(0.8)
    assert metrics["exact_questions"]["value"] == pytest.approx(0.5)
    line = {"id": "3.0", "text": "in 1999", "target": "In 1999 | 5 years ago", "task": "multirc"}
    path.write_text(json.dumps(line), encoding="utf-8")
    assert score(path).metrics()["f1"]["value"] == pytest.approx(4 / 7)
