"""How a coordinate becomes a number in text, and back.

    position (pixels) -> level (a whole number: which step of the grid) -> numeral in the text

Everything that tools do differently is a field: what a coordinate is relative to, how fine the
steps are, whether the last one may be written, how it is rounded, what comes first. A family has
one of ``COORDINATES`` as its habit and can be told any other.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from mm_numeric.geometry.coordinate_formats import LAYOUTS, Layout


@dataclass(frozen=True, kw_only=True)
class Coordinates:
    """One way to write coordinates."""

    space: str = "seen"
    """seen: the image as the model is shown it, resized and padded; original: as the file has
    it."""

    top: int | None = None
    """What the far edge of the image is written as: 1, 999, 1000, 1023. None: its pixels."""

    decimals: int = 0
    """Digits behind the point."""

    clamp: str = "inclusive"
    """inclusive: the far edge itself can be written; exclusive: one step less is the largest."""

    rounding: str = "round"
    """round: to the nearest step; floor: down, and read back as the middle between two steps."""

    order: str = "xy"
    """xy or yx: which coordinate of a point is written first."""

    layout: str = "brackets"
    """A key of ``mm_numeric.geometry.coordinate_formats.LAYOUTS``: the text around the numbers."""

    def __post_init__(self) -> None:
        """Refuse what cannot be read back."""
        choices = {
            "space": ("seen", "original"),
            "clamp": ("inclusive", "exclusive"),
            "rounding": ("round", "floor"),
            "order": ("xy", "yx"),
            "layout": tuple(LAYOUTS),
        }
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise ValueError(
                    f"{name} is one of {', '.join(known)}, not {getattr(self, name)!r}"
                )
        if self.top is not None and not 1 <= self.top <= 1_000_000:
            raise ValueError(f"top is 1 to 1000000, or null for pixels; not {self.top}")
        if not 0 <= self.decimals <= 6:
            raise ValueError(f"decimals is 0 to 6, not {self.decimals}")
        if self.top is not None and self.top * 10**self.decimals < 2:
            raise ValueError(f"top {self.top} needs decimals: 0 and 1 alone locate nothing")
        if self.bins is not None and (self.top != self.bins - 1 or self.decimals):
            raise ValueError(
                f"layout {self.layout!r} has {self.bins} tokens: it takes top {self.bins - 1} and "
                f"no decimals, not top {self.top} and {self.decimals} decimals"
            )

    @property
    def text(self) -> Layout:
        """The text around the numbers."""
        return LAYOUTS[self.layout]

    @property
    def bins(self) -> int | None:
        """How many location tokens there are, where a coordinate is one token."""
        return self.text.bins

    def step(self, edge: float) -> float:
        """Return the pixels between two neighbouring levels of an edge that is so long."""
        return (1.0 if self.top is None else edge / self.top) / 10**self.decimals

    def largest(self, edge: float) -> int:
        """Return the largest level that is written for an edge of so many pixels."""
        return max(self._levels(edge) - (self.clamp == "exclusive"), 0)

    def level(self, position: float, edge: float) -> int:
        """Return the level of a position, clamped to the image.

        Args:
            position: In pixels of ``space``, from the near edge of the image.
            edge: How many pixels of ``space`` the image has in this direction.
        """
        steps = position / self.step(edge)
        if self.rounding == "floor":
            # A grid's own points are read back as themselves, whatever the last bit of a float.
            nearest = round(steps)
            level = nearest if abs(steps - nearest) < 1e-9 * max(1.0, steps) else int(steps // 1)
        else:
            level = round(steps)
        return min(max(level, 0), self.largest(edge))

    def position(self, level: float, edge: float) -> float:
        """Return where a level is, in pixels of ``space``: undoes ``level``.

        A level beyond the largest, as a model may write, is a position beyond the image.
        """
        middle = 0.5 if self.rounding == "floor" and level < self._levels(edge) else 0.0
        return (level + middle) * self.step(edge)

    def _levels(self, edge: float) -> int:
        """Return the level of the far edge itself."""
        return round((edge if self.top is None else self.top) * 10**self.decimals)

    def numeral(self, level: int) -> str:
        """Write a level: ``499``, ``0.499`` or ``<loc0499>``."""
        if self.bins is not None:
            return self.text.bin(level)
        return f"{level / 10**self.decimals:.{self.decimals}f}"

    def read_numeral(self, text: str) -> float:
        """Return the level of a numeral, in parts of a step where it has more decimals."""
        if self.bins is not None:
            return float(self.text.bin_level(text))
        return float(text) * 10**self.decimals


COORDINATES: Mapping[str, Coordinates] = {
    # What each family was trained to write.
    "paligemma": Coordinates(top=1023, order="yx", layout="loc"),
    "qwen2_vl": Coordinates(top=1000, layout="qwen_vl"),
    "qwen2_5_vl": Coordinates(clamp="exclusive", layout="json"),
    "qwen3_vl": Coordinates(top=1000, layout="json"),
    "llava": Coordinates(top=1, decimals=3),
    "yi_vl": Coordinates(top=999, layout="parentheses"),
    "internvl": Coordinates(top=1000, rounding="floor"),
    "gemma3": Coordinates(top=1000, order="yx", layout="json_box_2d"),
    # Neutral ones, of any family.
    "relative_1000": Coordinates(top=1000),
    "relative_999": Coordinates(top=999),
    "unit_2": Coordinates(top=1, decimals=2),
    "unit_3": Coordinates(top=1, decimals=3),
    "pixels_seen": Coordinates(),
    "pixels_original": Coordinates(space="original"),
}
"""Named ways to write coordinates: the habit of each family, and neutral ones."""
