"""Images with transparency or with 16 bits per pixel keep what they show, and are cached so."""

import io
import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from check_data_runs import config_of
from PIL import EpsImagePlugin, Image, ImageDraw
from rectangles import write_rectangles
from tiny_models import tiny_family

from mm_numeric.answers import EmbeddedImage, Example
from mm_numeric.config.schema import ModelConfig
from mm_numeric.data import image_cache
from mm_numeric.data.framing import load_framed_image
from mm_numeric.data.image_cache import ImageCache
from mm_numeric.data.images import UnreadableImageError, image_size, open_image, upright_rgb
from mm_numeric.evaluation.check_data.check import check_data
from mm_numeric.evaluation.check_data.text import report_text
from mm_numeric.evaluation.report.gallery import open_upright
from mm_numeric.families.llava import Llava
from mm_numeric.importers.importer import InvalidRowError
from mm_numeric.importers.pointing import _image_and_region

CLOCKS = Path(__file__).parents[3] / "shared" / "data" / "clocks"


def decoded(image, name="PNG", **options):
    """Save an image, and return the pixels [height, width, 3] that ``open_image`` finds."""
    file = io.BytesIO()
    image.save(file, name, **options)
    return decoded_bytes(file.getvalue())


def decoded_bytes(data):
    image = EmbeddedImage("a", "a table, row 0", lambda: data)
    opened = open_image(Example(id="0", image=image, prompt="", answer=None, where="rows, line 1"))
    assert opened.mode == "RGB"
    return np.asarray(opened)


def strokes(mode="RGBA", background=(0, 0, 0, 0), ink=(0, 0, 0, 255)):
    """Return a drawing on a transparent background, as matplotlib's ``transparent=True`` makes."""
    image = Image.new(mode, (40, 30), background)
    ImageDraw.Draw(image).line((0, 0, 39, 29), fill=ink, width=3)
    return image


def on_white(image):
    """Return the pixels that ``to_rgb`` of qwen-vl-utils makes from an RGBA image."""
    white = Image.new("RGB", image.size, (255, 255, 255))
    white.paste(image, mask=image.split()[3])
    return np.asarray(white)


def png(pixels, colour_type):
    """Return a PNG file of 16-bit samples [height, width, channels]."""
    height, width = pixels.shape[:2]
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)

    def chunk(kind, data):
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = struct.pack(">IIBBBBB", width, height, 16, colour_type, 0, 0, 0)
    chunks = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


def tiff_with_12_bits(even, odd):
    """Return a TIFF file of one row of two grey pixels with 12 bits each."""
    data = bytes([even >> 4, (even & 15) << 4 | odd >> 8, odd & 255])
    tags = {256: 2, 257: 1, 258: 12, 259: 1, 262: 1, 273: 8, 277: 1, 278: 1, 279: len(data)}
    entries = b"".join(struct.pack("<HHIHH", tag, 3, 1, value, 0) for tag, value in tags.items())
    header = b"II*\0" + struct.pack("<I", 12)
    return header + data + b"\0" + struct.pack("<H", len(tags)) + entries + b"\0" * 4


def test_black_strokes_on_a_transparent_background_stay_visible():
    pixels = decoded(strokes())
    assert np.array_equal(pixels, on_white(strokes()))
    assert set(np.unique(pixels)) == {0, 255}
    assert pixels.mean() > 200  # Image.convert("RGB") makes all of them black


def test_half_transparent_pixels_are_mixed_with_white_as_in_qwen_vl_utils():
    rng = np.random.default_rng(0)
    image = Image.fromarray(rng.integers(0, 256, (64, 64, 4), dtype=np.uint8), "RGBA")
    pixels = decoded(image)
    assert np.array_equal(pixels, on_white(image))
    colours, alpha = np.asarray(image)[..., :3] / 1.0, np.asarray(image)[..., 3:] / 255
    assert np.abs(pixels - (alpha * colours + (1 - alpha) * 255)).max() <= 1


@pytest.mark.parametrize("mode", ["LA", "P", "L", "RGB"])
def test_every_mode_with_transparency_is_composed_on_white(mode):
    if mode == "LA":
        image, options = strokes("LA", (0, 0), (0, 255)), {}
    else:
        image = strokes("L", 7, 0).convert(mode)
        options = {"transparency": image.getpixel((39, 0))}  # the value of the background
    pixels = decoded(image, **options)
    assert pixels[0, 39].tolist() == [255, 255, 255]
    assert pixels[15, 20].tolist() == [0, 0, 0]


def test_an_opaque_image_keeps_its_pixels():
    noise = Image.effect_noise((40, 30), 90).convert("RGB")
    for image in (noise, noise.convert("RGBA"), noise.convert("L")):
        assert np.array_equal(decoded(image), np.asarray(image.convert("RGB")))


