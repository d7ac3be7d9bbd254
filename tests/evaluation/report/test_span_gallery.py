"""Galleries of temporal spans, clicks and points in a report: what is drawn, and where."""

import numpy as np
import pytest
import shapely
from browser import drawn_in_a_browser
from PIL import Image
from pycocotools import mask
from result_files import write_lines
from shape_reports import HOSTILE, compared, twin_table

from mm_numeric.answers import IMAGE, Mask
from mm_numeric.evaluation.report.gallery import mask_rings
from mm_numeric.evaluation.score import score
from mm_numeric.geometry.coordinates import COORDINATES
from mm_numeric.geometry.frames import Frame, Resize
from mm_numeric.geometry.masks import mask_of, mask_row

FRAME = Frame(200, 100, Resize(kind="none").view(200, 100), COORDINATES["qwen2_5_vl"])


def scored(folder, task, *answers):
    """Score (id, prompt, target, text) of one objective, and return the rows of scores.jsonl."""
    for id_, *_ in answers:
        Image.new("RGB", (200, 100), (90, 90, 90)).save(folder / f"{id_}.png")
    more = {} if task == "temporal_spans" else {"frame": FRAME.to_dict()}
    rows = [
        {"id": id_, "task": task, "image": str(folder / f"{id_}.png"), "prompt": prompt,
         "target": target, "text": text, **more}
        for id_, prompt, target, text in answers
    ]  # fmt: skip
    return score(write_lines(folder / "a" / "predictions.jsonl", rows), out=folder / "scored").rows


def pointing(folder):
    pixels = np.zeros((100, 200), np.uint8)
    pixels[20:40, 100:150] = pixels[60:80, 120:130] = 1
    cups = [{"box": [10, 10, 30, 30]}, {"polygon": [50, 50, 90, 50, 70, 90], "point": [70, 60]}]
    return scored(
        folder, "pointing",
        ("cups", "Point at: cups", cups, '[{"point_2d": [20, 21]}, {"point_2d": [60, 85]}]'),
        ("free", "Point at: free space", [{"mask": mask_row(mask_of(pixels))}],
         '[{"point_2d": [125, 30]}]'),
        ("none", "Point at: dogs", [], "[]"),
        ("bad", HOSTILE, cups, HOSTILE.replace("[1, 2]", "[1]")),
        ("only", "Point at: dots", [{"point": [3, 3]}], "[]"),
    )  # fmt: skip


def clicks(folder):
    box = [{"box": [10, 10, 30, 30]}]
    return scored(
        folder, "click",
        ("in", "Click on: OK", box, '[{"point_2d": [30, 30]}, {"point_2d": [99, 99]}]'),
        ("out", "Click on: No", box, '[{"point_2d": [31, 30]}]'),
        ("absent", "Click on: Maybe", [], "[]"),
    )  # fmt: skip


def spans(folder):
    frames = "".join(f"<{i}.0 seconds>{IMAGE}" for i in range(0, 41, 10))
    return scored(
        folder, "temporal_spans",
        ("half", f"{frames}When does a cat sit?", [[10, 20]], "10.0 - 15.0, 30.0 - 35.0 seconds"),
        ("late", f"{frames}When {HOSTILE}?", [[30, 40]], "35.0 - 99999.0 seconds"),
        ("reversed", f"{frames}When?", [[1, 2], [30, 40]], "40.0 - 30.0 seconds"),
        ("bad", f"{frames}When not?", [[1, 2]], HOSTILE),
    )  # fmt: skip


def test_points_are_dots_on_the_regions(tmp_path):
    page, twin = compared(tmp_path, "pointing", {("ce", 0): pointing(tmp_path)})
    assert 'd="M20.0 21.0Z"' in page  # in its object
    assert 'd="M60.0 85.0Z"' in page  # in none
    assert 'd="M50.0 50.0L90.0 50.0L70.0 90.0Z"' in page  # of it, nothing is found
    assert page.count("from the worst") == 4  # without the objects that have no region
    table = {row[0]: row[-2:] for row in twin_table(twin, "Answers on the image")[1:]}
    assert table["cups.png"] == ["1 of 2 found, 1 too many", "50.0%"]
    assert table["free.png"] == ["1 of 1 found", "100.0%"]
    assert table["none.png"] == ["nothing to be found", "100.0%"]
    assert table["bad.png"][0].startswith("not read: ")
    assert "F1 score of true and answered points" in twin
    assert '<article class="shown several points">' in page
    assert "<script>alert" not in page


def test_the_first_point_of_a_click_counts(tmp_path):
    page, twin = compared(tmp_path, "click", {("ce", 0): clicks(tmp_path)})
    table = {row[0]: row[-2:] for row in twin_table(twin, "Answers on the image")[1:]}
    assert table == {
        "in.png": ["1 of 1 found", "100.0%"],
        "out.png": ["0 of 1 found, 1 too many", "0.0%"],
        "absent.png": ["nothing to be found", "100.0%"],
    }
    assert "M99.0 99.0Z" not in page


def test_spans_are_bars_on_a_line_of_time(tmp_path):
    page, twin = compared(tmp_path, "temporal_spans", {("ce", 0): spans(tmp_path)})
    assert "“When does a cat sit?”" in page
    for css, x, width in [("true", 75, 75), ("read", 75, 37.5), ("read more", 225, 37.5),
                          ("read", 262.5, 37.5)]:  # fmt: skip
        assert f'<rect class="{css}" x="{x}"' in page
        assert f'width="{width}" height="14"/>' in page
    table = {row[0]: row[1:] for row in twin_table(twin, "Answers on the timeline")[1:]}
    assert table["half.png"] == ["10.0 to 20.0 s", "IoU 0.50: 10.0 to 15.0 s", "0.50"]
    assert table["reversed.png"] == [
        "1.0 to 2.0 s, 30.0 to 40.0 s",
        "IoU 0.00: 40.0 to 30.0 s",
        "0.00",
    ]
    assert table["bad.png"][1].startswith("not read: ")
    assert "All 4 questions." in twin
    assert "<script>alert" not in page


def test_the_borders_of_a_mask_enclose_its_pixels():
    rng = np.random.default_rng(0)
    for _ in range(30):
        pixels = np.kron(rng.integers(0, 2, (3, 4), dtype=np.uint8), np.ones((9, 8), np.uint8))
        found = mask_of(pixels)
        rings = [shapely.Polygon(ring) for ring in mask_rings(found)]
        covered = shapely.Polygon()
        for ring in rings:  # a ring within another one is a hole
            covered = covered.symmetric_difference(ring)
        assert covered.area == pytest.approx(int(pixels.sum()))
        assert mask.area(mask.encode(np.asfortranarray(pixels))) == pixels.sum()
    assert mask_rings(Mask((2, 2), (4,))) == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", [pointing, spans])
def test_a_browser_shows_them_without_errors_or_sideways_scrolling(tmp_path, kind):
    rows = kind(tmp_path)
    task = "temporal_spans" if kind is spans else "pointing"
    page, _ = compared(tmp_path, task, {("ce", 0): rows, ("emd", 0): rows})
    for drawn in drawn_in_a_browser(page, tmp_path):
        assert drawn >= 8
