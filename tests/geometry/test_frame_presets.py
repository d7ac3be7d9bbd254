"""Frames by name equal those of the model families, and those that are saved with a model."""

import json
from dataclasses import replace

import pytest
from tiny_models import TINY
from tiny_qwens import each_qwen, real_sizes
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

from mm_numeric.geometry.coordinates import COORDINATES
from mm_numeric.geometry.frame_presets import (
    FAMILY_RESIZES,
    FRAME,
    AreaLimits,
    FrameRule,
    published_frames,
)
from mm_numeric.geometry.frames import Resize
from mm_numeric.registry import FAMILIES, choose


@each_qwen
def test_a_qwen_frame_is_that_of_the_published_image_processor(cls):
    family, rule = real_sizes(cls), FrameRule.of_family(cls.default_coordinates)
    assert rule.resize == family.resize
    assert rule.frame(1285, 727) == family.frame(1285, 727)


@pytest.mark.parametrize(
    ("name", "side"), [("paligemma", 224), ("llava", 336), ("yi_vl", 448), ("florence2", 768)]
)
def test_a_square_frame_is_that_of_the_family(name, side, tmp_path):
    cls = choose(name, FAMILIES, "family", "test")
    cls.make_tiny(tmp_path / name, seed=0)
    family = cls.load(str(tmp_path / name), TINY)
    rule = FrameRule.of_family(name)
    assert rule.resize == replace(family.resize, side=side)
    assert rule.coordinates == family.coordinates


def test_a_folder_named_like_a_frame_is_not_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = {option.removeprefix("--frame "): rule for option, rule in published_frames().items()}
    (tmp_path / "internvl").mkdir()
    assert published_frames()["--frame internvl"] == found["internvl"]
    assert found["unit_3"] == FrameRule.named("unit_3")


def test_every_family_with_images_has_a_frame():
    classes = {name: choose(name, FAMILIES, "family", "test") for name in FAMILIES}
    with_images = {name for name, cls in classes.items() if cls.takes_images}
    assert set(FAMILY_RESIZES) == with_images - {"chat"}  # whose frames are coordinates alone
    assert all(classes[name].default_coordinates == name for name in FAMILY_RESIZES)


def test_the_pixel_limits_of_a_tool_replace_the_published_ones():
    rule = FrameRule.of_family("qwen2_5_vl", AreaLimits(max_pixels=1_003_520))
    assert rule.resize == Resize(kind="smart", factor=28, min_pixels=3136, max_pixels=1_003_520)
    view = rule.frame(1920, 1080).view
    assert (view.width_px, view.height_px) == (1316, 728)


def test_images_that_llama_factory_shrinks_first_have_another_size():
    """Its ``_preprocess_image`` makes 1024 x 576 of 1280 x 720; Qwen2.5-VL resizes these."""
    rule = FrameRule.of_family("qwen2_5_vl", AreaLimits(image_max_pixels=768 * 768))
    frame = rule.frame(1280, 720)
    assert (frame.view.width_px, frame.view.height_px) == (1036, 588)
    assert smart_resize(576, 1024, 28, 3136, 12_845_056) == (588, 1036)
    assert frame.decode(518, 147) == pytest.approx((640, 180))
    without = FrameRule.of_family("qwen2_5_vl", AreaLimits(max_pixels=768 * 768)).frame(1280, 720)
    assert (without.view.width_px, without.view.height_px) == (1008, 560)
    assert rule.frame(640, 480) == FrameRule.of_family("qwen2_5_vl").frame(640, 480)


def test_pixels_of_the_original_image_are_left_unchanged():
    assert FrameRule.named("pixels_original").frame(640, 480).decode(639, 7) == (639, 7)


def test_relative_coordinates_refer_to_the_whole_image():
    assert FrameRule.named("relative_1000").frame(640, 480).decode(500, 250) == (320, 120)
    assert FrameRule.named("gemma3").frame(640, 480).coordinates.order == "yx"


@pytest.mark.parametrize("name", ["run", "run/model", f"run/model/{FRAME}"])
def test_a_frame_can_be_saved_and_read(tmp_path, name):
    rule = FrameRule.of_family("qwen3_vl", AreaLimits(min_pixels=1024))
    (tmp_path / "run/model").mkdir(parents=True)
    (tmp_path / "run/model" / FRAME).write_text(json.dumps(rule.to_dict()))
    assert FrameRule.named(str(tmp_path / name)) == rule


