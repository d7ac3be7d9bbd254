"""The clock task writes and reads every time."""

import time

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from mm_numeric.answers import ClockTime, Unreadable
from mm_numeric.tasks.clock import Clock, read_time

ALL_TIMES = [ClockTime(hour, minute) for hour in range(1, 13) for minute in range(60)]


def test_parse_undoes_format():
    for shown in ALL_TIMES:
        written = Clock().format(shown)
        assert Clock().parse(written.text) == shown
        parts = [(written.text[m.start : m.end], m.role, m.group) for m in written.marks]
        assert parts == [(str(shown.hour), "hour", 0), (f"{shown.minute:02d}", "minute", 0)]


def test_minutes_and_times_are_two_names_for_the_same():
    assert sorted(shown.minutes for shown in ALL_TIMES) == list(range(720))
    for shown in ALL_TIMES:
        assert ClockTime.from_minutes(shown.minutes) == shown
        assert ClockTime.from_minutes(shown.minutes - 720) == shown
        assert ClockTime.from_minutes(shown.minutes + 1440) == shown
    assert ClockTime(12, 5).minutes == 5


@pytest.mark.parametrize(
    ("hour", "minute", "message"),
    [
        (0, 0, "the hour of a dial is 1 to 12, not 0"),
        (13, 0, "the hour of a dial is 1 to 12, not 13"),
        (1, -1, "the minute is 0 to 59, not -1"),
        (1, 60, "the minute is 0 to 59, not 60"),
    ],
)
def test_what_no_dial_shows(hour, minute, message):
    with pytest.raises(ValueError, match=message):
        ClockTime(hour, minute)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("7:05", ClockTime(7, 5)),
        ("07:05", ClockTime(7, 5)),
        ("  7:05\n", ClockTime(7, 5)),
        ("It is 7:05.", ClockTime(7, 5)),
        ("7:05pm", ClockTime(7, 5)),
        ("<|x|>12:00<|y|>", ClockTime(12, 0)),
        ("Not 3:10 but 7:05", ClockTime(7, 5)),
        ("7:05 or 13:00", Unreadable("hour not 1 to 12")),
        ("13:00 or 7:05", ClockTime(7, 5)),
        ("", Unreadable("empty answer")),
        (" \n\u3000", Unreadable("empty answer")),
        ("seven", Unreadable("no time as H:MM")),
        ("7.05", Unreadable("no time as H:MM")),
        ("7:5", Unreadable("no time as H:MM")),
        ("7:055", Unreadable("no time as H:MM")),
        ("107:05", Unreadable("no time as H:MM")),
        ("7:05:30", Unreadable("no time as H:MM")),
        ("٧:٠٥", Unreadable("no time as H:MM")),
        ("0:30", Unreadable("hour not 1 to 12")),
        ("13:05", Unreadable("hour not 1 to 12")),
        ("7:60", Unreadable("minute not 0 to 59")),
        ("99:99", Unreadable("hour not 1 to 12")),
    ],
)
def test_what_a_text_says(text, expected):
    assert Clock().parse(text) == expected


LENIENT = [
    ("7:05:15", ClockTime(7, 5)),
    ("19:05", ClockTime(7, 5)),
    ("19:05:59", ClockTime(7, 5)),
    ("0:25", ClockTime(12, 25)),
    ("24:00", ClockTime(12, 0)),
    ("7:5", ClockTime(7, 5)),
    ("7\uff1a05", ClockTime(7, 5)),
    ("7 o'clock", ClockTime(7, 0)),
    ("It is 7 o\u2019clock.", ClockTime(7, 0)),
    ("7 p.m.", ClockTime(7, 0)),
    ("7h05", ClockTime(7, 5)),
    ("19h", ClockTime(7, 0)),
    ("7 h 5 min", ClockTime(7, 5)),
    ("7 hours and 5 minutes", ClockTime(7, 5)),
    ("Not 3:10:00 but 7:05:15", ClockTime(7, 5)),
    ('{"hours": 7, "minutes": 5}', ClockTime(7, 5)),
    ('```json\n{"Hour": "07", "Minute": "05", "second": 15,}\n```', ClockTime(7, 5)),
    ("{valid: true, hours: 19, minutes: 5, seconds: false}", ClockTime(7, 5)),
    ("{'h': 7, 'm': 5, 's': None}", ClockTime(7, 5)),
    ('{"time": "19:05"}', ClockTime(7, 5)),
]
NOT_A_TIME = [
    "25:00", "7:60:00", "24:01", "seven", "7.05", "12:34:56:78", '{"hours": 7}',
    pytest.param("{" * 20_000, id="many braces"), '{"hours": 7.5, "minutes": 5}',
    '{"hours": 7, "minutes": 61}', '{"valid": false}',
]  # fmt: skip


@pytest.mark.parametrize(("text", "time"), LENIENT)
def test_a_time_in_another_format_is_unparseable_and_has_a_lenient_answer(text, time):
    answer = Clock().parse(text)
    assert isinstance(answer, Unreadable)
    assert answer.lenient == time


@pytest.mark.parametrize("text", NOT_A_TIME)
def test_a_text_without_a_time_has_no_lenient_answer(text):
    answer = Clock().parse(text)
    assert isinstance(answer, Unreadable)
    assert answer.lenient is None


@given(text=st.text() | st.text("0123456789: ", max_size=30))
@examples(150)
def test_every_text_is_read_or_counted(text):
    answer = Clock().parse(text)
    assert isinstance(answer, ClockTime | Unreadable)
    if isinstance(answer, Unreadable):
        assert answer.reason
    else:
        assert f"{answer.minute:02d}" in text


@pytest.mark.parametrize("piece", ["1:", "1", "1:23 ", ":", "12:34:", "1 h", "{,", "{a:", "[" * 9])
def test_a_long_text_is_read_at_once(piece):
    started = time.process_time()
    Clock().parse(piece * (100_000 // len(piece)))
    assert time.process_time() - started < 2  # takes 10 ms; quadratic would take minutes


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"time": "7:05"}, ClockTime(7, 5)),
        ({"time": " 07:05\t"}, ClockTime(7, 5)),
        ({"time": "7:05", "hour": 3, "minute": 0}, ClockTime(7, 5)),
        ({"hour": 7, "minute": 5}, ClockTime(7, 5)),
        ({"hour": "07", "minute": "05"}, ClockTime(7, 5)),
        ({"time": None, "hour": 12, "minute": 0}, ClockTime(12, 0)),
    ],
)
def test_what_a_row_says(row, expected):
    assert read_time(row, "here") == expected


def test_an_example_has_everything(tmp_path):
    task = Clock(prompt="When?")
    (example,) = task.examples([("f, line 1", {"file": "a.png", "time": "7:05"})], training=True)
    assert (example.id, str(example.image), example.prompt) == ("a.png", "a.png", "When?")
    assert (example.answer, example.where) == (ClockTime(7, 5), "f, line 1")
