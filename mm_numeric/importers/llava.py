r"""Import conversations of LLaVA and ShareGPT with boxes in the answers.

    {"image": "1.jpg", "conversations": [{"from": "human", "value": "<image>\nWhere is the man?"},
                                         {"from": "gpt", "value": "[0.12, 0.34, 0.5, 0.6]"}]}

The files do not state which image the coordinates refer to. In LLaVA's own files it is the image
padded to a square, in other files it is the original image. A wrong assumption raises no error, but
shifts boxes by up to 80 pixels in an image of 640 x 480. The user must therefore declare the
coordinate format (a name in ``COORDINATES``) and, unless coordinates refer to the original image,
how the image was resized.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, NamedTuple

from mm_numeric.answers import Box, Instance, Instances
from mm_numeric.geometry.coordinate_formats import JsonFormat
from mm_numeric.geometry.coordinates import COORDINATES, Coordinates
from mm_numeric.geometry.frames import Frame, Resize
from mm_numeric.importers.importer import (
    ImageImporter,
    ImportedItem,
    InvalidRowError,
    Option,
    Row,
    SkippedLine,
    declared_size,
    image_row,
    parse_box,
    parse_text,
    round_coordinates,
    row_or_error,
)
from mm_numeric.registry import unknown

_ANY_SIDE = 1000  # any value: relative coordinates do not depend on the side of the square
_SPEAKERS = {"human": "user", "gpt": "assistant"}
_ROLES = ("system", "user", "assistant")


@dataclass(frozen=True, kw_only=True)
class LlavaImporter(ImageImporter):
    """Importer for LLaVA and ShareGPT conversations whose answers contain boxes."""

    version = 2  # 2: labels no longer contain the comma between two boxes

    size: Annotated[
        str | None,
        Option("size of images whose row declares none; not used with --images", name="WxH"),
    ] = None

    coordinates: Annotated[
        str, Option("coordinate format listed by `mm-numeric ls`, such as llava", name="NAME")
    ]
    resize: Annotated[
        str | None,
        Option(
            "how the image was resized: letterbox (padded to a square), squash (stretched to a "
            "square), smart (to multiples of --factor) or none; required unless --coordinates "
            "refer to the original image",
            choices=("letterbox", "squash", "smart", "none"),
        ),
    ] = None
    side: Annotated[
        int | None, Option("side of the square, if coordinates are pixels of it", name="PIXELS")
    ] = None
    factor: Annotated[int | None, Option("for --resize smart: 28 or 32", name="PIXELS")] = None
    min_pixels: Annotated[
        int | None, Option("for --resize smart: smallest image area", name="PIXELS")
    ] = None
    max_pixels: Annotated[
        int | None, Option("for --resize smart: largest image area", name="PIXELS")
    ] = None
    question: Annotated[
        str | None,
        Option(
            "template of the questions, with {phrase} (default: the question is the phrase)",
            name="TEXT",
        ),
    ] = None
    per: Annotated[
        str,
        Option(
            "phrase: one row per question with one box; answer: one row per answer with all its "
            "boxes (default: phrase)",
            choices=("phrase", "answer"),
        ),
    ] = "phrase"

    def __post_init__(self) -> None:
        _parse_size(self.size)  # validates it
        if self.coordinates not in COORDINATES:
            raise unknown(self.coordinates, COORDINATES, "coordinate format", "--coordinates")
        if self.question is not None and self.question.count("{phrase}") != 1:
            raise ValueError(f"--question needs {{phrase}} once, not {self.question!r:.60}.")
        if self._coordinates.space == "original":
            if self.resize not in (None, "none"):
                raise ValueError(
                    f"--coordinates {self.coordinates} refer to the original image; remove "
                    f"--resize {self.resize}."
                )
        elif self.resize is None:
            raise ValueError(
                f"--coordinates {self.coordinates} refer to the resized image; set --resize to "
                "letterbox, squash, smart or none."
            )
        _ = self._resize  # validates its options

    @property
    def _coordinates(self) -> Coordinates:
        return COORDINATES[self.coordinates]

    @cached_property
    def _resize(self) -> Resize:
        kind = self.resize or "none"
        for name in ("side", "factor", "min_pixels", "max_pixels"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"--{name.replace('_', '-')} must be at least 1, not {value}.")
        if kind == "smart":
            numbers = (self.factor, self.min_pixels, self.max_pixels)
            if not all(numbers):
                raise ValueError("--resize smart needs --factor, --min-pixels and --max-pixels.")
        elif kind != "none" and self._coordinates.max_value is None and not self.side:
            raise ValueError(
                f"--coordinates {self.coordinates} are pixels of the square; set its --side."
            )
        return Resize(
            kind=kind,
            side=self.side or _ANY_SIDE,
            factor=self.factor or 0,
            min_pixels=self.min_pixels or 0,
            max_pixels=self.max_pixels or 0,
        )

    def items(self, where: str, identity: str, raw: Mapping[str, Any]) -> Iterator[ImportedItem]:
        """Yield one row per answer that contains boxes, and an error per invalid answer or box."""
        names, question = _read_images(raw), ""
        for i, turn in enumerate(list(_read_turns(raw))):
            if turn.role == "user":
                question = _strip_image_token(turn.text)
            if turn.role != "assistant":
                continue
            about = f"{identity}.{i}", question, turn.text, names, raw
            place = f"{where}, message {i}"
            found = row_or_error(place, self._answer, *about)
            if isinstance(found, Row) and self.per == "answer":
                boxes = ((f"box {n}", b) for n, b in enumerate(found.fields["instances"], start=1))
                yield from image_row(place, found.fields, boxes, _box_row)
            else:
                yield found

    def _answer(
        self, identity: str, question: str, text: str, images: Sequence[str], raw: Mapping[str, Any]
    ) -> dict[str, Any] | SkippedLine:
        if not self._numerals(text):
            if "<bbox>" in text and raw.get("objects"):
                raise InvalidRowError(
                    "placeholders", "the boxes are in objects; write them in place of <bbox>."
                )
            if (name := _format_of_tokens(text)) is not None:
                raise InvalidRowError(
                    "box", f"boxes of another format, {text!r:.80}; use --coordinates {name}."
                )
            return SkippedLine("answers without a box")
        if len(images) != 1:
            raise InvalidRowError("image", f"a box, but {len(images)} images; expected one.")
        declared = declared_size(raw)
        if declared is None and self.images is None:
            declared = _parse_size(self.size)
        image = self.folder.fields(images[0], declared)
        if "width" not in image:
            raise InvalidRowError(
                "image", "its size is unknown; give --images, --size, or width and height."
            )
        boxes = self._boxes(text, image)
        return {"id": identity, **image, **self._asked(question, boxes)}

    def _asked(self, question: str, boxes: Sequence[Instance]) -> dict[str, Any]:
        """Combine a question and the boxes in its answer into the fields of a row.

        With the option ``--per answer``, the row has the question and a list of boxes. Otherwise it
        has a phrase, such as "the man", and one box; several boxes are an error.
        """
        if self.per == "answer":
            return {"question": question, "instances": boxes}
        if len(boxes) > 1:
            raise InvalidRowError(
                "several boxes", f"{len(boxes)} boxes for one phrase; use --per answer."
            )
        phrase: str = question
        if self.question is not None:
            pattern = re.escape(self.question).replace(re.escape("{phrase}"), "(.+)")
            match = re.fullmatch(pattern, question, re.DOTALL)
            if not match:
                raise InvalidRowError(
                    "question", f"{question!r:.60} does not match the template --question."
                )
            phrase = match[1]
        if not phrase.strip():
            raise InvalidRowError("question", "a box without a question before it.")
        return {"phrase": phrase.strip(), "box": _box_row(boxes[0])["box"]}

    def _numerals(self, text: str) -> list[str]:
        """Return the coordinates in an answer as texts, four per box; raise if one is invalid."""
        form = self._coordinates.text
        reading = form.read(text)
        if reading.cut:
            raise InvalidRowError("box", f"truncated within a box: {text[-40:]!r}.")
        found: list[str] = []
        for shape in reading.shapes:
            if len(shape.numerals) not in (0, 4):
                raise InvalidRowError(
                    "box", f"a box needs 4 numbers, not {len(shape.numerals)}: {text!r:.60}."
                )
            found += shape.numerals
        opened = re.escape(form.open or form.point_open)
        if isinstance(form, JsonFormat):
            opened = rf"""["'](?:{form.keys})["']\s*:\s*[\[(]"""
        begun = re.findall(rf"(?:{opened})[(\s]*[-.]?[0-9]", text)
        if not form.bins and len(begun) > len(found) // (4 if form.open else 2):
            raise InvalidRowError("box", f"incomplete box: {text!r:.60}.")
        top, step = self._coordinates.max_value, 10**self._coordinates.decimals
        required = f"as --coordinates {self.coordinates} requires"
        for numeral in found if top is not None else ():
            if not 0 <= self._coordinates.read_numeral(numeral) <= top * step:
                raise InvalidRowError("range", f"{numeral} is not within 0 to {top}, {required}.")
            if step == 1 and "." in numeral:
                raise InvalidRowError("range", f"{numeral} is not an integer, {required}.")
        return found

    def _boxes(self, text: str, image_fields: Mapping[str, Any]) -> Sequence[Instance]:
        width, height = image_fields["width"], image_fields["height"]
        try:
            view = self._resize.view(width, height)
        except ValueError as error:
            raise InvalidRowError("image", f"{error}.") from error
        instances = Frame(width, height, view, self._coordinates).read(text)
        if not isinstance(instances, Instances) or instances.malformed:
            raise InvalidRowError("range", f"a coordinate beyond any image: {text!r:.60}.")
        return instances.items


def _box_row(instance: Instance) -> dict[str, Any]:
    box = instance.shape
    assert isinstance(box, Box), instance
    found = parse_box(round_coordinates([box.x1, box.y1, box.x2, box.y2]))
    return {"box": found, **({"label": instance.label} if instance.label else {})}


def _parse_size(text: str | None) -> tuple[int, int] | None:
    """Parse the option ``--size``: (640, 480) for ``640x480``, None if it was not given."""
    if text is None:
        return None
    match = re.fullmatch(r"([1-9][0-9]*)x([1-9][0-9]*)", text)
    if not match:
        raise ValueError(f"--size {text}: write width and height in pixels, such as 640x480.")
    return int(match[1]), int(match[2])


class _Turn(NamedTuple):
    """One message of a conversation. Its ``role`` is ``system``, ``user`` or ``assistant``."""

    role: str
    text: str


def _read_turns(row: Mapping[str, Any]) -> Iterator[_Turn]:
    """Yield the messages of a row in the format of LLaVA, ShareGPT or TRL."""
    raw = row.get("conversations") if row.get("messages") is None else row["messages"]
    if raw is None and isinstance(row.get("prompt"), list):
        raw = [*row["prompt"], *(row.get("completion") or ())]
    if not isinstance(raw, list):
        raise InvalidRowError("messages", 'there is no list "conversations" or "messages".')
    for i, message in enumerate(raw):
        if not isinstance(message, Mapping):
            raise InvalidRowError("messages", f"message {i} is not an object: {message!r:.40}.")
        speaker = message.get("role", message.get("from"))
        role = _SPEAKERS.get(speaker, speaker) if isinstance(speaker, str) else None
        if role not in _ROLES:
            why = f"message {i} has the role {speaker!r:.20}, not user or assistant."
            raise InvalidRowError("messages", why)
        yield _Turn(role, parse_text(message.get("content", message.get("value")), f"message {i}"))


def _read_images(row: Mapping[str, Any]) -> list[str]:
    """Return the image paths in a row's field ``image`` or ``images``, a path or a list."""
    raw = row.get("images") if row.get("image") is None else row["image"]
    items = raw if isinstance(raw, list) else [] if raw is None else [raw]
    return [parse_text(i.get("path") if isinstance(i, Mapping) else i, "an image") for i in items]


def _format_of_tokens(text: str) -> str | None:
    """Return the coordinate format whose special tokens a text has; None if it has no tokens."""
    for name, coordinates in COORDINATES.items():
        form = coordinates.text
        if (form.bins or form.open.startswith("<")) and form.read(text).shapes:
            return name
    return None


def _strip_image_token(text: str) -> str:
    return text.replace("<image>", "").strip()
