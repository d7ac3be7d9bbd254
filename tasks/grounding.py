"""Find what a phrase speaks of: one box.

Rows     {"id": text, "image": path, "phrase": text, "box": [x1, y1, x2, y2]}
         boxes in pixels of the original, upright picture; "box_xyxy" is the same, "box_xywh" is
         [x, y, width, height]; "sentences": [text, ...] is a question each; "width" and "height"
         of the picture may be given
Answer   the box, as the family writes it
Score    mm_numeric.evaluation.boxes
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from mm_numeric.answers import Box, Example, Instance, Shape, Unreadable, Written
from mm_numeric.frames import Frame
from mm_numeric.tasks.shapes import OUTSIDE, clipped, read_box, read_id, read_image, shape_row

_BOXES = {"box": False, "box_xyxy": False, "box_xywh": True}


@dataclass(frozen=True, kw_only=True)
class Grounding:
    """Pictures and phrases in, boxes out."""

    version: ClassVar[int] = 1  # raise it when a prompt or a parse changes a score

    prompt: str = "Locate: {phrase}"
    """What is asked; ``{phrase}`` stands for the row's."""

    outside: str = "refuse"
    """refuse: a box that reaches more than a pixel out of its picture is an error; clip: it is cut
    at the edge, in the answer that is trained on."""

    def __post_init__(self) -> None:
        """Refuse a prompt without a phrase."""
        if "{phrase}" not in self.prompt:
            raise ValueError(f"prompt needs {{phrase}} where the phrase goes, not {self.prompt!r}")
        if self.outside not in OUTSIDE:
            raise ValueError(f"outside is one of {', '.join(OUTSIDE)}, not {self.outside!r}")

    def examples(
        self, rows: Iterable[tuple[str, Mapping[str, Any]]], *, training: bool
    ) -> Iterator[Example]:
        """Turn rows into examples.

        Args:
            rows: File and line of each row, and its fields.
            training: Not looked at: the same rows are trained on and tested.

        Raises:
            ValueError: If a row has no picture, no phrase or no box.
        """
        for where, row in rows:
            image, size_px = read_image(row, where)
            phrases = _phrases(row, where)
            box = _box(row, where)
            identity = read_id(row, ("id", "ref_id"), image)
            for i, phrase in enumerate(phrases):
                yield Example(
                    id=identity if len(phrases) == 1 else f"{identity}.{i}",
                    image=image,
                    prompt=self.prompt.replace("{phrase}", phrase),
                    answer=box,
                    where=where,
                    size_px=size_px,
                )

    def format(self, answer: Box, frame: Frame) -> Written:
        """Write a box.

        Raises:
            ValueError: If it reaches out of the picture.
        """
        shape: Shape = answer
        if self.outside == "clip":
            shape = clipped(answer, frame.width_px, frame.height_px)
        return frame.write([Instance(shape)])

    def parse(self, text: str, frame: Frame | None) -> Box | Unreadable:
        """Read the first box of a text.

        Raises:
            ValueError: If there is no frame to read it in.
        """
        if frame is None:
            raise ValueError("a box needs the frame that it was written in")
        found = frame.read(text)
        if isinstance(found, Unreadable):
            return found
        boxes = [i.shape for i in found if isinstance(i.shape, Box)]
        if not boxes:
            return Unreadable("no box")
        box = boxes[0]
        if box.x2 < box.x1 or box.y2 < box.y1:
            return Unreadable("reversed box", lenient=box)
        return box

    def record(self, answer: Box) -> dict[str, list[float]]:
        """Return a box as predictions.jsonl holds it, in pixels of the original picture."""
        return shape_row(answer)

    def recorded(self, value: Any) -> Box:
        """Read a box that ``record`` wrote.

        Raises:
            ValueError: If it is none.
        """
        return read_box(value.get("box") if isinstance(value, Mapping) else value, "the target")


def _phrases(row: Mapping[str, Any], where: str) -> list[str]:
    found = row.get("phrase") or row.get("sentence") or row.get("sentences")
    phrases = [found] if isinstance(found, str) else found
    if not (
        isinstance(phrases, list)
        and phrases
        and all(isinstance(p, str) and p.strip() for p in phrases)
    ):
        raise ValueError(f'{where}: no phrase; each row needs "phrase" (or "sentences").')
    return phrases


def _box(row: Mapping[str, Any], where: str) -> Box:
    """Read the box of a row; ``bbox`` alone would leave open what its numbers are."""
    for name, xywh in _BOXES.items():
        if row.get(name) is not None:
            return read_box(row[name], f"{where}, {name}", xywh=xywh)
    if row.get("bbox") is not None:
        raise ValueError(
            f'{where}: "bbox" may be x1, y1, x2, y2 or x, y, width, height; name it "box" or '
            '"box_xywh".'
        )
    raise ValueError(f'{where}: no box; each row needs "box" as [x1, y1, x2, y2].')
