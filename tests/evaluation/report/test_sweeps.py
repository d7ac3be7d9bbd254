"""A grid axis of numbers is a figure with a line for each objective; its data are a CSV file."""

import csv
import re

import pytest
from clock_reports import cell, compare_folder, markdown_cells, written

from mm_numeric.evaluation.report.results import numeric_axes, read_comparison
from mm_numeric.evaluation.report.sweeps import grid_sweeps

NOISE = (0, 5, 20)
ROWS = [f"{name}_{minutes}" for name in ("ce", "ntil") for minutes in NOISE]


def sweep(
    folder, *, axis="data.train.synthetic.noise_minutes", values=NOISE, rows=ROWS, decoded=True
):
    """Write a comparison of ce and ntil at three values of an axis; ce does not differ from ce."""
    summary = compare_folder(folder, objectives=rows)
    names = [name.partition("_")[0] for name in rows]
    places = [(name, value) for name in dict.fromkeys(names) for value in values]
    summary["axes"] = {
        row: {"objective": name, axis: value}
        for row, (name, value) in zip(rows, places, strict=True)
    }
    summary["references"] = {row: f"ce_{row[5:]}" if row[:4] == "ntil" else None for row in rows}
    for row, reference in summary["references"].items():
        own = summary["table"][row]
        own["within"]["difference"] = own["deviation"]["difference"] = None
        if reference:
            gain = own["within"]["value"] - summary["table"][reference]["within"]["value"]
            change = (gain, gain - 0.01, gain + 0.01)
            own["within"] = cell(*(own["within"][key] for key in ("value", "low", "high")), change)
    if decoded:
        better = {"within": cell(0.95, 0.94, 0.96), "deviation": cell(3, 2, 4)}
        summary["decoding"] = {
            row: {"greedy": summary["table"][row], "median": better} for row in rows
        }
    return summary


def test_a_line_for_each_objective_and_rule_and_the_same_in_numbers(tmp_path):
    page, twin, data = written(tmp_path, sweep(tmp_path))
    section = page.split('<section id="sweeps">')[1].split("</section>")[0]
    first, _ = re.findall(r"<svg viewBox.*?</svg>\s*</svg>", section, re.DOTALL)
    assert "within 5 min by data.train.synthetic.noise_minutes for ce, ntil." in first
    lines = re.findall(r'<path d="M([^"]*)" fill="none"[^>]*?( stroke-dasharray="7 3")?/>', first)
    assert [len(points.split("L")) for points, _ in lines] == [3, 3, 3, 3]
    assert [bool(dash) for _, dash in lines] == [False, True, False, True]
    assert first.count('fill-opacity="0.075"') == 4  # less for each of more bands
    assert first.count("<g transform") == 12
    assert [float(t) for t in re.findall(r'text-anchor="middle">([\d.]+)<', first)] == list(NOISE)
    # 70 to 95 % on the screen: a higher share is higher on the page
    heights = [float(points.split("L")[0].split(",")[1]) for points, _ in lines]
    assert heights[1] == heights[3] < heights[2] < heights[0]
    assert "Solid lines are decoded greedily, dashed lines by median." in section
    header, *table = markdown_cells(twin, "Sweeps")
    assert [" ".join(title) for title in header] == [
        "objective", "0", "5", "20",
    ]  # fmt: skip
    assert table[0][1][:2] == ["70.0%", "65.0"]
    assert table[2][1][:2] == ["85.0%", "80.0"]
    assert table[3][0] == ["ntil", "median"]
    rows = list(csv.DictReader(data.splitlines()))
    assert len(rows) == 12
    assert rows[8] == {
        "axis": "data.train.synthetic.noise_minutes",
        "value": "20",
        "line": "ntil",
        "row": "ntil_20",
        "decoded by": "greedy",
        "within 5 min (%)": "95",
        "within 5 min low": "90",
        "within 5 min high": "100",
        "within 5 min difference": "15",
        "within 5 min difference low": "14",
        "within 5 min difference high": "16",
        "mean deviation (min)": "12.5",
        "mean deviation low": "10.5",
        "mean deviation high": "14.5",
    }
    assert (tmp_path / "sweeps.csv").read_text(encoding="utf-8") == data


