"""Images that are cached after they were resized: the model sees the same pixels."""

import dataclasses
import os

import pytest
import torch
from PIL import Image
from rectangles import large, write_rectangles
from tiny_models import tiny_family

from mm_numeric.answers import EmbeddedImage
from mm_numeric.config.data import DataSource
from mm_numeric.config.schema import ModelConfig
from mm_numeric.data.collator import TrainingCollator
from mm_numeric.data.examples import load_examples
from mm_numeric.data.framing import load_framed_image
from mm_numeric.data.image_cache import ImageCache
from mm_numeric.registry import FAMILIES, choose
from mm_numeric.tasks.grounding import Grounding


@pytest.mark.parametrize(
    "name", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "paligemma", "llava", "yi_vl"]
)
def test_an_image_that_is_kept_is_seen_as_the_original(tmp_path, name):
    """Pixel for pixel; and places are those of the original."""
    cls = choose(name, FAMILIES, "family", "here")
    cls.make_tiny(tmp_path / "model", seed=0)
    limits = {"min_pixels": 2000, "max_pixels": 20_000} if "qwen" in name else {}
    model = ModelConfig(name="tiny", family=name, dtype="float32", image_size=limits)
    family = cls.load(str(tmp_path / "model"), model)
    rows = write_rectangles(tmp_path / "rows", 2, 211, 130)
    examples = load_examples(Grounding(), DataSource(path=str(rows)), tmp_path, training=True)
    plain = TrainingCollator(family, Grounding(), family.vocabulary())
    cached = dataclasses.replace(plain, image_cache=ImageCache(tmp_path / "cache"))
    wanted = plain(examples)
    for _ in range(2):  # what is written, and what is read
        found = cached(examples)
        for key in wanted:
            if isinstance(wanted[key], torch.Tensor):
                assert torch.equal(found[key], wanted[key]), key
    assert len(list((tmp_path / "cache").rglob("*.npz"))) == 2
    assert (
        load_framed_image(family, examples[0], image_cache=cached.image_cache)[1]
        == load_framed_image(family, examples[0])[1]
    )


def test_an_image_that_would_be_resized_twice_is_not_kept(tmp_path):
    """The tiny model's limits are close together: an image may be shrunk below the smaller one."""
    family = tiny_family()
    rows = write_rectangles(tmp_path / "rows", 1, 211, 130)
    examples = load_examples(Grounding(), DataSource(path=str(rows)), tmp_path, training=True)
    cache = ImageCache(tmp_path / "cache")
    assert load_framed_image(family, examples[0], image_cache=cache)[0].size == (211, 130)
    assert not list((tmp_path / "cache").rglob("*.npz"))


def test_an_image_that_was_changed_is_decoded_again(tmp_path):
    examples, collator = large(tmp_path)
    collator = dataclasses.replace(collator, image_cache=ImageCache(tmp_path / "cache"))
    before = collator(examples[:1])["pixel_values"]
    Image.effect_noise((400, 300), 50).convert("RGB").save(examples[0].image)
    os.utime(examples[0].image, ns=(1, 1))
    assert not torch.equal(collator(examples[:1])["pixel_values"], before)
    for file in (tmp_path / "cache").rglob("*.npz"):
        file.write_bytes(b"PK")
    with pytest.raises(
        ValueError, match=r"cached image of .*line 1 is damaged \(.*\); delete it\.$"
    ):
        collator(examples[:1])


def test_an_image_that_cannot_be_kept_or_read_is_one_sentence(tmp_path):
    examples, collator = large(tmp_path)
    (tmp_path / "file").write_text("")
    cached = dataclasses.replace(collator, image_cache=ImageCache(tmp_path / "file"))
    with pytest.raises(
        ValueError, match=r"file/.*written to the cache \(Not a directory\); free some space"
    ):
        cached(examples[:1])

    def read():
        raise FileNotFoundError("gone.png")

    inside = EmbeddedImage("0.png", "a table, row 0, photo", read)
    row = dataclasses.replace(examples[0], image=inside)
    cache = ImageCache(tmp_path / "cache")
    skipping = dataclasses.replace(collator, image_cache=cache, skip_unreadable_images=True)
    assert "row 0, photo cannot be read" in skipping([row])["origin"].skipped[row.id]
