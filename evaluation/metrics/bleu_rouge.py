"""BLEU and ROUGE of texts, as sacrebleu and rouge_score calculate them.

Both come with ``pip install 'mm-numeric[text]'``; without them the figures are absent.

Sources: sacrebleu's BLEU with its defaults (13a tokens, exponential smoothing; Post 2018), and
Google's rouge_score without a stemmer, the mean of F1 over rows (Lin 2004).
"""

from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mm_numeric.evaluation.metrics.base import Columns, Metric, mean_of

IS_HERE = all(map(find_spec, ("sacrebleu", "rouge_score")))
"""Whether both libraries are installed."""

_N = (1, 2, 3, 4)
_BLEU = (*(f"bleu_right_{n}" for n in _N), *(f"bleu_said_{n}" for n in _N), "words", "words_wanted")
_ROUGE = {"rouge1": "ROUGE-1", "rougeL": "ROUGE-L"}


def ngram_columns(
    predictions: Sequence[str], targets: Sequence[str]
) -> dict[str, NDArray[np.float64]]:
    """Compare the n-grams of texts; the libraries have to be here.

    Args:
        predictions: Empty where nothing was written.
        targets: As many.

    Returns:
        One value a row for each column: counts of BLEU, which add up over rows, and F1 of ROUGE.
    """
    from rouge_score.rouge_scorer import RougeScorer
    from sacrebleu.metrics.bleu import BLEU

    # Of a sentence only the counts are taken; without effective_order it warns.
    bleu, rouge = BLEU(effective_order=True), RougeScorer(list(_ROUGE))
    counted, overlaps = [], []
    for prediction, target in zip(predictions, targets, strict=True):
        found = bleu.sentence_score(prediction, [target])
        counted.append([*found.counts, *found.totals, found.sys_len, found.ref_len])
        scores = rouge.score(target, prediction)
        overlaps.append([scores[name].fmeasure for name in _ROUGE])
    values = np.hstack([np.array(counted, dtype=np.float64), np.array(overlaps)])
    return dict(zip((*_BLEU, *_ROUGE), values.T, strict=True))


def _bleu(columns: Columns) -> Any:
    """Return BLEU of all rows together, 0 to 1."""
    sums = np.stack([columns[name].sum(axis=-1) for name in _BLEU], axis=-1)
    return np.apply_along_axis(_bleu_of_counts, -1, sums)


def _bleu_of_counts(counts: NDArray[np.float64]) -> float:
    from sacrebleu.metrics.bleu import BLEU

    *ngrams, said, wanted = (int(count) for count in counts)
    right, there = ngrams[: len(_N)], ngrams[len(_N) :]
    return BLEU.compute_bleu(right, there, said, wanted, smooth_method="exp").score / 100


_metric = partial(Metric, unit="%", higher_is_better=True)

NGRAM_METRICS = (
    _metric(name="bleu", label="BLEU", value=_bleu),
    *(_metric(name=name, label=label, value=mean_of(name)) for name, label in _ROUGE.items()),
)

NGRAM_PROTOCOLS = {
    "bleu, rouge1, rougeL": {
        "variant": "sacrebleu's BLEU over all rows (13a, exponential smoothing); rouge_score's F1 "
        "without a stemmer, mean over rows"
        if IS_HERE
        else "absent: pip install 'mm-numeric[text]'",
        "unreadable answer": "an empty text",
    }
}
