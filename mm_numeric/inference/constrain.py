"""Constrain generation to the grammar of a task, so that every answer can be parsed.

Axes    b rows of a batch, v vocabulary
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import LogitsProcessor

from mm_numeric.baselines.baseline import Baseline
from mm_numeric.families.family import Family
from mm_numeric.geometry.frames import Frame
from mm_numeric.inference.branch_cache import upload
from mm_numeric.inference.number_distribution import Ints
from mm_numeric.inference.token_automaton import ENDED, TokenAutomaton
from mm_numeric.tasks.base import Task

_MOST_STATES = 50_000  # about 150 MB


class Constraint(LogitsProcessor):
    """Logits processor for one batch that allows only tokens that the grammar of the task permits.

    Attributes:
        states: [b] the state of each row in the token automaton.
        left: Number of tokens that may still be generated in each row.
    """

    def __init__(self, automaton: TokenAutomaton, starts: Sequence[int], max_new_tokens: int):
        self.automaton, self.left = automaton, max_new_tokens
        self.states = np.array(starts, np.int64)
        needed = max(map(automaton.cost, starts), default=0)
        if needed > max_new_tokens:
            raise ValueError(
                f"predict.max_new_tokens: an answer in the grammar of the task may need "
                f"{needed:g} tokens, and {max_new_tokens} are allowed; set at least {needed:g}."
            )
        self._has_begun = False

    def complete(self) -> NDArray[np.bool_]:
        """Return True, [b], for each row after which only an end token is allowed."""
        return np.array([self.automaton.is_complete(state) for state in self.states.tolist()], bool)

    def completed_by(self, parents: Ints, tokens: Ints) -> NDArray[np.bool_]:
        """Return True, [k], if ``tokens`` [k] complete the answers of the rows ``parents`` [k]."""
        automaton, pairs = self.automaton, zip(self.states[parents].tolist(), tokens, strict=True)
        return np.array([automaton.is_complete(automaton.next(s, int(t))) for s, t in pairs], bool)

    def advance(self, parents: Sequence[int] | Ints, tokens: Sequence[int] | Ints) -> None:
        """Replace the rows: new row i is row ``parents[i]`` followed by the token ``tokens[i]``."""
        pairs = zip(self.states[np.asarray(parents, np.int64)].tolist(), tokens, strict=True)
        self.states = np.array([self.automaton.next(s, int(t)) for s, t in pairs], np.int64)
        self.left -= 1

    def end(self, row: int) -> None:
        """End the answer of a row; later tokens of this row are ignored."""
        self.states[row] = ENDED

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Set the logits [b, v] of all tokens that are not allowed to minus infinity."""
        if self._has_begun:
            self.advance(range(len(self.states)), input_ids[:, -1].tolist())
        self._has_begun = True
        return self.allow(scores)

    def allow(self, scores: Tensor) -> Tensor:
        """Return the logits [b, v], with minus infinity for tokens that are not allowed."""
        return self.mask(scores, *upload(scores.device, *self.masks(scores.shape[1])))

    def masks(self, width: int) -> tuple[Ints, Ints]:
        """Return the arrays that ``mask`` needs; ``width`` is the number of logits per row."""
        self.automaton.resize(width)
        return self.automaton.find_masks(self.states, self.left)

    def mask(self, scores: Tensor, slots: Tensor, new: Tensor) -> Tensor:
        """Mask logits as ``allow`` does; ``slots`` and ``new`` are the result of ``masks``."""
        allowed = self.automaton.masks(slots, new)
        return torch.where(allowed, scores, -torch.inf)  # masked_fill is slower on a CPU


class Constrainer:
    """Creates the constraint for each batch; all batches share one automaton with its caches."""

    def __init__(self, task: Task, family: Family, device: torch.device | str = "cpu") -> None:
        if isinstance(family, Baseline):
            raise ValueError(
                f"predict.constrain: {family.name} writes numbers with a baseline, which has no "
                "grammar; predict without constrain."
            )
        self.task, self.automaton = task, TokenAutomaton(family, device)

    def batch(self, frames: Sequence[Frame | None], rows: int, max_new_tokens: int) -> Constraint:
        """Return the constraint for a batch; ``rows`` may include a dummy image row."""
        if len(self.automaton) > _MOST_STATES:
            self.automaton.reset()
        starts = [
            self.automaton.start(grammar_of(self.task, frame), self.task.grammar_after(frame))
            for frame in frames
        ]
        return Constraint(self.automaton, starts + [ENDED] * (rows - len(starts)), max_new_tokens)


def grammar_of(task: Task, frame: Frame | None) -> str:
    """Return the regular expression of a task's answers; raise ValueError if it has none."""
    grammar = task.grammar(frame)
    if grammar is None:
        raise ValueError(
            f"predict.constrain: the task {type(task).__name__} has no grammar; define "
            "its method `grammar`, or predict without constrain."
        )
    return grammar
