"""Deviations of clock times, and the answers drawn on the images."""

import re

import pytest
from clock_reports import compare_folder, written

from mm_numeric.evaluation.report import clock_gallery as dials
from mm_numeric.evaluation.report.gallery import SPREAD, WORST


def test_late_and_early_answers_are_counted_apart():
    answers = ("7:00", "7:05", "7:06", "6:54", "8:00", "6:00", "1:00", None)
    rows = [{"target": "7:00", "parsed": parsed} for parsed in answers]
    shares = dict(zip(dials.BIN_NAMES, dials.bin_shares(rows), strict=True))
    assert {name: 8 * share for name, share in shares.items() if share} == {
        "31 to 60 early": 1,
        "6 to 15 early": 1,
        "0": 1,
        "2 to 5 late": 1,
        "6 to 15 late": 1,
        "31 to 60 late": 1,
        "181 to 360 late": 1,
        "unreadable": 1,
    }


def test_a_missing_image_is_reported(tmp_path):
    summary = compare_folder(tmp_path)
    (tmp_path / "images" / "2.png").unlink()
    (tmp_path / "images" / "3.png").write_bytes(b"not an image")
    page, twin = written(tmp_path, summary)
    for text in (page, twin):
        assert "2 of the 12 images could not be opened" in text
    assert page.count(">no image: ") == 2
    assert ">no image: 2.png<" in page


def test_worst_images_come_first(tmp_path):
    summary = compare_folder(tmp_path, objectives=("ce",), seeds=(0,))
    page, _ = written(tmp_path, summary)
    offs = [int(off) for off in re.findall(r"deviation (\d+) min ·", page)]
    assert offs == sorted(offs, reverse=True) == [360] * 4 + [60] * 4 + [0] * 4
    assert "7:05 read as 8:05, 60 min</title>" in page
    assert "7:05 read as 7:05, right" in page


def test_the_answers_of_the_worst_seed_of_each_image_are_shown(tmp_path):
    """``score`` makes row 0 right with seed 0, and an hour late with seed 1."""
    page, twin = written(tmp_path, compare_folder(tmp_path, objectives=("ce",), seeds=(0, 1)))
    assert "id test-00000 · deviation 60 min · seed 1 · " in page
    assert "id test-00002 · deviation 360 min · seed 0 · " in page
    assert ".png (id test-00002 · seed 0) | 7:05 | “" in twin


@pytest.mark.slow
def test_the_page_stays_small_with_many_rows(tmp_path):
    summary = compare_folder(tmp_path, seeds=(0,), rows=1_000)
    page, twin = written(tmp_path, summary)
    assert len(page.encode()) < 5_000_000
    assert len(twin.encode()) < 20_000
    assert page.count('<article class="shown">') == WORST + SPREAD


def test_deviations_are_signed_circular_distances():
    def row(target, parsed):
        return {"target": target, "parsed": parsed}

    assert dials.signed_deviation(row("11:50", "12:10")) == 20
    assert dials.signed_deviation(row("12:10", "11:50")) == -20
    assert dials.signed_deviation(row("1:00", "7:00")) == 360
    assert dials.signed_deviation(row("1:00", None)) is None
    assert dials.minutes_of("13:00") is None
