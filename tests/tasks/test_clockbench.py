"""Clocks with seconds, dates, ranges and no valid time: rows, texts and answers read back."""

import pytest

from mm_numeric.answers import ClockReading, Unreadable
from mm_numeric.tasks.clockbench import ClockBench, read_target

TIME = {"valid": True, "hours": 1, "minutes": [4, 5], "seconds": 45, "date": False}
ROW = {"id": "1", "image": "1.png", "question": "What time is it?", "answer": TIME}


def read(row, *, training=True):
    (example,) = ClockBench().examples([("rows, line 1", row)], training=training)
    return example


def test_a_row_is_a_question_with_its_answer():
    example = read({**ROW, "category": "shift"})
    assert (example.id, example.prompt) == ("1", "What time is it?")
    assert example.answer == ClockReading(TIME)
    assert example.buckets == {"category": "shift"}
    bare = read({"id": "1", "image": "1.png", "question": None}, training=False)
    assert bare.answer is None
    assert bare.prompt == ClockBench().prompt


@pytest.mark.parametrize(
    ("answer", "text", "numbers"),
    [
        (TIME, '{"valid": true, "hours": 1, "minutes": 4, "seconds": 45, "date": false}',
         {"hour": "1", "minute": "4", "free": "45"}),
        ({"valid": True, "hours": [10, 13], "minutes": {"a": [1, 3], "b": 9}, "weekday": "Mon"},
         '{"valid": true, "hours": 12, "minutes": 2, "weekday": "Mon"}',
         {"hour": "12", "minute": "2"}),
        ({"valid": False}, '{"valid": false}', {}),
    ],
)  # fmt: skip
def test_an_answer_is_written_as_one_of_the_accepted_times(answer, text, numbers):
    task, target = ClockBench(), read_target(answer, "a test")
    written = task.format(target)
    assert written.text == text
    assert {m.role: text[m.start : m.end] for m in written.marks} == numbers
    assert task.recorded(task.record(target)) == target


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ('{"valid": true, "hours": 7}', {"valid": True, "hours": 7}),
        ('```json\n{"valid": false}\n```', {"valid": False}),
        ("{valid: true, hours: 7,}", {"valid": True, "hours": 7}),
        ("{'valid': True, 'hours': null}", {"valid": True, "hours": None}),
        ("{'hours': (7, 8)}", {"hours": [7, 8]}),
    ],
)
def test_an_object_is_read_as_by_the_official_script(text, fields):
    assert ClockBench().parse(text) == ClockReading(fields)


@pytest.mark.parametrize(
    ("text", "lenient"),
    [
        ("7:05:15", {"valid": True, "hours": 7, "minutes": 5, "seconds": 15}),
        ("It is 19:05.", {"valid": True, "hours": 19, "minutes": 5, "seconds": False}),
        ("This is not a valid time: 7:05", {"valid": False}),
        ("Invalid.", {"valid": False}),
        ("no idea", None),
        ("{7}", None),
        ('{"hours": NaN}', None),
        pytest.param("{" * 5000 + "}" * 5000, None, id="many braces"),
    ],
)
def test_a_text_without_an_object_has_a_lenient_answer(text, lenient):
    answer = ClockBench().parse(text)
    assert answer == Unreadable("no JSON object")
    assert answer.lenient == (lenient and ClockReading(lenient))


def test_an_empty_text_is_unparseable():
    assert ClockBench().parse(" \n") == Unreadable("empty answer")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("7:05", r"the answer '7:05' is not an object with \"valid\", true or false\."),
        ({"hours": 7}, r"is not an object with \"valid\", true or false\."),
        ({**TIME, "second": 1}, r"has a field 'second'; the fields are valid, hours, minutes, sec"),
        ({"valid": True, "hours": 7}, r"a valid time needs minutes, found None\."),
        ({**TIME, "minutes": 60}, r"minutes 60 is not possible; write 0 to 59, a range such as"),
        ({**TIME, "hours": 7.5}, r"hours 7\.5 is not possible; write 0 to 24, a range"),
        ({**TIME, "minutes": [4]}, r"minutes \[4\] is not possible"),
        ({**TIME, "hours": {"a": [1]}}, r"hours \{'a': \[1\]\} is not possible"),
        ({**TIME, "hours": {}}, r"hours \{\} is not possible"),
        ({**TIME, "date": 32}, r"date 32 is not possible; write 1 to 31"),
        ({**TIME, "month": 13}, r"month 13 is not possible; write 1 to 12, or a text such as June"),
        ({**TIME, "weekday": 1}, r"weekday 1 is not possible; write a text such as Monday, or fal"),
    ],
)
def test_a_bad_answer_is_one_sentence(answer, message):
    with pytest.raises(ValueError, match=rf"^rows, line 1: .*{message}"):
        read({**ROW, "answer": answer})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"answer": None}, r"no \"answer\" to train on; add it, or remove the row\."),
        ({"question": 7}, r"the question 7 is not a text\."),
        ({"category": 7}, r"the category 7 is not a text\."),
        ({"image": None}, r"no image; each row needs"),
    ],
)
def test_a_bad_row_is_one_sentence(change, message):
    with pytest.raises(ValueError, match=rf"^rows, line 1: {message}"):
        read({**ROW, **change})
