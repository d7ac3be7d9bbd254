"""Train on the answers of a model: replace the labels of training rows by the answers in a file.

The file has the format of predictions.jsonl, with an ``id`` and a ``text`` in each line. If a line
has a ``prompt``, ``target`` or ``task``, the row must have the same. The text is parsed with the
line's ``frame``, so that a model with another coordinate format can be trained on it.
"""

import json
import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from mm_numeric.answers import Example, Instances, Unreadable
from mm_numeric.config.data import ALL, DataSource
from mm_numeric.geometry.frames import Frame
from mm_numeric.geometry.row_shapes import clipped_answer
from mm_numeric.io.files import read_rows
from mm_numeric.registry import TASKS
from mm_numeric.tasks.base import Task


@dataclass(frozen=True)
class DecodedAnswers:
    """The answers in a file, which replace the labels of training rows."""

    lines: Mapping[str, tuple[str, Mapping[str, Any]]]
    """Maps the id of a row to the position (for error messages) and the fields of its answer."""

    file: str
    keep: str | float
    """``data.train.keep_answers``."""

    confident: Set[str]
    """Ids of the most confident answers if ``keep`` is a share; otherwise empty."""

    @classmethod
    def of(cls, source: DataSource) -> "DecodedAnswers":
        """Read the answers of a training source that has the setting ``answers``."""
        assert source.answers is not None
        file = Path(source.answers)
        lines: dict[str, tuple[str, Mapping[str, Any]]] = {}
        for where, line in read_rows(file):
            for name in ("id", "text"):
                if not isinstance(line.get(name), str):
                    raise ValueError(
                        f"{where}: no {name!r}; an answer needs an id and a text, as in the "
                        "predictions.jsonl of `mm-numeric predict`."
                    )
            if line["id"] in lines:
                raise ValueError(
                    f"{where}: a second answer to the row {line['id']!r}; keep one of them."
                )
            lines[line["id"]] = where, line
        keep = source.keep_answers
        confident = set() if isinstance(keep, str) else _most_confident(lines, keep)
        return cls(lines, str(file), keep, confident)

    def labelled(self, task: Task, examples: Sequence[Example]) -> list[Example]:
        """Return the examples with their answers from the file in place of their labels.

        Examples whose answer is missing, unparseable or not confident enough are left out if
        ``keep`` allows it. Raises ValueError if ``keep`` does not allow it, or if the file has
        answers of another task or to other rows.
        """
        found = []
        for example in examples:
            if example.id not in self.lines:
                if self.keep == ALL:
                    raise ValueError(
                        f"{example.where}: {self.file} has no answer to the row {example.id!r}; "
                        "answer all rows, or leave out those without an answer with "
                        "data.train.keep_answers=parseable."
                    )
                continue
            where, line = self.lines[example.id]
            _check_same_row(where, line, task, example)
            if not isinstance(self.keep, str) and example.id not in self.confident:
                continue
            answer = _parsed(where, line, task)
            if not isinstance(answer, Unreadable):
                found.append(replace(example, answer=answer))
            elif self.keep == ALL:
                raise ValueError(
                    f"{where}: the answer {line['text']!r:.60} is unparseable ({answer.reason}); "
                    "leave out such answers with data.train.keep_answers=parseable."
                )
        return found


def _most_confident(lines: Mapping[str, tuple[str, Mapping[str, Any]]], share: float) -> set[str]:
    """Return the ids of the answers with the highest confidence: the given share of all answers."""
    confidence = {}
    for name, (where, line) in lines.items():
        decoded = line.get("decode")
        if not isinstance(decoded, Mapping) or "confidence" not in decoded:
            raise ValueError(
                f"{where}: the answer has no decode.confidence, which data.train.keep_answers="
                f"{share:g} needs; predict with --decode median, mean or mbr."
            )
        value = decoded["confidence"]
        if value is not None and (type(value) not in (int, float) or not 0 <= value <= 1):
            raise ValueError(
                f"{where}: decode.confidence is {value!r:.40}; it is a probability, 0 to 1, or "
                "null for an unparseable answer."
            )
        confidence[name] = -math.inf if value is None else value  # None: unparseable
    order = sorted(confidence, key=lambda name: -confidence[name])  # stable for equal values
    # Computed with decimal digits: as floats, 0.55 * 100 is a little more than 55.
    return set(order[: math.ceil(Fraction(str(share)) * len(order))])


def _check_same_row(where: str, line: Mapping[str, Any], task: Task, example: Example) -> None:
    """Raise ValueError if an answer belongs to another task, prompt or target than the row."""
    own = f"{type(task).__module__}:{type(task).__name__}"
    named = line.get("task")
    if isinstance(named, str) and TASKS.get(named, own) != own:
        raise ValueError(f"{where}: an answer of the task {named!r}, and not of {own}.")
    prompt, target = line.get("prompt"), line.get("target")
    for name, theirs, ours in (
        ("prompt", prompt, example.prompt),
        ("target", target, json.loads(json.dumps(task.record(example.answer)))),
    ):
        if None not in (theirs, ours) and theirs != ours:
            raise ValueError(
                f"{where}: an answer to another row {example.id!r}, whose {name} is "
                f"{theirs!r:.60} and not {ours!r:.60} as in {example.where}; predict these rows."
            )


def _parsed(where: str, line: Mapping[str, Any], task: Task) -> Any:
    """Parse an answer, and clip shapes that extend beyond the image.

    Returns ``Unreadable`` for an answer that cannot be trained on: a list that is truncated or has
    an invalid shape, a shape outside the image, or an answer that the task cannot write.
    """
    try:
        frame = None if line.get("frame") is None else Frame.from_dict(line["frame"])
        answer = task.read(line["text"], frame)
    except ValueError as error:
        raise ValueError(f"{where}: {str(error).rstrip('.')}.") from error
    if isinstance(answer, Instances) and (answer.cut or answer.malformed):
        return Unreadable("truncated list" if answer.cut else "invalid shape in the list")
    if isinstance(answer, Unreadable):
        return answer
    try:
        if frame is not None:
            answer = clipped_answer(answer, frame.width_px, frame.height_px)
        task.format(answer, frame)
    except ValueError as error:
        return Unreadable(str(error))
    return answer
