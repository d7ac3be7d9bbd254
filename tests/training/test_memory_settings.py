"""Settings that save memory change no gradient, and unavailable ones are rejected."""

from dataclasses import replace

import pytest
import torch
from tiny_models import TINY, small_config, tiny_checkpoint, tiny_family

from mm_numeric.config.schema import ModelConfig
from mm_numeric.data.collator import make_collator
from mm_numeric.data.examples import load_examples
from mm_numeric.models.loading import load_family
from mm_numeric.training.setup import make_trainer, training_arguments


def first_step(folder, *overrides):
    """Return the gradients of the first step, and how often a layer of each tower was called."""
    config = small_config(
        folder, "trainer.max_steps=1", "trainer.save_strategy='no'", "objective=ntil_soft",
        f"model.name={tiny_checkpoint()}", *overrides,
    )  # fmt: skip
    family = load_family(config, tiny_checkpoint())
    examples = load_examples(config.task, config.data.train, folder / "cache", training=True)
    args = training_arguments(config)
    trainer = make_trainer(config, args, examples, make_collator(config, family), tiny_checkpoint())
    # A bottleneck that is zero hides the gradient of the other half of an adapter.
    torch.manual_seed(0)
    for name, parameter in trainer.model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    kept, calls = {}, {"visual": 0, "language_model": 0}
    for name, module in trainer.model.named_modules():
        for tower in calls:
            if name.endswith((f"{tower}.blocks.0.mlp", f"{tower}.layers.0.mlp")):

                def count(*_, tower=tower):
                    calls[tower] += trainer.model.training and torch.is_grad_enabled()

                module.register_forward_pre_hook(count)
    own = trainer._get_grad_norm

    def keep(*args, **kwargs):
        kept.update({n: p.grad.clone() for n, p in trainer.model.named_parameters()
                     if p.grad is not None})  # fmt: skip
        return own(*args, **kwargs)

    trainer._get_grad_norm = keep
    trainer.train()
    return kept, calls


@pytest.mark.slow
@pytest.mark.parametrize(
    "parts",
    [
        "{}",
        "{vision: frozen, projector: frozen, embeddings: frozen, head: frozen}",
        "{language: adapted}",
        "{vision: adapted, projector: trained, language: adapted}",
    ],
    ids=["all", "language", "lora", "lora_twice"],
)
def test_activation_checkpointing_changes_no_gradient(tmp_path, parts):
    parts = (f"modules={parts}", "lora={rank: 4, dropout: 0.0}")[: 1 + ("adapted" in parts)]
    plain, once = first_step(tmp_path / "a", *parts)
    recalculated, calls = first_step(
        tmp_path / "b", *parts, "trainer.activation_checkpointing=true"
    )
    assert once == {"visual": 1, "language_model": 1}
    is_frozen = ("vision" not in parts[0] and "adapted" in parts[0]) or "vision: frozen" in parts[0]
    # Once more in the backward pass, unless autograd needs nothing of a tower.
    assert calls == {"visual": 1 if is_frozen else 2, "language_model": 2}
    assert recalculated.keys() == plain.keys()
    assert plain
    for name, gradient in plain.items():
        torch.testing.assert_close(recalculated[name], gradient, rtol=1e-5, atol=1e-6, msg=name)


def test_flash_attention_that_is_not_there_is_one_sentence():
    with pytest.raises(
        ValueError,
        match=r"^model\.attention: flash_attention_2 needs .* flash-attn and a GPU .* to sdpa",
    ):
        tiny_family().load_model(tiny_checkpoint(), replace(TINY, attention="flash_attention_2"))
    with pytest.raises(ValueError, match=r"attention is one of eager, sdpa, .*, not 'sdpx'"):
        ModelConfig(name="tiny", attention="sdpx")


def test_the_optimiser_is_fused(tmp_path):
    """The default of transformers where torch has the kernel, also on a CPU."""
    assert training_arguments(small_config(tmp_path)).optim == "adamw_torch_fused"
