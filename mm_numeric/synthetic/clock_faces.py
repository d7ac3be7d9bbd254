"""Generate images of clock faces, so that the clock task needs no data set."""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from mm_numeric.answers import ClockTime
from mm_numeric.settings import check_choices
from mm_numeric.synthetic.drawing import OVERSAMPLING, Colour, random_colour, shrunk
from mm_numeric.synthetic.generator import Drawing, NoisyGenerator, NoisyImages

GAUSSIAN, EXPONENTIAL = "gaussian", "exponential"


@dataclass(frozen=True, kw_only=True)
class Clocks(NoisyGenerator, NoisyImages):
    """Clock faces with random times, colours, hands and numerals: rows of the task ``clock``."""

    noise = ("noise_minutes", "noise_distribution", "outliers")

    name: str = "clocks"
    image_noise: float = 0.03

    size_px: int = 56
    """Width and height of the image."""

    rotation_degrees: float = 4.0
    """Maximum rotation of a dial, clockwise or counterclockwise; 6 degrees are one minute."""

    noise_minutes: float = 0.0
    """Size of the noise, in minutes, that is added to the times of the rows: the standard deviation
    if it is Gaussian, the mean if it is exponential."""

    noise_distribution: str = GAUSSIAN
    """Distribution of the noise: ``gaussian``, or ``exponential``, which is never negative: the
    times are late."""

    outliers: float = 0.0
    """Share of the rows, 0 to 1, whose time is replaced by a random time on the dial."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size_px < 16 or self.rotation_degrees < 0:
            raise ValueError(
                "size_px must be at least 16 and rotation_degrees at least 0, not "
                f"{self.size_px} and {self.rotation_degrees}"
            )
        if not 0 <= self.noise_minutes <= 360:
            raise ValueError(f"noise_minutes is 0 to 360, not {self.noise_minutes}")
        if not 0 <= self.outliers <= 1:
            raise ValueError(f"outliers is 0 to 1, not {self.outliers}")
        check_choices(self, noise_distribution=(GAUSSIAN, EXPONENTIAL))

    @property
    def has_noise(self) -> bool:
        """Return True if the times of the rows have noise."""
        return bool(self.noise_minutes or self.outliers)

    def drawings(self) -> Iterator[Drawing]:
        """For each index, yield an image of a clock with a random time, and its row."""
        times = random.Random(f"times:{self.seed}")
        for i in range(self.rows):
            time = ClockTime.from_minutes(times.randrange(720))
            yield draw_face(time, random.Random(f"{self.seed}:{i}"), self), {"time": str(time)}

    def with_label_noise(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return a copy of a row with noise added to its time."""
        if not self.has_noise:
            return row
        rng, shift = random.Random(f"{self.noise_seed}:{row['id']}"), 0.0
        minutes = ClockTime(*map(int, row["time"].split(":"))).minutes
        if self.noise_minutes and self.noise_distribution == GAUSSIAN:
            shift = rng.gauss(0, self.noise_minutes)
        elif self.noise_minutes:
            shift = rng.expovariate(1 / self.noise_minutes)
        if rng.random() < self.outliers:
            minutes = rng.randrange(720)
        return {**row, "time": str(ClockTime.from_minutes(minutes + round(shift)))}

    def describe(self) -> str:
        """Describe the label noise, for a report."""
        noise = []
        if self.noise_minutes:
            kind = "Gaussian" if self.noise_distribution == GAUSSIAN else self.noise_distribution
            noise.append(f"with {kind} noise of {self.noise_minutes:g} minutes")
        if self.outliers:
            noise.append(f"{100 * self.outliers:g} % of them random times")
        return f"labels {', '.join(noise)}" if noise else "clean labels"


def draw_face(time: ClockTime, rng: random.Random, settings: Clocks) -> Image.Image:
    """Draw a clock that shows ``time``; ``rng`` determines colours, hands and numerals."""
    size = settings.size_px * OVERSAMPLING
    light, ink = random_colour(rng, 195, 255), random_colour(rng, 0, 80)
    dial, marks = (ink, light) if rng.random() < 0.3 else (light, ink)
    image = Image.new("RGB", (size, size), random_colour(rng, 40, 230))
    face = _Face(
        draw=ImageDraw.Draw(image),
        radius=size * rng.uniform(0.42, 0.48),
        x=size * rng.uniform(0.48, 0.52),
        y=size * rng.uniform(0.48, 0.52),
        tilt=math.radians(rng.uniform(-settings.rotation_degrees, settings.rotation_degrees)),
    )
    face.disc(1.0, dial, rim=rng.uniform(0.02, 0.08), rim_colour=random_colour(rng, 0, 255))
    face.ticks(rng.choice([0, 4, 12, 60]), marks)
    numerals = rng.choice([(), (12, 3, 6, 9), tuple(range(1, 13))])
    face.numerals(numerals, marks, height=rng.uniform(0.16, 0.24))
    own_colour = random_colour(rng, 120, 255) if dial == ink else random_colour(rng, 0, 130)
    hands = marks if rng.random() < 0.6 else own_colour
    turn = 2 * math.pi
    face.hand(turn * time.minutes / 720, rng.uniform(0.42, 0.54), rng.uniform(0.08, 0.13), hands)
    face.hand(turn * time.minute / 60, rng.uniform(0.74, 0.88), rng.uniform(0.045, 0.075), hands)
    face.disc(0.06, hands)
    return shrunk(image, (settings.size_px, settings.size_px), settings.image_noise, rng)


@dataclass(frozen=True)
class _Face:
    """A clock dial. Angles are in radians clockwise from twelve, lengths in units of its radius."""

    draw: ImageDraw.ImageDraw
    radius: float
    x: float
    y: float
    tilt: float

    def at(self, angle: float, distance: float) -> tuple[float, float]:
        """Convert an angle and a distance from the centre to x and y in pixels."""
        angle, length = angle + self.tilt, distance * self.radius
        return self.x + length * math.sin(angle), self.y - length * math.cos(angle)

    def disc(
        self, radius: float, colour: Colour, rim: float = 0.0, rim_colour: Colour | None = None
    ) -> None:
        """Draw a filled disc around the centre, with an optional rim."""
        r = radius * self.radius
        box = (self.x - r, self.y - r, self.x + r, self.y + r)
        self.draw.ellipse(box, fill=colour, outline=rim_colour, width=round(rim * self.radius))

    def ticks(self, count: int, colour: Colour) -> None:
        """Draw ``count`` tick marks; if there are 60, every fifth is longer."""
        for i in range(count):
            angle, hour = 2 * math.pi * i / count, count < 60 or i % 5 == 0
            start, width = (0.82, 0.03) if hour else (0.88, 0.015)
            self._line(angle, start, 0.92, width, colour)

    def numerals(self, numerals: tuple[int, ...], colour: Colour, height: float) -> None:
        """Write the hours around the dial."""
        if not numerals:
            return
        font = ImageFont.load_default(size=height * self.radius)
        for n in numerals:
            position = self.at(2 * math.pi * n / 12, 0.72)
            self.draw.text(position, str(n), fill=colour, font=font, anchor="mm")

    def hand(self, angle: float, length: float, width: float, colour: Colour) -> None:
        """Draw a clock hand, with a short tail on the other side of the centre."""
        self._line(angle, -0.11, length, width, colour)

    def _line(self, angle: float, start: float, end: float, width: float, colour: Colour) -> None:
        pixels = max(1, round(width * self.radius))
        self.draw.line([self.at(angle, start), self.at(angle, end)], fill=colour, width=pixels)
