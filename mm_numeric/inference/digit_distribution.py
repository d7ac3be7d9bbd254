"""How far from the right digit a model's belief lies: run folder -> digits.json.

The model reads each test row's question and right answer, as in training, and gives every digit of
the answer a distribution over the ten digits: a softmax over them alone, so that it is the one that
the numeric losses look at. Averaged by how far a digit is from the right one:

    differences    -9 to 9: a digit minus the right one
    means          the mean probability of the digit that lies so far off, over the tokens where
                   there is one (nothing is 9 above a 4); null where there is none
    tokens         how many those are
    rows_left_out  test rows without an answer, or with one that cannot be trained on as it stands

Tokens of several digits, numbers in one token and those that a baseline's head gives are left out;
without digits all means are null.
Figure of arXiv 2411.02083, which shows it for one run.

Axes    k number tokens, c classes of the vocabulary
"""

import inspect
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mm_numeric.answers import Example
from mm_numeric.data.collator import BATCH_KEYS, TrainingCollator, make_collator
from mm_numeric.data.examples import load_examples
from mm_numeric.files import write_text
from mm_numeric.losses.cross_entropy import number_scores
from mm_numeric.losses.term import NumberClasses
from mm_numeric.models.loading import device_type, load_family, load_model
from mm_numeric.numbers.spans import NumberSpans
from mm_numeric.numbers.vocabulary import NumberVocabulary
from mm_numeric.run_folder import DIGITS, MODEL, read_run

_FARTHEST = 9


def write_digit_chances(run: Path) -> None:
    """Write digits.json of a finished run, from its own test rows that have an answer.

    Raises:
        ValueError: If the run or the rows cannot be used.
    """
    config = read_run(run)
    cache = Path(config.data.cache)
    examples = load_examples(config.task, config.data.test, cache, training=False)
    answered = [example for example in examples if example.answer is not None]
    family = load_family(config, str(run / MODEL))
    model = load_model(config, family, str(run / MODEL))
    model.to(device_type()).eval()
    collator = make_collator(config, family)
    size = int(config.trainer.get("per_device_train_batch_size", 8))  # what training has room for
    total = torch.zeros(2, 2 * _FARTHEST + 1, dtype=torch.float64)
    rows = 0
    for batch in _batches(collator, answered, size):
        total += _of_batch(model, collator, batch)
        rows += len(batch["origin"].ids)
    chances, tokens = total.tolist()
    found = {
        "differences": list(range(-_FARTHEST, _FARTHEST + 1)),
        "means": [c / n if n else None for c, n in zip(chances, tokens, strict=True)],
        "tokens": [int(n) for n in tokens],
        "rows_left_out": len(examples) - rows,
    }
    write_text(run / DIGITS, json.dumps(found) + "\n")


def _batches(
    collator: TrainingCollator, examples: Sequence[Example], size: int
) -> Iterator[dict[str, Any]]:
    """Yield batches of so many rows, without those that cannot be trained on.

    A test row need not be fit for training: its answer may be one that the task does not write.
    """
    for first in range(0, len(examples), size):
        rows = examples[first : first + size]
        try:
            yield collator(rows)
        except ValueError:
            if len(rows) > 1:
                yield from _batches(collator, rows, 1)


@torch.no_grad()
def _of_batch(model: Any, collator: TrainingCollator, batch: dict[str, Any]) -> Tensor:
    """Return the sum of probabilities and the tokens of each difference, [2, 19], on the CPU."""
    spans: NumberSpans = batch["spans"]
    ids = torch.tensor([token.id for token in collator.vocabulary.tokens])
    written = batch["labels"][spans.row] == ids[spans.target]  # else of a head that gives numbers
    if not written.any():
        return torch.zeros(2, 2 * _FARTHEST + 1, dtype=torch.float64)
    rows, target = (of[written].to(model.device) for of in (spans.row, spans.target))
    inputs = {key: value.to(model.device) for key, value in batch.items() if key not in BATCH_KEYS}
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    if "logits_to_keep" in inspect.signature(base.forward).parameters:
        inputs["logits_to_keep"] = batch["supervised"].to(model.device)
    else:
        assert spans.supervised is not None
        rows = spans.supervised.to(model.device)[rows]
    logits = model(**inputs).logits
    scores = number_scores(logits.reshape(-1, logits.shape[-1]), rows, ids.to(model.device))
    return digit_differences(scores, target, collator.vocabulary).cpu()


def digit_differences(scores: Tensor, target: Tensor, vocabulary: NumberVocabulary) -> Tensor:
    """Return the sum of probabilities and the number of tokens by difference, [2, 19].

    Args:
        scores: [k, c] of the classes, from the model.
        target: [k] the right classes.
        vocabulary: What the classes are.
    """
    classes = NumberClasses.of(vocabulary, scores.device, torch.float64)
    single = torch.tensor([len(t.digits) == 1 for t in vocabulary.tokens], device=scores.device)
    scores, target = scores[single[target]].double(), target[single[target]]
    there = single.expand_as(scores)
    if classes.same is not None:
        there = there & classes.same[target]
    chances = scores.masked_fill(~there, -torch.inf).softmax(dim=-1)
    digits = classes.digits[:, 0].long()
    at = (digits - digits[target][:, None] + _FARTHEST)[there]
    size = 2 * _FARTHEST + 1
    return torch.stack([at.bincount(chances[there], minlength=size), at.bincount(minlength=size)])
