"""Output head that predicts a number at each position, in addition to the token logits.

Axes    b samples, t positions, d hidden size, v vocabulary
"""

import inspect
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import initialization
from transformers.integrations import is_deepspeed_zero3_enabled, is_fsdp_managed_module
from transformers.utils import ModelOutput

from mm_numeric.losses.cross_entropy import full_precision


@dataclass
class NumberOutput(ModelOutput):
    """Output of a model with a number head.

    Attributes:
        logits: [b, t, v]; [b, 1, v] for the last position only, if the loss does not use logits.
        numbers: [b, t] float32, the normalised number that is predicted at each position.
    """

    logits: Tensor | None = None
    numbers: Tensor | None = None


class NumberHead(nn.Module):
    """Output head that maps each hidden state to a number (float32).

    It has one linear layer, or two linear layers with a GELU between them.
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
        """Map hidden states [b, t, d] to numbers [b, t]."""
        hidden = hidden.float()
        with full_precision(hidden.device):  # autocast to bf16 would round numbers to 3 digits
            if self.inner is not None and self.inner_bias is not None:
                hidden = functional.linear(hidden, self.inner.float(), self.inner_bias.float())
                hidden = functional.gelu(hidden)
            return functional.linear(hidden, self.weight.float(), self.bias.float()).squeeze(-1)


class WithNumberHead:
    """Mixin that adds a number head to a language model of transformers."""

    config: Any
    post_init: Any
    one_position = False
    """True: compute logits only at the last position, because the loss does not use logits."""

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)  # type: ignore[call-arg]
        self.baseline = self.make_head(config)
        self.post_init()

    def make_head(self, config: Any) -> NumberHead:
        """Return a number head with uninitialised parameters."""
        return NumberHead(config.hidden_size)

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, NumberHead):
            module.initialise()
        else:
            super()._init_weights(module)  # type: ignore[misc]

    def forward(self, *, input_ids: Tensor | None = None, **inputs: Any) -> NumberOutput:
        """Return the logits, and the number that the number head predicts at each position.

        The arguments are passed to the language model. They must be passed by name.
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

    @abstractmethod
    def next_ids(self, tokens: Tensor, numbers: Tensor) -> Tensor:
        """Return the next id [b] of each answer: a token id or a value id.

        ``tokens`` [b] are the most likely tokens, and ``numbers`` [b] the predicted numbers.
        """

    def generate(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        *,
        max_new_tokens: int,
        eos_token_id: Sequence[int],
        pad_token_id: int,
        decoder_start_token_id: int = 0,
        logits_processor: Iterable[Any] = (),
        **other_options: Any,
    ) -> Tensor:
        """Generate answers greedily, like ``generate`` of transformers; other options are ignored.

        Returns the prompts (for an encoder-decoder, the decoder's start id) followed by the answers
        and padding. A predicted number is returned as its value id.
        """
        is_encoder_decoder = self.config.is_encoder_decoder
        ids, mask = input_ids, attention_mask
        if is_encoder_decoder:
            ids = torch.full_like(input_ids[:, :1], decoder_start_token_id)
        ended = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)
        stops = torch.tensor(eos_token_id, device=ids.device)
        model: Any = self
        for _ in range(max_new_tokens):
            if is_encoder_decoder:
                outputs = model(input_ids=input_ids, attention_mask=mask, decoder_input_ids=ids)
            else:  # positions start at the first token, not at the padding on the left
                places = mask.long().cumsum(-1).sub(1).clamp(min=0)
                outputs = model(input_ids=ids, attention_mask=mask, position_ids=places)
            scores = outputs.logits[:, -1].float()
            for processor in logits_processor:
                scores = processor(ids, scores)
            found = self.next_ids(scores.argmax(dim=-1), outputs.numbers[:, -1])
            found = found.masked_fill(ended, pad_token_id)
            ids = torch.cat([ids, found[:, None]], dim=1)
            if not is_encoder_decoder:
                mask = torch.cat([mask, torch.ones_like(mask[:, :1])], dim=1)
            ended |= torch.isin(found, stops)
            if _all_ended(ended, model):
                break
        return ids


def _all_ended(ended: Tensor, model: Any) -> bool:
    """Return True if all answers have ended. With ZeRO-3 or FSDP, the answers of all ranks count.

    There, all ranks must take part in each forward pass, as in ``generate`` of transformers.
    """
    going = (~ended).sum()
    is_shared = is_deepspeed_zero3_enabled() or is_fsdp_managed_module(model)
    if is_shared and torch.distributed.is_initialized():
        torch.distributed.all_reduce(going)
    return not going
