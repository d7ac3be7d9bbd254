"""Find the answers that a model considers likely, and their probabilities.

Greedy decoding gives one answer, but a decoding rule such as the median needs a distribution. The
answers to a batch of questions are explored together, token by token, as branches (different
beginnings of an answer). A question runs through the model once; its branches share the KV cache.

``PrefixTree``  keeps the most likely beginnings, until the answers have most of the probability
``Samples``     draws answers at random; equal beginnings share a branch

The loop runs inside ``model.generate`` (``custom_generate``), which prepares images, encoder
outputs and caches. So it works with every model of transformers that generates.

Axes    b questions, n branches of all questions together, m their continuations, v vocabulary
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mm_numeric.inference.branch_cache import count_equal_before, download, read_prompts, upload
from mm_numeric.inference.constrain import Constraint
from mm_numeric.inference.number_distribution import Floats, Ints
from mm_numeric.losses.cross_entropy import chunks, most_likely, to_compute_dtype
from mm_numeric.losses.term import cumulative_sum

PLAIN_SETTINGS = {
    "do_sample": False,
    "num_beams": 1,
    "repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "use_cache": True,
    "cache_implementation": "dynamic",
}
"""Arguments of ``model.generate`` that override the generation settings of a checkpoint."""

_NEGLIGIBLE = 1e-4
"""A continuation is dropped first if its probability is below this part of ``1 - mass``."""


@dataclass
class Explored:
    """The explored answers to one question, as token ids without the end token."""

    probabilities: dict[tuple[int, ...], float] = field(default_factory=dict)
    """Maps each complete answer to its probability, or to its share of the samples."""

    greedy: tuple[int, ...] = ()
    """The greedy answer, which may be incomplete."""

    greedy_probabilities: tuple[float, ...] = ()
    """Probability of each token of the greedy answer, and of its end token."""


class _Branches(NamedTuple):
    """Beginnings of answers, in the order of the model's cache."""

    row: Ints
    """[n] index of the question."""

    tokens: Ints
    """[n, t] tokens of the answer so far."""

    weight: Floats
    """[n] probability, or share of the samples."""

    greedy: NDArray[np.bool_]
    """[n] True if every token so far is the most likely one."""

    def select(self, at: NDArray[np.bool_]) -> "_Branches":
        """Return the branches that are True in ``at`` [n]."""
        return _Branches(self.row[at], self.tokens[at], self.weight[at], self.greedy[at])


class _Continuations(NamedTuple):
    """Next tokens of branches."""

    parent: Ints
    """[m] index of the branch."""

    token: Ints
    """[m] id of the next token."""

    weight: Floats
    """[m] probability of the branch with this token, or share of the samples."""


