"""Text and images of Qwen2-VL, Qwen2.5-VL and Qwen3-VL, through real transformers classes."""

import json
import shutil

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from tiny_models import TINY, tiny_family
from tiny_qwens import checkpoint, each_qwen, qwen, real_sizes
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

from mm_numeric.config.schema import ModelConfig
from mm_numeric.data.images import open_image
from mm_numeric.families.qwen2_vl import Qwen2VL
from mm_numeric.families.tiny import tiny_gpt2_tokenizer
from mm_numeric.geometry.frames import Resize

SAMPLE_IMAGE = Image.new("RGB", (70, 100), (200, 100, 50))
MARKERS = ["<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>", "<|box_end|>",
           "<|quad_start|>", "<|quad_end|>"]  # fmt: skip


# Text


def test_digits_are_tokens_and_text_survives_the_tokenizer():
    tokenizer = tiny_family().tokenizer
    for text in ("7:05", "12:59", "What time is it?", "naïve ☃ 3.14"):
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert tokenizer.decode(ids) == text
    ids = tokenizer("12:59", add_special_tokens=False)["input_ids"]
    assert [tokenizer.decode([i]) for i in ids] == ["1", "2", ":", "5", "9"]
    assert len(tokenizer('[{"bbox_2d": [12, 3, 40, 51]}]')["input_ids"]) == 21


def test_special_tokens_stand_in_the_order_of_qwen_s_own():
    vocabulary = tiny_family().tokenizer.get_vocab()
    first = vocabulary["<|endoftext|>"]
    ends = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    assert [vocabulary[token] - first for token in [*ends, *MARKERS]] == list(range(9))
    assert vocabulary["<|image_pad|>"] - first == 151655 - 151643


