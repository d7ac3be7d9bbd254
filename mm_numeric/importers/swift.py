"""Import grounding rows of ms-swift. Placeholders in messages refer to values in ``objects``.

    {"messages": [{"role": "user", "content": "<image>Find the <ref-object>"},
                  {"role": "assistant", "content": "<bbox>"}],
     "images": ["1.jpg"],
     "objects": {"ref": ["sheep"], "bbox": [[90, 160, 135, 212]], "bbox_type": "real"}}

Coordinates are pixels of the image (``bbox_type`` real, the default) or 0 to 1 (norm1). Two numbers
are a point: a question with points becomes a row of the task pointing. The phrase
of a box is the <ref-object> before its <bbox>, or after it as its "label" in JSON, or the question
if there is no <ref-object>.

Source: https://swift.readthedocs.io, custom datasets, grounding.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from mm_numeric.importers.conversations import (
    format_of_tokens,
    read_images,
    read_turns,
    strip_image_token,
)
from mm_numeric.importers.importer import (
    ImageFolder,
    ImportedItem,
    InvalidLine,
    InvalidRowError,
    Option,
    Row,
    SizedImageImporter,
    SkippedLine,
    declared_size,
    parse_box,
    parse_number_list,
    parse_text,
    round_coordinates,
)

_PLACEHOLDER = re.compile(r"<ref-object>|<bbox>")

_LABEL_LAST = re.compile(r'<bbox>([^<>{}]*"label"\s*:\s*")<ref-object>')
"""A box and its label in JSON, as in ``{"bbox_2d": <bbox>, "label": "<ref-object>"}``."""


class _Answer(NamedTuple):
    """A box in an assistant message, and the phrase that describes the box."""

    phrase: str
    phrase_number: int
    """Counter of phrases in the row; boxes with the same number belong to one phrase."""

    bbox: int
    """Index of the box in the list ``objects["bbox"]``."""


@dataclass(frozen=True, kw_only=True)
class Swift(SizedImageImporter):
    """Importer for ms-swift rows: messages with the placeholders <ref-object> and <bbox>."""

    version = 2  # 2: labels after boxes in JSON, points

    per: Annotated[
        str,
        Option(
            "phrase: one row per phrase with one box, or with its points; image: one row per image "
            "with all its boxes (default: phrase)",
            choices=("phrase", "image"),
        ),
    ] = "phrase"

    def items(self, where: str, identity: str, raw: Mapping[str, Any]) -> Iterator[ImportedItem]:
        """Yield one row per phrase with its box, or with ``--per image`` one row per image."""
        objects = raw.get("objects")
        if not objects:
            written: list[str] = []
            with suppress(InvalidRowError):  # other roles, or no text: such rows are left out
                written = [turn.text for turn in read_turns(raw) if turn.role == "assistant"]
            for name in filter(None, map(format_of_tokens, written)):
                raise InvalidRowError(
                    "objects",
                    "boxes are written in the answers, and not in objects; use `mm-numeric prepare "
                    f"llava --coordinates {name}`.",
                )
            yield SkippedLine("rows without objects")
            return
        if not isinstance(objects, Mapping):
            raise InvalidRowError("objects", f"objects must be an object, not {objects!r:.40}.")
        answers, asked = _answers(raw, objects)
        yield from [SkippedLine("boxes in questions")] * asked
        if not answers and not asked:
            yield SkippedLine("rows without objects")
        names = read_images(raw)
        which = [_image_number(objects, answer.bbox, len(names)) for answer in answers]
        boxes = [
            _box(objects, answer.bbox, self.folder, names[number], declared_size(raw))
            for answer, number in zip(answers, which, strict=True)
        ]
        if self.per == "image":
            for number in dict.fromkeys(which):
                instances = [
                    {"point" if len(box) == 2 else "box": box, "label": answer.phrase}
                    for answer, box, mine in zip(answers, boxes, which, strict=True)
                    if mine == number
                ]
                image_fields = self.folder.fields(names[number], declared_size(raw))
                fields = {"id": f"{identity}.{number}", **image_fields, "instances": instances}
                yield Row(where, fields)
            return
        for phrase_number in dict.fromkeys(answer.phrase_number for answer in answers):
            mine = [i for i, a in enumerate(answers) if a.phrase_number == phrase_number]
            phrase, own = answers[mine[0]].phrase, [boxes[i] for i in mine]
            are_points = all(len(numbers) == 2 for numbers in own)
            if len(mine) > 1 and not are_points:
                why = f"{len(mine)} boxes for {phrase!r:.40}; use --per image."
                yield InvalidLine(where, why, "several boxes")
                continue
            image_fields = self.folder.fields(names[which[mine[0]]], declared_size(raw))
            fields = {"id": f"{identity}.{phrase_number}", **image_fields, "phrase": phrase}
            yield Row(where, {**fields, "points": own} if are_points else {**fields, "box": own[0]})


def _answers(raw: Mapping[str, Any], objects: Mapping[str, Any]) -> tuple[list[_Answer], int]:
    """Return the boxes in assistant messages, and the number of boxes in all other messages."""
    refs, bboxes = objects.get("ref") or [], objects.get("bbox") or []
    if not isinstance(refs, list) or not isinstance(bboxes, list):
        raise InvalidRowError("objects", "ref and bbox of objects must be lists.")
    marks = [
        (turn, mark)
        for turn in read_turns(raw)
        for mark in ("", *_PLACEHOLDER.findall(_LABEL_LAST.sub(r"<ref-object>\1<bbox>", turn.text)))
    ]
    for name, values in (("<ref-object>", refs), ("<bbox>", bboxes)):
        count = sum(mark == name for _, mark in marks)
        if count != len(values):
            raise InvalidRowError(
                "placeholders", f"{count} {name} in the messages, but {len(values)} in the objects."
            )
    answers: list[_Answer] = []
    question, phrase, phrases, asked = "", "", 0, 0
    pending: list[str] = []  # refs without a box so far
    in_question = False
    ref, bbox = iter(refs), iter(range(len(bboxes)))
    for turn, mark in marks:
        answer = turn.role == "assistant"
        if not mark and turn.role == "user":
            question, phrase, pending, in_question = strip_image_token(turn.text), "", [], True
        elif mark == "<ref-object>":
            if answer and in_question:  # the answer repeats the refs of the question
                pending, in_question = [], False
            pending.append(parse_text(next(ref), "a ref"))
        elif mark and not answer:
            asked += next(bbox) >= 0
        elif mark:
            if len(set(pending)) > 1:
                raise InvalidRowError(
                    "placeholders", f"{len(pending)} <ref-object> before a <bbox>; expected one."
                )
            if pending or not phrase:
                phrase = parse_text(pending[0] if pending else question, "the question")
                phrases, pending = phrases + 1, []
            answers.append(_Answer(phrase, phrases, next(bbox)))
    return answers, asked


def _image_number(objects: Mapping[str, Any], bbox: int, images: int) -> int:
    """Return the index of the image that a box is in, from ``image_id``; 0 if it is missing."""
    numbers = objects.get("image_id") or []
    if not isinstance(numbers, list):
        raise InvalidRowError("objects", f"image_id must be a list, not {numbers!r:.40}.")
    number = numbers[bbox] if bbox < len(numbers) else 0
    if type(number) is not int or not 0 <= number < images:
        raise InvalidRowError(
            "image", f"box {bbox} refers to image {number!r:.20}, but there are {images} images."
        )
    return number


def _box(
    objects: Mapping[str, Any],
    bbox: int,
    image_folder: ImageFolder,
    name: str,
    declared: tuple[int, int] | None,
) -> list[float]:
    """Return a box, [x1, y1, x2, y2], or point, [x, y], in pixels of the original image."""
    numbers = parse_number_list(objects["bbox"][bbox])
    kind = objects.get("bbox_type") or "real"
    if kind == "norm1":
        if not all(0 <= value <= 1 for value in numbers):
            raise InvalidRowError("range", f"box {bbox} is not in the range 0 to 1 of norm1.")
        image_fields = image_folder.fields_with_size(name, declared)
        edges = (image_fields["width"], image_fields["height"])
        numbers = round_coordinates(value * edges[i % 2] for i, value in enumerate(numbers))
    elif kind != "real":
        raise InvalidRowError("box", f"bbox_type must be real or norm1, not {kind!r:.20}.")
    return round_coordinates(numbers) if len(numbers) == 2 else parse_box(numbers)
