"""Padding-free batches: one row with all samples of a micro-batch, one after another.

Axes    b samples, t positions in the padded batch, n tokens of all samples

Positions start at 0 in each sample, and no sample attends to another. There is no attention mask:
transformers (5.23) finds the samples in ``position_ids``. With M-RoPE (Qwen families),
``position_ids`` has four rows: the first row marks the samples, and the others are time, height
and width.

With sdpa, attention is computed for each sample separately, because with a mask for the whole row
the time would be quadratic in n. Flash attention gets the boundaries of the samples
(``cu_seq_lens_q``).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from mm_numeric.answers import Example
from mm_numeric.data.collator import TrainingCollator
from mm_numeric.training.image_positions import rope_index_of, rope_positions
from mm_numeric.training.output_head import evaluating, selected_logits

SDPA_BY_SAMPLE = "sdpa_by_sample"
"""Name under which ``_sdpa_by_sample`` is registered in transformers."""

_LAYERS = {"full_attention", "sliding_attention", "chunked_attention"}

_MOST_ERROR, _MOST_ERROR_16_BIT = 0.005, 0.05
"""Largest difference of logits that should be equal, relative to the largest logit."""


@dataclass(frozen=True)
class PaddingFreeCollator:
    """Collates examples into a padding-free training batch.

    It differs from a batch of ``TrainingCollator`` in these entries: all entries with a value for
    each token, such as ``input_ids`` and ``supervised``, are [1, n] instead of [b, t], and
    ``position_ids`` [1, n] (with M-RoPE [4, 1, n]) replaces ``attention_mask``.
    """

    padded: TrainingCollator

    rope_index: Callable[..., tuple[Tensor, Any]] | None
    """Method ``get_rope_index`` of a model with M-RoPE, which returns the positions [3, b, t] of a
    padded batch. None for models in which each token has one position."""

    attention: str
    """Attention implementation of the model, on which the entry ``sample_boundaries`` depends."""

    def __call__(self, examples: Sequence[Example]) -> dict[str, Any]:
        """Return a training batch; an empty list of examples becomes an empty dict."""
        batch = self.padded(examples)
        if not batch:
            return {}
        types = batch.get("token_type_ids")
        if types is not None and types.any():
            raise ValueError(
                f"data.padding_free: {self.padded.family.name} attends in both directions to some "
                "tokens (token_type_ids), which transformers does not combine with several samples "
                "in a row; set padding_free to false."
            )
        mask = batch["attention_mask"]
        is_token = mask.bool()
        positions = (mask.cumsum(dim=1) - 1)[is_token][None]
        if self.rope_index is not None:
            index = positions.expand(3, 1, -1)
            if "image_grid_thw" in batch:
                index = rope_positions(self.rope_index, batch)[:, is_token][:, None]
            positions = torch.cat([positions[None], index])
        boundaries = _boundaries(batch.pop("attention_mask").sum(dim=1).tolist(), self.attention)
        row = {
            name: value[is_token][None]
            for name, value in batch.items()
            if _is_of_tokens(value, mask.shape)
        }
        supervised = row["supervised"].flatten().nonzero().squeeze(1)
        spans = replace(batch["spans"], supervised=supervised)
        more = {"position_ids": positions, "spans": spans, "sample_boundaries": boundaries}
        # With a KV cache, transformers would not look for samples in position_ids.
        return {**batch, **row, **more, "use_cache": False}


def make_padding_free(
    model: Any, collator: TrainingCollator, attention: str
) -> PaddingFreeCollator:
    """Prepare a model for padding-free batches, and return the collator that creates them.

    ``attention`` is the attention implementation of the model (``model.attention``). Raises
    ValueError if layers of the model cannot keep the samples of a row apart.
    """
    text = model.config.get_text_config()
    others = sorted(set(getattr(text, "layer_types", None) or ()) - _LAYERS)
    if others or collator.family.encoder_decoder:
        what = f"layers of type {others[0]}" if others else "an encoder and a decoder"
        raise ValueError(
            f"data.padding_free: the model has {what}, which cannot keep several samples in a row "
            "apart; set padding_free to false."
        )
    decoder = model.get_decoder()
    if attention == "sdpa":
        AttentionInterface.register(SDPA_BY_SAMPLE, _sdpa_by_sample)
        AttentionMaskInterface.register(SDPA_BY_SAMPLE, _mask_by_sample)
        decoder.set_attn_implementation(SDPA_BY_SAMPLE)

    boundaries: dict[str, Any] = {}

    # Models would pass unknown arguments to their vision tower too, which has other boundaries.
    def take_boundaries(_: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        boundaries.update(kwargs.pop("sample_boundaries", {}))
        return args, kwargs

    def add_boundaries(_: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        found = {**kwargs, **boundaries}
        boundaries.clear()  # with LoRA, generate calls the inner model, which has no hook
        return args, found

    model.register_forward_pre_hook(take_boundaries, with_kwargs=True)
    decoder.register_forward_pre_hook(add_boundaries, with_kwargs=True)
    return PaddingFreeCollator(collator, rope_index_of(model), attention)


def _is_of_tokens(value: Any, shape: Sequence[int]) -> bool:
    """Return True if a batch entry is a tensor with an integer or a bool for each token."""
    return isinstance(value, Tensor) and value.shape == shape and not value.is_floating_point()


def _lengths(positions: Tensor) -> list[int]:
    """Return the number of tokens of each sample; ``positions`` is [1, n] or [4, 1, n]."""
    text = positions.flatten()[: positions.shape[-1]]
    starts = (text == 0).nonzero().flatten().tolist()
    return [end - start for start, end in zip(starts, [*starts[1:], len(text)], strict=True)]


def _boundaries(lengths: list[int], attention: str) -> dict[str, Any]:
    """Return the arguments with which attention functions find the samples of a row."""
    if attention == "sdpa":
        return {"sample_lengths": lengths}
    if attention == "eager":  # uses a mask for the whole row
        return {}
    ends = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)
    longest = {f"max_length_{x}": max(lengths) for x in "qk"}
    return {f"cu_seq_lens_{x}": ends for x in "qk"} | longest


def _sdpa_by_sample(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    sample_lengths: Sequence[int] | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Compute attention for each sample of a row separately; without ``sample_lengths``, use sdpa.

    ``query``, ``key`` and ``value`` are [1, heads, n, width]; the result is [1, n, heads, width].
    """
    if sample_lengths is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    end, outputs = 0, []
    for length in sample_lengths:
        start, end = end, end + length
        mask = None if attention_mask is None else attention_mask[..., start:end, start:end]
        own = (tensor[:, :, start:end] for tensor in (query, key, value))
        outputs.append(sdpa_attention_forward(module, *own, mask, **kwargs)[0])
    return torch.cat(outputs, dim=1), None


