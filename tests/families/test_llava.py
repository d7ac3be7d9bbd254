"""LLaVA-1.5: padded images, coordinate frames, and exact labels."""

import functools
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw
from tiny_models import TINY, tiny_folder
from tokenizers import Tokenizer, normalizers
from transformers import (
    CLIPVisionModel,
    Dinov2Model,
    Dinov2WithRegistersModel,
    LlamaTokenizer,
    LlavaForConditionalGeneration,
    LlavaImageProcessorPil,
    LlavaProcessor,
    PreTrainedTokenizerFast,
    SiglipVisionModel,
    ViTModel,
)

from mm_numeric.answers import Box, Example, Instance
from mm_numeric.data.collator import TrainingCollator
from mm_numeric.families.llava import Llava
from mm_numeric.families.tiny import tiny_gpt2_tokenizer
from mm_numeric.families.yi_vl import YiVL
from mm_numeric.tasks.grounding import Grounding

LLAMA = Path(__file__).parents[3] / "shared" / "data" / "tokenizers" / "llama2"
MEAN = (122, 116, 104)  # of CLIP, cut off to whole numbers: what squares are padded with
SAMPLE_IMAGE = Image.new("RGB", (80, 60), (200, 100, 50))
SIZES = [(640, 200), (200, 640), (333, 200), (200, 333), (57, 40), (40, 57), (64, 64), (501, 500)]


@pytest.fixture(scope="module")
def tiny():
    """The folder of a tiny checkpoint."""
    return Path(tiny_folder("llava"))


def changed(folder, tmp_path, **changes):
    """Return a copy of a checkpoint with another config.json."""
    copy = tmp_path / "changed"
    shutil.copytree(folder, copy)
    config = json.loads((copy / "config.json").read_text("utf-8"))
    for name, value in changes.items():
        *path, last = name.split("__")
        place = config
        for key in path:
            place = place[key]
        place[last] = value
    (copy / "config.json").write_text(json.dumps(config), "utf-8")
    return copy


def sized(folder, side):
    """Give the image processor of a checkpoint another size."""
    file = folder / "preprocessor_config.json"
    size = {"height": side, "width": side}
    settings = {"size": {"shortest_edge": side}, "crop_size": size, "do_center_crop": True}
    file.write_text(json.dumps(json.loads(file.read_text("utf-8")) | settings), "utf-8")
    return folder


@pytest.fixture
def full_size(tiny, tmp_path):
    """The family with images of 336 pixels, like LLaVA-1.5."""
    folder = sized(changed(tiny, tmp_path, vision_config__image_size=336), 336)
    return Llava.load(str(folder), TINY)


def seen(processor, image):
    """Return a preprocessed image as colours [height, width, 3]."""
    values = processor(images=[image], return_tensors="np")["pixel_values"][0]
    values = np.asarray(values).transpose(1, 2, 0)
    return (values * processor.image_std + processor.image_mean) * 255


# Images and coordinates


@pytest.mark.parametrize("size", SIZES)
def test_a_dot_is_seen_where_its_coordinates_say(full_size, size):
    """Half a pixel of padding is preserved: the difference of the sides is odd in some sizes."""
    width, height = size
    frame = full_size.frame(width, height)
    dot = max(size) // 40 + 2
    for x, y in [(0.1, 0.2), (0.9, 0.8), (0.5, 0.5), (0.8, 0.1)]:
        left, top = int(x * (width - dot)), int(y * (height - dot))
        image = Image.new("RGB", size, MEAN)
        box = [left, top, left + dot - 1, top + dot - 1]
        ImageDraw.Draw(image).rectangle(box, (255, 255, 255))
        light = (seen(full_size.image_processor, image) - MEAN).sum(axis=2)
        centre = np.arange(336) + 0.5
        found = light.sum(axis=0) @ centre / light.sum(), light.sum(axis=1) @ centre / light.sum()
        middle = left + dot / 2, top + dot / 2
        assert found == pytest.approx(frame.view.to_resized(*middle), abs=0.05)
        levels = frame.encode(middle)
        assert found == pytest.approx([level / 1000 * 336 for level in levels], abs=0.05 + 0.168)


