"""Cached image features: the losses of runs without a cache, other weights, damaged files."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from mixed_rows import write_mixed
from sized_rows import check_gradients, gradients, loaded, sized_rows
from tiny_models import ROOT, small_config
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VisionTransformerPretrainedModel

from mm_numeric.config.modules import ModulesConfig, ModuleSettings
from mm_numeric.models.parameter_groups import ModelModules
from mm_numeric.training.run import train
from mm_numeric.training.vision_features import make_vision_cache

FROZEN = ModuleSettings(how="frozen")
ARGS = SimpleNamespace(deepspeed_plugin=None, fsdp="", bf16=False, fp16=False, tf32=None)
BOTH = ["qwen2_vl", "qwen3_vl", "paligemma", "glm4v", "idefics3", "llava_onevision"]
"""Models whose projector is frozen, too, in these tests."""


def cached(collator, model, folder, **modules):
    """Freeze modules; return the collator with a cache."""
    settings = ModulesConfig(**{"vision": FROZEN, **modules})
    own = ModelModules(collator.family, settings, 1e-3, "mine")
    own.freeze(model)
    config = small_config(ROOT, f"data.vision_cache={folder}")
    return replace(collator, vision_cache=make_vision_cache(model, own, config, ARGS))


@pytest.mark.parametrize(
    ("name", "projector"),
    [
        *(pytest.param(n, FROZEN, marks=pytest.mark.full) for n in BOTH),
        *((n, None) for n in ("qwen2_vl", "llava", "internvl")),
    ],
)
def test_loss_and_gradients_are_those_of_the_vision_tower(tmp_path, name, projector):
    rows, (collator, model) = sized_rows(), loaded(name)
    with_cache = cached(collator, model, tmp_path, projector=projector)
    loss, wanted = gradients(model, collator(rows), collator.vocabulary)
    losses = []
    for order, kind in ((rows, "inputs"), (rows[::-1], "features"), (rows, "features")):
        batch = with_cache(order)
        assert all(kind in row for row in batch["vision_rows"])
        assert "pixel_values" not in batch
        same, found = gradients(model, batch, collator.vocabulary)
        torch.testing.assert_close(same, loss, rtol=1e-5, atol=1e-6)
        check_gradients(found, wanted)
        losses.append(same)
    assert torch.equal(losses[0], losses[2])
    assert len(list(tmp_path.rglob("*.pt"))) == len(rows)


@pytest.mark.slow
def test_images_in_bfloat16(tmp_path):
    """Those of family chat have the dtype of the model."""
    rows, (collator, model) = sized_rows(), loaded("internvl")
    model.to(torch.bfloat16)
    collator.family.dtype = torch.bfloat16
    with_cache = cached(collator, model, tmp_path, projector=FROZEN)
    losses = [gradients(model, with_cache(rows), collator.vocabulary)[0] for _ in range(2)]
    assert losses[0] == losses[1]
    assert len(list(tmp_path.rglob("*.pt"))) == len(rows)


@pytest.mark.slow
def test_a_run_computes_the_features_of_an_image_once(tmp_path, monkeypatch):
    """Two epochs in another order, with rows without an image, and then once more."""
    rows, calls = write_mixed(tmp_path / "rows", "ptpptp"), []
    forward = Qwen2VisionTransformerPretrainedModel.forward

    def counted(*args, **kwargs):
        calls.append(len(kwargs["grid_thw"]))
        return forward(*args, **kwargs)

    monkeypatch.setattr(Qwen2VisionTransformerPretrainedModel, "forward", counted)

    def trained(name, *overrides):
        config = small_config(
            tmp_path / name,
            "task={name: 'mixed_rows:Counts'}",
            f"data={{train: {{path: {rows}}}, test: {{path: {rows}}}}}",
            "modules.language=adapted", "objective=ntil_soft", "trainer.save_strategy='no'",
            "trainer.per_device_train_batch_size=2", "trainer.logging_steps=1", "evaluate=null",
            *overrides,
        )  # fmt: skip
        calls.clear()
        train(config)
        lines = [json.loads(line) for line in (config.output_dir / "log.jsonl").open()]
        return sum(calls), [line["loss"] for line in lines if "loss" in line]

    cache = f"data.vision_cache={tmp_path / 'cache'}"
    (_, wanted), (first, losses) = trained("plain"), trained("first", cache)
    assert len(wanted) == 6
    assert losses == pytest.approx(wanted, rel=1e-5)
    assert trained("second", cache) == (0, losses)
    files = list((tmp_path / "cache").rglob("*.pt"))
    # Once for each image, and once for the dummy image of rows without one; the first micro-batch
    # also in the trial runs of ChunkedHead and of the model's own loss.
    assert len(files) <= first <= len(files) + 4
    assert trained("free", cache, "data.padding_free=true")[1] == pytest.approx(wanted, rel=1e-5)


def test_other_weights_have_other_features(tmp_path):
    rows, (collator, model) = sized_rows()[:1], loaded("qwen2_vl")
    batch = cached(collator, model, tmp_path, projector=FROZEN)(rows)
    gradients(model, batch, collator.vocabulary)
    with torch.no_grad():
        model.model.visual.blocks[0].attn.proj.weight[0, 0] += 1
    changed = cached(collator, model, tmp_path, projector=FROZEN)(rows)
    (before,), (after,) = batch["vision_rows"], changed["vision_rows"]
    assert "inputs" in after
    assert after["key"] != before["key"]


@pytest.mark.slow
def test_files_that_are_damaged_or_cannot_be_written(tmp_path, monkeypatch):
    rows, (collator, model) = sized_rows()[:1], loaded("qwen2_vl")
    collate = cached(collator, model, tmp_path / "cache", projector=FROZEN)

    def killed(features, file):
        file.write(b"PK")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", killed)
        with pytest.raises(KeyboardInterrupt):
            gradients(model, collate(rows), collator.vocabulary)
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    gradients(model, collate(rows), collator.vocabulary)
    (file,) = (tmp_path / "cache").rglob("*.pt")
    file.write_bytes(b"PK")
    with pytest.raises(ValueError, match=r"\.pt: the cached image features are damaged; delete it"):
        collate(rows)
    (tmp_path / "file").write_text("")
    _, model = loaded("qwen2_vl")
    collate = cached(collator, model, tmp_path / "file", projector=FROZEN)
    with pytest.raises(
        ValueError, match=r"cannot be written to the cache \(Not a directory\); free"
    ):
        gradients(model, collate(rows), collator.vocabulary)


def test_what_cannot_be_cached_is_one_sentence(tmp_path):
    collator, model = loaded("qwen3_vl")
    with pytest.raises(ValueError, match=r"vision_cache: the vision tower is trained, .*frozen"):
        cached(collator, model, tmp_path, vision=None)
    collate = cached(collator, model, tmp_path)
    with pytest.raises(ValueError, match=r"vision_cache: the projector is trained, and the image"):
        gradients(model, collate(sized_rows()), collator.vocabulary)
    with pytest.raises(
        ValueError, match=r"causal_lm takes no image features in place of images in transformers 5"
    ):
        cached(*loaded("causal_lm"), tmp_path, vision=None, language=None)
    sharded = SimpleNamespace(**{**vars(ARGS), "fsdp": "full_shard"})
    with pytest.raises(ValueError, match=r"with ZeRO-3 or FSDP, all ranks run the vision tower"):
        make_vision_cache(model, None, small_config(ROOT), sharded)
