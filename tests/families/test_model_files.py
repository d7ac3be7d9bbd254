"""Checkpoints that contradict the config are rejected with a one-sentence error."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file
from synthetic_rows import rows_for
from tiny_models import TINY, tiny_checkpoint

from mm_numeric.config.reader import config_from_dict
from mm_numeric.config.schema import ModelConfig
from mm_numeric.families.family import Family
from mm_numeric.families.model_files import FRAME
from mm_numeric.families.qwen2_vl import Qwen2VL
from mm_numeric.models.loading import load_family, load_model


@pytest.fixture
def checkpoint(tmp_path):
    """A copy of the tiny checkpoint that a test may damage."""
    return Path(shutil.copytree(tiny_checkpoint(), tmp_path / "checkpoint"))


def config(source, **model):
    raw = {
        "task": "clock",
        "data": {"train": rows_for("clock", 1), "test": rows_for("clock", 1)},
        "model": {"name": str(source), "dtype": "float32", **model},
        "trainer": {"output_dir": "run"},
    }
    return config_from_dict(raw, where="mine.yaml", title="mine")


def loads(source, **model):
    job = config(source, **model)
    return load_model(job, load_family(job, str(source)), str(source))


def test_a_checkpoint_is_loaded_as_the_config_says(checkpoint):
    model = loads(checkpoint, dtype="bfloat16", attention="eager")
    assert model.dtype == torch.bfloat16
    assert model.config._attn_implementation == "eager"


def test_missing_weights_are_named(checkpoint):
    file = checkpoint / "model.safetensors"
    weights = load_file(file)
    gone = sorted(weights)[:5]  # the embeddings among them, which the head is tied to
    save_file({k: v for k, v in weights.items() if k not in gone}, file, {"format": "pt"})
    with pytest.raises(ValueError, match=r"lacks 6 weights \(lm_head\.weight, .* \.\.\.\)"):
        loads(checkpoint)


def test_weights_of_another_shape_are_named(checkpoint):
    file = checkpoint / "config.json"
    settings = json.loads(file.read_text())
    settings["text_config"]["intermediate_size"] = 300
    file.write_text(json.dumps(settings))
    with pytest.raises(ValueError, match=r"has in another shape 6 weights \("):
        loads(checkpoint)


def test_a_checkpoint_without_safetensors_is_rejected(checkpoint):
    weights = load_file(checkpoint / "model.safetensors")
    (checkpoint / "model.safetensors").unlink()
    torch.save(weights, checkpoint / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"mine, model\.name: '.*' cannot be loaded \(.*safetens"):
        loads(checkpoint)


@pytest.mark.parametrize(
    ("name", "why"),
    [("nowhere/at-all", r"cannot be loaded \("), ("/no/such/folder", "there is no such folder")],
)
def test_a_name_that_leads_nowhere_is_one_sentence(name, why):
    with pytest.raises(ValueError, match=r"mine, model\.name: '.*':? " + why) as caught:
        loads(name)
    assert "\n" not in str(caught.value)


def test_quantised_weights_need_bitsandbytes(checkpoint, monkeypatch):
    from mm_numeric.families import model_files as loading

    monkeypatch.setattr(loading, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"model\.quantize: nf4 needs bitsandbytes; run"):
        loading.quantization(replace(TINY, quantize="nf4"))
    monkeypatch.setattr(loading, "find_spec", lambda name: object())
    four = loading.quantization(replace(TINY, quantize="nf4"))
    eight = loading.quantization(replace(TINY, quantize="int8"))
    assert (four.load_in_4bit, four.bnb_4bit_quant_type, eight.load_in_8bit) == (True, "nf4", True)
    assert loading.quantization(TINY) is None


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"quantize": "int4"}, r"model: quantize is nf4, int8 or null, not 'int4'"),
        ({"image_size": {"max_pixels": 0}}, r"image_size\.max_pixels is a whole number >= 1"),
        ({"image_size": {"max_pixels": "a"}}, r"image_size\.max_pixels"),
        ({"coordinates": "qwen"}, r"model\.coordinates: there is no coordinate preset 'qwen'"),
        ({"coordinates": {"preset": "llava", "digits": 3}}, r"no setting 'digits'"),
        ({"coordinates": {"max_value": 1000, "order": "yxyx"}}, r"order is one of xy, yx"),
        ({"coordinates": 7}, r"model\.coordinates: name one of paligemma, "),
    ],
)
def test_settings_of_the_model_are_checked_as_the_config_is_read(model, message):
    with pytest.raises(ValueError, match=message):
        config("x", **model)


def test_coordinates_may_be_changed_in_part(checkpoint):
    job = config(checkpoint, coordinates={"preset": "llava", "decimals": 2})
    family = load_family(job, str(checkpoint))
    assert (family.coordinates.max_value, family.coordinates.decimals) == (1, 2)


def test_the_frame_of_a_model_on_the_hub_is_checked_too(tmp_path, monkeypatch):
    """Here it is in the cache of downloads."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    folder = tmp_path / "models--someone--model"
    weights = folder / "snapshots" / ("0" * 40)
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(weights.name)
    shutil.copytree(tiny_checkpoint(), weights)
    model = ModelConfig(name="someone/model", coordinates="llava")
    Qwen2VL.load(tiny_checkpoint(), model).save(weights)
    assert Qwen2VL.load("someone/model", model).coordinates.decimals == 3
    message = r"in someone/model was .* delete frame\.json in a copy to train the model for the new"
    with pytest.raises(ValueError, match=message):
        Qwen2VL.load("someone/model", replace(model, coordinates="unit_2"))


def test_the_frame_is_saved_next_to_the_weights(tmp_path):
    model = ModelConfig(name="tiny", coordinates="llava", image_size={"max_pixels": 12544})
    Qwen2VL.load(tiny_checkpoint(), model).save(tmp_path)
    assert Qwen2VL.load(str(tmp_path), model).resize.max_pixels == 12544
    same = replace(model, image_size={})  # what was set is in the image processor that was saved
    assert Qwen2VL.load(str(tmp_path), same).resize.max_pixels == 12544
    for changed, message in (
        (replace(model, image_size={"max_pixels": 9999}), "max_pixels 12544, and here it is 9999"),
        (replace(model, coordinates="unit_2"), "with decimals 3, and here it is 2"),
    ):
        with pytest.raises(ValueError, match=message):
            Qwen2VL.load(str(tmp_path), changed)
    (tmp_path / FRAME).write_text("{")
    with pytest.raises(ValueError, match=r"frame\.json: not a frame \("):
        Qwen2VL.load(str(tmp_path), model)


def test_a_family_without_a_tiny_model_is_one_sentence(tmp_path):
    class Other(Family):
        name = "Other"

    with pytest.raises(ValueError, match="Other has no tiny model; set the name of a checkpoint"):
        Other.make_tiny(tmp_path, seed=0)
