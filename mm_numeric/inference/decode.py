"""Choose the answer to a question from the explored answers, by the rule ``predict.decode``.

If answers were explored, a line of predictions.jsonl also has these fields:
    greedy   the greedy text; ``text`` is the text of the chosen answer
    decode   rule         greedy, mean, median, mbr, mode or raft
             for          only for mbr: name of the risk; null if no answer could be parsed
             covered      probability of the parseable answers that were explored exactly
             drawn        estimated probability of the parseable answers that were drawn: samples,
                          or answers with prefixes beyond the limit ``branches``; null if answers
                          come from a server's ``top_logprobs``, where the rest is unknown
             candidates   number of different parseable answers
             interval     shortest interval with 90 % of the probability; null for answers other
                          than numbers and times
             confidence   see ``CONFIDENCE`` in ``decision_rules``; null if unparseable
             confidence_raw   only for a calibrated run: ``confidence`` before the calibration
             scores_raw   only for lists of a calibrated run: ``scores`` before the calibration
             support      only in files for ``calibrate``: see ``Decision.support``
    scores   confidence of each object of a list
    token_scores   only for the rule greedy: mean token probability of each object of a list
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from mm_numeric.answers import Box, Example, Instances, Unreadable
from mm_numeric.config.decoding import MBR, PredictConfig, is_greedy_alone
from mm_numeric.geometry.frames import Frame
from mm_numeric.inference.calibrate import Calibration
from mm_numeric.inference.decision_rules import Candidate, Decision, check_rule, decide
from mm_numeric.inference.risks import Risk, find_risk, risk_of
from mm_numeric.tasks.base import Task

if TYPE_CHECKING:  # `mm-numeric decode` needs no torch
    from mm_numeric.families.family import Family
    from mm_numeric.inference.candidates import Exploration, Explored
    from mm_numeric.inference.constrain import Constraint
    from mm_numeric.numbers.vocabulary import NumberVocabulary

_MOST_KNOWN = 20_000  # parsed answers, about 100 MB if they are long


def check_rules(
    settings: PredictConfig, rules: Iterable[str], task: Task, examples: Sequence[Example]
) -> None:
    """Raise ValueError if a rule, the risk or a list limit does not fit the examples' answers."""
    answers = [example.answer for example in examples if example.answer is not None]
    are_lists = isinstance(answers[0] if answers else Instances(()), Instances)
    if settings.limits_lists and not (are_lists and is_greedy_alone(rules)):
        raise ValueError(
            "predict.stop_duplicates and predict.max_objects shorten greedy answers that are lists "
            f"of shapes, and answers of {type(task).__name__} by {', '.join(rules)} are others; "
            "remove them, or set decode: greedy."
        )
    for rule in rules if answers else ():
        check_rule(rule, type(answers[0]), "predict.decode")
        if rule == MBR:
            risk_of(task, answers[0], "predict.decode", settings.risk)


