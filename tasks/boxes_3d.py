"""Task: detect all objects of the classes asked for, as boxes in space.

Rows     {"id": text, "image": path, "instances": [{"bbox_3d": [x, y, z, x_size, y_size, z_size, a,
         b, c], "label": text, "ignore": true or false}, ...]}. The numbers are those that Qwen3-VL
         writes: the centre in the camera's space and the sizes along the axes of the box, in
         metres, and the angles about the axes x, y and z, in this order, in half turns (1 is 180
         degrees); see mm_numeric.geometry.boxes_3d. "classes" and "phrase" are as for detection
         optionally "camera": {"fx": 500, "fy": 500, "cx": 320, "cy": 240}, in pixels of the
         original image, for a prompt with ``{camera}``
Answer   all objects without "ignore": true, the nearest first, as JSON of Qwen3-VL for any family:
         ``[{"bbox_3d": [2.88, 0.56, 6.28, 4.45, 1.7, 1.84, 0.75, 0.49, 0.75], "label": "car"}]``
Scorer   mm_numeric.evaluation.metrics.boxes_3d
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from mm_numeric.answers import Box3D, Boxes3D, Example, Unreadable, Written
from mm_numeric.geometry.coordinates import JSON
from mm_numeric.geometry.frames import Frame, write_pieces
from mm_numeric.geometry.grammar import numbers_regex
from mm_numeric.geometry.row_shapes import finite_numbers, is_text
from mm_numeric.tasks.base import Rows, image_example
from mm_numeric.tasks.class_questions import ClassQuestions
from mm_numeric.tasks.rendering.cuboids import CuboidStyle
from mm_numeric.tasks.rendering.drawing import RenderedTask

_JSON = replace(
    JSON,
    open='"bbox_3d": [',
    polygon_open=None,
    single_open=None,
    keys="bbox_3d",
)
_FARTHEST = 1e6
_CAMERA = ("fx", "fy", "cx", "cy")


@dataclass(frozen=True, kw_only=True)
class DetectBoxes3D(ClassQuestions, RenderedTask):
    """Task: detect all objects of some classes as boxes in space."""

    version: ClassVar[int] = 2
    sampled_answers: ClassVar[int] = 32
    drawn_by: ClassVar[tuple[str, ...]] = ("cuboids",)
    scorer = "mm_numeric.evaluation.metrics.boxes_3d:BOXES_3D"

    prompt: str = (
        "Find all objects of these classes in this image: {classes}. For each object, provide its "
        '3D bounding box. The output format required is JSON: `[{"bbox_3d":'
        "[x_center, y_center, z_center, x_size, y_size, z_size, roll, pitch, yaw],"
        '"label":"category"}]`.'
    )
    """Prompt; ``{classes}`` is replaced by the classes asked for, or by the phrase of the row, and
    ``{camera}``, if it has it, by the camera of the row: ``fx=500, fy=500, cx=320, cy=240``."""

    decimals: int = 2
    """Largest number of decimals of the numbers in an answer, 1 to 4. As in the answers of
    Qwen3-VL, zeros at the end are left out."""

    cuboids: CuboidStyle = field(default_factory=CuboidStyle)
    """Options for rendered cuboids."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.decimals <= 4:
            raise ValueError(f"decimals is 1 to 4, not {self.decimals}")

    def examples(self, rows: Rows, *, training: bool) -> Iterator[Example]:
        """Yield one example per image, or one per image and class with ``ask: each``."""
        for where, row in rows:
            items = _read_boxes(row.get("instances"), where)
            prompt = self.prompt
            if "{camera}" in prompt:
                prompt = prompt.replace("{camera}", _camera(row.get("camera"), where))
            example = image_example(row, where, prompt=prompt, answer=None)
            for asked, own in self.questions(example, items, row, training=training):
                yield replace(asked, answer=Boxes3D(tuple(own)))

    def format(self, answer: Boxes3D, frame: Frame | None = None) -> Written:
        """Format the boxes as text, the nearest first, without those to ignore."""
        shapes = [(self._numerals(i.numbers), i.label, True) for i in answer.items if not i.ignore]
        # By rounded numbers, so that the boxes parsed from the text are in its order.
        shapes.sort(key=lambda shape: (float(shape[0][2]), *map(float, shape[0]), shape[1]))
        return write_pieces(_JSON.write(shapes), ("free",))

    def _numerals(self, numbers: Sequence[float]) -> list[str]:
        """Round numbers; a size is at least one step, so that the box has a volume."""
        step = 10.0**-self.decimals
        sized = [max(n, step) if 3 <= i < 6 else n for i, n in enumerate(numbers)]
        texts = (f"{round(n, self.decimals) + 0.0:.{self.decimals}f}" for n in sized)  # no -0.00
        parts = (text.split(".") for text in texts)
        return [f"{whole}.{decimals.rstrip('0') or '0'}" for whole, decimals in parts]

    def parse(self, text: str, frame: Frame | None = None) -> Boxes3D | Unreadable:
        """Parse all boxes in a generated text; boxes without nine numbers are malformed."""
        shapes, cut, _ = _JSON.read(text)
        if not shapes and _JSON.is_nothing(text):
            return Boxes3D(())
        found = [
            (Box3D(tuple(map(float, shape.numerals)), shape.label), shape.span)
            for shape in shapes
            if len(shape.numerals) == 9 and all(abs(float(n)) <= _FARTHEST for n in shape.numerals)
        ]
        if not found:
            problem = "no bbox_3d with nine numbers" if text.strip() else "empty answer"
            return Unreadable("cut off within a box" if cut else problem)
        items, spans = zip(*found, strict=True)
        return Boxes3D(items, cut, len(shapes) - len(found), spans)

    def grammar(self, frame: Frame | None = None) -> str:
        """Return a regular expression of a list of boxes."""
        number = rf"-?(?:0|[1-9][0-9]{{0,4}})\.[0-9]{{1,{self.decimals}}}"
        return numbers_regex(_JSON, number, 9)

    def record(self, answer: Boxes3D) -> list[dict[str, Any]]:
        """Convert boxes to JSON, as in the rows."""
        return [
            {"bbox_3d": list(item.numbers), "label": item.label}
            | ({"ignore": True} if item.ignore else {})
            for item in answer.items
        ]

    def recorded(self, value: Any) -> Boxes3D:
        """Convert a JSON value in predictions.jsonl back to boxes."""
        return Boxes3D(tuple(_read_boxes(value, "the target")))


