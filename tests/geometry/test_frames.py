"""Frames: there and back, and the size that the real image processor makes."""

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import tiny_family
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

from mm_numeric.geometry.frames import Resize

EDGES = st.integers(1, 4000)
LIMITS = {"factor": 28, "min_pixels": 56 * 56, "max_pixels": 28 * 28 * 1280}
SQUASH, LETTERBOX = Resize(kind="squash", side=448), Resize(kind="letterbox", side=336)
SMART = Resize(kind="smart", **LIMITS)


def views(width, height):
    """Return a frame of each kind that takes the image."""
    found = [SQUASH.view(width, height), LETTERBOX.view(width, height)]
    if max(width, height) <= 200 * min(width, height):
        found.append(SMART.view(width, height))
    return found


@given(EDGES, EDGES, st.floats(0, 1), st.floats(0, 1))
@examples(200)
def test_there_and_back(width, height, u, v):
    for frame in views(width, height):
        x, y = frame.to_resized(u * width, v * height)
        assert -1e-9 <= x <= frame.width_px * (1 + 1e-12)
        assert -1e-9 <= y <= frame.height_px * (1 + 1e-12)
        assert frame.to_original(x, y) == pytest.approx((u * width, v * height), abs=1e-8)


@given(EDGES, EDGES)
@examples(300)
def test_smart_resize_is_that_of_transformers(width, height):
    if max(width, height) > 200 * min(width, height):
        with pytest.raises(ValueError, match="aspect ratio above 200"):
            SMART.view(width, height)
        return
    frame = SMART.view(width, height)
    assert (frame.height_px, frame.width_px) == smart_resize(height, width, **LIMITS)


def test_a_letterbox_keeps_the_aspect_ratio_and_the_middle():
    frame = LETTERBOX.view(200, 100)
    assert frame.to_resized(0, 0) == (0, 84)
    assert frame.to_resized(200, 100) == (336, 252)


@pytest.mark.parametrize("size", [(56, 56), (224, 224), (300, 100)])
def test_the_family_declares_the_frame_that_its_processor_makes(size):
    from PIL import Image

    family = tiny_family()
    frame = family.frame(*size).view
    grid = family.prompts(["?"], [Image.new("RGB", size)]).images["image_grid_thw"][0]
    patch = family.image_processor.patch_size
    assert (frame.height_px, frame.width_px) == (grid[1] * patch, grid[2] * patch)
