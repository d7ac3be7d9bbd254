"""Adapters in a run: resuming, errors, comparisons, two ranks, and further training."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from run_files import cut_off
from safetensors.torch import load_file, save_file
from tiny_models import small_config, tiny_checkpoint
from train_runs import start

from mm_numeric.comparison.run import compare
from mm_numeric.models.loading import load_family, load_model
from mm_numeric.runs.manifest import write_manifest
from mm_numeric.training.run import train

pytestmark = pytest.mark.slow

PARTS = ("modules={projector: trained, language: adapted}", "lora.rank=4")


def a_config(folder: Path, *overrides: str):
    return small_config(folder, f"model.name={tiny_checkpoint()}", *PARTS, *overrides)


def saved(folder: Path) -> dict[str, torch.Tensor]:
    files = ("adapter_model.safetensors", "trained.safetensors")
    return {f"{f}/{k}": v for f in files for k, v in load_file(folder / f).items()}


def same(one: Path, other: Path) -> bool:
    first, second = saved(one), saved(other)
    return first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)


def test_a_run_with_adapters_goes_on_to_the_same_weights(tmp_path):
    """From its first checkpoint, and then from its last."""
    keep = ("trainer.save_total_limit=null", "trainer.save_steps=1", "trainer.max_steps=2")
    config = a_config(tmp_path, *keep, "lora.dora=true")
    train(config)
    run = config.output_dir
    shutil.copytree(run / "model", tmp_path / "whole")
    for at in (1, 2):
        cut_off(run, at)
        assert not (run / f"checkpoint-{at}" / "model.safetensors").exists()
        train(config, resume=True)
        assert same(run / "model", tmp_path / "whole")
        assert json.loads((run / "run.json").read_text())["steps"] == 2


def test_a_checkpoint_that_lacks_a_weight_is_rejected(tmp_path):
    config = a_config(tmp_path, "trainer.max_steps=2")
    train(config)
    (config.output_dir / "run.json").unlink()
    checkpoint = config.output_dir / "checkpoint-2"
    for file in ("adapter_model.safetensors", "trained.safetensors"):
        path = checkpoint / file
        whole, kept = path.read_bytes(), load_file(path)
        name, value = kept.popitem()
        save_file(kept, path, metadata={"format": "pt"})
        write_manifest(checkpoint)  # of a checkpoint that was saved like this
        lacks = r"checkpoint-2.*1 weights are not .* is missing there"
        with pytest.raises(ValueError, match=lacks):
            train(config, resume=True)
        save_file({**kept, name: value[..., :1].contiguous()}, path, metadata={"format": "pt"})
        write_manifest(checkpoint)
        with pytest.raises(ValueError, match=r"checkpoint-2.*1 weights are not"):
            train(config, resume=True)
        path.unlink()
        write_manifest(checkpoint)
        with pytest.raises(ValueError, match=rf"{file}: cannot be read"):
            train(config, resume=True)
        path.write_bytes(whole)


def test_what_is_trained_on_adapters_goes_on_with_them(tmp_path):
    steps = ("trainer.max_steps=2", "trainer.save_strategy='no'")
    first = a_config(tmp_path / "a", *steps)
    train(first)
    source = f"model.name={first.output_dir / 'model'}"
    still = "trainer.learning_rate=0.0"
    second = a_config(tmp_path / "b", *steps, source, still)
    train(second)
    assert same(first.output_dir / "model", second.output_dir / "model")
    third = a_config(tmp_path / "e", *steps, source, "trainer.warmup_steps=0")
    train(third)
    before, after = saved(first.output_dir / "model"), saved(third.output_dir / "model")
    assert all(not torch.equal(before[name], after[name]) for name in before)
    for number, (change, said) in enumerate(
        (
            ("lora.rank=8", "adapters with other rank"),
            ("lora.dora=true", "adapters with other dora"),
            ("modules.vision=adapted", "adapters with other layers"),
            ("modules.projector=frozen", "a trained projector"),
        )
    ):
        other = a_config(tmp_path / f"c{number}", *steps, source, change)
        with pytest.raises(
            ValueError, match=rf"model\.name: .* holds {said}; continue with the same"
        ):
            train(other)
    whole = small_config(tmp_path / "d", *steps, source)
    with pytest.raises(ValueError, match=r"holds adapters with other rank; .*mm-numeric export"):
        train(whole)


def test_adapters_without_the_model_they_belong_on_are_one_sentence(tmp_path):
    shutil.copytree(tiny_checkpoint(), tmp_path / "base")
    config = a_config(tmp_path, f"model.name={tmp_path / 'base'}", "trainer.max_steps=1")
    train(config)
    shutil.rmtree(tmp_path / "base")
    folder = str(config.output_dir / "model")
    with pytest.raises(ValueError, match=r"belong to the folder '.*base', but that folder is m"):
        load_model(config, load_family(config, folder), folder)


def test_what_cannot_be_adapted_is_one_sentence(tmp_path):
    with pytest.raises(ValueError, match=r"model\.quantize: quantised weights cannot be trained"):
        small_config(tmp_path, "model.quantize=nf4")
    config = a_config(tmp_path, "model.quantize=nf4", "trainer.max_steps=1")
    with pytest.raises(ValueError, match=r"model\.quantize: nf4 needs bitsandbytes; run"):
        train(config)
    tied = small_config(tmp_path, "modules={embeddings: adapted, head: adapted}")
    with pytest.raises(ValueError, match="the embeddings and the head of this model are one tens"):
        train(tied)


def test_objectives_are_compared_from_adapters(tmp_path):
    config = small_config(
        tmp_path,
        "modules={projector: trained, language: adapted}",
        "compare.seeds=[0]",
        "compare.objectives=[ce, ntil]",
        "compare.control=null",
        "compare.warm_start={max_steps: 2}",
        "trainer.max_steps=2",
        "trainer.save_strategy='no'",
        "data.train.synthetic.rows=4",
        "data.test.synthetic.rows=4",
        "compare.jobs=1",
    )
    folder = compare(config) / "seed0"
    for name in ("warm_start", "ce", "ntil"):
        assert (folder / name / "results.json").is_file()
        settings = json.loads((folder / name / "model" / "adapter_config.json").read_text())
        assert settings["base_model_name_or_path"] == str(folder / "warm_start" / "init")
    assert not same(folder / "ce" / "model", folder / "ntil" / "model")


def test_activations_may_be_recomputed(tmp_path):
    checkpointed = a_config(
        tmp_path / "a", "trainer.gradient_checkpointing=true", "trainer.max_steps=2"
    )
    plain = a_config(tmp_path / "b", "trainer.max_steps=2")
    train(checkpointed)
    train(plain)
    one, two = saved(checkpointed.output_dir / "model"), saved(plain.output_dir / "model")
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("sharding", ["null", "zero3"])
def test_two_ranks_train_the_adapters_of_one_with_double_accumulation(tmp_path, sharding):
    steps = ("trainer.max_steps=3", "trainer.per_device_train_batch_size=3", "objective=ntil",
             "objective.balance=fixed", "trainer.save_strategy='no'",
             "modules.projector={learning_rate: 3.0e-3}")  # fmt: skip
    for name, more, ranks in (
        ("two", f"trainer.deepspeed={sharding}", 2),
        ("one", "trainer.gradient_accumulation_steps=2", 1),
    ):
        file = tmp_path / f"{name}.yaml"
        file.write_text(a_config(tmp_path / name, *steps, more).to_yaml())
        job = start(file, ranks=ranks)
        assert job.wait() == ranks * [0], job.text()
        assert job.text().count("projector ") == 1  # the table, once
    one, two = (saved(tmp_path / name / "run" / "model") for name in ("one", "two"))
    assert one.keys() == two.keys()
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=1e-4, atol=1e-5)
