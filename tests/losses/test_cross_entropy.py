"""Cross-entropy with the number scores in the same pass, against torch's own."""

import pytest
import torch
from torch.nn import functional

from mm_numeric.losses import cross_entropy
from mm_numeric.losses.cross_entropy import cross_entropy_with_numbers

VOCABULARY = 24
NUMBER_IDS = torch.tensor([7, 2, 19, 0])
NUMBER_ROWS = torch.tensor([4, 0, 6])
NO_ROWS = torch.zeros(0, dtype=torch.long)


def rows_and_labels(count=7, dtype=torch.float64, known=0.0):
    """Return logits [n, v] that know the label by so much, and labels [n], three of them digits."""
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(count, VOCABULARY, generator=generator, dtype=torch.float64)
    labels = torch.randint(VOCABULARY, (count,), generator=generator)
    if count > 6:
        labels[NUMBER_ROWS] = NUMBER_IDS[:3]
    logits[torch.arange(count), labels] += known
    return logits.to(dtype), labels


def gradient(logits, loss):
    """Return the gradient of a loss in the logits, float64."""
    leaf = logits.detach().clone().requires_grad_()
    loss(leaf).backward()
    return leaf.grad.double()


def ours(labels, number_rows=NO_ROWS, rows=None):
    """Return the summed loss as a function of the logits."""
    return lambda z: (
        cross_entropy_with_numbers(z, labels, number_rows, NUMBER_IDS, rows)[0].float().sum()
    )


@pytest.mark.slow
@pytest.mark.parametrize("rows", [None, torch.tensor([8, 1, 2, 5, 3, 0, 6])])
def test_gradcheck(rows):
    logits, labels = rows_and_labels(7)
    if rows is not None:
        logits = rows_and_labels(9)[0]
    logits.requires_grad_()
    assert torch.autograd.gradcheck(
        lambda z: cross_entropy_with_numbers(z, labels, NUMBER_ROWS, NUMBER_IDS, rows)[:3], logits
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equals_torch(dtype):
    logits, labels = rows_and_labels(dtype=dtype)
    losses, number_logits, normaliser, _ = cross_entropy_with_numbers(
        logits, labels, NUMBER_ROWS, NUMBER_IDS
    )
    exact = {"rtol": 0, "atol": 0}
    torch.testing.assert_close(losses, functional.cross_entropy(logits, labels, reduction="none"))
    torch.testing.assert_close(number_logits, logits[NUMBER_ROWS][:, NUMBER_IDS], **exact)
    torch.testing.assert_close(normaliser, logits[NUMBER_ROWS].logsumexp(-1), **exact)
    weights = torch.linspace(0.5, 2, len(labels), dtype=dtype)  # so that no row's scale is lost
    torch.testing.assert_close(
        gradient(
            logits,
            lambda z: weights @ cross_entropy_with_numbers(z, labels, NUMBER_ROWS, NUMBER_IDS)[0],
        ),
        gradient(logits, lambda z: weights @ functional.cross_entropy(z, labels, reduction="none")),
    )


@pytest.mark.parametrize("known", [0.0, 6.0, 10.0, 14.0])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_rounded_once(dtype, known):
    """The error to float64 stays below one rounding, and below that of torch in the same dtype.

    A gradient rounded after the softmax and again after the label was taken off would lose what a
    confident row still has to learn.
    """
    logits, labels = rows_and_labels(dtype=dtype, known=known)
    expected = gradient(logits.double(), lambda z: functional.cross_entropy(z, labels).mul(7))
    found = gradient(logits, ours(labels, NUMBER_ROWS))
    torch_own = gradient(
        logits, lambda z: functional.cross_entropy(z, labels, reduction="none").float().sum()
    )
    # Half a unit in the last place is eps / 2; 5e-7 is what float32 leaves of p - 1 near p = 1.
    torch.testing.assert_close(found, expected, rtol=torch.finfo(dtype).eps / 1.9, atol=5e-7)
    assert (found - expected).norm() <= (torch_own - expected).norm() * 1.1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_losses_are_those_of_float32(dtype):
    logits, labels = rows_and_labels(dtype=dtype)
    losses = cross_entropy_with_numbers(logits, labels, NUMBER_ROWS, NUMBER_IDS)[0]
    assert losses.dtype == torch.float32
    expected = functional.cross_entropy(logits.float(), labels, reduction="none")
    torch.testing.assert_close(losses, expected)


def test_the_gradients_of_all_three_results_meet_before_they_are_rounded():
    """Cross-entropy and the numeric gradient nearly cancel at one place in bf16."""
    logits, labels = rows_and_labels(dtype=torch.bfloat16, known=10.0)

    def loss(z):
        losses, scores, normaliser, _ = cross_entropy_with_numbers(
            z, labels, NUMBER_ROWS, NUMBER_IDS
        )
        return losses.sum() + 1.003 * (normaliser.sum() - scores[range(3), range(3)].sum())

    found = gradient(logits, lambda z: 0.3 * loss(z))
    expected = gradient(logits.double(), lambda z: 0.3 * loss(z))
    torch.testing.assert_close(found, expected, rtol=2**-8, atol=1e-7)


@pytest.mark.parametrize("elements", [1, VOCABULARY, 3 * VOCABULARY + 5, 7 * VOCABULARY, 10**6])
@pytest.mark.parametrize("with_rows", [False, True])
def test_pieces_make_no_difference(monkeypatch, elements, with_rows):
    logits, labels = rows_and_labels()
    rows = torch.tensor([0, 2, 3, 6]) if with_rows else None
    labels = labels[rows] if with_rows else labels
    number_rows = torch.tensor([3, 0])

    def loss(z):
        losses, scores, normaliser, _ = cross_entropy_with_numbers(
            z, labels, number_rows, NUMBER_IDS, rows
        )
        return losses.square().sum() + scores.sin().sum() + normaliser.square().sum()

    def plain(z):
        taken = z if rows is None else z[rows]
        numbers = taken[number_rows]
        losses = functional.cross_entropy(taken, labels, reduction="none")
        return (
            losses.square().sum()
            + numbers[:, NUMBER_IDS].sin().sum()
            + numbers.logsumexp(-1).square().sum()
        )

    monkeypatch.setattr(cross_entropy, "_CPU_CHUNK", elements)
    torch.testing.assert_close(loss(logits), plain(logits))
    torch.testing.assert_close(gradient(logits, loss), gradient(logits, plain))


def test_rows_without_a_label_get_no_gradient():
    logits, labels = rows_and_labels()
    rows = torch.tensor([1, 4])
    found = gradient(logits, ours(labels[rows], torch.tensor([1]), rows))
    assert not found[[0, 2, 3, 5, 6]].any()
    assert found[rows].any(dim=1).all()


@pytest.mark.parametrize("rows", [None, NO_ROWS])
def test_no_rows_at_all(rows):
    logits = torch.zeros(0 if rows is None else 5, VOCABULARY)
    found = gradient(logits, ours(NO_ROWS, NO_ROWS, rows))
    assert found.shape == logits.shape
    assert not found.any()


def test_logits_that_are_not_contiguous():
    logits, labels = rows_and_labels(14)
    rows = torch.tensor([1, 0, 5])
    for view in (logits[::2], logits[:7].T.contiguous().T):
        torch.testing.assert_close(
            gradient(view, ours(labels[rows], NO_ROWS, rows)),
            gradient(view, lambda z: functional.cross_entropy(z[rows], labels[rows]).mul(3)),
            rtol=1e-6,
            atol=1e-6,
        )
