"""Task: detect all objects of the classes that the prompt names, as boxes with labels.

Example  {"id": "1", "image": "1.png", "classes": ["cat", "dog"], "instances": [{"box": [20, 30,
         120, 200], "label": "cat"}]}
Prompt   Locate every object of these classes: cat, dog.
Text     [{"bbox_2d": [20, 30, 120, 200], "label": "cat"}]

Rows     {"id": text, "image": path, "instances": [{"box": [x1, y1, x2, y2], "label": text,
         "ignore": true or false}, ...]}, in pixels of the original, upright image; the list is
         empty for an image without objects; "polygon": [x1, y1, x2, y2, ...] may replace "box",
         and so may "box_xywh": [x, y, width, height], or
         "rotated_box": [centre x, centre y, width, height, degrees clockwise], or
         "mask": {"size": [height, width], "counts": [...]}, run lengths as in COCO files;
         "width" and "height" of the image are optional without ``max_points``
Classes  The prompt names the classes of the option ``classes``, or else of the row's "classes", or
         else asks for every object. It never depends on the objects of the image, because it must
         not reveal them. A row with "phrase": text (or "sentences": [text, ...]) instead asks for
         the objects that the text describes, and has only these in "instances"
Answer   all objects without "ignore": true, in the order of the option ``order``, each with its
         label, in the coordinate format of the model family. If there is no object, the answer is
         ``[]`` in JSON formats (Qwen2.5-VL, Qwen3-VL), and otherwise ``none``
Scorer   mm_numeric.evaluation.metrics.detection; ``order`` does not change the ground truth. With
         ``max_points``, shapes are compared as masks
"""

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from mm_numeric.answers import Box, Example, Instance, Instances, Polygon, Unreadable
from mm_numeric.geometry.frames import Frame
from mm_numeric.geometry.masks import check_masks, few_corners, mask_region, polygon_mask
from mm_numeric.geometry.row_shapes import (
    corners,
    from_topmost,
    is_text,
    read_image,
    read_instances,
    read_phrases,
)
from mm_numeric.tasks.base import Rows, check_choice, check_placeholders, image_example
from mm_numeric.tasks.class_counts import ClassCounts, names_in_words
from mm_numeric.tasks.shape_lists import ShapeListTask

_EVERYTHING = "every object"  # text in the prompt if neither the config nor the row has classes


