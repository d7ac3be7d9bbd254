"""Generate images of straight, rotated and curved words, with a polygon around each word.

Words are drawn with Pillow's built-in font in bold, slanted, narrow and wide variants, so that
images are the same on every machine. The option ``fonts`` adds font files.
"""

import math
import random
import string
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from mm_numeric.answers import Point
from mm_numeric.synthetic.drawing import are_apart, random_colour, with_noise
from mm_numeric.synthetic.generator import Drawing, SizedImages

_LETTER_PX = 48  # font size before a word is scaled down
_EDGE_POINTS = 7  # points of a curved polygon on each long side: 14 in total, as in CTW1500
Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Words(SizedImages):
    """Images of random words: rows of the tasks ``text_detection`` and ``text_spotting``."""

    name: str = "words"

    least: int = 1
    """Minimum number of words on a page."""

    most: int = 3
    """Maximum number of words on a page."""

    letters_px: tuple[int, ...] = (14, 22)
    """Smallest and largest height of a word, in pixels."""

    rotation_degrees: float = 25.0
    """Maximum rotation of a word, clockwise or counterclockwise."""

    curved: float = 0.0
    """Fraction of words that are bent along an arc; their polygons have 14 points."""

    characters: tuple[str, ...] = (string.ascii_lowercase, string.ascii_uppercase, string.digits)
    """Sets of characters, such as ``0123456789``; each word has characters of one set."""

    length: tuple[int, ...] = (3, 7)
    """Smallest and largest number of characters of a word."""

    ignored: float = 0.0
    """Fraction of words that are drawn too faint to read and marked ``"ignore": true``."""

    fonts: tuple[str, ...] = ()
    """Paths of font files to use in addition to Pillow's font."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.least <= self.most:
            raise ValueError(f"1 <= least <= most, not {self.least} and {self.most}")
        if len(self.letters_px) != 2 or not 6 <= self.letters_px[0] <= self.letters_px[1]:
            raise ValueError(f"letters_px is [from, to], at least 6, not {list(self.letters_px)}")
        if len(self.length) != 2 or not 1 <= self.length[0] <= self.length[1]:
            raise ValueError(f"length is [from, to], at least 1, not {list(self.length)}")
        if not self.characters or not all(map(str.strip, self.characters)):
            raise ValueError(f"characters are sets such as abc, not {list(self.characters)}")
        if not (0 <= self.curved <= 1 and 0 <= self.ignored <= 1):
            raise ValueError(f"curved and ignored are 0 to 1, not {self.curved}, {self.ignored}")
        if not 0 <= self.rotation_degrees <= 90:
            raise ValueError(f"rotation_degrees is 0 to 90, not {self.rotation_degrees}")

    def draw(self, rng: random.Random) -> Drawing:
        """Return a page of random words, and the polygon and text of each word."""
        image, instances = _page(rng, self)
        return image, self.sized({"instances": instances})


@cache
def _font(path: str | None) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Open a font file; None is Pillow's built-in font."""
    if path is None:
        return ImageFont.load_default(size=_LETTER_PX)
    try:
        return ImageFont.truetype(path, _LETTER_PX)
    except OSError as error:
        raise ValueError(f"fonts: {path} is not a font ({error}).") from error


def _page(rng: random.Random, settings: Words) -> tuple[Image.Image, list[dict[str, object]]]:
    size = settings.size_px
    light = rng.random() < 0.5
    ground = np.array(random_colour(rng, *((180, 250) if light else (5, 70))), float)
    canvas = np.broadcast_to(ground, (size[1], size[0], 3)).copy()
    words: list[dict[str, object]] = []
    occupied: list[tuple[float, float, float, float]] = []
    wanted = rng.randint(settings.least, settings.most)
    for _ in range(40 * wanted):
        if len(words) == wanted:
            break
        letters = rng.choice(settings.characters)
        text = "".join(rng.choice(letters) for _ in range(rng.randint(*settings.length)))
        mask = _mask(text, rng, _font(rng.choice((None, *settings.fonts))))
        placed = _placed(mask.shape, rng, settings)
        if placed is None or not all(are_apart(placed.bounds, other) for other in occupied):
            continue
        ignore = rng.random() < settings.ignored
        occupied.append(placed.bounds)
        ink = np.array(random_colour(rng, *((0, 80) if light else (170, 255))), float)
        cover = _sampled(mask, *placed.inverse(*np.meshgrid(*(np.arange(n) + 0.5 for n in size))))
        cover *= 0.15 if ignore else 1.0  # too faint to be read
        canvas += cover[..., None] * (ink - canvas)
        polygon = [round(edge, 2) for point in placed.polygon for edge in point]
        word: dict[str, object] = {"polygon": polygon, "text": text}
        words.append({**word, "ignore": True} if ignore else word)
    return with_noise(canvas, settings.image_noise, rng), words


