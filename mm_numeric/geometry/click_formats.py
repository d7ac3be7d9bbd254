"""Text formats of clicks: tool calls, Python calls and point tags of models that operate screens.

    {"name": "computer_use", "arguments": {"action": "left_click", "coordinate": [320, 120]}}
    pyautogui.click(x=0.5, y=0.25)
    click(start_box='(500,250)')
    <point x="50.0" y="25.0" alt="OK">OK</point>

``find_points`` parses all these formats. The frame, not the text, determines the unit of numbers.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from mm_numeric.geometry.coordinate_formats import CoordinateFormat, Piece, Reading, ShapeText

_NUMBER = r"-?(?:[0-9]++(?:\.[0-9]++)?|\.[0-9]++)"
_NUMBERS = re.compile(_NUMBER)

_CLICK = (
    r"(?:left|right|middle|double|triple|mouse)?_?click(?:_at)?"  # ignoring case, as in doubleClick
    r"|left_double|right_single|tap|long_?press"
)
_MOVE = r"move_?to|mouse_?move|hover(?:_at)?|drag(?:_?to)?"

_CLICK_NAME = re.compile(_CLICK, re.IGNORECASE)

_ACTION = re.compile(
    r'(?:"name"\s*:\s*"(?P<name>\w*)"\s*,\s*"arguments"\s*:\s*)?'
    r'\{(?P<object>(?:[^{}"\\]|"(?:[^"\\]|\\.)*+")*+)\}'
    rf"|\b(?P<function>{_CLICK}|{_MOVE})\((?P<arguments>[^()]*+(?:\([^()]*+\)[^()]*+)*+)\)",
    re.IGNORECASE | re.DOTALL,
)
"""A JSON object without other objects in it, or a call of a function that moves the pointer.

An object must not have a backslash outside of strings. Otherwise the search from each brace could
scan the same string again, and the time would not be linear in the text's length.
"""

_FIELD = re.compile(
    r"""["'](action|coordinate|point)["']\s*:\s*(?:["'](\w*)["']|\[([^\[\]]*+)\])"""
)
_KEYWORD = re.compile(r"\b([A-Za-z_]\w*+)\s*+=")
_AROUND = " \t\n'\"[](),"  # characters that may enclose a number in an argument
_BOX_ARGUMENTS = ("start_box", "point", "start_point", "box")

_TAGS = re.compile(
    rf"""\bx[0-9]*+=["']\s*({_NUMBER})\s*["']\s+y[0-9]*+=["']\s*({_NUMBER})\s*["']"""
    rf"|<point>[\s\[(]*+({_NUMBER})[\s,]++({_NUMBER})[\s\])]*+</point>"
)
_COORDS = re.compile(r'\bcoords="([0-9\t:;, .]*+)"')
_INDEXED_POINT = re.compile(r"(?<![0-9.])[0-9]{1,9} ([0-9]{3,4}) ([0-9]{3,4})(?![0-9.])")
_TOKENS = re.compile(r"(?:<[0-9]{1,3}>){2,}+")


def find_points(text: str) -> tuple[ShapeText, ...]:
    """Find the points of actions on a screen and of point tags in a text.

    These formats are parsed, wherever they are in the text:

    - tool calls ``computer_use`` and ``mobile_use`` of Qwen2.5-VL and Qwen3-VL, and other JSON
      objects with ``coordinate``, or with ``action`` and ``point``;
    - ``pyautogui.click(x=1, y=2)`` and other functions that click or move, also with positional
      arguments, ``start_box='(1,2)'`` or ``point='<point>1 2</point>'`` as in UI-TARS;
    - ``<point>1 2</point>``, ``<point x="1" y="2">`` and ``<points x1="1" y1="2" x2="3" ...>`` of
      Molmo, and ``<points coords="1 1 100 200">`` of Molmo2;
    - the location tokens ``<1><2>`` of Rex-Omni.

    Returns points (x, y), or boxes (x1, y1, x2, y2), whose centres are clicked. If some actions are
    clicks and others are not, only the clicks are returned. A click without a point is at the point
    of the action before it.
    """
    plain = text.replace('\\"', ' "')  # in OpenAI's API, the arguments are JSON within a string
    for read, written in ((_actions, text), (_actions, plain), (_tags, text), (_tokens, text)):
        if points := tuple(read(written)):
            return points
    return ()


