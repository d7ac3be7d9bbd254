"""Frozen vision towers under activation checkpointing: equal gradients for fewer operations."""

from unittest.mock import patch

import pytest
import torch
from sized_rows import check_gradients, gradients, loaded, sized_rows
from torch.utils.flop_counter import FlopCounterMode

from mm_numeric.config.modules import LoraSettings, ModulesConfig, ModuleSettings
from mm_numeric.models.adapters import add_adapters
from mm_numeric.models.parameter_groups import ModelModules
from mm_numeric.training.mixin import stop_gradients_at_frozen_towers

TOWERS = ("visual", "vision_tower", "vision_model")
FROZEN, ADAPTED = ModuleSettings(how="frozen"), ModuleSettings(how="adapted")
DIFFERENTIATED = ["qwen2_vl", "yi_vl", "paligemma", "internvl", "idefics3"]
"""Models whose frozen tower transformers differentiates, one for each class of towers."""

OTHERS = ["qwen3_vl", "florence2", "glm4v"]
"""Models whose tower has no embeddings that transformers finds, or none that it looks for."""


def counted(model, batch, vocabulary):
    """Return the loss and the gradients of a batch, and the operations of the whole step."""
    with FlopCounterMode(display=False) as counter:
        loss, found = gradients(model, batch, vocabulary)
    return loss, found, counter.get_total_flops()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "lora"), [*((name, True) for name in DIFFERENTIATED + OTHERS), ("qwen2_vl", False)]
)
def test_loss_and_gradients_are_those_without_checkpointing(name, lora):
    """The operations are those of a tower that runs without autograd."""
    collator, model = loaded(name)
    batch, vocabulary = collator(sized_rows()[:2]), collator.vocabulary
    settings = {"vision": FROZEN, "projector": FROZEN, "language": ADAPTED if lora else None}
    modules = ModelModules(collator.family, ModulesConfig(**settings), 1e-3, "mine")
    tower = next(m for n, m in model.named_modules() if n.endswith(TOWERS))
    if lora:
        model = add_adapters(model, modules, LoraSettings(rank=4), "tiny", "main")
        for parameter_name, parameter in model.named_parameters():
            if "lora_B" in parameter_name:
                torch.nn.init.normal_(parameter, std=0.1)
    modules.freeze(model)
    model.train()
    plain, wanted = gradients(model, batch, vocabulary)
    for _ in range(2):  # as PEFT or TRL, and then Trainer
        model.activation_checkpointing_enable({"use_reentrant": False})
    before = counted(model, batch, vocabulary)[-1]
    with patch.object(tower, "forward", torch.no_grad()(tower.forward)):
        without_autograd = counted(model, batch, vocabulary)[-1]
    stop_gradients_at_frozen_towers(model)
    loss, found, operations = counted(model, batch, vocabulary)
    assert torch.equal(loss, plain)
    check_gradients(found, wanted)
    assert operations == without_autograd
    assert (operations < before) == (name in DIFFERENTIATED)


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_tower_with_trained_layers_gets_its_gradients(reentrant):
    """Reentrant checkpointing loses those of adapters whose inputs need no gradient."""
    collator, model = loaded("qwen2_vl")
    batch, vocabulary = collator(sized_rows()[:2]), collator.vocabulary
    modules = ModelModules(collator.family, ModulesConfig(vision=ADAPTED), 1e-3, "mine")
    model = add_adapters(model, modules, LoraSettings(rank=4), "tiny", "main")
    modules.freeze(model)
    model.train()
    loss, wanted = gradients(model, batch, vocabulary)
    assert {"visual" in name for name in wanted} == {True}
    model.activation_checkpointing_enable({"use_reentrant": reentrant})
    stop_gradients_at_frozen_towers(model)
    same, found = gradients(model, batch, vocabulary)
    assert torch.equal(same, loss)
    check_gradients(found, wanted)
