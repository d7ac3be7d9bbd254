"""A reward: a task's parser, a rule of ``mm_numeric.rewards.rules``, and adapters for trainers.

The adapters have the interfaces of reward functions in TRL, verl and ms-swift. In the data sets,
targets and frames (image size and coordinate format) are JSON strings, because a column of an Arrow
table cannot hold JSON values of different types; ``reward_columns`` creates these strings.

Sources of the interfaces: huggingface/trl 1.16, trl/trainer/grpo_trainer.py; verl-project/verl 0.9,
verl/experimental/reward_loop/reward_manager/naive.py; modelscope/ms-swift 4.6, swift/rewards/orm.py
and swift/rl_core/grpo_algorithm.py.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from mm_numeric.answers import Unreadable
from mm_numeric.geometry.frames import TOKENS_REMOVED, Frame
from mm_numeric.io.log import logger
from mm_numeric.registry import REWARDS, choose, missing_package, scorer_of
from mm_numeric.rewards.rules import ParsedAnswer, Rule
from mm_numeric.settings import read_dataclass
from mm_numeric.tasks.answer_part import without_end_tokens
from mm_numeric.tasks.base import Task, task_class

_NO_TEXT = "no text of the assistant"


class Scored(NamedTuple):
    """The value of an answer, and the reason if the answer could not be compared."""

    value: float
    """From 0 (worst) to 1 (best)."""

    reason: str | None
    """Reason of the parse failure, as in results.json; None if the answer was parsed."""


@dataclass(frozen=True)
class Reward:
    """A reward function for one task, for TRL or ms-swift. Create it with ``reward``."""

    rule: Rule
    task_name: str
    task: Task

    frame: Frame | None = None
    """Size, resizing and coordinate format of all images; None: each row has its own."""

    tokenizer: Any = None
    """Tokenizer that decodes ``completion_ids``. None: the texts of the trainer are parsed, which
    usually have no special tokens."""

    answer_after: str | None = None
    """Text that must precede the answer, such as ``</think>``; None if no text must precede it."""

    _reasons: set[str] = field(default_factory=set, compare=False, repr=False)

    @property
    def __name__(self) -> str:
        """Return the name of the rule, under which trainers log this reward."""
        return self.rule.name

    def score(self, text: str | None, target: Any, frame: Frame | None = None) -> Scored:
        """Return the value of a generated text.

        Args:
            text: The text, if possible with the special tokens of the answer. None if the model
                wrote no text; the value is then 0.
            target: The true answer, such as ``Box(10, 20, 30, 40)``.
            frame: Size, resizing and coordinate format of the image; None for ``self.frame``.
        """
        self.check(target)
        if text is None:
            return Scored(0.0, _NO_TEXT)
        if self.answer_after is not None:
            _, found, text = text.rpartition(self.answer_after)
            if not found:
                return Scored(0.0, f"no {self.answer_after}")
        frame = self.frame if frame is None else frame
        answer = self.task.read(text, frame)
        if isinstance(answer, Unreadable):
            return Scored(0.0, answer.reason)
        with _naming_extra(self.rule.name):
            scorer = scorer_of(self.task, self.task_name, target, "reward")
        part = Task.answer_part(self.task, text).text  # a subclass may leave out more
        value = self.rule.value(ParsedAnswer(part, answer, target, frame, self.task, scorer))
        return Scored(0.0, value) if isinstance(value, str) else Scored(value, None)

    def check(self, target: Any) -> None:
        """Raise ValueError if this reward is not defined for the type of ``target``."""
        if not isinstance(target, self.rule.targets):
            raise ValueError(
                f"the reward {self.rule.name!r} does not fit a target of type "
                f"{type(target).__name__} of the task {self.task_name!r}; choose another reward."
            )

    def score_json(self, text: str | None, target: str, frame: str | None = None) -> Scored:
        """Return the value of a text; ``reward_columns`` creates the JSON of target and frame."""
        decoded = None if frame is None else Frame.from_dict(_from_json(frame, "frame"))
        return self.score(text, self.task.recorded(_from_json(target, "target")), decoded)

    def __call__(
        self,
        completions: Sequence[Any],
        completion_ids: Sequence[Sequence[int]] | None = None,
        *,
        target: Sequence[str | None] | None = None,
        frame: Sequence[str | None] | None = None,
        log_extra: Callable[[str, list[Any]], None] | None = None,
        log_metric: Callable[[str, float], None] | None = None,
        **columns: Any,
    ) -> list[float | None]:
        """Return the values of a batch of completions; TRL and ms-swift call this.

        TRL logs ``unparseable/RULE/all``, the share of unparseable answers, and
        ``unparseable/RULE/REASON`` for each reason that has occurred in this process. The table of
        completions gets a column ``reason_RULE``.

        Args:
            completions: The generated texts, or a list of messages for each completion. In a list,
                only the text that the assistant wrote after the last message of a tool or a user is
                parsed. A completion without such a text has the value 0.
            completion_ids: Token ids of the completions, which ``self.tokenizer`` decodes. They are
                not used for completions with tool calls, because they contain the results of tools.
            target: Column of the data set: JSON of the true answers. For a row whose target is
                None, the value is None, and the trainer ignores this reward.
            frame: Column of the data set: JSON of the frames; None without such a column.
            log_extra: Function of TRL that adds a column to the table of completions.
            log_metric: Function of TRL that logs a metric.
            columns: Other columns and arguments; not used.
        """
        if target is None:
            raise ValueError(
                f"the reward {self.rule.name!r} needs the column target in the data set; make it "
                "with mm_numeric.rewards.reward_columns."
            )
        texts = self._texts(completions, completion_ids)
        frames = frame or [None] * len(texts)
        scored = [
            None if true is None else self.score_json(text, true, own)
            for text, true, own in zip(texts, target, frames, strict=True)
        ]
        reasons = [None if own is None else own.reason for own in scored]
        self._warn_of_removed_tokens(reasons)
        if log_extra is not None:
            log_extra(f"reason_{self.rule.name}", reasons)
        if log_metric is not None and (known := [own for own in scored if own is not None]):
            self._log(log_metric, Counter(own.reason for own in known if own.reason), len(known))
        return [None if own is None else own.value for own in scored]

    def compute_score(
        self,
        data_source: Any,
        solution_str: str | None,
        ground_truth: str,
        extra_info: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> dict[str, Any]:
        """Return the value of one response; use this as verl's ``custom_reward_function``.

        Args:
            data_source: Not used.
            solution_str: The generated text. It also contains the results of tools; with tools,
                set ``answer_after``.
            ground_truth: JSON of the true answer.
            extra_info: ``extra_info["frame"]`` is the JSON of the frame, if the image has one.

        Returns:
            ``score``, and ``unparseable``: 1.0 for an unparseable answer, otherwise 0.0.
        """
        scored = self.score_json(solution_str, ground_truth, (extra_info or {}).get("frame"))
        return {"score": scored.value, "unparseable": float(scored.reason is not None)}

    @property
    def orm(self) -> type:
        """Return a class for ms-swift's table ``orms``, which is created with ``args=``."""

        def call(own: Any, completions: Sequence[Any], **columns: Any) -> list[float | None]:
            return self(completions, **columns)

        members = {"__init__": lambda own, args=None, **_: None, "__call__": call}
        return type(self.rule.name, (), members)

    def _texts(
        self, completions: Sequence[Any], completion_ids: Sequence[Sequence[int]] | None
    ) -> list[str | None]:
        texts = [_text(completion) for completion in completions]
        if self.tokenizer is not None and completion_ids is not None:
            each = zip(texts, completions, completion_ids, strict=True)
            texts = [
                self.tokenizer.decode(ids, skip_special_tokens=False)
                if text is not None and _is_one_text(completion)
                else text
                for text, completion, ids in each
            ]
        return [None if text is None else without_end_tokens(text) for text in texts]

    def _warn_of_removed_tokens(self, reasons: Sequence[str | None]) -> None:
        removed = [reason is not None and TOKENS_REMOVED in reason for reason in reasons]
        if self.tokenizer is None and removed and all(removed):
            logger.warning(
                "the reward %r can parse no answer of this batch: %s. If the trainer removes them, "
                "pass tokenizer= to reward().",
                self.rule.name,
                reasons[0],
            )

    def _log(self, log: Callable[[str, float], None], failures: Counter[str], rows: int) -> None:
        name = f"unparseable/{self.rule.name}"
        log(f"{name}/all", failures.total() / rows)
        self._reasons.update(failures)  # later batches log 0 for a reason too, for correct means
        for reason in sorted(self._reasons):
            log(f"{name}/{reason}", failures[reason] / rows)


