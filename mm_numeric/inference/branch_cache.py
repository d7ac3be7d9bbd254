"""Run a model on several continuations of each prompt, without reading the prompt again.

``SharedPrompts``  all branches of a prompt attend to its one KV cache (tree attention): a token
                   sees the prompt and the tokens of its own branch
``CopiedPrompts``  each branch has a copy of the cache; for encoder-decoders, attention without a
                   mask of our own, and caches of other kinds

Axes    b prompts, n branches of all prompts, m their continuations, t tokens of the prompt,
        q most new tokens of a prompt, s tokens of branches in the cache, v vocabulary
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from mm_numeric.compat import next_model_kwargs

Ints = NDArray[np.int64]

_OF_ROWS = ("attention_mask", "decoder_attention_mask", "token_type_ids", "mm_token_type_ids")
_POSITIONS = ("position_ids", "decoder_position_ids")  # [b, t], in Qwen-VL [3, b, t]


def read_prompts(
    model: Any, input_ids: Tensor, model_kwargs: dict[str, Any]
) -> tuple[Tensor, "SharedPrompts | CopiedPrompts"]:
    """Run a model on prompts; return the logits of the next token, [b, v], and the cache.

    ``input_ids`` [b, t] and ``model_kwargs`` are those that ``model.generate`` prepares.
    """
    inputs = model.prepare_inputs_for_generation(input_ids, is_first_iteration=True, **model_kwargs)
    outputs = model(**inputs, return_dict=True)
    scores = outputs.logits[:, -1]
    model_kwargs = next_model_kwargs(model, outputs, model_kwargs)
    kind = SharedPrompts if _can_share(model, model_kwargs) else CopiedPrompts
    return scores, kind(model, input_ids, model_kwargs)


def _can_share(model: Any, model_kwargs: dict[str, Any]) -> bool:
    cache, positions = model_kwargs.get("past_key_values"), model_kwargs.get("position_ids")
    return (
        not model.config.is_encoder_decoder
        and positions is not None
        and isinstance(cache, DynamicCache)
        and all(type(layer) is DynamicLayer for layer in cache.layers)
        and model.config.get_text_config()._attn_implementation in ("sdpa", "eager")
    )


class SharedPrompts:
    """Branches that share the KV cache of their prompt."""

    def __init__(self, model: Any, input_ids: Tensor, model_kwargs: dict[str, Any]) -> None:
        """Set the mask of the prompts and the position after each of them."""
        self.model, self.cache = model, model_kwargs["past_key_values"]
        mask = model_kwargs.get("attention_mask")
        self.prompt = torch.ones_like(input_ids) if mask is None else mask[:, : input_ids.shape[1]]
        following = torch.cat([input_ids, input_ids[:, -1:]], dim=1)
        inputs = model.prepare_inputs_for_generation(
            following, next_sequence_length=1, **model_kwargs
        )
        self.position: Tensor = inputs["position_ids"]  # [b, 1] or [3, b, 1]
        self.seen = np.zeros((len(input_ids), 0), np.bool_)
        """[n, s] which cached tokens a branch consists of."""

    def advance(self, row: Ints, parent: Ints, token: Ints) -> Tensor:
        """Append a token to branches; return the logits of the next token, [m, v].

        Args:
            row: [m] index of the prompt.
            parent: [m] index of the branch that is continued.
            token: [m] id of the token.
        """
        place = count_equal_before(row)
        rows, most = len(self.prompt), int(place.max()) + 1
        ids = np.zeros((rows, most), np.int64)
        ids[row, place] = token
        seen = np.zeros((rows, most, self.seen.shape[1] + most), np.bool_)
        seen[row, place, : self.seen.shape[1]] = self.seen[parent]
        seen[row, place, self.seen.shape[1] + place] = True
        self.seen = seen[row, place]
        device = self.prompt.device
        prompt = self.prompt[:, None].expand(-1, most, -1)
        visible = torch.cat([prompt.bool(), torch.from_numpy(seen).to(device)], dim=-1)[:, None]
        hidden = torch.finfo(self.model.dtype).min
        mask = torch.zeros_like(visible, dtype=self.model.dtype).masked_fill_(~visible, hidden)
        outputs = self.model(
            input_ids=torch.from_numpy(ids).to(device),
            attention_mask=mask,
            position_ids=self.position.expand(*self.position.shape[:-1], most).contiguous(),
            past_key_values=self.cache,
            use_cache=True,
            return_dict=True,
        )
        self.position = self.position + 1
        return outputs.logits[torch.from_numpy(row).to(device), torch.from_numpy(place).to(device)]


class CopiedPrompts:
    """Branches that each have a copy of the KV cache of their prompt."""

    def __init__(self, model: Any, input_ids: Tensor, model_kwargs: dict[str, Any]) -> None:
        """Set the tokens and the arguments of each branch, which are those of its prompt."""
        self.model, self.input_ids, self.model_kwargs = model, input_ids, model_kwargs

    def advance(self, row: Ints, parent: Ints, token: Ints) -> Tensor:
        """Append a token to branches; see ``SharedPrompts.advance``."""
        at = torch.from_numpy(parent).to(self.input_ids.device)
        new = torch.from_numpy(token[:, None]).to(self.input_ids.device)
        self.input_ids = torch.cat([self.input_ids[at], new], dim=1)
        kwargs = _select(self.model_kwargs, at)
        inputs = self.model.prepare_inputs_for_generation(
            self.input_ids, next_sequence_length=1, **kwargs
        )
        outputs = self.model(**inputs, return_dict=True)
        self.model_kwargs = next_model_kwargs(self.model, outputs, kwargs)
        scores: Tensor = outputs.logits[:, -1]
        return scores


def _select(model_kwargs: dict[str, Any], at: Tensor) -> dict[str, Any]:
    """Return the arguments of the next forward pass for the branches ``at`` [m]."""
    found = dict(model_kwargs)
    found["past_key_values"].batch_select_indices(at)
    for name in _OF_ROWS:
        if found.get(name) is not None:
            found[name] = found[name][at]
    for name in _POSITIONS:
        if found.get(name) is not None:
            found[name] = found[name].index_select(-2, at)
    encoded = found.get("encoder_outputs")
    if encoded is not None:
        found["encoder_outputs"] = type(encoded)(last_hidden_state=encoded[0][at])
    return found


def count_equal_before(values: Ints) -> Ints:
    """Return how many equal values precede each value: 3, 5, 3 has 0, 0, 1."""
    order = np.argsort(values, kind="stable")
    ordered, found = values[order], np.empty(len(values), np.int64)
    found[order] = np.arange(len(values)) - np.searchsorted(ordered, ordered, side="left")
    return found
