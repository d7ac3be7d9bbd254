"""The script that trains, calibrates and scores small models."""

import json
import runpy
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace

import pytest
from result_files import write_lines

from mm_numeric import read_config
from mm_numeric.answers import ClockTime

PATH = Path(__file__).parents[2] / "scripts" / "calibration_table.py"
script = SimpleNamespace(**runpy.run_path(str(PATH)))


@pytest.mark.parametrize("name", script.MODELS)
def test_the_settings_of_each_model_are_valid(name):
    base, rule, changes = script.MODELS[name]
    config = read_config(base, [*changes, "objective=ce"])
    assert config.data.test.synthetic.rows
    assert rule in ("median", "mbr")


def test_late_labels_are_never_early_and_ten_minutes_late_on_average(tmp_path):
    times = [str(ClockTime.from_minutes(minute)) for minute in range(720)]
    rows = write_lines(tmp_path / "rows.jsonl", [{"id": time, "time": time} for time in times])
    script.late_rows(rows, tmp_path / "late.jsonl")
    lines = (tmp_path / "late.jsonl").read_text("utf-8").splitlines()
    late = []
    for line, minute in zip(lines, range(720), strict=True):
        row = json.loads(line)
        assert row["id"] == times[minute]
        late.append((ClockTime(*map(int, row["time"].split(":"))).minutes - minute) % 720)
    assert max(late) < 360
    assert fmean(late) == pytest.approx(script.LATE_MINUTES, abs=1)
