"""Accuracy on MathVista: extract the answer from a response, normalise it, compare it as text.

If the rows have answers that a judge extracted (MathVista's published ``extraction``, or those of
``mm-numeric score --extract-with``), these are scored by MathVista's script, and nothing is
extracted again:

``official``        rules of MathVista's ``calculate_score.py`` as of 2024
``official_2023``   those as of 2023, where ``5.0`` is wrong for 5; most published scores use them
``rules_agree``     share of rows where the rules below give the same answer as the judge

Without a judge, the rules of ``mm_numeric.evaluation.metrics.answer_extraction`` extract the answer
from the response; ``rules`` and ``rules_2023`` are the two scores of this answer.

On the published responses of seven systems, the rules agree with the extraction of GPT-4 on 835 to
1,000 of 1,000 rows (LLaVAR 874, GPT-4 with program of thought 835). Compare published scores with
``official``, not with ``rules``.

In both modes:

``strict``          a choice must be named by its letter or text, and 5.9 is wrong for 5, while
                    MathVista's script truncates it
``nearest_credit``  share of rows that MathVista's script counts as correct only because the right
                    choice has the smallest edit distance to an answer that names no choice

Source: https://github.com/lupantech/MathVista, evaluation/calculate_score.py.

Source of the prompt for a judge: evaluation/prompts/ext_ans.py and the function
``create_test_prompt`` of evaluation/extract_answer.py. The prompt is quoted character by character,
because judges answer differently to other prompts.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from mm_numeric.answers import JudgedText, ShortAnswer, Text
from mm_numeric.evaluation.metrics.answer_extraction import (
    Extraction,
    extract,
    extract_without_judge,
    validate_extraction,
)
from mm_numeric.evaluation.metrics.base import (
    UNREADABLE,
    JudgeRules,
    Metric,
    RowColumns,
    Scorer,
    Success,
    percentage,
)

EXAMPLES = """
Please read the following example. Then extract the answer from the model response and type it at \
the end of the prompt.

Hint: Please answer the question requiring an integer answer and provide the final value, e.g., \
1, 2, 3, at the end.
Question: Which number is missing?

Model response: The number missing in the sequence is 14.

Extracted answer: 14

Hint: Please answer the question requiring a floating-point number with one decimal place and \
provide the final value, e.g., 1.2, 1.3, 1.4, at the end.
Question: What is the fraction of females facing the camera?

Model response: The fraction of females facing the camera is 0.6, which means that six out of ten \
females in the group are facing the camera.

Extracted answer: 0.6

Hint: Please answer the question requiring a floating-point number with two decimal places and \
provide the final value, e.g., 1.23, 1.34, 1.45, at the end.
Question: How much money does Luca need to buy a sour apple candy and a butterscotch candy? \
(Unit: $)

Model response: Luca needs $1.45 to buy a sour apple candy and a butterscotch candy.

Extracted answer: 1.45

Hint: Please answer the question requiring a Python list as an answer and provide the final list, \
e.g., [1, 2, 3], [1.2, 1.3, 1.4], at the end.
Question: Between which two years does the line  graph saw its maximum peak?

Model response: The line graph saw its maximum peak between 2007 and 2008.

Extracted answer: [2007, 2008]

Hint: Please answer the question and provide the correct option letter, e.g., A, B, C, D, at the \
end.
Question: What fraction of the shape is blue?
Choices:
(A) 3/11
(B) 8/11
(C) 6/11
(D) 3/5

Model response: The correct answer is (B) 8/11.

