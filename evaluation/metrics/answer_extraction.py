"""Extract the answer to a MathVista question from a model's response, by rules without an LLM.

The rules of MathVista's ``extract_answer`` with ``--quick_extract`` come first. They accept a
response that is a choice, an integer or a float, or that contains ``The answer is "..."``. Where
the published script would then ask GPT-4, this module tries the following rules in this order:

choice    the choice named by the text after the last ``answer is``, else by the whole response,
          else by its last line, else by a letter at its end
          the only letter in parentheses, in the response or in its last line
          the only choice whose words occur in the response
number    the first number after the last ``answer is`` (after the last ``=`` of that sentence)
          the last number of the response
list      the last ``[...]`` of the response

Numbers must be written in digits. $ and thousands separators are removed. Fractions are rejected.
If no rule applies, the extracted text is empty, except for multiple choice: there it is the whole
response, and ``metrics.mathvista`` picks the most similar choice, as the published script does.

Source: https://github.com/lupantech/MathVista, evaluation/extract_answer.py.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from mm_numeric.answers import ShortAnswer

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
    """Extracted text, which ``metrics.mathvista`` normalises and compares."""

    reason: str | None = None
    """Why no answer was found, such as ``no number``; None if an answer was found."""

    option: int | None = None
    """Index of the choice that the response names; None if it names none."""


def extract(response: str, asked: ShortAnswer) -> Extraction:
    """Extract the answer to a MathVista question, without its correct answer, from a response."""
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

    Returns the unchanged text. If it is invalid, it also returns why, such as ``no number``.
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
    declared = [response[end:] for end in _declared_ends(response)[-1:]]
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


def _declared_ends(response: str) -> list[int]:
    """Return the character index after each phrase such as "answer is" in a response."""
    return [match.end() for match in _DECLARED.finditer(response)]


def _number(response: str) -> Extraction:
    """Extract the number after the last ``answer is``, or else the last number of a response."""
    response = response.replace("\N{MINUS SIGN}", "-")
    declared = [response[end:] for end in _declared_ends(response)[-1:]]
    number = None
    for rest in declared:
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
    """Extract the last list of a response, with one space after each comma: ``[1, 2]``."""
    lists = _LIST.findall(response)
    if not lists:
        return Extraction("", "no list")
    return Extraction(f"[{', '.join(item.strip() for item in lists[-1].split(','))}]")
