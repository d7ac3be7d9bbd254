"""The text of each token of a vocabulary as bytes, and a prefix tree (trie) of these texts.

Axes    n nodes of the tree, k tokens
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from transformers import ByT5Tokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

from mm_numeric.families.digits import merges_digits
from mm_numeric.inference.number_distribution import Ints

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_DIGIT = re.compile(rb"[0-9]")
_SPACE = "▁"


def token_texts(tokenizer: Any) -> dict[int, bytes]:
    """Return the bytes that each token adds to a text, by token id.

    Special tokens are left out. Tokens that the tokenizer never produces are left out too: tokens
    of several digits if it splits numbers into single digits, and byte tokens such as ``<0x31>`` if
    ``1`` is a token. The text of an added token such as ``<loc0012>`` is its name.
    """
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    added = {str(token): index for index, token in tokenizer.added_tokens_decoder.items()}
    special = {index for index, token in tokenizer.added_tokens_decoder.items() if token.special}
    special |= set(tokenizer.all_special_ids)
    decode, single_digits = _decoder(tokenizer), not merges_digits(tokenizer)
    found = {}
    for token, index in vocabulary.items():
        if index in special:
            continue
        if token in added:
            found[index] = token.encode()
            continue
        byte, text = _BYTE.fullmatch(token), decode(token)
        is_spare = byte and _spelled(int(byte[1], 16)) in vocabulary
        is_merged = single_digits and len(text) > 1 and _DIGIT.search(text)
        if text and not is_spare and not is_merged:
            found[index] = text
    return found


def _decoder(tokenizer: Any) -> Callable[[str], bytes]:
    if isinstance(tokenizer, ByT5Tokenizer):
        return lambda token: token.encode("latin-1")
    backend = getattr(tokenizer, "backend_tokenizer", None)
    decoder = _settings(getattr(backend, "decoder", None))
    if '"ByteLevel"' in decoder + _settings(getattr(backend, "pre_tokenizer", None)):
        byte_of = {character: byte for byte, character in bytes_to_unicode().items()}
        return lambda token: (
            bytes([byte_of[character] for character in token])
            if byte_of.keys() >= set(token)
            else token.encode()  # as tokenizers decodes a token that has another character
        )
    if _SPACE in decoder:
        return _piece
    raise ValueError(
        f"predict.constrain: the tokenizer {tokenizer.name_or_path!r} is neither byte-level BPE "
        "nor SentencePiece, so that the text of its tokens is unknown; predict without constrain."
    )


def _settings(part: Any) -> str:
    """Return the settings of a tokenizer component, such as its decoder, as JSON."""
    return "" if part is None else part.__getstate__().decode()


def _spelled(byte: int) -> str | None:
    """Return the SentencePiece token for a byte that is an ASCII character; None for others."""
    return chr(byte).replace(" ", _SPACE) if byte < 128 else None


def _piece(token: str) -> bytes:
    byte = _BYTE.fullmatch(token)
    return bytes([int(byte[1], 16)]) if byte else token.replace(_SPACE, " ").encode()


class TokenTrie:
    """A prefix tree of the texts of tokens, stored in arrays.

    Each node is a prefix of a text. Node 0 is the empty prefix, and the number of a child is
    greater than that of its parent.

    Attributes:
        byte: [n] the last byte of each node's prefix.
        single: The bytes that are the whole text of a token.
    """

    def __init__(self, texts: Mapping[int, bytes]) -> None:
        """Build the tree from the text of each token id; no text may be empty."""
        ids = np.fromiter(texts, np.int64, len(texts))
        at = np.zeros(len(texts), np.int64)
        lengths = np.array([len(text) for text in texts.values()])
        parents, self.byte = [np.array([-1])], np.zeros(1, np.uint8)
        count, values = 1, list(texts.values())
        for depth in range(lengths.max(initial=0)):
            (longer,) = np.nonzero(lengths > depth)
            bytes_ = np.array([values[i][depth] for i in longer])
            edges, edge_of = np.unique(at[longer] * 256 + bytes_, return_inverse=True)
            at[longer] = count + edge_of
            parents.append(edges // 256)
            self.byte = np.concatenate([self.byte, (edges % 256).astype(np.uint8)])
            count += len(edges)
        # Both arrays are sorted by node: the children of a node, and its tokens, are ranges.
        bounds = np.arange(count + 1)
        self._child = np.searchsorted(np.concatenate(parents), bounds)
        order = np.argsort(at, kind="stable")
        self._ids, self._token = ids[order], np.searchsorted(at[order], bounds)
        self.single = frozenset(text[0] for text in values if len(text) == 1)

    def children(self, nodes: Ints) -> tuple[Ints, Ints]:
        """Return all children of ``nodes``, and for each child the index of its parent there."""
        return _ranges(self._child[nodes], self._child[nodes + 1])

    def tokens(self, nodes: Ints) -> tuple[Ints, Ints]:
        """Return the ids of all tokens at ``nodes``, and for each the index of its node there."""
        found, source = _ranges(self._token[nodes], self._token[nodes + 1])
        return self._ids[found], source


def _ranges(starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """Return the integers of all ranges [start, end), and for each the index of its range."""
    counts = ends - starts
    source = np.repeat(np.arange(len(starts)), counts)
    return np.arange(len(source)) + (starts - np.cumsum(counts) + counts)[source], source
