"""Measure which wrong digits a model considers likely, and write the result to digits.json.

The model reads the question and the correct answer of each test sample (teacher forcing). At each
digit of the answer, a softmax over the ten digit tokens yields the probability of each digit. The
probabilities are grouped by the difference between a digit and the correct digit. Fields of
digits.json:

    differences    -9 to 9: a digit minus the correct digit
    means          mean probability of the digit with each difference; null if ``tokens`` is 0
    tokens         number of answer digits in each mean (+9 is only possible at the digit 0)
    rows_skipped   test samples left out: without an answer, or invalid, e.g. an unreadable image

Excluded are tokens of several digits, location tokens, and numbers that a regression head predicts.
For a vocabulary without digits all means are null. arXiv 2411.02083 has a plot of these means.

Axes    k number tokens in the answers, c classes (the number tokens of the vocabulary)
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mm_numeric.answers import Example
from mm_numeric.data.collator import BATCH_KEYS, TrainingCollator, make_collator
from mm_numeric.data.examples import load_examples
from mm_numeric.io.files import write_json
from mm_numeric.io.log import progress
from mm_numeric.losses.cross_entropy import to_compute_dtype
from mm_numeric.losses.term import NumberClasses
from mm_numeric.models.loading import device_type, load_family, load_model
from mm_numeric.models.output_head import output_head, selected_logits
from mm_numeric.models.precision import Precision
from mm_numeric.numbers.spans import NumberSpans
from mm_numeric.numbers.vocabulary import NumberVocabulary
from mm_numeric.runs.folder import DIGITS, MODEL, read_run

_MAX_DIFFERENCE = 9


def write_digit_distribution(run: Path, *, trust_remote_code: bool = False) -> None:
    """Measure which digits a trained model considers likely in the answers of its test samples.

    ``run`` is the folder of a finished run; digits.json is written to it. ``trust_remote_code``
    allows a config that refers to Python code, such as a task of your own.
    """
    precision = Precision.of_run(run)
    config = precision.of_weights(read_run(run, trust_remote_code=trust_remote_code))
    cache = Path(config.data.cache)
    examples = load_examples(config.task, config.data.test, cache, training=False)
    answered = [example for example in examples if example.answer is not None]
    family = load_family(config, str(run / MODEL))
    model = load_model(config, family, str(run / MODEL))
    model.to(device_type()).eval()
    collator = make_collator(config, family)
    size = int(config.trainer.get("per_device_train_batch_size", 8))  # fits into memory in training
    total = torch.zeros(2, 2 * _MAX_DIFFERENCE + 1, dtype=torch.float64)
    rows = 0
    with progress(desc="reading digit distributions", unit="row", total=len(answered)) as bar:
        for batch in _batches(collator, answered, size):
            total += _sums_of_batch(model, collator, batch, precision)
            rows += len(batch["origin"].ids)
            bar.update(len(batch["origin"].ids))
    sums, tokens = total.tolist()
    found = {
        "differences": list(range(-_MAX_DIFFERENCE, _MAX_DIFFERENCE + 1)),
        "means": [s / n if n else None for s, n in zip(sums, tokens, strict=True)],
        "tokens": [int(n) for n in tokens],
        "rows_skipped": len(examples) - rows,
    }
    write_json(run / DIGITS, found)


def _batches(
    collator: TrainingCollator, examples: Sequence[Example], size: int
) -> Iterator[dict[str, Any]]:
    """Yield batches of up to ``size`` examples, without those that the collator cannot encode."""
    for first in range(0, len(examples), size):
        rows = examples[first : first + size]
        try:
            yield collator(rows)
        except ValueError:
            if len(rows) > 1:
                yield from _batches(collator, rows, 1)


@torch.no_grad()
def _sums_of_batch(
    model: Any, collator: TrainingCollator, batch: dict[str, Any], precision: Precision
) -> Tensor:
    """Run the model on a batch; sum digit probabilities by error (digit minus correct digit)."""
    spans: NumberSpans = batch["spans"]
    ids = torch.tensor([token.id for token in collator.vocabulary.tokens])
    # False for numbers that the head of a baseline predicts.
    written = batch["labels"][spans.position] == ids[spans.target]
    if not written.any():
        return torch.zeros(2, 2 * _MAX_DIFFERENCE + 1, dtype=torch.float64)
    rows, target = (each[written].to(model.device) for each in (spans.position, spans.target))
    inputs = {key: value.to(model.device) for key, value in batch.items() if key not in BATCH_KEYS}
    assert spans.supervised is not None
    supervised = spans.supervised.to(model.device)
    with precision.computing(model.device):
        logits = selected_logits(
            model, output_head(model), inputs, supervised, batch["supervised"].numel()
        )
    scores = to_compute_dtype(logits[rows[:, None], ids.to(model.device)])
    return digit_differences(scores, target, collator.vocabulary).cpu()


def digit_differences(scores: Tensor, target: Tensor, vocabulary: NumberVocabulary) -> Tensor:
    """Sum the predicted probabilities of digits by error (the digit minus the correct digit).

    The result [2, 19] has a column for each error from -9 to 9. Row 0 has the sums, and row 1 the
    number of probabilities in each sum. ``scores`` [k, c] has the logits of all c number tokens at
    k tokens of answers. ``target`` [k] has the index of the correct number token.
    """
    classes = NumberClasses.of(vocabulary, scores.device, torch.float64)
    single = torch.tensor([len(t.digits) == 1 for t in vocabulary.tokens], device=scores.device)
    scores, target = scores[single[target]].double(), target[single[target]]
    is_digit = single.expand_as(scores)
    if classes.same is not None:
        is_digit = is_digit & classes.same[target]
    probs = scores.masked_fill(~is_digit, -torch.inf).softmax(dim=-1)
    digits = classes.digits[:, 0].long()
    at = (digits - digits[target][:, None] + _MAX_DIFFERENCE)[is_digit]
    size = 2 * _MAX_DIFFERENCE + 1
    # Not bincount, whose weighted sums torch rejects on CUDA with trainer.full_determinism.
    each = torch.stack([probs[is_digit], torch.ones_like(at).to(probs)])
    return each.new_zeros(2, size).index_add(1, at, each)
