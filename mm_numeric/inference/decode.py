"""Choose the answer to a question from the explored answers, as ``predict.decode`` says.

Added to a line of predictions.jsonl if answers were explored:
    greedy   the greedy text; ``text`` is that of the chosen answer
    decode   rule         greedy, mean, median or mbr
             for          name of the risk, for mbr
             covered      probability of the parseable answers that were explored
             candidates   number of different ones
             interval     shortest interval with 90 % of the probability; null for other answers
                          than numbers and times
             confidence   see ``mm_numeric.inference.decision.CONFIDENCE``; null if unparseable
    scores   confidence of each object, in place of its mean token probability, which is
             ``token_scores`` for the greedy answer
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from mm_numeric.answers import Example, Unreadable
from mm_numeric.config.decoding import MBR, PredictConfig
from mm_numeric.families.family import Family
from mm_numeric.geometry.frames import Frame
from mm_numeric.inference.candidates import Exploration, PrefixTree, Samples
from mm_numeric.inference.constrain import Constraint
from mm_numeric.inference.decision import (
    Candidate,
    Decision,
    check_rule,
    decide,
)
from mm_numeric.inference.risks import Risk, find_risk, risk_of
from mm_numeric.tasks.base import Task

Explorer = Callable[[Sequence[Example], Constraint | None], Exploration]
"""Creates the exploration of a batch of examples; the constraint is that of a grammar."""


def check_rules(
    settings: PredictConfig, rules: Iterable[str], task: Task, examples: Sequence[Example]
) -> None:
    """Raise ValueError if a rule or the risk does not fit the answers of the examples."""
    answers = [example.answer for example in examples if example.answer is not None]
    for rule in rules if answers else ():
        check_rule(rule, type(answers[0]), "predict.decode")
        if rule == MBR:
            risk_of(task, answers[0], "predict.decode", settings.risk)


def make_explorer(settings: PredictConfig, family: Family, task: Task) -> Explorer:
    """Return how to explore: by samples, or by a prefix tree if neither settings nor task set any.

    Raises:
        ValueError: If the family is a baseline that generates its answers itself.
    """
    if type(family).generate_answers is not Family.generate_answers:
        raise ValueError(
            f"predict.decode: {settings.decode}: the baseline {family.name} predicts its answers "
            "without a distribution over texts; use greedy."
        )
    ends = {*family.stop_ids, family.pad_id}  # the text ends at either
    count = settings.samples or task.sampled_answers
    if not count:
        return lambda batch, constraint: PrefixTree(
            ends, constraint, mass=settings.mass, width=settings.branches
        )
    return lambda batch, constraint: Samples(
        ends, constraint, count=count, ids=[example.id for example in batch]
    )


class Decoded(NamedTuple):
    """The chosen answer of one example, and its entries for predictions.jsonl."""

    text: str
    entries: dict[str, Any]
    scores: Sequence[float] | None
    """Confidence of each object; None for answers without objects."""


def decode(
    task: Task,
    frame: Frame | None,
    greedy: str,
    candidates: Sequence[tuple[str, float]],
    rule: str,
    risk_name: str | None,
) -> Decoded:
    """Choose an answer.

    Args:
        task: The task, which parses texts and has a default risk.
        frame: Image size and coordinate format; None without an image.
        greedy: The greedy text. It is kept if no candidate can be parsed.
        candidates: Generated texts and their probabilities.
        rule: One of ``DECODE_RULES``.
        risk_name: Name of the risk for ``mbr``; None for that of the task.
    """
    parsed = [(task.parse(text, frame), text, prob) for text, prob in candidates]
    readable = [Candidate(*each) for each in parsed if not isinstance(each[0], Unreadable)]
    own = task.parse(greedy, frame)
    first = None if isinstance(own, Unreadable) else Candidate(own, greedy, 0.0)
    risk = _risk(task, readable, risk_name)
    found = decide(rule, readable, risk, greedy=first)
    text = found.text
    if text is None:
        text = greedy if found.answer is None else task.format(found.answer, frame).text
    entries = {"greedy": greedy, "decode": _entry(rule, risk, found)}
    return Decoded(text, entries, found.object_confidences)


def _risk(task: Task, readable: Sequence[Candidate], name: str | None) -> Risk:
    where = "predict.decode"
    if readable:
        return risk_of(task, readable[0].answer, where, name)
    return find_risk(name or task.risk or "exact", where)


def _entry(rule: str, risk: Risk, found: Decision) -> dict[str, Any]:
    def rounded(value: float | None) -> float | None:
        return None if value is None else round(value, 6)

    return {
        "rule": rule,
        **({"for": risk.name} if rule == MBR else {}),
        "covered": rounded(found.covered),
        "candidates": found.candidates,
        "interval": None if found.interval is None else list(found.interval),
        "confidence": rounded(found.confidence),
    }
