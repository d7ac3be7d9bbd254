"""The simulated device computes what the CPU does, and finds mistakes that are made on purpose."""

import pytest
import simulated_device
import torch
from simulated_device import NAME, record
from tokens import SIZE, VOCABULARY, batch
from torch.nn.functional import conv2d, layer_norm, scaled_dot_product_attention

from mm_numeric.losses.numeric_loss import Balance, NumericLoss
from mm_numeric.losses.terms.expected_distance import ExpectedDistance
from mm_numeric.numbers.spans import shifted

pytestmark = [
    pytest.mark.device,
    pytest.mark.skipif(not simulated_device.is_installed(), reason="needs --simulated-device"),
]


def loss_and_inputs():
    """Return an objective that has been called once, and its inputs on the device."""
    logits, labels = batch(1, torch.float32)
    made = NumericLoss("ntl_was", vocabulary=VOCABULARY)
    inputs = {
        "logits": logits.to(NAME).requires_grad_(),
        "labels": labels.to(NAME),
        "spans": made.spans(shifted(labels)).to(NAME),
        "shift": True,
    }
    made(**inputs)  # copies its tables
    return made, inputs


def test_a_step_costs_kernels_alone():
    made, inputs = loss_and_inputs()
    with record() as costs:
        made(**inputs).loss.backward()
    assert not costs.waits
    assert not costs.uploads
    assert costs.kernels["_softmax"] == costs.kernels["_softmax_backward_data"] == 1


# -- mistakes -------------------------------------------------------------------------------------


def test_labels_on_the_cpu_raise():
    made, inputs = loss_and_inputs()
    with pytest.raises(RuntimeError, match="on the same device"):
        made(**{**inputs, "labels": inputs["labels"].cpu()})


def test_spans_on_the_cpu_are_uploads():
    """They are indices, which torch copies to the device."""
    made, inputs = loss_and_inputs()
    with record() as costs:
        made(**{**inputs, "spans": inputs["spans"].to("cpu")})
    assert costs.uploads
    assert all(cause.startswith("blocking ") for cause in costs.uploads)


def test_a_table_on_the_cpu_raises(monkeypatch):
    made, inputs = loss_and_inputs()
    ids, classes = made._table(inputs["logits"], SIZE)
    monkeypatch.setattr(made, "_table", lambda *_: (ids.cpu(), classes))
    with pytest.raises(RuntimeError, match="on the same device"):
        made(**inputs)


def test_a_value_that_is_read_is_a_wait(monkeypatch):
    made, inputs = loss_and_inputs()
    total = Balance.total

    def reading(self, *arguments):
        loss = total(self, *arguments)
        float(loss.detach())
        return loss

    monkeypatch.setattr(Balance, "total", reading)
    with record() as costs:
        made(**inputs)
    (cause,) = costs.waits
    assert cause.startswith(".item() losses/numeric_loss.py:")
    assert "test_simulated_device.py" in cause


def test_a_mask_as_an_index_is_a_wait():
    values = torch.randn(4, 3, device=NAME)
    for change in (
        lambda: values[values > 0],
        lambda: values.index_put_((values > 0,), values[0, :1].expand(int((values > 0).sum()))),
        lambda: values.repeat_interleave(torch.tensor([1, 2, 0, 1], device=NAME), dim=0),
    ):
        with record() as costs:
            change()
        assert costs.waits, change
    with record() as costs:
        values[values > 0] = 1.0
        values.repeat_interleave(2, dim=0)
    assert not costs.waits


def test_a_tensor_that_is_made_at_each_call_is_an_upload(monkeypatch):
    made, inputs = loss_and_inputs()
    call = ExpectedDistance.__call__

    def uploading(self, numbers, spans):
        return call(self, numbers, spans) * torch.tensor([2.0]).to(numbers.logits)

    monkeypatch.setattr(ExpectedDistance, "__call__", uploading)
    with record() as costs:
        made(**inputs)
    (cause,) = costs.uploads
    assert cause.startswith("blocking losses/normalization.py:")


def test_pinned_memory_is_uploaded_without_blocking():
    ordinary, pinned = torch.ones(3), torch.ones(3).pin_memory()
    with record() as costs:
        for tensor in (ordinary, pinned):
            for non_blocking in (False, True):
                tensor.to(NAME, non_blocking=non_blocking)
        on_device = torch.ones(3, device=NAME)
        on_device[torch.tensor([0])] = on_device[torch.tensor([1])]  # the indices are uploaded, too
    kinds = [cause.startswith("non-blocking ") for cause in costs.uploads.elements()]
    assert sorted(kinds) == [False] * 5 + [True]
    assert not costs.waits


def test_what_cuda_lacks_raises():
    whole = torch.ones(2, 2, dtype=torch.long, device=NAME)
    with pytest.raises(RuntimeError, match="mm is not implemented"):
        whole @ whole
    torch.use_deterministic_algorithms(True)
    try:
        assert whole.cumsum(0)[1, 0].item() == 2
        with pytest.raises(RuntimeError, match="cumsum does not have a deterministic"):
            whole.float().cumsum(0)
    finally:
        torch.use_deterministic_algorithms(False)


# -- values ---------------------------------------------------------------------------------------


def computed(device):
    """Return values and gradients of operators of several kinds."""
    source = torch.Generator().manual_seed(0)
    sizes = (2, 3, 8, 8), (4, 3, 2, 2), (4,)
    image, kernel, bias = leaves = [
        torch.randn(size, generator=source, dtype=torch.float64).to(device).requires_grad_()
        for size in sizes
    ]
    found = conv2d(image, kernel, bias, stride=2).flatten(2).mT
    found = scaled_dot_product_attention(*found.chunk(2, dim=-1), found[..., :2])
    found = layer_norm(found, found.shape[1:]).unfold(1, 2, 3)[..., 1:]
    found[:, 0] *= 2  # through a view
    sorted_values, order = found.flatten().sort(stable=True)
    loss = (sorted_values.cumsum(0) * torch.arange(len(order), device=device)).sum()
    loss.backward()
    total = torch.empty(0, device=device)
    torch.add(order, 1.5, out=total)  # which is resized
    scattered = torch.zeros_like(bias).index_add(0, order % 4, sorted_values.detach())
    return [loss, total, scattered, order, *(leaf.grad for leaf in leaves)]


def test_values_and_gradients_are_those_of_the_cpu():
    for found, wanted in zip(computed(NAME), computed("cpu"), strict=True):
        assert found.device.type == NAME
        torch.testing.assert_close(found.detach().cpu(), wanted.detach())


def test_an_optimiser_changes_tied_weights_of_a_module():
    module = torch.nn.Sequential(torch.nn.Embedding(5, 5), torch.nn.Linear(5, 5, bias=False))
    module[1].weight = module[0].weight
    module.to(NAME)
    assert module[1].weight is module[0].weight
    before = module[0].weight.detach().cpu()
    optimiser = torch.optim.AdamW(module.parameters(), lr=0.1)
    module(torch.tensor([[1, 2]], device=NAME)).sum().backward()
    with record() as costs:
        optimiser.step()
    assert (module[0].weight.detach().cpu() - before).abs().max() > 0.05
    assert not costs.waits
    assert sum(costs.kernels[name] for name in costs.kernels if "foreach" in name) > 5
