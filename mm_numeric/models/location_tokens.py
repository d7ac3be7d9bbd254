"""Add location tokens, such as ``<loc0012>``, to a model that was trained without them.

``model.coordinates: {tokens: 1000}`` adds them to the tokenizer (``Family.load``). This module
initialises their rows in the input embeddings and the output head: each row is the mean of the rows
of the ten digits, plus a smooth code of the token's number. Rows of near numbers are similar, and
each dimension has the same variance as among the digits.

Axes    k location tokens, d hidden size
"""

import math
from typing import Any

import torch
from torch import Tensor

from mm_numeric.compat import is_partitioned, original_layer
from mm_numeric.config.schema import ModelConfig
from mm_numeric.families.family import Family
from mm_numeric.numbers.vocabulary import NumberVocabulary

_ROWS_MULTIPLE = 64  # other numbers of rows make the head's matrix product slow on a GPU


def load_with_tokens(family: Family, source: str, model: ModelConfig) -> Any:
    """Load a model, and add embedding rows for location tokens that its tokenizer lacks.

    The new rows are not random but always the same, so they need not be saved with adapters.
    """
    loaded, tokens = family.load_model(source, model), family.location_tokens()
    if family.coordinates.tokens is not None:
        known = family.load_tokenizer(source, model).get_vocab()
        new = [level for level, token in enumerate(tokens) if token not in known]
        if new:
            _add_rows(loaded, family, tokens, new)
    return loaded


@torch.no_grad()
def _add_rows(model: Any, family: Family, tokens: list[str], levels: list[int]) -> None:
    """Initialise the row of ``tokens[i]`` for each i in ``levels``; resize the tables if needed."""
    if any(map(is_partitioned, model.parameters())):
        raise ValueError(
            "model.coordinates: location tokens cannot be added to a model under ZeRO-3; add them "
            "in a run without it, export that run, and start from the result."
        )
    ids = family.tokenizer.convert_tokens_to_ids([tokens[level] for level in levels])
    rows: int = model.get_input_embeddings().num_embeddings
    if max(ids) >= rows:
        model.resize_token_embeddings(
            max(ids) + 1, pad_to_multiple_of=_ROWS_MULTIPLE, mean_resizing=False
        )
    digits = NumberVocabulary.from_tokenizer(family.tokenizer).only_digits()
    at = [token.id for token in digits.tokens]
    for layer in (model.get_input_embeddings(), model.get_output_embeddings()):
        layer.weight[rows:] = 0  # resizing makes random rows, also for ids without a token
        own = layer.weight[at].float()
        code = smooth_code(len(tokens), own.shape[1])[levels].to(own.device)
        layer.weight[ids] = (own.mean(0) + own.std(0) * code).to(layer.weight.dtype)
        if getattr(layer, "bias", None) is not None:
            layer.bias[ids] = layer.bias[at].mean()


def smooth_code(tokens: int, width: int) -> Tensor:
    """Return a code [k, d] for the numbers 0 to k - 1: sines and cosines with a variance of 1.

    The frequencies are a geometric sequence, from half a period over all k numbers to one period
    over eight numbers. So the codes of neighbours are similar, but not equal.
    """
    periods = 0.5 * (tokens / 4) ** torch.linspace(0, 1, (width + 1) // 2)
    angles = 2 * math.pi * torch.linspace(0, 1, tokens)[:, None] * periods
    return math.sqrt(2) * torch.cat([angles.cos(), angles.sin()], dim=1)[:, :width]


def trained_rows(model: Any, family: Family, *, head: bool, where: str) -> dict[str, list[int]]:
    """Return the ids of location tokens by layer name, for PEFT's ``trainable_token_indices``.

    With ``head``, they include the rows of the output head, unless it is tied: then PEFT itself
    trains both together.
    """
    tokens = family.location_tokens()
    if not tokens:
        raise ValueError(
            f"{where}, modules.embeddings: the coordinates are written with digits, so that there "
            "are no location tokens to train; set model.coordinates, such as {tokens: 1000}."
        )
    embeddings, output = model.get_input_embeddings(), model.get_output_embeddings()
    layers = [embeddings]
    if head and original_layer(output).weight is not original_layer(embeddings).weight:
        layers.append(output)
    ids = family.tokenizer.convert_tokens_to_ids(tokens)
    names = {id(layer): name for name, layer in model.named_modules()}
    return {names[id(layer)]: ids for layer in layers}
