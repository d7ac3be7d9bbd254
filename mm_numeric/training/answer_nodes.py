"""Read the beginnings of all answers in the forward pass of a training step, as extra tokens.

Axes    b rows of a batch, t positions, e extra tokens, u nodes with several next tokens, r rows
        with an answer, n supervised positions, v vocabulary

The extra tokens of a row come after its padding. They have the positions of the answer tokens that
they replace, and see the prompt and the tokens that they continue, but neither the label nor other
beginnings. No other token sees them, so that cross-entropy and its gradient stay the same.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mm_numeric.losses.answer_tree import AnswerTree
from mm_numeric.numbers.spans import NumberSpans
from mm_numeric.training.output_head import evaluating, logits_error, selected_logits


class WithNodes(NamedTuple):
    """A batch with the extra tokens, and where its logits are needed.

    ``size`` is the number of its positions, b * (t + e). ``positions`` are indices of them in one
    dimension: those of the n supervised ones, and then those of the nodes of each row, [n + r * u].
    """

    inputs: dict[str, Any]
    positions: Tensor
    size: int


def with_nodes(
    inputs: Mapping[str, Any],
    tree: AnswerTree,
    spans: NumberSpans,
    supervised: Tensor,
    *,
    has_bool_mask: bool,
) -> WithNodes:
    """Add the extra tokens of a tree to the inputs of a decoder for a padded batch.

    ``supervised`` [b, t] is True at the positions that predict an answer token. The mask has
    booleans with ``has_bool_mask`` (sdpa), and is added without (eager).
    """
    (b, t), device = supervised.shape, supervised.device
    tree = tree.to(device)
    e = len(tree.tokens)
    first = supervised.int().argmax(dim=1)  # [b], the last token of the prompt
    padding = inputs["attention_mask"].bool()
    after = first[:, None] + tree.depth
    positions = inputs.get("position_ids")
    if positions is None:
        positions = torch.arange(t, device=device).expand(b, t)
        extra = after
    else:  # those of images, [3, b, t]; the first token of an answer follows a text token
        at = (first[:, None] + 1).clamp(max=t - 1).expand(*positions.shape[:-1], 1)
        extra = positions.gather(-1, at) + tree.depth - 1
    changed = {
        name: torch.nn.functional.pad(value, (0, e))
        for name, value in inputs.items()
        if isinstance(value, Tensor) and value.shape == (b, t)
    }
    changed["input_ids"][:, t:] = tree.tokens
    changed["position_ids"] = torch.cat([positions, extra], dim=-1)
    mask = torch.zeros(b, t + e, t + e, dtype=torch.bool, device=device)
    place = torch.arange(t, device=device)
    mask[:, :t, :t] = (place <= place[:, None]) & padding[:, None]
    mask[:, t:, :t] = ((place <= first[:, None]) & padding)[:, None]
    mask[:, t:, t:] = tree.sees
    if has_bool_mask:
        changed["attention_mask"] = mask[:, None]
    else:
        added = torch.zeros(mask.shape, device=device)
        added = added.masked_fill(~mask, torch.finfo(torch.float32).min)
        changed["attention_mask"] = added[:, None]
    rows = torch.arange(int(spans.samples), device=device)[:, None]
    node = torch.where(tree.node == 0, first[: len(rows), None], t + tree.node - 1)
    assert spans.supervised is not None
    own = spans.supervised // t * (t + e) + spans.supervised % t
    at = torch.cat([own, (rows * (t + e) + node).flatten()])
    return WithNodes({**inputs, **changed}, at, b * (t + e))


@torch.no_grad()
def answer_nodes_error(
    model: nn.Module,
    head: nn.Module | None,
    plain: Mapping[str, Any],
    batch: WithNodes,
    tree: AnswerTree,
    spans: NumberSpans,
    supervised: Tensor,
    *,
    low_precision: bool,
) -> str | None:
    """Return an error message if a model does not keep the extra tokens and the label apart.

    The label is one of the answers of the tree, so that it has the same logits twice. This runs the
    model twice on a micro-batch, so that all ranks must call it together. ``plain`` are its inputs
    without the extra tokens, and ``batch`` those with them. With ``low_precision``, as in bf16,
    logits may differ by more.
    """
    assert spans.supervised is not None
    n = len(spans.supervised)
    try:
        with evaluating(model):
            wanted = selected_logits(model, head, plain, spans.supervised, supervised.numel())
            found = selected_logits(model, head, batch.inputs, batch.positions, batch.size)
    except (RuntimeError, ValueError, TypeError, IndexError, AttributeError) as error:
        return f"objective: the model does not accept the extra tokens of all answers ({error})."
    if not n:
        return None
    tree = tree.to(found.device)
    width = tree.children.shape[1]
    label = torch.searchsorted(tree.values, tree.label_values(spans))
    row, step = (tree.paths[label] < tree.exists.numel()).nonzero(as_tuple=True)
    node = tree.paths[label][row, step] // width
    counts = supervised.sum(dim=1)
    depth = torch.nn.functional.pad(tree.depth, (1, 0))[tree.node[node]]
    at = (counts.cumsum(0) - counts)[row] + depth
    twice = found[n:].unflatten(0, (-1, len(tree.node)))[row, node]
    apart = torch.cat([found[:n] - wanted, twice - wanted[at]])
    share = logits_error(apart, wanted, low_precision=low_precision)
    if share is None:
        return None
    return (
        f"objective: for the first micro-batch, the logits of the model differ by {share:.1%} of "
        "the largest if it also reads the beginnings of all answers: its attention does not keep "
        "them apart; choose a loss of single digits, such as ntl_was."
    )
