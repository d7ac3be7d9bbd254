"""The losses on the device of this process in float32, and on the CPU in float64."""

from contextlib import contextmanager
from functools import partial

import pytest
import simulated_device
import torch
from objective_steps import EACH_OF_LABELS as EACH
from objective_steps import OF_LABELS as SPECS
from tokens import SIZE, VOCABULARY, batch

from mm_numeric.losses.numeric_loss import NumericLoss
from mm_numeric.models.loading import device_type
from mm_numeric.numbers.spans import IGNORE_INDEX
from mm_numeric.training.integrations import step_counts

pytestmark = pytest.mark.device
WIDTH = 16


def inputs_of(form, dtype, device):
    """Return the tensors that get a gradient, the labels and their spans, made from one seed."""
    logits, labels = batch(1)
    supervised = labels != IGNORE_INDEX
    spans = NumericLoss("ce", vocabulary=VOCABULARY).spans(labels).to(device)
    source = torch.Generator().manual_seed(0)
    if form == "logits":
        leaves = [logits[supervised]]
    elif form == "hidden":
        hidden = torch.randn(int(supervised.sum()), WIDTH, generator=source, dtype=torch.float64)
        head = torch.randn(SIZE, WIDTH, generator=source, dtype=torch.float64)
        leaves = [hidden, head]
    else:
        leaves = [logits]
    leaves = [leaf.to(device, dtype).requires_grad_() for leaf in leaves]
    labels = labels if form == "all logits" else labels[supervised]
    return leaves, labels.to(device), spans


def step(name, form, dtype, device):
    """Return the loss of a preset and its gradients, on the CPU in float64."""
    leaves, labels, spans = inputs_of(form, dtype, device)
    made = NumericLoss(SPECS[name], vocabulary=VOCABULARY)
    if form == "hidden":
        result = made.from_hidden(*leaves, labels, spans)
    else:
        result = made(*leaves, labels, spans, shift=False)
    result.loss.backward()
    return [tensor.detach().cpu().double() for tensor in (result.loss, *(x.grad for x in leaves))]


NOISY = {
    name for name, spec in SPECS.items() if any("noise_scale" in t.options for t in spec.terms)
}


@pytest.mark.parametrize("form", ["logits", "all logits", "hidden"])
@pytest.mark.parametrize("name", sorted(SPECS.keys() - NOISY))
def test_float32_on_the_device_equals_float64_on_the_cpu(name, form):
    found = step(name, form, torch.float32, device_type())
    wanted = step(name, form, torch.float64, "cpu")
    for one, other in zip(found, wanted, strict=True):
        # The gradients of its squared errors are large, and cancel.
        atol = 1e-5 if name == "raft" else 1e-6
        torch.testing.assert_close(one, other, rtol=1e-4, atol=atol)


def test_weighted_counts_on_the_device_are_those_on_the_cpu():
    loss_of, (_, labels) = NumericLoss("ce", vocabulary=VOCABULARY), batch(1)
    weights = torch.rand(labels.shape, generator=torch.Generator().manual_seed(0))
    wanted, found = (
        step_counts(loss_of, [labels.to(device)], shift=False, weights=[weights.to(device)])
        for device in ("cpu", device_type())
    )
    for one, other in zip(found[:6], wanted[:6], strict=True):
        torch.testing.assert_close(one.cpu(), other)


@contextmanager
def never_waiting():
    """Raise an error if the host waits for the device."""
    if device_type() == simulated_device.NAME:
        with simulated_device.record() as costs:
            yield
        assert not costs.waits
        assert not costs.uploads
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.skipif(device_type() == "cpu", reason="a CPU has nothing to wait for")
@pytest.mark.parametrize("form", ["logits", "all logits", "hidden"])
@pytest.mark.parametrize("name", EACH)
def test_a_step_never_waits_for_the_device(name, form):
    leaves, labels, spans = inputs_of(form, torch.float32, device_type())
    made = NumericLoss(SPECS[name], vocabulary=VOCABULARY)
    call = made.from_hidden if form == "hidden" else partial(made, shift=False)
    call(*leaves, labels, spans).loss.backward()  # the tables are copied to the device once
    with never_waiting():
        call(*leaves, labels, spans, metrics=True).loss.backward()
