"""Convert pixel positions to the coordinates that a model writes as text, and back.

    499.2 (position in pixels) -> 499 (coordinate as an integer) -> "0.499" (coordinate as text)

In this example, the image is 1000 pixels wide and coordinates are from 0 to 1. VLMs write
coordinates relative to the original or the resized image, and in different ranges, orders and text
formats. Each of these choices is a field of ``Coordinates``. Each model family has a default preset
from ``COORDINATES``, and can be trained with any other preset.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from functools import cache
from typing import Self

from mm_numeric.geometry.click_formats import ClickFormat, MolmoFormat
from mm_numeric.geometry.coordinate_formats import CoordinateFormat, JsonFormat
from mm_numeric.settings import check_choices

_INVERSE_TOLERANCE = 10**9  # rounding down ignores float errors up to a billionth of a value


JSON = JsonFormat(
    open='"bbox_2d": [',
    close="]",
    polygon_open='"poly_2d": [',
    single_open='"point_2d": [',
    label_open=', "label": "',
    label_close='"',
    label_first=False,
    before="{",
    after="}",
    between=", ",
    list_open="[",
    list_close="]",
    nothing="[]",
)
"""The JSON of Qwen2.5-VL and Qwen3-VL."""


def _tool(name: str, action: str) -> ClickFormat:
    """Return the format of tool calls with which Qwen2.5-VL and Qwen3-VL operate a screen."""
    begin, end = f'<tool_call>\n{{"name": "{name}", "arguments": {{"action": ', "}}\n</tool_call>"
    return ClickFormat(
        single_open=f'{begin}"{action}", "coordinate": [',
        close=f"]{end}",
        between="\n",
        nothing=f'{begin}"terminate", "status": "failure"{end}',
    )


_UI_TARS = ClickFormat(
    single_open="click(start_box='<|box_start|>(",
    close=")<|box_end|>')",
    between_numerals=",",
    between="\n\n",
    list_open="Action: ",
    nothing="Action: call_user()",
)

_FLORENCE2 = CoordinateFormat(
    polygon_open="<poly>",
    polygon_close="</poly>",
    between_numerals="",
    between_points="",
    between="",
    bins=1000,
    bin_open="<loc_",
)

COORDINATE_FORMATS: Mapping[str, CoordinateFormat] = {
    "brackets": CoordinateFormat(open="[", close="]", label_close=" "),
    "parentheses": CoordinateFormat(
        point_open="(", point_close=")", between_numerals=",", between_points=",", label_close=" "
    ),
    "qwen_vl": CoordinateFormat(
        open="<|box_start|>",
        close="<|box_end|>",
        polygon_open="<|quad_start|>",
        polygon_close="<|quad_end|>",
        point_open="(",
        point_close=")",
        between_numerals=",",
        between_points=",",
        label_open="<|object_ref_start|>",
        label_close="<|object_ref_end|>",
        between="",
    ),
    "internvl": CoordinateFormat(
        open="<box>[[",
        close="]]</box>",
        label_open="<ref>",
        label_close="</ref>",
        between="",
        within="], [",
    ),
    "deepseek": CoordinateFormat(
        open="<|det|>[[",
        close="]]<|/det|>",
        label_open="<|ref|>",
        label_close="<|/ref|>",
        between="",
        within="], [",
    ),
    "glm_v": CoordinateFormat(
        open="<|begin_of_box|>[[",
        close="]]<|end_of_box|>",
        between_numerals=",",
        between_points=",",
        label_close=" ",
        within="], [",
    ),
    "json": JSON,
    "json_box_2d": replace(JSON, open='"box_2d": [', single_open='"point": ['),
    "json_words": replace(JSON, label_open=', "text_content": "'),
    "loc": CoordinateFormat(
        between_numerals="",
        between_points="",
        label_open=" ",
        label_first=False,
        between=" ; ",
        bins=1024,
        bin_open="<loc",
        bin_digits=4,
    ),
    "location": CoordinateFormat(
        polygon_open="[",
        polygon_close="]",
        between_numerals="",
        between_points="",
        label_open=" ",
        label_first=False,
        between=" ; ",
        bins=1000,
        bin_open="<loc",
        bin_digits=4,
    ),
    "florence2": _FLORENCE2,
    "florence2_words": replace(_FLORENCE2, polygon_open=None, polygon_close=None, points=4),
    "rex_omni": CoordinateFormat(
        open="<|box_start|>",
        close="<|box_end|>",
        between_numerals="",
        between_points="",
        label_open="<|object_ref_start|>",
        label_close="<|object_ref_end|>",
        between=", ",
        within=",",
        bins=1000,
        bin_open="<",
        nothing="<|box_start|>None<|box_end|>",
    ),
    "computer_use": _tool("computer_use", "left_click"),
    "mobile_use": _tool("mobile_use", "click"),
    "pyautogui": ClickFormat(
        single_open="pyautogui.click(x=",
        close=")",
        between_numerals=", y=",
        between="\n",
        nothing="computer.terminate(status='failure')",
    ),
    "ui_tars": _UI_TARS,
    "ui_tars_point": replace(
        _UI_TARS, single_open="click(point='<point>", close="</point>')", between_numerals=" "
    ),
    "molmo": MolmoFormat(
        single_open='<point x="',
        close='"></point>',
        between_numerals='" y="',
        nothing="There are none.",
    ),
}
"""The text formats of coordinates that a config can name. To add a format, add an entry."""


@cache
def _with_tokens(text: CoordinateFormat, tokens: int) -> CoordinateFormat:
    return replace(text, bins=tokens)


def integer_ratio(number: float) -> tuple[int, int]:
    """Convert the decimal digits of a float to a fraction: 0.1 to (numerator 1, denominator 10)."""
    if number == int(number):
        return int(number), 1
    return Decimal(repr(float(number))).as_integer_ratio()


@dataclass(frozen=True, kw_only=True)
class Coordinates:
    """How a model writes coordinates, such as ``[0.25, 0.5]`` or ``<loc0256><loc0512>``."""

    space: str = "resized"
    """The reference image: ``resized`` (after resizing and padding) or ``original``."""

    max_value: int | None = None
    """Coordinate of the right and bottom edge: 1 to 1,000,000, usually 1, 999, 1000 or 1023. None:
    coordinates are in pixels."""

    decimals: int = 0
    """Number of digits after the decimal point, 0 to 6."""

    clamp: str = "inclusive"
    """``inclusive``: the largest coordinate is at the right or bottom edge. ``exclusive``: the
    largest coordinate is one grid step before the edge."""

    rounding: str = "round"
    """``round``: round positions to the nearest grid step. ``floor``: round down, and read a
    coordinate as the centre of its step."""

    order: str = "xy"
    """Order of the two coordinates of a point: ``xy`` or ``yx``."""

    format: str = "brackets"
    """Text around the numbers: a name in ``COORDINATE_FORMATS``."""

    tokens: int | None = None
    """Number of location tokens, 3 to 10,000: 1000 for ``<loc0000>`` to ``<loc0999>``. Missing
    tokens are added to the tokenizer and the model. The default ``format`` is then ``location``,
    and the default ``max_value`` the number of the last token. null: add no tokens."""

    def __post_init__(self) -> None:
        check_choices(
            self,
            space=("resized", "original"),
            clamp=("inclusive", "exclusive"),
            rounding=("round", "floor"),
            order=("xy", "yx"),
            format=COORDINATE_FORMATS,
        )
        if self.tokens is not None:
            self._check_tokens(self.tokens)
        if self.max_value is not None and not 1 <= self.max_value <= 1_000_000:
            raise ValueError(f"max_value is 1 to 1000000, or null for pixels; not {self.max_value}")
        if not 0 <= self.decimals <= 6:
            raise ValueError(f"decimals is 0 to 6, not {self.decimals}")
        if self.max_value is not None and self.max_value * 10**self.decimals < 2:
            raise ValueError(f"max_value {self.max_value} needs decimals to have three values")
        if isinstance(self.text, ClickFormat) and self.order != "xy":
            raise ValueError(f"format {self.format!r} writes x before y; set order to xy")
        last = (self.bins or 0) - 1
        if self.bins is not None and (
            self.max_value is None or self.decimals or self.largest(1) != last
        ):
            raise ValueError(
                f"format {self.format!r} has coordinates from 0 to {last} and requires max_value "
                f"{last}, or {last + 1} with clamp exclusive, and no decimals, not max_value "
                f"{self.max_value} with clamp {self.clamp} and {self.decimals} decimals"
            )

    def _check_tokens(self, tokens: int) -> None:
        fit = [name for name, own in COORDINATE_FORMATS.items() if own.bins]
        if not 3 <= tokens <= 10_000:
            raise ValueError(f"tokens is 3 to 10000, not {tokens}")
        if self.format not in fit:
            raise ValueError(
                f"tokens needs a format whose coordinates are tokens, {', '.join(fit)}, not "
                f"{self.format!r}; set format, or remove preset and format"
            )

    @property
    def text(self) -> CoordinateFormat:
        """Return the text format of boxes, polygons and points, such as JSON."""
        found = COORDINATE_FORMATS[self.format]
        return found if self.tokens is None else _with_tokens(found, self.tokens)

    @property
    def of_words(self) -> Self:
        """Return these coordinates in a text format for words with their transcriptions.

        ``json`` and ``florence2`` have a variant for words. Other formats are replaced by JSON if
        they do not enclose labels, because a transcription may contain digits and brackets.
        """
        name = {"json": "json_words", "florence2": "florence2_words"}.get(self.format)
        if name is None and self.bins is None and not self.text.label_open.strip():
            name = "json_words"
        return replace(self, format=name) if name else self

    @property
    def bins(self) -> int | None:
        """Return the number of location tokens, or None if coordinates are written with digits."""
        return self.text.bins

    def step(self, edge: float) -> float:
        """Return the pixels per coordinate step: 0.5 for coordinates 0 to 1000 on 500 pixels."""
        return (1.0 if self.max_value is None else edge / self.max_value) / 10**self.decimals

    def largest(self, edge: float) -> int:
        """Return the largest allowed coordinate, without its decimal point: 999 for 0.999."""
        return max(self._levels(edge) - (self.clamp == "exclusive"), 0)

    def steps_per_px(self, edge: int) -> Fraction:
        """Return the coordinate steps per pixel: 2 for coordinates 0 to 1000 on 500 pixels."""
        per_px = Fraction(1) if self.max_value is None else Fraction(self.max_value, edge)
        return per_px * 10**self.decimals

    def rounded(self, numerator: int, denominator: int, edge: int) -> int:
        """Round the coordinate ``numerator / denominator`` to an integer.

        ``edge`` is the image's width or height in pixels. The result is clamped to the image. With
        ``rounding: round``, 2.5 is rounded to the even number 2, as by Python's ``round``.
        """
        if self.rounding != "round":
            return self._clamped(self._floor(numerator, denominator), edge)
        level, rest = divmod(numerator, denominator)
        level += 2 * rest > denominator or (2 * rest == denominator and level % 2)
        return self._clamped(level, edge)

    def _clamped(self, level: int, edge: int) -> int:
        return min(max(level, 0), self.largest(edge))

    @staticmethod
    def _floor(numerator: int, denominator: int) -> int:
        level, rest = divmod(numerator, denominator)
        # A rounded sum of floats, such as x + width, may be a little below a whole number.
        gap = denominator - rest
        return level + (gap * _INVERSE_TOLERANCE < max(denominator, abs(numerator)))

    def position(self, level: float, edge: float) -> float:
        """Convert an integer coordinate, such as 499 for 0.499, to a position in pixels.

        The position is in pixels of the original or the resized image, depending on ``space``.
        ``edge`` is the image's width or height. The result is not clamped, so it may be outside the
        image.
        """
        middle = 0.5 if self.rounding != "round" and level < self._levels(edge) else 0.0
        return (level + middle) * self.step(edge)

    def _levels(self, edge: float) -> int:
        """Return the right or bottom edge's coordinate, without decimal point: 1000 for 1.000."""
        return round((edge if self.max_value is None else self.max_value) * 10**self.decimals)

    def numeral(self, level: int) -> str:
        """Format an integer coordinate, such as 499, as ``499``, ``0.499`` or ``<loc0499>``."""
        if self.bins is not None:
            return self.text.bin(level)
        return f"{level / 10**self.decimals:.{self.decimals}f}"

    def read_numeral(self, text: str) -> float:
        """Parse a coordinate and remove its decimal point: 499.0 for ``0.499`` or ``<loc0499>``."""
        if self.bins is not None:
            return float(self.text.bin_number(text))
        return float(text) * 10**self.decimals

    def numerals(self, levels: Iterable[tuple[int, int]]) -> list[str]:
        """Format points, given as integer coordinates (x, y), in the order of the text."""
        axes = (0, 1) if self.order == "xy" else (1, 0)
        return [self.numeral(point[axis]) for point in levels for axis in axes]

    def read_numerals(self, texts: Iterable[str]) -> list[tuple[float, float]]:
        """Parse the coordinates of points; return (x, y) of each, without decimal points."""
        found = [self.read_numeral(text) for text in texts]
        pairs = zip(found[::2], found[1::2], strict=True)
        return [(a, b) if self.order == "xy" else (b, a) for a, b in pairs]


