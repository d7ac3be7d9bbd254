"""The answer in what a model wrote about a question of MathVista: by rules, without a judge.

The first rules are those of the published ``extract_answer`` in ``extract_answer.py`` with
``--quick_extract``: nothing, one of the choices, a whole number or a number alone, ``The answer is
"..."``. Where it asks GPT-4, these go on:

choice    the option that the last ``answer is ...``, the whole text, the last line or the last
          letter names; else the only letter in brackets, of the text or of its last line; else the
          only choice whose words stand in the text
number    the first behind the last ``answer is`` (and behind the last ``=`` of its sentence), else
          the last of the text; $ and the commas of thousands are left out; only digits are numbers,
          and a fraction is none
list      the last ``[...]``

What nothing names is no answer: a text about choices is then handed on as it is (the published
normalisation takes the choice that looks most like it), and for a number an empty one.

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
_AROUND = " \t\r\n.*\"'`${}[]。"
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
    """What a model answered."""

    text: str
    """What the published normalisation is given."""

    reason: str | None = None
    """Why it is no answer; None where it is one."""

    option: int | None = None
    """Which choice is named, from 0."""


def extract(response: str, asked: ShortAnswer) -> Extraction:
    """Return the answer in a text.

    Args:
        response: What the model wrote, word for word.
        asked: What the question says of the answer's form; its ``text`` is not looked at.
    """
    published = _published(response, asked)
    if not response.strip():
        return Extraction("", "empty answer")
    if asked.question_type == "multi_choice":
        return _choice(response, published, asked.choices)
    if asked.answer_type == "list":
        return Extraction(published) if published is not None else _list(response)
    if published is None:
        return _number(response)
    if not _FINITE.fullmatch(published):
        return Extraction(published, "no number")
    return Extraction(published)


def _published(response: str, asked: ShortAnswer) -> str | None:
    """Return what the published rules extract; None where they ask GPT-4."""
    if asked.question_type == "multi_choice" and response in asked.choices:
        return response
    try:
        if asked.answer_type == "integer":
            return str(int(response))
        if asked.answer_type == "float":
            return str(float(response))
    except ValueError:
        pass
    quick = _QUICK.search(response)
    return quick[1] if quick else None


def _choice(response: str, published: str | None, choices: Sequence[str]) -> Extraction:
    """Return which choice is named; its letter goes on, or what the published rules extract."""
    if published is not None:
        option = _named(published, choices)
        return Extraction(published, "no option named" if option is None else None, option)
    lines = response.strip().splitlines()
    declared = [response[end:] for end in _declared_ends(response)[-1:]]
    ends = (_SENTENCE_END, _CLAUSE_END)
    for said in (*(end.split(d, 1)[0] for d in declared for end in ends), response, lines[-1]):
        option = _named(said, choices)
        if option is not None:
            return Extraction(_letter(option), option=option)
    last = None if _NOT_THE_LAST.search(response) else _LAST_LETTER.search(response)
    found = {_index(last[1], choices)} - {None} if last else set()
    for text in (response, lines[-1]):
        if len(found) != 1:
            found = {_index(letter, choices) for letter in _IN_BRACKETS.findall(text)} - {None}
    if len(found) != 1:
        found |= _told(response, choices)
    if len(found) == 1:
        (option,) = found
        assert option is not None
        return Extraction(_letter(option), option=option)
    reason = "several options named" if found else "no option named"
    return Extraction(response.strip(), reason)


def _named(said: str, choices: Sequence[str]) -> int | None:
    """Return which choice a short text is: a letter, ``(B) text``, or the text of a choice."""
    said = said.strip(_AROUND)
    letter = said.strip("()")
    if _index(letter, choices) is not None:
        return _index(letter, choices)
    same = [i for i, c in enumerate(choices) if c.strip(_AROUND).casefold() == said.casefold()]
    if len(same) == 1:
        return same[0]
    first = _LETTER_FIRST.match(said)
    if first:
        letter = first[1] or first[2]
        if set(_IN_BRACKETS.findall(said)) - {letter.upper()}:
            return None  # it goes on to another one
    return _index(letter.upper(), choices)


def _told(response: str, choices: Sequence[str]) -> set[int | None]:
    """Return the choices whose words stand in a text, and not only within those of a longer one."""
    left, found = response.casefold(), set[int | None]()
    for i in sorted(range(len(choices)), key=lambda i: -len(choices[i])):
        words = choices[i].strip(_AROUND).casefold()
        if len(words) < 2 and not words.isdigit():
            continue  # "a" is a word of many texts
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
    """Return behind which characters an answer is declared."""
    return [match.end() for match in _DECLARED.finditer(response)]


def _number(response: str) -> Extraction:
    """Return the number that is declared, or the last one."""
    response = response.replace("\N{MINUS SIGN}", "-")
    declared = [response[end:] for end in _declared_ends(response)[-1:]]
    number = None
    for told in declared:
        told = _SENTENCE_END.split(told, 1)[0].rpartition("=")[2]
        number = _NUMBER.search(told)
    if number is None:
        number = next(reversed(list(_NUMBER.finditer(response))), None)
    if number is None:
        return Extraction("", "no number")
    before, behind = number.string[: number.start()], number.string[number.end() :]
    if _OVER.match(behind) or _UNDER.search(before[-20:]):
        return Extraction("", "a fraction")
    return Extraction(number[0].replace("$", "").replace(",", ""))


def _list(response: str) -> Extraction:
    """Return the last list, with one space behind each comma as Python writes it."""
    lists = _LIST.findall(response)
    if not lists:
        return Extraction("", "no list")
    return Extraction(f"[{', '.join(item.strip() for item in lists[-1].split(','))}]")
