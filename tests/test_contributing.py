"""What CONTRIBUTING.md and the complete files of docs/extending.md say is so."""

import json
import re
import sys
from pathlib import Path

import pytest
from import_graph import ROOT
from PIL import Image

from mm_numeric import registry
from mm_numeric.answers import Number
from mm_numeric.cli import main as cli
from mm_numeric.evaluation.report.task_sections import task_sections
from mm_numeric.inference.risks import risk_of
from mm_numeric.registry import scorer_of

MODULES = ("my_tasks", "my_formats", "my_families")


@pytest.fixture
def pasted(tmp_path, monkeypatch):
    """The files of docs/extending.md, with rows, in the working directory."""
    text = (ROOT / "docs/extending.md").read_text(encoding="utf-8")
    files = re.findall(r"^`(\w+\.\w+)`[^\n]*:\n\n```\w+\n(.*?)```", text, re.DOTALL | re.MULTILINE)
    for name, content in files:
        (tmp_path / name).write_text(content, encoding="utf-8")
    assert {name for name, _ in files} == {"compass.yaml", *(f"{m}.py" for m in MODULES)}
    for name, count in (("train", 16), ("test", 4)):
        lines = []
        for i in range(count):
            Image.new("RGB", (56, 56), (10 * i, 0, 0)).save(tmp_path / f"{name}{i}.png")
            row = {"id": f"{name}{i}", "image": f"{name}{i}.png", "degrees": (358 + i) % 360}
            lines.append(json.dumps({**row, "category": "sea" if i % 2 else "land"}) + "\n")
        (tmp_path / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    registry._PLUGINS.__init__()
    monkeypatch.setenv(registry.PLUGINS, "[]")
    yield tmp_path
    registry._PLUGINS.__init__()
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.mark.slow
def test_the_example_is_trained_compared_and_reported(pasted, capsys):
    assert cli.main(["check", "compass.yaml"]) == 0
    assert cli.main(["check-data", "compass.yaml"]) == 0
    assert cli.main(["train", "compass.yaml", "trainer.max_steps=2"]) == 0
    small = ["trainer.max_steps=2", "trainer.logging_steps=1"]
    with (pasted / "my_tasks.py").open("a", encoding="utf-8") as module:
        module.write("\nERRORS = Scorer(columns=score, metrics=DEGREES.metrics[1:])\n")
    sys.modules.pop("my_tasks")
    own = [*small, "task.scorer=my_tasks:ERRORS", "evaluate={rows: 2, every_steps: 2}"]
    assert cli.main(["compare", "compass.yaml", *own]) == 0
    summary = json.loads((pasted / "runs/compass_compare/summary.json").read_text())
    assert {metric["name"] for metric in summary["metrics"]} == {
        "mean_degrees", "mean_degrees_land", "mean_degrees_sea"
    }  # fmt: skip
    page = (pasted / "runs/compass_compare/report.html").read_text(encoding="utf-8")
    assert "Compasses read by 2 objectives." in page
    assert "land" in page.lower()
    log = (pasted / "runs/compass_compare/seed0/mine/log.jsonl").read_text(encoding="utf-8")
    assert "my_tasks:CircularError" in log
    capsys.readouterr()


def test_the_example_reads_its_rows(pasted):
    assert cli.main(["check", "compass.yaml"]) == 0
    from my_tasks import Compass

    with pytest.raises(ValueError, match=r"^line 1: degrees is 0 to 359, not None"):
        list(Compass().examples([("line 1", {"id": "1", "image": "a.png"})], training=True))


def test_the_risk_and_the_score_are_circular(pasted):
    assert cli.main(["check", "compass.yaml"]) == 0
    from my_tasks import CIRCULAR, DEGREES, Compass

    degrees = [Number("1"), Number("359"), Number("180")]
    assert CIRCULAR.costs(degrees, degrees).tolist() == [[0, 2, 179], [2, 0, 179], [179, 179, 0]]
    columns = DEGREES.judge([*degrees, None], [Number("359")] * 4)
    assert columns["degrees"].tolist() == [2, 0, 179, 180]
    assert [metric.value(columns) for metric in DEGREES.metrics] == [0.5, 90.25]
    assert risk_of(Compass(), degrees[0], "here") is CIRCULAR
    assert scorer_of(Compass(), "compass", degrees[0], "here") is DEGREES


def test_a_scorer_is_used_for_a_task_of_the_library(pasted, capsys):
    rows = [{"id": str(i), "text": "1", "target": str(t)} for i, t in enumerate((359, 100))]
    Path("answers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = ["score", "answers.jsonl", "--task", "numbers"]
    assert cli.main([*command, "--scorer", "my_tasks:DEGREES"]) == 0
    assert re.search(r"within 10° +50\.00 %", capsys.readouterr().out)
    assert cli.main([*command, "--scorer", "my_tasks:Compass"]) == 2
    assert "'my_tasks:Compass' is no Scorer" in capsys.readouterr().err


@pytest.mark.parametrize(("rule", "answer"), [("median", "356"), ("mbr", "358")])
def test_only_its_risk_goes_across_north(pasted, rule, answer):
    row = {"id": "test0", "texts": ["356", "358", "2"]}
    (pasted / "sampled.jsonl").write_text(json.dumps(row), encoding="utf-8")
    options = ["--rows", "test.jsonl", "--task", "my_tasks:Compass", "--partial"]
    assert cli.main(["decode", "sampled.jsonl", *options, "--rule", rule]) == 0
    assert json.loads((pasted / f"sampled.{rule}.jsonl").read_text())["text"] == answer


def test_the_importer_writes_rows_that_the_task_reads(pasted, capsys):
    (pasted / "readings.csv").write_text("image,degrees\ntrain0.png,21\ntrain1.png,3.5\n")
    command = ["prepare", "my_formats:Readings", "readings.csv", "--category", "sea"]
    assert cli.main([*command, "--out", "imported.jsonl"]) == 0
    assert cli.main(["check-data", "compass.yaml", "data.train.path=imported.jsonl"]) == 0
    assert "2 read, 2 usable" in capsys.readouterr().out
    (pasted / "readings.csv").write_text("image,degrees\ntrain0.png,warm\n")
    with pytest.raises(SystemExit, match=r"^1$"):
        cli.main([*command, "--out", "bad.jsonl"])
    assert "readings.csv, line 2: 'warm' is not a number." in capsys.readouterr().out


def test_the_family_has_its_own_coordinates(pasted, capsys):
    family = ["model.family=my_families:PixelQwen", "model.name=tiny"]
    assert cli.main(["check-data", "compass.yaml", *family]) == 0
    assert "pixels of the resized image, from 0 to width" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("task=my_tasks.Compass", r"An import path has a colon before the name"),
        ("objective.terms.0.name=my_tasks:Nothing", r"'my_tasks:Nothing' cannot be imported"),
        ("objective.terms.0.name=my_tasks:Compass", r"with `per` set to one of token, number"),
        (
            "objective.terms.0.options={circles: 1}",
            r"no setting 'circles'\. Did you mean 'circle'\?",
        ),
    ],
)
def test_a_mistake_in_it_is_found_by_check(pasted, capsys, override, message):
    assert cli.main(["check", "compass.yaml", override]) == 2
    assert re.search(message, capsys.readouterr().err)