@pytest.mark.parametrize(
    ("name", "limits", "message"),
    [
        ("qwen25_vl", {}, "--family: there is no model family with images 'qwen25_vl'. Did "),
        ("t5", {}, "there is no model family with images 't5'"),
        ("llava", {"max_pixels": 9}, "to a square, without max_pixels; remove the option"),
        ("qwen2_vl", {"max_pixels": 0}, "--family qwen2_vl: an area in pixels is at lea"),
        ("llava", {"image_max_pixels": -1}, "--family llava: an area in pixels is at lea"),
        ("qwen2_vl", {"max_pixels": 9}, "min_pixels 3136 is more than max_pixels 9; set"),
    ],
)
def test_a_wrong_family_is_one_sentence(name, limits, message):
    with pytest.raises(ValueError, match=message):
        FrameRule.of_family(name, AreaLimits(**limits))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "pixel_original",
            "--frame: there is no frame, or folder of a model, 'pixel_original'. Di",
        ),
        ("llava", "--frame llava: these coordinates belong to a model family; write --family lla"),
        ("pixels_resized", "resized; add --min-pixels or --max-pixels for images resized to mul"),
        ("nowhere.json", "nowhere.json: there is no such file"),
    ],
)
def test_a_wrong_frame_is_one_sentence(name, message):
    with pytest.raises(ValueError, match=message):
        FrameRule.named(name)


def test_pixels_of_resized_images_need_only_the_limits_of_the_area():
    for limits in ({"min_pixels": 3136, "max_pixels": 1_003_520}, {"max_pixels": 1_003_520}):
        limits["image_max_pixels"] = 768 * 768
        found = FrameRule.named("pixels_resized", AreaLimits(**limits))
        of_family = FrameRule.of_family("qwen2_5_vl", AreaLimits(**limits))
        assert found.depends_on_limits
        for size in ((640, 480), (3840, 2160), (30, 40)):
            frames = [rule.frame(*size) for rule in (found, of_family)]
            assert frames[0].view == frames[1].view
            assert frames[0].decode(12, 34) == frames[1].decode(12, 34)


@pytest.mark.parametrize(
    ("name", "limits", "message"),
    [
        ("pixels_resized", {"image_max_pixels": 9}, "add --min-pixels or --max-pixels for images"),
        ("pixels_resized", {"max_pixels": 9}, "min_pixels 3136 is more than max_pixels 9; set"),
        ("pixels_resized", {"max_pixels": 0}, "--frame pixels_resized: an area in pixels is at le"),
        ("relative_1000", {"max_pixels": 9}, "do not depend on the size of a resized image; remov"),
        ("{run}", {"min_pixels": 9, "max_pixels": 9}, "remove --min-pixels and --max-pixels"),
    ],
)
def test_limits_that_a_frame_does_not_take_are_one_sentence(tmp_path, name, limits, message):
    with pytest.raises(ValueError, match=message):
        FrameRule.named(name.format(run=tmp_path), AreaLimits(**limits))


@pytest.mark.parametrize(
    ("saved", "message"),
    [
        ([], r'frame.json: no "coordinates" \(an object\); give the frame.json of a model'),
        ({"coordinates": {}}, r"frame.json: the setting 'resize' is missing"),
        ({"coordinates": {}, "resize": {"kind": "crop"}}, "kind is one of squash, letterbox, smar"),
        ({"coordinates": {"order": "x"}, "resize": {"kind": "none"}}, "order is one of xy, yx"),
        ({"coordinates": {}, "resize": {"kind": "smart", "max_pixels": 99}}, r"1, not 0 and 99\.$"),
        ({"coordinates": {}, "resize": {"kind": "smart", "factor": 28}}, r"1, not 28 and 0\.$"),
        ({"coordinates": {}, "resize": {"kind": "letterbox"}}, "'letterbox' has a side of at"),
    ],
)
def test_a_damaged_frame_is_one_sentence(tmp_path, saved, message):
    (tmp_path / FRAME).write_text(json.dumps(saved))
    with pytest.raises(ValueError, match=message):
        FrameRule.named(str(tmp_path))


def test_names_of_families_are_not_coordinates_of_something_else():
    assert set(FAMILY_RESIZES) <= set(COORDINATES)
