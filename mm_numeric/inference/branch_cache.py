"""Run a model on several continuations of each prompt, without reading the prompt again.

A branch is one continuation of a prompt: a prefix of an answer.

``SharedPrompts``  all branches of a prompt share its KV cache (tree attention): a token attends to
                   the prompt and to the tokens of its own branch
``CopiedPrompts``  each branch has a copy of the KV cache; for encoder-decoders, for models whose
                   attention is not a plain softmax of transformers' ``AttentionInterface``, and for
                   caches other than ``DynamicCache``

Axes    b prompts, n branches of all prompts, m branches with one token more, t tokens of the
        prompt, c prompts of a group, q branches of a prompt, s tokens of a branch, h key heads,
        g query heads for each key head, d size of a head, v vocabulary
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from mm_numeric.compat import (
    attention_function,
    attention_of,
    cache_argument,
    next_model_kwargs,
    takes_attention_functions,
)
from mm_numeric.inference.number_distribution import Floats, Ints

_LEAST_SAVED = 256
"""A group of prompts is split only if this saves at least this many padding tokens, and at least an
eighth of the tokens for which its attention is computed."""

_MOST_GROUPS = 4

_KNOWN_OPTIONS = {
    "dropout", "is_causal", "output_attentions", "output_router_logits", "position_ids", "scaling",
    "use_cache",
}  # fmt: skip
"""Options of attention functions that are applied here, or that change nothing in inference."""

_OF_ROWS = ("attention_mask", "decoder_attention_mask", "token_type_ids", "mm_token_type_ids")
_POSITIONS = ("position_ids", "decoder_position_ids")  # [b, t], in Qwen-VL [3, b, t]


def upload(device: torch.device, *arrays: Ints | Floats) -> list[Tensor]:
    """Copy arrays of 64-bit numbers to a device in one transfer; return a tensor for each array."""
    flat = np.concatenate([each.view(np.int64).ravel() for each in arrays])
    pieces = torch.from_numpy(flat).to(device).split([each.size for each in arrays])
    kinds = (torch.float64 if each.dtype == np.float64 else torch.int64 for each in arrays)
    return [
        piece.view(kind).view(each.shape)
        for piece, kind, each in zip(pieces, kinds, arrays, strict=True)
    ]


def download(*tensors: Tensor) -> list[Floats]:
    """Copy tensors to the CPU in one transfer; return them as float64 arrays."""
    flat = torch.cat([each.double().flatten() for each in tensors]).cpu().numpy()
    ends = np.cumsum([each.numel() for each in tensors])[:-1]
    return [
        piece.reshape(each.shape) for piece, each in zip(np.split(flat, ends), tensors, strict=True)
    ]


def read_prompts(
    model: Any, input_ids: Tensor, model_kwargs: dict[str, Any]
) -> tuple[Tensor, "SharedPrompts | CopiedPrompts"]:
    """Run a model on prompts; return the logits of the next token, [b, v], and the cache.

    ``input_ids`` [b, t] and ``model_kwargs`` are the arguments that ``model.generate`` prepares.
    """
    inputs = model.prepare_inputs_for_generation(input_ids, is_first_iteration=True, **model_kwargs)
    outputs = model(**inputs, return_dict=True)
    scores = outputs.logits[:, -1]
    model_kwargs = next_model_kwargs(model, outputs, model_kwargs)
    kind = SharedPrompts if _can_share(model, model_kwargs) else CopiedPrompts
    return scores, kind(model, input_ids, model_kwargs)


def _can_share(model: Any, model_kwargs: dict[str, Any]) -> bool:
    cache, positions = model_kwargs.get(cache_argument()), model_kwargs.get("position_ids")
    return (
        not model.config.is_encoder_decoder
        and takes_attention_functions(model)
        and positions is not None
        and isinstance(cache, DynamicCache)
        and all(type(each) is DynamicLayer and each.is_initialized for each in cache.layers)
        and attention_of(model.config.get_text_config()) in ("sdpa", "eager")
        and _has_plain_attention(model, cache, positions)
    )


_plain = WeakKeyDictionary[Any, bool]()  # results of ``_has_plain_attention``


def _has_plain_attention(model: Any, cache: DynamicCache, positions: Tensor) -> bool:
    """Return True if each layer calls the config's attention function once, with known arguments.

    A forward pass over one token tests this; its result is cached for each model. It is False for
    attention sinks, soft-capping, an additional mask, or a layer that runs twice.
    """
    calls: list[tuple[int, bool]] = []

    def attend(
        module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **options: Any
    ) -> tuple[Tensor, None]:
        others = [attention_mask, *(options[name] for name in options.keys() - _KNOWN_OPTIONS)]
        calls.append((module.layer_idx, not any(each is not None for each in others)))
        return value.new_zeros(*query.shape[:2], *value.shape[2:]).transpose(1, 2), None

    if model not in _plain:
        token = torch.zeros(1, 1, dtype=torch.int64, device=positions.device)
        with attention_function(model.config.get_text_config(), attend):
            _pass(model, token, positions[..., :1, -1:], _appendable(cache))
        _plain[model] = sorted(calls) == [(i, True) for i in range(len(cache.layers))]
    return _plain[model]


def _appendable(cache: DynamicCache) -> DynamicCache:
    """Return a copy of ``cache`` to which the tokens of branches can be appended."""
    found = copy(cache)
    found.layers = [_Layer(each) for each in cache.layers]
    return found


def _pass(model: Any, ids: Tensor, positions: Tensor, cache: DynamicCache) -> Tensor:
    options = {"use_cache": True, "return_dict": True, cache_argument(): cache}
    return model(input_ids=ids, position_ids=positions, **options).logits


class _Layer(DynamicLayer):
    """One layer of the KV cache: the prompts, and separately the new tokens of all branches."""

    def __init__(self, prompt: DynamicLayer) -> None:
        super().__init__()
        self.prompt_keys, self.prompt_values = prompt.keys, prompt.values  # [b, h, t, d]
        self.lazy_initialization(prompt.keys, prompt.values)
        self.keys, self.values = prompt.keys[:1, :, :0], prompt.values[:1, :, :0]
        self.rooms = [self.keys[0], self.values[0]]  # [h, tokens, d] each

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Append keys and values of new tokens; return those of all tokens of all branches."""
        length = self.keys.shape[2]
        total = length + key_states.shape[2]
        if total > self.rooms[0].shape[1]:  # double the capacity, because growing copies everything
            rooms = self.keys[0], self.values[0]
            self.rooms = [pad(each, (0, 0, 0, 2 * total - length)) for each in rooms]
        for room, new in zip(self.rooms, (key_states, value_states), strict=True):
            room[:, length:total] = new[0]
        self.keys, self.values = (room[None, :, :total] for room in self.rooms)
        return self.keys, self.values

    def select(self, path: Tensor) -> list[Tensor]:
        """Return keys and values [n, h, s, d] of the tokens with the indices ``path`` [n, s]."""
        h, room, _ = self.rooms[0].shape
        first = torch.arange(0, h * room, room, device=path.device)
        at = (path[:, None] + first[None, :, None]).flatten()
        # index_select is three times as fast as indexing here.
        return [
            each.view(h * room, -1).index_select(0, at).view(len(path), h, -1, each.shape[-1])
            for each in self.rooms
        ]

    def get_seq_length(self) -> int:
        """Return a length above 0, so that models do not treat their input as a prompt."""
        return int(self.prompt_keys.shape[2] + self.keys.shape[2])