def _actions(text: str) -> Iterable[ShapeText]:
    clicks: list[ShapeText] = []
    others: list[ShapeText] = []
    pointer: ShapeText | None = None
    for match in _ACTION.finditer(text):
        if match["function"]:
            name, numerals = match["function"], _numerals_of_call(match["arguments"])
        else:
            name, numerals = _tool_call(match["name"] or "", match["object"])
        is_click = _CLICK_NAME.fullmatch(name) is not None
        if numerals:
            pointer = ShapeText(numerals, "", match.span())
        if pointer and is_click:
            clicks.append(pointer)
            pointer = None
        elif pointer and numerals:
            others.append(pointer)
    return clicks or others


def _tool_call(name: str, fields: str) -> tuple[str, tuple[str, ...]]:
    """Return the name of an action and the numbers of its point; no numbers if it has no point."""
    texts, lists = {}, {}
    for key, word, numbers in _FIELD.findall(fields):
        texts[key], lists[key] = word, tuple(_NUMBERS.findall(numbers))
    numerals = lists.get("coordinate", ())
    if "action" in texts:
        name, numerals = texts["action"], numerals or lists.get("point", ())
    return name, numerals if len(numerals) in (2, 4) else ()


def _numerals_of_call(arguments: str) -> tuple[str, ...]:
    """Return the numbers of the point or box that a function is called with."""
    first, *rest = _KEYWORD.split(arguments)
    named = {key.lower(): value for key, value in zip(rest[::2], rest[1::2], strict=True)}
    unnamed = [*first.split(","), ""]
    point = tuple(named.get(axis, unnamed[i]).strip(_AROUND) for i, axis in enumerate("xy"))
    if all(map(_NUMBERS.fullmatch, point)):
        return point
    boxes = (tuple(_NUMBERS.findall(named.get(key, ""))) for key in _BOX_ARGUMENTS)
    return next((numerals for numerals in boxes if len(numerals) in (2, 4)), ())


def _tags(text: str) -> Iterable[ShapeText]:
    for match in _TAGS.finditer(text):
        yield ShapeText(tuple(filter(None, match.groups())), "", match.span())
    for tag in _COORDS.finditer(text):
        for match in _INDEXED_POINT.finditer(text, *tag.span(1)):
            yield ShapeText(match.groups(), "", match.span())


def _tokens(text: str) -> Iterable[ShapeText]:
    for match in _TOKENS.finditer(text):
        yield ShapeText(tuple(_NUMBERS.findall(match.group())), "", match.span())


@dataclass(frozen=True, kw_only=True)
class ClickFormat(CoordinateFormat):
    """A text format of points without labels, for the tasks ``click`` and ``pointing``."""

    def write(self, shapes: Sequence[tuple[Sequence[str], str, bool]]) -> Iterator[Piece]:
        """Yield the text of points in pieces; raise ValueError for labels, boxes and polygons."""
        if any(label or is_box or len(numerals) != 2 for numerals, label, is_box in shapes):
            raise ValueError(
                "this coordinate format has points without labels, for the tasks click and "
                "pointing; choose another format in model.coordinates for boxes and polygons"
            )
        yield from super().write(shapes)

    def is_nothing(self, text: str) -> bool:
        """Return True if a text is, or ends with, the answer for no points."""
        return super().is_nothing(text) or text.strip().endswith(self.nothing)

    def read_answer(self, text: str, *, points: bool = False) -> Reading:
        """Parse the points in an answer: actions or point tags, or else texts such as ``(1,2)``."""
        shapes = find_points(text) or self.read(text).shapes
        rest = text[shapes[-1].span[1] :] if shapes else text
        return Reading(shapes, cut=bool(self.single_open) and str(self.single_open) in rest)


class MolmoFormat(ClickFormat):
    """Points as Molmo writes them: several points are attributes of one tag."""

    def write(self, shapes: Sequence[tuple[Sequence[str], str, bool]]) -> Iterator[Piece]:
        """Yield the text of points in pieces: ``<points x1="1.0" y1="2.0" x2=...></points>``."""
        pieces = list(super().write(shapes))
        if len(shapes) < 2:
            yield from pieces
            return
        yield Piece("<points")
        for i, (numerals, _, _) in enumerate(shapes, start=1):
            for number, numeral in enumerate(numerals):
                yield Piece(f' {"xy"[number]}{i}="')
                yield Piece(numeral, number)
                yield Piece('"')
        yield Piece("></points>")

    @staticmethod
    def regex(x: str, y: str, *, several: bool) -> str:
        """Return a regular expression of one point or, if ``several``, of one or more points.

        ``x`` and ``y`` are the regular expressions of the two coordinates.
        """
        one = f'<point x="{x}" y="{y}"></point>'
        index = "[1-9][0-9]*"
        more = f'<points(?: x{index}="{x}" y{index}="{y}"){{2,}}></points>'
        return f"(?:{one}|{more})" if several else one
