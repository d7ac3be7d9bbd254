"""The tokens of a vocabulary as a prefix tree of bytes, in arrays.

Axes    n nodes of the tree, k tokens
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class TokenTrie:
    """A prefix tree; node 0 is the empty text, and children have greater numbers than parents.

    Attributes:
        byte: [n] the last byte of the text of each node.
        single: The bytes that are the whole text of a token.
    """

    def __init__(self, texts: Mapping[int, bytes]) -> None:
        """Build the tree of the texts of tokens, by token id; no text is empty."""
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
        # Both lists are sorted by node, so that a node's children and tokens are ranges.
        bounds = np.arange(count + 1)
        self._child = np.searchsorted(np.concatenate(parents), bounds)
        order = np.argsort(at, kind="stable")
        self._ids, self._token = ids[order], np.searchsorted(at[order], bounds)
        self.single = frozenset(text[0] for text in values if len(text) == 1)

    def children(self, nodes: Ints) -> tuple[Ints, Ints]:
        """Return all children of some nodes, and for each the index of its parent in ``nodes``."""
        return _ranges(self._child[nodes], self._child[nodes + 1])

    def tokens(self, nodes: Ints) -> tuple[Ints, Ints]:
        """Return the ids of the tokens at some nodes, and for each the index in ``nodes``."""
        found, source = _ranges(self._token[nodes], self._token[nodes + 1])
        return self._ids[found], source


def _ranges(starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """Return the numbers of all ranges, one after the other, and the range that each is in."""
    counts = ends - starts
    source = np.repeat(np.arange(len(starts)), counts)
    return np.arange(len(source)) + (starts - np.cumsum(counts) + counts)[source], source
