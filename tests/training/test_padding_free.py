"""Padding-free batches: losses, gradients and logs of padded ones; models that cannot have them.

Two ranks, rows without images and answers during training are in test_mixed_images.py.
"""

import json
import pickle
from dataclasses import replace

import pytest
import torch
from accelerate.utils import send_to_device
from peft import LoraConfig, get_peft_model
from sized_rows import check_gradients, gradients, loaded, sized_rows
from sums import sums_config
from tiny_models import twin_checkpoint
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    DataCollatorWithFlattening,
    masking_utils,
)
from transformers.utils import is_flash_attn_2_available

from mm_numeric.compat import packed_samples
from mm_numeric.config.schema import ModelConfig
from mm_numeric.data.collator import BATCH_KEYS
from mm_numeric.inference.generate import generate
from mm_numeric.models.loading import device_type
from mm_numeric.training.output_head import output_head
from mm_numeric.training.padding_free import make_padding_free, padding_free_error
from mm_numeric.training.run import train

VISION = ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "llava", "internvl", "idefics3", "glm4v"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "attention"), [*((n, "sdpa") for n in VISION), ("qwen2_vl", "eager")]
)
def test_loss_and_gradients_are_those_with_padding(name, attention):
    rows, (collator, model) = sized_rows(), loaded(name, attention)
    collate = make_padding_free(model, collator, attention)
    flat = pickle.loads(pickle.dumps(collate))(rows)  # as in a worker of the dataloader
    padded, vocabulary = collator(rows), collator.vocabulary
    assert flat["input_ids"].shape == (1, int(padded["attention_mask"].sum()))
    loss, wanted = gradients(model, padded, vocabulary)
    with packed_samples():
        same, found = gradients(model, flat, vocabulary)
    torch.testing.assert_close(same, loss, rtol=1e-5, atol=1e-6)
    check_gradients(found, wanted)
    inputs = {key: value for key, value in flat.items() if key not in BATCH_KEYS}
    head, supervised = output_head(model), flat["supervised"]
    assert padding_free_error(model, head, inputs, supervised, low_precision=False) is None
    # Without positions and boundaries of their own, the samples see each other.
    positions = torch.arange(flat["input_ids"].shape[1])[None]
    wrong = {**inputs, "position_ids": positions, "sample_boundaries": {}}
    with torch.no_grad():
        logits = [model(**each).logits for each in (inputs, wrong)]
    assert (logits[0] - logits[1]).abs().max() > 0.01


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_prompts_of_one_length_are_answered_as_before(attention):
    """They have no mask, like a padding-free batch, as in an evaluation during training."""
    rows, (collator, model) = sized_rows()[:1] * 2, loaded("qwen2_vl")
    model.set_attn_implementation(attention)
    wanted = [found.text for found in generate(model, collator.family, rows, 6)]
    make_padding_free(model, collator, attention)
    assert [found.text for found in generate(model, collator.family, rows, 6)] == wanted


def test_a_model_with_lora_answers_after_a_training_batch_as_before():
    rows, (collator, model) = sized_rows(), loaded("qwen2_vl")
    adapted = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj"]))
    wanted = [found.text for found in generate(adapted, collator.family, rows, 6)]
    gradients(adapted, make_padding_free(adapted, collator, "sdpa")(rows), collator.vocabulary)
    assert [found.text for found in generate(adapted, collator.family, rows, 6)] == wanted


