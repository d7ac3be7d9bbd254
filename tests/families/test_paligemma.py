"""The PaliGemma family: prompts, answers, coordinates and training with real classes.

What its model sees of what is in test_paligemma_masks.py.
"""

import functools
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from rectangles import write_rectangles
from tiny_families import tiny_gemma_tokenizer
from tiny_models import ROOT, TINY, tiny_checkpoint, tiny_folder
from transformers import PaliGemmaProcessor

from mm_numeric.answers import Box, Instance
from mm_numeric.config.data import DataSource
from mm_numeric.config.schema import ModelConfig
from mm_numeric.data.collator import TrainingCollator
from mm_numeric.data.examples import load_examples
from mm_numeric.families.paligemma import PaliGemma
from mm_numeric.tasks.grounding import Grounding

SAMPLE_IMAGE = Image.new("RGB", (70, 50), (200, 100, 50))


@functools.cache
def family_of():
    return PaliGemma.load(tiny_folder("paligemma"), TINY)


# -- text -------------------------------------------------------------------------------------


def test_digits_and_locations_are_tokens_and_text_survives_the_tokenizer():
    family = family_of()
    texts = ("12:59", "<loc0012><loc1023> a cat ; <loc0000>", "[1, 20] , x", "naïve ☃ 3.14")
    assert [family.text(family.answer(text).ids) for text in texts] == list(texts)
    tokens = [family.tokenizer.convert_ids_to_tokens(family.answer(t).ids) for t in texts[:2]]
    assert tokens[0] == ["1", "2", ":", "5", "9", "<eos>"]
    assert tokens[1][:2] == ["<loc0012>", "<loc1023>"]
    assert family.tokenizer.convert_ids_to_tokens([family.pad_id, *family.stop_ids]) == [
        "<pad>",
        "<eos>",
    ]
    offsets = family.answer("<loc0012><loc1023> a").offsets
    assert offsets == [(0, 9), (9, 18), (18, 19), (19, 20), (0, 0)]


def test_prompt_and_answer_are_those_of_the_real_processor(tmp_path):
    family = family_of()
    processor = PaliGemmaProcessor(family.image_processor, tiny_gemma_tokenizer())
    collator = TrainingCollator(family, Grounding(), family.vocabulary())
    file = write_rectangles(tmp_path, 1)
    (example,) = load_examples(Grounding(), DataSource(path=str(file)), ROOT, training=True)
    batch = collator([example])
    image = Image.open(example.image)
    written = Grounding().format(example.answer, family.frame(*image.size))
    theirs = processor(images=image, text=f"<image>{example.prompt}", suffix=written.text)
    for name in ("input_ids", "attention_mask", "token_type_ids", "pixel_values"):
        assert torch.equal(batch[name], torch.tensor(np.array(theirs[name]))), name
    labels = torch.tensor(theirs["labels"])
    assert torch.equal(batch["labels"], labels[labels != -100])
    assert torch.equal(batch["supervised"][:, :-1], labels[:, 1:] != -100)


def test_a_question_without_an_image_has_no_placeholder():
    family = family_of()
    with_image, without = family.prompts(["detect it"] * 2, [SAMPLE_IMAGE, None]).ids
    assert family.tokenizer.decode(without) == "<bos>detect it\n"
    assert with_image == [family.image_id] * 16 + without
    assert family.image_tokens(640, 480) == 16
    assert family.prompts(["detect it"], [None]).images == {}


def test_a_prompt_that_holds_a_placeholder_is_rejected():
    with pytest.raises(ValueError, match="has 1 <image> instead of 0; remove <image>"):
        family_of().prompts(["<image>Where?"], [SAMPLE_IMAGE])


# -- images and coordinates -------------------------------------------------------------------


def test_an_image_is_squashed_and_a_place_is_seen_where_the_frame_says():
    family = family_of()
    image = Image.new("RGB", (140, 70))
    image.paste((255, 255, 255), (20, 30, 60, 50))
    (pixels,) = family.prompts(["it"], [image]).images["pixel_values"]
    assert pixels.shape == (3, 56, 56)
    view = family.frame(140, 70).view
    (x1, y1), (x2, y2) = view.to_resized(20, 30), view.to_resized(60, 50)
    assert (x1, y1, x2, y2) == (8, 24, 24, 40)
    bright = (pixels > 0).all(0).nonzero()
    assert bright.amin(0).tolist() == [y1, x1]
    assert (bright.amax(0) + 1).tolist() == [y2, x2]


def test_boxes_are_written_y_first_and_the_far_edge_is_bin_1023():
    frame = family_of().frame(200, 100)
    whole = Instance(Box(0, 0, 200, 100), "cat")
    assert frame.write([whole]).text == "<loc0000><loc0000><loc1023><loc1023> cat"
    left = frame.write([Instance(Box(0, 0, 100, 100))]).text
    assert left == "<loc0000><loc0000><loc1023><loc0512>"
    (read,) = frame.read("<loc0000><loc0000><loc1023><loc1023> cat").items
    assert (*read.shape.points[1], read.label) == (pytest.approx(200), pytest.approx(100), "cat")


# -- weights ----------------------------------------------------------------------------------


@functools.cache
def model_of(**changes):
    return family_of().load_model(tiny_folder("paligemma"), replace(TINY, **changes))


def test_images_go_through_a_model_of_lower_precision():
    family, model = family_of(), model_of(dtype="bfloat16")
    prompts = family.prompts(["it"], [SAMPLE_IMAGE])
    ids = torch.tensor(prompts.ids)
    inputs = family.model_inputs(ids, ids.ne(-1).int(), ids.eq(-1), prompts.images)
    assert prompts.images["pixel_values"].dtype == torch.float32
    assert model(**inputs).logits.dtype == torch.bfloat16
    assert model(**inputs).logits.isfinite().all()


def test_flash_attention_is_rejected():
    model = ModelConfig(name="tiny", attention="flash_attention_2")
    with pytest.raises(
        ValueError, match=r"model\.attention: flash_attention_2 .*bidirectional over the question"
    ):
        family_of().load_model(tiny_folder("paligemma"), model)


def test_checkpoints_of_another_family_are_rejected():
    with pytest.raises(ValueError, match=r"of type 'qwen2_vl', and PaliGemma is 'paligemma'"):
        PaliGemma.load(tiny_checkpoint(), TINY)
    family = family_of()
    other = type(family.image_processor)(size={"height": 56, "width": 56})
    with pytest.raises(ValueError, match=r"image_seq_length None.*model\.family"):
        PaliGemma(family.tokenizer, other, TINY)
