"""A summary.json that lacks a key or a number is one sentence, or a dash."""

import pytest
from clock_reports import cell, compare_folder, markdown_cells, written

from mm_numeric.evaluation.report.report import write_report


def test_a_missing_number_is_a_dash(tmp_path):
    summary = compare_folder(tmp_path)
    summary["table"]["emd"]["deviation"] = cell(None, None, None)
    del summary["table"]["ce"]["deviation"]
    summary["table"]["emd"]["within"]["difference"]["value"] = None
    summary["table"]["emd"]["within"]["seeds"] = [0.7, None]
    _, twin = written(tmp_path, summary)
    assert [row[2] for row in markdown_cells(twin, "All metrics")[1:3]] == [["–"], ["–"]]


def test_a_mean_without_an_interval_is_shown(tmp_path):
    """A metric may be undefined in nearly all resamples of the rows, such as that of one row."""
    summary = compare_folder(tmp_path, seeds=range(5))
    for name in ("ce", "emd"):
        found = summary["table"][name]["within"]
        for own in filter(None, (found, found["difference"])):
            own |= {"low": None, "high": None}
    page, twin = written(tmp_path, summary)
    assert "no interval" in twin
    assert "None" not in page


def test_no_summary_and_broken_files_are_rejected(tmp_path):
    with pytest.raises(ValueError, match=r"contains neither summary.json of a comparison"):
        write_report(tmp_path)
    (tmp_path / "summary.json").write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match=r"summary.json: not valid or not complete JSON"):
        write_report(tmp_path)
    summary = compare_folder(tmp_path)
    with (tmp_path / "seed0" / "run1" / "scores.jsonl").open("a") as scores:
        scores.write('{"id": 1}\n')
    with pytest.raises(
        ValueError, match=r"scores.jsonl, line 13: image, target, text, parsed, reason missing"
    ):
        written(tmp_path, summary)
