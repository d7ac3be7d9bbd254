"""Ask the model of a run about single images. The model stays loaded between questions.

run = LoadedRun(Path("runs/clock"))
(answered,) = run.answer([Path("clock.png")])
answered.answers["greedy"].text, answered.answers["greedy"].confidence
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

from mm_numeric.answers import (
    ClockTime,
    Example,
    ImageSource,
    Instance,
    Instances,
    Number,
    Text,
    Unreadable,
)
from mm_numeric.baselines.baseline import Baseline
from mm_numeric.config.decoding import GREEDY, MBR
from mm_numeric.data.framing import compute_frame
from mm_numeric.data.images import open_sized
from mm_numeric.data.lengths import check_questions
from mm_numeric.inference.decision_rules import Candidate, check_rule, merge_equal
from mm_numeric.inference.decode import Explorer, Generated, check_rules
from mm_numeric.inference.draw import drawn_answer, objects_of
from mm_numeric.inference.generate import LoadedModel, prediction, read_model, with_calibrations
from mm_numeric.inference.list_limits import ListLimits
from mm_numeric.inference.predictions_file import made_with
from mm_numeric.io.files import read_json
from mm_numeric.models.loading import load_family, quiet_unless_terminal
from mm_numeric.runs.folder import FINISHED
from mm_numeric.tasks.base import Task

_GAP = re.compile(r"\{(\w+)\}")


class Answer(NamedTuple):
    """The answer that one decoding rule chose."""

    answer: Any
    """An instance of an answer type, or ``Unreadable``."""

    text: str
    """The answer as text for people; coordinates are pixels of the original image."""

    confidence: float | None
    """See ``CONFIDENCE`` in ``decision_rules``; None if the model predicts no distribution."""

    labels: Sequence[str]
    """The label and the confidence of each object of the answer, such as ``cup 93 %``."""

    token_scores: Sequence[float] = ()
    """Mean token probability of each object of a greedy list; ``predict`` without a distribution
    writes it as ``scores``."""

    @property
    def summary(self) -> str:
        """Return the answer and its confidence on one line."""
        if self.confidence is None:
            return self.text
        return f"{self.text}, confidence {100 * self.confidence:.1f} %"

    @property
    def lines(self) -> list[str]:
        """Return a line for each object of a list; [] for other answers."""
        if not isinstance(self.answer, Instances):
            return []
        tokens = [f", token probability {100 * score:.0f} %" for score in self.token_scores]
        tokens = tokens or [""] * len(self.labels)
        found = zip(self.labels, self.answer.items, tokens, strict=True)
        return [f"{label} {_coordinates(item)}{own}".strip() for label, item, own in found]


class Answered(NamedTuple):
    """The answers to a question about an image."""

    image: Image.Image | None
    """The image, rotated upright by its EXIF orientation."""

    size: tuple[int, int] | None
    """Width and height of the original image, in pixels."""

    answers: dict[str, Answer]
    """The answer that each rule chose."""

    candidates: Sequence[Candidate]
    """Different answers with their probabilities, the most probable first; [] if no distribution is
    known."""

    def drawn(self, rule: str) -> Image.Image:
        """Return the image with the answer that a rule chose, and a caption."""
        assert self.image is not None
        assert self.size is not None
        own = self.answers[rule]
        return drawn_answer(self.image, self.size, own.answer, own.summary, own.labels)


class LoadedRun:
    """The model of a finished run, in memory.

    Args:
        run: Folder of the run.
        trust_remote_code: Allow a config that refers to Python code, such as a task of your own.
        overrides: Settings of the config's sections task, data and predict to change.
        settings: Settings of the section ``predict`` to change, such as ``mass=0.999``.
    """

    def __init__(
        self,
        run: Path,
        *,
        trust_remote_code: bool = False,
        overrides: Sequence[str] = (),
        **settings: Any,
    ) -> None:
        quiet_unless_terminal()
        source = read_model(run, None, trust_remote_code, overrides)
        predict = replace(source.config.predict, **settings)
        check_rules(predict, [predict.rule], source.config.task, ())
        self.run, self.config = run, replace(source.config, predict=predict)
        self.source = source._replace(config=self.config)
        self.first_prompt = str(read_json(run / FINISHED)["first_prompt"])
        self.family = load_family(self.config, source.source)
        self.loaded = LoadedModel(self.source, self.family)
        self.explore = None
        if not (isinstance(self.family, Baseline) and self.family.own_loss):
            self.explore = Explorer(predict, self.family, self.config.task)

    def question(self, asked: str | None = None) -> str:
        """Return the prompt for the user's question ``asked``.

        If the task's prompt has one placeholder, ``asked`` replaces it; otherwise ``asked`` is the
        whole prompt. If ``asked`` is None, return the prompt of the first training row; raise
        ValueError if each row has another question.
        """
        prompt = prompt_of(self.config.task, asked, self.first_prompt)
        if prompt is None:
            raise ValueError(
                f"{self.run}: the task {self.config.task_name!r} asks another question about each "
                f"image, such as {self.first_prompt!r:.80}; add your question (--ask)."
            )
        return prompt

    def opened(
        self, image: ImageSource | None, asked: str | None = None
    ) -> tuple[Image.Image | None, tuple[int, int] | None, Example]:
        """Load an image, unless it is None; return the image, its original size and the question.

        Raises ValueError if the image cannot be read, or if the question is too long.
        """
        prompt, own = self.question(asked), str(image or "--ask")
        where = own if image is None else f"the image {own}"
        # The id seeds the draws. It is the prompt, not the path, so that equal images in different
        # folders have the same confidence.
        example = Example(id=prompt, image=image, prompt=prompt, answer=None, where=where)
        loaded, size = (None, None) if image is None else open_sized(example)
        if size is not None:
            compute_frame(self.family, example, size)
        check_questions(self.family, [example], self.config.predict.new_tokens)
        return loaded, size, example

    def answer(
        self,
        images: Sequence[ImageSource | None],
        asked: str | None = None,
        *,
        compare_rules: bool = False,
    ) -> Iterator[Answered]:
        """Answer the same question about each image, with the rule ``predict.decode``.

        None instead of an image asks without an image. With ``compare_rules``, two rules answer:
        ``greedy``, and ``median`` or, for answers without a median such as lists, ``mbr``. Images
        are read in batches.
        """
        limits = ListLimits(self.config.task, self.config.predict)
        rows = self.config.predict.batch_size
        for start in range(0, len(images), rows):
            batch = [self.opened(own, asked) for own in images[start : start + rows]]
            answers = self.loaded.answers([[example for *_, example in batch]], self.explore)
            for (image, size, example), own in zip(batch, answers, strict=True):
                if own.candidates:  # as the greedy answer is shortened, which is compared with them
                    short = [limits.shortened(given, own.frame) for given in own.candidates]
                    own = own._replace(candidates=short)
                merged = merge_equal(own.candidates or ())
                merged.sort(key=lambda candidate: -candidate.probability)
                rules = [self.config.predict.rule]
                if compare_rules:
                    rules = [GREEDY, *(_rule_for(own.answer) for own in merged[:1])]
                answered = {rule: self._decoded(example, own, rule, rules) for rule in rules}
                yield Answered(image, size, answered, merged)

    def _decoded(
        self, example: Example, generated: Generated, rule: str, rules: Sequence[str]
    ) -> Answer:
        made = {rule: made_with(self.config.predict, rule, rules)}
        fitted = with_calibrations(self.source, self.run, made, None, calibrates=False)
        calibration = fitted.calibrations.get(rule)
        line = prediction(
            self.config, self.family, example, generated, rule, calibration=calibration
        )
        answer = self.config.task.read(line["text"], generated.frame)
        confidence = (line.get("decode") or {}).get("confidence")
        shown = in_words(answer, line), confidence, labels_of(answer, line)
        return Answer(answer, *shown, line.get("token_scores") or ())


def prompt_of(task: Task, asked: str | None, first: str) -> str | None:
    """Return the prompt for the user's question ``asked``; see ``LoadedRun.question``.

    Without ``asked``, return ``first``, the prompt of the first training row. Return None if each
    row has its own question, so that ``asked`` is required.
    """
    template = str(task.options().get("prompt", "{question}"))
    gaps = set(_GAP.findall(template))
    if asked is not None:
        return _GAP.sub(lambda _: asked, template) if len(gaps) == 1 else asked
    return None if gaps and not task.options().get("classes") else first


def number_of(answer: Any) -> float | None:
    """Return the value of a number, or a time in minutes after 12:00; None for other answers."""
    if isinstance(answer, ClockTime):
        return float(answer.minutes)
    return answer.value if isinstance(answer, Number) else None


def _rule_for(answer: Any) -> str:
    try:
        check_rule("median", type(answer), "")
    except ValueError:
        return MBR
    return "median"


def in_words(answer: Any, line: Mapping[str, Any]) -> str:
    """Return an answer as text for people; ``line`` is its line of predictions.jsonl."""
    if isinstance(answer, Unreadable):
        return f"no answer ({answer.reason}) in {line['text']!r:.200}"
    if isinstance(answer, Instances):
        count = len(answer.items)
        return "1 object" if count == 1 else f"{count or 'no'} objects"
    if objects := objects_of(answer):
        return _coordinates(objects[0])
    if isinstance(answer, ClockTime | Number | Text):
        return str(answer)
    return json.dumps(line["parsed"], ensure_ascii=False)


def _coordinates(item: Instance) -> str:
    return str([round(at) for point in item.shape.points for at in point])


def labels_of(answer: Any, line: Mapping[str, Any]) -> list[str]:
    """Return the label and the confidence of each object of a list; [""] for a single shape."""
    if not isinstance(answer, Instances):
        return [""] * len(objects_of(answer))
    scores = [f"{100 * score:.0f} %" for score in line.get("scores") or []]
    names = [item.label for item in answer.items]
    pairs = zip(names, scores or [""] * len(names), strict=True)
    return [" ".join(filter(None, pair)) for pair in pairs]
