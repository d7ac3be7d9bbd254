"""What works without the packages of the extras, and the message that names the extra."""

import json
import re
import shutil
import subprocess
import sys
import tomllib

import pytest
from import_graph import ROOT, graph, loaded_by
from packaging.requirements import Requirement
from PIL import Image

from mm_numeric.registry import EXTRA_OF

LOSSES = ("mm_numeric.losses", "mm_numeric.numbers", "mm_numeric.training.integrations")
OWN_MESSAGE = {
    "argcomplete",
    "av",
    "datasets",
    "deepspeed",
    "packaging",
    "pyarrow",
    "ray",
    "rouge_score",
    "sacrebleu",
    "triton",
    "trl",
}
"""Packages that are optional also with the extra ``train``; what needs one says so itself."""

WITHOUT = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[1].split():
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
"""

LOSS = """
import json, torch
before = set(sys.modules)
from mm_numeric import NumericLoss, loss_func, step_counts
class Tokenizer:
    def get_vocab(self):
        return {token: i for i, token in enumerate("0123456789:")}
loss_of = NumericLoss("ntil", Tokenizer())
logits = torch.zeros(1, 4, 11, requires_grad=True)
loss_of(logits, torch.tensor([[7, 10, 0, 5]]), shift=True).loss.backward()
assert logits.grad.abs().sum() > 0
loaded = sorted(set(sys.modules) - before)
from mm_numeric.answers import ClockTime, Number
from mm_numeric.rewards import reward
assert reward("relative_error", task="numbers").score("9", Number("12")).value == 0.75
assert reward("time", task="clock").score("7:05", ClockTime(7, 5)).value == 1
try:
    from mm_numeric import NumericTrainer
except ImportError as error:
    print(error, file=sys.stderr)
print(json.dumps(loaded))
"""

COMMANDS = """
import json
from mm_numeric.cli.main import main
print(json.dumps([main(command.split()) for command in sys.argv[2:]]))
"""


def run_without(packages, code, arguments=(), cwd=ROOT):
    """Run code in a new process that cannot import some packages."""
    words = [sys.executable, "-c", WITHOUT + code, " ".join(packages), *arguments]
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr.splitlines()


def extra(name):
    """Return the names that are imported for the packages of an extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    found = {Requirement(line).name for line in project["optional-dependencies"][name]}
    return {"PIL" if package == "pillow" else package for package in found}


def test_the_table_of_extras_is_that_of_pyproject():
    # markupsafe comes with jinja2, and three packages with transformers and torch
    assert extra("eval") | {"markupsafe"} == {p for p, e in EXTRA_OF.items() if e == "eval"}
    assert extra("train") - {"mm-numeric"} | {"fsspec", "huggingface_hub", "tokenizers"} == {
        p for p, e in EXTRA_OF.items() if e == "train"
    }


def test_every_package_that_is_imported_is_in_an_extra():
    edges = graph()
    # Frameworks that import a module of integrations are there when it runs.
    found = [i for module, i in edges.items() if not module.startswith("mm_numeric.integrations")]
    names = {name.partition(".")[0] for i in found for name in i.at_load | i.lazy}
    names -= {*sys.stdlib_module_names, *EXTRA_OF, *OWN_MESSAGE, "mm_numeric", "numpy", "yaml"}
    assert names == set()


def test_losses_load_torch_numpy_and_yaml_alone():
    edges = graph()
    losses = [module for module in edges if module.startswith(LOSSES)]
    losses.remove("mm_numeric.losses.triton_kernels")  # imported on a GPU, if Triton is installed
    loads = {name.partition(".")[0] for module in losses for name in loaded_by(module, edges)}
    assert loads - sys.stdlib_module_names == {"mm_numeric", "numpy", "torch", "yaml"}


@pytest.mark.slow
def test_a_loss_its_gradient_and_a_reward_need_no_extra():
    loaded, errors = run_without(EXTRA_OF.keys() - {"torch"}, LOSS)
    assert errors[0].startswith("mm_numeric.NumericTrainer: ")
    assert errors[0].endswith(" is not installed; run `pip install 'mm-numeric[train]'`.")
    assert "mm_numeric.losses.numeric_loss" in loaded
    # No module of torch is loaded that `import torch` does not load, such as torch._dynamo: it is
    # what would make the import slow.
    others = {name.partition(".")[0] for name in loaded} - sys.stdlib_module_names
    assert {name for name in others if "cython" not in name} == {"mm_numeric", "yaml"}


@pytest.mark.slow
def test_scores_and_reports_need_no_torch(finished_runs, tmp_path):
    shutil.copytree(finished_runs / "comparison", tmp_path / "comparison")
    Image.new("RGB", (112, 84)).save(tmp_path / "1.png")
    box = {"image_id": 1, "category_id": 1, "bbox": [10, 20, 40, 40]}
    files = {
        "clock.jsonl": {"id": "1", "text": "7:05", "target": "7:05"},
        "found.json": [{**box, "score": 0.9}],
        "truth.json": {
            "images": [{"id": 1, "file_name": "1.png", "width": 112, "height": 84}],
            "annotations": [{**box, "id": 1, "area": 1600, "iscrowd": 0}],
            "categories": [{"id": 1, "name": "car"}],
        },
    }
    (tmp_path / "gt").mkdir()
    (tmp_path / "gt" / "gt_1.txt").write_text("0,0,10,0,10,10,0,10,x", encoding="utf-8")
    for name, found in files.items():
        (tmp_path / name).write_text(json.dumps(found), encoding="utf-8")
    commands = [
        "prepare coco truth.json --images . --out rows.jsonl",
        "score clock.jsonl --task clock",
        "score comparison/seed0/ce/predictions.jsonl",
        "score found.json --truth truth.json --protocol coco_ap",
        "score gt --truth gt",
        "report comparison",
        "check clock_tiny",
        "export run --out model",
    ]
    missing = {package for package, name in EXTRA_OF.items() if name == "train"}
    codes, errors = run_without(missing, COMMANDS, commands, cwd=tmp_path)
    assert codes == [0, 0, 0, 0, 0, 0, 2, 2], errors
    assert errors[-1].endswith(
        "huggingface_hub is not installed; run `pip install 'mm-numeric[train]'`."
    )


@pytest.mark.slow
def test_a_command_names_the_extra_that_it_needs(tmp_path):
    (tmp_path / "found.json").write_text("[]", encoding="utf-8")
    commands = {
        "prepare coco found.json --out rows.jsonl": "eval",
        "report run": "eval",
        "score found.json --truth found.json": "eval",
        "check clock_tiny": "train",
        "check-data clock_tiny": "train",
        "compare clock_tiny": "train",
        "export run --out model": "train",
        "predict --model run": "train",
        "train clock_tiny": "train",
    }
    codes, errors = run_without(EXTRA_OF, COMMANDS, commands, cwd=tmp_path)
    assert codes == [2] * len(commands)
    named = [re.search(r" is not installed; run `pip install 'mm-numeric\[(\w+)\]'`\.$", line)[1]
             for line in errors]  # fmt: skip
    assert named == list(commands.values())
