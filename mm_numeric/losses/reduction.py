"""Loss weights and loss values of single tokens, numbers, boxes and times, before averaging.

Axes    b samples, t positions, n supervised positions (those with a label), k labels that are
        number tokens, m numbers, q boxes, r clock times
"""

import torch
from torch import Tensor

from mm_numeric.answers import ROLES
from mm_numeric.losses.place_weights import sum_by_number
from mm_numeric.losses.spec import TermSpec
from mm_numeric.losses.term import NumberLogits, Term
from mm_numeric.numbers.spans import NumberSpans, shifted


def supervised_weights(
    weights: Tensor, labels: Tensor, shift: bool | None, supervised: Tensor | None
) -> Tensor:
    """Return the loss weight of each supervised position, [n].

    Args:
        weights: [b, t] or [b] for labels [b, t]; [n] for labels [n]. At least 0.
        labels: The labels that the caller passed to the objective, before shifting.
        shift: True if the labels are to be shifted by one. Their weights are shifted with them.
        supervised: [n] index of each supervised position in the flattened labels; None for
            labels [n].
    """
    per_sample = labels.dim() == 2 and weights.shape == labels.shape[:1]
    if not weights.is_floating_point() or not (per_sample or weights.shape == labels.shape):
        raise ValueError(
            f"weights must be floats of shape {list(labels.shape)} (per token)"
            f"{f' or {list(labels.shape[:1])} (per sample)' if labels.dim() == 2 else ''}, not "
            f"{weights.dtype} {list(weights.shape)}."
        )
    valid = ((weights >= 0) & weights.isfinite()).all()
    if weights.device.type != "cpu" or torch.compiler.is_compiling():
        torch._assert_async(valid, "weights are at least 0 and finite")
    elif not valid:
        raise ValueError(f"weights must be at least 0 and finite; the smallest is {weights.min()}.")
    if labels.dim() == 1:
        return weights
    if per_sample:
        weights = weights[:, None].expand(labels.shape)
    elif shift:
        weights = shifted(weights)
    return weights.flatten() if supervised is None else weights.flatten()[supervised]


def item_weights(weights: Tensor, per: str, spans: NumberSpans) -> Tensor:
    """Return the loss weight of each number token, number, box or clock time.

    ``weights`` [n] are the weights of the supervised tokens, and ``per`` is ``Term.per``. A number
    has the mean weight of its tokens, and a box or time the mean weight of its numbers.
    """
    tokens = weights[spans.position]
    if per in ("supervised", "token"):
        return tokens
    numbers = sum_by_number(tokens, spans) / _tokens_of_numbers(spans).to(weights)
    if per == "number":
        return numbers
    return numbers[spans.boxes if per == "box" else spans.times].mean(dim=1)


def term_losses(spec: TermSpec, term: Term, numbers: NumberLogits, spans: NumberSpans) -> Tensor:
    """Return the values of one numeric loss in a batch, before they are averaged.

    There is one value per number token, number, box or clock time, depending on the loss. It is
    multiplied by the weight of the number's role, such as x coordinate or hour.
    """
    losses = term(numbers, spans)
    sizes = {"token": len(spans.target), "number": len(spans.value)}
    if losses.dim() != 1 or len(losses) != sizes.get(term.per, len(losses)):
        raise ValueError(
            f"loss term {spec.name}: it returned a tensor of shape {list(losses.shape)}; "
            f"return one loss for each {term.per}, not their sum or mean."
        )
    if spec.roles:
        weights = torch.tensor([spec.roles.get(role, 1.0) for role in ROLES])
        weights = weights.to(losses, non_blocking=True)
        role = spans.role if term.per == "number" else spans.role[spans.number]
        losses = losses * weights[role]
    return losses


def at_tokens(losses: Tensor, per: str, spans: NumberSpans) -> Tensor:
    """Distribute losses of numbers, boxes or times evenly over their number tokens, [k].

    The sum stays the same. Losses of tokens are returned as they are.
    """
    if per in ("supervised", "token"):
        return losses
    if per != "number":
        members = spans.boxes if per == "box" else spans.times
        shares = (losses / members.shape[1])[:, None].expand(members.shape).flatten()
        losses = losses.new_zeros(len(spans.value)).index_add(0, members.flatten(), shares)
    return (losses / _tokens_of_numbers(spans).to(losses))[spans.number]


def at_positions(losses: Tensor, positions: Tensor, shape: torch.Size) -> Tensor:
    """Return a tensor of the given shape with ``losses`` at flat ``positions``, and 0 elsewhere."""
    return losses.new_zeros(shape.numel()).index_copy(0, positions, losses).view(shape)


def _tokens_of_numbers(spans: NumberSpans) -> Tensor:
    """Return how many tokens each number has, [m]."""
    return sum_by_number(torch.ones_like(spans.target), spans)
