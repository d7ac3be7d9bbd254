"""The mixin with cross-entropy has the loss and the gradients of a model's own loss.

scripts/test_versions sets MM_NUMERIC_ARCHITECTURES, to try all architectures.
"""

import os

import pytest
import torch
from architectures import ALL, FEW, batch_of, made, trainer_of

pytestmark = pytest.mark.slow

NAMES = ALL if "MM_NUMERIC_ARCHITECTURES" in os.environ else FEW


def gradients(model, loss):
    """Return the gradients of a loss, and clear them."""
    loss.backward()
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return found


@pytest.mark.parametrize("name", NAMES)
def test_the_loss_and_the_gradients_are_those_of_the_model(tmp_path, name):
    model = made(name)
    if model is None:
        pytest.skip("this version of transformers does not have it")
    batch = batch_of(model)
    asked = {"output_router_logits": True} if hasattr(model.config, "output_router_logits") else {}
    try:
        own = model(**batch, **asked).loss  # Switch does not read it from its config
    except (AttributeError, ValueError) as error:
        if "MM_NUMERIC_ARCHITECTURES" not in os.environ:  # with the tested version
            raise
        pytest.skip(f"this version of transformers cannot compute the loss: {error}")
    expected = gradients(model, own)
    loss = trainer_of(model, tmp_path).compute_loss(model, batch)
    torch.testing.assert_close(loss.float(), own, rtol=1e-5, atol=1e-6)
    found = gradients(model, loss)
    assert expected
    assert found.keys() == expected.keys()
    for which, gradient in expected.items():
        torch.testing.assert_close(found[which], gradient, rtol=1e-3, atol=1e-5, msg=which)