def test_16_bit_pixels_are_scaled_and_none_is_clipped():
    grey = np.arange(256, dtype=np.uint8).reshape(16, 16)
    deep = grey.astype(np.uint16) * 257  # as ImageMagick writes 8-bit values with 16 bits
    rgb = np.repeat(grey[..., None], 3, axis=2)
    image = Image.fromarray(deep)
    for name in ("PNG", "TIFF", "PPM"):
        assert np.array_equal(decoded(image, name), rgb), name
    big_endian = Image.frombytes("I;16B", (16, 16), deep.astype(">u2").tobytes())
    assert np.array_equal(decoded(big_endian, "TIFF"), rgb)
    colour = np.repeat(deep[..., None], 3, axis=2)
    assert np.array_equal(decoded_bytes(png(colour, colour_type=2)), rgb)
    opaque = np.concatenate([colour, np.full_like(colour[..., :1], 65535)], axis=2)
    assert np.array_equal(decoded_bytes(png(opaque, colour_type=6)), rgb)
    assert decoded_bytes(tiff_with_12_bits(0, 4095))[0, :, 0].tolist() == [0, 255]
    assert decoded_bytes(tiff_with_12_bits(2048, 160))[0, :, 0].tolist() == [128, 10]


@pytest.mark.parametrize("bits", [8, 16])
def test_a_tiff_whose_white_is_zero_is_no_negative(bits):
    """As radiographs and faxes are stored."""
    data = np.array([0, 2**bits - 1, 2 ** (bits - 1)], dtype="<u2" if bits == 16 else "u1")
    tags = {256: 3, 257: 1, 258: bits, 259: 1, 262: 0, 273: 8, 277: 1, 278: 1, 279: data.nbytes}
    entries = b"".join(struct.pack("<HHIHH", tag, 3, 1, value, 0) for tag, value in tags.items())
    header, padding = b"II*\0" + struct.pack("<I", 14), bytes(6 - data.nbytes)
    file = header + data.tobytes() + padding + struct.pack("<H", len(tags)) + entries + bytes(4)
    assert decoded_bytes(file)[0, :, 0].tolist() == [255, 0, 127]


def test_a_transparent_value_of_16_bit_grey_is_white():
    pixels = np.array([[300, 5, 300]], dtype=np.uint16)
    assert decoded(Image.fromarray(pixels), transparency=5)[0, :, 0].tolist() == [1, 255, 1]


def test_16_bit_images_are_rotated_upright(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(np.zeros((10, 30), dtype=np.uint16)).save(tmp_path / "a.png", exif=exif)
    with Image.open(tmp_path / "a.png") as opened:
        assert upright_rgb(opened).size == (10, 30)


@pytest.mark.parametrize("mode", ["I", "F"])
def test_32_bit_pixels_are_an_error_message(mode):
    with pytest.raises(UnreadableImageError, match=f"line 1: .* 32-bit numbers, mode {mode}, wi"):
        decoded(Image.new(mode, (4, 4), 3), "TIFF")


@pytest.mark.skipif(not CLOCKS.is_dir(), reason="the clock photographs are not here")
def test_a_real_clock_with_16_bits_looks_as_with_8():
    file = next(iter(sorted(CLOCKS.rglob("*.png")) + sorted(CLOCKS.rglob("*.jpg"))))
    with Image.open(file) as opened:
        grey = opened.convert("L")
    deep = Image.fromarray(np.asarray(grey).astype(np.uint16) * 257)
    assert (np.asarray(deep) >= 255).mean() > 0.9  # what clipping turned into white
    assert np.array_equal(decoded(deep), np.asarray(grey.convert("RGB")))


def test_a_report_shows_an_image_as_the_model_sees_it(tmp_path):
    strokes().save(tmp_path / "a.png")
    assert np.array_equal(np.asarray(open_upright(tmp_path / "a.png")), on_white(strokes()))


def test_a_report_leaves_out_an_image_that_is_damaged_in_any_way(tmp_path):
    file = tmp_path / "a.png"
    strokes().save(file)
    damaged = bytearray(file.read_bytes())
    damaged[41:45] = b"\0\0\0\0"  # the begin of the compressed pixels
    file.write_bytes(damaged)
    with pytest.raises(OSError, match="broken data"), Image.open(file) as image:
        image.load()
    assert open_upright(file) is None


EPS = b"""%!PS-Adobe-3.0 EPSF-3.0
%%BoundingBox: 0 0 9 9
%%EndComments
{} loop
"""


@pytest.mark.parametrize("embedded", [False, True])
def test_no_postscript_is_executed(tmp_path, monkeypatch, embedded):
    """An EPS file named .jpg: Pillow alone would start Ghostscript, here one that leaves a file."""
    file = tmp_path / "a.jpg"
    file.write_bytes(EPS)
    ghostscript = tmp_path / "gs"
    ghostscript.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] || touch {tmp_path}/executed\n', encoding="utf-8"
    )
    ghostscript.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)  # it is looked for again
    image = EmbeddedImage("a", "a table, row 0", lambda: EPS) if embedded else file
    example = Example(id="0", image=image, prompt="", answer=None, where="r, line 1")
    message = r"cannot be read \(it is not a JPEG, PNG, WEBP, BMP, TIFF, GIF or PPM file\)"
    with pytest.raises(UnreadableImageError, match=message):
        open_image(example)
    with pytest.raises(ValueError, match=message):
        image_size(image)
    assert open_upright(file) is None
    with pytest.raises(InvalidRowError, match=message):
        _image_and_region(None, "a.jpg", file)
    assert not (tmp_path / "executed").exists()
    with pytest.raises(OSError), Image.open(file) as opened:  # noqa: PT011
        opened.load()
    assert (tmp_path / "executed").exists()  # so the attack is real