def _mask(
    text: str, rng: random.Random, font: ImageFont.FreeTypeFont | ImageFont.ImageFont
) -> Array:
    """Draw a word in a random variant of a font; return a mask, 0 to 1, cropped to the word."""
    stroke = rng.choice((0, 0, 2))  # bold
    left, top, right, bottom = font.getbbox(text, stroke_width=stroke)
    slant, stretch = rng.choice((0.0, 0.0, 0.25)), rng.choice((0.75, 1.0, 1.0, 1.3))
    height = round(bottom - top)
    width = round((right - left) * stretch + abs(slant) * height)
    image = Image.new("L", (round(right - left), height))
    ImageDraw.Draw(image).text((-left, -top), text, 255, font, stroke_width=stroke)
    # Pillow expects the inverse map, from the slanted, stretched word to the upright one.
    inverse = (1 / stretch, slant / stretch, -slant * height / stretch, 0, 1, 0)
    warped = image.transform(
        (width, height), Image.Transform.AFFINE, inverse, Image.Resampling.BILINEAR
    )
    ink = warped.getbbox() or (0, 0, width, height)
    return np.asarray(warped.crop(ink), dtype=np.float64) / 255


@dataclass(frozen=True)
class _PlacedWord:
    polygon: list[Point]
    """Corners of the word on the page, clockwise from its top left."""

    inverse: Callable[[Array, Array], tuple[Array, Array]]
    """Function from x and y on the page to x and y in the word's mask."""

    @property
    def bounds(self) -> tuple[float, float, float, float]:
        xs, ys = zip(*self.polygon, strict=True)
        return min(xs), min(ys), max(xs), max(ys)


def _placed(shape: tuple[int, ...], rng: random.Random, settings: Words) -> _PlacedWord | None:
    """Choose a random size, angle and position for a word; return None if it crosses the edge."""
    scale = rng.uniform(*settings.letters_px) / shape[0]
    width, height = shape[1] * scale, shape[0] * scale
    angle = math.radians(rng.uniform(-settings.rotation_degrees, settings.rotation_degrees))
    bend = rng.choice((-1, 1)) * rng.uniform(0.5, 1.2) if rng.random() < settings.curved else 0.0
    x, y = rng.uniform(0, settings.width_px), rng.uniform(0, settings.height_px)
    cosine, sine = math.cos(angle), math.sin(angle)
    radius = width / bend if bend else 0.0  # radius of the arc through the middle of the word

    def forward(u: float, v: float) -> Point:
        if bend:
            turn, far = u / radius, radius - v
            u, v = far * math.sin(turn), radius - far * math.cos(turn)
        return x + u * cosine - v * sine, y + u * sine + v * cosine

    def inverse(px: Array, py: Array) -> tuple[Array, Array]:
        u, v = (px - x) * cosine + (py - y) * sine, (py - y) * cosine - (px - x) * sine
        if bend:
            across, down = u * np.sign(radius), (radius - v) * np.sign(radius)
            far = np.hypot(across, down) * np.sign(radius)
            u, v = radius * np.arctan2(across, down), radius - far
        return (u + width / 2) / scale, (v + height / 2) / scale

    count = _EDGE_POINTS if bend else 2
    along = [width * (i / (count - 1) - 0.5) for i in range(count)]
    polygon = [forward(u, -height / 2) for u in along]
    polygon += [forward(u, height / 2) for u in reversed(along)]
    inside = all(
        1 <= px <= settings.width_px - 1 and 1 <= py <= settings.height_px - 1 for px, py in polygon
    )
    return _PlacedWord(polygon, inverse) if inside else None


def _sampled(mask: Array, u: Array, v: Array) -> Array:
    """Return the interpolated values of a mask at pixel coordinates (u, v); 0 outside of it."""
    padded = np.pad(mask, 1)
    column, row = u + 0.5, v + 0.5  # + 1 for the padding, - 0.5 because values are at pixel centres
    left, top = np.floor(column).astype(int), np.floor(row).astype(int)
    found = np.zeros(u.shape)
    for i in (0, 1):
        for j in (0, 1):
            weight = np.abs(1 - i - (column - left)) * np.abs(1 - j - (row - top))
            x, y = left + i, top + j
            inside = (x >= 0) & (x < padded.shape[1]) & (y >= 0) & (y < padded.shape[0])
            found[inside] += weight[inside] * padded[y[inside], x[inside]]
    return found
