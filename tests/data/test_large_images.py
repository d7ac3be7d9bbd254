"""Images above a number of pixels are reduced while they are read; coordinates stay the same."""

import numpy as np
import pytest
from PIL import Image
from tiny_models import tiny_family
from tiny_qwens import qwen

from mm_numeric.answers import Box, Example
from mm_numeric.data import images
from mm_numeric.data.framing import load_framed_image
from mm_numeric.data.image_cache import ImageCache
from mm_numeric.data.images import image_file, image_size, limit_images, open_sized, upright_rgb
from mm_numeric.families.qwen2_5_vl import Qwen2_5VL
from mm_numeric.inference.draw import drawn_answer

SIZE = 643, 401


@pytest.fixture(autouse=True)
def _small_limits(monkeypatch):
    monkeypatch.setattr(images, "_REDUCED_ABOVE", 50_000)
    monkeypatch.setattr(images, "_STRIP", 8_000)
    monkeypatch.setenv(images._LIMIT, str(SIZE[0] * SIZE[1]))


def drawing(mode="RGB"):
    """Return an image of smooth colours, whose halves can be told apart."""
    noise = np.random.default_rng(0).integers(0, 255, (12, 16, 3), dtype=np.uint8)
    image = Image.fromarray(noise).resize(SIZE, Image.Resampling.BICUBIC)
    if mode == "I;16":
        return Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 257)
    if mode == "RGBA":
        image.putalpha(Image.linear_gradient("L").resize(SIZE))
    return image.quantize(64) if mode == "P" else image.convert(mode)


def example(path, **more):
    return Example(id="1", image=path, prompt="Where?", answer=None, where="rows, line 1", **more)


FORMATS = [
    *(("a.jpg", mode) for mode in ("RGB", "L", "CMYK")),
    *(("a.png", mode) for mode in ("RGB", "L", "P", "RGBA", "I;16")),
    *((f"a.{ending}", "RGB") for ending in ("webp", "tif", "bmp", "ppm")),
    ("a.gif", "P"),
]


@pytest.mark.parametrize(
    ("name", "mode", "orientation"),
    [
        *((*kind, 6) for kind in FORMATS),
        *((f"a.{ending}", "RGB", way) for ending in ("jpg", "png") for way in (1, 3)),
    ],
)
def test_a_reduced_image_shows_the_same_and_knows_its_size(
    tmp_path, monkeypatch, name, mode, orientation
):
    monkeypatch.setenv(images._LIMIT, str(3 * SIZE[0] * SIZE[1]))  # a third for a WebP
    exif = Image.Exif()
    exif[0x0112] = orientation
    has_exif = name.endswith(("jpg", "png", "webp", "tif"))
    drawing(mode).save(tmp_path / name, **({"exif": exif} if has_exif else {}))
    with image_file(tmp_path / name) as opened:
        whole = upright_rgb(opened)
    reduced, size = open_sized(example(tmp_path / name))
    assert size == whole.size == image_size(tmp_path / name)
    assert reduced.size == tuple(-(-edge // 4) for edge in size)
    difference = np.asarray(reduced.resize(size)).astype(int) - np.asarray(whole)
    assert np.abs(difference).mean() < 8


def test_an_image_of_too_many_pixels_is_one_sentence(tmp_path):
    drawing().save(tmp_path / "a.png")
    image_size(tmp_path / "a.png")
    for limit in (SIZE[0] * SIZE[1] - 1, 1000):
        limit_images(limit)
        cause = f"it has more than {limit:,} pixels; resize it, or raise data.largest_image"
        with pytest.raises(ValueError, match=f"line 1: the image .* cannot be read .{cause}"):
            open_sized(example(tmp_path / "a.png"))


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("family", [tiny_family, lambda: qwen(Qwen2_5VL)], ids=["twice", "once"])
def test_the_frame_is_that_of_the_original(tmp_path, monkeypatch, family, cached):
    family = family()
    drawing().save(tmp_path / "a.jpg")
    cache = ImageCache(tmp_path / "cache") if cached else None
    shown = []
    for _ in range(1 + cached):
        image, frame = load_framed_image(family, example(tmp_path / "a.jpg"), image_cache=cache)
        shown.append(image)
        assert frame == family.frame(*SIZE)
        seen = family.resize.view(*image.size)  # by the image processor
        assert (seen.width_px, seen.height_px) == (frame.view.width_px, frame.view.height_px)
        assert image.size != SIZE
    monkeypatch.setattr(images, "_REDUCED_ABOVE", 10**9)
    whole, frame = load_framed_image(family, example(tmp_path / "a.jpg"))
    assert frame == family.frame(*SIZE)
    expected = np.asarray(family.resize_image(whole)).astype(int)
    for image in shown:
        assert np.abs(np.asarray(family.resize_image(image)) - expected).mean() < 8


def test_an_answer_is_drawn_at_its_place_in_the_original(tmp_path):
    Image.new("RGB", SIZE, "white").save(tmp_path / "a.png")
    image, size = open_sized(example(tmp_path / "a.png"))
    drawn = np.asarray(drawn_answer(image, size, Box(200, 100, 600, 300), "", [""]))
    rows, columns = np.nonzero(drawn[: SIZE[1], :, 2] < 100)
    assert [columns.min(), rows.min(), columns.max(), rows.max()] == pytest.approx(
        [200, 100, 600, 300], abs=2
    )
