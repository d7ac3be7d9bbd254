"""Frozen vision towers under activation checkpointing: no gradient is computed in them."""

from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from mm_numeric.compat import remove_input_gradient_hooks


def stop_gradients_at_frozen_towers(model: nn.Module) -> None:
    """Let autograd skip the vision towers whose layers are all frozen.

    With activation checkpointing, transformers makes the outputs of all embeddings require
    gradients, because reentrant checkpointing of adapted layers needs an input that does. The
    embeddings of patches are among them, so that a frozen tower is computed again in the backward
    pass and differentiated, for gradients that nothing uses. Text embeddings keep their hooks.
    Call this after activation checkpointing was enabled.
    """
    for tower in model.modules():
        if not isinstance(tower, PreTrainedModel):
            continue
        try:
            embeddings = tower.get_input_embeddings()
        except NotImplementedError:
            continue  # of which transformers finds no embeddings either
        layers = [m for m in tower.modules() if isinstance(m, GradientCheckpointingLayer)]
        is_trained = any(p.requires_grad for layer in layers or [tower] for p in layer.parameters())
        if isinstance(embeddings, nn.Module) and not (
            isinstance(embeddings, nn.Embedding) or is_trained
        ):
            remove_input_gradient_hooks(embeddings)
