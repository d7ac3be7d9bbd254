r"""Find the part of a generated text that is the answer, before a task parses it.

Each rule narrows the text that the rule before it chose; a rule that finds nothing is skipped.

thoughts    the text after the last end of a thought, such as ``</think>``. If another thought
            begins there and does not end, the text has no answer
tags        the content of the last ``<answer>...</answer>``. If there is no end tag, because a
            server removed it as a stop string: the text after the last ``<answer>``
numbers     for tasks whose answer is a number or time, four more rules:
            1. the content of the last ``<|begin_of_box|>...<|end_of_box|>`` (GLM-4.1V, GLM-4.5V)
            2. the text after the last ``Answer:`` or ``####`` that has a number after it
            3. the content of the last ``\boxed{...}``, if it has a number
            4. the last code block that is JSON with a number; without one, the text outside code
               blocks, if it has a number

Markers of thoughts: ``<think>`` of DeepSeek-R1, Qwen3 and GLM, ``<thinking>``, ``<thought>``,
``<reasoning>``, ``<seed:think>`` of Seed-OSS, ``◁think▷`` of Kimi-VL, ``[THINK]`` of Magistral,
``<|begin_of_thought|>`` of Sky-T1, and the channels of gpt-oss, of which ``final`` has the answer.
"""

import json
import re
from typing import NamedTuple

_NAMES = "(?i:(?:seed:)?(?:think|thinking|thoughts?|reasoning))"
_THOUGHT = re.compile(
    rf"<{_NAMES}>|◁think▷|\[THINK\]|<\|begin_of_thought\|>"
    r"|<\|channel\|>(?:analysis|commentary)\b"
)
_END_OF_THOUGHT = re.compile(
    rf"</{_NAMES}>|◁/think▷|\[/THINK\]|<\|end_of_thought\|>"
    r"|<\|channel\|>final\b[^<>]{0,20}(?:<\|constrain\|>\w{0,20})?<\|message\|>"
)
_ANSWER = re.compile("(?i:<answer>)"), re.compile("(?i:</answer>)"), "<answer>"
_GLM_ANSWER = re.compile(r"<\|begin_of_box\|>"), re.compile(r"<\|end_of_box\|>"), "<|begin_of_box|>"
BOXED = r"in \boxed"
NO_END = "thoughts without an end"
"""Reason of the parse failure of a text that ends within a thought."""

_MARKER = re.compile(
    r"(?:(?i:\banswer)|答案)[*_ ]{0,4}[:：][*_ ]{0,4}"
    r"|####(?=[ \t]{0,4}-?\$?[ \t]?-?[0-9][0-9.,]{0,99}[ \t]*(?:\n|\Z))"
)
_ONE_NUMBER = re.compile(
    r"\s*+[-+$\\({ ]{0,8}[0-9][0-9.,]*+(?!(?:(?<=\.)|\))[ \t]+\S)[^0-9\n]*+(?=\n|\Z)"
)
"""A line that begins with its only number, and is not a list item such as ``1. ...``."""

_BOXED = re.compile(r"\\f?boxed\s{0,4}\{")
_BRACE = re.compile(r"[{}]")
_CODE = re.compile(r"```(?:([^\n`]*)\n)?((?s:.*?))(?:```|\Z)")
_DIGIT = re.compile("[0-9]")

_END_TOKENS = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "</s>", "<eos>",
               "<end_of_turn>", "<pad>", "<|pad|>")  # fmt: skip
"""End and padding tokens of Qwen, Llama, LLaVA, T5, PaliGemma and Gemma."""


class AnswerPart(NamedTuple):
    """The part of a generated text that is the answer."""

    text: str
    """The answer. Ignored code blocks in it are replaced by spaces."""

    start: int = 0
    """Index of the answer's first character in the generated text."""

    rules: tuple[str, ...] = ()
    """Names of the rules that chose the part, such as ``after the thoughts``; empty if none did."""

    failure: str | None = None
    """Reason why the text has no answer; None if it may have an answer."""

    def narrowed(self, start: int, end: int, rule: str) -> "AnswerPart":
        """Return the characters ``start`` to ``end`` of this part, chosen by a further rule."""
        return AnswerPart(self.text[start:end], self.start + start, (*self.rules, rule))


def answer_part(text: str) -> AnswerPart:
    """Return the text after a reasoning model's thoughts; if it has answer tags, their content."""
    part = AnswerPart(text)
    ends = [match.end() for match in _END_OF_THOUGHT.finditer(text)]
    if ends:
        part = part.narrowed(ends[-1], len(text), "after the thoughts")
    if _THOUGHT.search(part.text):
        return AnswerPart("", len(text), part.rules, NO_END)
    return _in_tags(part, *_ANSWER)


def _in_tags(
    part: AnswerPart, begin: re.Pattern[str], end: re.Pattern[str], name: str
) -> AnswerPart:
    begins = [match.end() for match in begin.finditer(part.text)]
    ends = [match.start() for match in end.finditer(part.text)]
    if not begins:
        return part
    closed = [start for start in begins if ends and start <= ends[-1]]
    start = (closed or begins)[-1]
    return part.narrowed(
        start, next((at for at in ends if at >= start), len(part.text)), f"in {name}"
    )


def number_part(text: str) -> AnswerPart:
    """Apply all rules, and return the part of a text whose last number or time is the answer."""
    part = answer_part(text)
    if part.failure:
        return part
    part = _in_box(_after_marker(_in_tags(part, *_GLM_ANSWER)))
    return _without_code(part) if "```" in part.text else part


def _after_marker(part: AnswerPart) -> AnswerPart:
    last = max(map(part.text.rfind, "0123456789"))
    markers = [match for match in _MARKER.finditer(part.text) if match.end() <= last]
    if not markers:
        return part
    start = markers[-1].end()
    line = _ONE_NUMBER.match(part.text, start)
    name = "####" if markers[-1][0] == "####" else "Answer:"
    return part.narrowed(start, line.end() if line else len(part.text), f"after {name}")


def _in_box(part: AnswerPart) -> AnswerPart:
    r"""Return the content of the last ``\boxed{...}``, or ``part`` if it has no digit."""
    boxes = list(_BOXED.finditer(part.text))
    if not boxes:
        return part
    start, end, depth = boxes[-1].end(), len(part.text), 1
    for brace in _BRACE.finditer(part.text, start):
        depth += 1 if brace[0] == "{" else -1
        if not depth:
            end = brace.start()
            break
    return part.narrowed(start, end, BOXED) if _DIGIT.search(part.text, start, end) else part


def _without_code(part: AnswerPart) -> AnswerPart:
    blocks = list(_CODE.finditer(part.text))
    for block in reversed(blocks):
        if _DIGIT.search(block[2]) and ((block[1] or "").strip() == "json" or _is_json(block[2])):
            return part.narrowed(*block.span(2), "in a JSON code block")
    rest = _CODE.sub(lambda block: " " * len(block[0]), part.text)
    if rest == part.text or not _DIGIT.search(rest):
        return part
    return part._replace(text=rest, rules=(*part.rules, "without code blocks"))


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def without_end_tokens(text: str) -> str:
    """Remove end and padding tokens around an answer; some tools leave them: ``7:05</s><pad>``."""
    while (answer := text.rstrip()).endswith(_END_TOKENS):
        text = answer[: answer.rindex("<")]
    while text.startswith(_END_TOKENS):
        text = text[text.index(">") + 1 :]
    return text