COORDINATES: Mapping[str, Coordinates] = {
    # The coordinates that models of each family were pretrained with.
    "paligemma": Coordinates(max_value=1023, order="yx", format="loc"),
    "qwen2_vl": Coordinates(max_value=1000, format="qwen_vl"),
    "qwen2_5_vl": Coordinates(clamp="exclusive", format="json"),
    "qwen3_vl": Coordinates(max_value=1000, format="json"),
    "llava": Coordinates(max_value=1, decimals=3),
    "yi_vl": Coordinates(max_value=999, format="parentheses"),
    "internvl": Coordinates(max_value=1000, rounding="floor", format="internvl"),
    "deepseek": Coordinates(max_value=999, format="deepseek"),
    "glm_v": Coordinates(max_value=1000, format="glm_v"),
    "gemma3": Coordinates(max_value=1000, order="yx", format="json_box_2d"),
    "florence2": Coordinates(
        max_value=1000, clamp="exclusive", rounding="floor", format="florence2"
    ),
    "rex_omni": Coordinates(max_value=999, format="rex_omni"),
    # Presets for models of any family.
    "relative_1000": Coordinates(max_value=1000),
    # Like qwen2_vl, but without special tokens.
    "qwen2_vl_plain": Coordinates(max_value=1000, format="parentheses"),
    "relative_999": Coordinates(max_value=999),
    "percent": Coordinates(max_value=100, decimals=1),
    "unit_2": Coordinates(max_value=1, decimals=2),
    "unit_3": Coordinates(max_value=1, decimals=3),
    "pixels_resized": Coordinates(),
    "pixels_original": Coordinates(space="original"),
}
"""Maps the name of each preset to its coordinates."""
