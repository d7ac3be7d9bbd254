"""Positions that are computed with the batch are those that a model computes itself."""

import pickle

import pytest
import torch
from sized_rows import gradients, loaded, sized_rows
from transformers import (
    AttentionInterface,
    Qwen2_5OmniThinkerConfig,
    Qwen2_5OmniThinkerForConditionalGeneration,
)

from mm_numeric.training.image_positions import rope_index_of, rope_positions, with_image_positions
from mm_numeric.training.padding_free import make_padding_free

QWENS = ["qwen2_vl", pytest.param("qwen2_5_vl", marks=pytest.mark.slow), "qwen3_vl"]
M_ROPE = [*QWENS, pytest.param("glm4v", marks=pytest.mark.slow)]


def same_gradients(model, one, other, vocabulary):
    """Check that two batches have the same loss and gradients to the last digit."""
    (loss, wanted), (same, found) = (gradients(model, b, vocabulary) for b in (one, other))
    assert torch.equal(loss, same)
    assert wanted.keys() == found.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


@pytest.mark.parametrize("name", M_ROPE)
def test_losses_and_gradients_are_the_same(name):
    rows, (collator, model) = sized_rows(), loaded(name)
    collate = with_image_positions(model, collator.family, collator)
    batch = pickle.loads(pickle.dumps(collate))(rows)  # as in a worker of the dataloader
    wanted = collator(rows)
    assert batch["position_ids"].shape == (3, *batch["input_ids"].shape)
    assert ("image_grid_thw" in batch) == (name == "glm4v")
    same_gradients(model, wanted, batch, collator.vocabulary)


@pytest.mark.slow
@pytest.mark.parametrize("name", QWENS)
def test_a_padding_free_batch_keeps_its_positions(name):
    rows, (collator, model) = sized_rows(), loaded(name)
    flat = make_padding_free(model, collator, "sdpa")
    batch, wanted = with_image_positions(model, collator.family, flat)(rows), flat(rows)
    assert torch.equal(batch["position_ids"], wanted["position_ids"])
    same_gradients(model, wanted, batch, collator.vocabulary)


@pytest.mark.slow
@pytest.mark.parametrize("name", QWENS)
def test_flash_attention_of_the_vision_tower_gets_the_same_arguments(name, monkeypatch):
    seen = []

    def record(module, query, key, value, **arguments):
        """Return the values, which are enough to compare two calls."""
        longest = (arguments["max_length_q"], arguments["max_length_k"])
        seen.append((arguments["cu_seq_lens_q"], arguments["cu_seq_lens_k"], longest))
        return value.transpose(1, 2), None

    monkeypatch.setitem(AttentionInterface._global_mapping, "flash_attention_2", record)
    rows, (collator, model) = sized_rows(), loaded(name)
    model.model.visual.config._attn_implementation = "flash_attention_2"
    collate = with_image_positions(model, collator.family, collator)
    same_gradients(model, collator(rows), collate(rows), collator.vocabulary)
    half = len(seen) // 2
    assert half == len(model.model.visual.blocks)
    for (ends, same, longest), (found, again, most) in zip(seen[:half], seen[half:], strict=True):
        assert ends.tolist() == same.tolist() == found.tolist() == again.tolist()
        assert found.dtype == ends.dtype == torch.int32
        assert longest == most == 2 * (ends.diff().max().item(),)


def test_positions_of_a_model_that_reads_more_than_its_config():
    config = Qwen2_5OmniThinkerConfig(
        text_config={"num_hidden_layers": 1},
        vision_config={"depth": 1},
        audio_config={"encoder_layers": 1},
        vision_start_token_id=7,
    )
    with torch.device("meta"):
        model = Qwen2_5OmniThinkerForConditionalGeneration(config)
    ids = torch.tensor([[5, 7, *4 * [config.image_token_id], 9]])
    batch = {"input_ids": ids, "image_grid_thw": torch.tensor([[1, 4, 4]])}
    batch["attention_mask"] = torch.ones_like(ids)
    found = rope_positions(pickle.loads(pickle.dumps(rope_index_of(model))), batch)
    assert torch.equal(found, model.get_rope_index(**batch)[0])
    assert found[:, 0].tolist()[1:] == [[0, 1, 2, 2, 3, 3, 4], [0, 1, 2, 3, 2, 3, 4]]


def test_batches_without_images_stay_as_they_are():
    collator, model = loaded("qwen2_vl")
    collate = with_image_positions(model, collator.family, collator)
    assert collate([]) == {}
    text = {"input_ids": torch.ones(2, 3, dtype=torch.long)}
    assert with_image_positions(model, collator.family, lambda _: text)(sized_rows()) is text


def test_a_model_without_m_rope_keeps_its_collator():
    collator, model = loaded("llava")
    assert with_image_positions(model, collator.family, collator) is collator
