"""Metrics for free text, with BLEU and ROUGE, and for yes-or-no answers.

``TEXTS`` and ``CHOICES`` have the rules of each metric. Words are compared as in SQuAD: without
case, punctuation and the articles a, an and the. BLEU and ROUGE are computed with sacrebleu (Post
2018) and rouge_score (Lin 2004). ``pip install 'mm-numeric[text]'`` installs both packages; without
them, BLEU and ROUGE are left out.

Sources: https://rajpurkar.github.io/SQuAD-explorer (evaluate-v1.1.py), SuperGLUE's jiant, and
https://github.com/CogComp/multirc (eval/measures.py).
"""

import re
import string
from collections import Counter
from collections.abc import Sequence
from importlib.util import find_spec
from itertools import starmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mm_numeric.answers import Choice, Text
from mm_numeric.evaluation.metrics.base import (
    UNREADABLE,
    Columns,
    RowColumns,
    Scorer,
    Success,
    hmean_of,
    mean_of,
    part_of,
    percentage,
    unparseable,
)

IS_INSTALLED = all(map(find_spec, ("sacrebleu", "rouge_score")))
"""True if sacrebleu and rouge_score are installed."""

_N = (1, 2, 3, 4)
_BLEU = (*(f"bleu_right_{n}" for n in _N), *(f"bleu_said_{n}" for n in _N), "words", "words_wanted")
_ROUGE = {"rouge1": "ROUGE-1", "rougeL": "ROUGE-L"}


def ngram_columns(predictions: Sequence[str], targets: Sequence[str]) -> RowColumns:
    """Return the columns that BLEU and ROUGE are computed from, with one value per row.

    The columns of BLEU are counts and lengths, to be summed over rows; ROUGE has one F1 per row.
    """
    from rouge_score.rouge_scorer import RougeScorer
    from sacrebleu.metrics.bleu import BLEU

    # Only the counts of a text are used, not its score; effective_order avoids a warning.
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


