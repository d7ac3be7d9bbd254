"""Output head that predicts one number at each position, in addition to the token logits.

Axes    b samples, t positions, d hidden size, v vocabulary
"""

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import initialization
from transformers.utils import ModelOutput

from mm_numeric.losses.cross_entropy import full_precision


@dataclass
class NumberOutput(ModelOutput):
    """Output of a model with a number head.

    Attributes:
        logits: [b, t, v] (b samples, t positions, v vocabulary). If the loss does not use logits,
            they may be computed only for the last position: [b, 1, v].
        numbers: float32, what is predicted at each position: the normalised number [b, t], or with
            FoNE the logits of its digits [b, t, digits, 10].
    """

    logits: Tensor | None = None
    numbers: Tensor | None = None


class NumberHead(nn.Module):
    """Output head that maps each hidden state to a number (float32).

    It consists of one linear layer, or of two with a GELU in between.
    """

    def __init__(
        self, width: int, inner: int | None = None, *, offset: float | None = None
    ) -> None:
        """Create uninitialised parameters.

        Args:
            width: Hidden size of the model.
            inner: Width of the inner layer; None for a single layer.
            offset: If set, also create a vector that xVal adds to the embedding of every number.
                The value of ``offset`` is the standard deviation for random initialisation.
        """
        super().__init__()
        self.inner = None if inner is None else nn.Parameter(torch.empty(inner, width))
        self.inner_bias = None if inner is None else nn.Parameter(torch.empty(inner))
        self.weight = nn.Parameter(torch.empty(1, inner or width))
        self.bias = nn.Parameter(torch.empty(1))
        self.offset = nn.Parameter(torch.empty(width)) if offset else None
        self.offset_size = offset or 0.0

    def initialise(self) -> None:
        """Initialise parameters that are not in the checkpoint: random weights, zero biases."""
        for weight, bias in ((self.inner, self.inner_bias), (self.weight, self.bias)):
            if weight is not None and bias is not None:
                initialization.normal_(weight, std=weight.shape[1] ** -0.5)
                initialization.zeros_(bias)
        if self.offset is not None:
            initialization.normal_(self.offset, std=self.offset_size)

    def forward(self, hidden: Tensor) -> Tensor:
        """Map hidden states [b, t, d] (b samples, t positions, d hidden size) to numbers [b, t]."""
        hidden = hidden.float()
        with full_precision(hidden.device):  # autocast would round numbers to 3 digits in bf16
            if self.inner is not None and self.inner_bias is not None:
                hidden = functional.linear(hidden, self.inner.float(), self.inner_bias.float())
                hidden = functional.gelu(hidden)
            return functional.linear(hidden, self.weight.float(), self.bias.float()).squeeze(-1)


class WithNumberHead:
    """Mixin that adds a number head to a language model of transformers."""

    config: Any
    post_init: Any
    one_position = False
    """True computes only the logits of the last position, for a loss that ignores logits."""

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)  # type: ignore[call-arg]
        self.baseline = self.make_head(config)
        self.post_init()

    def make_head(self, config: Any) -> nn.Module:
        """Return a number head with uninitialised parameters."""
        return NumberHead(config.hidden_size)

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, NumberHead):
            module.initialise()
        else:
            super()._init_weights(module)  # type: ignore[misc]

    def forward(self, *, input_ids: Tensor | None = None, **inputs: Any) -> NumberOutput:
        """Return the logits, and the number that the number head predicts at each position.

        The arguments are those of the language model. They must be passed by name.
        """
        own: Any = super()
        if self.one_position and "logits_to_keep" in inspect.signature(own.forward).parameters:
            inputs["logits_to_keep"] = 1
        outputs = own.forward(
            input_ids=input_ids,
            **inputs,
            output_hidden_states=True,
            use_cache=False,
            return_dict=True,
        )
        is_encoder_decoder = self.config.is_encoder_decoder
        states = outputs.decoder_hidden_states if is_encoder_decoder else outputs.hidden_states
        return NumberOutput(logits=outputs.logits, numbers=self.baseline(states[-1]))


def with_position_ids(model: Any, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Add ``position_ids`` that count from the first real token, not from left padding."""
    if model.config.is_encoder_decoder:
        return inputs
    positions = inputs["attention_mask"].long().cumsum(-1).sub(1).clamp(min=0)
    return {**inputs, "position_ids": positions}