@dataclass(frozen=True, kw_only=True)
class Detection(ShapeListTask):
    """Task: detect all objects of some classes in an image."""

    # What the parser accepts since version 2: []. 3: one label for several boxes, text around tags.
    # 4: polygons of drawings. 5: other coordinate formats; labels of several lines are malformed.
    version: ClassVar[int] = 5
    labels: ClassVar[bool] = True
    augmentations: ClassVar[tuple[str, ...]] = ("crop", "flip", "mosaic", "rotate", "scale")
    scorer = "mm_numeric.evaluation.metrics.detection:LABELLED_DETECTION"

    prompt: str = "Locate every object of these classes: {classes}."
    """Prompt; ``{classes}`` is replaced by the names of the classes, or by the row's phrase."""

    between_classes: str = ", "
    """Text between two classes in the prompt."""

    classes: tuple[str, ...] = ()
    """Classes that every prompt names, in this order, whatever is in the image. Empty: the prompt
    names the ``classes`` of the row, or else asks for every object."""

    other_labels: str = "refuse"
    """Treatment of objects whose label is not among the classes in the prompt. ``refuse``: raise
    an error. ``drop``: leave them out of the answer."""

    ask: str = "together"
    """``together``: one question per image, about all classes. ``each``: one question per image
    and class; the id of the example is the row's id, a point and the class."""

    negatives: int | None = None
    """Maximum number of questions per training image about classes that are not in it, with ``ask:
    each``. These classes are drawn at random, always the same for a row. null: no maximum."""

    shape: str = "box"
    """``box``: use the bounding boxes of polygons. ``polygon``: use shapes as the rows have them.
    ``rotated_box``: shapes have four corners, written clockwise from the topmost corner."""

    max_points: int | None = None
    """With ``shape: polygon``, write masks as polygons with at most this number of corners, 3 or
    more. The answer has the outline of an object's largest part, clockwise from the topmost corner.
    If it has more corners, it is simplified within 0.5 pixels; then the corners that change the
    area least are removed. Scores compare masks: the pixels of an answer's polygons with the row's
    mask or polygon, which is not simplified."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_placeholders("prompt", self.prompt, "classes")
        check_choice("ask", self.ask, ("together", "each"))
        check_choice("other_labels", self.other_labels, ("refuse", "drop"))
        _check_classes(self.classes, "classes")
        if self.negatives is not None and (self.ask != "each" or self.negatives < 0):
            raise ValueError(
                f"negatives is 0 or more and requires ask: each, not {self.negatives} with ask: "
                f"{self.ask}"
            )
        if self.max_points is not None and (self.shape != "polygon" or self.max_points < 3):
            raise ValueError(
                f"max_points is 3 or more and requires shape: polygon, not {self.max_points} with "
                f"shape: {self.shape}"
            )

    def examples(self, rows: Rows, *, training: bool) -> Iterator[Example]:
        """Yield one example per image, or one per image and class with ``ask: each``.

        With ``negatives``, some questions about absent classes are left out of training data.
        """
        for where, row in rows:
            example = image_example(
                row, where, prompt=self.prompt, answer=None, ids=("id", "ref_id")
            )
            items = self.read_shapes(_with_instances(row, where), where)
            for asked, own in self._questions(example, items, row, training=training):
                yield replace(asked, answer=Instances(tuple(own)))

    def _questions(
        self, example: Example, items: Sequence[Instance], row: Mapping[str, Any], *, training: bool
    ) -> Iterator[tuple[Example, Sequence[Instance]]]:
        """Yield an example for each question about an image, and the objects of its answer."""
        where = example.where
        classes = self._asked_classes(row, where)
        dropped = self._dropped(items, classes, where)
        # An ignored region without a label is ignored for every class.
        kept = [i for i in items if i.label in classes or (i.ignore and not i.label)]
        if not classes and self.ask == "each":
            raise ValueError(
                f"{where}: ask: each needs classes and no phrase; set `classes` of the task, "
                'or give the row "classes".'
            )
        if not classes:
            phrases = read_phrases(row, where, optional=True)
            endings = [f".{i}" if len(phrases) > 1 else "" for i in range(max(1, len(phrases)))]
            found = [(*own, items) for own in zip(endings, phrases or [_EVERYTHING], strict=True)]
        elif self.ask == "together":
            found = [("", self.between_classes.join(classes), kept)]
        else:
            names = self._classes_of_questions(kept, classes, example.id) if training else classes
            found = [(f".{n}", n, [i for i in kept if i.label in (n, "")]) for n in names]
        for ending, asked, own in found:
            prompt = example.prompt.replace("{classes}", asked)
            yield replace(example, id=example.id + ending, prompt=prompt, dropped=dropped), own
            dropped = ()  # reported once for each row

    def _classes_of_questions(
        self, items: Sequence[Instance], classes: Sequence[str], identity: str
    ) -> Sequence[str]:
        """Return the classes of the questions about a training image, with ``ask: each``.

        A class with only ignored objects, such as a crowd, gets no question: its objects are in the
        image, but cannot be listed.
        """
        present = {item.label for item in items if not item.ignore}
        ignored = {item.label for item in items if item.ignore} - present
        absent = [name for name in classes if name not in present | ignored]
        if self.negatives is not None:
            absent = random.Random(identity).sample(absent, min(self.negatives, len(absent)))
        return [name for name in classes if name in present or name in absent]

    def _asked_classes(self, row: Mapping[str, Any], where: str) -> Sequence[str]:
        """Return the classes in a row's prompt; () if it has a phrase or asks for every object."""
        if read_phrases(row, where, optional=True):
            return ()
        classes: Sequence[str] = self.classes or row.get("classes") or ()
        _check_classes(classes, f"{where}, classes")
        return classes

    def _dropped(
        self, items: Sequence[Instance], classes: Sequence[str], where: str
    ) -> tuple[str, ...]:
        """Return the labels of a row's objects whose class the prompt does not name."""
        if not classes:
            return ()
        others = [i.label for i in items if i.label not in classes and (i.label or not i.ignore)]
        if others and self.other_labels == "refuse":
            cure = 'add it to "classes" of the row, or remove the object'
            if self.classes:
                cure = "add it to `task.classes`, or set task.other_labels to drop"
            raise ValueError(
                f"{where}: the label {others[0]!r} is not among the classes asked for "
                f"({names_in_words(classes)}); {cure}."
            )
        return tuple(others)

    def count_classes(self, examples: Iterable[Example]) -> ClassCounts:
        """Count the objects of each class in examples, without ignored objects."""
        objects, dropped = Counter(dict.fromkeys(self.classes, 0)), Counter[str]()
        for example in examples:
            items = example.answer.items
            objects.update(item.label for item in items if item.label and not item.ignore)
            dropped.update(example.dropped)
        return ClassCounts(objects, dropped)

    def read_shapes(self, row: Any, where: str) -> list[Instance]:
        """Read the objects of a row; with ``max_points``, their masks and simplified outlines."""
        if self.max_points is None:
            return super().read_shapes(row, where)
        _, size = read_image(row, where)
        if size is None:
            raise ValueError(
                f"{where}: max_points compares masks, which need the width and height of the "
                "image; add both to the row."
            )
        found = read_instances(row, where)
        check_masks(found, *size, f"{where}: ")
        items = []
        for i, item in enumerate(found.items):
            segmented = _segmented(item, size[::-1], self.max_points, f"{where}, instances.{i}")
            if segmented is not None:
                items.append(segmented)
        return items

    def allows(self, answer: Instances, frame: Frame | None = None) -> bool:
        """Return True if all objects have the shape and a class of the task, in the image."""
        are_classes = not self.classes or all(i.label in self.classes for i in answer.items)
        return are_classes and super().allows(answer, frame)

    def moved_answer(self, answer: Instances) -> Instances:
        """Reorder the corners of outlines to begin with the topmost corner again."""
        if self.max_points is None:
            return super().moved_answer(answer)
        items = (replace(i, shape=from_topmost(i.shape.points)) for i in answer.items)
        return replace(answer, items=tuple(items))

    def parse(self, text: str, frame: Frame | None = None) -> Instances | Unreadable:
        """Parse all shapes in a generated text.

        A shape is counted as malformed if its label has several lines or begins like JSON, unless
        the label is one of ``classes``.
        """
        found = super().parse(text, frame)
        if isinstance(found, Unreadable):
            return found
        pairs = zip(found.items, found.spans, strict=True) if found.items else ()
        kept = [(item, span) for item, span in pairs if self._is_class(item.label)]
        if len(kept) == len(found.items):
            return found
        if not kept:
            return Unreadable("a label of several lines or of JSON")
        items, spans = zip(*kept, strict=True)
        malformed = found.malformed + len(found.items) - len(kept)
        return replace(found, items=items, spans=spans, malformed=malformed)

    def _is_class(self, label: str) -> bool:
        return label in self.classes or not (label.startswith('[{"') or "\n" in label)