_ARTICLES = re.compile(r"\b(a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)
POSITIVE = "yes"
"""The answer that counts as the positive class for F1."""


def words_of(text: str) -> list[str]:
    """Split a text into lower-case words without punctuation and articles, as SQuAD does."""
    return _ARTICLES.sub(" ", text.lower().translate(_WITHOUT_PUNCTUATION)).split()


def word_f1(prediction: str, target: str) -> float:
    """Return the F1 score of the words in a predicted and a true text, 0 to 1, as SQuAD does."""
    predicted, true = words_of(prediction), words_of(target)
    common = sum((Counter(predicted) & Counter(true)).values())
    return 2 * common / (len(predicted) + len(true)) if common else 0.0


def score_texts(predictions: Sequence[Text | None], targets: Sequence[Text]) -> RowColumns:
    """Compare predicted with true texts; return columns with one value per row.

    Columns of BLEU and ROUGE are added if sacrebleu and rouge_score are installed.
    """
    pairs = list(zip(predictions, targets, strict=True))
    same = [p is not None and words_of(p.text) == words_of(t.text) for p, t in pairs]
    f1 = [word_f1(p.text, t.text) if p is not None else 0.0 for p, t in pairs]
    generated = ["" if p is None else p.text for p, _ in pairs]
    ngrams = ngram_columns(generated, [t.text for t in targets]) if IS_INSTALLED else {}
    return {
        **ngrams,
        "exact": np.array(same, dtype=np.float64),
        "f1": np.array(f1, dtype=np.float64),
        "unreadable": unparseable(predictions),
    }


def score_choices(predictions: Sequence[Choice | None], targets: Sequence[Choice]) -> RowColumns:
    """Score yes-or-no answers; return columns with one value per row.

    Several rows can belong to the same question. To count each question once in sums over rows,
    columns that begin with ``question`` have the value of a question in its first row, and 0 in its
    other rows. The remaining columns are 0 or 1: ``said`` is 1 if the prediction is yes, and
    ``there`` is 1 if the target is yes.
    """
    pairs = list(zip(predictions, targets, strict=True))
    right = [p is not None and p.chosen == t.chosen for p, t in pairs]
    # A row without a name is a question of its own.
    names = [t.question or f"\0{i}" for i, t in enumerate(targets)]
    firsts = {name: i for i, name in reversed(list(enumerate(names)))}
    is_first = np.array([firsts[name] == i for i, name in enumerate(names)])
    missed = {name for name, is_right in zip(names, right, strict=True) if not is_right}
    said = [p is not None and p.chosen == POSITIVE for p, _ in pairs]
    there = [t.chosen == POSITIVE for t in targets]
    found = [a and b for a, b in zip(said, there, strict=True)]
    columns = {
        "right": right,
        "said": said,
        "there": there,
        "found": found,
        "question": is_first,
        "question_right": is_first * [name not in missed for name in names],
        "question_precision": is_first * _shares_by_question(names, found, said),
        "question_recall": is_first * _shares_by_question(names, found, there),
        "unreadable": [p is None for p, _ in pairs],
    }
    return {name: np.array(values, dtype=np.float64) for name, values in columns.items()}


def _shares_by_question(
    names: Sequence[str], part: Sequence[bool], whole: Sequence[bool]
) -> list[float]:
    """Return the precision or recall of each row's question.

    It is the number of rows in ``part`` (prediction and target are yes) / number of rows in
    ``whole`` (the prediction is yes; for recall, the target is yes), or 1 if ``whole`` has none.
    """
    parts, wholes = Counter[str](), Counter[str]()
    for name, is_part, is_whole in zip(names, part, whole, strict=True):
        parts[name] += is_part
        wholes[name] += is_whole
    return [parts[name] / wholes[name] if wholes[name] else 1.0 for name in names]


def _numbers(target: Text) -> str:
    return "with a number" if any(map(str.isdigit, target.text)) else "without a number"


TEXTS = Scorer(
    columns=score_texts,
    metrics=(
        percentage("f1", "F1 of words"),
        percentage("exact", "exact"),
        *(NGRAM_METRICS if IS_INSTALLED else ()),
        UNREADABLE,
    ),
    buckets={"numbers": _numbers},
    success=Success(label="equal after SQuAD's normalisation", column="exact"),
    protocols={
        "f1, exact": {
            "variant": "SQuAD, evaluate-v1.1.py, with one reference per row",
            "mean": "over rows",
            "unreadable answer": "0; it stays in the mean",
        },
        **NGRAM_PROTOCOLS,
    },
)
"""Scorer for ``Text`` answers."""

_PRECISION, _RECALL = ("question_precision", "question"), ("question_recall", "question")

CHOICES = Scorer(
    columns=score_choices,
    metrics=(
        percentage("f1_answers", "F1a", hmean_of(("found", "said"), ("found", "there"))),
        percentage("exact_questions", "EM", part_of("question_right", "question")),
        percentage("f1_questions", "F1m", hmean_of(_PRECISION, _RECALL)),
        percentage("precision_questions", "P per question", part_of(*_PRECISION)),
        percentage("recall_questions", "R per question", part_of(*_RECALL)),
        percentage("accuracy", "accuracy", mean_of("right")),
        UNREADABLE,
    ),
    buckets={"answer": lambda target: target.chosen},
    success=Success(label="the correct choice", column="right"),
    group=lambda target: target.question,
    joins_rows=True,
    protocols={
        "f1_answers, exact_questions": {
            "variant": "SuperGLUE, MultiRC: F1a over all answers, EM over questions",
            "unreadable answer": "wrong, and not labelled as correct",
        },
        "f1_questions, precision_questions, recall_questions": {
            "variant": "CogComp/multirc, eval/measures.py: F1m is the harmonic mean of the mean "
            "precision and the mean recall of the questions",
            "no answer labelled as correct": "precision 1",
            "no correct answer": "recall 1",
            "unreadable answer": "not labelled as correct",
        },
    },
)
"""Scorer for ``Choice`` answers, such as yes or no."""
