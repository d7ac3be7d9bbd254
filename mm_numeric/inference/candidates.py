"""Find the answers that a model considers likely, and their probabilities.

Greedy decoding gives one answer, but a decoding rule such as the median needs a distribution. The
answers to a batch of questions are explored together, token by token. A branch is a prefix of an
answer. The model reads each question once, and the branches of a question share its KV cache.

``PrefixTree``  continues the most likely prefixes until the complete answers have most of the
                probability; if there are too many prefixes, it draws some of the less likely ones
``Samples``     draws answers at random; samples with the same prefix share a branch

The loop runs inside ``model.generate`` (``custom_generate``), which prepares images, encoder
outputs and caches. So it works with every model of transformers that generates.

Axes    b questions, n branches of all questions together, m branches with one token more,
        v vocabulary
"""

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import GenerationConfig

from mm_numeric.compat import default_generation_settings
from mm_numeric.inference.branch_cache import count_equal_before, download, read_prompts, upload
from mm_numeric.inference.constrain import Constraint
from mm_numeric.inference.number_distribution import Floats, Ints
from mm_numeric.losses.cross_entropy import chunks, most_likely, to_compute_dtype
from mm_numeric.losses.term import cumulative_sum
from mm_numeric.numbers.vocabulary import NumberVocabulary

KEPT_SETTINGS = frozenset(
    {"bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id"}
    | {"max_length", "max_new_tokens", "transformers_version"}
)
"""Fields of a generation config that do not change decoding, or that the caller always passes."""

_PLAIN = {**default_generation_settings(), "cache_implementation": "dynamic"}

PLAIN_SETTINGS: dict[str, Any] = {
    name: _PLAIN.get(name)
    for name in GenerationConfig().to_dict()
    if name not in KEPT_SETTINGS and not name.startswith("_")
}
"""Arguments of ``model.generate`` that override all generation settings of a checkpoint. Without
them, settings in ``generation_config.json`` would change greedy answers, but not explored answers,
because exploration applies no logits processors."""

_OF_SAMPLING = frozenset(
    {"do_sample", "temperature", "top_k", "top_p", "min_p", "top_h", "typical_p"}
    | {"epsilon_cutoff", "eta_cutoff", "use_cache", "cache_implementation", "cache_config"}
)
"""Generation settings that do not change greedy answers, or that users do not expect to."""


def unused_settings(stored: GenerationConfig) -> list[str]:
    """Return the ignored generation settings of a checkpoint that could have changed answers."""
    found = stored.to_dict()
    return sorted(
        name
        for name, plain in PLAIN_SETTINGS.items()
        if name not in _OF_SAMPLING and found.get(name) not in (None, plain, False, [], {})
    )


_BELOW_1 = 1 - 2**-40  # factor of random numbers, so that rounding draws no impossible token

_LEAST_TOKENS = 64
"""Least number of next tokens, besides number tokens, that are considered for each branch."""

_NEGLIGIBLE = 1e-4
"""A continuation is dropped at once if its probability is below ``_NEGLIGIBLE * (1 - mass)``."""


class InvalidLogitsError(ValueError):
    """The model's logits for the question ``row`` of a batch are NaN."""

    def __init__(self, row: int) -> None:
        super().__init__(
            "the logits of the model are nan: its weights are not finite, or it overflows in its "
            "precision. Load another checkpoint, or one in bfloat16 or float32."
        )
        self.row = row


@dataclass
class Explored:
    """The explored answers to one question. Each is a tuple of token ids without the end token."""

    probabilities: dict[tuple[int, ...], float] = field(default_factory=dict)
    """Maps each complete answer to its probability, or to its share of the samples."""

    drawn: set[tuple[int, ...]] = field(default_factory=set)
    """The answers that a ``PrefixTree`` has drawn. Their probabilities are estimates."""

    greedy: tuple[int, ...] = ()
    """The greedy answer; incomplete if the token limit ended it."""

    greedy_probabilities: tuple[float, ...] = ()
    """Probability of each token of the greedy answer, and of its end token."""


