r"""Regular expressions of the answers that a frame can write: coordinates, boxes, polygons, lists.

    0.25 (a coordinate from 0 to 1 with two decimals)  ->  (?:0\.[0-9][0-9]|1\.00)

The expressions use a small syntax that means the same in Python's ``re``, in vLLM's structured
outputs and in automaton libraries: literals, classes of ASCII characters, ``(?:...)``, ``|`` and
quantifiers. They describe whole texts, without anchors, lookaround or backreferences.
"""

import re
from functools import cache

from mm_numeric.geometry.click_formats import MolmoFormat
from mm_numeric.geometry.coordinate_formats import CoordinateFormat
from mm_numeric.geometry.coordinates import Coordinates
from mm_numeric.geometry.frames import Frame

LABEL_LENGTH = 80
"""Largest number of characters of a label in a list."""

ANY = r"[^\x00-\x08\x0b\x0c\x0e-\x1f\x7f]"
"""Any character except control characters; line breaks and tabs are allowed."""

_CONTROLS = r"\x00-\x1f\x7f"
_Ranges = tuple[tuple[int, int], tuple[int, int]]


def escape(text: str) -> str:
    """Return a regular expression that matches this text only."""
    return re.sub(r"[\\.^$*+?()\[\]{}|]", r"\\\g<0>", text)


def number_regex(low: int, high: int, decimals: int = 0) -> str:
    """Return a regular expression of the numbers from ``low`` to ``high``, without leading zeros.

    Args:
        low: Smallest number, at least 0, without its decimal point: 50 for 0.50.
        high: Largest number, without its decimal point.
        decimals: Number of digits after the decimal point.
    """
    if not 0 <= low <= high:
        raise ValueError(
            f"number_regex: a range begins at 0 or later and ends later: {low}, {high}"
        )
    found = []
    for length in range(decimals + 1, max(len(str(high)), decimals + 1) + 1):
        first = max(low, 10 ** (length - 1) if length > decimals + 1 else 0)
        last = min(high, 10**length - 1)
        if first <= last:
            found.append(
                _between(_digits(first, length, decimals), _digits(last, length, decimals))
            )
    return _either(found)


def level_regex(coordinates: Coordinates, low: int, high: int) -> str:
    """Return a regular expression of the coordinates from ``low`` to ``high`` as texts.

    ``low`` and ``high`` are integers without decimal point, such as 499 for ``0.499``.
    """
    if coordinates.bins is None:
        return number_regex(low, high, coordinates.decimals)
    text = coordinates.text
    first, last = (f"{number:0{text.bin_digits}d}" for number in (low, high))
    is_padded = len(first) == len(last)
    number = _between(first, last) if is_padded else number_regex(low, high)
    return f"{escape(text.bin_open)}{number}>"


def box_regex(frame: Frame) -> str:
    """Return a regular expression of one box within the image, without a label.

    The corners may be in any order, because a regular expression cannot compare two numbers. Use
    ``rest_of_box`` to require the second corner to be right of and below the first.
    """
    literals = [escape(literal) for literal in _literals(frame.coordinates.text)]
    numbers = 2 * _numerals(frame.coordinates, _ranges(frame))
    return literals[0] + "".join(n + after for n, after in zip(numbers, literals[1:], strict=True))


def rest_of_box(frame: Frame, begun: str) -> str | None:
    """Return a regular expression of the rest of a box whose first corner has been written.

    The second corner is neither left of the first corner nor above it. ``begun`` ends with the
    first character after the first corner, such as ``[12, 34,``; for any other text, the result is
    None.
    """
    coordinates = frame.coordinates
    found = _first_corner(coordinates.text).fullmatch(begun)
    if not found:
        return None
    ((x, y),) = coordinates.read_numerals(found.groups())
    (_, right), (_, bottom) = _ranges(frame)
    numerals = _numerals(coordinates, ((round(x), right), (round(y), bottom)))
    after_corner, *literals = _literals(coordinates.text)[len(numerals) :]
    rest = "".join(n + escape(after) for n, after in zip(numerals, literals, strict=True))
    return escape(after_corner[1:]) + rest


def list_regex(frame: Frame, *, polygons: bool = False, labels: bool = False) -> str:
    """Return a regular expression of a list of boxes within the image; the list may be empty.

    With ``polygons``, the list may have polygons of at least three points. With ``labels``, it may
    have labels of one line and up to ``LABEL_LENGTH`` characters, except characters that enclose
    labels and shapes in this format.
    """
    text, point = frame.coordinates.text, _point(frame)
    after = f"(?:{escape(text.between_points)}{point})"
    shapes = [escape(text.open) + point + after + escape(text.close)]
    if text.points:
        shapes = [f"{point}{after}{{{text.points - 1}}}"]
    elif polygons:
        opened, closed = text.enclosing(is_box=False, is_point=False)
        shapes.append(f"{escape(opened)}{point}{after}{{2,}}{escape(closed)}")
    label = f"(?:{_label(text)})?" if labels else ""
    shape = _either(shapes)
    return _list(text, label + shape if text.label_first else shape + label)