def test_a_mistake_in_a_chapter_names_it(pasted):
    module = (pasted / "my_tasks.py").read_text(encoding="utf-8")
    (pasted / "my_tasks.py").write_text(module.replace("Quantity(value=", "Quantity("))
    assert cli.main(["check", "compass.yaml"]) == 0
    with pytest.raises(ValueError, match=r"^my_tasks:sections fails with TypeError\('Quantity"):
        task_sections("my_tasks:Compass", pasted, {}, {("ce", 0): [{"within_10": 1}]}, {})


def test_a_chapter_that_does_not_exist_is_found_by_check(pasted, capsys):
    module = (pasted / "my_tasks.py").read_text(encoding="utf-8")
    (pasted / "my_tasks.py").write_text(module.replace('("my_tasks:sections",', '("number",'))
    assert cli.main(["check", "compass.yaml"]) == 2
    assert "no report section 'number'. Did you mean 'numbers'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("degrees", "message"),
    [('"north"', "line 2: degrees is 0 to 359, not 'north'"), ("360", "line 2: degrees is")],
)
def test_a_bad_row_of_it_has_its_position(pasted, capsys, degrees, message):
    row = '{"id": "a", "image": "train0.png", "category": "sea", "degrees": %s}\n'
    (pasted / "train.jsonl").write_text(row % "1" + (row % degrees).replace('"a"', '"b"'))
    with pytest.raises(SystemExit):
        cli.main(["check-data", "compass.yaml"])
    assert message in capsys.readouterr().out


def test_a_mean_instead_of_losses_is_an_error(pasted, capsys):
    module = (pasted / "my_tasks.py").read_text(encoding="utf-8")
    changed = module.replace("- difference) / self.circle", "- difference).mean()")
    (pasted / "my_tasks.py").write_text(changed)
    assert cli.main(["train", "compass.yaml", "trainer.max_steps=1"]) == 2
    assert "it returned a tensor of shape []; return one loss for each number" in (
        capsys.readouterr().err
    )
