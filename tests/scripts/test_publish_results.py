"""scripts/publish_results.py: the committed results, and the figures that are drawn from them."""

import json
import re
import shutil
from pathlib import Path

import pytest
from finished_comparison import GOOD, NONE, POOR, TARGETS, comparison
from processes import python

from mm_numeric.cli import main as cli
from mm_numeric.comparison.hypotheses import record_hypotheses
from mm_numeric.comparison.rows import stated_hypotheses
from mm_numeric.comparison.summary import write_summary
from mm_numeric.runs.folder import write_config

pytestmark = pytest.mark.slow  # each starts the script

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "publish_results.py"
PUBLISHED = sorted(path.parent for path in ROOT.glob("docs/results/*/summary.json"))


def test_the_committed_figures_are_drawn_from_the_committed_results(tmp_path):
    copies = [shutil.copytree(own, tmp_path / own.name) for own in PUBLISHED]
    drawn = [path for own in PUBLISHED for path in own.iterdir() if path.name != "summary.json"]
    drawn = [path for path in drawn if path.name != "answers.tar.xz"]
    assert {path.name for path in drawn} <= {"figure.svg", "sweeps.csv"}
    for path in drawn:
        (tmp_path / path.parent.name / path.name).unlink()
    done = python(SCRIPT, "--redraw", *copies)
    assert done.returncode == 0, done.stderr
    for path in drawn:
        again = (tmp_path / path.parent.name / path.name).read_text(encoding="utf-8")
        assert again == path.read_text(encoding="utf-8"), f"{path}: publish_results.py --redraw"


def test_the_command_in_the_header_names_the_folders_alone():
    (pattern,) = re.findall(r"--redraw (\S+)", SCRIPT.read_text(encoding="utf-8").split('"""')[1])
    assert sorted(ROOT.glob(pattern)) == PUBLISHED


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return the folder of a finished comparison of five seeds with a hypothesis."""
    folder = tmp_path_factory.mktemp("machine") / "runs"
    stated = [{"family": "losses", "metric": "exact", "objectives": ["emd"], "against": "ce"}]
    overrides = [f"compare.hypotheses={json.dumps(stated)}", "compare.decode=[greedy, median]"]
    seeds = {"ce": [POOR, GOOD, NONE, GOOD, POOR], "emd": [GOOD, TARGETS, GOOD, POOR, GOOD]}
    config = comparison(folder, seeds, seeds=range(5), overrides=overrides)
    for path in folder.glob("seed*/*/predictions.jsonl"):
        shutil.copy(path, path.with_name("predictions.median.jsonl"))
    for path in folder.glob("seed*/*/run.json"):
        facts = json.loads(path.read_text(encoding="utf-8")) | {"commit": "0123456789ab"}
        path.write_text(json.dumps(facts), encoding="utf-8")
    record_hypotheses(folder, stated_hypotheses(config))
    write_config(folder, config)
    write_summary(config, folder)
    return folder


def test_results_are_rounded_and_name_no_folder_of_the_machine(runs, tmp_path):
    copy = shutil.copytree(runs, tmp_path / "runs")
    summary = json.loads((copy / "summary.json").read_text(encoding="utf-8"))
    first = summary["baseline"], summary["metrics"][0]["name"]
    summary["table"][first[0]][first[1]]["value"] = 0.123456789
    (copy / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    target = tmp_path / "results" / "mine"
    done = python(SCRIPT, copy, target)
    assert done.returncode == 0, done.stderr
    text = (target / "summary.json").read_text(encoding="utf-8")
    written = json.loads(text)
    assert written["table"][first[0]][first[1]]["value"] == 0.12346
    assert written["facts"]["command"] == "mm-numeric compare scripts/experiments/mine.yaml"
    assert str(tmp_path) not in text
    assert cli.main(["report", str(target)]) == 0
    assert (target / "report.html").is_file()


def test_the_published_answers_have_the_published_results(runs, tmp_path):
    target = tmp_path / "mine"
    assert python(SCRIPT, runs, target).returncode == 0
    again = python(SCRIPT, "--recompute", target)
    assert again.returncode == 0, again.stderr
    count, p_values = map(
        int, re.findall(r"(\d+) (?:values|p-values)", again.stdout.replace(",", ""))
    )
    assert count > 200
    assert p_values > 20
    summary = json.loads((target / "summary.json").read_text(encoding="utf-8"))
    summary["hypotheses"][0]["difference"]["p_holm"] *= 0.99
    (target / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    changed = python(SCRIPT, "--recompute", target)
    assert changed.returncode == 1
    assert "1 of" in changed.stderr
    assert "hypotheses.0.difference.p_holm" in changed.stderr


def test_results_without_answers_cannot_be_recomputed():
    done = python(SCRIPT, "--recompute", PUBLISHED[0])
    assert done.returncode == 1
    assert "published without answers.tar.xz" in done.stderr


def test_published_results_say_how_to_make_them_again():
    assert PUBLISHED
    for folder in PUBLISHED:
        facts = json.loads((folder / "summary.json").read_text(encoding="utf-8"))["facts"]
        assert facts["command"] == f"mm-numeric compare scripts/experiments/{folder.name}.yaml"
        assert (ROOT / "scripts" / "experiments" / f"{folder.name}.yaml").is_file()
        assert len(facts["commit"]) >= 12
        assert "cores" in facts["machine"]
