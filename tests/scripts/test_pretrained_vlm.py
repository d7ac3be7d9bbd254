"""scripts/experiments/pretrained_vlm.py: packs, the small tokenizer, and the check of the tower."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

EXPERIMENTS = Path(__file__).parents[2] / "scripts/experiments"


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(EXPERIMENTS))
    import pretrained_vlm

    return pretrained_vlm


@pytest.mark.parametrize("length", [0, 1, 4, 5, 8, 43])
def test_joined_parts_are_the_files(script, tmp_path, length):
    whole, small = tmp_path / "a.b-1.0", tmp_path / "a.b"
    whole.write_bytes(bytes(range(length)))
    small.write_bytes(b"small")
    script.split_files([whole, small], tmp_path / "pack", size=4)
    parts = [path for path in (tmp_path / "pack").iterdir() if path.name != "SHA256SUMS"]
    assert len(parts) == -(-length // 4) + 2
    assert all(path.stat().st_size <= 4 for path in parts)
    script.join_files(tmp_path / "pack", tmp_path / "joined")
    for path in (whole, small):
        assert (tmp_path / "joined" / path.name).read_bytes() == path.read_bytes()


def test_a_missing_part_is_an_error(script, tmp_path):
    (tmp_path / "whole").write_bytes(b"123456")
    script.split_files([tmp_path / "whole"], tmp_path / "pack", size=4)
    (tmp_path / "pack/whole.1").unlink()
    with pytest.raises(SystemExit, match="pack: parts of whole are missing or damaged; copy"):
        script.join_files(tmp_path / "pack", tmp_path / "joined")


@pytest.fixture
def tokenizer():
    """A byte-level BPE whose first token is special, as SmolLM2's."""
    backend = Tokenizer(models.BPE())
    digits = pre_tokenizers.Digits(individual_digits=True)
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([digits, bytes_])
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|im_end|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(["the raccoon and the rabbit are in the rabbit hole"] * 9, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>")


def test_the_first_tokens_of_a_tokenizer_write_every_text(script, tokenizer):
    size = 262
    small = script.with_image_tokens(tokenizer, size)
    images = list(script.IMAGE_TOKENS.values())
    assert len(tokenizer) > len(small) == size + len(images)
    assert small.convert_tokens_to_ids(images) == list(range(size, size + len(images)))
    assert small.context_image_token == "<IMG_CONTEXT>"
    assert small.eos_token == "<|im_end|>"
    own, large = small.get_vocab(), tokenizer.get_vocab()
    assert {t: i for t, i in own.items() if t not in images} == {
        token: i for token, i in large.items() if i < size
    }
    for text in ("the raccoon", "Füße: 3 %?", "[12, 34, 56, 789]<|im_end|>"):
        assert small.decode(small(text)["input_ids"]) == text
    assert small.tokenize("1290") == ["1", "2", "9", "0"]
    assert len(small.tokenize("the rabbit")) > len(tokenizer.tokenize("the rabbit"))


def test_all_tokens_are_kept_without_a_size(script, tokenizer):
    text = "the rabbit 12"
    assert script.with_image_tokens(tokenizer).tokenize(text) == tokenizer.tokenize(text)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_changed_weight_of_the_tower_is_an_error(script, monkeypatch, tmp_path, dtype):
    small = {"hidden_size": 24, "num_hidden_layers": 1, "intermediate_size": 32}
    monkeypatch.setattr(script, "VISION", {**script.VISION, **small})
    tower = script.make_model(None, None, seed=1).model.vision_tower
    pixels = script.make_pixels(2)
    with torch.no_grad():
        features = tower(pixels).last_hidden_state
    path = tmp_path / "tower.safetensors"
    weights = {name: own.to(dtype) for name, own in tower.state_dict().items()}
    save_file({**weights, "test.pixels": pixels, "test.features": features}, path)
    found = script.load_tower(path)
    assert found.keys() == weights.keys()
    saved = load_file(path)
    saved["encoder.layer.0.mlp.fc2.weight"][0] += 1
    save_file(saved, path)
    with pytest.raises(SystemExit, match=r"of their standard deviation, more than .*is wrong"):
        script.load_tower(path)
