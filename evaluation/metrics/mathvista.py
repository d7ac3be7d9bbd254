"""Accuracy on MathVista: extract the answer from a response, normalise it, compare it as text.

``official``        rules of MathVista's ``calculate_score.py`` as of 2024. A choice is found by its
                    letter, or else by the smallest edit distance. An integer is normalised with
                    ``str(int(float(x)))``, a float with ``str(round(float(x), int(precision)))``.
``official_2023``   as ``official``, but with ``str(int(x))`` for integers, so that ``5.0`` is
                    wrong for 5; most published scores use this rule
``strict``          as ``official``, but a choice must be named by its letter or text, and 5.9 is
                    wrong for 5 (``official`` truncates it)
``nearest_credit``  share of rows that ``official`` counts as correct only because the right choice
                    has the smallest edit distance to a response that names no choice

All are shares of rows, 0 to 1. Answers are extracted by rules, in
``mm_numeric.evaluation.metrics.answer_extraction``. The published script asks GPT-4 instead.

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
"""Fields of a question's ``metadata``; the published script reports accuracy per value."""

_IN_BRACKETS = re.compile(r"\(([a-zA-Z])\)")


def edit_distance(one: str, other: str) -> int:
    """Return the Levenshtein distance of two texts."""
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, start=1):
        before, row[0] = row[0], i
        for j, b in enumerate(other, start=1):
            before, row[j] = row[j], min(before + (a != b), row[j] + 1, row[j - 1] + 1)
    return row[-1]


def normalised(extraction: str, asked: ShortAnswer, *, rule_2023: bool = False) -> str | None:
    """Normalise an extracted answer as MathVista's script does; return None if it is invalid.

    Args:
        extraction: Answer text extracted from a response.
        asked: Type, choices and precision of the expected answer; the answer itself is not used.
        rule_2023: Parse an integer with ``int(text)``, as in 2023, which rejects ``5.0``.
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
    """Score responses to MathVista questions; return columns with one value per row, all 0 or 1.

    A prediction is the whole response of the model; None if it is empty.
    """
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
    """Return why no answer was found, such as ``no number``; None if an answer was found."""
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
"""Scorer for ``ShortAnswer`` answers."""