class Explorer:
    """Creates the exploration for each batch of examples, and parses the explored answers.

    If the settings, or the task in the case of lists, set a number of samples, answers are drawn
    at random. Otherwise likely answers are enumerated, and the others drawn systematically.
    """

    def __init__(self, settings: PredictConfig, family: "Family", task: Task) -> None:
        """Raise ValueError if the family is a baseline that predicts answers without logits."""
        from mm_numeric.baselines.baseline import Baseline

        if isinstance(family, Baseline) and family.own_loss:
            raise ValueError(
                f"predict.decode: {settings.decode}: the baseline {family.name} predicts its "
                "answers without a distribution over texts; use greedy."
            )
        self.settings, self.family, self.task = settings, family, task
        self.count = settings.samples or (0 if task.is_enumerated else task.sampled_answers)
        self._known: dict[Frame | None, dict[tuple[int, ...], tuple[str, Any]]] = {}
        """The parsed answers: rows with the same frame have many in common."""

    def __call__(self, batch: Sequence[Example], constraint: "Constraint | None") -> "Exploration":
        """Return the exploration for a batch; ``constraint`` limits answers to a grammar."""
        from mm_numeric.inference.candidates import PrefixTree, Samples

        ends = {*self.family.stop_ids, self.family.pad_id}  # the text ends at either
        ids, settings = [example.id for example in batch], self.settings
        if self.count:
            return Samples(ends, constraint, count=self.count, ids=ids, seed=settings.seed)
        return PrefixTree(
            ends,
            constraint,
            mass=settings.mass,
            width=settings.branches,
            ids=ids,
            seed=settings.seed,
            vocabulary=self.vocabulary,
        )

    @cached_property
    def vocabulary(self) -> "NumberVocabulary":
        """The number tokens of the tokenizer; first read after the model was loaded."""
        return self.family.vocabulary()

    def generated(self, explored: "Explored", frame: Frame | None) -> "Generated":
        """Return the greedy answer to a question, with the explored answers as its candidates."""
        return Generated(
            self.family.text(explored.greedy),
            frame,
            explored.greedy,
            explored.greedy_probabilities,
            self.candidates(explored, frame),
            self.count or 0,
        )

    def candidates(self, explored: "Explored", frame: Frame | None) -> list[Candidate]:
        """Parse the explored answers to a question; leave out unparseable answers."""
        texts: dict[str, Candidate] = {}
        if sum(map(len, self._known.values())) > _MOST_KNOWN:
            self._known.clear()
        # A frame is hashed once, and not for each answer.
        known_answers = self._known.setdefault(frame, {})
        for tokens, prob in explored.probabilities.items():
            if tokens not in known_answers:
                own = self.family.text(tokens)
                known_answers[tokens] = own, self.task.read(own, frame)
            text, answer = known_answers[tokens]
            if not isinstance(answer, Unreadable):
                # Several sequences of tokens may be the same text.
                known = texts.get(text, Candidate(answer, text, 0.0))
                drawn = known.drawn + prob * (tokens in explored.drawn)
                texts[text] = Candidate(answer, text, known.probability + prob, drawn)
        return [*texts.values()]


def candidates_of_texts(
    task: Task, frame: Frame | None, probabilities: Mapping[str, float]
) -> list[Candidate]:
    """Return the candidates for texts and their probabilities; leave out unparseable texts."""
    parsed = ((task.read(text, frame), text, prob) for text, prob in probabilities.items())
    return [Candidate(*own) for own in parsed if not isinstance(own[0], Unreadable)]


class Generated(NamedTuple):
    """A generated answer, with its tokens and their probabilities."""

    text: str
    frame: Frame | None
    """Image size and coordinate format, to read coordinates in the text; None without an image."""

    ids: Sequence[int]
    """Generated token ids, perhaps with the end token and padding. Empty if they are unknown."""

    probabilities: Sequence[float]
    """Probability of each token in ``ids``, 0 to 1; that of an end token may follow. Empty if the
    probabilities are unknown."""

    candidates: Sequence[Candidate] | None = None
    """The explored answers that can be parsed; None if only the greedy text was generated."""

    samples: int = 0
    """If the probabilities of the candidates are shares of texts that were drawn at random, the
    number of these texts, including unparseable texts; 0 if the model computed them."""

    lengths: Sequence[int] | None = None
    """Length of the text up to the end of each token, if ``ids`` are unknown."""

    is_truncated: bool = False
    """True if a server reports that the token limit has ended ``text``."""

    is_partial: bool = False
    """True if the candidates come from a server's ``top_logprobs``: other answers are unknown."""

    def mean_probability(self, family: "Family", span: tuple[int, int]) -> float:
        """Return the mean probability of the tokens that form ``text[span[0]:span[1]]``."""
        counts = range(1, len(self.lengths or self.ids) + 1)

        def length(count: int) -> int:
            return self.lengths[count - 1] if self.lengths else len(family.text(self.ids[:count]))

        first = bisect_right(counts, span[0], key=length)
        last = bisect_left(counts, span[1], key=length)
        return fmean(self.probabilities[first : last + 1])