class _Branches(NamedTuple):
    """Prefixes of answers, in the order of the model's cache."""

    row: Ints
    """[n] index of the question."""

    tokens: Ints
    """[n, t] tokens of the answer so far."""

    weight: Floats
    """[n] probability of the prefix, or its share of the samples."""

    greedy: NDArray[np.bool_]
    """[n] True if greedy decoding would choose every token so far."""

    code: Floats
    """[n] random number from 0 to 1 that chooses the next token of a drawn branch; nan for branches
    that were not drawn."""

    def select(self, at: NDArray[np.bool_]) -> "_Branches":
        """Return the branches for which ``at`` [n] is True."""
        return _Branches(
            self.row[at], self.tokens[at], self.weight[at], self.greedy[at], self.code[at]
        )


class _Continuations(NamedTuple):
    """Branches with one more token each. A branch may occur with several next tokens."""

    parent: Ints
    """[m] index of the branch that is continued."""

    token: Ints
    """[m] id of the next token."""

    weight: Floats
    """[m] probability of the branch with this token, or its share of the samples."""

    code: Floats
    """[m] random number of a drawn branch, nan for others; see ``_Branches.code``."""


class Exploration(ABC):
    """The decoding loop, to be passed to ``model.generate`` as ``custom_generate``.

    ``generate`` then returns one ``Explored`` per question. ``stop_ids`` are the tokens that end an
    answer. Logits processors are not applied. ``constraint`` excludes tokens that the grammar of
    the task does not allow; probabilities are then normalised over the allowed tokens.
    """

    def __init__(self, stop_ids: Collection[int], constraint: Constraint | None = None) -> None:
        self.stop_ids = np.array(sorted(stop_ids), dtype=np.int64)
        self.constraint = constraint

    @abstractmethod
    def _start(self, rows: int, steps: int) -> None:
        """Prepare for a batch of ``rows`` questions and answers of at most ``steps`` tokens."""

    @abstractmethod
    def _inputs(self, branches: _Branches, width: int) -> list[Ints | Floats]:
        """Return the arrays that ``_look`` needs; ``width`` is the number of logits per branch."""

    @abstractmethod
    def _look(self, scores: Tensor, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Compute the values that ``_continue`` needs, from the logits [n, v] of the next token.

        ``inputs`` are the arrays that ``_inputs`` returned, as tensors.
        """

    @abstractmethod
    def _continue(
        self, branches: _Branches, found: Sequence[Floats], likeliest: Ints
    ) -> _Continuations:
        """Choose the next tokens of all branches.

        The chosen tokens must include ``likeliest`` [n], the most likely next token of each greedy
        branch (-1 for other branches). Continuations that do not end an answer become the next
        branches, in the same order. ``found`` is the result of ``_look``.
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
        """Explore the answers to the prompts ``input_ids`` [b, t]; ``generate`` calls this."""
        rows, length = input_ids.shape
        steps = generation_config.max_length - length
        explored = [Explored() for _ in range(rows)]
        branches = _Branches(
            np.arange(rows),
            np.empty((rows, 0), np.int64),
            np.ones(rows),
            np.ones(rows, np.bool_),
            np.full(rows, np.nan),
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
            if is_greedy:  # truncated at the token limit
                explored[row].greedy = tuple(tokens.tolist())
        return explored

    def _all_inputs(self, branches: _Branches, width: int) -> list[Ints | Floats]:
        """Return the arrays that ``_step`` needs; ``width`` is the number of logits per branch."""
        masks = () if self.constraint is None else self.constraint.masks(width)
        return [np.flatnonzero(branches.greedy), *masks, *self._inputs(branches, width)]

    def _step(
        self,
        branches: _Branches,
        scores: Tensor,
        inputs: Sequence[Tensor],
        explored: Sequence[Explored],
    ) -> tuple[Ints, _Branches]:
        """Continue all branches by a token; return the new branches and the parent of each."""
        places, *rest = inputs
        allowed = scores
        if self.constraint is not None:
            slots, new, *rest = rest
            allowed = self.constraint.mask(scores, slots, new)
        chosen = most_likely(allowed, places)
        # Not normalised over the allowed tokens: a model that has not learnt the grammar must not
        # look certain.
        greedy_probs = _probabilities(scores, places, chosen)
        seen = self._look(allowed, rest)
        greedy_tokens, probs, *found = download(chosen, greedy_probs, *seen)
        likeliest = np.full(len(branches.row), -1)
        likeliest[branches.greedy] = greedy_tokens
        for row, prob in zip(branches.row[branches.greedy].tolist(), probs.tolist(), strict=True):
            if math.isnan(prob):
                raise InvalidLogitsError(row)
            explored[row].greedy_probabilities += (prob,)
        parent, token, weight, code = self._continue(branches, found, likeliest)
        greedy = branches.greedy[parent] & (token == likeliest[parent])
        ends = np.isin(token, self.stop_ids)
        whole = _Branches(branches.row[parent], branches.tokens[parent], weight, greedy, code)
        _record(explored, *whole.select(ends))
        going = whole.select(~ends)
        tokens = np.column_stack([going.tokens, token[~ends]])
        return parent[~ends], going._replace(tokens=tokens)

    def _end_complete(
        self,
        constraint: Constraint,
        parent: Ints,
        branches: _Branches,
        explored: Sequence[Explored],
    ) -> tuple[Ints, _Branches]:
        """Record the answers after which only an end token is allowed; return the other branches.

        Recorded answers need no forward pass, because the end token has a probability of 1. A
        greedy answer needs one, unless the token limit is reached, because
        ``greedy_probabilities`` contain the end token's probability among all tokens.
        """
        going = ~constraint.complete() | (branches.greedy & (constraint.left > 0))
        _record(explored, *branches.select(~going))
        constraint.states = constraint.states[going]
        self._drop(going)
        return parent[going], branches.select(going)

    def _drop(self, going: NDArray[np.bool_]) -> None:  # noqa: B027 (a prefix tree keeps nothing)
        """Forget the complete branches, for which ``going`` [n] is False."""


def _record(
    explored: Sequence[Explored],
    row: Ints,
    tokens: Ints,
    weight: Floats,
    greedy: NDArray[np.bool_],
    code: Floats,
) -> None:
    """Add complete answers to ``explored``. The other arguments are the fields of ``_Branches``."""
    answers, drawn = map(tuple, tokens.tolist()), ~np.isnan(code)
    for found, answer, prob, is_greedy, is_drawn in zip(
        row.tolist(), answers, weight.tolist(), greedy.tolist(), drawn.tolist(), strict=True
    ):
        if prob > 0:
            known = explored[found].probabilities
            known[answer] = known.get(answer, 0.0) + prob
            if is_drawn:
                explored[found].drawn.add(answer)
        if is_greedy:
            explored[found].greedy = answer


class PrefixTree(Exploration):
    """Explores the most probable answers, until their probabilities sum to ``mass``.

    ``width`` is the largest number of branches per question, besides the greedy branch. If there
    are more prefixes, their number is reduced without bias: likely prefixes keep their
    probability, and an odd number of the others are drawn, which represent all others with equal
    weights (Fearnhead and Clifford 2003, https://doi.org/10.1111/1467-9868.00421). They are drawn
    systematically from the cumulative distribution over the prefixes in the order of their texts.

    A drawn branch has only one continuation, besides the end of its answer: a code from 0 to 1
    chooses the next token by inverse transform sampling (arithmetic sampling, Vilnis et al. 2023,
    arXiv 2210.15458). At each token, the codes of a question are evenly spaced, in random order, so
    that later coordinates are also drawn systematically (Latin hypercube sampling).

    ``ids`` are the ids of the questions. The draws for a question depend on its id and ``seed``,
    but not on the other questions of the batch. ``vocabulary`` orders number tokens by their
    digits; if it is None, tokens are ordered by their ids.
    """

    def __init__(
        self,
        stop_ids: Collection[int],
        constraint: Constraint | None = None,
        *,
        mass: float = 0.99,
        width: int = 64,
        ids: Sequence[str] = (),
        seed: int = 0,
        vocabulary: NumberVocabulary | None = None,
    ) -> None:
        super().__init__(stop_ids, constraint)
        self.mass, self.width, self.ids, self.seed = mass, width, ids, seed
        self.vocabulary = vocabulary
        more = 0 if vocabulary is None else len(vocabulary.tokens)
        self.count = max(width, _LEAST_TOKENS) + more
        """Largest number of next tokens that are considered for a branch that was not drawn."""
        self.order: Ints | None = None
        """[v] ids of the tokens in the order of their texts."""

    def _start(self, rows: int, steps: int) -> None:
        self.spare = np.full(rows, 1.0 - self.mass)
        """[b] probability of answers that may still be left out."""
        self.random = np.zeros((rows, steps, 2 + self.width))
        """[b, steps, 2 + width] random numbers for each question and token: the offset of new
        draws, the offset of the codes, and keys that put the codes in random order."""
        for own, name in zip(self.random, self.ids, strict=False):  # a dummy image row has no id
            own[:] = _random(name, self.seed).random(own.shape)

    def _inputs(self, branches: _Branches, width: int) -> list[Ints | Floats]:
        if self.order is None:
            self.order = _text_order(self.vocabulary, width)
            self.rank = np.argsort(self.order)
            self.is_sorted = bool((np.diff(self.order) > 0).all())
        drawn = ~np.isnan(branches.code)
        order = np.arange(0) if self.is_sorted or not drawn.any() else self.order
        return [
            np.flatnonzero(~drawn),
            np.flatnonzero(drawn),
            branches.code[drawn],
            self.stop_ids[self.stop_ids < width],
            order,
        ]

    def _least(self, branches: _Branches) -> Floats:
        """Return the logarithm of the least probability of a next token that is not negligible."""
        with np.errstate(divide="ignore", invalid="ignore"):  # both may be 0
            return np.log((1.0 - self.mass) * _NEGLIGIBLE) - np.log(branches.weight)

    def _look(self, scores: Tensor, inputs: Sequence[Tensor]) -> list[Tensor]:
        exact, drawn, code, stops, order = inputs
        likely = _likely(scores, exact, self.count, stops)
        return [*likely, *_follow(scores, drawn, code, stops, order)]

    def _continue(
        self, branches: _Branches, found: Sequence[Floats], likeliest: Ints
    ) -> _Continuations:
        is_exact = np.isnan(branches.code)
        (exact,), (drawn,) = np.nonzero(is_exact), np.nonzero(~is_exact)
        parent, token, logs = exact[found[0].astype(np.int64)], found[1].astype(np.int64), found[2]
        ends, likely = np.isin(token, self.stop_ids), logs > self._least(branches)[parent]
        likely |= ends & np.isin(parent, parent[ends & likely])
        chosen = (token >= 0) & (likely | (token == likeliest[parent]))
        parent, token, probs = parent[chosen], token[chosen], np.exp(logs[chosen])
        next_token, ended = found[3:]
        stop = np.full(len(drawn), self.stop_ids[0])
        every = [
            (parent, token, probs, np.full(len(parent), np.nan)),
            (drawn, stop, ended, np.zeros(len(drawn))),
            (drawn, next_token.astype(np.int64), 1 - ended, np.zeros(len(drawn))),
        ]
        parent, token, weight, code = (np.concatenate(own) for own in zip(*every, strict=True))
        weight *= branches.weight[parent]
        least = (1.0 - self.mass) * _NEGLIGIBLE
        sort = np.lexsort((self.rank[token], parent))
        sort = sort[np.isnan(code[sort]) | (weight[sort] > least)]
        parent, token, weight, code = parent[sort], token[sort], weight[sort], code[sort]
        row, ends = branches.row[parent], np.isin(token, self.stop_ids)
        needed = ends | (token == likeliest[parent])
        # Leave out at most half of the probability that may still be left out: the rest is for
        # later tokens. But at least 1/16 of the total may be left out at each token, even if that
        # exceeds the limit, because exploring so little probability is not worth the time.
        least = (1.0 - self.mass) / 16
        keep = keep_most(row, weight, needed, np.maximum(self.spare / 2, least))
        counts = np.bincount(row[keep & ~needed], minlength=len(self.spare))
        random = self.random[:, branches.tokens.shape[1]]
        going = ~ends
        for question in np.flatnonzero(counts > self.width).tolist():
            (at,) = np.nonzero((row == question) & ~needed & (weight > 0))
            if self.constraint is not None:  # complete answers need no branch
                whole = self.constraint.completed_by(parent[at], token[at])
                keep[at[whole]], going[at[whole]], at = True, False, at[~whole]
                if len(at) <= self.width:
                    continue
            own, weights, is_drawn = draw_some(weight[at], self.width, random[question, 0])
            keep[at] = False
            at = at[own]
            keep[at], weight[at] = True, weights
            code[at[is_drawn]] = 0.0
        np.subtract.at(self.spare, branches.row, branches.weight)
        np.add.at(self.spare, row[keep], weight[keep])
        going &= keep & ~np.isnan(code)
        for question in np.unique(row[going]).tolist():
            (at,) = np.nonzero(going & (row == question))
            even = np.argsort(random[question, 2 : 2 + len(at)]) / len(at)
            code[at] = (even + random[question, 1]) % 1
        return _Continuations(parent[keep], token[keep], weight[keep], code[keep])


def _random(name: str, seed: int) -> np.random.Generator:
    """Return a random generator for a question, seeded with its id ``name`` and ``seed``."""
    number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8])
    return np.random.default_rng(number + seed)


