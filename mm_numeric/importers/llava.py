r"""LLaVA's and ShareGPT's conversations, with boxes written in the answers.

    {"image": "1.jpg", "conversations": [{"from": "human", "value": "<image>\nWhere is the man?"},
                                         {"from": "gpt", "value": "[0.12, 0.34, 0.5, 0.6]"}]}

Nothing in such a file says what its numbers are relative to: LLaVA's own are of the image padded
to a square, those of others of the image as it is, and a wrong guess is off by up to 80 pixels in
an image of 640 x 480, without a word. So it is declared: what a coordinate is (a key of
``COORDINATES``), and, unless it is in pixels of the original, how the image was resized.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any, ClassVar

from mm_numeric.answers import Box, Instances
from mm_numeric.geometry.coordinates import COORDINATES, RENAMED_PRESETS, Coordinates
from mm_numeric.geometry.frames import Frame, Resize
from mm_numeric.importers.conversations import question_of, read_images, read_turns
from mm_numeric.importers.files import ImageFolder, listed, read_each
from mm_numeric.importers.importer import (
    Found,
    ImagesFolder,
    LeftOut,
    OneSize,
    Option,
    RefusedError,
    Row,
    box_of,
    read_size,
    size_of,
    tidy,
)
from mm_numeric.moved import warn_renamed
from mm_numeric.registry import unknown

_ANY_SIDE = 1000  # what is relative is the same whatever the side


@dataclass(frozen=True, kw_only=True)
class Llava:
    """LLaVA and ShareGPT conversations: boxes in answers, in a frame that is declared."""

    version: ClassVar[int] = 1

    coordinates: Annotated[
        str,
        Option(
            "how coordinates are written, a name that `mm-numeric ls` lists: llava, unit_3 ...",
            name="NAME",
        ),
    ]
    resize: Annotated[
        str | None,
        Option(
            "what the image was made into: padded to a square, squashed to one, brought to "
            "multiples of --factor, or nothing; needed unless coordinates are of the original",
            choices=("letterbox", "squash", "smart", "none"),
        ),
    ] = None
    side: Annotated[
        int | None,
        Option("pixels of the square, where coordinates are pixels of it", name="PIXELS"),
    ] = None
    factor: Annotated[int | None, Option("of smart: 28 or 32", name="PIXELS")] = None
    min_pixels: Annotated[int | None, Option("of smart", name="PIXELS")] = None
    max_pixels: Annotated[int | None, Option("of smart", name="PIXELS")] = None
    question: Annotated[
        str | None,
        Option(
            "how questions are written, {phrase} where the phrase stands; by default the phrase is "
            "all of it",
            name="TEXT",
        ),
    ] = None
    per: Annotated[
        str,
        Option(
            "a row for each question with one box, as a phrase; or for each answer, with all its "
            "boxes (default: phrase)",
            choices=("phrase", "answer"),
        ),
    ] = "phrase"
    images: ImagesFolder = None
    size: OneSize = None

    def __post_init__(self) -> None:
        """Refuse a frame that leaves something open."""
        if self.coordinates in RENAMED_PRESETS:
            preset = RENAMED_PRESETS[self.coordinates]
            warn_renamed("--coordinates", self.coordinates, preset)
            object.__setattr__(self, "coordinates", preset)
        if self.coordinates not in COORDINATES:
            raise unknown(
                self.coordinates, COORDINATES, "way to write coordinates", "--coordinates"
            )
        if self.question is not None and self.question.count("{phrase}") != 1:
            raise ValueError(f"--question needs {{phrase}} once, not {self.question!r:.60}.")
        if self._coordinates.space == "original":
            if self.resize not in (None, "none"):
                raise ValueError(
                    f"--coordinates {self.coordinates} are of the original image: --resize "
                    f"{self.resize} does not go with them."
                )
        elif self.resize is None:
            raise ValueError(
                f"--coordinates {self.coordinates} are of the image as the model saw it; say "
                "with --resize what it was made into: letterbox, squash, smart or none."
            )
        _ = self._resize, read_size(self.size)  # they refuse what is missing

    @property
    def _coordinates(self) -> Coordinates:
        return COORDINATES[self.coordinates]

    @cached_property
    def _resize(self) -> Resize:
        kind = self.resize or "none"
        for name in ("side", "factor", "min_pixels", "max_pixels"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"--{name.replace('_', '-')} is at least 1, not {value}.")
        if kind == "smart":
            numbers = (self.factor, self.min_pixels, self.max_pixels)
            if not all(numbers):
                raise ValueError("--resize smart needs --factor, --min-pixels and --max-pixels.")
        elif kind != "none" and self._coordinates.max_value is None and not self.side:
            raise ValueError(
                f"--coordinates {self.coordinates} are pixels of the square: give its --side."
            )
        return Resize(
            kind=kind,
            side=self.side or _ANY_SIDE,
            factor=self.factor or 0,
            min_pixels=self.min_pixels or 0,
            max_pixels=self.max_pixels or 0,
        )

    def files(self, inputs: Sequence[Path]) -> list[Path]:
        """Return the files that will be read."""
        return listed(inputs, (".json", ".jsonl"))

    def rows(self, files: Sequence[Path]) -> Iterator[Found]:
        """Read the answers that hold boxes."""
        image_folder = ImageFolder(self.images, read_size(self.size))
        return read_each(files, partial(self._conversation, image_folder))

    def _conversation(
        self, image_folder: ImageFolder, where: str, identity: str, raw: Mapping[str, Any]
    ) -> Iterator[Found]:
        names = read_images(raw)
        question = ""
        for i, turn in enumerate(list(read_turns(raw))):
            if turn.role == "user":
                question = question_of(turn.text)
            if turn.role != "assistant":
                continue
            place = f"{where}, message {i}"
            try:
                numerals = self._numerals(turn.text)
                if not numerals:
                    yield LeftOut("answers without a box")
                    continue
                if len(names) != 1:
                    raise RefusedError("image", f"a box, and {len(names)} images.")
                facts = image_folder.sized(names[0], size_of(raw))
                boxes = self._boxes(turn.text, facts)
                fields = {"id": f"{identity}.{i}", **facts}
                yield Row(place, {**fields, **self._asked(question, boxes)})
            except RefusedError as refusal:
                yield refusal.at(place)

    def _asked(self, question: str, boxes: list[dict[str, Any]]) -> dict[str, Any]:
        """Return question and answer as fields of a row."""
        if self.per == "answer":
            return {"question": question, "instances": boxes}
        if len(boxes) > 1:
            raise RefusedError(
                "several boxes", f"{len(boxes)} boxes for a phrase; see --per answer."
            )
        phrase: str = question
        if self.question is not None:
            pattern = re.escape(self.question).replace(re.escape("{phrase}"), "(.+)")
            match = re.fullmatch(pattern, question, re.DOTALL)
            if not match:
                raise RefusedError("question", f"{question!r:.60} is not asked as --question says.")
            phrase = match[1]
        if not phrase.strip():
            raise RefusedError("question", "a box, and no question before it.")
        return {"phrase": phrase.strip(), "box": boxes[0]["box"]}

    def _numerals(self, text: str) -> list[str]:
        """Return the coordinates of an answer, four for each box."""
        layout = self._coordinates.text
        reading = layout.read(text)
        if reading.cut:
            raise RefusedError("box", f"cut off within a box: {text[-40:]!r}.")
        found: list[str] = []
        for shape in reading.shapes:
            if len(shape.numerals) not in (0, 4):
                raise RefusedError(
                    "box", f"a box has four numbers, not {len(shape.numerals)}: {text!r:.60}."
                )
            found += shape.numerals
        begun = re.findall(rf"{re.escape(layout.open or layout.point_open)}[(\s]*[-.]?[0-9]", text)
        if not layout.bins and len(begun) != len(found) // (4 if layout.open else 2):
            raise RefusedError("box", f"it begins like a box and is none: {text!r:.60}.")
        top, step = self._coordinates.max_value, 10**self._coordinates.decimals
        for numeral in found:
            level = self._coordinates.read_numeral(numeral)
            if top is not None and not 0 <= level <= top * step:
                raise RefusedError(
                    "range", f"{numeral} is not 0 to {top}, as --coordinates {self.coordinates} is."
                )
            if top is not None and step == 1 and "." in numeral:
                raise RefusedError(
                    "range", f"{numeral} is not whole, as --coordinates {self.coordinates} is."
                )
        return found

    def _boxes(self, text: str, facts: Mapping[str, Any]) -> list[dict[str, Any]]:
        width, height = facts["width"], facts["height"]
        try:
            view = self._resize.view(width, height)
        except ValueError as error:
            raise RefusedError("image", f"{error}.") from error
        instances = Frame(width, height, view, self._coordinates).read(text)
        assert isinstance(instances, Instances), text
        boxes = []
        for instance in instances.items:
            assert isinstance(instance.shape, Box), text
            shape = instance.shape
            box: dict[str, Any] = {"box": box_of(tidy([shape.x1, shape.y1, shape.x2, shape.y2]))}
            if instance.label:
                box["label"] = instance.label
            boxes.append(box)
        return boxes
