"""Drawn clocks show the time they are labelled with, and are the same for the same seed."""

import json
import math
import random

import numpy as np
import pytest
from PIL import Image, ImageDraw

from mm_numeric.answers import ClockTime
from mm_numeric.synthetic.clock_faces import Clocks, _Face, draw_face

PLAIN = Clocks(size_px=120, rotation_degrees=0.0, image_noise=0.0)


def files(folder):
    """Return every file of a folder with its bytes."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_the_same_seed_gives_the_same_files(tmp_path):
    path = Clocks(rows=5, seed=1, size_px=24).write(tmp_path / "a")
    Clocks(rows=5, seed=1, size_px=24).write(tmp_path / "b")
    Clocks(rows=5, seed=2, size_px=24).write(tmp_path / "c")
    assert path == tmp_path / "a" / "rows.jsonl"
    assert files(tmp_path / "a") == files(tmp_path / "b")
    other = files(tmp_path / "c")
    assert all(other[name] != data for name, data in files(tmp_path / "a").items())


def test_more_clocks_begin_with_the_same_clocks(tmp_path):
    Clocks(rows=5, seed=1, size_px=24).write(tmp_path / "five")
    Clocks(rows=10, seed=1, size_px=24).write(tmp_path / "ten")
    five, ten = files(tmp_path / "five"), files(tmp_path / "ten")
    rows = five.pop("rows.jsonl"), ten.pop("rows.jsonl")
    assert rows[1].startswith(rows[0])
    assert five.items() <= ten.items()
    assert (len(five), len(ten)) == (5, 10)


@pytest.mark.slow
def test_rows_name_their_images_and_times(tmp_path):
    path = Clocks(rows=200, seed=7, size_px=16).write(tmp_path)
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert rows[3].keys() == {"id", "image", "time"}
    assert rows[3]["id"] == "7-000003"
    assert Image.open(tmp_path / rows[3]["image"]).size == (16, 16)
    hours = {row["time"].partition(":")[0] for row in rows}
    assert hours == {str(hour) for hour in range(1, 13)}
    assert len({row["time"] for row in rows}) > 120


@pytest.mark.slow
def test_another_time_is_another_image():
    images = set()
    for minutes in range(0, 720, 7):
        face = draw_face(ClockTime.from_minutes(minutes), random.Random("x"), PLAIN)
        images.add(face.tobytes())
    assert len(images) == len(range(0, 720, 7))


@pytest.mark.parametrize("noise", [0.03, 0.1])
def test_noise_is_what_it_says(noise):
    style = Clocks(size_px=120, rotation_degrees=0.0, image_noise=noise)
    apart = []
    for seed in range(8):
        clean = np.asarray(draw_face(ClockTime(7, 5), random.Random(seed), PLAIN), float)
        noisy = np.asarray(draw_face(ClockTime(7, 5), random.Random(seed), style), float)
        apart += (noisy - clean)[(clean > 80) & (clean < 175)].tolist()  # where none is cut off
    assert len(apart) > 10_000
    assert abs(np.std(apart) / 255 - noise) < 0.03 * noise
    assert abs(np.mean(apart)) < 1.0


def angles(shown, seed, style=PLAIN):
    """Find where the long and the short hand of a clock point, in degrees from twelve.

    All clocks of a seed are alike but for the time, so that their median has no hands; what
    differs from it is the hands. Only the long one reaches the outer ring.
    """
    others = [ClockTime.from_minutes(minutes) for minutes in range(3, 720, 41)]
    drawn = [draw_face(other, random.Random(seed), style) for other in others]
    empty = np.median([np.asarray(image, float) for image in drawn], axis=0)
    face = np.asarray(draw_face(shown, random.Random(seed), style), float)
    apart = np.abs(face - empty).sum(axis=-1)
    y, x = np.mgrid[:120, :120] - 59.5
    distance, angle = np.hypot(x, y), np.arctan2(x, -y)
    outer = np.where((distance > 31) & (distance < 38), apart, 0)
    long_hand = direction(outer, angle)
    away = np.cos(angle - math.radians(long_hand)) < math.cos(math.radians(30))
    inner = np.where((distance > 13) & (distance < 20) & away, apart, 0)
    return long_hand, direction(inner, angle)


def direction(mass, angle):
    """Return the mean direction of some mass, in degrees from 0 to 360."""
    turn = math.atan2((mass * np.sin(angle)).sum(), (mass * np.cos(angle)).sum())
    return math.degrees(turn) % 360


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("shown", "long_hand", "short_hand"),
    [
        (ClockTime(3, 0), 0, 90),
        (ClockTime(6, 0), 0, 180),
        (ClockTime(9, 0), 0, 270),
        (ClockTime(12, 15), 90, 7.5),
        (ClockTime(12, 30), 180, 15),
        (ClockTime(9, 30), 180, 285),
        (ClockTime(2, 45), 270, 82.5),
        (ClockTime(7, 5), 30, 212.5),
    ],
)
def test_the_hands_point_where_the_time_says(shown, long_hand, short_hand, seed):
    found = angles(shown, seed)
    for here, wanted in zip(found, (long_hand, short_hand), strict=True):
        assert abs((here - wanted + 180) % 360 - 180) < 8  # the middle is off by up to 2 %


@pytest.mark.slow
def test_rotation_tilts_by_up_to_what_it_says():
    style = Clocks(size_px=120, rotation_degrees=40.0, image_noise=0.0)
    tilts = [angles(ClockTime(6, 0), seed, style)[0] for seed in range(16)]
    tilts = [(tilt + 180) % 360 - 180 for tilt in tilts]
    assert max(map(abs, tilts)) < 48
    assert max(tilts) > 20
    assert min(tilts) < -20


def test_faces_are_of_many_kinds():
    faces = [draw_face(ClockTime(3, 0), random.Random(seed), PLAIN) for seed in range(40)]
    brightness = [np.asarray(face)[40:80, 40:80].mean() for face in faces]
    assert min(brightness) < 100
    assert max(brightness) > 180
    assert len({face.tobytes() for face in faces}) == 40


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            {"size_px": 15},
            "size_px must be at least 16 and rotation_degrees at least 0, not 15 and",
        ),
        ({"rotation_degrees": -1.0}, "size_px must be at least 16 and rotation_degrees at least 0"),
        ({"image_noise": -0.1}, "image_noise is 0 to 1, not -0.1"),
        ({"image_noise": 1.1}, "image_noise is 0 to 1, not 1.1"),
        ({"rows": 0}, "rows must be at least 1, not 0"),
    ],
)
def test_settings_that_cannot_be_drawn_are_rejected(wrong, message):
    with pytest.raises(ValueError, match=message):
        Clocks(**wrong)


@pytest.mark.parametrize("hour", range(1, 13))
def test_numerals_stand_at_their_hours(hour):
    image = Image.new("RGB", (200, 200))
    face = _Face(draw=ImageDraw.Draw(image), radius=100, x=100, y=100, tilt=0.0)
    face.numerals((hour,), (255, 255, 255), height=0.2)
    left, top, right, bottom = image.getbbox()
    assert (left + right) / 2 == pytest.approx(100 + 72 * math.sin(math.pi * hour / 6), abs=4)
    assert (top + bottom) / 2 == pytest.approx(100 - 72 * math.cos(math.pi * hour / 6), abs=4)
    assert (right - left > 14) == (hour >= 10)  # two digits


def test_ticks_stand_all_round():
    image = Image.new("RGB", (200, 200))
    face = _Face(draw=ImageDraw.Draw(image), radius=100, x=100, y=100, tilt=0.0)
    face.ticks(12, (255, 255, 255))
    for tick in range(24):
        angle = math.pi * tick / 12
        at = round(100 + 88 * math.sin(angle)), round(100 - 88 * math.cos(angle))
        assert (image.getpixel(at) == (255, 255, 255)) == (tick % 2 == 0)
