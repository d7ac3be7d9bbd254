"""What ./scripts/demo says at its end follows from the values of the runs."""

import copy
import json
import subprocess
import sys

import pytest
from import_graph import ROOT

from mm_numeric.evaluation.report.results import read_comparison

sys.path.insert(0, str(ROOT / "scripts"))
import demo_lines

PUBLISHED = ROOT / "docs/results/clock_decoding"


def said(folder, changes):
    """Return the lines for the published summary with other values by (objective, rule)."""
    summary = copy.deepcopy(json.loads((PUBLISHED / "summary.json").read_text(encoding="utf-8")))
    for (name, rule), seeds in changes.items():
        cell = summary["decoding"][name][rule]["within_5_minutes"]
        cell |= {"seeds": seeds, "value": sum(seeds) / len(seeds)}
    (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    return demo_lines.lines(read_comparison(folder), folder)


def test_the_lines_of_the_published_runs():
    command = [sys.executable, "scripts/demo_lines.py", PUBLISHED.relative_to(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    lines = done.stdout.strip().split("\n")
    assert len(lines) == 4
    assert lines[0].startswith("Compared: 4 losses (ce, emd, ntl_was, ntil), decoded by greedy and")
    assert lines[1] == (
        "Clear: the rule. Median decoding is better in 8 of 8 runs, most for ce: 85.6%, then 93.4%."
    )
    assert lines[2].startswith("Not clear: the loss. ntl_was reads most clocks in these runs (91.2")
    assert "best" not in done.stdout
    assert '"compare.seeds=[0, 1, 2, 3, 4]"' in lines[3]


@pytest.mark.parametrize(
    ("median", "found"),
    [
        ([0.9, 0.9], "Clear: the rule. Median decoding is better in 8 of 8 runs"),
        ([0.9, 0.8], "Not clear: the rule. Median decoding is better in 7 of 8 runs"),
    ],
)
def test_a_rule_is_clear_if_it_is_better_in_every_run(tmp_path, median, found):
    changes = {("ce", "greedy"): [0.8, 0.8], ("ce", "median"): median}
    assert said(tmp_path, changes)[1].startswith(found)


def test_the_loss_with_the_largest_value_and_the_largest_difference_of_seeds_are_named(tmp_path):
    changes = {("emd", "greedy"): [0.99, 0.89]}
    line = said(tmp_path, changes)[2]
    assert "emd reads most clocks in these runs (94.0%, greedily)" in line
    assert line.endswith("the seeds of one loss differ by up to 10.0 points.")