def reward(
    name: str,
    *,
    task: str | Mapping[str, Any] | Task,
    frame: Frame | Mapping[str, Any] | None = None,
    tokenizer: Any = None,
    answer_after: str | None = None,
) -> Reward:
    """Return a reward function.

    Args:
        name: A rule, such as ``iou``, ``acc@0.5``, ``f1``, ``point_gaussian``, ``time``,
            ``relative_error``, ``correct`` or ``format``, or the import path of a ``Rule``. See
            ``mm_numeric.rewards.rules``.
        task: Name or import path of the task, whose parser and scorer are used; or a mapping with
            ``name`` and options, such as ``{"name": "numbers", "prompt": "{question}="}``.
        frame: Size, resizing and coordinate format of all images. None: each row has its own frame,
            or the task has no coordinates.
        tokenizer: Tokenizer of the model, to decode ``completion_ids`` with special tokens. It is
            needed if coordinates are special tokens and the trainer removes these from texts.
        answer_after: Text that must precede the answer, such as ``</think>``. Only the text after
            its last occurrence is parsed, and a text without it is unparseable. Even without this
            argument, finished thoughts are not parsed: see ``mm_numeric.tasks.answer_part``.

    Raises:
        ValueError: If there is no such rule or task.
        ImportError: If the task needs a package that is not installed, such as Pillow for images.
    """
    where = f"reward({name!r})"
    kind, _, threshold = name.partition("@")
    rule = choose(kind if kind in REWARDS else name, REWARDS, "reward", where)
    try:
        if not isinstance(rule, Rule):
            rule = rule(float(threshold)) if threshold else rule()
        elif threshold:
            raise ValueError(f"{kind} has no threshold; remove @{threshold}")
    except ValueError as error:
        raise ValueError(f"{where}: {error}.") from None
    if isinstance(frame, Mapping):
        frame = Frame.from_dict(frame)
    with _naming_extra(name):
        task_name, read = _task(task, where)
    return Reward(rule, task_name, read, frame, tokenizer, answer_after)


