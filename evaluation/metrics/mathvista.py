"""MathVista: answers extracted by rules, normalised, and compared as text.

``official``        ``normalize_extracted_answer`` and ``safe_equal`` of ``calculate_score.py`` as
                    of 2024: the choice of a letter, or the nearest choice by edit distance;
                    ``str(int(float(x)))``; ``str(round(float(x), int(precision)))``; ``str(list)``
``official_2023``   the same with ``str(int(x))`` for integers, as in most published scores: ``5.0``
                    is not 5
``strict``          a choice must be named by its letter or text, and an integer must be one
                    (``official`` truncates 5.9 to 5); otherwise as ``official``
``nearest_credit``  share of rows that ``official`` counts as correct although no choice was named
                    (the nearest choice to an empty answer is the shortest one)

All are shares of rows, 0 to 1. Answers are extracted by
``mm_numeric.evaluation.metrics.answer_extraction``; the published script asks GPT-4.

Source: https://github.com/lupantech/MathVista, evaluation/calculate_score.py.
"""

import re
from collections.abc import Sequence
from functools import partial

import numpy as np

from mm_numeric.answers import ShortAnswer, Text
from mm_numeric.evaluation.metrics.answer_extraction import Extraction, extract
from mm_numeric.evaluation.metrics.base import RowColumns, Scorer, percentage

LABELS = ("language", "source", "category", "task", "context", "grade", "skills")
"""Keys of a question's ``metadata`` by which the published script groups scores."""

_IN_BRACKETS = re.compile(r"\(([a-zA-Z])\)")


def edit_distance(one: str, other: str) -> int:
    """Return the Levenshtein distance: insertions, deletions and substitutions."""
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, start=1):
        before, row[0] = row[0], i
        for j, b in enumerate(other, start=1):
            before, row[j] = row[j], min(before + (a != b), row[j] + 1, row[j - 1] + 1)
    return row[-1]


def normalised(extraction: str, asked: ShortAnswer, *, rule_2023: bool = False) -> str | None:
    """Return an extracted answer as the published script compares it; None if it is invalid.

    ``rule_2023`` parses integers with ``int(text)``. The correct answer ``asked.text`` is not used.
    """
    if asked.question_type == "multi_choice":
        return _nearest_choice(extraction, asked.choices)
    try:
        if asked.answer_type == "integer":
            return str(int(extraction) if rule_2023 else int(float(extraction)))
        if asked.answer_type == "float":
            decimals = asked.precision
            return None if decimals is None else str(round(float(extraction), decimals))
    except (ValueError, OverflowError):  # not a number, or not finite
        return None
    return extraction


def _nearest_choice(extraction: str, choices: Sequence[str]) -> str:
    """Return the choice of a letter, or else the first choice with the least edit distance."""
    extraction = extraction.strip()
    letter = _IN_BRACKETS.search(extraction)
    if letter:
        extraction = letter[1].upper()
    options = [chr(ord("A") + i) for i in range(len(choices))]
    if extraction in options:
        return choices[options.index(extraction)]
    return min(choices, key=partial(edit_distance, extraction))


def score_short_answers(
    predictions: Sequence[Text | None], targets: Sequence[ShortAnswer]
) -> RowColumns:
    """Score each row 0 or 1 in every column; a prediction is a verbatim response, None if empty."""
    pairs = [(_extracted(p, t), t) for p, t in zip(predictions, targets, strict=True)]
    official = [normalised(found.text, t) == t.text for found, t in pairs]
    nearest = [t.question_type == "multi_choice" and found.option is None for found, t in pairs]
    columns = {
        "strict": [_is_strictly_right(found, t) for found, t in pairs],
        "official": official,
        "official_2023": [normalised(f.text, t, rule_2023=True) == t.text for f, t in pairs],
        "nearest_credit": [a and b for a, b in zip(official, nearest, strict=True)],
        "unreadable": [found.reason is not None for found, _ in pairs],
    }
    return {name: np.array(values, dtype=np.float64) for name, values in columns.items()}


def unreadable_reason(prediction: Text | None, target: ShortAnswer) -> str | None:
    """Return why a response contains no answer to its question; None if it does."""
    return _extracted(prediction, target).reason


def _extracted(prediction: Text | None, target: ShortAnswer) -> Extraction:
    return extract(prediction.text if isinstance(prediction, Text) else "", target)


def _is_strictly_right(found: Extraction, target: ShortAnswer) -> bool:
    if found.reason is not None:
        return False
    if target.question_type == "multi_choice":
        return found.option is not None and target.choices[found.option] == target.text
    whole = target.answer_type != "integer" or float(found.text).is_integer()
    return whole and normalised(found.text, target) == target.text


def _label(name: str, target: ShortAnswer) -> tuple[str, ...]:
    return target.labels.get(name, ())


_EXTRACTION = (
    "by rules (mm_numeric.evaluation.metrics.answer_extraction), where the script asks GPT-4"
)

MATHVISTA = Scorer(
    columns=score_short_answers,
    metrics=(
        percentage("strict", "strict"),
        percentage("official", "official"),
        percentage("official_2023", "official, rule of 2023"),
        percentage("nearest_credit", "right by the nearest choice", good=False),
        percentage("unreadable", "unreadable", good=False),
    ),
    buckets={
        "question_type": lambda target: target.question_type,
        "answer_type": lambda target: target.answer_type,
        **{name: partial(_label, name) for name in LABELS},
    },
    protocols={
        "official": {
            "variant": "MathVista, calculate_score.py as of 2024",
            "extraction": _EXTRACTION,
            "whole numbers": "str(int(float(x)))",
            "floats": "str(round(float(x), int(precision)))",
            "choice that is not named": "the nearest by edit distance, of an empty answer too",
        },
        "official_2023": {
            "variant": "MathVista, calculate_score.py as of 2023",
            "extraction": _EXTRACTION,
            "whole numbers": "str(int(x)): 5.0 is not 5",
        },
        "strict": {
            "variant": "official without credit for answers that were not given",
            "choice that is not named": "wrong",
            "whole numbers": "5.9 is not 5",
            "unreadable answer": "wrong; it stays in the mean",
        },
    },
    reason=unreadable_reason,
)
"""Scorer of ``ShortAnswer`` answers."""