def test_flash_attention_gets_the_boundaries_of_the_samples():
    """A loop in its place computes what it computes for the samples between the boundaries."""
    rows, (collator, model) = sized_rows(), loaded("qwen2_vl")
    padded, vocabulary = collator(rows), collator.vocabulary

    def loop(module, query, key, value, _, scaling, cu_seq_lens_q, max_length_q, **kwargs):
        assert module.is_causal
        assert torch.equal(cu_seq_lens_q, kwargs["cu_seq_lens_k"])
        assert max_length_q == kwargs["max_length_k"] == cu_seq_lens_q.diff().max()
        repeated = query.shape[1] // key.shape[1]
        outputs = []
        for start, end in cu_seq_lens_q.unfold(0, 2, 1).tolist():
            q = query[:, :, start:end]
            k, v = (x[:, :, start:end].repeat_interleave(repeated, dim=1) for x in (key, value))
            scores = (q @ k.mT * scaling).masked_fill(
                torch.ones(end - start, end - start).triu(1).bool(), -torch.inf
            )
            outputs.append(scores.softmax(-1) @ v)
        return torch.cat(outputs, dim=2).transpose(1, 2), None

    AttentionInterface.register("loop_by_sample", loop)
    AttentionMaskInterface.register("loop_by_sample", lambda **_: None)
    loss, wanted = gradients(model, padded, vocabulary)
    model.get_decoder().set_attn_implementation("loop_by_sample")
    flat = make_padding_free(model, collator, "flash_attention_2")(rows)
    same, found = gradients(model, flat, vocabulary)
    torch.testing.assert_close(same, loss, rtol=1e-5, atol=1e-6)
    name = "model.language_model.layers.0.self_attn.q_proj.weight"
    torch.testing.assert_close(found[name], wanted[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("attention", ["flash_attention_2", "flash_attention_3"])
def test_the_boundaries_are_those_of_transformers(attention):
    rows, (collator, model) = sized_rows(), loaded("qwen2_vl")
    found = make_padding_free(model, collator, attention)(rows)["sample_boundaries"]
    padded = collator(rows)
    masks = padded["attention_mask"].bool()
    samples = [{"input_ids": i[m]} for i, m in zip(padded["input_ids"], masks, strict=True)]
    theirs = DataCollatorWithFlattening(return_flash_attn_kwargs=True)(samples)
    assert set(found) == {name for name in theirs if name.startswith(("cu_seq", "max_length"))}
    for name, value in found.items():
        assert type(value) is type(theirs[name])
        assert torch.equal(torch.as_tensor(value), torch.as_tensor(theirs[name])), name
        assert getattr(value, "dtype", None) == getattr(theirs[name], "dtype", None)


@pytest.mark.device
@pytest.mark.parametrize("attention", ["sdpa", "flash_attention_2"])
def test_a_device_computes_the_logits_of_a_padded_batch(attention):
    device = device_type()
    if attention != "sdpa" and not (device == "cuda" and is_flash_attn_2_available()):
        pytest.skip("flash-attn needs its package and a GPU")
    collator, model = loaded("qwen2_vl", attention)
    model = model.to(device, torch.bfloat16)
    batch = make_padding_free(model, collator, attention)(sized_rows())
    inputs = {key: value for key, value in batch.items() if key not in BATCH_KEYS}
    inputs = send_to_device(inputs, device)
    supervised = batch["supervised"].to(device)
    head = output_head(model)
    assert padding_free_error(model, head, inputs, supervised, low_precision=True) is None


def by_step(folder, **data):
    """Train on sums in steps of two micro-batches; return the lines of the log."""
    objective = {"preset": "ntil_soft", "reduction": "samples"}
    steps = {"per_device_train_batch_size": 3, "gradient_accumulation_steps": 2, "max_steps": 4}
    folder.mkdir()
    config = sums_config(folder, "causal_lm", objective, **steps, logging_steps=1)
    train(replace(config, data=replace(config.data, **data)))
    lines = [json.loads(line) for line in (folder / "run" / "log.jsonl").open()]
    return [line for line in lines if "loss" in line]


def test_the_log_of_a_run_is_that_with_padding(tmp_path):
    """The last step has one micro-batch alone, with two rows."""
    wanted, found = by_step(tmp_path / "a"), by_step(tmp_path / "b", padding_free=True)
    for one, other in zip(wanted, found, strict=True):
        speeds = [line.pop("speed") for line in (one, other)]
        tokens, same = (s["tokens_per_second"] / s["samples_per_second"] for s in speeds)
        assert same == pytest.approx(tokens)
        for line in (one, other):
            assert line.pop("memory")
        assert {"loss", "components", "numbers", "grad_norm"} <= one.keys()
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-6)
    saved = json.loads((tmp_path / "b" / "run" / "model" / "config.json").read_text())
    assert "sdpa_by_sample" not in str(saved)


@pytest.mark.slow
def test_transformers_looks_for_samples_only_in_rows_of_one(tmp_path, monkeypatch):
    """Attention in a row of one needs no mask; the micro-batches have seven samples and one."""
    usual, rows = masking_utils.find_packed_sequence_indices, []

    def recording(positions):
        rows.append(positions)
        return usual(positions)

    monkeypatch.setattr(masking_utils, "find_packed_sequence_indices", recording)
    config = sums_config(tmp_path, "causal_lm", per_device_train_batch_size=7, max_steps=2)
    train(replace(config, data=replace(config.data, padding_free=True)))
    (row,) = rows
    assert torch.equal(row, torch.arange(row.shape[1])[None])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["paligemma", "gemma3"])
def test_attention_in_both_directions_is_rejected(name):
    collator, model = loaded(name)
    with pytest.raises(ValueError, match=r"padding_free: .* both directions .* to false\.$"):
        make_padding_free(model, collator, "sdpa")(sized_rows())


@pytest.mark.slow
def test_models_that_mix_the_samples_of_a_row_are_rejected(tmp_path):
    config = replace(
        sums_config(tmp_path, "causal_lm"),
        model=ModelConfig(name="tiny", family="causal_lm", attention="eager"),
    )
    config = replace(config, data=replace(config.data, padding_free=True))

    def trained(name):
        train(replace(config, model=replace(config.model, name=twin_checkpoint(name))))

    with pytest.raises(ValueError, match="the model has layers of type linear_attention, which"):
        trained("qwen3_5_text")
    with pytest.raises(ValueError, match=r"differ by \d+\.\d% of the largest .* set padding_free"):
        trained("gpt_oss")
    t5 = replace(config, model=replace(config.model, family="t5"))
    with pytest.raises(ValueError, match="the model has an encoder and a decoder, which cannot"):
        train(t5)


def test_baselines_are_rejected(tmp_path):
    model = {"name": "tiny", "family": "causal_lm", "baseline": "xval"}
    source = {"path": str(tmp_path / "rows.jsonl")}
    data = {"train": source, "test": source, "padding_free": True}
    with pytest.raises(
        ValueError, match=r"sums, data\.padding_free: a baseline reads padded batch"
    ):
        sums_config(tmp_path, "causal_lm", sections={"model": model, "data": data})
