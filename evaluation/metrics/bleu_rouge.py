"""BLEU and ROUGE, computed with sacrebleu and rouge_score.

``pip install 'mm-numeric[text]'`` installs both libraries; without them the metrics are left out.

BLEU     corpus BLEU with sacrebleu's defaults: 13a tokenizer, exponential smoothing (Post 2018)
ROUGE    F1 of Google's rouge_score without a stemmer, mean over rows (Lin 2004)

Both are stored as values from 0 to 1.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from itertools import starmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mm_numeric.evaluation.metrics.base import Columns, RowColumns, percentage

IS_INSTALLED = all(map(find_spec, ("sacrebleu", "rouge_score")))
"""True if sacrebleu and rouge_score are installed."""

_N = (1, 2, 3, 4)
_BLEU = (*(f"bleu_right_{n}" for n in _N), *(f"bleu_said_{n}" for n in _N), "words", "words_wanted")
_ROUGE = {"rouge1": "ROUGE-1", "rougeL": "ROUGE-L"}


def ngram_columns(predictions: Sequence[str], targets: Sequence[str]) -> RowColumns:
    """Return the columns that BLEU and ROUGE are computed from, with one value per row.

    The columns of BLEU are n-gram counts and text lengths; corpus BLEU is computed from their sums
    over all rows. The columns of ROUGE are F1 scores.
    """
    from rouge_score.rouge_scorer import RougeScorer
    from sacrebleu.metrics.bleu import BLEU

    # Only the counts of a sentence are used; effective_order avoids a warning.
    bleu, rouge = BLEU(effective_order=True), RougeScorer(list(_ROUGE))
    counts, rouge_f1 = [], []
    for prediction, target in zip(predictions, targets, strict=True):
        score = bleu.sentence_score(prediction, [target])
        counts.append([*score.counts, *score.totals, score.sys_len, score.ref_len])
        scores = rouge.score(target, prediction)
        rouge_f1.append([scores[name].fmeasure for name in _ROUGE])
    values = np.hstack([np.array(counts, dtype=np.float64), np.array(rouge_f1)])
    return dict(zip((*_BLEU, *_ROUGE), values.T, strict=True))


def _bleu(columns: Columns) -> Any:
    sums = np.stack([columns[name].sum(axis=-1) for name in _BLEU], axis=-1)
    return np.apply_along_axis(_bleu_of_counts, -1, sums)


def _bleu_of_counts(counts: NDArray[np.float64]) -> float:
    from sacrebleu.metrics.bleu import BLEU

    *ngrams, length, target_length = (int(count) for count in counts)
    correct, total = ngrams[: len(_N)], ngrams[len(_N) :]
    return BLEU.compute_bleu(correct, total, length, target_length, smooth_method="exp").score / 100


NGRAM_METRICS = (percentage("bleu", "BLEU", _bleu), *starmap(percentage, _ROUGE.items()))

NGRAM_PROTOCOLS = {
    "bleu, rouge1, rougeL": {
        "variant": "sacrebleu's BLEU over all rows (13a, exponential smoothing); rouge_score's F1 "
        "without a stemmer, mean over rows"
        if IS_INSTALLED
        else "absent: pip install 'mm-numeric[text]'",
        "unreadable answer": "an empty text",
    }
}
