"""Operations of ``data.augment``: an answer moves as the pixels do."""

import random

import numpy as np
import pytest
from PIL import Image, ImageDraw

from mm_numeric.answers import Box, Instance, Instances, Polygon
from mm_numeric.data import augmentations as ops
from mm_numeric.data.augmentations import Scene
from mm_numeric.geometry.moves import KeptShare
from mm_numeric.geometry.row_shapes import around
from mm_numeric.registry import AUGMENTATIONS, PIXEL_OPERATIONS, load

COLOURS = {"red": (230, 20, 20), "green": (20, 230, 20), "blue": (20, 20, 230)}
MOVES = sorted({*AUGMENTATIONS} - {*PIXEL_OPERATIONS})


def draw_scene(seed, prompt="all objects", kept=0.75, size=(120, 90), factor=1):
    """Return a scene of a disk, an ellipse and a triangle on grey, each of its own colour."""
    rng, size = random.Random(seed), (factor * size[0], factor * size[1])
    image = Image.new("RGB", size, (127, 127, 127))
    draw, items = ImageDraw.Draw(image), []
    for column, (name, rgb) in enumerate(COLOURS.items()):
        x, y = factor * (5 + 38 * column + rng.random() * 4), factor * (8 + rng.random() * 40)
        wide, high = factor * 28, factor * (28 if name == "red" else 16)
        if name == "blue":
            corners = (0, 20), (26, 0), (20, 26)
            points = tuple((x + factor * right, y + factor * down) for right, down in corners)
            draw.polygon(points, fill=rgb)
            items.append(Instance(Polygon(points), name))
        else:
            draw.ellipse((x, y, x + wide - 1, y + high - 1), fill=rgb)
            items.append(Instance(Box(x, y, x + wide, y + high), name))
    return Scene((image,), Instances(tuple(items)), prompt, KeptShare(kept, 2), no_others)


def no_others(rng, count):
    return []


def with_others(seed):
    scene = draw_scene(seed, factor=4)
    others = [draw_scene(seed + 100 + i, size=(120, 90 + 30 * i), factor=3) for i in range(3)]
    return Scene(scene.images, scene.answer, scene.prompt, scene.kept, lambda rng, count: others)


def pixels_box(image, name):
    """Return the box around the pixels of a colour; half a pixel is at least half of it."""
    pixels, (r, g, b) = np.asarray(image).astype(int), COLOURS[name]
    channel = int(np.argmax((r, g, b)))
    rest = np.delete(pixels, channel, axis=2).max(axis=2)
    ys, xs = np.nonzero(pixels[..., channel] - rest > 100)
    return Box(xs.min(), ys.min(), xs.max() + 1, ys.max() + 1)


@pytest.mark.parametrize("name", MOVES)
def test_moved_shapes_are_around_the_moved_pixels(name):
    """The boxes of ellipses and the polygon exactly, but for the pixels at the edges."""
    operation, moved = load(AUGMENTATIONS[name], "here"), 0
    for seed in range(8 if name == "mosaic" else 20):
        scene = with_others(seed) if name == "mosaic" else draw_scene(seed, kept=1.0)
        found = operation(scene, random.Random(seed))
        if found is None:
            continue
        moved += 1
        (image,) = found.images
        groups = {colour: [] for colour in COLOURS}
        for item in found.answer.items:
            groups[item.label].append(around(item.shape))
        for colour, boxes in groups.items():
            xs, ys = zip(*(point for box in boxes for point in box.points), strict=True)
            wanted = pixels_box(image, colour)
            found_box = (min(xs), min(ys), max(xs), max(ys))
            expected = (wanted.x1, wanted.y1, wanted.x2, wanted.y2)
            assert found_box == pytest.approx(expected, abs=1.8), (seed, colour)
    assert moved >= 5


def test_flipping_twice_is_the_identity():
    scene = draw_scene(0, "the Left one, second from the right")
    once = ops.flip(scene, random.Random(0))
    assert once.prompt == "the Right one, second from the left"
    twice = ops.flip(once, random.Random(0))
    assert twice.prompt == scene.prompt
    assert twice.images[0].tobytes() == scene.images[0].tobytes()
    for item, original in zip(twice.answer.items, scene.answer.items, strict=True):
        assert np.allclose(item.shape.points, original.shape.points)


@pytest.mark.parametrize(
    ("phrase", "flipped"),
    [
        ("leftmost LEFT left-hand dog", "rightmost RIGHT right-hand dog"),
        ("the upright bright lamp", "the upright bright lamp"),
        ("左边的杯子", "右边的杯子"),
        ("second dog", None),
        ("dog at 3 o'clock", None),
        ("rt girl", None),
        ("lft guy on the right", None),
        ("top dog", "top dog"),
    ],
)
def test_words_of_sides_are_swapped_and_others_rejected(phrase, flipped):
    found = ops.flip(draw_scene(0, phrase), random.Random(0))
    assert (found and found.prompt) == flipped


def test_a_label_with_a_side_is_not_flipped():
    scene = draw_scene(0)
    items = tuple(Instance(item.shape, "left hand") for item in scene.answer.items)
    named = Scene(scene.images, Instances(items), "left hand, right hand", scene.kept, no_others)
    assert ops.flip(named, random.Random(0)) is None


@pytest.mark.parametrize("phrase", ["dog at the top", "corner dog", "right dog", "first dog"])
def test_phrases_of_positions_are_neither_cropped_nor_scaled_nor_combined(phrase):
    for operation in (ops.crop, ops.scale, ops.mosaic):
        assert all(operation(draw_scene(0, phrase), random.Random(i)) is None for i in range(20))
    assert ops.rotate(draw_scene(0, phrase), random.Random(0)) is not None


def test_every_crop_has_every_object():
    kept = 0
    for seed in range(100):
        found = ops.crop(draw_scene(0), random.Random(seed), least=0.5)
        if found is not None:
            kept += 1
            assert len(found.answer.items) == 3
            assert found.size[0] >= 60
            assert found.size[1] >= 45
    assert kept


@pytest.mark.parametrize("name", sorted(PIXEL_OPERATIONS))
def test_pixels_change_and_answers_do_not(name):
    scene = draw_scene(0)
    found = load(AUGMENTATIONS[name], "here")(scene, random.Random(1))
    assert found.answer == scene.answer
    assert found.size == scene.size
    assert found.images[0].tobytes() != scene.images[0].tobytes()
    for colour in COLOURS:
        wanted, own = (pixels_box(s.images[0], colour).points for s in (scene, found))
        assert np.abs(np.subtract(wanted, own)).max() <= 4


def test_images_of_one_row_change_alike():
    scene = draw_scene(0)
    twins = Scene(scene.images * 2, scene.answer, scene.prompt, scene.kept, no_others)
    for name in ("flip", "rotate", "scale", "colour", "blur", "jpeg"):
        first, second = load(AUGMENTATIONS[name], "here")(twins, random.Random(1)).images
        assert first.tobytes() == second.tobytes()
