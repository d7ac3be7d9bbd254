"""Numeric predictions from logits, without labels.

Axes    v vocabulary, c number tokens in the vocabulary
"""

from typing import NamedTuple

import torch
from torch import Tensor

from mm_numeric.losses.cross_entropy import to_compute_dtype
from mm_numeric.numbers.vocabulary import NumberVocabulary


class NumberPrediction(NamedTuple):
    """For each position, the expected value and the total probability of the number tokens."""

    values: Tensor
    """Expected token value at each position: 6.5 if 6 and 7 are equally likely."""

    mass: Tensor
    """Probability at each position, in the whole vocabulary, that the token is a number token."""


def predict_numbers(logits: Tensor, vocabulary: NumberVocabulary) -> NumberPrediction:
    """Return the expected value of the next token at each position, if it is a number token.

    This is the mean of the token values, weighted by their probabilities. If number tokens have
    different forms, such as ``7``, ``700`` and ``-7``, only those of the most likely form are used.
    With single digits, the result equals ``NTLossDotProduct.predict_numbers`` of the ntloss package
    to 1e-6. It is differentiable.

    Args:
        logits: [..., v] for any number of positions, such as [samples, positions, v].
        vocabulary: The number tokens of the tokenizer.
    """
    ids = torch.tensor([token.id for token in vocabulary.tokens], device=logits.device)
    if logits.shape[-1] <= max(token.id for token in vocabulary.tokens):
        raise ValueError(
            f"predict_numbers: the logits have {logits.shape[-1]} tokens, fewer than the number "
            "vocabulary: it was made from another model's tokenizer."
        )
    scores = to_compute_dtype(logits.index_select(-1, ids))
    groups = sorted({token.digit_group for token in vocabulary.tokens})
    values, heights = [], []
    for group in groups:  # a few: each is a range of the sorted tokens
        members = [j for j, t in enumerate(vocabulary.tokens) if t.digit_group == group]
        inside = scores[..., members[0] : members[-1] + 1]
        worth = [vocabulary.tokens[j].value for j in members]
        values.append((inside.softmax(dim=-1) * inside.new_tensor(worth)).sum(dim=-1))
        heights.append(inside.logsumexp(dim=-1))
    best = torch.stack(heights, dim=-1).argmax(dim=-1, keepdim=True)
    log_mass = scores.logsumexp(dim=-1) - to_compute_dtype(logits).logsumexp(dim=-1)
    return NumberPrediction(
        values=torch.stack(values, dim=-1).gather(-1, best).squeeze(-1), mass=log_mass.exp()
    )
