"""Where the model sees a picture: original pixels to the pixels it is shown, and back.

A frame belongs to one picture and one family. It is declared by the family, never guessed from
coordinates. Pixels are continuous: (0, 0) is the outer corner of the first pixel, (width, height)
that of the last.
"""

import math
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True)
class Frame:
    """How one picture was resized: ``seen = original * scale + offset``, in each direction."""

    width_px: int
    """Of the picture as the model sees it, padding included."""

    height_px: int
    scale_x: float
    scale_y: float
    offset_x_px: float = 0.0
    """What was padded on the left, in pixels as seen."""

    offset_y_px: float = 0.0

    def to_seen(self, x: float, y: float) -> tuple[float, float]:
        """Return where a point of the original picture is seen."""
        return x * self.scale_x + self.offset_x_px, y * self.scale_y + self.offset_y_px

    def to_original(self, x: float, y: float) -> tuple[float, float]:
        """Return which point of the original picture is seen here: undoes ``to_seen``."""
        return (x - self.offset_x_px) / self.scale_x, (y - self.offset_y_px) / self.scale_y

    @classmethod
    def squash(cls, width: int, height: int, seen_width: int, seen_height: int) -> Self:
        """Resize to a fixed size, whatever becomes of the aspect ratio."""
        return cls(seen_width, seen_height, seen_width / width, seen_height / height)

    @classmethod
    def letterbox(cls, width: int, height: int, side: int) -> Self:
        """Pad to a square with the picture in its middle, then resize the square (LLaVA)."""
        scale = side / max(width, height)
        left, top = ((max(width, height) - edge) // 2 * scale for edge in (width, height))
        return cls(side, side, scale, scale, left, top)

    @classmethod
    def smart_resize(
        cls, width: int, height: int, *, factor: int, min_pixels: int, max_pixels: int
    ) -> Self:
        """Resize to multiples of a factor, between two numbers of pixels (Qwen2-VL and later).

        The rule is that of ``smart_resize`` in transformers' Qwen2-VL image processor.

        Raises:
            ValueError: If the picture is more than 200 times as long as it is wide.
        """
        if max(width, height) > 200 * min(width, height):
            raise ValueError(f"a picture of {width} x {height} pixels is too long to be resized")
        edges = (width, height)
        seen = [round(edge / factor) * factor for edge in edges]
        if seen[0] * seen[1] > max_pixels:
            shrink = math.sqrt(width * height / max_pixels)
            seen = [max(factor, math.floor(edge / shrink / factor) * factor) for edge in edges]
        elif seen[0] * seen[1] < min_pixels:
            grow = math.sqrt(min_pixels / (width * height))
            seen = [math.ceil(edge * grow / factor) * factor for edge in edges]
        return cls.squash(width, height, *seen)