def averaged(answers: Sequence[Generated], where: str) -> Generated:
    """Return the answer of an ensemble: the first model's answer, with the mean distribution.

    ``answers`` has the answer of each model to the same question. ``where`` names the question in
    error messages.
    """
    first = answers[0]
    if any(own.frame != first.frame for own in answers):
        raise ValueError(
            f"{where}: the models of an ensemble see the image in different frames; name models of "
            "one family, with equal coordinates and image sizes."
        )
    candidates = [
        candidate._replace(
            probability=candidate.probability / len(answers), drawn=candidate.drawn / len(answers)
        )
        for own in answers
        for candidate in own.candidates or ()
    ]
    return first._replace(candidates=candidates, samples=sum(own.samples for own in answers))


class Decoded(NamedTuple):
    """The chosen answer of one example, and its entries for predictions.jsonl."""

    text: str
    entries: dict[str, Any]
    scores: Sequence[float] | None
    """Confidence of each object of a list; None for other answers and for points."""

    support: tuple[list[float], list[float]] | None
    """See ``Decision.support``."""


def decode(
    task: Task,
    frame: Frame | None,
    greedy: str,
    candidates: Sequence[Candidate],
    rule: str,
    risk_name: str | None,
    *,
    samples: int = 0,
    is_partial: bool = False,
    calibration: Calibration | None = None,
) -> Decoded:
    """Choose an answer by a decoding rule, one of ``DECODE_RULES``.

    ``candidates`` are the parseable explored answers. If there are none, the answer is the text
    ``greedy``. ``risk_name`` is the risk for ``mbr``; None for the default risk of the task.
    ``samples`` and ``is_partial`` are defined in ``Generated``. ``calibration`` changes the
    confidences.
    """
    own = task.read(greedy, frame)
    first = None if isinstance(own, Unreadable) else Candidate(own, greedy, 0.0)
    risk = _risk(task, candidates, risk_name)
    found = decide(
        rule,
        candidates,
        risk,
        greedy=first,
        samples=samples,
        allows=lambda answer: task.allows(answer, frame),
    )
    text = found.text
    if text is None:
        answer = _inside(found.answer, frame)
        text = greedy if answer is None else task.format(answer, frame).text
    entry, scores = _entry(rule, risk, found), found.object_confidences
    if is_partial:
        entry["drawn"] = None
    support = None
    if found.support is not None:
        support = found.support[0].tolist(), found.support[1].tolist()
    if calibration is not None and scores is not None:
        entry["scores_raw"] = [round(value, 6) for value in scores]
        scores = tuple(calibration(value, None) for value in scores)
    elif calibration is not None and found.confidence is not None:
        entry["confidence_raw"] = entry["confidence"]
        entry["confidence"] = round(calibration(found.confidence, support), 6)
    return Decoded(text, {"greedy": greedy, "decode": entry}, scores, support)


def _inside(answer: Any, frame: Frame | None) -> Any:
    """Clamp a box to the image: a mean or median of boxes may lie partly outside the image."""
    if frame is None or not isinstance(answer, Box):
        return answer
    (x1, x2), (y1, y2) = (
        (min(max(value, 0.0), float(size)) for value in values)
        for values, size in (
            ((answer.x1, answer.x2), frame.width_px),
            ((answer.y1, answer.y2), frame.height_px),
        )
    )
    return Box(x1, y1, x2, y2)


def _risk(task: Task, candidates: Sequence[Candidate], name: str | None) -> Risk:
    where = "predict.decode"
    if candidates:
        return risk_of(task, candidates[0].answer, where, name)
    return find_risk(name or task.risk or "exact", where)


def _entry(rule: str, risk: Risk, found: Decision) -> dict[str, Any]:
    def rounded(value: float | None) -> float | None:
        return None if value is None else round(value, 6)

    return {
        "rule": rule,
        **({"for": risk.name if found.candidates else None} if rule == MBR else {}),
        "covered": rounded(found.covered - found.drawn),
        "drawn": rounded(found.drawn),
        "candidates": found.candidates,
        "interval": None if found.interval is None else list(found.interval),
        "confidence": rounded(found.confidence),
    }
