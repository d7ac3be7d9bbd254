"""Validation of the inputs of an objective: supervised rows, labels, spans and head.

Axes    b samples, t positions, n supervised rows, r rows of the input, c classes
"""

from collections.abc import Callable

import torch
from torch import Tensor

from mm_numeric.numbers.spans import IGNORE_INDEX, NumberSpans, shifted


def supervised_rows(
    inputs: Tensor,
    labels: Tensor,
    spans: NumberSpans | None,
    shift: bool,
    what: str,
    find: Callable[[Tensor], NumberSpans],
) -> tuple[Tensor, Tensor, NumberSpans, Tensor | None]:
    """Return inputs [r, :], labels [n], the numbers, and the indices [n] of the supervised rows.

    Labels [b, t] need inputs [b, t, :] and are shifted first if ``shift`` is set; labels [n] need
    spans. Spans that are None are found in labels [b, t] with ``find``. ``what`` names the inputs
    in errors.
    """
    if inputs.dim() == 3 and labels.shape == inputs.shape[:2]:
        if shift:
            labels = shifted(labels)
        if spans is None:
            spans = find(labels)
        rows = spans.supervised
        if rows is None:
            rows = (labels != IGNORE_INDEX).flatten().nonzero().squeeze(1)
        return inputs.flatten(0, 1), labels.flatten()[rows], spans, rows
    if inputs.dim() == 3 and labels.dim() == 1 and spans is not None and not shift:
        rows = spans.supervised
        if rows is not None and rows.shape == labels.shape:
            return inputs.flatten(0, 1), labels, spans, rows
    if inputs.dim() != 2 or labels.shape != inputs.shape[:1] or shift or spans is None:
        raise ValueError(
            f"an objective takes {what} [b, t, :] with labels [b, t], or {what} [n, :] with "
            f"labels [n], already shifted and with spans; got {what} "
            f"{list(inputs.shape)}, labels {list(labels.shape)}, shift={shift}, "
            f"spans={'given' if spans is not None else None}."
        )
    return inputs, labels, spans, None


def check_labels(labels: Tensor, tokens: int, spans: NumberSpans, ids: Tensor) -> None:
    """Check that labels are tokens of the head and that spans were made from these labels.

    Labels are [n], ``tokens`` is the size of the head, and ``ids`` [c] are the number tokens' ids.
    On a GPU the check is an asynchronous assertion, because a ValueError needs a synchronisation.
    """
    known = (labels >= 0) & (labels < tokens)
    found = labels[spans.row.clamp(max=len(labels) - 1)]
    fine = known.all() & ((found == ids[spans.target]) & (spans.row < len(labels))).all()
    if labels.device.type != "cpu" or torch.compiler.is_compiling():
        torch._assert_async(fine, "labels are tokens of the head, and spans are of these labels")
    elif not fine:
        if not known.all():
            raise ValueError(
                f"the label {labels[~known][0].item()} is not one of the {tokens} tokens; only "
                f"labels [b, t] may have rows without a label ({IGNORE_INDEX})."
            )
        raise ValueError(
            "the spans are not those of these labels: make them from the labels as the rows "
            "predict them (already shifted), with this objective's vocabulary."
        )


def check_head(largest_id: int, tokens: int) -> None:
    """Check that a head with ``tokens`` rows has every number token."""
    if largest_id >= tokens:
        raise ValueError(
            f"the number token with id {largest_id} is not one of the {tokens} tokens of "
            "the head: the number vocabulary was made from another model's tokenizer."
        )
