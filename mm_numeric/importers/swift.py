"""ms-swift's grounding rows: placeholders in the messages, and what they stand for beside them.

    {"messages": [{"role": "user", "content": "<image>Find the <ref-object>"},
                  {"role": "assistant", "content": "<bbox>"}],
     "images": ["1.jpg"],
     "objects": {"ref": ["sheep"], "bbox": [[90, 160, 135, 212]], "bbox_type": "real"}}

``real`` boxes, the default, are in pixels of the image, ``norm1`` ones 0 to 1 of it. A box
belongs to the ref before it; where there is none, to the question.

Source: https://swift.readthedocs.io, custom datasets, grounding.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple

from mm_numeric.importers.conversations import question_of, read_images, read_turns
from mm_numeric.importers.files import ImageFolder, listed, read_each
from mm_numeric.importers.importer import (
    BadLine,
    Found,
    ImagesFolder,
    LeftOut,
    OneSize,
    Option,
    RefusedError,
    Row,
    box_of,
    number_list,
    read_size,
    size_of,
    text_of,
    tidy,
)

_PLACE = re.compile(r"<ref-object>|<bbox>")


class _Answer(NamedTuple):
    """A box of an answer."""

    phrase: str
    phrase_number: int
    """Counts phrases: the boxes of one have the same."""

    bbox: int
    """Which box of the objects."""


@dataclass(frozen=True, kw_only=True)
class Swift:
    """ms-swift rows: messages with <ref-object> and <bbox>, and objects; boxes in answers."""

    version: ClassVar[int] = 1

    per: Annotated[
        str,
        Option(
            "a row for each phrase with one box; or for each image, with all its boxes (default: "
            "phrase)",
            choices=("phrase", "image"),
        ),
    ] = "phrase"
    images: ImagesFolder = None
    size: OneSize = None

    def __post_init__(self) -> None:
        """Refuse a size that is none."""
        read_size(self.size)

    def files(self, inputs: Sequence[Path]) -> list[Path]:
        """Return the files that will be read."""
        return listed(inputs, (".json", ".jsonl"))

    def rows(self, files: Sequence[Path]) -> Iterator[Found]:
        """Read the boxes in answers."""
        image_folder = ImageFolder(self.images, read_size(self.size))
        return read_each(files, partial(self._row, image_folder))

    def _row(
        self, image_folder: ImageFolder, where: str, identity: str, raw: Mapping[str, Any]
    ) -> Iterator[Found]:
        objects = raw.get("objects")
        if not objects:
            yield LeftOut("rows without objects")
            return
        if not isinstance(objects, Mapping):
            raise RefusedError("objects", f"objects is no object: {objects!r:.40}.")
        answers, asked = _answers(raw, objects)
        yield from [LeftOut("boxes in questions")] * asked
        if not answers and not asked:
            yield LeftOut("rows without objects")
        names = read_images(raw)
        which = [_image_number(objects, answer.bbox, len(names)) for answer in answers]
        boxes = [
            _box(objects, answer.bbox, image_folder, names[number], size_of(raw))
            for answer, number in zip(answers, which, strict=True)
        ]
        if self.per == "image":
            for number in dict.fromkeys(which):
                instances = [
                    {"box": box, "label": answer.phrase}
                    for answer, box, mine in zip(answers, boxes, which, strict=True)
                    if mine == number
                ]
                facts = image_folder.facts(names[number], size_of(raw))
                yield Row(where, {"id": f"{identity}.{number}", **facts, "instances": instances})
            return
        for phrase_number in dict.fromkeys(answer.phrase_number for answer in answers):
            mine = [i for i, a in enumerate(answers) if a.phrase_number == phrase_number]
            phrase = answers[mine[0]].phrase
            if len(mine) > 1:
                yield BadLine(
                    where,
                    f"{len(mine)} boxes for {phrase!r:.40}; see --per image.",
                    "several boxes",
                )
                continue
            facts = image_folder.facts(names[which[mine[0]]], size_of(raw))
            fields = {"id": f"{identity}.{phrase_number}", **facts}
            yield Row(where, {**fields, "phrase": phrase, "box": boxes[mine[0]]})


def _answers(raw: Mapping[str, Any], objects: Mapping[str, Any]) -> tuple[list[_Answer], int]:
    """Return the boxes that answers hold, and how many questions hold."""
    refs, bboxes = objects.get("ref") or [], objects.get("bbox") or []
    if not isinstance(refs, list) or not isinstance(bboxes, list):
        raise RefusedError("objects", "objects needs lists as ref and bbox.")
    marks = [(turn, mark) for turn in read_turns(raw) for mark in ("", *_PLACE.findall(turn.text))]
    for name, there in (("<ref-object>", refs), ("<bbox>", bboxes)):
        stand = sum(mark == name for _, mark in marks)
        if stand != len(there):
            raise RefusedError(
                "placeholders", f"{stand} {name} in the messages and {len(there)} in the objects."
            )
    answers: list[_Answer] = []
    question, phrase, phrases, asked = "", "", 0, 0
    since: list[str] = []  # refs that no box has followed yet
    in_question = False
    ref, bbox = iter(refs), iter(range(len(bboxes)))
    for turn, mark in marks:
        answer = turn.role == "assistant"
        if not mark and turn.role == "user":
            question, phrase, since, in_question = question_of(turn.text), "", [], True
        elif mark == "<ref-object>":
            if answer and in_question:  # an answer that names its own things again
                since, in_question = [], False
            since.append(text_of(next(ref), "a ref"))
        elif mark and not answer:
            asked += next(bbox) >= 0
        elif mark:
            if len(set(since)) > 1:
                raise RefusedError(
                    "placeholders",
                    f"{len(since)} <ref-object> stand before a <bbox>: which of them it belongs to "
                    "is not said.",
                )
            if since or not phrase:
                phrase = text_of(since[0] if since else question, "the question")
                phrases, since = phrases + 1, []
            answers.append(_Answer(phrase, phrases, next(bbox)))
    return answers, asked


def _image_number(objects: Mapping[str, Any], bbox: int, images: int) -> int:
    """Return which image a box is in; the first where nothing says it."""
    numbers = objects.get("image_id") or []
    if not isinstance(numbers, list):
        raise RefusedError("objects", f"image_id is not a list: {numbers!r:.40}.")
    number = numbers[bbox] if bbox < len(numbers) else 0
    if type(number) is not int or not 0 <= number < images:
        raise RefusedError("image", f"box {bbox} is in image {number!r:.20} of {images}.")
    return number


def _box(
    objects: Mapping[str, Any],
    bbox: int,
    image_folder: ImageFolder,
    name: str,
    said: tuple[int, int] | None,
) -> list[float]:
    """Return a box in pixels of the original image."""
    numbers = number_list(objects["bbox"][bbox])
    if len(numbers) == 2:
        raise RefusedError("box", f"box {bbox} is a point; a row has boxes of four numbers.")
    kind = objects.get("bbox_type") or "real"
    if kind == "norm1":
        if not all(0 <= value <= 1 for value in numbers):
            raise RefusedError("range", f"box {bbox} is not 0 to 1, as norm1 is.")
        facts = image_folder.sized(name, said)
        edges = (facts["width"], facts["height"])
        numbers = tidy(value * edges[i % 2] for i, value in enumerate(numbers))
    elif kind != "real":
        raise RefusedError("box", f"bbox_type is real or norm1, not {kind!r:.20}.")
    return box_of(numbers)
