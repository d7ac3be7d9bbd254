"""Calibration maps, against loops over their definition and simulated labels."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from mm_numeric.inference.calibrate import (
    PLATT,
    TEMPERATURE,
    Calibration,
    Fitted,
    Platt,
    Supports,
    check_settings,
    cross_validated,
    fit_temperature,
    log_loss,
    read_calibration,
)


def platt_loss(slope, offset, confidence, right):
    """Return the loss of Platt (1999), with his smoothed targets, in a loop."""
    positives = sum(right)
    high, low = (positives + 1) / (positives + 2), 1 / (len(right) - positives + 2)
    total = 0.0
    for c, r in zip(confidence, right, strict=True):
        c = min(max(c, 1e-3), 1 - 1e-3)
        p = 1 / (1 + math.exp(-(slope * math.log(c / (1 - c)) + offset)))
        target = high if r else low
        total -= target * math.log(p) + (1 - target) * math.log(1 - p)
    return total


@pytest.mark.parametrize("seed", range(4))
def test_no_other_slope_and_offset_has_a_smaller_loss(seed):
    draw = np.random.default_rng(seed)
    confidence = draw.random(60).round(2)  # also 0 and 1
    right = (draw.random(60) < 0.2 + 0.5 * confidence).astype(float)
    fitted = Platt.fit(confidence, right)
    data = confidence.tolist(), right.tolist()
    least = platt_loss(fitted.slope, fitted.offset, *data)
    for angle in np.linspace(0, 2 * math.pi, 12):  # the loss is convex
        for size in (1e-3, 0.1, 1.0):
            other = fitted.slope + size * math.cos(angle), fitted.offset + size * math.sin(angle)
            assert platt_loss(*other, *data) > least


def test_equal_confidences_and_equal_answers_have_a_finite_map():
    right = np.array([1.0] * 30 + [0.0] * 10)
    assert Platt.fit(np.full(40, 0.9), right)([0.9]) == pytest.approx([30.5 / 41], abs=0.01)
    assert Platt.fit(np.linspace(0.3, 0.6, 40), np.ones(40))([0.4])[0] > 0.9


def some_supports(draw, count, temperature=1.0):
    """Return supports, and labels drawn from their distributions at a temperature."""
    supports, right = [], []
    for _ in range(count):
        probs = draw.dirichlet(np.full(draw.integers(1, 9), 0.5)) * draw.uniform(0.9, 1)
        agree = (draw.random(len(probs)) < 0.4).astype(float)
        true = probs ** (1 / temperature)
        right.append(agree[draw.choice(len(probs), p=true / true.sum())])
        supports.append((probs, agree))
    return supports, np.array(right)


@pytest.mark.parametrize("temperature", [0.3, 1.0, 4.0])
def test_the_confidence_at_a_temperature_equals_a_loop(temperature):
    supports, _ = some_supports(np.random.default_rng(0), 20)
    found = Supports.of(supports).confidences(temperature)
    for (probs, agree), own in zip(supports, found, strict=True):
        powers = [p ** (1 / temperature) for p in probs]
        share = sum(w * a for w, a in zip(powers, agree, strict=True)) / sum(powers)
        assert own == pytest.approx(sum(probs) * share)


def test_the_temperature_of_the_labels_is_found_and_no_other_is_better():
    supports, right = some_supports(np.random.default_rng(1), 3000, temperature=3.0)
    padded = Supports.of(supports)
    found = fit_temperature(padded, right)
    assert found == pytest.approx(3, rel=0.2)
    best = min(log_loss(padded.confidences(t), right) for t in np.exp(np.linspace(-2.9, 2.9, 200)))
    assert log_loss(padded.confidences(found), right) <= best + 1e-12


def test_a_model_that_is_too_sure_of_itself_is_repaired_on_other_rows():
    draw = np.random.default_rng(2)
    confidence = draw.random(1000)
    right = (draw.random(1000) < 1 / (1 + np.exp(1.5 - 1.2 * (4 * confidence - 2)))).astype(float)
    assert confidence[500:].mean() - right[500:].mean() > 0.2
    after = Platt.fit(confidence[:500], right[:500])(confidence[500:])
    assert abs(after.mean() - right[500:].mean()) < 0.05


def test_no_row_is_calibrated_by_a_map_that_has_seen_it():
    supports, right = some_supports(np.random.default_rng(3), 60)
    padded = Supports.of(supports)
    confidence, groups = padded.confidences(1), np.repeat(np.arange(30), 2)
    found = cross_validated(confidence, right, groups, padded)
    own = groups % 5 == 2
    changed = cross_validated(confidence, np.where(own, 1 - right, right), groups, padded)
    fitted = Fitted.of(confidence[~own], right[~own], padded.select(~own))
    expected = fitted.confidences(confidence[own], padded.select(own))
    for name in (PLATT, TEMPERATURE):
        assert found[name][own] == pytest.approx(changed[name][own])
        assert found[name][own] == pytest.approx(expected[name])
        assert np.abs(found[name][~own] - changed[name][~own]).max() > 1e-3


def some_calibration(**changes):
    settings = {"run": "1a", "max_new_tokens": 8, "decode": {"rule": "median", "mass": 0.99}}
    made = Calibration(
        rule="median", settings=settings, correct="right", per_object=False, applied=PLATT,
        platt=Platt(0.5, -1.0), temperature=2.0, rows=250, left_out=0, checked=True,
        data="val.jsonl", reliability={},
    )  # fmt: skip
    return replace(made, **changes)


def test_a_stored_calibration_is_the_same_and_applies_its_map(tmp_path):
    support = [0.6, 0.3], [1.0, 0.0]
    for applied, expected in ((PLATT, 1 / (1 + math.e * (0.4 / 0.6) ** 0.5)), (TEMPERATURE, None)):
        made = some_calibration(applied=applied)
        made.write(tmp_path)
        found = read_calibration(tmp_path, "median")
        assert found == made
        if expected is None:
            expected = 0.9 * 0.6**0.5 / (0.6**0.5 + 0.3**0.5)
        assert found(0.6, support) == pytest.approx(expected)
    assert read_calibration(tmp_path, "mean") is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"version": 9},
            r"calibration\.median\.json: its version is 9, not 1; delete it, or fit it",
        ),
        (
            {"platt": {}},
            r"calibration\.median\.json is damaged; delete it, or fit it again with `mm",
        ),
        ({"extra": 1}, "is damaged"),
    ],
)
def test_a_file_that_cannot_be_applied_is_one_sentence(tmp_path, change, message):
    path = some_calibration().write(tmp_path)
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), **change}), "utf-8")
    with pytest.raises(ValueError, match=message):
        read_calibration(tmp_path, "median")


def test_other_settings_than_those_of_the_fit_are_one_sentence(tmp_path):
    made = some_calibration()
    check_settings(made, made.settings, tmp_path)
    for change, message in [
        ({"run": "2b"}, "run is '1a' there and '2b' here"),
        ({"decode": {"rule": "median", "mass": 0.9}}, "mass is 0.99 there and 0.9 here"),
        ({"constrain": True}, "constrain is not set there and True here"),
    ]:
        with pytest.raises(ValueError, match=f"fitted to answers with other settings .{message}"):
            check_settings(made, {**made.settings, **change}, tmp_path)