class Exploration(ABC):
    """The decoding loop, for ``model.generate(custom_generate=...)``.

    ``generate`` then returns one ``Explored`` per question. ``stop_ids`` end an answer. Logits
    processors, such as ``suppress_tokens`` of a generation config, are not applied.
    ``constraint`` excludes the tokens that the grammar of the task does not allow; probabilities
    are then those among the allowed tokens.
    """

    def __init__(self, stop_ids: Collection[int], constraint: Constraint | None = None) -> None:
        self.stop_ids = np.array(sorted(stop_ids), dtype=np.int64)
        self.constraint = constraint

    @abstractmethod
    def _start(self, rows: int, steps: int) -> None:
        """Prepare for a batch of ``rows`` questions and answers of at most ``steps`` tokens."""

    @abstractmethod
    def _inputs(self, branches: _Branches, width: int) -> list[Ints | Floats]:
        """Return what ``_look`` needs on the device, for logits of ``width`` tokens."""

    @abstractmethod
    def _look(
        self, scores: Tensor, likeliest: tuple[Tensor, Tensor], inputs: Sequence[Tensor]
    ) -> list[Tensor]:
        """Return what ``_continue`` needs of the logits of the next token.

        Args:
            scores: [n, v] logits.
            likeliest: The greedy branches, and the most likely token of each.
            inputs: The tensors of ``_inputs``.
        """

    @abstractmethod
    def _continue(
        self, branches: _Branches, found: Sequence[Floats], likeliest: Ints
    ) -> _Continuations:
        """Choose the next tokens of all branches.

        The most likely token of every greedy branch must be among them. Those that do not end an
        answer become the next branches, in the same order.

        Args:
            branches: The n branches.
            found: What ``_look`` returned.
            likeliest: [n] most likely next token of greedy branches; -1 for other branches.
        """

    def __call__(
        self,
        model: Any,
        input_ids: Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        **model_kwargs: Any,
    ) -> list[Explored]:
        """Explore the answers to the prompts ``input_ids`` [b, t], given by ``generate``."""
        rows, length = input_ids.shape
        steps = generation_config.max_length - length
        explored = [Explored() for _ in range(rows)]
        branches = _Branches(
            np.arange(rows), np.empty((rows, 0), np.int64), np.ones(rows), np.ones(rows, np.bool_)
        )
        self._start(rows, steps)
        scores, cache = read_prompts(model, input_ids, model_kwargs)
        width = scores.shape[-1]
        inputs = upload(scores.device, *self._all_inputs(branches, width))
        for step in range(steps):
            parent, branches = self._step(branches, scores, inputs, explored)
            if self.constraint is not None and len(parent):
                self.constraint.advance(parent, branches.tokens[:, -1])
                parent, branches = self._end_complete(self.constraint, parent, branches, explored)
            if step + 1 == steps or not len(parent):
                break
            more = self._all_inputs(branches, width)
            scores, inputs = cache.advance(branches.row, parent, branches.tokens[:, -1], more)
        for row, tokens, is_greedy in zip(*branches[:2], branches.greedy, strict=True):
            if is_greedy:  # cut at the token limit
                explored[row].greedy = tuple(tokens.tolist())
        return explored

    def _all_inputs(self, branches: _Branches, width: int) -> list[Ints | Floats]:
        """Return what ``_step`` needs on the device, for logits of ``width`` tokens."""
        masks = () if self.constraint is None else self.constraint.masks(width)
        return [np.flatnonzero(branches.greedy), *masks, *self._inputs(branches, width)]

    def _step(
        self,
        branches: _Branches,
        scores: Tensor,
        inputs: Sequence[Tensor],
        explored: Sequence[Explored],
    ) -> tuple[Ints, _Branches]:
        """Continue all branches and record complete answers; return the parents and branches."""
        places, *rest = inputs
        allowed = scores
        if self.constraint is not None:
            slots, new, *rest = rest
            allowed = self.constraint.mask(scores, slots, new)
        chosen = most_likely(allowed, places)
        # Among all tokens: a model that has not learnt the grammar is not to look certain.
        greedy_probs = _probabilities(scores, places, chosen)
        seen = self._look(allowed, (places, chosen), rest)
        greedy_tokens, probs, *found = download(chosen, greedy_probs, *seen)
        likeliest = np.full(len(branches.row), -1)
        likeliest[branches.greedy] = greedy_tokens
        for row, prob in zip(branches.row[branches.greedy], probs, strict=True):
            explored[row].greedy_probabilities += (float(prob),)
        parent, token, weight = self._continue(branches, found, likeliest)
        greedy = branches.greedy[parent] & (token == likeliest[parent])
        ends = np.isin(token, self.stop_ids)
        ended = parent[ends]
        _record(explored, branches.row[ended], branches.tokens[ended], weight[ends], greedy[ends])
        going = ~ends
        parent = parent[going]
        tokens = np.column_stack([branches.tokens[parent], token[going]])
        return parent, _Branches(branches.row[parent], tokens, weight[going], greedy[going])

    def _end_complete(
        self,
        constraint: Constraint,
        parent: Ints,
        branches: _Branches,
        explored: Sequence[Explored],
    ) -> tuple[Ints, _Branches]:
        """Record the answers that only an end token may follow; return the other branches.

        They need no forward pass, because the end token has a probability of 1. The greedy answers
        do, if another token fits, because ``greedy_probabilities`` are those among all tokens.
        """
        going = ~constraint.complete() | (branches.greedy & (constraint.left > 0))
        _record(explored, *branches.select(~going))
        constraint.states = constraint.states[going]
        self._drop(going)
        return parent[going], branches.select(going)

    def _drop(self, going: NDArray[np.bool_]) -> None:  # noqa: B027 (a prefix tree keeps nothing)
        """Forget the branches that are False in ``going`` [n], which are complete."""


def _record(
    explored: Sequence[Explored],
    row: Ints,
    tokens: Ints,
    weight: Floats,
    greedy: NDArray[np.bool_],
) -> None:
    """Add k complete answers, with their tokens [k, t] and probabilities [k]."""
    for found, answer, prob, is_greedy in zip(
        row.tolist(), map(tuple, tokens.tolist()), weight.tolist(), greedy.tolist(), strict=True
    ):
        if prob > 0:
            known = explored[found].probabilities
            known[answer] = known.get(answer, 0.0) + prob
        if is_greedy:
            explored[found].greedy = answer