def test_the_far_edge_of_a_long_image_survives(tiny, tmp_path, full_size):
    image = Image.new("RGB", (640, 200), (0, 0, 0))
    box = Box(608, 50, 640, 150)
    ImageDraw.Draw(image).rectangle([608, 50, 639, 149], (255, 255, 255))
    white = seen(full_size.image_processor, image).min(axis=2) > 190
    frame = full_size.frame(640, 200)
    left, top = frame.view.to_resized(box.x1, box.y1)
    right, bottom = frame.view.to_resized(box.x2, box.y2)
    rows, columns = np.flatnonzero(white.any(axis=1)), np.flatnonzero(white.any(axis=0))
    assert [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1] == pytest.approx(
        [left, top, right, bottom], abs=1
    )
    assert right == 336
    assert frame.write([Instance(box)]).text == "[0.950, 0.422, 1.000, 0.578]"
    # With the checkpoint's own settings the image would be cropped.
    cropping = LlavaImageProcessorPil.from_pretrained(tmp_path / "changed")
    assert cropping.do_center_crop
    assert not (seen(cropping, image).min(axis=2) > 190).any()


def test_a_square_is_padded_with_the_mean_colour(full_size):
    colours = seen(full_size.image_processor, Image.new("RGB", (640, 200), (255, 255, 255)))
    above = (640 - 200) // 2 * 336 // 640
    for padding in (colours[: above - 2], colours[-above + 2 :]):
        assert np.abs(padding - MEAN).max() < 0.01


@pytest.mark.parametrize("strategy", ["default", "full"])
def test_there_is_a_placeholder_for_every_feature(tiny, tmp_path, strategy):
    folder = changed(tiny, tmp_path, vision_feature_select_strategy=strategy)
    family = Llava.load(str(folder), TINY)
    model = family.load_model(str(folder), TINY)
    prompts = family.prompts(["box"], [SAMPLE_IMAGE])
    (features,) = model.get_image_features(**prompts.images).pooler_output
    assert prompts.ids[0].count(family.image_id) == len(features) == 16 + (strategy == "full")
    settings = Llava.load_config(str(folder), TINY)
    assert family.num_image_features(family.images([SAMPLE_IMAGE] * 3), settings) == 3 * len(
        features
    )
    theirs = LlavaProcessor(
        LlavaImageProcessorPil.from_pretrained(folder),
        family.tokenizer,
        patch_size=14,
        vision_feature_select_strategy=strategy,
        num_additional_image_tokens=1,
    )
    assert (
        family.image_tokens(80, 60)
        == theirs._get_num_multimodal_tokens([(60, 80)])["num_image_tokens"].pop()
    )


TOWERS = {
    "clip": (CLIPVisionModel, 56, 1),
    "siglip": (SiglipVisionModel, 56, 0),
    "dinov2": (Dinov2Model, 518, 1),  # accepts other sizes than its own
    "dinov2_with_registers": (Dinov2WithRegistersModel, 518, 5),
    "vit": (ViTModel, 56, 1),
}
"""Towers, the size in pixels in their configuration, and their tokens besides patches."""


@pytest.mark.parametrize("strategy", ["default", "full"])
@pytest.mark.parametrize("name", TOWERS)
def test_image_tokens_are_those_of_any_tower(tiny, tmp_path, name, strategy):
    """The size is that of the image processor, and the tower says how many features it has."""
    tower, own_px, others = TOWERS[name]
    small = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    config = tower.config_class(**small, num_attention_heads=2, patch_size=14, image_size=own_px)
    config.model_type = tower.config_class.model_type
    folder = changed(
        tiny, tmp_path, vision_config=config.to_dict(), vision_feature_select_strategy=strategy
    )
    family = Llava.load(str(sized(folder, 56)), TINY)
    model = LlavaForConditionalGeneration(Llava.load_config(str(folder), TINY))
    assert isinstance(model.model.vision_tower, tower)
    prompts = family.prompts(["box"], [SAMPLE_IMAGE])
    assert prompts.images["pixel_values"].shape[2:] == (56, 56)
    (features,) = model.get_image_features(**prompts.images).pooler_output
    assert prompts.ids[0].count(family.image_id) == len(features)
    assert len(features) == 16 + others - (strategy == "default")
    processor = family.make_processor(str(folder), TINY)
    (ids,) = processor(images=[SAMPLE_IMAGE], text=["<image>"])["input_ids"]
    assert ids.count(family.image_id) == len(features)