def _read_boxes(value: Any, where: str) -> list[Box3D]:
    if not isinstance(value, list):
        raise ValueError(f'{where}: no "instances" (a list); use an empty list for no objects.')
    boxes = []
    for i, raw in enumerate(value):
        place = f"{where}, instances.{i}"
        if not isinstance(raw, Mapping) or not is_text(raw.get("label")):
            raise ValueError(
                f'{place}: expected {{"bbox_3d": [...], "label": text}}, found {raw!r:.60}.'
            )
        numbers = finite_numbers(raw.get("bbox_3d"), f"{place}, bbox_3d")
        if len(numbers) != 9 or min(numbers[3:6]) <= 0 or max(map(abs, numbers)) > _FARTHEST:
            raise ValueError(
                f"{place}, bbox_3d: expected [x_center, y_center, z_center, x_size, y_size, "
                f"z_size, roll, pitch, yaw] with sizes above 0 and no number beyond "
                f"{_FARTHEST:g}, found {numbers!r:.80}."
            )
        boxes.append(Box3D(tuple(numbers), raw["label"], raw.get("ignore") is True))
    return boxes


def _camera(value: Any, where: str) -> str:
    given = value if isinstance(value, Mapping) else {}
    if any(type(given.get(name)) not in (int, float) for name in _CAMERA):
        raise ValueError(
            f'{where}: the prompt has {{camera}}, and needs "camera" of the row as {{"fx": 500, '
            f'"fy": 500, "cx": 320, "cy": 240}}, in pixels, found {value!r:.60}.'
        )
    return ", ".join(f"{name}={given[name]:g}" for name in _CAMERA)
