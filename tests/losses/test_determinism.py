"""``trainer.full_determinism``: torch rejects some operations on CUDA then."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mm_numeric.inference.candidates import draw
from mm_numeric.losses.numeric_loss import NumericLoss
from mm_numeric.losses.term import cumulative_sum
from mm_numeric.numbers.vocabulary import NumberToken, NumberVocabulary

DIGITS = NumberVocabulary(
    tuple(NumberToken(i, float(i), "0", str(i)) for i in range(10)), {i: str(i) for i in range(10)}
)


class _AsOnCuda(TorchDispatchMode):
    """Rejects on the CPU what ``torch.use_deterministic_algorithms`` rejects on CUDA."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name, kwargs = func.name(), kwargs or {}
        is_float = bool(args) and isinstance(args[0], torch.Tensor) and args[0].is_floating_point()
        weighted = len(args) > 1 or kwargs.get("weights") is not None
        if (
            (name.startswith("aten::cumsum") and is_float)
            or name.startswith("aten::nll_loss2d")
            or (name.startswith("aten::bincount") and weighted)
        ):
            raise RuntimeError(f"{name} has no deterministic implementation")
        return func(*args, **kwargs)


@pytest.fixture(autouse=True)
def deterministic():
    torch.use_deterministic_algorithms(True)
    with _AsOnCuda():
        yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("term", ["ntl_was_cdf", "rps"])
def test_losses_of_cumulative_probabilities(term):
    logits = torch.randn(1, 4, 10, requires_grad=True)
    labels = torch.tensor([[1, 2, 3, 4]])
    loss_of = NumericLoss({"terms": [{"name": term}]}, vocabulary=DIGITS)
    loss_of(logits, labels, shift=True).loss.backward()
    assert logits.grad.isfinite().all()


def test_drawn_tokens():
    scores = torch.tensor([[0.0, 0.0, -torch.inf, 0.0]])
    drawn = draw(scores, torch.tensor([[0.1, 0.5, 0.9]], dtype=torch.float64))
    assert drawn.tolist() == [[0, 1, 3]]


@pytest.mark.parametrize("length", [1, 2, 7, 64, 1110])
def test_cumulative_sums(length):
    values = torch.arange(2 * length).reshape(2, length).double()
    expected = [[sum(row[: i + 1]) for i in range(length)] for row in values.tolist()]
    assert cumulative_sum(values).tolist() == expected