def _mask_by_sample(**kwargs: Any) -> Tensor | None:
    """Return the mask of sdpa; None if no mask is needed, for plain causal attention."""
    is_limited = kwargs.get("local_size") is not None or kwargs.get("use_vmap")
    if kwargs.get("attention_mask") is None and not is_limited:
        return None
    return sdpa_mask(**kwargs)


@torch.no_grad()
def padding_free_error(
    model: nn.Module,
    head: nn.Module | None,
    inputs: Mapping[str, Any],
    supervised: Tensor,
    *,
    low_precision: bool,
) -> str | None:
    """Return an error message if a model's logits without padding differ from those with padding.

    This runs the model on the padding-free micro-batch ``inputs`` and on the same samples with
    padding, so all ranks must call it together. ``head`` is the model's output head. ``supervised``
    [1, n] is the mask of the positions to compare. With ``low_precision``, such as bf16, a larger
    difference is allowed. Returns None if the logits are equal.
    """
    padded = _padded({**inputs, "supervised": supervised})
    batches = (inputs, supervised), (padded, padded.pop("supervised"))
    with evaluating(model):
        found, wanted = (
            selected_logits(model, head, batch, mask.flatten().nonzero().squeeze(1), mask.numel())
            for batch, mask in batches
        )
    if not wanted.numel():
        return None
    error = ((found - wanted).abs().max() / wanted.abs().max()).item()
    if error <= (_MOST_ERROR_16_BIT if low_precision else _MOST_ERROR):
        return None
    return (
        f"data.padding_free: for the first micro-batch, the logits of the model differ by "
        f"{error:.1%} of the largest from those with padding: its attention does not keep the "
        "samples of a row apart; set padding_free to false."
    )


def _padded(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the padding-free batch ``inputs`` to a padded batch with the same samples."""
    lengths, ids = _lengths(inputs["position_ids"]), inputs["input_ids"]
    of_row = {"position_ids", "sample_boundaries"}
    batch = {name: value for name, value in inputs.items() if name not in of_row}
    batch["attention_mask"] = torch.ones_like(ids)
    for name, value in batch.items():
        if _is_of_tokens(value, ids.shape):
            # Any token may be the padding, except an image token; no sample ends with such a token.
            fill = ids[0, -1].item() if name == "input_ids" else 0
            pieces = value[0].split(lengths)
            batch[name] = pad_sequence(pieces, batch_first=True, padding_value=fill)
    return batch
