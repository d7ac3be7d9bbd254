"""Compute logits only at some positions, for any model.

Models differ in the values that ``logits_to_keep`` accepts, and those with custom code may not have
it. All of them call the module that ``get_output_embeddings()`` returns.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from torch import Tensor, nn

_MOST_ERROR, _MOST_ERROR_16_BIT = 0.005, 0.05
"""Differences of logits that should be equal, as shares of the largest."""


def output_head(model: Any) -> nn.Module | None:
    """Return the output head (``lm_head``) of a model of transformers or PEFT; None without one."""
    try:
        head = model.get_output_embeddings()
    except (AttributeError, NotImplementedError):
        return None
    return head if isinstance(head, nn.Module) else None


def selected_logits(
    model: Any, head: nn.Module | None, inputs: Mapping[str, Any], positions: Tensor, count: int
) -> Tensor:
    """Run a model, and return its logits [n, v] at n positions.

    ``head`` is its output head; without one, the model computes the logits of all positions.
    ``positions`` [n] are indices into the flattened ``count`` positions of the batch, b * t: not a
    mask, for whose sum the host would wait.
    """
    if head is None:
        logits: Tensor = model(**inputs).logits
    else:
        with selecting(head, positions, count):
            logits = model(**inputs).logits
    logits = logits.flatten(0, -2)
    return logits if len(logits) == len(positions) else logits[positions]


def at_positions(hidden: Tensor, positions: Tensor, count: int) -> Tensor:
    """Return hidden states [n, d] at ``positions`` of the hidden states [b, t, d] of a head.

    Raises ValueError if these are not ``count`` positions, b * t.
    """
    hidden = hidden.flatten(0, -2)
    if len(hidden) != count:
        raise ValueError(
            f"the output head has {len(hidden)} positions in a batch whose labels have {count}: "
            "the model changes the length of its sequences, which the labels do not show."
        )
    return hidden[positions.to(hidden.device)]  # another GPU, with a device_map


def selecting(
    head: nn.Module,
    positions: Tensor,
    count: int,
    compute: Callable[[Tensor], Tensor] | None = None,
) -> AbstractContextManager[None]:
    """Let a head compute logits [1, n, v] only at n positions while the model runs.

    ``compute`` replaces its method ``forward``. The others are those of ``selected_logits``.
    """
    whole: Callable[[Tensor], Tensor] = compute or head.forward
    return replaced_forward(
        head, lambda hidden: whole(at_positions(hidden, positions, count)[None])
    )


@contextmanager
def replaced_forward(head: nn.Module, forward: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Replace the method ``forward`` of a module while the model runs."""
    before = vars(head).get("forward")  # accelerate replaces it too
    head.forward = forward  # type: ignore[assignment]
    try:
        yield
    finally:
        if before is None:
            del head.forward
        else:
            head.forward = before


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Set a model to evaluation mode in the context.

    Dropout would change the random numbers of the training.
    """
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def logits_error(apart: Tensor, wanted: Tensor, *, low_precision: bool) -> float | None:
    """Return the largest difference, relative to the largest logit; None if it is rounding.

    ``apart`` are the differences from the logits ``wanted``; rounding is larger in
    ``low_precision``, such as bf16.
    """
    share = (apart.abs().max() / wanted.abs().max()).item()
    return None if share <= (_MOST_ERROR_16_BIT if low_precision else _MOST_ERROR) else share