def test_an_objective_has_one_colour_and_symbol_on_the_page(tmp_path):
    page, *_ = written(tmp_path, sweep(tmp_path))
    sections = re.findall('<section id="(.*?)">', page)
    assert sections[:2] == ["sweeps", "result"]
    comparison = read_comparison(tmp_path)
    looks = {name: (style.colour, style.shape) for name, style in comparison.styles.items()}
    (found,) = grid_sweeps(comparison)
    for name in ("ce", "ntil"):
        rows = {looks[row] for row in ROWS if row.startswith(name)}
        lines = {(o.style.colour, o.style.shape) for o in found.lines if o.style.name == name}
        assert rows == lines
        assert len(rows) == 1
    assert looks["ce_0"] != looks["ntil_0"]
    assert len({comparison.styles[row].dash for row in ROWS[:3]}) == 3


def test_other_parts_of_the_page_name_the_row_that_each_is_compared_with(tmp_path):
    page, twin, _ = written(tmp_path, sweep(tmp_path, decoded=False))
    assert "ntil_20: 95.0% within 5 min, 90.0 to 100.0, +15.0 points against ce_20" in twin
    assert "ce_20: 80.0% within 5 min, 75.0 to 85.0\n" in twin
    names = [row[0] for row in markdown_cells(twin, "All metrics")]
    assert ["ntil_20", "against", "ce_20"] in names
    assert "with its interval, to the objective named in the first column, or ce_0." in page


def test_an_axis_over_a_factor_of_10_is_logarithmic(tmp_path):
    rates = (1.0e-4, 1.0e-3, 1.0e-2)
    page, *_ = written(tmp_path, sweep(tmp_path, axis="trainer.learning_rate", values=rates))
    assert "trainer.learning_rate (logarithmic)" in page
    section = page.split('<section id="sweeps">')[1]
    chart = re.split(r"</svg>\s*</svg>", section)[0]
    at = {
        t: float(x) for x, t in re.findall(r'<text x="([\d.]+)" [^>]*?"middle">(0[\d.]+)<', chart)
    }
    first, middle, last = (at[text] for text in ("0.0001", "0.001", "0.01"))
    assert middle == pytest.approx((first + last) / 2, abs=0.02)


def test_the_common_reference_of_all_lines_is_a_level(tmp_path):
    summary = sweep(tmp_path, axis="objective.numeric_weight", values=(0.1, 0.3, 1.0))
    del summary["axes"]["ce_0"], summary["axes"]["ce_5"], summary["axes"]["ce_20"]
    summary["references"] = dict.fromkeys(ROWS, "ce_0") | {"ce_0": None}
    page, *_ = written(tmp_path, summary)
    section = page.split('<section id="sweeps">')[1]
    chart = re.split(r"</svg>\s*</svg>", section)[0]
    assert chart.count('stroke-dasharray="3 3"') == 1
    (found,) = grid_sweeps(read_comparison(tmp_path))
    assert found.level[0].name == "ce_0"
    assert {line.style.name for line in found.lines} == {"ntil"}


def test_no_axis_of_numbers_has_no_figure(tmp_path):
    settings = [{"a": "x", "b": 1, "c": True, "d": 1}, {"a": "y", "b": 1, "c": False, "d": 2.5}]
    assert numeric_axes(settings) == ["d"]
    summary = sweep(tmp_path, axis="model.attention", values=("eager", "sdpa", "flash"))
    page, _ = written(tmp_path, summary)
    assert 'id="sweeps"' not in page
    assert not (tmp_path / "sweeps.csv").exists()