def test_an_image_size_that_the_tower_rejects_is_an_error(tiny, tmp_path):
    folder = sized(changed(tiny, tmp_path), 70)
    with pytest.raises(ValueError, match=r"images of 70 x 70 pixels, and the vision tower rejects"):
        Llava.load(str(folder), TINY)


# Prompts and answers


def test_prompts(tiny):
    family = Llava.load(str(tiny), TINY)
    shown, plain = family.prompts(["What?", "What?"], [SAMPLE_IMAGE, None]).ids
    images = "<image>" * 16
    assert family.tokenizer.decode(shown) == f"<s> USER: {images}\nWhat? ASSISTANT:"
    assert family.tokenizer.decode(plain) == "<s> USER: What? ASSISTANT:"


def test_the_chat_template_of_a_checkpoint_is_used(tiny):
    family = Llava.load(str(tiny), TINY)
    parts = (
        "{% for part in messages[0]['content'] %}"
        "{{ '<image>\n' if part['type'] == 'image' else part['text'] }}{% endfor %}"
    )
    family.tokenizer.chat_template = "{{ bos_token }}Q: " + parts + " A:"
    shown, plain = family.prompts(["What?", "What?"], [SAMPLE_IMAGE, None]).ids
    assert family.tokenizer.decode(shown) == "<s> Q: " + "<image>" * 16 + "\nWhat? A:"
    assert family.tokenizer.decode(plain) == "<s> Q: What? A:"
    assert [ids.count(family.tokenizer.bos_token_id) for ids in (shown, plain)] == [1, 1]


def test_a_question_with_the_mark_of_an_image_is_rejected(tiny):
    family = Llava.load(str(tiny), TINY)
    with pytest.raises(ValueError, match="has 2 <image> instead of 1; remove <image>"):
        family.prompts(["What is <image>?"], [SAMPLE_IMAGE])
    family.tokenizer.chat_template = "{{ messages[0]['content'][-1]['text'] }}"
    with pytest.raises(ValueError, match="has 0 <image> instead of 1"):
        family.prompts(["What?"], [SAMPLE_IMAGE])


@pytest.fixture(scope="module")
def llama(tiny, tmp_path_factory):
    """A function that returns a family with LLaMA-2's real tokenizer, which is slow to load."""
    folder = functools.cache(lambda kind: llama_folder(tiny, tmp_path_factory.mktemp(kind), kind))

    @functools.cache
    def load(family_class, kind):
        file = folder(kind) / "config.json"
        config = json.loads(file.read_text("utf-8"))
        config["architectures"] = [family_class.model_class.__name__]
        file.write_text(json.dumps(config), "utf-8")
        return family_class.load(str(folder(kind)), TINY)

    return load


def llama_folder(tiny, folder, kind):
    """Return a checkpoint, without weights, with LLaMA-2's real tokenizer.

    Args:
        tiny: A checkpoint whose configuration it has.
        folder: Where to.
        kind: model: only tokenizer.model, which has no ``<image>``; json: as transformers saves it
            today; old_json: as it was saved when llava-hf's was, without a pre-tokenizer.
    """
    if not LLAMA.is_dir():
        pytest.skip("the real tokenizers are not here")
    pytest.importorskip("sentencepiece")
    for name in ("config.json", "preprocessor_config.json"):
        shutil.copy(tiny / name, folder)
    if kind == "model":
        shutil.copy(LLAMA / "tokenizer.model", folder)
        return folder
    tokenizer = LlamaTokenizer.from_pretrained(LLAMA, add_bos_token=True, pad_token="<pad>")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    if kind == "old_json":
        backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        backend.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        )
        backend.pre_tokenizer = None
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=backend,
            bos_token="<s>",
            eos_token="</s>",
            unk_token="<unk>",
            pad_token="<pad>",
        )
    tokenizer.save_pretrained(folder)
    return folder