def reward_columns(
    task: str | Mapping[str, Any] | Task, answer: Any, frame: Frame | None = None
) -> dict[str, str | None]:
    """Return the columns ``target`` and ``frame`` of a data set's row, as JSON.

    ``answer`` is an answer of the task, such as ``Box(10, 20, 30, 40)``, or its JSON value in
    predictions.jsonl, such as 146 for a number. For verl, ``target`` is the ground truth of
    ``reward_model``, and ``frame`` belongs in ``extra_info``.
    """
    _, task = _task(task, "reward_columns")
    if isinstance(answer, str | int | float | list | dict):
        answer = task.recorded(answer)
    return {
        "target": json.dumps(task.record(answer)),
        "frame": None if frame is None else json.dumps(frame.to_dict()),
    }


@contextmanager
def _naming_extra(name: str) -> Iterator[None]:
    """Context manager: for a missing package, raise ImportError with the command to install it."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ImportError(f"the reward {name!r}: {missing_package(error)}") from error


def _task(task: str | Mapping[str, Any] | Task, where: str) -> tuple[str, Task]:
    if isinstance(task, str):
        task = {"name": task}
    if not isinstance(task, Mapping):
        return type(task).__name__, task
    options = dict(task)
    name = options.pop("name", "")
    read: Task = read_dataclass(task_class(name, where), options, f"{where}, task")
    return name, read


def _text(completion: Any) -> str | None:
    """Return the text of a completion, which is a text or a list of messages; None without text.

    From messages, return only the text that the assistant wrote after the last message of a tool or
    a user, so that the text of a tool or user is never parsed as the answer.
    """
    if completion is None or isinstance(completion, str):
        return completion
    found: list[str] = []
    for message in reversed(completion):
        if not isinstance(message, Mapping) or message.get("role", "assistant") != "assistant":
            break
        content = message.get("content")
        parts = content if isinstance(content, list | tuple) else [content]
        each = (part.get("text") if isinstance(part, Mapping) else part for part in parts)
        texts = [text for text in each if isinstance(text, str)]
        found[:0] = ["".join(texts)] if texts else []
    return "\n".join(found) if found else None


def _is_one_text(completion: Any) -> bool:
    """Return True if a completion's token ids contain only its text, and no results of tools."""
    return isinstance(completion, str) or (
        len(completion) == 1 and not completion[0].get("tool_calls")
    )


def _from_json(text: Any, column: str) -> Any:
    try:
        return json.loads(text)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"the {column} {text!r:.60} is no JSON text ({error}); make the columns with "
            "mm_numeric.rewards.reward_columns."
        ) from None
