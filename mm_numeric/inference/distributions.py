"""The distribution of the number that a model answers, for any model of transformers.

It needs a model with ``generate``, its tokenizer and the inputs of ``model.generate``. The model
need not be trained by this package or belong to one of its model families.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from mm_numeric.answers import Number
from mm_numeric.inference.candidates import PLAIN_SETTINGS, Explored, PrefixTree
from mm_numeric.inference.number_distribution import NumberDistribution
from mm_numeric.numbers.vocabulary import NumberVocabulary


def read_number(text: str) -> float | None:
    """Parse a text that is one number, such as ``-12`` or ``3.5``; None for other texts."""
    try:
        return Number(text.strip()).value
    except ValueError:
        return None


def number_distribution(
    model: Any,
    inputs: Mapping[str, Any],
    tokenizer: Any,
    *,
    answer: Callable[[str], float | None] = read_number,
    mass: float = 0.99,
    branches: int = 64,
    max_new_tokens: int = 16,
) -> list[NumberDistribution | None]:
    """Return the distribution of the answered number for each prompt of a batch.

    The model reads the prompt once. Likely answers are enumerated until their probabilities sum to
    ``mass``. If answers have more than ``branches`` prefixes of the same length, some of the less
    likely prefixes are drawn systematically, with the prompt as the seed. The probabilities of
    texts with the same number, such as ``7`` and ``7.0``, are added.

    Args:
        model: A model with ``generate``: a causal, multimodal or encoder-decoder model, or a PEFT
            model.
        inputs: Arguments of ``generate``, such as ``input_ids`` and ``attention_mask`` [b, t],
            padded on the left.
        tokenizer: The tokenizer, whose end token ends an answer.
        answer: Function that returns the number in a text, or None if the text has no number. For
            clock times, it may return minutes.
        mass: Probability to explore, above 0 and at most 1.
        branches: Largest number of prefixes that are continued at the same time; limits the memory.
        max_new_tokens: Longest answer, in tokens.

    Returns:
        One distribution per prompt; None for a prompt if no enumerated text has a number. The field
        ``covered`` is the sum of the probabilities of the texts with a number.
    """
    stop_ids = _stop_ids(model, tokenizer)
    mask = inputs.get("attention_mask", torch.ones_like(inputs["input_ids"]))
    prompts = [
        str(ids[seen > 0].tolist()) for ids, seen in zip(inputs["input_ids"], mask, strict=True)
    ]
    vocabulary = _number_tokens(tokenizer)
    tree = PrefixTree(stop_ids, mass=mass, width=branches, ids=prompts, vocabulary=vocabulary)
    found: Sequence[Explored] = model.generate(
        **inputs,
        custom_generate=tree,
        max_new_tokens=max_new_tokens,
        **PLAIN_SETTINGS,
        eos_token_id=stop_ids,
        pad_token_id=stop_ids[0] if tokenizer.pad_token_id is None else tokenizer.pad_token_id,
    )
    return [_distribution(explored, tokenizer, answer) for explored in found]


def _number_tokens(tokenizer: Any) -> NumberVocabulary | None:
    """Return the number tokens, in whose order prefixes are drawn; None if they are unknown."""
    try:
        return NumberVocabulary.from_tokenizer(tokenizer)
    except ValueError:  # for example WordPiece, whose tokens continue words
        return None


def _stop_ids(model: Any, tokenizer: Any) -> list[int]:
    """Return the end tokens of the model's generation config, or else that of the tokenizer."""
    ids = model.generation_config.eos_token_id
    ids = tokenizer.eos_token_id if ids is None else ids
    if ids is None:
        raise ValueError(
            "number_distribution: neither model.generation_config nor the tokenizer has an end "
            "token (eos_token_id); set the one that ends an answer."
        )
    return [ids] if isinstance(ids, int) else list(ids)


def _distribution(
    explored: Explored, tokenizer: Any, answer: Callable[[str], float | None]
) -> NumberDistribution | None:
    values, probs = [], []
    for tokens, prob in explored.probabilities.items():
        value = answer(tokenizer.decode(tokens, skip_special_tokens=True))
        if value is not None:
            values.append(value)
            probs.append(prob)
    if not values:
        return None
    return NumberDistribution.of(values, probs, covered=min(1.0, sum(probs)))