Extracted answer: B
""".strip()
"""Five examples of a question, a response and its extracted answer."""


def judge_prompt(question: str, response: str) -> str:
    """Return the prompt that asks a judge for the answer in a response.

    ``question`` is the prompt that the model answered: MathVista's hint, question and choices.
    """
    return f"{EXAMPLES}\n\n{question}\n\n{response}\n\nExtracted answer: "


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

    With ``rule_2023``, an integer is parsed with ``int(text)``, which rejects ``5.0``.
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
    """Score responses to MathVista questions by rules; return columns with a 0 or 1 for each row.

    A prediction is the whole response of the model; None if it is empty.
    """
    pairs = list(zip(predictions, targets, strict=True))
    return _columns("rules", [_extract_by_rules(p, t) for p, t in pairs], targets)


def score_extractions(
    predictions: Sequence[JudgedText], targets: Sequence[ShortAnswer]
) -> RowColumns:
    """Score answers that a judge extracted from responses to MathVista questions.

    Returns columns of 0 or 1. ``rules`` and ``rules_2023`` are 1 if an answer that fixed rules
    extract from the response is correct. ``rules_agree`` is 1 if it equals the judge's answer.
    """
    pairs = list(zip(predictions, targets, strict=True))
    judged = [validate_extraction(p.extraction, t) for p, t in pairs]
    by_rules = score_short_answers(predictions, targets)
    columns = _columns("official", judged, targets)
    agree = [
        normalised(_extract_by_rules(p, t).text, t) == normalised(p.extraction, t) for p, t in pairs
    ]
    return {
        **columns,
        "strict": columns["strict"] * columns["official"],
        "rules": by_rules["rules"],
        "rules_2023": by_rules["rules_2023"],
        "rules_agree": np.array(agree, dtype=np.float64),
    }


def _columns(
    name: str, extractions: Sequence[Extraction], targets: Sequence[ShortAnswer]
) -> RowColumns:
    pairs = list(zip(extractions, targets, strict=True))
    right = [normalised(found.text, t) == t.text for found, t in pairs]
    nearest = [t.question_type == "multi_choice" and found.option is None for found, t in pairs]
    columns = {
        "strict": [_is_strictly_right(found, t) for found, t in pairs],
        name: right,
        f"{name}_2023": [normalised(f.text, t, rule_2023=True) == t.text for f, t in pairs],
        "nearest_credit": [a and b for a, b in zip(right, nearest, strict=True)],
        "unreadable": [found.reason is not None for found, _ in pairs],
    }
    return {key: np.array(values, dtype=np.float64) for key, values in columns.items()}


def _extract(prediction: Text | None, target: ShortAnswer) -> Extraction:
    if isinstance(prediction, JudgedText):
        return validate_extraction(prediction.extraction, target)
    return _extract_by_rules(prediction, target)


def _extract_by_rules(prediction: Text | None, target: ShortAnswer) -> Extraction:
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


_NEAREST = "the nearest by edit distance, of an empty answer too"
_BUCKETS: Mapping[str, Callable[[Any], str | tuple[str, ...]]] = {
    "question_type": lambda target: target.question_type,
    "answer_type": lambda target: target.answer_type,
    **{name: partial(_label, name) for name in LABELS},
}
_LAST: tuple[Metric, ...] = (
    percentage("nearest_credit", "right by the nearest choice", good=False),
    UNREADABLE,
)
_STRICT = {
    "variant": "without credit for answers that were not given",
    "choice that is not named": "wrong",
    "whole numbers": "5.9 is not 5",
    "unreadable answer": "wrong; it stays in the mean",
}


def _variants(name: str, extraction: str) -> dict[str, dict[str, str]]:
    return {
        name: {
            "variant": "MathVista, calculate_score.py as of 2024",
            "extraction": extraction,
            "whole numbers": "str(int(float(x)))",
            "floats": "str(round(float(x), int(precision)))",
            "choice that is not named": _NEAREST,
        },
        f"{name}_2023": {
            "variant": "MathVista, calculate_score.py as of 2023",
            "extraction": extraction,
            "whole numbers": "str(int(x)): 5.0 is not 5",
        },
    }


_RULES = _variants(
    "rules",
    "by rules (mm_numeric.evaluation.metrics.answer_extraction) where MathVista's script asks "
    "GPT-4; on published responses of seven systems they agree on 835 to 1,000 of 1,000 rows",
)

JUDGED_MATHVISTA = Scorer(
    columns=score_extractions,
    metrics=(
        percentage("official", "official"),
        percentage("official_2023", "official, rule of 2023"),
        percentage("strict", "strict"),
        percentage("rules", "by rules"),
        percentage("rules_2023", "by rules, rule of 2023"),
        percentage("rules_agree", "rules agree with the judge"),
        *_LAST,
    ),
    buckets=_BUCKETS,
    success=Success(label="correct by the official rules", column="official"),
    protocols={
        **_variants("official", "that of the rows; nothing is extracted again"),
        **_RULES,
        "strict": _STRICT,
    },
    reason=lambda answer, target: _extract(answer, target).reason,
    extraction=lambda answer, target: _extract(answer, target).text,
)
"""Scorer for ``JudgedText`` predictions and ``ShortAnswer`` targets."""

MATHVISTA = Scorer(
    columns=score_short_answers,
    metrics=(
        percentage("strict", "strict"),
        percentage("rules", "by rules"),
        percentage("rules_2023", "by rules, rule of 2023"),
        *_LAST,
    ),
    buckets=_BUCKETS,
    success=Success(label="correct by the strict rules", column="strict"),
    protocols={**_RULES, "strict": _STRICT},
    reason=lambda answer, target: _extract(answer, target).reason,
    extraction=lambda answer, target: _extract(answer, target).text,
    judge_rules=JudgeRules(
        without_judge=extract_without_judge,
        prompt=judge_prompt,
        model="gpt-4-0613",
        max_tokens=256,
        scorer=JUDGED_MATHVISTA,
    ),
)
"""Scorer for ``Text`` predictions (whole responses) and ``ShortAnswer`` targets."""