def points_regex(frame: Frame, *, several: bool) -> str:
    """Return a regular expression of an answer with one point within the image, or no point.

    If ``several`` is True, there may be any number of points.
    """
    text = frame.coordinates.text
    if isinstance(text, MolmoFormat):
        x, y = _numerals(frame.coordinates, _ranges(frame))
        return _either([text.regex(x, y, several=several), escape(text.nothing)])
    opened, closed = text.enclosing(is_box=False, is_point=True)
    return _list(text, escape(opened) + _point(frame) + escape(closed), several=several)


def _list(text: CoordinateFormat, shape: str, *, several: bool = True) -> str:
    """Return the expression of a list of shapes, which may be empty, given that of one shape."""
    items = one = escape(text.before) + shape + escape(text.after)
    if several:
        items = f"{one}(?:{escape(text.between)}{one})*"
    return _either([escape(text.list_open) + items + escape(text.list_close), escape(text.nothing)])


def _point(frame: Frame) -> str:
    """Return an expression of the two numbers of a point, with the text that encloses them."""
    text = frame.coordinates.text
    numerals = _numerals(frame.coordinates, _ranges(frame))
    return (
        escape(text.point_open)
        + escape(text.between_numerals).join(numerals)
        + escape(text.point_close)
    )


def _numerals(coordinates: Coordinates, ranges: _Ranges) -> list[str]:
    """Return an expression of each numeral of a point whose x and y are within ``ranges``."""
    written = ranges if coordinates.order == "xy" else ranges[::-1]
    return [level_regex(coordinates, *bounds) for bounds in written]


def _ranges(frame: Frame) -> _Ranges:
    """Return the coordinates of the image's edges: (left, right) and (top, bottom)."""
    (left, top), (right, bottom) = (
        frame.encode((0, 0)), frame.encode((frame.width_px, frame.height_px)),
    )  # fmt: skip
    return (left, right), (top, bottom)


@cache
def _literals(text: CoordinateFormat) -> tuple[str, ...]:
    """Return the five texts around the four numerals of a box without a label."""
    found = [""]
    for piece in text.write([(["0"] * 4, "", True)]):
        if piece.number is None:
            found[-1] += piece.text
        else:
            found.append("")
    return tuple(found)


@cache
def _first_corner(text: CoordinateFormat) -> re.Pattern[str]:
    """Return a pattern of a box's first corner and, if there must be one, the next character."""
    literals = _literals(text)
    numeral = f"({text.bin_pattern})" if text.bins else "([0-9.]+)"
    return re.compile(
        "".join(re.escape(literal) + numeral for literal in literals[:2])
        + re.escape(literals[2][:1])
    )


def _label(text: CoordinateFormat) -> str:
    """Return a regular expression of a label, with the text that encloses it."""
    if text.quoted:
        character = rf'(?:[^"\\{_CONTROLS}]|\\["\\bfrt])'
    else:
        enclosing = (
            text.open or text.point_open, text.close or text.point_close, text.polygon_open,
            text.polygon_close, text.between, text.label_open, text.label_close,
            text.bin(0) if text.bins else "",
        )  # fmt: skip
        found = {end for t in enclosing if t and t.strip() for end in (t.strip()[0], t.strip()[-1])}
        delimiters = re.sub(r"[\]\[^-]", r"\\\g<0>", "".join(sorted(found)))
        character = f"[^{delimiters}{_CONTROLS}]"
    return f"{escape(text.label_open)}{character}{{1,{LABEL_LENGTH}}}{escape(text.label_close)}"


def _digits(number: int, length: int, decimals: int) -> str:
    digits = f"{number:0{length}d}"
    return f"{digits[:-decimals]}.{digits[-decimals:]}" if decimals else digits


def _between(low: str, high: str) -> str:
    """Return an expression of the numbers from ``low`` to ``high``, texts of the same length."""
    if not low:
        return ""
    first, last = low[0], high[0]
    if first == last:
        return escape(first) + _between(low[1:], high[1:])
    found, zeros, nines = [], re.sub("[0-9]", "0", low[1:]), re.sub("[0-9]", "9", low[1:])
    if low[1:] != zeros:
        found.append(first + _between(low[1:], nines))
        first = str(int(first) + 1)
    ends_early = high[1:] != nines
    last = str(int(last) - ends_early)
    if first <= last and int(last) >= 0:
        digit = first if first == last else f"[{first}-{last}]"
        found.append(digit + escape(nines).replace("9", "[0-9]"))
    if ends_early:
        found.append(high[0] + _between(zeros, high[1:]))
    return _either(found)


def _either(expressions: list[str]) -> str:
    return expressions[0] if len(expressions) == 1 else f"(?:{'|'.join(expressions)})"
