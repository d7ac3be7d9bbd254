"""Readings of instruments: the unit, the tolerance, the range, and images that show the reading."""

import json
import math
import random
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from result_files import write_lines
from shape_reports import compared

from mm_numeric.answers import Measurement, Unreadable
from mm_numeric.evaluation.metrics.measurement import MEASUREMENTS
from mm_numeric.evaluation.score import score
from mm_numeric.synthetic.instruments import INSTRUMENTS, Instruments, draw_instrument
from mm_numeric.tasks.measurement import ReadInstrument

TASK, ALONE = ReadInstrument(), ReadInstrument(write_unit=False)
CELSIUS = ["°C", "degrees Celsius", "C"]
ROW = {"id": "1", "image": "1.png", "question": "How warm is it?", "unit": CELSIUS}


def target(**fields):
    row = {**ROW, "answer": "36.6", "range": [35, 42], **fields}
    return next(TASK.examples([("rows.jsonl:1", row)], training=False)).answer


def judged(*texts, task=TASK, **fields):
    """Return the columns of texts that answer one question."""
    return MEASUREMENTS.judge([task.parse(text) for text in texts], [target(**fields)] * len(texts))


@pytest.mark.parametrize(
    ("text", "number", "unit"),
    [
        ("36.6 °C", "36.6", "°C"),
        ("It is \N{MINUS SIGN}5.5°C.", "-5.5", "°C"),
        ("36.6 degrees Celsius", "36.6", "degrees Celsius"),
        ("**9.81 m/s2**", "9.81", "m/s2"),
        ("1,013 mmH2O", "1013", "mmH2O"),
        ("of 2 values, 3 kg/m^3, not more", "3", "kg/m^3"),
        ('"60 km/h"', "60", "km/h"),
        ("5 %", "5", "%"),
        ("36.6 °C (97.9 °F)", "97.9", "°F"),
    ],
)
def test_a_reading_is_the_last_number_and_its_unit(text, number, unit):
    found = TASK.parse(text)
    assert (found.text, found.units) == (number, (unit,))


@pytest.mark.parametrize("text", ["", "warm", "m2"])
def test_a_text_without_a_number_has_a_reason(text):
    assert isinstance(TASK.parse(text), Unreadable)
    assert ALONE.parse(text) == TASK.parse(text)


@pytest.mark.parametrize("text", ['{"value": 36.6, "unit": "°C"}', "36.6, °C", "36.6", "36.6."])
def test_a_number_without_a_unit_is_right_only_where_none_is_asked_for(text):
    assert judged(text)["within_tolerance"] == [0]
    assert judged(text)["unreadable"] == [1]
    assert judged(text)["lenient_within_tolerance"] == [1]
    assert MEASUREMENTS.reason(TASK.parse(text), target()) == "no unit"
    assert judged(text, unit=[])["within_tolerance"] == [1]
    assert judged(text, task=ALONE)["within_tolerance"] == [1]


def official(text, low, high, units):
    """The rule of MeasureBench, with equal units: a number in [low, high], and its unit."""
    match = re.fullmatch(r"(-?[0-9.]+) ?(.*)", text)
    return match is not None and low <= float(match[1]) <= high and match[2] in units


def test_the_tolerance_includes_its_end_and_no_unit_is_converted():
    texts = ["36.5 °C", "36.7 C", "36.71 °C", "36.49 °C", "36.6 degrees Celsius", "36.6 °F",
             "97.9 °F", "309.75 K", "36.6 D", "36.6", "36600 m°C"]  # fmt: skip
    columns = judged(*texts, tolerance={"absolute": 0.1})
    wanted = [official(text, 36.5, 36.7, CELSIUS) for text in texts]
    assert columns["within_tolerance"].tolist() == wanted
    assert wanted == [True, True, False, False, True, *[False] * 6]
    assert columns["another_unit"].tolist() == [0, 0, 0, 0, 0, 1, 1, 1, 1, 0, 1]
    assert columns["unreadable"].tolist() == [0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1]
    lenient = [official(f"{text.split()[0]} C", 36.5, 36.7, CELSIUS) for text in texts]
    assert columns["lenient_within_tolerance"].tolist() == lenient


def test_a_tolerance_is_a_fraction_of_the_range_or_of_the_reading():
    near = judged("36.74 °C", "36.46 °C", "36.75 °C", "50 °C", "x")  # 2 % of 7 degrees are 0.14
    assert near["within_tolerance"].tolist() == [1, 1, 0, 0, 0]
    assert near["outside_range"].tolist() == [0, 0, 0, 1, 0]
    assert near["error_of_range"] == pytest.approx([0.02, 0.02, 0.15 / 7, 1, 1])
    assert near["relative_error"][3] == pytest.approx(13.4 / 36.6)
    of_reading = judged("36 °C", "37.3 °C", "37.4 °C", range=None)  # 2 % of 36.6 are 0.732
    assert of_reading["within_tolerance"].tolist() == [1, 1, 0]
    metrics = {metric.name: metric for metric in MEASUREMENTS.metrics}
    assert math.isnan(metrics["error_of_range"].value(of_reading))
    assert metrics["error_of_range"].value(near) == pytest.approx((2.04 + 0.15 / 7) / 5)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"unit": ""}, 'each row needs "unit", such as'),
        ({"unit": ["°C", "5 C"]}, "found \\['°C', '5 C'\\]; numbers without"),
        ({"unit": None}, "found None; numbers without a unit are for the task `numbers`"),
        (
            {"range": [37, 42]},
            "range: expected \\[lowest, highest\\] with the reading 36.6 between",
        ),
        ({"range": "36 to 37"}, "range: expected a list of numbers"),
        ({"tolerance": -1}, "a tolerance is a relative error of at least 0"),
        ({"answer": "36.6 °C"}, "the answer '36.6 °C' is not a number"),
        ({"answer": None}, "no answer"),
        ({"time": "7.05"}, "time: a time is a text such as \"10:09:30\", not '7.05'"),
        ({"intervals": []}, "intervals: expected a list such as"),
        ({"intervals": [{"low": 1}]}, "intervals.0: "),
        ({"intervals": [{"low": 2, "high": 1}]}, "intervals.0: low 2 is above high 1"),
        ({"intervals": [{"low": 1, "high": 2, "units": "A"}]}, "units: expected a list of texts"),
        ({"intervals": [{"low": 1, "high": 2}]}, "the answer 36.6 is not in the first interval"),
    ],
)
def test_a_row_that_cannot_be_used_is_an_error(fields, message):
    with pytest.raises(ValueError, match=f"^rows.jsonl:1.*{message}"):
        target(**fields)
    with pytest.raises(ValueError, match=r"^the target has "):
        TASK.recorded("36.6 °C")


