"""Compute the tokens that a regular expression allows next in an answer.

    regular expression  ->  automaton over bytes  ->  allowed tokens in each state

A state of the automaton is the set of texts that may still follow. States and their allowed tokens
are computed when they are first needed, and cached. Each generation step then only looks up one row
of a table for each row of the batch.

A token is allowed only if the answer can still be completed within ``max_new_tokens``. A token with
a name, such as ``<|box_start|>`` or ``<loc0012>``, is allowed only where the grammar contains its
name, and an end token only where an answer is complete.

Axes    b rows of a batch, v vocabulary
"""

import re
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mm_numeric.families.family import Family
from mm_numeric.inference.expressions import MARK, Expression, Expressions, parse_regex
from mm_numeric.inference.number_distribution import Floats, Ints
from mm_numeric.inference.token_texts import TokenTrie, token_texts

RestOf = Callable[[str], str | None]
"""Function of the text so far. It returns a regular expression for the rest of the text, or None
if it needs more text to decide."""

ENDED = 1
"""State of a row whose answer has ended with an end token; only padding follows."""

_DEAD = 0  # number of the expression that matches no text
_FEW = 2_000  # tokens
_MOST_MASK_BYTES = 1 << 28
_NAME = re.compile(r"<[^<>]+>")
_Key = tuple[int, bool | None, int]


class _State(NamedTuple):
    """State of one row of a batch: the texts that may follow."""

    node: int
    """Number of the expression of the texts that may follow."""

    rest_of: RestOf | None = None
    """Function that will return a narrower expression for these texts; None after it has."""

    written: bytes = b""
    """The text so far, as the argument of ``rest_of``; empty if ``rest_of`` is None."""