def _text_order(vocabulary: NumberVocabulary | None, width: int) -> Ints:
    """Return the token ids below ``width``, with number tokens in the order of their digits.

    For example, 10 is between 1 and 11, so numbers of equal length are in the order of their
    values. All other tokens keep their positions.
    """
    order = np.arange(width)
    tokens = () if vocabulary is None else vocabulary.tokens
    keys = {
        own.id: (own.digits == "", own.digit_group.split("0")[0], own.digits, own.value)
        for own in tokens
        if own.id < width
    }
    order[sorted(keys)] = sorted(keys, key=lambda own: keys[own])
    return order


def keep_most(
    row: Ints, weight: Floats, always: NDArray[np.bool_], allowed: Floats
) -> NDArray[np.bool_]:
    """Leave out the least likely continuations; return True, [m], for those to keep.

    ``row`` [m] is the index of each continuation's question, and ``weight`` [m] its probability.
    Continuations for which ``always`` [m] is True are kept. For each question, the probabilities of
    the continuations that are left out sum to at most ``allowed`` [b].
    """
    optional = np.where(always, 0.0, weight)
    order = np.lexsort((optional, row))
    rows, sorted_weights = row[order], optional[order]
    sums = np.cumsum(sorted_weights)
    before = sums - sorted_weights
    up_to_here = sums - before[np.searchsorted(rows, rows, side="left")]
    keep = np.empty(len(row), np.bool_)
    keep[order] = (up_to_here > allowed[rows]) & (sorted_weights > 0)
    return keep | always