def test_the_unit_may_be_named_by_the_question():
    task = ReadInstrument(write_unit=False, prompt="{question} Answer in {unit}.")
    example = next(task.examples([("x", {**ROW, "answer": 36.6})], training=True))
    assert example.prompt == "How warm is it? Answer in °C."
    assert task.format(example.answer).text == "36.6"
    columns = judged("36.6", "36.6 °C", "36.6 °F", task=task)
    assert columns["within_tolerance"].tolist() == [1, 1, 0]
    written = TASK.format(Measurement("3", ("m/s2",)))
    assert (written.text, written.marks[0][:2]) == ("3 m/s2", (0, 1))
    assert (len(written.marks), written.format_digits) == (1, {5})


def test_a_time_is_a_reading():
    row = {"id": "1", "question": "Which time?", "time": "10:09:30", "tolerance": {"absolute": 60}}
    (example,) = TASK.examples([("x", row)], training=True)
    written = TASK.format(example.answer)
    assert (written.text, len(written.marks)) == ("10:09:30", 3)
    assert TASK.record(example.answer)["time"] == "10:09:30"
    texts = ["10:09", "10:10:30 AM", "10:11", "10.09", "36570", "At 9:00 it was 10:09:29.", "1:2"]
    columns = MEASUREMENTS.judge([TASK.parse(text) for text in texts], [example.answer] * 7)
    assert columns["within_tolerance"].tolist() == [1, 1, 0, 0, 0, 1, 0]
    assert columns["unreadable"].tolist() == [0, 0, 0, 1, 1, 0, 1]
    assert MEASUREMENTS.reason(TASK.parse("10.09 h"), example.answer) == "no time"
    assert MEASUREMENTS.reason(TASK.parse("10:09"), target()) == "another unit"
    assert str(TASK.parse("0:05")) == "0:05"


@given(text=st.text(st.sampled_from("0179.,:-/ e°µ%'\"^²(msk\ud800\n")))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_any_text_is_a_reading_or_a_reason(text):
    found = TASK.parse(text)
    if isinstance(found, Unreadable):
        assert found.reason
    else:
        again = TASK.parse(TASK.format(found).text)
        assert (again, again.units) == (found, found.units)


def test_a_report_shows_readings_with_their_units(tmp_path):
    line = {"task": "measurement", "prompt": "How warm is it?", "target": TASK.record(target())}
    texts = ["36.6 °C", "97.9 °F", "36.7 C"]
    rows = [{"id": str(i), "text": text, **line} for i, text in enumerate(texts)]
    rows.append(
        {**rows[0], "id": "3", "text": "10:10", "prompt": "When?", "target": {"time": "10:09:30"}}
    )
    scores = score(write_lines(tmp_path / "predictions.jsonl", rows))
    assert scores.failures == {"another unit": 1}
    assert scores.metrics()["within_tolerance"]["value"] == pytest.approx(3 / 4)
    assert set(scores.buckets()["unit"]) == {"°C", "time"}
    lines = [json.loads(line) for line in (tmp_path / "scores.jsonl").open(encoding="utf-8")]
    _, twin = compared(tmp_path / "report", "measurement", {("ce", 0): lines})
    assert "| How warm is it? | 36.6 °C | “97.9 °F” |" in twin
    assert "| When? | 10:09:30 | 10:10 |" in twin


@pytest.mark.parametrize("name", INSTRUMENTS)
@pytest.mark.parametrize("which", [0, 1])
def test_the_hand_is_at_the_reading(name, which):
    """The fraction of the scale that is read off the coloured pixels, within 1.5 %."""
    style, scale = Instruments(image_noise=0.0, size_px=224), INSTRUMENTS[name][which]
    for seed in range(6):
        part = (seed + 1) / 8
        reading = scale.low + part * (scale.high - scale.low)
        rng = random.Random(f"{name}{seed}")
        pixels = np.asarray(draw_instrument(name, scale, reading, rng, style), float)
        grey = pixels.max(axis=-1) - pixels.min(axis=-1)
        y, x = np.nonzero(grey > 95)  # of all that is drawn, only the hand has a strong colour
        x, y = (x + 0.5) / 224, (y + 0.5) / 224
        if name == "ruler":
            found = (x.max() - 0.08) / 0.84
        elif name == "thermometer":
            found = (0.85 - y.min()) / 0.73
        else:
            sweep, centre = (200, 0.58) if name == "speedometer" else (270, 0.5)
            angle = np.arctan2((x - 0.5).sum(), (centre - y).sum())
            found = 0.5 + math.degrees(angle) / sweep
        tilt = 0.06 / math.radians(200) if name in ("gauge", "speedometer") else 0
        assert found == pytest.approx(part, abs=0.015 + tilt)