class _Group(NamedTuple):
    """Prompts with similar numbers of branches. Their attention is computed together."""

    most: int
    """Largest number of branches of a prompt."""

    rows: Tensor
    """[c] indices of the prompts."""

    at: Tensor
    """[n] indices of the group's branches among all branches of the forward pass."""

    inner: Tensor
    """[n] index in ``rows`` of each branch's prompt."""

    place: Tensor
    """[n] index of each branch among the branches of its prompt."""


class SharedPrompts:
    """Branches that share the KV cache of their prompt.

    The model gets the new tokens of all branches as one row, without padding. Only the attention
    function knows the prompt and the previous tokens of each branch.
    """

    def __init__(self, model: Any, input_ids: Tensor, model_kwargs: dict[str, Any]) -> None:
        cache, mask = model_kwargs[cache_argument()], model_kwargs.get("attention_mask")
        following = torch.cat([input_ids, input_ids[:, -1:]], dim=1)
        inputs = model.prepare_inputs_for_generation(
            following, next_sequence_length=1, **model_kwargs
        )
        prompt = torch.ones_like(input_ids) if mask is None else mask[:, : input_ids.shape[1]]
        self.model, self.device, self.count = model, input_ids.device, len(input_ids)
        self.hidden = prompt[:, None, None] == 0  # [b, 1, 1, t]
        self.position = inputs["position_ids"]  # [b, 1], in Qwen-VL [3, b, 1]
        self.cache = _appendable(cache)
        cache.layers = []  # ``generate`` keeps a reference to this cache: free its memory
        self.path = np.empty((self.count, 0), np.int64)
        """[n, s] indices of the tokens of each branch in the cache."""
        self.tokens = 0

    def advance(
        self, row: Ints, parent: Ints, token: Ints, more: Sequence[Ints | Floats] = ()
    ) -> tuple[Tensor, list[Tensor]]:
        """Append a token to each branch; return the logits of the next tokens, [m, v].

        The arguments have one entry for each new branch: ``row`` [m] is the index of the prompt,
        ``parent`` [m] the index of the branch to continue, ``token`` [m] the id of the new token.
        The arrays ``more`` are copied to the device in the same transfer, and returned as tensors.
        """
        new = self.tokens + np.arange(len(row))
        self.path = np.column_stack([self.path[parent], new])
        self.tokens += len(row)
        count = np.bincount(row, minlength=self.count)
        place = count_equal_before(row)
        parts: list[Ints] = []
        for rows in similar_counts(count):
            (at,) = np.nonzero(np.isin(row, rows))
            parts += [rows, at, np.searchsorted(rows, row[at]), place[at]]
        ids, prompt, path, *others = upload(self.device, token, row, self.path, *parts, *more)
        groups = [
            _Group(int(parts[i + 3].max()) + 1, *others[i : i + 4]) for i in range(0, len(parts), 4)
        ]
        next_position = self.position.index_select(-2, prompt).transpose(-1, -2)
        with self._attending(path, groups):
            position = next_position + self.path.shape[1] - 1
            logits = _pass(self.model, ids[None], position, self.cache)
        return logits[0], others[len(parts) :]

    @contextmanager
    def _attending(self, path: Tensor, groups: Sequence[_Group]) -> Iterator[None]:
        """Replace the attention function: each branch attends to its prompt and its own tokens."""

        def attend(
            module: Any, query: Tensor, key: Tensor, value: Tensor, *_: Any, **options: Any
        ) -> tuple[Tensor, None]:
            layer = self.cache.layers[module.layer_idx]
            scaling = options.get("scaling")
            query = query[0] * (query.shape[-1] ** -0.5 if scaling is None else scaling)
            query = query.unflatten(0, (key.shape[1], -1)).permute(2, 0, 1, 3)  # [n, h, g, d]
            own = _attend(query, *layer.select(path))
            found = torch.empty_like(own[2])
            for group in groups:
                found[group.at] = self._attend_group(layer, query, own, group)
            return found.flatten(1, 2)[None], None

        with attention_function(self.model.config.get_text_config(), attend):
            yield

    def _attend_group(
        self, layer: _Layer, query: Tensor, own: Sequence[Tensor], group: _Group
    ) -> Tensor:
        """Return the attention of a group's branches to their prompts and own tokens."""
        keys, values, hidden = layer.prompt_keys, layer.prompt_values, self.hidden
        if len(group.rows) < self.count:
            keys, values, hidden = keys[group.rows], values[group.rows], hidden[group.rows]
        _, h, g, d = query.shape
        padded = query.new_zeros(len(group.rows), group.most, h, g, d)
        padded[group.inner, group.place] = query[group.at]
        padded = padded.transpose(1, 2).flatten(2, 3)  # [c, h, q g, d]
        found = _attend(padded, keys, values, hidden)
        parts = [each.unflatten(2, (group.most, g))[group.inner, :, group.place] for each in found]
        return _merged(parts, [each[group.at] for each in own])


