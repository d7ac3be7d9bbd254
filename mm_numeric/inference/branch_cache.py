"""Run a model on several continuations of each prompt, without reading the prompt again.

``SharedPrompts``  all branches of a prompt attend to its one KV cache (tree attention): a token
                   sees the prompt and the tokens of its own branch
``CopiedPrompts``  each branch has a copy of the cache; for encoder-decoders, attention without a
                   mask of our own, and caches of other kinds

Axes    b prompts, n branches of all prompts, m their continuations, t tokens of the prompt,
        c prompts of a group, s tokens of their branches in the cache, v vocabulary
"""

from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from mm_numeric.compat import attention_of, cache_argument, next_model_kwargs

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_LEAST_SAVED = 256
"""Split a group only if this saves at least this many padding tokens, and an eighth of all tokens
of its pass."""

_MOST_GROUPS = 4
"""Groups are not merged again, and each needs a forward pass."""

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
    cache, positions = model_kwargs.get(cache_argument()), model_kwargs.get("position_ids")
    return (
        not model.config.is_encoder_decoder
        and model.config.model_type != "kosmos_2_text_model"  # its masks are [b, t]
        and positions is not None
        and isinstance(cache, DynamicCache)
        and all(type(each) is DynamicLayer and each.is_initialized for each in cache.layers)
        and attention_of(model.config.get_text_config()) in ("sdpa", "eager")
    )


class _GrowingLayer(DynamicLayer):
    """A layer of the KV cache with room for the next tokens, which need no copy of the others."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        super().__init__()
        self.lazy_initialization(keys, values)
        self.keys, self.values = keys, values
        self._key_room, self._value_room, self._first_length = keys, values, keys.shape[-2]

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Append the keys and values of new tokens; return those of all tokens."""
        length = self.keys.shape[-2]
        total = length + key_states.shape[-2]
        if total > self._key_room.shape[-2]:
            more = 2 * total - self._first_length - length  # twice the tokens of the branches
            self._key_room = torch.nn.functional.pad(self.keys, (0, 0, 0, more))
            self._value_room = torch.nn.functional.pad(self.values, (0, 0, 0, more))
        self._key_room[..., length:total, :] = key_states
        self._value_room[..., length:total, :] = value_states
        self.keys = self._key_room[..., :total, :]
        self.values = self._value_room[..., :total, :]
        return self.keys, self.values


class SharedPrompts:
    """Branches that share the KV cache of their prompt.

    In a forward pass, prompts are padded to the same number of new tokens. So prompts with many
    branches and prompts with few are divided into groups, each with a pass of its own.
    """

    def __init__(self, model: Any, input_ids: Tensor, model_kwargs: dict[str, Any]) -> None:
        """Set the mask of the prompts and the position after each of them."""
        cache, mask = model_kwargs[cache_argument()], model_kwargs.get("attention_mask")
        cache.layers = [_GrowingLayer(each.keys, each.values) for each in cache.layers]
        following = torch.cat([input_ids, input_ids[:, -1:]], dim=1)
        inputs = model.prepare_inputs_for_generation(
            following, next_sequence_length=1, **model_kwargs
        )
        prompt = torch.ones_like(input_ids) if mask is None else mask[:, : input_ids.shape[1]]
        rows = np.arange(len(input_ids))
        seen = np.zeros((len(rows), 0), np.bool_)
        self.model = model
        self.groups = [_Group(copy(cache), prompt, inputs["position_ids"], rows, seen)]
        cache.layers = []  # ``generate`` keeps this cache, and memory is to be freed
        self.group, self.index = np.zeros_like(rows), rows
        """[n] group of each branch, and its index in the group."""

    def advance(self, row: Ints, parent: Ints, token: Ints) -> Tensor:
        """Append a token to branches; return the logits of the next token, [m, v].

        Args:
            row: [m] index of the prompt.
            parent: [m] index of the branch that is continued.
            token: [m] id of the token.
        """
        found = self._divide(row, self.group[parent], self.index[parent])
        self.groups = [new for new, _ in found]
        self.group, self.index = np.empty_like(row), np.empty_like(row)
        logits: Tensor | None = None
        for number, (new, own) in enumerate(found):
            self.group[own], self.index[own] = number, np.arange(len(own))
            some = new.advance(self.model, row[own], token[own])
            if len(found) == 1:
                return some
            if logits is None:
                logits = some.new_empty(len(row), some.shape[1])
            logits[torch.from_numpy(own).to(some.device)] = some
        assert logits is not None
        return logits

    def _divide(self, row: Ints, group: Ints, index: Ints) -> list[tuple["_Group", Ints]]:
        """Return the groups of the next pass, and which of m branches belong to each.

        Args:
            row: [m] index of the prompt.
            group: [m] group of the branch that is continued.
            index: [m] its index in the group.
        """
        todo, self.groups = self.groups, []
        found: list[tuple[_Group, Ints]] = []
        for number in range(len(todo)):
            (own,) = np.nonzero(group == number)
            old = todo.pop(0)  # its cache is freed before the next group is divided
            most = _MOST_GROUPS - len(found) - len(todo)
            found += [(new, own[part]) for new, part in old.divide(row[own], index[own], most)]
        return found


