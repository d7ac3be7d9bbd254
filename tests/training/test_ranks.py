"""Same weights with one rank, DDP and ZeRO, in real processes over gloo."""

import json
import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from PIL import Image
from rank_runs import run
from run_files import cut_off, log, weights
from safetensors.torch import load_file
from tiny_models import small_config

from mm_numeric.data.collator import TrainingCollator
from mm_numeric.data.examples import load_examples
from mm_numeric.models.loading import load_family, model_source

STEPS = 2
CASES = [
    ("qwen2_vl", "{preset: ntil_soft, balance: running}"),
    ("paligemma", "ce"),
    ("qwen2_vl", "{preset: ntil, balance: fixed}"),
]
SHAPES = (1, 2, 0, 0, 3, 1, 0, 1)
"""How many shapes there are to find in each image: a rank whose images are the third and the
fourth has no number in its batch."""


def write_rows(folder: Path) -> Path:
    """Write eight images and the shapes in them."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for i, count in enumerate(SHAPES):
        Image.effect_noise((64, 48), 40 + i).convert("RGB").save(folder / f"{i}.png")
        boxes = [[4 + 11 * j, 3 + 5 * i, 12 + 13 * j, 9 + 5 * i + j] for j in range(count)]
        row = {"id": str(i), "image": f"{i}.png", "instances": [{"box": box} for box in boxes]}
        lines.append(json.dumps(row) + "\n")
    (folder / "rows.jsonl").write_text("".join(lines))
    return folder / "rows.jsonl"


def job(folder: Path, rows: Path, family: str, objective: str, *overrides: str):
    """Return a config whose steps have four rows, in the order of the file, on two ranks."""
    return small_config(
        folder,
        "task={name: text_detection, shape: box}",
        f"data={{train: {{path: {rows}}}, test: {{path: {rows}}}}}",
        f"model.family={family}",
        f"objective={objective}",
        f"trainer.max_steps={STEPS}",
        "trainer.per_device_train_batch_size=2",
        "trainer.train_sampling_strategy=sequential",
        "trainer.warmup_steps=0",
        "trainer.logging_steps=1",
        "trainer.save_strategy='no'",
        "evaluate=null",
        # The bias of a key changes nothing: its gradient is rounding, and Adam would take it whole.
        "trainer.adam_epsilon=1.0e-5",
        *overrides,
    )


def write_jobs(folder: Path, rows: Path, cases: Iterable[int], *overrides: str) -> list[str]:
    """Write the config of some cases, each with a run folder of its own."""
    files = []
    for i in cases:
        family, objective = CASES[i]
        config = job(folder / str(i), rows, family, objective, *overrides)
        (folder / str(i)).mkdir(parents=True, exist_ok=True)
        (folder / str(i) / "job.yaml").write_text(config.to_yaml())
        files.append(str(folder / str(i) / "job.yaml"))
    return files


def flat(figures: dict, name: str = "") -> dict[str, float]:
    """Return figures within figures by their whole names."""
    found = {}
    for key, value in figures.items():
        inner = flat(value, f"{name}{key}/") if isinstance(value, dict) else {name + key: value}
        found.update(inner)
    return found


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    return write_rows(tmp_path_factory.mktemp("rows"))


@pytest.fixture(scope="module")
def alone(tmp_path_factory, rows):
    """The folder of every case, trained on one rank with doubled accumulation."""
    folder = tmp_path_factory.mktemp("alone")
    run(1, write_jobs(folder, rows, range(len(CASES)), "trainer.gradient_accumulation_steps=2"))
    return folder


@pytest.mark.slow
def test_no_two_ranks_hold_equally_many_numbers_and_one_holds_none(tmp_path, rows):
    for family, objective in CASES[:2]:
        config = job(tmp_path / family, rows, family, objective)
        loaded = load_family(config, model_source(config, tmp_path / family))
        examples = load_examples(config.task, config.data.train, tmp_path, training=True)
        collate = TrainingCollator(loaded, config.task, loaded.vocabulary())
        tokens = [len(collate(examples[i : i + 2])["spans"].position) for i in (0, 2, 4, 6)]
        assert tokens[1] == 0
        assert len(set(tokens)) == 4


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["ddp", "zero1", "zero2", "zero3"])
def test_two_ranks_reach_the_weights_of_one(tmp_path, rows, alone, mode):
    """ZeRO-1 and ZeRO-2 leave the model as it is for DDP: one of the three cases is enough.

    ZeRO-3 has each family, with and without logits; balancing is the same for all modes.
    """
    overrides = [] if mode == "ddp" else [f"trainer.deepspeed={mode}"]
    cases = {"ddp": range(len(CASES)), "zero1": (0,), "zero2": (2,), "zero3": (0, 1)}[mode]
    run(2, write_jobs(tmp_path, rows, cases, *overrides))
    for i in cases:
        one, two = alone / str(i), tmp_path / str(i)
        whole, split = weights(one / "run"), weights(two / "run")
        first = load_file(one / "run" / "init" / "model.safetensors")
        assert whole.keys() == split.keys() == first.keys()
        assert max((whole[name] - first[name]).abs().max() for name in whole) > 1e-3
        for name, value in whole.items():
            torch.testing.assert_close(
                split[name], value, rtol=0, atol=1e-5, msg=f"{CASES[i]} {name}"
            )
        for line, other in zip(log(one / "run"), log(two / "run"), strict=True):
            for what in ("loss", "grad_norm"):  # Adam alone would not see gradients that are halved
                assert line[what] == pytest.approx(other[what], rel=1e-4)
            for what in ("components", "numbers"):
                assert flat(other[what]) == pytest.approx(flat(line[what]), rel=1e-4, abs=1e-9)
            assert line["grad_norm"] > 1  # clipping would be seen
        facts = [json.loads((x / "run" / "run.json").read_text()) for x in (one, two)]
        for what in ("parameters", "batch_rows", "steps"):
            assert facts[0][what] == facts[1][what]


@pytest.mark.slow
def test_a_run_goes_on_with_other_ranks(tmp_path, rows):
    """From one rank to two and back, and under ZeRO-2 from two to one; the rows are shuffled.

    The run called ``last`` is a copy of ``zero2`` that was cut off after its last checkpoint: there
    is nothing left to train.
    """
    files, whole = {}, {}
    steps = 4
    for mode in ("ddp", "zero2", "last"):
        overrides = () if mode == "ddp" else ("trainer.deepspeed=zero2",)
        config = job(
            tmp_path / mode, rows, *CASES[0], *overrides,
            f"trainer.max_steps={steps}",
            f"trainer.per_device_train_batch_size={4 if mode == 'ddp' else 2}",
            "trainer.train_sampling_strategy=random", "trainer.save_strategy=steps",
            "trainer.save_steps=1", "trainer.save_total_limit=null",
        )  # fmt: skip
        files[mode] = tmp_path / mode / "job.yaml"
        files[mode].parent.mkdir()
        files[mode].write_text(config.to_yaml())
    run(1, [str(files["ddp"])])
    whole["ddp"] = weights(tmp_path / "ddp" / "run")
    cut_off(tmp_path / "ddp" / "run", 1)
    run(2, [str(files["ddp"]), str(files["zero2"])])
    shutil.copytree(tmp_path / "zero2" / "run", tmp_path / "last" / "run")
    whole["zero2"] = weights(tmp_path / "zero2" / "run")
    for path in (tmp_path / "zero2" / "run").glob("checkpoint-*"):
        listed = set(json.loads((path / "manifest.json").read_text())["files"])
        states = {file.relative_to(path).as_posix() for file in path.glob("global_step*/*.pt")}
        assert {"rng_state_0.pth", "rng_state_1.pth", *states} <= listed
        assert len(states) == 3
    two = weights(tmp_path / "ddp" / "run")
    cut_off(tmp_path / "ddp" / "run", 3)
    cut_off(tmp_path / "zero2" / "run", 1)
    cut_off(tmp_path / "last" / "run", steps)
    run(1, [str(file) for file in files.values()])
    for found, wanted in (
        (two, whole["ddp"]),
        (weights(tmp_path / "ddp" / "run"), whole["ddp"]),
        (weights(tmp_path / "zero2" / "run"), whole["zero2"]),
        (weights(tmp_path / "last" / "run"), whole["zero2"]),
        (whole["zero2"], whole["ddp"]),
    ):
        assert max((found[name] - wanted[name]).abs().max() for name in wanted) <= 1e-5
    for mode in files:
        assert json.loads((tmp_path / mode / "run" / "run.json").read_text())["batch_rows"] == 4
        assert [line["step"] for line in log(tmp_path / mode / "run")] == list(range(1, steps + 1))
