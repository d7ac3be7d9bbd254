"""curves.svg and curves.png of a run show the logged values, without a display."""

from xml.etree import ElementTree

import pytest
from PIL import Image
from result_files import write_lines

from mm_numeric.evaluation.report.charts import theme_colours
from mm_numeric.evaluation.report.curve_files import PNG, SVG, write_curves


def log(folder, steps, name="ce"):
    """Write a log in which all values are those of the step, and evaluations of four metrics."""
    lines = []
    for step in steps:
        lines.append({"step": step, "loss": step, "learning_rate": 1, "components": {name: step}})
        metrics = {"accuracy": step, "error": None, "exact": step, "late": step, "fourth": step}
        lines.append({"step": step, "eval": metrics})
    write_lines(folder / "log.jsonl", lines)


@pytest.mark.parametrize("count", [1, 3, 400])
def test_each_value_has_a_panel_in_both_files(tmp_path, count):
    log(tmp_path, range(1, count + 1), name="a<b & café")
    write_curves(tmp_path)
    root = ElementTree.parse(tmp_path / SVG).getroot()
    names = [text.text for text in root.iter() if text.get("class") == "name"]
    assert names == ["loss", "a<b & café", "accuracy", "exact", "late"]
    assert "var(--" not in (tmp_path / SVG).read_text(encoding="utf-8")
    with Image.open(tmp_path / PNG) as image:
        assert image.size == (3 * 680, 2 * 500)


def test_a_curve_of_the_png_rises_from_the_lower_left_to_the_upper_right(tmp_path):
    log(tmp_path, range(1, 31))
    write_curves(tmp_path)
    (hexes,) = {theme_colours()["--o0"].lstrip("#")}
    colour = tuple(bytes.fromhex(hexes))
    with Image.open(tmp_path / PNG) as opened:
        panel = opened.crop((0, 0, 680, 500))
    width, pixels = panel.width, panel.tobytes()
    found = [
        (i % width, i // width)
        for i in range(width * panel.height)
        if tuple(pixels[3 * i : 3 * i + 3]) == colour
    ]
    assert len(found) > 500
    (left, low), (right, high) = min(found), max(found)
    assert right - left > 500
    assert low - high > 300
    # A straight line: each pixel is within its width of the diagonal.
    for x, y in found:
        assert abs((x - left) / (right - left) - (low - y) / (low - high)) < 0.03


def test_nothing_is_drawn_of_an_empty_log(tmp_path):
    write_lines(tmp_path / "log.jsonl", [])
    write_curves(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["log.jsonl"]