def _segmented(item: Instance, size: tuple[int, int], most: int, where: str) -> Instance | None:
    """Return an object with a mask and, as its shape, an outline of at most ``most`` corners.

    ``size`` is the height and width of the image. The outline of an ignored region is not
    simplified. Return None if an ignored region has no pixel.
    """
    import shapely  # imported here, because other options do not need it

    is_box = isinstance(item.shape, Box)
    if is_box and item.mask is None and not item.ignore:
        raise ValueError(
            f'{where}: max_points needs the outline of each object; give it a "polygon" or a '
            '"mask", or set `shape: box` without max_points.'
        )
    points = corners(item.shape)
    mask = item.mask or polygon_mask(points, size)
    has_pixels = any(mask.counts[1::2])
    if item.ignore:
        return replace(item, shape=Polygon(points), mask=mask) if has_pixels else None
    region = mask_region(mask) if is_box else shapely.Polygon(points)
    outline = few_corners(region, most) if has_pixels else ()
    if not outline:
        raise ValueError(
            f"{where}: the object has no area that {most} corners can outline; remove the object."
        )
    return replace(item, shape=from_topmost(outline), mask=mask)


def _with_instances(row: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """Return the row; raise ValueError if it has one box, like rows of the task ``grounding``."""
    if "instances" not in row and {"box", "box_xyxy", "box_xywh"} & set(row):
        raise ValueError(
            f'{where}: the row has one "box", and detection reads the list "instances"; set '
            "`task: grounding` for rows with a phrase and one box."
        )
    return row


def _check_classes(classes: Any, where: str) -> None:
    valid = isinstance(classes, list | tuple) and all(map(is_text, classes))
    if not valid or len(set(classes)) < len(classes):
        raise ValueError(f"{where}: expected a list of different names, found {classes!r:.60}")
