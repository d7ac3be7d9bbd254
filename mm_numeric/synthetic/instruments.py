"""Generate images of measuring instruments: thermometers, gauges, speedometers and rulers.

Each instrument has numerals, tick marks and one of two units, such as °C and °F.
"""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import partial

from PIL import Image, ImageDraw, ImageFont

from mm_numeric.answers import Point
from mm_numeric.registry import unknown
from mm_numeric.synthetic.drawing import OVERSAMPLING, Colour, random_colour, shrunk
from mm_numeric.synthetic.generator import Drawing, NoisyImages

_HANDS: tuple[Colour, ...] = ((214, 40, 40), (38, 84, 210), (42, 157, 70), (190, 110, 20))


@dataclass(frozen=True)
class _Scale:
    question: str
    unit: str
    low: int
    high: int
    decimals: int
    """Number of decimals of a reading: readings have steps of 10 ** -decimals."""

    numerals: int
    """Difference between two numerals on the scale."""


_PRESSURE = "What pressure does the gauge show?"
_SPEED = "What speed does the speedometer show?"
_TEMPERATURE = "What temperature does the thermometer show?"
_LENGTH = "How long is the bar on the ruler?"
INSTRUMENTS = {
    "gauge": (_Scale(_PRESSURE, "bar", 0, 10, 1, 2), _Scale(_PRESSURE, "psi", 0, 150, 0, 50)),
    "ruler": (_Scale(_LENGTH, "cm", 0, 15, 1, 5), _Scale(_LENGTH, "in", 0, 6, 1, 2)),
    "speedometer": (_Scale(_SPEED, "km/h", 0, 240, 0, 60), _Scale(_SPEED, "mph", 0, 120, 0, 40)),
    "thermometer": (
        _Scale(_TEMPERATURE, "°C", -20, 50, 0, 10),
        _Scale(_TEMPERATURE, "°F", 0, 120, 0, 20),
    ),
}
"""Maps the name of an instrument to the two scales that it may have."""