def draw_some(weights: Floats, count: int, offset: float) -> tuple[Ints, Floats, NDArray[np.bool_]]:
    """Reduce m > ``count`` weights to k = ``count`` or ``count`` - 1 weights, without bias.

    Weights above a threshold are kept. From the other weights, an odd number is drawn by systematic
    sampling in their order, so that the median of the drawn items is one of these items. All drawn
    items get the same new weight. The sum of all weights stays the same.

    ``weights`` [m] are above 0, and ``offset`` is a random number from 0 to 1. Returns the
    ascending indices [k] of the remaining weights, their new values [k], and True [k] for each
    weight that was drawn.
    """
    ordered = np.sort(weights)[::-1]
    rest = np.cumsum(ordered[::-1])[::-1][:count] / np.arange(count, 0, -1)
    threshold = rest[np.argmax(ordered[:count] <= rest)]  # the condition holds for the last one
    (kept,), (light,) = np.nonzero(weights > threshold), np.nonzero(weights <= threshold)
    draws = max(1, (count - len(kept) - 1) // 2 * 2 + 1)
    ends = np.cumsum(weights[light])
    step = ends[-1] / draws
    grid = (np.arange(draws) + offset) * step
    hit = np.minimum(np.searchsorted(ends, grid, side="right"), len(light) - 1)
    hit, times = np.unique(hit, return_counts=True)
    found = np.concatenate([kept, light[hit]])
    order = np.argsort(found)
    new = np.concatenate([weights[kept], step * times])
    return found[order], new[order], order >= len(kept)


class Samples(Exploration):
    """Draws ``count`` answers to each question from the model's distribution.

    ``ids`` are the ids of the questions. The draws for a question depend on its id and ``seed``,
    but not on the other questions of the batch.
    """

    def __init__(
        self,
        stop_ids: Collection[int],
        constraint: Constraint | None = None,
        *,
        count: int,
        ids: Sequence[str],
        seed: int = 0,
    ) -> None:
        super().__init__(stop_ids, constraint)
        self.count, self.ids, self.seed = count, ids, seed

    def _start(self, rows: int, steps: int) -> None:
        self.branch = np.repeat(np.arange(rows)[:, None], self.count, axis=1)
        """[b, samples] index of each sample's branch; -1 if the sample is complete."""
        self.branch[len(self.ids) :] = -1  # a dummy image row has no samples
        self.random = np.empty((rows, steps, self.count))
        for own, name in zip(self.random, self.ids, strict=False):
            own[:] = _random(name, self.seed).random(own.shape)

    def _inputs(self, branches: _Branches, width: int) -> list[Ints | Floats]:
        self.vocabulary, step = width, branches.tokens.shape[1]
        branch, random = self.branch[self.branch >= 0], self.random[:, step][self.branch >= 0]
        place = count_equal_before(branch)
        table = np.zeros((len(branches.row), int(place.max(initial=0)) + 1))
        table[branch, place] = random
        return [table, branch, place]

    def _look(self, scores: Tensor, inputs: Sequence[Tensor]) -> list[Tensor]:
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
        return _Continuations(parent, token, weight, np.full(len(parent), np.nan))

    def _drop(self, going: NDArray[np.bool_]) -> None:
        after = np.where(going, np.cumsum(going) - 1, -1)
        self.branch = np.where(self.branch >= 0, after[self.branch], -1)


def _probabilities(scores: Tensor, at: Tensor, tokens: Tensor) -> Tensor:
    """Return the probability of ``tokens`` [k] in the rows ``at`` [k] of the logits [n, v]."""
    chosen = to_compute_dtype(scores[at])
    logits = chosen.gather(1, tokens[:, None])[:, 0]
    return (logits - chosen.logsumexp(dim=-1)).double().exp()


def _likely(scores: Tensor, at: Tensor, count: int, stops: Tensor) -> list[Tensor]:
    """Return the likely continuations of branches: parents, tokens and log-probabilities, [m] each.

    The branches are the rows ``at`` [k] of the logits [n, v]; parents are indices into ``at``. Each
    branch continues with its ``count`` likeliest tokens (a fixed number, to avoid synchronisation
    with the GPU), and with all end tokens ``stops``. An end token among the likeliest tokens is
    replaced by -1, so that it does not occur twice.
    """
    found = []
    for chunk in chunks(len(at), scores.shape[-1], scores.device):
        piece = to_compute_dtype(scores[at[chunk]])
        piece = piece - piece.logsumexp(dim=-1, keepdim=True)
        token = piece.topk(min(count, piece.shape[-1])).indices
        token = token.masked_fill((token[..., None] == stops).any(dim=-1), -1)
        token = torch.cat([token, stops.expand(len(token), -1)], dim=1)
        parent = torch.arange(len(token), device=token.device)[:, None].expand_as(token)
        parent, token = parent.flatten(), token.flatten()
        found.append((parent + chunk.start, token, piece[parent, token.clamp(min=0)]))
    return [torch.cat(parts) for parts in zip(*found, strict=True)]


def _follow(scores: Tensor, at: Tensor, code: Tensor, stops: Tensor, order: Tensor) -> list[Tensor]:
    """Choose the next tokens [k] of drawn branches by inverse transform sampling.

    The branches are the rows ``at`` [k] of the logits [n, v], and ``code`` [k] are uniform random
    numbers from 0 to 1, as float64. ``order`` [v] are the token ids in the order of the cumulative
    distribution; if ``order`` is empty, the ids are ascending. The end tokens ``stops`` are not
    drawn. Returns the tokens, and the probability [k] that the answer ends.
    """
    found = []
    for chunk in chunks(len(at), scores.shape[-1], scores.device):
        probs = to_compute_dtype(scores[at[chunk]]).softmax(dim=-1).double()
        ends = probs[:, stops].sum(dim=-1)
        probs[:, stops] = 0
        if len(order):
            probs = probs[:, order]
        cumulative = cumulative_sum(probs)
        wanted = (code[chunk] * _BELOW_1)[:, None] * cumulative[:, -1:]
        place = torch.searchsorted(cumulative, wanted, right=True)
        place = place.clamp(max=scores.shape[-1] - 1)
        token = order[place] if len(order) else place
        found.append((token[:, 0], ends))
    return [torch.cat(parts) for parts in zip(*found, strict=True)]


def draw(scores: Tensor, random: Tensor) -> Tensor:
    """Draw k tokens from each row of the logits [n, v] by inverse transform sampling.

    ``random`` [n, k] are uniform random numbers from 0 to 1, as float64. The result is [n, k].
    """
    found = []
    for chunk in chunks(len(scores), scores.shape[-1], scores.device):
        cumulative = cumulative_sum(to_compute_dtype(scores[chunk]).softmax(dim=-1).double())
        wanted = random[chunk] * cumulative[:, -1:]
        token = torch.searchsorted(cumulative, wanted, right=True)
        found.append(token.clamp(max=scores.shape[-1] - 1))
    return torch.cat(found)
