"""Answers in words, and answers of a few choices.

``exact``, ``f1``   ``exact_match_score`` and ``f1_score`` of SQuAD's evaluate-v1.1.py: in lower
                    case, without punctuation and the words a, an and the; F1 of the words of a row,
                    then the mean over rows
``f1_answers``      F1a of SuperGLUE's MultiRC: of the answers that are said to be right, over all
``exact_questions`` its EM: questions of which every answer is judged rightly

Sources: https://rajpurkar.github.io/SQuAD-explorer (evaluate-v1.1.py) and SuperGLUE's jiant.
"""

import re
import string
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mm_numeric.answers import Choice, Text
from mm_numeric.evaluation.metrics.base import Metric, Scorer, hmean_of, mean_of, share_of
from mm_numeric.evaluation.metrics.bleu_rouge import (
    IS_HERE,
    NGRAM_METRICS,
    NGRAM_PROTOCOLS,
    ngram_columns,
)

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)
POSITIVE = "yes"
"""The choice that F1 is about."""


def words_of(text: str) -> list[str]:
    """Return the words of a text as SQuAD compares them."""
    return _ARTICLES.sub(" ", text.lower().translate(_WITHOUT_PUNCTUATION)).split()


def word_f1(prediction: str, target: str) -> float:
    """Return the F1 of the words that two texts share, 0 to 1."""
    said, wanted = words_of(prediction), words_of(target)
    same = sum((Counter(said) & Counter(wanted)).values())
    return 2 * same / (len(said) + len(wanted)) if same else 0.0


def score_texts(
    predictions: Sequence[Text | None], targets: Sequence[Text]
) -> dict[str, NDArray[np.float64]]:
    """Judge each row.

    Args:
        predictions: None where nothing was written.
        targets: As many.

    Returns:
        One value a row for each column: F1, 0 or 1, and what BLEU and ROUGE need where their
        libraries are installed.
    """
    pairs = list(zip(predictions, targets, strict=True))
    same = [p is not None and words_of(p.text) == words_of(t.text) for p, t in pairs]
    f1 = [word_f1(p.text, t.text) if p is not None else 0.0 for p, t in pairs]
    said = ["" if p is None else p.text for p, _ in pairs]
    ngrams = ngram_columns(said, [t.text for t in targets]) if IS_HERE else {}
    return {
        **ngrams,
        "exact": np.array(same, dtype=np.float64),
        "f1": np.array(f1, dtype=np.float64),
        "unreadable": np.array([p is None for p, _ in pairs], dtype=np.float64),
    }


def score_choices(
    predictions: Sequence[Choice | None], targets: Sequence[Choice]
) -> dict[str, NDArray[np.float64]]:
    """Judge each row.

    Args:
        predictions: None where the answer could not be read.
        targets: As many; those of one question have its name.

    Returns:
        One value a row for each column. ``question`` is the share of its question that a row is,
        and ``question_right`` the same where all rows of that question are right.
    """
    pairs = list(zip(predictions, targets, strict=True))
    right = [p is not None and p.chosen == t.chosen for p, t in pairs]
    names = [t.question or f"\0{i}" for i, t in enumerate(targets)]  # alone where it has no name
    sizes = Counter(names)
    missed = {name for name, is_right in zip(names, right, strict=True) if not is_right}
    said = [p is not None and p.chosen == POSITIVE for p, _ in pairs]
    there = [t.chosen == POSITIVE for t in targets]
    columns = {
        "right": right,
        "said": said,
        "there": there,
        "found": [a and b for a, b in zip(said, there, strict=True)],
        "question": [1 / sizes[name] for name in names],
        "question_right": [0.0 if name in missed else 1 / sizes[name] for name in names],
        "unreadable": [p is None for p, _ in pairs],
    }
    return {name: np.array(values, dtype=np.float64) for name, values in columns.items()}


def _numbers(target: Text) -> str:
    return "with a number" if any(map(str.isdigit, target.text)) else "without a number"


_UNREADABLE = Metric(
    name="unreadable",
    label="unreadable",
    unit="%",
    higher_is_better=False,
    value=mean_of("unreadable"),
)

TEXTS = Scorer(
    columns=score_texts,
    metrics=(
        Metric(
            name="f1", label="F1 of words", unit="%", higher_is_better=True, value=mean_of("f1")
        ),
        Metric(
            name="exact", label="exact", unit="%", higher_is_better=True, value=mean_of("exact")
        ),
        *(NGRAM_METRICS if IS_HERE else ()),
        _UNREADABLE,
    ),
    buckets={"numbers": _numbers},
    protocols={
        "f1, exact": {
            "variant": "SQuAD, evaluate-v1.1.py, with one right text a row",
            "mean": "over rows",
            "unreadable answer": "0; it stays in the mean",
        },
        **NGRAM_PROTOCOLS,
    },
)
"""How ``Text`` answers are judged."""

CHOICES = Scorer(
    columns=score_choices,
    metrics=(
        Metric(
            name="f1_answers",
            label="F1a",
            unit="%",
            higher_is_better=True,
            value=hmean_of(("found", "said"), ("found", "there")),
        ),
        Metric(
            name="exact_questions",
            label="EM",
            unit="%",
            higher_is_better=True,
            value=share_of("question_right", "question"),
        ),
        Metric(
            name="accuracy",
            label="accuracy",
            unit="%",
            higher_is_better=True,
            value=mean_of("right"),
        ),
        _UNREADABLE,
    ),
    buckets={"answer": lambda target: target.chosen},
    protocols={
        "f1_answers, exact_questions": {
            "variant": "SuperGLUE, MultiRC: F1a over all answers, EM over questions",
            "unreadable answer": "wrong, and not said to be right",
        }
    },
)
"""How ``Choice`` answers are judged."""