@dataclass(frozen=True, kw_only=True)
class Instruments(NoisyImages):
    """Measuring instruments with random colours and scales: rows of the task ``measurement``."""

    name: str = "instruments"

    instruments: tuple[str, ...] = tuple(INSTRUMENTS)
    """Instruments to draw; all are equally likely."""

    size_px: int = 112
    """Width and height of the image."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.instruments:
            if name not in INSTRUMENTS:
                raise unknown(name, INSTRUMENTS, "instrument", "instruments")
        if not self.instruments or self.size_px < 48:
            raise ValueError(
                "instruments names at least one and size_px is at least 48, not "
                f"{list(self.instruments)} and {self.size_px}"
            )

    def draw(self, rng: random.Random) -> Drawing:
        """Return an instrument, and the question about it with its reading."""
        name = rng.choice(self.instruments)
        scale = rng.choice(INSTRUMENTS[name])
        steps = 10**scale.decimals
        lowest = 1 if name == "ruler" else scale.low * steps  # no bar has length 0
        reading = Fraction(rng.randint(lowest, scale.high * steps), steps)
        row = {
            "question": scale.question,
            "answer": f"{float(reading):.{scale.decimals}f}",
            "unit": scale.unit,
            "range": [scale.low, scale.high],
            "instrument": name,
        }
        return draw_instrument(name, scale, float(reading), rng, self), row


def draw_instrument(
    name: str, scale: _Scale, reading: float, rng: random.Random, settings: Instruments
) -> Image.Image:
    """Draw an instrument that shows ``reading``; ``rng`` determines the colours and the tilt."""
    size = settings.size_px * OVERSAMPLING
    light, ink = random_colour(rng, 200, 255), random_colour(rng, 0, 60)
    if rng.random() < 0.3:
        light, ink = ink, light
    image = Image.new("RGB", (size, size), light)
    pen = _Pen(ImageDraw.Draw(image), size, scale, ink, rng.choice(_HANDS))
    _DRAWN[name](pen, (reading - scale.low) / (scale.high - scale.low), rng)
    return shrunk(image, (settings.size_px, settings.size_px), settings.image_noise, rng)


@dataclass(frozen=True)
class _Pen:
    """Draws in units of the image width: (0, 0) is the top left corner, (1, 1) the bottom right."""

    draw: ImageDraw.ImageDraw
    size: int
    scale: _Scale
    ink: Colour
    hand: Colour

    def line(self, start: Point, end: Point, width: float, colour: Colour) -> None:
        points = [(x * self.size, y * self.size) for x, y in (start, end)]
        self.draw.line(points, fill=colour, width=max(1, round(width * self.size)))

    def text(self, at: Point, text: str, height: float = 0.09) -> None:
        font = ImageFont.load_default(size=height * self.size)
        place = at[0] * self.size, at[1] * self.size
        self.draw.text(place, text, fill=self.ink, font=font, anchor="mm")

    def ticks(self, at: Callable[[float, float], Point]) -> None:
        """Draw the tick marks and numerals; ``at(fraction, distance)`` is a point of the scale."""
        low, high, step = self.scale.low, self.scale.high, self.scale.numerals
        for tick in range(5 * (high - low) // step + 1):
            value = low + step * tick / 5
            long = tick % 5 == 0
            part = (value - low) / (high - low)
            self.line(at(part, 0), at(part, 0.06 if long else 0.03), 0.008, self.ink)
            if long:
                self.text(at(part, 0.12), f"{value:g}")


def _dial(pen: _Pen, part: float, rng: random.Random, *, degrees: float, centre_y: float) -> None:
    """Draw a dial with a scale of ``degrees``, and its hand at the fraction ``part``."""
    radius, tilt, sweep = 0.42, rng.uniform(-0.06, 0.06), math.radians(degrees)

    def at(fraction: float, distance: float) -> Point:
        angle = tilt + sweep * (fraction - 0.5)
        length = radius - distance
        return 0.5 + length * math.sin(angle), centre_y - length * math.cos(angle)

    pen.ticks(at)
    pen.text((0.5, centre_y + 0.2), pen.scale.unit)
    pen.line((0.5, centre_y), at(part, 0.08), 0.03, pen.hand)


def _thermometer(pen: _Pen, part: float, rng: random.Random) -> None:
    x, top, bottom = rng.uniform(0.35, 0.45), 0.12, 0.85

    def at(fraction: float, distance: float) -> Point:
        return x + 0.05 + 1.3 * distance, bottom - fraction * (bottom - top)

    pen.ticks(at)
    pen.text((x - 0.2, 0.2), pen.scale.unit)
    for width, fill, fraction in ((0.08, pen.ink, 1.0), (0.06, (250, 250, 250), 1.0)):
        pen.line((x, bottom + 0.06), (x, at(fraction, 0)[1]), width, fill)
    pen.line((x, bottom + 0.06), (x, at(part, 0)[1]), 0.06, pen.hand)


def _ruler(pen: _Pen, part: float, rng: random.Random) -> None:
    left, right, y = 0.08, 0.92, rng.uniform(0.45, 0.6)

    def at(fraction: float, distance: float) -> Point:
        return left + fraction * (right - left), y + distance

    pen.ticks(at)
    pen.line((0.02, y), (0.98, y), 0.01, pen.ink)
    pen.text((0.5, y + 0.25), pen.scale.unit)
    pen.line((left, y - 0.08), (at(part, 0)[0], y - 0.08), 0.1, pen.hand)


_DRAWN: dict[str, Callable[[_Pen, float, random.Random], None]] = {
    "gauge": partial(_dial, degrees=270, centre_y=0.5),
    "ruler": _ruler,
    "speedometer": partial(_dial, degrees=200, centre_y=0.58),
    "thermometer": _thermometer,
}