class PrefixTree(Exploration):
    """Explores the answers of highest probability, until they have the probability ``mass``.

    ``width`` is the largest number of branches per question, besides the greedy one. It limits
    memory and time, so the probability that is reached can be smaller than ``mass``.
    """

    def __init__(
        self,
        stop_ids: Collection[int],
        constraint: Constraint | None = None,
        *,
        mass: float = 0.99,
        width: int = 64,
    ) -> None:
        super().__init__(stop_ids, constraint)
        self.mass, self.width = mass, width

    def _start(self, rows: int, steps: int) -> None:
        self.spare = np.full(rows, 1.0 - self.mass)
        """[b] probability that may still be left out."""

    def _inputs(self, branches: _Branches, width: int) -> list[Ints | Floats]:
        return [self._least(branches), self.stop_ids[self.stop_ids < width]]

    def _least(self, branches: _Branches) -> Floats:
        """Return the logarithm of the least probability of a next token that is not negligible."""
        with np.errstate(divide="ignore", invalid="ignore"):  # both may be 0
            return np.log((1.0 - self.mass) * _NEGLIGIBLE) - np.log(branches.weight)

    def _look(
        self, scores: Tensor, likeliest: tuple[Tensor, Tensor], inputs: Sequence[Tensor]
    ) -> list[Tensor]:
        least, stops = inputs
        return _likely(scores, least, self.width, likeliest, stops)

    def _continue(
        self, branches: _Branches, found: Sequence[Floats], likeliest: Ints
    ) -> _Continuations:
        parent, token, logs = found[0].astype(np.int64), found[1].astype(np.int64), found[2]
        ends, likely = np.isin(token, self.stop_ids), logs > self._least(branches)[parent]
        likely |= ends & np.isin(parent, parent[ends & likely])
        chosen = (token >= 0) & (likely | (token == likeliest[parent]))
        parent, token, weight = parent[chosen], token[chosen], np.exp(logs[chosen])
        weight *= branches.weight[parent]
        row, needed = branches.row[parent], token == likeliest[parent]
        needed |= np.isin(token, self.stop_ids)
        # Half of what may be left out is for later tokens. Not less than a part of it, if the width
        # has cut more off: the rest is then not worth the time.
        least = (1.0 - self.mass) / 16
        keep = keep_most(row, weight, needed, np.maximum(self.spare / 2, least), self.width)
        np.subtract.at(self.spare, branches.row, branches.weight)
        np.add.at(self.spare, row[keep], weight[keep])
        return _Continuations(parent[keep], token[keep], weight[keep])


def keep_most(
    row: Ints, weight: Floats, always: NDArray[np.bool_], allowed: Floats, most: int
) -> NDArray[np.bool_]:
    """Return True for the continuations to keep, [m]: the least likely ones are left out.

    ``row`` [m] is the index of the question, and ``weight`` [m] the probability. Those that are
    ``always`` [m] kept count as nothing. Of each question, at most ``most`` are kept. If fewer are,
    the probabilities of the others sum to at most ``allowed`` [b].
    """
    optional = np.where(always, 0.0, weight)
    order = np.lexsort((-optional, row))
    rows, sorted_weights = row[order], optional[order]
    total = np.bincount(rows, sorted_weights, minlength=len(allowed))
    first = np.searchsorted(rows, rows, side="left")
    before = np.cumsum(sorted_weights) - sorted_weights
    rest = total[rows] - (before - before[first])  # this one and all that are less likely
    is_early = np.arange(len(rows)) - first < most
    keep = np.empty(len(row), np.bool_)
    keep[order] = (rest > allowed[rows]) & is_early & (sorted_weights > 0)
    return keep | always


class Samples(Exploration):
    """Draws ``count`` answers to each question from the model's distribution.

    ``ids`` are the ids of the questions. They are the seeds: an answer does not depend on the other
    questions of the batch.
    """

    def __init__(
        self,
        stop_ids: Collection[int],
        constraint: Constraint | None = None,
        *,
        count: int,
        ids: Sequence[str],
    ) -> None:
        super().__init__(stop_ids, constraint)
        self.count, self.ids = count, ids

    def _start(self, rows: int, steps: int) -> None:
        self.branch = np.repeat(np.arange(rows)[:, None], self.count, axis=1)
        """[b, samples] branch of each sample; -1 if its answer is complete."""
        self.branch[len(self.ids) :] = -1  # a dummy image row has no samples
        self.random = np.empty((rows, steps, self.count))
        for own, name in zip(self.random, self.ids, strict=False):
            seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8])
            own[:] = np.random.default_rng(seed).random(own.shape)

    def _inputs(self, branches: _Branches, width: int) -> list[Ints | Floats]:
        self.vocabulary, step = width, branches.tokens.shape[1]
        branch, random = self.branch[self.branch >= 0], self.random[:, step][self.branch >= 0]
        place = count_equal_before(branch)
        table = np.zeros((len(branches.row), int(place.max(initial=0)) + 1))
        table[branch, place] = random
        return [table, branch, place]

    def _look(
        self, scores: Tensor, likeliest: tuple[Tensor, Tensor], inputs: Sequence[Tensor]
    ) -> list[Tensor]:
        table, branch, place = inputs
        return [draw(scores, table)[branch, place]]

    def _continue(
        self, branches: _Branches, found: Sequence[Floats], likeliest: Ints
    ) -> _Continuations:
        going, vocabulary = self.branch >= 0, self.vocabulary
        branch, token = self.branch[going], found[0].astype(np.int64)
        at = np.flatnonzero(branches.greedy)
        pairs = np.concatenate([branch, at]) * vocabulary + np.concatenate([token, likeliest[at]])
        unique, index = np.unique(pairs, return_inverse=True)
        weight = np.bincount(index[: len(branch)], minlength=len(unique)) / self.count
        parent, token = unique // vocabulary, unique % vocabulary
        ends = np.isin(token, self.stop_ids)
        self.branch[going] = np.where(ends, -1, np.cumsum(~ends) - 1)[index[: len(branch)]]
        return _Continuations(parent, token, weight)

    def _drop(self, going: NDArray[np.bool_]) -> None:
        after = np.where(going, np.cumsum(going) - 1, -1)
        self.branch = np.where(self.branch >= 0, after[self.branch], -1)


