"""Find the boxes, polygons and points in a text, in any of several text formats (layouts).

A model that is asked for ``[x1, y1, x2, y2]`` may answer with JSON, and a model that is trained to
write JSON may answer with a list. The format is detected from the text. The range and the order of
the numbers cannot be detected; the frame declares them. The formats are tried in this order. The
first format in which the text contains a shape is used, even if the shape is incomplete:

1. the declared text format, if it is JSON or an action, or if the text has its special tokens;
2. box tokens and tags: ``<|box_start|>(1,2),(3,4)<|box_end|>``, ``<box>[[1, 2, 3, 4]]</box>`` ...;
3. JSON: ``[{"bbox_2d": [1, 2, 3, 4], "label": "cat"}]``, also in single quotes, with other keys;
4. the declared text format otherwise: ``cat [1, 2, 3, 4]``, ``cat (1,2),(3,4)``, also after an
   inference engine has removed its special tokens;
5. lists in brackets or parentheses: ``cat (1, 2, 3, 4)``, ``[(1, 2), (3, 4)]``.

For points, actions on a screen and point tags are tried first (``find_points``), and lists of
pairs, ``[(1, 2), (3, 4)]``, before the fourth format.
In a frame with location tokens, only location tokens are parsed. In other frames, they are ignored.
"""

import re
from collections.abc import Iterator

from mm_numeric.geometry.click_formats import ClickFormat, find_points
from mm_numeric.geometry.coordinate_formats import (
    NUMERAL,
    CoordinateFormat,
    JsonFormat,
    Reading,
    ShapeText,
)
from mm_numeric.geometry.coordinates import COORDINATE_FORMATS, JSON, Coordinates

_MARKED = [COORDINATE_FORMATS[name] for name in ("qwen_vl", "internvl", "deepseek", "glm_v")]
_BRACKETS = COORDINATE_FORMATS["brackets"]

_GROUP = re.compile(r"(?:[(\[]|<b?box>)([-0-9.,\s]*+)(?:[)\]]|</b?box>)")
_BEGUN = re.compile(r"(?:[(\[]|<b?box>)\s*+[-0-9.][-0-9.,\s]*+$")
_PAIRS = re.compile(r"\[\s*+(?:\([-0-9.,\s]*+\)[\s,]*+)++\]")  # [(1, 2), (3, 4)]
_COMMA = re.compile(r"\s*+,\s*+")
_TAG = re.compile(r"<[^<>\s]++>")
_AROUND_LABEL = " \t\"'`*[]{}():;,-"

_LOCATION_TOKEN = re.compile(r"<loc_?[0-9]{1,4}>|<\|box_start\|>\s*<[0-9]")


def find_shapes(text: str, coordinates: Coordinates, *, points: bool = False) -> Reading:
    """Find the shapes in a text. Their numbers are in the order of ``coordinates`` (xy or yx).

    With ``points``, pairs of numbers in a list are separate points: ``[(1, 2), (3, 4)]``.
    """
    form = coordinates.text
    if form.bins:
        return form.read_answer(text)
    if points and not isinstance(form, ClickFormat) and (found := find_points(text)):
        if coordinates.order == "yx":  # actions and point tags have x first
            found = tuple(shape._replace(numerals=_swapped(shape.numerals)) for shape in found)
        return Reading(found, cut=False)
    nothing = Reading((), cut=False)
    readings = _readings(text, form, points=points)
    found_first = next(
        (own for own in readings if own.cut or any(shape.numerals for shape in own.shapes)), nothing
    )
    is_point = [len(shape.numerals) == 2 for shape in found_first.shapes]
    if form.is_plain and is_point and all(is_point) and not points:
        in_pairs = read_lists(text)  # a box as [[1, 2], [3, 4]]
        return in_pairs if in_pairs.shapes else found_first
    return found_first


def _readings(text: str, form: CoordinateFormat, *, points: bool) -> Iterator[Reading]:
    """Parse a text in each format; yield the results in the order of the module docstring."""
    is_first = isinstance(form, ClickFormat | JsonFormat) or _has_tokens(text, form)
    if is_first:
        yield form.read_answer(text, points=points)
    marked = [own for own in _MARKED if own is not form and _has_tokens(text, own)]
    yield from (own.read(text, points=points) for own in marked)
    if not isinstance(form, JsonFormat):
        yield JSON.read(text, points=points)
    if marked or (points and _PAIRS.search(text)):
        yield read_lists(text, points=points)
    if not is_first:
        yield form.read_answer(text, points=points)
    yield read_lists(text, points=points)