class TokenAutomaton:
    """The tokens that may follow in an answer, for any number of grammars and one tokenizer."""

    _masks: Tensor
    """[slots, v] True for the tokens that may follow in a state."""

    def __init__(self, family: Family, device: torch.device | str = "cpu") -> None:
        self.family, self.device = family, torch.device(device)
        tokenizer = family.tokenizer
        added = {str(token): i for token, i in tokenizer.get_added_vocab().items()}
        named = {name: i for name, i in added.items() if _NAME.fullmatch(name)}
        # Byte-level vocabularies have a token for each byte, even for MARK, which is not in UTF-8.
        texts = {i: text for i, text in token_texts(tokenizer).items() if MARK not in text}
        texts |= {i: bytes([MARK]) + name[1:].encode() for name, i in named.items()}
        for stop in (*family.stop_ids, family.pad_id):
            texts.pop(stop, None)
        self._texts, self._trie = texts, TokenTrie(texts)
        text = family.coordinates.text
        has_levels = family.coordinates.bins is not None and text.bin(0) in named
        self._names = [*named, *([text.bin_open] if has_levels else [])]
        joins = re.compile(rb"[^0-9 ].*[0-9]", re.DOTALL)  # a separator and a digit, as "), (5"
        self._joins = np.zeros(max(texts) + 1, bool)
        self._joins[[i for i, t in texts.items() if t[0] != MARK and joins.search(t)]] = True
        self.width = max([*tokenizer.get_vocab().values(), *family.stop_ids, family.pad_id]) + 1
        self.reset()

    def reset(self) -> None:
        """Delete all states; do not call it while a batch is generated."""
        turn = sum(1 << byte for byte in self.family.turn.encode()[:1])
        self._make = Expressions(self._trie.single | {MARK}, turn)
        self._expressions = [self._make.nothing]
        self._numbers: dict[Expression, int] = {self._make.nothing: _DEAD}
        self._table = np.zeros((256, 256), np.int32)
        self._is_expanded = np.zeros(256, bool)
        self._least = np.full(256, np.inf)
        self._most = np.full(256, np.inf)
        self._states = [_State(_DEAD), _State(_DEAD, written=b"ended")]
        self._state_numbers = {state: i for i, state in enumerate(self._states)}
        self._starts: dict[str, int] = {}
        self._next: dict[tuple[int, int], int] = {}
        self._few: dict[tuple[int, bool], tuple[Ints, Floats]] = {}
        self._farthest: dict[tuple[int, bool | None], float] = {}
        self._clear_masks()

    def __len__(self) -> int:
        """Return the number of states of rows and of expressions."""
        return len(self._states) + len(self._expressions)

    def start(self, regex: str, rest_of: RestOf | None = None) -> int:
        """Return the first state of a grammar; compile the grammar at the first call.

        ``regex`` matches all answers (see ``mm_numeric.geometry.grammar``). ``rest_of`` comes from
        ``Task.grammar_after``, and must be the same for the same ``regex``. Raises ValueError if
        the grammar has unsupported syntax, or if the tokenizer cannot write its answers.
        """
        if regex not in self._starts:
            answers = parse_regex(regex, self._make, self._names)
            prefix = self._prefix(answers)
            named = self._make.nothing
            if prefix[:1] == b" ":  # tokenizers write no space before the name of a token
                named = self._make.derivative(answers, MARK)
            answers = self._make.either(
                self._make.then(self._written(prefix), answers),
                self._make.then(self._make.byte(1 << MARK), named),
            )
            if rest_of is not None and prefix:
                rest_of = partial(_after_prefix, _decoded(prefix), rest_of)
            self._starts[regex] = self._number(_State(self._node(answers), rest_of))
        return self._starts[regex]

    def cost(self, state: int) -> float:
        """Return a number of tokens that is enough to complete the answer."""
        node, rest_of, _ = self._states[state]
        return 0.0 if state == ENDED else float((self._most if rest_of else self._least)[node])

    def is_complete(self, state: int) -> bool:
        """Return True if only an end token is allowed next."""
        return self._expressions[self._states[state].node] is self._make.empty

    def next(self, state: int, token: int) -> int:
        """Return the state after a token; raise ValueError if the token is not allowed."""
        key = state, token
        if key not in self._next:
            self._next[key] = self._step(state, token)
        return self._next[key]

    def _step(self, state: int, token: int) -> int:
        node, rest_of, written = self._states[state]
        if state == ENDED or (self._expressions[node].ends and token in self.family.stop_ids):
            return ENDED
        for byte in self._texts.get(token, b"\0"):
            self._expand(node)
            node = int(self._table[node, byte])
            if rest_of is not None:
                written += bytes([byte])
                rest = rest_of(_decoded(written))
                if rest is not None:
                    node = self._node(parse_regex(rest, self._make, self._names))
                    rest_of, written = None, b""
        if node == _DEAD:
            raise ValueError(f"the grammar does not allow token {token} here.")
        return self._number(_State(node, rest_of, written))

    def masks(self, slots: Tensor, new: Tensor) -> Tensor:
        """Return a mask [b, v] that is True for allowed tokens, from the result of ``find_masks``.

        No other data is copied from the host, because the masks of all states are on the device.
        """
        missing = len(self._slots) - len(self._masks)
        if missing > 0:
            more = self._masks.new_zeros(max(missing, len(self._masks)), self.width)
            self._masks = torch.cat([self._masks, more])
        self._masks.view(-1).index_fill_(0, new, True)
        return self._masks.index_select(0, slots)

    def find_masks(self, states: Ints, left: int) -> tuple[Ints, Ints]:
        """Return the index of each state's mask in the table of masks, and changes of the table.

        ``left`` is the number of tokens that may still be generated in each row. The changes are
        the flat indices of the elements that ``masks`` must set to True.
        """
        keys = [self._key(state, left) for state in states.tolist()]
        missing = [key for key in dict.fromkeys(keys) if key not in self._slots]
        most = max(_MOST_MASK_BYTES // self.width, len(keys))
        if len(self._slots) + len(missing) > most:
            self._clear_masks()
            missing = list(dict.fromkeys(keys))
        new = [np.zeros(0, np.int64)]
        for key in missing:
            slot = self._slots[key] = len(self._slots)
            new.append(slot * self.width + self._followers_within(*key))
        return np.array([self._slots[key] for key in keys], np.int64), np.concatenate(new)

    def _clear_masks(self) -> None:
        self._slots: dict[_Key, int] = {}
        self._masks = torch.zeros(64, self.width, dtype=torch.bool, device=self.device)

    def resize(self, width: int) -> None:
        """Set v to the number of logits of a model, which may differ from the number of tokens."""
        if width != self.width:
            self.width = width
            self._clear_masks()

    def _key(self, state: int, left: int) -> _Key:
        """Return the cache key of a mask; it contains ``left`` only if this excludes a token."""
        node, rest_of, _ = self._states[state]
        if state == ENDED:
            return ENDED, None, -1
        place = node, rest_of is not None
        if place not in self._farthest:
            ids, costs = self._followers(*place)
            self._farthest[place] = costs.max(initial=0.0)
            if len(ids) <= _FEW:  # cached, because ``_followers_within`` needs the same result
                self._few[place] = ids, costs
        return *place, left if left <= self._farthest[place] else -1

    def _followers_within(self, node: int, is_narrowed: bool | None, left: int) -> Ints:
        """Return the tokens that are allowed in a state. The arguments are a key of ``_key``."""
        if is_narrowed is None:
            return np.array([self.family.pad_id])
        place = node, is_narrowed
        ids, costs = self._few.get(place) or self._followers(*place)
        ids = ids if left < 0 else ids[costs < left]
        ids = ids[ids < self.width]
        if self._expressions[node].ends:
            ids = np.concatenate([ids, np.array(self.family.stop_ids, np.int64)])
        if not len(ids):
            raise ValueError(f"the grammar allows no token with {left} tokens left.")
        return ids

    def _followers(self, node: int, is_narrowed: bool) -> tuple[Ints, Floats]:
        """Return the tokens that may follow without a token limit, and the cost of the text after.

        ``node`` is the number of an expression. If ``is_narrowed`` is True, ``rest_of`` will
        replace the expression when more text is known. Tokens with a separator and a digit after it
        are then left out, because the new expression may not allow the digit. Costs are then costs
        of the longest answer, because the new expression may exclude the shortest answer.
        """
        places, nodes = np.zeros(1, np.int64), np.array([node])
        found = [(places[:0], nodes[:0])]
        while len(places):
            for unseen in np.unique(nodes[~self._is_expanded[nodes]]):
                self._expand(int(unseen))
            places, source = self._trie.children(places)
            nodes = self._table[nodes[source], self._trie.byte[places]].astype(np.int64)
            alive = nodes != _DEAD
            places, nodes = places[alive], nodes[alive]
            ids, source = self._trie.tokens(places)
            found.append((ids, nodes[source]))
        ids, after = (np.concatenate(arrays) for arrays in zip(*found, strict=True))
        can_end = np.isfinite(self._least[after])
        if is_narrowed:
            can_end &= ~self._joins[ids]
        return ids[can_end], (self._most if is_narrowed else self._least)[after[can_end]]

    def _number(self, state: _State) -> int:
        if state not in self._state_numbers:
            self._state_numbers[state] = len(self._states)
            self._states.append(state)
        return self._state_numbers[state]

    def _node(self, expression: Expression) -> int:
        if expression not in self._numbers:
            number = self._numbers[expression] = len(self._expressions)
            self._expressions.append(expression)
            if number == len(self._least):
                self._table = np.concatenate([self._table, np.zeros_like(self._table)])
                self._is_expanded = np.concatenate([self._is_expanded, np.zeros(number, bool)])
                self._least, self._most = (
                    np.concatenate([costs, np.full(number, np.inf)])
                    for costs in (self._least, self._most)
                )
            self._least[number], self._most[number] = expression.least, expression.most
        return self._numbers[expression]

    def _expand(self, node: int) -> None:
        if not self._is_expanded[node]:
            self._is_expanded[node] = True
            for byte, after in self._make.successors(self._expressions[node]):
                self._table[node, byte] = self._node(after)

    def _written(self, prefix: bytes) -> Expression:
        """Return the expression that matches only ``prefix``; a token's name costs 1 in total."""
        found, is_in_name = self._make.empty, False
        for byte in prefix:
            found = self._make.then(found, self._make.byte(1 << byte, is_free=is_in_name))
            is_in_name = byte == MARK or (is_in_name and byte != ord(">"))
        return found

    def _prefix(self, answers: Expression) -> bytes:
        """Return the text that the tokenizer adds before an answer: a space in many tokenizers.

        To find it, an answer of the grammar is tokenised as in training, and decoded.
        """
        name = self.family.tokenizer.name_or_path
        if not np.isfinite(answers.least):
            raise ValueError(
                f"predict.constrain: the tokenizer {name!r} has no tokens for the characters of "
                "the grammar; predict without constrain."
            )
        written, rest = b"", answers
        while not rest.ends:
            byte, rest = min(self._make.successors(rest), key=lambda pair: pair[1].least)
            written += bytes([byte])
        text = _decoded(written)
        ids = self.family.answer(text).ids[:-1]
        tokens = b"".join(self._texts.get(i, b"") for i in ids)
        if not tokens.endswith(written) or self.family.text(ids) != text:
            raise ValueError(
                f"predict.constrain: the tokenizer {name!r} writes the answer {text!r} as "
                f"{self.family.text(ids)!r}; predict without constrain."
            )
        return tokens[: len(tokens) - len(written)]


def _decoded(written: bytes) -> str:
    return written.replace(bytes([MARK]), b"<").decode(errors="replace")


def _after_prefix(prefix: str, rest_of: RestOf, written: str) -> str | None:
    return rest_of(written.removeprefix(prefix))
