"""Published tables are whole, and stand next to our results."""

import math

import pytest
from clock_reports import compare_folder, markdown_cells, written
from mm_numeric.config.published_results import PUBLISHED, PublishedTable

from mm_numeric.comparison.rows import compared_rows
from mm_numeric.config.reader import CONFIGS, find_config, read_config
from mm_numeric.evaluation.metrics.boxes import BOXES
from mm_numeric.evaluation.metrics.clock import TIMES
from mm_numeric.evaluation.metrics.detection import TEXT_DETECTION
from mm_numeric.evaluation.metrics.mathvista import MATHVISTA
from mm_numeric.evaluation.metrics.number_errors import GSM8K, NUMBERS

ALL = (TIMES, BOXES, TEXT_DETECTION, NUMBERS, MATHVISTA)


SCORERS = {
    "clock": TIMES, "grounding": BOXES, "gsm8k": GSM8K, "mathematics": NUMBERS,
    "text_detection": TEXT_DETECTION,
}  # fmt: skip


PUBLISHED_RESULTS = "Published results"


def test_what_is_published_stands_next_to_and_changes_nothing(tmp_path, monkeypatch):
    table = PublishedTable(
        source="A paper",
        of="another model",
        values={("ce", "within"): 0.6, ("emd", "within"): 0.72, ("ours_not", "within"): 0.5,
                 ("ce", "score"): 3.0},
    )  # fmt: skip
    monkeypatch.setitem(PUBLISHED, "a_table", table)
    summary = compare_folder(tmp_path, objectives=("ce", "emd", "rps"))
    _, before = written(tmp_path, summary)
    page, twin = written(tmp_path, summary | {"published": "a_table"})
    _, ce, emd, other, rps = markdown_cells(twin, PUBLISHED_RESULTS)
    assert ce[1] == ["60.0%"]
    assert ce[2][:1] == ["70.0%"]
    assert emd[1] == ["72.0%", "Δ", "+12.0", "points"]
    assert emd[2][:1] == ["75.0%"]
    assert "+5.0" in emd[2]
    assert other[1:] == [["50.0%", "Δ", "−10.0", "points"], ["–"]]
    assert rps[1] == ["–"]
    assert rps[2][:1] == ["80.0%"]
    for text in (page, twin):
        assert "A paper; another model. Quoted from public notes" in text
        assert "not scored here: score." in text
    chapter = twin.split(f"## {PUBLISHED_RESULTS}")[1].split("\n## ")[0]
    assert twin.replace(f"## {PUBLISHED_RESULTS}{chapter}\n", "") == before
    with pytest.raises(ValueError, match=r"published: there is no table 'b_table'\. Known: "):
        written(tmp_path, summary | {"published": "b_table"})


def test_a_published_difference_is_to_the_row_that_ours_is_compared_with(tmp_path):
    rows = ("ce_merged", "ce_single", "ntl_was_merged", "ntl_was_single")
    summary = compare_folder(tmp_path, objectives=rows) | {"published": "ntl_tokenisation"}
    within, *others = summary["metrics"]
    summary["metrics"] = [within | {"name": "accuracy"}, *others]
    for entries in (*summary["table"].values(), summary["warm_start"]):
        entries["accuracy"] = entries.pop("within")
    first = dict.fromkeys(rows[1:3], "ce_merged")
    summary["references"] = {"ce_merged": None, **first, "ntl_was_single": "ce_single"}
    _, twin = written(tmp_path, summary)
    _, *lines = markdown_cells(twin, PUBLISHED_RESULTS)
    names = [" ".join(line[0]) for line in lines]
    assert names == [*rows[:3], "ntl_was_single against ce_single"]
    published = [line[1] for line in lines]
    assert published[0] == ["43.0%"]
    assert [own[2] for own in published[1:]] == ["+21.0", "+8.0", "+11.0"]
    assert "It is to the objective named in the first column, or ce_merged." in twin


def test_published_tables_are_whole_and_in_their_units():
    for table in PUBLISHED.values():
        assert "arXiv" in table.source
        assert table.rows
        assert any({m.name for m in scorer.metrics} >= set(table.metrics) for scorer in ALL)
        for (_, metric), value in table.values.items():
            assert math.isfinite(value)
            assert 0 < value < (720 if metric.endswith("minutes") else 1)


@pytest.mark.parametrize(
    "name", [path.stem for path in CONFIGS.glob("*.yaml") if "published:" in path.read_text()]
)
def test_a_config_repeats_rows_and_metrics_that_the_table_has(name):
    check_published(read_config(name))


def test_a_grid_of_tokenisations_has_the_rows_of_the_table():
    grid = "{objective: [ce, ntl_was], model.digits: {merged: merged, single: single}}"
    changes = ["compare.objectives=[]", "compare.published=ntl_tokenisation"]
    config = read_config("mathematics_t5_base", [*changes, f"compare.grid={grid}"])
    check_published(config)
    assert grid in find_config("mathematics_t5_base").read_text(encoding="utf-8")
    assert all(
        change in find_config(config.title).read_text(encoding="utf-8") for change in changes
    )


def check_published(config):
    table = PUBLISHED[config.compare.published]
    assert {row.name for row in compared_rows(config)} >= set(table.rows)
    scored = {metric.name for metric in SCORERS[config.task_name].metrics}
    assert scored >= set(table.metrics)