def _has_tokens(text: str, form: CoordinateFormat) -> bool:
    return any(token in text for token in form.special_tokens)


def _swapped(numerals: tuple[str, ...]) -> tuple[str, ...]:
    pairs = zip(numerals[::2], numerals[1::2], strict=False)  # location tokens may be odd in number
    return tuple(n for x, y in pairs for n in (y, x)) + numerals[len(numerals) // 2 * 2 :]


def read_lists(text: str, *, points: bool = False) -> Reading:
    """Find lists of numbers in brackets or parentheses; the words before a list are its label.

    Four numbers are a box, and more are a polygon. Pairs with only a comma between them are one
    box or polygon, and a single pair is ignored. With ``points``, each pair is a point, except the
    arguments of a function call.
    """
    runs: list[list[re.Match[str]]] = []
    for group in _GROUP.finditer(text):
        count = len(NUMERAL.findall(group[1]))
        is_call = points and re.match(r"\w", text[group.start() - 1 : group.start()])
        if count < 2 or is_call:
            continue
        last = runs[-1][-1] if runs else None
        if (
            not points and count == 2 and last and len(NUMERAL.findall(last[1])) == 2
            and _COMMA.fullmatch(text, last.end(), group.start())
        ):  # fmt: skip
            runs[-1].append(group)
        else:
            runs.append([group])
    end = runs[-1][-1].end() if runs else 0
    begun = _BEGUN.search(text, end)
    if begun and runs and not points and _COMMA.fullmatch(text, end, begun.start()):
        runs.pop()  # the last polygon is truncated
    shapes, end = [], 0
    for run in runs:
        numerals = tuple(n for group in run for n in NUMERAL.findall(group[1]))
        label, end = _label(text[end : run[0].start()]), run[-1].end()
        if len(numerals) > 2 or points:
            shapes.append(ShapeText(numerals, label, (run[0].start(), end)))
    return Reading(tuple(shapes), cut=begun is not None)


def _label(before: str) -> str:
    """Return the last line before a shape, without tags and enclosing punctuation and quotes."""
    if "<ref>" in before:
        before = before.rpartition("<ref>")[2].partition("</ref>")[0]
    lines = _TAG.sub("", before).strip(_AROUND_LABEL + "\n").splitlines()
    return lines[-1].strip(_AROUND_LABEL) if lines else ""


def is_nothing(text: str, form: CoordinateFormat) -> bool:
    """Return True if a text is the format's answer for no shapes, or ``none`` or ``[]``."""
    others = () if form.bins else (JSON, _BRACKETS)
    return any(own.is_nothing(text) for own in (form, *others))


def has_location_tokens(text: str) -> bool:
    """Return True if a text has the location tokens of PaliGemma, Florence-2 or another model."""
    return _LOCATION_TOKEN.search(text) is not None


_READ_AS = {"xy": "with x first", "yx": "with y first"}
_KEYS = re.compile(r"""["'](bbox|bbox_2d|box_2d)["']\s*+:\s*+[\[(]""")
_WRITTEN = {"box_2d": ("yx", "Gemini and Gemma write"), "bbox_2d": ("xy", "Qwen writes")}


def key_notes(text: str, coordinates: Coordinates) -> list[tuple[str, bool]]:
    """Return pairs (note on how an ambiguous key of boxes was parsed, True if likely a mistake).

    Models write ``box_2d`` with y first and ``bbox_2d`` with x first; ``bbox`` is x, y, width and
    height in COCO files. Here, the frame declares the order, and a box is always two corners.
    """
    if coordinates.bins:
        return []
    notes, order = [], coordinates.order
    for key in sorted(set(_KEYS.findall(text))):
        own, who = _WRITTEN.get(key, ("", ""))
        if not own:
            notes.append((f"{key!r} is read as two corners, not as x, y, width, height", False))
        elif own != order:
            remedy = f"set order: {own} in the coordinates of the frame if they are right"
            if own == "yx":
                remedy += " (--frame gemma3 for 0 to 1000)"
            notes.append((f"{key!r} is read {_READ_AS[order]}, as the frame declares, and {who} it "
                          f"{_READ_AS[own]}; {remedy}", True))  # fmt: skip
    return notes
