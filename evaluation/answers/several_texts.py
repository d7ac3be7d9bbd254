"""Decode several generated texts of each question into one answer, for ``mm-numeric decode``.

The texts of a question are in several rows with the same id, or in a list in one row. By default,
each text counts equally, as a sample of a model does. Rows may have one of these fields instead: a
list with a number for each text, or one number for a single text.

    weights     weight of the text, at least 0; the weights of equal texts are added, and the
                weights of a question are normalised to a sum of 1
    logprobs    log probability of the whole text, such as the score of beam search; equal texts
                count once

The output is a predictions file with the fields that ``mm-numeric predict`` writes, but without
``greedy``. Its field ``decode`` also has

    texts       number of texts
    parsed      number of texts that can be parsed
"""

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mm_numeric.answers import Instances, Unreadable
from mm_numeric.config.decoding import MBR
from mm_numeric.evaluation.answers.files import GeneratedText, value_at
from mm_numeric.evaluation.answers.joined_rows import Joined, joined_answers
from mm_numeric.evaluation.answers.source import AnswerSource, PreparedRows
from mm_numeric.inference.decision_rules import check_rule
from mm_numeric.inference.decode import candidates_of_texts, decode
from mm_numeric.inference.risks import risk_of
from mm_numeric.io.atomic_files import atomic_file
from mm_numeric.tasks.answer_part import without_end_tokens

_LOGPROBS = "logprobs"

_MOST = 1 + 1e-6
"""Probabilities may sum to this; it is a little above 1, because they are rounded."""


class DecodedTexts(NamedTuple):
    """How many answers were decoded, and from how many texts."""

    answers: int
    texts: int
    parsed: int
    """Number of texts that can be parsed."""


def decode_texts(
    source: AnswerSource, rows: PreparedRows, out: Path, rule: str, risk: str | None
) -> DecodedTexts:
    """Decode the texts of each question into one answer, and write a predictions file.

    ``rule`` is ``mean``, ``median`` or ``mbr``. ``risk`` is the name of the risk that ``mbr``
    minimises; None for the default risk of the task. Raises ValueError for an invalid row, or if
    the rule or the risk is not defined for the type of the answers.
    """
    texts = parsed = count = 0
    with atomic_file(out) as file:
        for joined in joined_answers(source, rows, several=True):
            if not count:
                check_rule(rule, type(joined.target), "--rule")
                if rule == MBR:
                    risk_of(joined.task, joined.target, "--for", risk)
            row = _decoded(joined, rule, risk)
            file.write(json.dumps(row).encode() + b"\n")
            texts, parsed = texts + row["decode"]["texts"], parsed + row["decode"]["parsed"]
            count += 1
    return DecodedTexts(count, texts, parsed)


def _decoded(joined: Joined, rule: str, risk: str | None) -> dict[str, Any]:
    task, frame = joined.task, joined.frame
    texts = [without_end_tokens(text) for own in joined.answers for text in own.texts]
    field = _weight_field(joined.answers[0])
    probabilities = _probabilities(joined.answers, texts, field)
    candidates = candidates_of_texts(task, frame, probabilities)
    likeliest = max(probabilities, key=lambda text: probabilities[text])
    samples = len(texts) if field is None else 0
    is_partial = field == "logprobs"
    text, entries, scores, _ = decode(
        task, frame, likeliest, candidates, rule, risk, samples=samples, is_partial=is_partial
    )
    if field == "weights":  # a weight counts how often a text was sampled
        entries["decode"] |= {"covered": 0.0, "drawn": entries["decode"]["covered"]}
    answer = task.read(text, frame)
    if scores is None and isinstance(answer, Instances):  # points, or no complete answer
        scores = [0.0] * len(answer.items)
    unreadable = isinstance(answer, Unreadable)
    parseable = {candidate.text for candidate in candidates}
    counts = {"texts": len(texts), "parsed": sum(own in parseable for own in texts)}
    return {
        **joined.row,
        "text": text,
        "decode": {**entries["decode"], **counts},
        "parsed": None if unreadable else task.record(answer),
        **({} if scores is None else {"scores": [round(own, 6) for own in scores]}),
        "reason": answer.reason if unreadable else None,
    }


def _weight_field(answer: GeneratedText) -> str | None:
    given = [name for name in ("weights", _LOGPROBS) if name in answer.row]
    if len(given) > 1:
        raise ValueError(f"{answer.where}: weights and logprobs; remove one of them.")
    return given[0] if given else None


def _probabilities(
    answers: Sequence[GeneratedText], texts: Sequence[str], field: str | None
) -> dict[str, float]:
    """Return the probability of each different text, in the order of first occurrence."""
    weights = [1.0] * len(texts)
    if field is not None:
        weights = [number for own in answers for number in _numbers(own, field)]
    found: defaultdict[str, float] = defaultdict(float)
    for text, weight in zip(texts, weights, strict=True):
        if field == _LOGPROBS:
            found[text] = max(found[text], math.exp(weight))
        else:
            found[text] += weight
    total = sum(found.values())
    if field == _LOGPROBS:
        if 0 < total <= _MOST:
            return dict(found)
        raise ValueError(
            f"{answers[0].where}: the probabilities of its texts sum to {total:.6g}; write the log "
            "probability of each whole text, or weights."
        )
    if not 0 < total < math.inf:
        raise ValueError(
            f"{answers[0].where}: the weights of its texts sum to {total:g}; write one that is "
            "above 0."
        )
    return {text: weight / total for text, weight in found.items()}


def _numbers(answer: GeneratedText, name: str) -> Iterator[float]:
    found = value_at(answer.row, name)
    numbers = found if isinstance(found, list) else [found]
    sign, what = (-1, "at most 0") if name == _LOGPROBS else (1, "at least 0")
    valid = len(numbers) == len(answer.texts) and all(
        type(number) in (int, float) and sign * number >= 0 for number in numbers
    )
    if not valid:
        raise ValueError(
            f'{answer.where}: "{name}" is {found!r:.60}; write one number, {what}, for each of the '
            f"{len(answer.texts)} texts, in all rows of a question or in none."
        )
    yield from map(float, numbers)
