"""Weights of tokens and samples, and counts of micro-batches."""

from dataclasses import replace

import pytest
import torch
from objective_steps import made
from tokens import SIZE, batch, labels_of

from mm_numeric import step_counts
from mm_numeric.losses.spec import ObjectiveSpec, TermSpec


@pytest.mark.parametrize("shift", [False, True])
@pytest.mark.parametrize("name", ["ce", "ntl_was", "ntil_soft", "gce", "ntil"])
def test_weighted_means(name, shift):
    """A weight of 0 leaves a sample out, and 2 counts it twice; a constant changes nothing."""
    logits, labels = batch(1)
    loss = made(name)
    samples = torch.arange(len(labels)) % 3
    chosen = torch.arange(len(labels)).repeat_interleave(samples)
    expected = loss(logits[chosen], labels[chosen], shift=shift).loss
    for weights in (samples.double(), samples[:, None].expand(labels.shape).double()):
        found = loss(logits, labels, shift=shift, weights=weights).loss
        torch.testing.assert_close(found, expected)
        head = torch.eye(logits.shape[-1]).to(logits)
        torch.testing.assert_close(
            loss.from_hidden(logits, head, labels, shift=shift, weights=weights).loss, expected
        )
        torch.testing.assert_close(
            loss(logits, labels, shift=shift, weights=0.1 * weights).loss, expected
        )
    plain = loss(logits, labels, shift=shift).loss
    tenth = torch.full(labels.shape, 0.1, dtype=torch.float64)
    torch.testing.assert_close(loss(logits, labels, shift=shift, weights=tenth).loss, plain)
    zero = loss(logits, labels, shift=shift, weights=0 * tenth).loss
    assert zero == 0


@pytest.mark.parametrize("shift", [False, True])
def test_weights_of_micro_batches(shift):
    logits, labels = batch(2)
    weights = torch.rand(labels.shape, generator=torch.Generator().manual_seed(0)).double()
    loss = made("ntil_soft")
    whole = loss(logits, labels, shift=shift, weights=weights).loss
    pieces = [slice(0, 1), slice(1, len(labels))]
    counts = step_counts(
        loss, [labels[p] for p in pieces], shift=shift, weights=[weights[p] for p in pieces]
    )
    found = sum(
        loss(logits[p], labels[p], shift=shift, weights=weights[p], counts=counts).loss
        for p in pieces
    )
    torch.testing.assert_close(found, whole)


@pytest.mark.parametrize("is_weighted", [False, True])
def test_spans_of_micro_batches(is_weighted):
    """The first row is two documents, x12 and 34: labels alone have one number less."""
    labels = labels_of("x1234", "x5.67", "ab 89")
    documents = torch.tensor([[0, 0, 0, 1, 1], [0] * 5, [0] * 5])
    source = torch.Generator().manual_seed(0)
    logits = torch.randn(*labels.shape, SIZE, generator=source).double()
    weights = torch.rand(labels.shape, generator=source).double() if is_weighted else None
    loss = made("nl_ntl")
    whole = loss(logits, labels, loss.spans(labels, documents), shift=False, weights=weights).loss
    pieces = [slice(0, 1), slice(1, 3)]
    spans = [replace(loss.spans(labels[p], documents[p]), supervised=None) for p in pieces]
    own = [None if weights is None else weights[p] for p in pieces]
    counts = step_counts(
        loss,
        [labels[p] for p in pieces],
        shift=False,
        weights=own if is_weighted else None,
        spans=spans,
    )
    found = sum(
        loss(logits[p], labels[p], one, shift=False, weights=w, counts=counts).loss
        for p, one, w in zip(pieces, spans, own, strict=True)
    )
    torch.testing.assert_close(found, whole)
    with pytest.raises(ValueError, match="1 micro-batches have labels, and 2 spans"):
        step_counts(loss, [labels], shift=False, spans=spans)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (torch.ones(2, 3), r"weights must be floats of shape \[2, 4\] \(per token\) or \[2\]"),
        (torch.ones(2, 4).long(), "weights must be floats"),
        (torch.tensor([1.0, -1.0]), "at least 0 and finite; the smallest is -1"),
        (torch.tensor([1.0, torch.nan]), "at least 0 and finite"),
    ],
)
def test_weights_that_are_rejected(weights, message):
    labels = labels_of("12 x", "9.3x")
    logits = torch.zeros(2, 4, 22)
    with pytest.raises(ValueError, match=message):
        made("ntl_was")(logits, labels, shift=False, weights=weights)


def test_weights_do_not_go_with_means_of_samples():
    logits, labels = batch(0)
    spec = ObjectiveSpec(terms=(TermSpec(name="emd"),), reduction="samples")
    with pytest.raises(ValueError, match="weights cannot be combined with reduction: samples"):
        made(spec)(logits, labels, shift=False, weights=torch.ones(len(labels)).double())