@dataclass(eq=False)
class _Group:
    """Prompts of which all branches are run in the same forward pass."""

    cache: DynamicCache

    prompt: Tensor
    """[c, t] 1 for tokens, 0 for padding."""

    position: Tensor
    """[c, 1] or [3, c, 1] position of the next token."""

    rows: Ints
    """[c] indices of the prompts, in ascending order."""

    seen: Bools
    """[n, s] True for the cached tokens that the branch attends to, besides its prompt."""

    def advance(self, model: Any, row: Ints, token: Ints) -> Tensor:
        """Append a token to each branch; return the logits of the next token, [n, v]."""
        at, place = np.searchsorted(self.rows, row), count_equal_before(row)
        rows, most = len(self.rows), int(place.max()) + 1
        ids = np.zeros((rows, most), np.int64)
        ids[at, place] = token
        seen = np.zeros((rows, most, self.seen.shape[1] + most), np.bool_)
        seen[at, place, : self.seen.shape[1]] = self.seen
        seen[at, place, self.seen.shape[1] + place] = True
        self.seen = seen[at, place]
        device = self.prompt.device
        prompt = self.prompt[:, None].expand(-1, most, -1)
        visible = torch.cat([prompt.bool(), torch.from_numpy(seen).to(device)], dim=-1)[:, None]
        hidden = torch.finfo(model.dtype).min
        mask = torch.zeros_like(visible, dtype=model.dtype).masked_fill_(~visible, hidden)
        outputs = model(
            input_ids=torch.from_numpy(ids).to(device),
            attention_mask=mask,
            position_ids=self.position.expand(*self.position.shape[:-1], most).contiguous(),
            use_cache=True,
            return_dict=True,
            **{cache_argument(): self.cache},
        )
        self.position = self.position + 1
        logits: Tensor = outputs.logits
        return logits[torch.from_numpy(at).to(device), torch.from_numpy(place).to(device)]

    def divide(self, row: Ints, parent: Ints, most: int) -> Iterator[tuple["_Group", Ints]]:
        """Yield the groups of the next pass, and which of m branches belong to each.

        Args:
            row: [m] index of the prompt.
            parent: [m] index of the branch that is continued.
            most: Largest number of groups.
        """
        at, seen = np.searchsorted(self.rows, row), self.seen[parent]
        parts = similar_counts(np.bincount(at, minlength=len(self.rows)), most)
        for part in parts:
            (own,) = np.nonzero(np.isin(at, part))
            used = np.zeros((len(self.rows), seen.shape[1]), np.bool_)
            np.logical_or.at(used, at[own], seen[own])
            is_whole = len(parts) == 1 and 4 * len(part) > 3 * len(self.rows)
            if is_whole and 4 * used.sum(axis=1).max() >= 3 * used.shape[1]:
                self.seen = seen
                yield self, own
            else:
                order = np.argsort(~used[part], axis=1, kind="stable")
                order = order[:, : used.sum(axis=1).max()]
                index = order[np.searchsorted(part, at[own])]
                yield self._select(part, order, np.take_along_axis(seen[own], index, axis=1)), own

    def _select(self, part: Ints, tokens: Ints, seen: Bools) -> "_Group":
        """Return a group of some prompts, with some of the tokens of their branches."""
        length = self.prompt.shape[1]
        columns = np.column_stack([np.tile(np.arange(length), (len(part), 1)), length + tokens])
        i, j = (torch.from_numpy(each).to(self.prompt.device) for each in (part, columns))
        cache = copy(self.cache)
        cache.layers = [
            _GrowingLayer(
                layer.keys[i[:, None], :, j].transpose(1, 2),
                layer.values[i[:, None], :, j].transpose(1, 2),
            )
            for layer in self.cache.layers
        ]
        position = self.position.index_select(-2, i)
        return _Group(cache, self.prompt[i], position, self.rows[part], seen)


def similar_counts(counts: Ints, most: int = _MOST_GROUPS) -> list[Ints]:
    """Divide prompts by their number of branches, so that groups have little padding.

    Args:
        counts: [c] number of branches of each prompt. Those without branches are left out.
        most: Largest number of groups.

    Returns:
        The indices of the prompts of each group, in ascending order.
    """
    order = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
    groups: list[Ints] = []
    todo = [order] if len(order) else []
    while todo:
        own = todo.pop()
        sizes, rest = counts[own], np.arange(len(own), 0, -1)
        # padded[i]: tokens of both passes if the prompts are split before prompt i
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
    """Return how many equal values precede each value: 3, 5, 3 has 0, 0, 1."""
    order = np.argsort(values, kind="stable")
    ordered, found = values[order], np.empty(len(values), np.int64)
    found[order] = np.arange(len(values)) - np.searchsorted(ordered, ordered, side="left")
    return found