def _probabilities(scores: Tensor, at: Tensor, tokens: Tensor) -> Tensor:
    """Return the probability of a token [k] in each of the rows ``at`` [k] of logits [n, v]."""
    chosen = to_compute_dtype(scores[at])
    logits = chosen.gather(1, tokens[:, None])[:, 0]
    return (logits - chosen.logsumexp(dim=-1)).double().exp()


def _likely(
    scores: Tensor, least: Tensor, count: int, needed: tuple[Tensor, Tensor], stops: Tensor
) -> list[Tensor]:
    """Return the likely continuations of branches: parents, tokens and log-probabilities, [m] each.

    They are above the log-probability ``least`` [n], and at most ``count`` of a branch, besides
    equally likely ones. Others may be among them: a GPU would have to wait for their number.
    ``needed`` are branches [k] and a token of each [k] that is returned in any case, and ``stops``
    are returned together, as they end the same answer.
    """
    find = _above if scores.device.type == "cpu" else _highest
    needs = torch.zeros_like(scores, dtype=torch.bool)
    needs[needed] = True
    found = []
    for chunk in chunks(len(scores), scores.shape[-1], scores.device):
        piece = to_compute_dtype(scores[chunk])
        piece = piece - piece.logsumexp(dim=-1, keepdim=True)
        parent, token = find(piece, least[chunk, None].to(piece), count, needs[chunk], stops)
        found.append((parent + chunk.start, token, piece[parent, token.clamp(min=0)]))
    return [torch.cat(parts) for parts in zip(*found, strict=True)]


def _above(
    logs: Tensor, least: Tensor, count: int, needs: Tensor, stops: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the indices of what ``_likely`` returns for log-probabilities [n, v]."""
    likely = logs > least
    (many,) = (likely.sum(dim=-1) > count).nonzero(as_tuple=True)
    if len(many):
        lowest = logs[many].topk(count, dim=-1).values[:, -1:]
        likely[many] &= logs[many] >= lowest
    likely[:, stops] |= likely[:, stops].any(dim=-1, keepdim=True)
    parent, token = (likely | needs).nonzero(as_tuple=True)
    return parent, token


def _highest(
    logs: Tensor, least: Tensor, count: int, needs: Tensor, stops: Tensor
) -> tuple[Tensor, Tensor]:
    """Return ``count`` tokens and the end tokens for each branch; -1 for those that are both."""
    token = logs.topk(min(count, logs.shape[-1])).indices
    token = token.masked_fill((token[..., None] == stops).any(dim=-1), -1)
    token = torch.cat([token, stops.expand(len(token), -1)], dim=1)
    parent = torch.arange(len(token), device=token.device)[:, None].expand_as(token)
    return parent.flatten(), token.flatten()


def draw(scores: Tensor, random: Tensor) -> Tensor:
    """Draw k tokens of each row, [n, k], by inverse transform sampling.

    Args:
        scores: [n, v] logits.
        random: [n, k] uniform random numbers, 0 to 1, as float64.
    """
    found = []
    for chunk in chunks(len(scores), scores.shape[-1], scores.device):
        cumulative = cumulative_sum(to_compute_dtype(scores[chunk]).softmax(dim=-1).double())
        wanted = random[chunk] * cumulative[:, -1:]
        token = torch.searchsorted(cumulative, wanted, right=True)
        found.append(token.clamp(max=scores.shape[-1] - 1))
    return torch.cat(found)
