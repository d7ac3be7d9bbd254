"""The complete example of CONTRIBUTING.md runs as a reader would paste it."""

import json
import re
import sys

import pytest
from import_graph import ROOT
from PIL import Image

from mm_numeric import cli


@pytest.fixture
def pasted(tmp_path, monkeypatch):
    """The module and the config of CONTRIBUTING.md, with rows, in the working directory."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (module,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (config,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    (tmp_path / "my_tasks.py").write_text(module, encoding="utf-8")
    (tmp_path / "thermometer.yaml").write_text(config, encoding="utf-8")
    for name, count in (("train", 16), ("test", 4)):
        lines = []
        for i in range(count):
            Image.new("RGB", (56, 56), (10 * i, 0, 0)).save(tmp_path / f"{name}{i}.png")
            season = "summer" if i % 2 else "winter"
            row = {
                "id": f"{name}{i}",
                "image": f"{name}{i}.png",
                "degrees": str(i),
                "season": season,
            }
            lines.append(json.dumps(row) + "\n")
        (tmp_path / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    sys.modules.pop("my_tasks", None)


@pytest.mark.slow
def test_the_example_is_trained_compared_and_reported(pasted, capsys):
    assert cli.main(["check", "thermometer.yaml"]) == 0
    assert cli.main(["check-data", "thermometer.yaml"]) == 0
    assert cli.main(["train", "thermometer.yaml", "trainer.max_steps=2"]) == 0
    small = ["trainer.max_steps=2", "trainer.logging_steps=1"]
    assert cli.main(["compare", "thermometer.yaml", *small]) == 0
    page = (pasted / "runs/thermometer_compare/report.html").read_text(encoding="utf-8")
    assert "Thermometers read by 2 objectives." in page
    assert "winter" in page.lower()
    log = (pasted / "runs/thermometer_compare/seed0/mine/log.jsonl").read_text(encoding="utf-8")
    assert "my_tasks:ErrorProbability" in log
    capsys.readouterr()


def test_the_example_reads_its_rows(pasted):
    assert cli.main(["check", "thermometer.yaml"]) == 0
    from my_tasks import Thermometer

    with pytest.raises(ValueError, match=r"^line 1: no degrees"):
        list(Thermometer().examples([("line 1", {"id": "1", "image": "a.png"})], training=True))
