"""Masks of right-padded batches: the loss and gradients of transformers' own, and no look at them.

How often a step waits is in test_waiting.py.
"""

import pytest
import torch
from sized_rows import check_gradients, gradients, loaded, sized_rows
from transformers import AttentionMaskInterface, MixtralConfig, MixtralForCausalLM
from transformers.masking_utils import create_causal_mask

from mm_numeric.training.mixin import right_padded

MODELS = ["gemma3", "gemma4", "qwen3_5", "llava_onevision", "qwen2_vl", "paligemma", "florence2"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "attention"),
    [*((name, "sdpa") for name in MODELS), ("gemma3", "eager"), ("florence2", "eager")],
)
def test_loss_and_gradients_are_those_of_whole_masks(name, attention):
    collator, model = loaded(name, attention)
    batch, vocabulary = collator(sized_rows()), collator.vocabulary
    assert not batch["attention_mask"].all()
    model.train().gradient_checkpointing_enable()
    loss, wanted = gradients(model, batch, vocabulary)
    with right_padded(has_encoder=name == "florence2"):
        same, found = gradients(model, batch, vocabulary)
    torch.testing.assert_close(same, loss, rtol=1e-5, atol=1e-6)
    check_gradients(found, wanted)


def mixture():
    """Return a model whose router loss leaves padding out, and a batch with and without padding."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    model = MixtralForCausalLM(MixtralConfig(**sizes, **heads, num_local_experts=4)).eval()
    ids, mask = torch.randint(32, (3, 9)), torch.ones(3, 9, dtype=torch.long)
    mask[0, 4:] = mask[1, 7:] = 0
    return model, ids, mask


def test_a_router_loss_leaves_padding_out():
    model, ids, mask = mixture()

    def outputs(**inputs):
        return model(input_ids=ids, output_router_logits=True, **inputs)

    wanted, without = outputs(attention_mask=mask), outputs()
    with right_padded(has_encoder=False):
        found = outputs(attention_mask=mask)
    torch.testing.assert_close(found.aux_loss, wanted.aux_loss)
    torch.testing.assert_close(found.logits[mask.bool()], wanted.logits[mask.bool()])
    assert abs(without.aux_loss - wanted.aux_loss) > 1e-4


@pytest.fixture
def own_mask():
    """Name of a registered mask, which is the padding mask."""
    AttentionMaskInterface.register("own", lambda **arguments: arguments["attention_mask"])
    yield "own"
    del AttentionMaskInterface._global_mapping["own"]


def test_only_plain_causal_masks_lose_the_padding_and_only_inside(own_mask):
    model, ids, mask = mixture()

    def made(**options):
        embeddings = model.get_input_embeddings()(ids)
        return create_causal_mask(model.config, embeddings, mask, None, **options)

    images = torch.where(torch.arange(9) < 2, 0, -1).expand(3, 9)
    usual, of_images = made(), made(block_sequence_ids=images)
    with right_padded(has_encoder=False):
        assert made() is None
        model.config._attn_implementation = own_mask
        assert torch.equal(made(), mask.bool())
        model.config._attn_implementation = "sdpa"
        assert torch.equal(made(block_sequence_ids=images), of_images)
    assert torch.equal(made(), usual)
