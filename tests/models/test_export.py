"""Exported models: the same logits from plain transformers and PEFT, without mm-numeric."""

import re
import subprocess
import sys

import pytest
import torch
from adapted_runs import BLIND, a_batch, adapted_config, run_of, twin
from safetensors.torch import load_file

from mm_numeric.cli import main
from mm_numeric.evaluation.score import score
from mm_numeric.inference.generate import predict
from mm_numeric.models.export import export
from mm_numeric.registry import FAMILIES
from mm_numeric.training.run import train

pytestmark = pytest.mark.slow

WITH_PROJECTOR = ("llava", "yi_vl", "qwen2_5_vl")  # trained, not adapted: PEFT alone lacks it
DORA = ("qwen2_vl", "t5", "yi_vl")

PLAIN = """
import re, sys
from pathlib import Path
import torch
sys.modules["mm_numeric"] = None  # cannot be imported
from peft import PeftModel

for card in sorted(Path().glob("*/README.md")):
    name = card.parent.name
    batch = torch.load(f"{name}.batch.pt")
    (code,) = re.findall("```python\\n(.*?)```", card.read_text(encoding="utf-8"), re.DOTALL)
    found = {}
    try:
        exec(code, found)
    except ImportError:
        print(name, "needs mm_numeric")
        continue
    assert ("image_processor" in found) == ("pixel_values" in batch)
    with torch.no_grad():
        said = {"merged": found["model"].eval()(**batch).logits}
        adapters = Path(f"{name}.adapters")
        if adapters.exists():
            base = type(found["model"]).from_pretrained(Path(f"{name}.base").read_text())
            said["adapted"] = PeftModel.from_pretrained(base, adapters).eval()(**batch).logits
    torch.save(said, f"{name}.said.pt")
    print(name, found["model"].dtype)
"""


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Train every family for a few steps, export it, and compute logits with transformers alone."""
    folder = tmp_path_factory.mktemp("exported")
    logits = {}
    for name in FAMILIES:
        projector = {"projector": "trained"} if name in WITH_PROJECTOR else {}
        config = adapted_config(
            folder / "runs" / name,
            name,
            {"language": "adapted", **projector},
            {"rank": 4, "dora": name in DORA},
        )
        train(config)
        run = config.output_dir
        export(run, folder / name, trust_remote_code=True)
        family, model = run_of(config)
        batch = a_batch(config, family)
        torch.save(dict(batch), folder / f"{name}.batch.pt")
        if name not in WITH_PROJECTOR:
            (folder / f"{name}.adapters").symlink_to(run / "model")
            (folder / f"{name}.base").write_text(twin(name))
        with torch.no_grad():
            logits[name] = model(**batch).logits
    command = [sys.executable, "-c", PLAIN]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder, logits, dict(line.split(" ", 1) for line in done.stdout.splitlines())


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "yi_vl"])
def test_plain_transformers_says_the_same(exported, name):
    folder, logits, printed = exported
    assert printed[name] == "torch.float32"
    said = torch.load(folder / f"{name}.said.pt")
    assert set(said) == ({"merged"} if name in WITH_PROJECTOR else {"merged", "adapted"})
    for way in said:
        torch.testing.assert_close(said[way], logits[name], rtol=1e-5, atol=1e-5)
    assert (folder / name / "frame.json").is_file()
    assert (folder / name / "processor_config.json").is_file() == (name not in BLIND)


def test_yi_vl_says_what_it_needs(exported, monkeypatch):
    folder, logits, printed = exported
    assert printed["yi_vl"] == "needs mm_numeric"
    card = (folder / "yi_vl" / "README.md").read_text(encoding="utf-8")
    assert "needs mm-numeric (`pip install 'mm-numeric[train]'`): transformers has no class" in card
    (code,) = re.findall("```python\n(.*?)```", card, re.DOTALL)
    monkeypatch.chdir(folder)
    found = {}
    exec(code, found)
    with torch.no_grad():
        said = found["model"].eval()(**torch.load("yi_vl.batch.pt")).logits
    torch.testing.assert_close(said, logits["yi_vl"], rtol=1e-5, atol=1e-5)


def test_the_card_says_what_the_model_is(tmp_path, capsys):
    config = adapted_config(tmp_path, "qwen2_vl", {"language": "adapted"}, {"rank": 4})
    train(config)
    run, out = config.output_dir, tmp_path / "out" / "model"
    predict(run, None, run / "predictions.jsonl")
    score(run / "predictions.jsonl")
    assert main(["export", str(run), "--out", str(out)]) == 0
    assert f"exported: {out}" in capsys.readouterr().out
    card = (out / "README.md").read_text(encoding="utf-8")
    for said in (
        "library_name: transformers",
        "name: grounding\n",
        "<|im_start|>user",
        "kind: smart",
        "format: ",
        "3 steps of 4 rows; 8 rows of",
        "language ",
        "adapted, learning rate 0.01",
        "rank: 4",
        "ce_weight: 1.0",
        "| accuracy_at_0.5 | ",
        "8 rows, ",
        "peft: 0.",
    ):
        assert said in card, said
    assert re.search("fingerprint `[0-9a-f]{64}`", card)
    assert not list(out.parent.glob("*.unfinished"))
    assert main(["export", str(run), "--out", str(out)]) == 2
    assert f"{out} exists; name a folder that does not" in capsys.readouterr().err
    (run / "run.json").unlink()
    assert main(["export", str(run), "--out", str(tmp_path / "other")]) == 2
    assert "is not finished; resume with" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("parts", [{"language": "adapted"}, {"vision": "frozen"}])
def test_the_dtype_of_the_weights_stays(tmp_path, parts):
    config = adapted_config(tmp_path, "qwen3_vl", parts, dtype="bfloat16")
    train(config)
    export(config.output_dir, tmp_path / "out")
    kinds = {value.dtype for value in load_file(tmp_path / "out" / "model.safetensors").values()}
    assert kinds == {torch.bfloat16}
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "Weights are bfloat16." in card
    assert "Not scored: " in card
