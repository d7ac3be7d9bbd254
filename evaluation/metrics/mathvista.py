"""Accuracy on MathVista: extract the answer from a response, normalise it, compare it as text.

``MATHVISTA`` extracts answers by rules without an LLM. ``JUDGED_MATHVISTA`` scores answers that a
judge extracted (MathVista's published ``extraction``, or ``mm-numeric score --extract-with``) as
MathVista's script does. Its metric ``rules_agree`` is the share of rows where the rules extract the
same answer as the judge.

On the published responses of seven systems, the rules agree with the extraction of GPT-4 on 835 to
1,000 of 1,000 rows (LLaVAR 874, GPT-4 with program of thought 835). Compare published scores with
``official`` and ``official_2023``, not with ``rules``. Most published scores use the 2023 script.
``nearest_credit`` is the share of rows that the script counts as correct only because the right
choice has the smallest edit distance to an answer that names no choice.

Source: https://github.com/lupantech/MathVista, evaluation/calculate_score.py. The prompt for a
judge is quoted character by character, because judges answer differently to other prompts, from
evaluation/prompts/ext_ans.py and ``create_test_prompt`` of evaluation/extract_answer.py.

The rules of MathVista's ``extract_answer`` with ``--quick_extract`` come first. They accept a
response that is a choice, an integer or a float, or that contains ``The answer is "..."``. For
other responses, the published script asks GPT-4. Here, these rules are tried in this order:

choice    the choice named by the text after the last ``answer is``, else by the whole response,
          else by its last line, else by a letter at its end
          the only letter in parentheses, in the response or in its last line
          the only choice whose words occur in the response
number    the first number after the last ``answer is`` (after the last ``=`` of that sentence)
          the last number of the response
list      the last ``[...]`` of the response

Numbers must be written in digits. $ and thousands separators are removed. Fractions are rejected.
If no rule applies, the extracted text is empty. For multiple choice, it is the whole response
instead, and the most similar choice counts, as in the published script.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from mm_numeric.answers import JudgedText, ShortAnswer, Text
from mm_numeric.evaluation.metrics.base import (
    UNREADABLE,
    JudgeRules,
    Metric,
    RowColumns,
    Scorer,
    Success,
    percentage,
)

_QUICK = re.compile(r'The answer is "(.*)"\.')
_DECLARED = re.compile(
    r"(?:(?i:\banswer[\s*]*+(?:(?:is|(?:must|should|would)\s+be)\b|[:=])|\b(?:option|choice)\s+is\b)"
    r"|\\boxed\{)[\s:=*]*(?i:(?:the|option|choice|letter)\b[\s:]*)*"
)
_SENTENCE_END = re.compile(r"[.\n](?:\s|$)")
_CLAUSE_END = re.compile(r"[.,;\n](?:\s|$)")
_LETTER_FIRST = re.compile(r"(?:\(([A-Za-z])\)|([A-Z])[).:])(?:\s|\W*$)")
_IN_BRACKETS = re.compile(r"\(([A-Z])\)")
_LAST_LETTER = re.compile(r"(?:^|[\s(\[*\"':：是为选])([A-Z])[\s)\].*\"'。]*$")
_NOT_THE_LAST = re.compile(r"(?:\b[A-Z]\W{1,3}(?:and|n?or)|\bnot)\W{1,3}[A-Z]\W*$")
_SURROUNDING = " \t\r\n.*\"'`${}[]。"
_WHOLE = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)"
_SIGN = r"(?:(?<![0-9])-)?"
_NUMBER = re.compile(
    rf"{_SIGN}\$?(?:{_WHOLE}(?:\.[0-9]+)?|(?<![0-9])\.[0-9]+)(?:[eE][-+]?[0-9]{{1,3}}(?![0-9]))?"
)
_OVER = re.compile(r"\s*/\s*[0-9]")
_UNDER = re.compile(r"[0-9]\s*/\s*$")
_FINITE = re.compile(r"-?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_LIST = re.compile(r"\[([^\[\]]*)\]")


class Extraction(NamedTuple):
    """The answer extracted from a response, or the reason why none was found."""

    text: str
    """Extracted text, which is normalised and compared."""

    reason: str | None = None
    """Why no answer was found, such as ``no number``; None if an answer was found."""

    option: int | None = None
    """Index of the choice that the response names; None if it names no choice."""


def extract(response: str, asked: ShortAnswer) -> Extraction:
    """Extract the answer to a MathVista question from a response, without the correct answer."""
    if not response.strip():
        return Extraction("", "empty answer")
    published = extract_without_judge(response, asked)
    quick = _QUICK.search(response) if published is None else None
    if quick:
        published = quick[1]
    if published is not None:
        return validate_extraction(published, asked)
    if asked.question_type == "multi_choice":
        return _choice(response, asked.choices)
    return _list(response) if asked.answer_type == "list" else _number(response)


def extract_without_judge(response: str, asked: ShortAnswer) -> str | None:
    """Extract an answer by the rules that MathVista's script tries before it asks GPT-4.

    A response is returned if it is empty, one of the choices, or a number of the expected
    type. Otherwise, None is returned.
    """
    if response == "" or (asked.question_type == "multi_choice" and response in asked.choices):
        return response
    try:
        if asked.answer_type == "integer":
            return str(int(response))
        if asked.answer_type == "float":
            return str(float(response))
    except ValueError:
        pass
    return None


def validate_extraction(text: str, asked: ShortAnswer) -> Extraction:
    """Check an answer that was already extracted, for example by a judge.

    Returns the unchanged text and, if it is invalid, the reason, such as ``no number``.
    """
    if not text.strip():
        return Extraction(text, "empty answer")
    if asked.question_type == "multi_choice":
        option = _parse_choice(text, asked.choices)
        return Extraction(text, "no option named" if option is None else None, option)
    if asked.answer_type != "list" and not _FINITE.fullmatch(text.strip()):
        return Extraction(text, "no number")
    return Extraction(text)


def _choice(response: str, choices: Sequence[str]) -> Extraction:
    lines = response.strip().splitlines()
    declared = _declared(response)
    ends = (_SENTENCE_END, _CLAUSE_END)
    for candidate in (*(end.split(d, 1)[0] for d in declared for end in ends), response, lines[-1]):
        option = _parse_choice(candidate, choices)
        if option is not None:
            return Extraction(_letter(option), option=option)
    last = None if _NOT_THE_LAST.search(response) else _LAST_LETTER.search(response)
    found = {_index(last[1], choices)} - {None} if last else set()
    for text in (response, lines[-1]):
        if len(found) != 1:
            found = {_index(letter, choices) for letter in _IN_BRACKETS.findall(text)} - {None}
    if len(found) != 1:
        found |= _mentioned(response, choices)
    if len(found) == 1:
        (option,) = found
        assert option is not None
        return Extraction(_letter(option), option=option)
    reason = "several options named" if found else "no option named"
    return Extraction(response.strip(), reason)


def _parse_choice(text: str, choices: Sequence[str]) -> int | None:
    """Return the index of the choice named by a text such as ``B``, ``(B) cat`` or ``cat``."""
    text = text.strip(_SURROUNDING)
    letter = text.strip("()")
    if _index(letter, choices) is not None:
        return _index(letter, choices)
    same = [i for i, c in enumerate(choices) if c.strip(_SURROUNDING).casefold() == text.casefold()]
    if len(same) == 1:
        return same[0]
    first = _LETTER_FIRST.match(text)
    if first:
        letter = first[1] or first[2]
        if set(_IN_BRACKETS.findall(text)) - {letter.upper()}:
            return None  # the text names another option as well
    return _index(letter.upper(), choices)


def _mentioned(response: str, choices: Sequence[str]) -> set[int | None]:
    """Return the indices of the choices that occur in a response.

    Longer choices are searched first, so that ``dark blue`` does not count as ``blue``.
    """
    left, found = response.casefold(), set[int | None]()
    for i in sorted(range(len(choices)), key=lambda i: -len(choices[i])):
        words = choices[i].strip(_SURROUNDING).casefold()
        if len(words) < 2 and not words.isdigit():
            continue  # a single letter such as "a" occurs in most texts
        left, count = re.subn(rf"(?<!\w){re.escape(words)}(?!\w)", "\0", left)
        if count:
            found.add(i)
    return found


def _index(letter: str, choices: Sequence[str]) -> int | None:
    options = [_letter(i) for i in range(len(choices))]
    return options.index(letter) if letter in options else None


def _letter(option: int) -> str:
    return chr(ord("A") + option)


def _declared(response: str) -> list[str]:
    """Return the text after the last phrase such as "answer is", in a list; [] if there is none."""
    ends = [match.end() for match in _DECLARED.finditer(response)]
    return [response[end:] for end in ends[-1:]]


def _number(response: str) -> Extraction:
    response = response.replace("\N{MINUS SIGN}", "-")
    number = None
    for rest in _declared(response):
        sentence = _SENTENCE_END.split(rest, 1)[0].rpartition("=")[2]
        number = _NUMBER.search(sentence)
    if number is None:
        number = next(reversed(list(_NUMBER.finditer(response))), None)
    if number is None:
        return Extraction("", "no number")
    before, after = number.string[: number.start()], number.string[number.end() :]
    if _OVER.match(after) or _UNDER.search(before[-20:]):
        return Extraction("", "a fraction")
    return Extraction(number[0].replace("$", "").replace(",", ""))


def _list(response: str) -> Extraction:
    lists = _LIST.findall(response)
    if not lists:
        return Extraction("", "no list")
    return Extraction(f"[{', '.join(item.strip() for item in lists[-1].split(','))}]")


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

_ANY_IN_BRACKETS = re.compile(r"\(([a-zA-Z])\)")


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
    letter = _ANY_IN_BRACKETS.search(extraction)
    if letter:
        extraction = letter[1].upper()
    option = _index(extraction, choices)
    if option is not None:
        return choices[option]
    return min(choices, key=partial(edit_distance, extraction))


def score_short_answers(
    predictions: Sequence[Text | None], targets: Sequence[ShortAnswer]
) -> RowColumns:
    """Score responses (None if empty) to MathVista questions by rules; return columns of 0 or 1."""
    pairs = list(zip(predictions, targets, strict=True))
    return _columns("rules", [_extract_by_rules(p, t) for p, t in pairs], targets)


def score_extractions(
    predictions: Sequence[JudgedText], targets: Sequence[ShortAnswer]
) -> RowColumns:
    """Score answers that a judge extracted from responses to MathVista questions.

    Returns columns of 0 or 1. ``rules`` and ``rules_2023`` are 1 if the answer that fixed rules
    extract from the response is correct. ``rules_agree`` is 1 if the rules and the judge extract
    the same answer.
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
    "by rules (mm_numeric.evaluation.metrics.mathvista) where MathVista's script asks "
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