@each_qwen
def test_prompt_has_one_placeholder_for_each_merged_patch(cls):
    family = qwen(cls)
    ids, without = family.prompts(["What time is it?", "Why?"], [SAMPLE_IMAGE, None]).ids
    view = family.frame(*SAMPLE_IMAGE.size).view
    tokens = view.width_px * view.height_px // family.resize.factor**2
    assert family.tokenizer.decode(ids) == (
        f"<|im_start|>user\n<|vision_start|>{'<|image_pad|>' * tokens}<|vision_end|>"
        "What time is it?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert tokens == family.image_tokens(*SAMPLE_IMAGE.size) > 1
    assert family.tokenizer.decode(without) == (
        "<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_the_checkpoint_s_own_template_decides_on_a_system_prompt():
    family = Qwen2VL.load(checkpoint(Qwen2VL), TINY)
    plain = family.prompts(["Why?"], [None]).ids[0]
    system = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
    family = Qwen2VL.load(checkpoint(Qwen2VL), TINY)
    family.tokenizer.chat_template = system + family.tokenizer.chat_template
    with_system = family.prompts(["Why?"], [None]).ids[0]
    assert family.tokenizer.decode(with_system) == system + family.tokenizer.decode(plain)


def test_a_template_without_a_place_for_the_image_is_rejected():
    family = Qwen2VL.load(checkpoint(Qwen2VL), TINY)
    with pytest.raises(ValueError, match=r"has 2 <\|image_pad\|> instead of 1; remove"):
        family.prompts(["What is <|image_pad|>?"], [SAMPLE_IMAGE])
    family.tokenizer.chat_template = "{{ messages[0]['content'][-1]['text'] }}"
    with pytest.raises(ValueError, match=r"has 0 <\|image_pad\|> instead of 1; .* chat template"):
        family.prompts(["What time is it?"], [SAMPLE_IMAGE])


@each_qwen
def test_an_answer_ends_with_the_first_of_the_tokens_that_stop_generation(cls):
    family = qwen(cls)
    answer = family.answer("7:05")
    vocabulary = family.tokenizer.get_vocab()
    assert family.stop_ids == [vocabulary["<|im_end|>"], vocabulary["<|endoftext|>"]]
    assert answer.ids[-1] == family.stop_ids[0]
    assert answer.offsets == [(0, 1), (1, 2), (2, 3), (3, 4), (0, 0)]


@each_qwen
def test_markers_of_coordinates_survive_and_end_nothing(cls):
    """They are special tokens, and answers that stop at <|object_ref_start|> a known complaint."""
    family = qwen(cls)
    written = "".join(MARKERS)
    ids = [family.token_id(marker) for marker in MARKERS]
    assert family.answer(written).ids == [*ids, family.stop_ids[0]]
    assert set(ids) <= set(family.tokenizer.all_special_ids)
    assert family.text([*ids, family.stop_ids[0], ids[0]]) == written
    assert family.text([*ids, family.stop_ids[1], ids[0]]) == written


def test_another_family_s_tokenizer_is_rejected():
    tokenizer = tiny_gpt2_tokenizer()
    tokenizer.name_or_path = "other/model"
    with pytest.raises(ValueError, match=r"other/model has no <\|image_pad\|>.*model\.family"):
        Qwen2VL(tokenizer, None, TINY)


# Images


@each_qwen
@pytest.mark.parametrize(
    "size", [(1, 1), (1, 200), (27, 29), (42, 70), (2000, 10), (333, 512), (1280, 720)]
)
def test_the_frame_is_what_the_real_image_processor_makes(cls, size):
    for family in (qwen(cls), real_sizes(cls)):
        view = family.frame(*size).view
        prompts = family.prompts(["?"], [Image.new("RGB", size)])
        (grid,) = prompts.images["image_grid_thw"].tolist()
        patch = family.image_processor.patch_size
        assert (1, view.height_px, view.width_px) == (1, grid[1] * patch, grid[2] * patch)
        assert prompts.ids[0].count(family.image_id) == grid[1] * grid[2] // 4
    assert real_sizes(cls).resize.factor == (32 if cls.default_coordinates == "qwen3_vl" else 28)


@pytest.mark.slow
@given(st.integers(1, 4000), st.integers(1, 4000), st.sampled_from([28, 32]),
       st.integers(1, 200_000), st.integers(0, 200_000))  # fmt: skip
@examples(300)
def test_smart_resize_is_that_of_transformers(width, height, factor, min_pixels, more):
    limits = {"factor": factor, "min_pixels": min_pixels, "max_pixels": min_pixels + more}
    if max(width, height) <= 200 * min(width, height):
        view = Resize(kind="smart", **limits).view(width, height)
        assert (view.height_px, view.width_px) == smart_resize(height, width, **limits)


def test_images_are_seen_in_colour_and_upright(clock_examples):
    _, clocks = clock_examples
    assert open_image(clocks[0]).mode == "RGB"


@each_qwen
def test_image_limits_change_the_processor_the_frame_and_what_is_saved(cls, tmp_path):
    factor = qwen(cls).resize.factor
    limits = {"min_pixels": factor**2, "max_pixels": 9 * factor**2}
    family = cls.load(checkpoint(cls), ModelConfig(name="tiny", image_size=limits))
    size = family.image_processor.size
    assert (size["shortest_edge"], size["longest_edge"]) == (factor**2, 9 * factor**2)
    assert family.image_tokens(4000, 4000) == family.image_tokens(3 * factor, 3 * factor) == 9
    assert family.image_tokens(factor, factor) == 1
    family.save(tmp_path)
    again = cls.load(str(tmp_path), TINY)
    assert again.resize == family.resize
    assert again.resize != qwen(cls).resize


def test_limits_of_real_checkpoints_stand_in_keys_of_their_own(tmp_path):
    """preprocessor_config.json of Qwen2.5-VL has min_pixels and max_pixels, and no size."""
    shutil.copytree(checkpoint(Qwen2VL), tmp_path, dirs_exist_ok=True)
    file = tmp_path / "preprocessor_config.json"
    raw = json.loads(file.read_text())
    del raw["size"]
    file.write_text(json.dumps({**raw, "min_pixels": 3136, "max_pixels": 12845056}))
    own = Qwen2VL.load(str(tmp_path), TINY)
    assert (own.resize.min_pixels, own.resize.max_pixels) == (3136, 12845056)
    changed = Qwen2VL.load(
        str(tmp_path), ModelConfig(name="x", image_size={"max_pixels": 28**2 * 6})
    )
    assert (changed.resize.min_pixels, changed.resize.max_pixels) == (3136, 28**2 * 6)
    changed.save(tmp_path / "saved")
    saved = shutil.copytree(tmp_path / "saved", tmp_path / "again")
    assert Qwen2VL.load(str(saved), TINY).resize == changed.resize


@each_qwen
@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (
            {"min_pixels": 9000, "max_pixels": 2000},
            r": min_pixels 9000 is more than max_pixels 2000",
        ),
        (
            {"min_pixels": 99_999},
            r": min_pixels 99999 is more than max_pixels \d+ \(the checkpoint's value",
        ),
        ({"max_pixels": 700}, r"\.max_pixels: 700 is less than the smallest image of Qwen"),
        ({"side": 224}, r"\.side: Qwen\S*-VL has no such setting. Known: min_pixels, max_pixels"),
    ],
)
def test_limits_that_no_image_meets_are_rejected(cls, limits, message):
    with pytest.raises(ValueError, match=rf"^model\.image_size{message}"):
        cls.load(checkpoint(cls), ModelConfig(name="tiny", image_size=limits))
