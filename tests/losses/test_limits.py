"""Logits of -inf, and calls that an objective does not support: each is one sentence."""

import pytest
import torch
from objective_steps import OF_LABELS as PRESETS
from tokens import TOKENIZER, VOCABULARY, batch, labels_of

from mm_numeric.losses.objective import objective
from mm_numeric.numbers.spans import IGNORE_INDEX

SOFT_TARGETS = ("gce", "gce+ntl_was", "dist2")  # infinite where the target has some probability


@pytest.mark.parametrize("name", [name for name in PRESETS if name not in SOFT_TARGETS])
def test_a_masked_token_is_no_nan(name):
    """Another digit has a logit of -inf: loss and gradient are those of a logit of -1e9."""
    labels = labels_of("_407 x", "_9.3")
    rows = (labels != IGNORE_INDEX).nonzero().tolist()
    found = []
    for masked in (-1e9, -torch.inf):
        generator = torch.Generator().manual_seed(0)
        logits = torch.randn(*labels.shape, 22, generator=generator, dtype=torch.float64)
        logits[..., TOKENIZER.vocabulary["5"]] = masked
        torch.manual_seed(0)  # of the noise of ntil_published
        leaf = logits.requires_grad_()
        loss = objective(name, VOCABULARY)(leaf, labels, shift=False).loss
        loss.backward()
        found.append((loss.detach(), leaf.grad))
    assert rows
    assert found[1][0].isfinite()
    torch.testing.assert_close(*found)


def test_trainer_is_told_of_loss_func():
    """Trainer calls a compute_loss_func with outputs, labels and num_items_in_batch."""
    transformers = pytest.importorskip("transformers")
    logits, labels = batch(0)
    outputs = transformers.modeling_outputs.CausalLMOutput(logits=logits)
    for items in (None, torch.tensor(12)):
        with pytest.raises(ValueError, match=r"loss_func\(objective, shift="):
            objective("ntl_was", VOCABULARY)(outputs, labels, num_items_in_batch=items)


def test_transforms_of_torch_func_are_refused():
    logits, labels = batch(0)
    made = objective("ntl_was", VOCABULARY)

    def loss(z):
        return made(z, labels, shift=False).loss

    hidden = torch.func.grad(
        lambda z: made.from_hidden(z, torch.eye(22).double(), labels, shift=False).loss
    )
    for transform in (torch.func.grad(loss), hidden):
        with pytest.raises(ValueError, match=r"does not support torch\.func .* loss\.backward\(\)"):
            transform(logits)
    with pytest.raises(ValueError, match=r"does not support torch\.func"):
        torch.func.vmap(lambda z, y: made(z[None], y[None], shift=False).loss)(logits, labels)


def test_second_derivatives_are_refused():
    logits, labels = batch(0)
    leaf = logits.requires_grad_()
    loss = objective("ntl_was", VOCABULARY)(leaf, labels, shift=False).loss
    (first,) = torch.autograd.grad(loss, leaf, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        first.square().sum().backward()
