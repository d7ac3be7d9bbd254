"""The losses on the device of this process in float32, and on the CPU in float64."""

import re
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace

import pytest
import simulated_device
import tiny_integrations as jobs
import torch
from import_graph import ROOT
from objective_steps import EACH, SPECS
from step_costs import LOGGED, ORDINARY, recorded_steps
from tokens import SIZE, VOCABULARY, batch
from transformers import Trainer

from mm_numeric.losses.numeric_loss import NumericLoss
from mm_numeric.models.loading import device_type
from mm_numeric.numbers.spans import IGNORE_INDEX
from mm_numeric.training.integrations import loss_func, step_counts

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


PAGE = ROOT / "docs" / "losses" / "cost.md"
TABLE = re.findall(
    r"^\| (`.+?|the .+?) \| (\d+)", PAGE.read_text("utf-8").partition("| call | waits |")[2], re.M
)
"""How often each call waits for a GPU, as the documentation says."""

simulated = pytest.mark.skipif(
    not simulated_device.is_installed(), reason="needs --simulated-device"
)


def documented_calls(name):
    """Return the calls of each row of the table, but for the last."""
    loss_of = NumericLoss(SPECS[name], vocabulary=VOCABULARY)
    (logits,), labels, spans = inputs_of("all logits", torch.float32, device_type())
    hidden, supervised, own = inputs_of("hidden", torch.float32, device_type())
    outputs, on_cpu = SimpleNamespace(logits=logits), labels.cpu()
    function = loss_func(loss_of, shift=False)
    return [
        [
            lambda: loss_of(logits, labels, spans, shift=False).loss.backward(),
            lambda: loss_of.from_hidden(*hidden, supervised, own).loss.backward(),
            lambda: step_counts(loss_of, [labels], shift=False, spans=[spans]),
        ],
        [
            lambda: loss_of(logits, labels, shift=False).loss.backward(),
            lambda: step_counts(loss_of, [labels], shift=False),
        ],
        [lambda: step_counts(loss_of, [on_cpu], shift=False)],
        [lambda: function(outputs, labels, 9).backward()],
    ]


def waits_of(call):
    call()  # the tables are copied to the device once
    with simulated_device.record() as costs:
        call()
    return costs.totals()["waits"]


@simulated
@pytest.mark.parametrize("name", EACH)
def test_calls_wait_as_often_as_the_documentation_says(name):
    found = [[waits_of(call) for call in calls] for calls in documented_calls(name)]
    wanted = [int(waits) for _, waits in TABLE]
    assert found == [[n] * len(own) for n, own in zip(wanted[:-1], found, strict=True)]


@simulated
def test_the_mixin_waits_once_more_than_the_trainer(tmp_path):
    """Without ``collate_with_spans``."""
    found, changes = [], {"use_cpu": False, "logging_steps": LOGGED}
    options = {"objective": "ntil", "processing_class": jobs.TOKENIZER}
    for cls, own in ((jobs.NumericTrainerForTests, options), (Trainer, {})):
        with recorded_steps() as steps:
            jobs.by_trainer(tmp_path, cls, changes=changes, **own)
        found.append(steps[ORDINARY - 1].totals()["waits"])
    assert "NumericLossMixin" in TABLE[-1][0]
    assert found[0] - found[1] == int(TABLE[-1][1])
