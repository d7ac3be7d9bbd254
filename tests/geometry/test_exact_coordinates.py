"""Coordinates are rounded once, from the original pixels, as the published recipes do."""

import json
from fractions import Fraction

import numpy as np
import pytest
from transformers.models.kosmos2.processing_kosmos2 import (
    coordinate_to_patch_index,
    patch_index_to_coordinate,
)

from mm_numeric.answers import Box, Instance
from mm_numeric.geometry.coordinates import COORDINATES, Coordinates
from mm_numeric.geometry.frames import Frame, Resize, View

SMART = {"kind": "smart", "min_pixels": 56 * 56, "max_pixels": 1280 * 28 * 28}
SIZES = [(640, 480), (640, 427), (1280, 720), (800, 600), (320, 999), (333, 500), (1000, 800)]


def relative(range_, rounded=round):
    """Return a recipe: the position as a share of the image side, times ``range_``, rounded."""
    return lambda pixel, edge, _: rounded(Fraction(pixel, edge) * range_)


def below(number):
    """Return a function that rounds down to a whole number below ``number``."""
    return lambda share: min(int(share), number - 1)


def resized(pixel, edge, seen):
    """Return the pixel of the resized image, at most its last one (Qwen2.5-VL)."""
    return min(round(Fraction(pixel * seen, edge)), seen - 1)


def padded(range_):
    """Return a recipe for a square with the image in the middle, for each side of the image."""

    def recipe(pixel, edge, longest):
        return round(Fraction(pixel + (longest - edge) // 2, longest) * range_)

    return recipe


# How each model's authors write a coordinate. The recipes use no code of the library.
RECIPES = {
    "paligemma": (Resize(kind="squash", side=224), relative(1023)),
    "qwen2_vl": (Resize(factor=28, **SMART), relative(1000)),
    "qwen2_5_vl": (Resize(factor=28, **SMART), resized),
    "qwen3_vl": (Resize(factor=32, **SMART), relative(1000)),
    "llava": (Resize(kind="letterbox", side=336), padded(1000)),
    "yi_vl": (Resize(kind="letterbox", side=448), padded(999)),
    "internvl": (Resize(kind="squash", side=448), relative(1000, rounded=int)),
    "gemma3": (Resize(kind="squash", side=896), relative(1000)),
    "deepseek": (Resize(kind="none"), relative(999)),
    "glm_v": (Resize(kind="none"), relative(1000)),
    "florence2": (Resize(kind="squash", side=768), relative(1000, rounded=below(1000))),
    "kosmos2": (Resize(kind="squash", side=224), relative(32, rounded=below(32))),
}


@pytest.mark.slow
@pytest.mark.parametrize("family", RECIPES)
@pytest.mark.parametrize("size", SIZES)
def test_every_pixel_is_written_as_in_the_published_recipe(family, size):
    resize, recipe = RECIPES[family]
    frame = Frame(*size, resize.view(*size), COORDINATES[family])
    saved = Frame.from_dict(json.loads(json.dumps(frame.to_dict())))
    if resize.kind == "letterbox":
        third = [max(size)] * 2
    else:
        third = [frame.view.width_px, frame.view.height_px]
    for axis in (0, 1):
        wanted, found, read = [], [], []
        for pixel in range(size[axis] + 1):
            point = (float(pixel), 0.0) if axis == 0 else (0.0, float(pixel))
            wanted.append(recipe(pixel, size[axis], third[axis]))
            found.append(frame.encode(point)[axis])
            read.append(saved.encode(point)[axis])
        assert found == wanted
        assert read == wanted  # floats of a saved frame stand for the same quotients


@pytest.mark.parametrize(
    ("family", "width", "pixel"), [("qwen2_vl", 320, 276), ("gemma3", 800, 690)]
)
def test_an_exact_half_is_rounded_to_even(family, width, pixel):
    """Both pixels are at 862.5 of 1000. Through resized pixels they were written as 863."""
    frame = Frame(width, 600, RECIPES[family][0].view(width, 600), COORDINATES[family])
    assert Fraction(pixel, width) * 1000 == Fraction(1725, 2)
    assert frame.encode((float(pixel), 0.0))[0] == 862
    assert frame.encode((pixel + 1e-9, 0.0))[0] == 863


def level(coordinates, position, edge):
    """Return the coordinate of a position in an image that is not resized."""
    frame = Frame(edge, edge, Resize(kind="none").view(edge, edge), coordinates)
    return frame.encode((position, 0.0))[0]


def test_a_float_is_the_decimal_number_of_its_row():
    grid = Coordinates(max_value=1000)
    assert Fraction(0.96) < Fraction(96, 100)  # the binary number is a little below 1.5 of 1000
    assert level(grid, 0.96, 640) == 2
    assert level(grid, np.float64(0.96), 640) == 2
    assert level(grid, 1e-30, 640) == 0
    floor = Coordinates(max_value=1000, rounding="floor")
    assert level(floor, 0.1 + 0.7, 1000) == 0
    assert level(floor, 2.9999999999999996, 1000) == 3
    assert level(floor, 2.9999, 1000) == 2


def test_a_scale_that_is_no_quotient_of_sizes_is_used_as_it_is():
    view = View(300, 300, 1 / np.pi, 1 / np.pi, offset_x_px=0.123, offset_y_px=-1.5)
    (scale_x, offset_x), (_, offset_y) = view.fractions()
    assert float(scale_x) == view.scale_x
    assert (float(offset_x), float(offset_y)) == (0.123, -1.5)
    frame = Frame(900, 900, view, COORDINATES["relative_1000"])
    assert frame.encode((450.0, 450.0)) == (478, 472)


def test_a_box_is_the_cells_of_the_official_processor_of_kosmos_2():
    size, generator = (640, 480), np.random.default_rng(0)
    frame = Frame(*size, RECIPES["kosmos2"][0].view(*size), COORDINATES["kosmos2"])
    exact = [(20, 15, 40, 30), (20, 15, 41, 300), (0, 0, 640, 480), (0, 30, 640, 31)]  # of 20 x 15
    drawn = generator.integers(0, size * 2, size=(300, 4)).tolist()
    for box in [*exact, *((min(a, c), min(b, d), max(a, c), max(b, d)) for a, b, c, d in drawn)]:
        shares = tuple(pixel / edge for pixel, edge in zip(box, size * 2, strict=True))
        if box[0] == box[2] or box[1] == box[3]:
            continue  # the official code rejects it
        cells = coordinate_to_patch_index(shares, 32)
        text = frame.write([Instance(Box(*box))]).text
        assert text == "<object><patch_index_{:04d}><patch_index_{:04d}></object>".format(*cells)
        read = patch_index_to_coordinate(*cells, 32)
        wanted = [share * edge for share, edge in zip(read, size * 2, strict=True)]
        (found,) = frame.read(text).items
        assert [x for point in found.shape.points for x in point] == pytest.approx(wanted)
        assert frame.quantised(Box(*box)) == found.shape
    flat = frame.write([Instance(Box(20, 15, 20, 30))]).text
    assert flat == "<object><patch_index_0033><patch_index_0033></object>"