ANSWERS = ("[0.250, 0.100, 1.000, 0.987]", "7:05", "none", "(12,34),(567,89)", "-3.25", "[]")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family_class", "kind"),
    [(Llava, "model"), (Llava, "json"), (Llava, "old_json"), (YiVL, "model")],
)
def test_answers_of_the_real_tokenizer(llama, kind, family_class):
    family = llama(family_class, kind)
    tokenizer = family.tokenizer
    assert tokenizer.convert_ids_to_tokens(family.stop_ids) == ["</s>"]
    vocabulary = family.vocabulary()
    written = family.prompt_text("Where is 1?", with_image=False)
    (prompt,) = family.prompts(["Where is 1?"], [None]).ids
    assert prompt[0] == tokenizer.bos_token_id
    for text in ANSWERS:
        answer = family.answer(text)
        assert tokenizer(f"{written} {text}")["input_ids"] + family.stop_ids == prompt + answer.ids
        assert family.text(answer.ids) == text
        numbers = [
            (vocabulary.tokens[vocabulary.classes[token]].digits, text[start:end])
            for token, (start, end) in zip(answer.ids, answer.offsets, strict=True)
            if token in vocabulary.classes
        ]
        assert numbers == [(c, c) for c in text if c.isdigit()]
    with_image = family.prompts(["Where is 1?"], [SAMPLE_IMAGE]).ids[0]
    at = with_image.index(family.image_id)
    if kind == "model":  # the LLaVA code tokenises the texts around an image alone
        before, after = family.prompt_text("Where is 1?", with_image=True).split("<unk>")
        assert with_image[:at] == tokenizer(before)["input_ids"]
        after_ids = tokenizer(after.removeprefix(" "), add_special_tokens=False)["input_ids"]
        assert with_image[at + 16 :] == after_ids
    assert with_image[at : at + 16] == [family.image_id] * 16
    assert with_image.count(family.image_id) == 16
    assert family.pad_id != family.image_id


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["model", "json", "old_json"])
def test_labels_of_the_real_tokenizer(llama, tmp_path, kind):
    family = llama(Llava, kind)
    file = tmp_path / "image.png"
    SAMPLE_IMAGE.save(file)
    example = Example(id="1", image=file, prompt="box", answer=Box(20, 15, 40, 30), where="here")
    vocabulary = family.vocabulary()
    batch = TrainingCollator(family, Grounding(), vocabulary)([example])
    answer = "[0.250, 0.312, 0.500, 0.500]"
    assert family.tokenizer.decode(batch["labels"]) == f"{answer}</s>"
    digits = [vocabulary.tokens[j].digits for j in batch["spans"].target.tolist()]
    assert digits == [c for c in answer if c.isdigit()]
    assert batch["spans"].value.tolist() == [0.25, 0.312, 0.5, 0.5]


def test_a_folder_without_a_tokenizer_is_rejected(tiny, tmp_path):
    folder = changed(tiny, tmp_path)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ValueError, match=r"neither a tokenizer\.json nor a tokenizer\.model"):
        Llava.load(str(folder), TINY)


# Errors


def test_checkpoints_of_other_families_are_rejected(tiny):
    with pytest.raises(
        ValueError, match=r"of type .qwen2_vl.*and LLaVA-1\.5 is 'llava'.*correct model\.family"
    ):
        Llava.load(tiny_folder("qwen2_vl"), TINY)
    with pytest.raises(
        ValueError, match=r"of YiVLForCond.*and LLaVA-1\.5 is LlavaForCond.*correct model\.family"
    ):
        Llava.load(tiny_folder("yi_vl"), TINY)
    with pytest.raises(
        ValueError, match=r"of LlavaForCond.*and Yi-VL is YiVLForCond.*correct model\.family"
    ):
        YiVL.load(str(tiny), TINY)


def test_a_tokenizer_without_any_token_for_an_image_is_rejected():
    tokenizer = tiny_gpt2_tokenizer()
    tokenizer.name_or_path = "other/model"
    with pytest.raises(ValueError, match=r"other/model has no <image>.*not a LLaVA-1\.5 checkp"):
        Llava(tokenizer, None, TINY)