@pytest.mark.parametrize("name", ["JPEG", "MPO", "PNG", "WEBP", "BMP", "TIFF", "GIF", "PPM"])
def test_every_format_is_read_and_the_first_image_of_several(name):
    first, second = (Image.new("RGB", (8, 6), colour) for colour in ("white", "black"))
    options = (
        {} if name in ("JPEG", "BMP", "PPM") else {"save_all": True, "append_images": [second]}
    )
    file = io.BytesIO()
    first.save(file, name, **options)
    assert decoded_bytes(file.getvalue()).min() > 250


def test_nothing_opens_an_image_in_whatever_format():
    root = Path(__file__).parents[2]
    files = [root / "README.md"]
    for folder in ("mm_numeric", "tasks", "evaluation", "scripts", "docs"):
        files += [f for f in (root / folder).rglob("*") if f.suffix in (".py", ".md", ".ipynb")]
    calls = [(f.name, line) for f in files for line in f.read_text(encoding="utf-8").splitlines()
             if "Image.open(" in line]  # fmt: skip
    assert len(calls) >= 4  # image_file, the model card and two notebooks
    assert [call for call in calls if "formats=" not in call[1]] == []


def test_an_image_cached_by_an_earlier_decoder_is_decoded_again(tmp_path, monkeypatch):
    strokes().resize((80, 60)).save(tmp_path / "a.png")
    example = Example(id="0", image=tmp_path / "a.png", prompt="", answer=None, where="r, line 1")
    family, cache = tiny_family(), ImageCache(tmp_path / "cache")
    with monkeypatch.context() as earlier:
        earlier.setattr(image_cache, "DECODING", 1)
        black = Image.new("RGB", (80, 60))
        earlier.setattr(image_cache, "open_sized", lambda _: (black, black.size))
        image, _ = load_framed_image(family, example, image_cache=cache)
        assert not np.asarray(image).any()
    for _ in range(2):
        image, _ = load_framed_image(family, example, image_cache=cache)
        assert np.asarray(image).mean() > 200


def test_checkpoints_that_pad_with_another_colour_share_no_cached_image(tmp_path):
    Image.new("RGB", (80, 40), "red").save(tmp_path / "a.png")
    example = Example(id="0", image=tmp_path / "a.png", prompt="", answer=None, where="r, line 1")
    Llava.make_tiny(tmp_path / "model", seed=0)
    family = Llava.load(str(tmp_path / "model"), ModelConfig(name="tiny", family="llava"))
    cache = ImageCache(tmp_path / "cache")
    for mean, grey in (([0.48, 0.46, 0.41], (122, 117, 104)), ([0.5] * 3, (127, 127, 127))):
        family.image_processor.image_mean = mean
        for _ in range(2):
            image, _ = load_framed_image(family, example, image_cache=cache)
            assert image.getpixel((0, 0)) == grey


@pytest.mark.slow
def test_check_data_warns_of_images_with_one_colour(tmp_path):
    rows = write_rectangles(tmp_path / "rows", 4)
    assert "only one colour" not in report_text(check_data(config_of(tmp_path, rows)))
    strokes(ink=(255, 255, 255, 255)).resize((80, 60)).save(tmp_path / "rows" / "2.png")
    Image.new("RGB", (80, 60), (9, 8, 7)).save(tmp_path / "rows" / "3.png")
    report = check_data(config_of(tmp_path, rows))
    assert report.ready  # an empty page can be a correct row
    (note,) = (note for note in report.notes if "of the train data" in note)
    assert note.startswith("2 of the decoded images of the train data have only one colour")
    assert "line 3, rgb(255, 255, 255)" in note
    assert [*report.sources[1].one_colour] == [tmp_path / "rows" / f"{i}.png" for i in (2, 3)]
    assert len(check_data(config_of(tmp_path, rows), images=3).sources[0].one_colour) == 1