def _attend(
    query: Tensor, key: Tensor, value: Tensor, hidden: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the attention to some tokens; ``_merged`` combines it with that to other tokens.

    ``query`` is [..., q, d]; ``key`` and ``value`` are [..., s, d]. ``hidden`` is True for masked
    tokens, and broadcasts with [..., q, s]. Returns the largest score and the sum of all weights,
    [..., q, 1], and the weighted mean of ``value``, [..., q, d].
    """
    scores = (query @ key.transpose(-1, -2)).float()
    if hidden is not None:
        scores = scores.masked_fill_(hidden, torch.finfo(scores.dtype).min)
    largest = scores.amax(dim=-1, keepdim=True)
    weights = scores.sub_(largest).exp_()
    total = weights.sum(dim=-1, keepdim=True)
    # Divide before the product: a sum over a long prompt overflows float16.
    return largest, total, weights.div_(total).to(value.dtype) @ value


def _merged(a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
    """Return the attention output over two sets of tokens from their two results of ``_attend``."""
    largest = torch.maximum(a[0], b[0])
    total_a, total_b = (own[1] * (own[0] - largest).exp() for own in (a, b))
    return ((a[2] * total_a + b[2] * total_b) / (total_a + total_b)).to(a[2].dtype)


def similar_counts(counts: Ints, most: int = _MOST_GROUPS) -> list[Ints]:
    """Group prompts with similar numbers of branches, so that groups need little padding.

    ``counts`` [c] has the number of branches of each prompt; prompts without branches are left out.
    Returns at most ``most`` groups: the ascending indices of their prompts.
    """
    order = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
    groups: list[Ints] = []
    todo = [order] if len(order) else []
    while todo:
        own = todo.pop()
        sizes, rest = counts[own], np.arange(len(own), 0, -1)
        # padded[i]: tokens of both groups, with padding, if the group is split before prompt i
        padded = np.arange(len(own)) * sizes[0] + rest * sizes
        best = int(padded.argmin())
        saves = padded[0] - padded[best] >= max(_LEAST_SAVED, padded[0] // 8)
        if len(groups) + len(todo) + 1 == most or not saves:
            groups.append(np.sort(own))
        else:
            todo += [own[:best], own[best:]]
    return groups


class CopiedPrompts:
    """Branches that each have a copy of the KV cache of their prompt."""

    def __init__(self, model: Any, input_ids: Tensor, model_kwargs: dict[str, Any]) -> None:
        self.model, self.input_ids, self.model_kwargs = model, input_ids, model_kwargs

    def advance(
        self, row: Ints, parent: Ints, token: Ints, more: Sequence[Ints | Floats] = ()
    ) -> tuple[Tensor, list[Tensor]]:
        """Append a token to each branch; the arguments are those of ``SharedPrompts.advance``."""
        at, new, *others = upload(self.input_ids.device, parent, token, *more)
        self.input_ids = torch.cat([self.input_ids[at], new[:, None]], dim=1)
        kwargs = _select(self.model_kwargs, at)
        inputs = self.model.prepare_inputs_for_generation(
            self.input_ids, next_sequence_length=1, **kwargs
        )
        outputs = self.model(**inputs, return_dict=True)
        self.model_kwargs = next_model_kwargs(self.model, outputs, kwargs)
        return outputs.logits[:, -1], others


def _select(model_kwargs: dict[str, Any], at: Tensor) -> dict[str, Any]:
    """Return the model's keyword arguments for the branches with the indices ``at`` [m]."""
    found = dict(model_kwargs)
    found[cache_argument()].batch_select_indices(at)
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
    """Return how many equal values precede each value: 0, 0, 1 for the values 3, 5, 3."""
    order = np.argsort(values, kind="stable")
    ordered, found = values[order], np.empty(len(values), np.int64)
    found[order] = np.arange(len(values)) - np.searchsorted(ordered, ordered, side="left")
    return found
