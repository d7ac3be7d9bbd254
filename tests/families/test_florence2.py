"""The Florence-2 family: prompts, answers, loss and boxes are those of the official processor."""

import functools
from dataclasses import replace

import pytest
import torch
from PIL import Image
from sized_rows import SIZES, sized_rows
from tiny_models import TINY, tiny_folder

from mm_numeric.answers import Box, Instance
from mm_numeric.data.collator import BATCH_KEYS, TrainingCollator
from mm_numeric.families.florence2 import Florence2
from mm_numeric.losses.numeric_loss import NumericLoss
from mm_numeric.tasks.grounding import Grounding

MODEL = replace(TINY, family="florence2")
TASK = Grounding()


@functools.cache
def family():
    return Florence2.load(tiny_folder("florence2"), MODEL)


@pytest.mark.slow
def test_the_first_loss_is_that_of_the_official_processor():
    asked = "<CAPTION_TO_PHRASE_GROUNDING>"
    rows = [replace(row, prompt=row.prompt.replace("Locate: ", asked)) for row in sized_rows()]
    model = family().load_model(tiny_folder("florence2"), MODEL).eval()
    images = [Image.open(row.image) for row in rows]
    processor, frames = family().processor, [family().frame(*image.size) for image in images]
    texts = [TASK.format(row.answer, f).text for row, f in zip(rows, frames, strict=True)]
    prompts = [row.prompt for row in rows]
    official = processor(images=images, text=prompts, padding=True, return_tensors="pt")
    # The tokenizer writes <s> and </s> around a text. ("labels" of padding have no loss.)
    answers = processor.tokenizer(texts, padding=True, return_tensors="pt")
    ids = answers["input_ids"]
    official["labels"] = ids.masked_fill(answers["attention_mask"] == 0, -100)
    batch = TrainingCollator(family(), TASK, family().vocabulary())(rows)
    labels, supervised, spans, _ = (batch.pop(key) for key in BATCH_KEYS)
    assert torch.equal(batch["input_ids"], official["input_ids"])
    assert torch.equal(batch["pixel_values"], official["pixel_values"])
    assert labels.tolist() == ids[answers["attention_mask"] == 1].tolist()
    with torch.no_grad():
        wanted = model(**official).loss
        logits = model(**batch, logits_to_keep=supervised).logits
        blind = model(**{**batch, "pixel_values": batch["pixel_values"].flip(0)}).logits
    found = NumericLoss("ce", vocabulary=family().vocabulary())(logits, labels, spans).loss
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-4)
    assert (logits - blind[supervised]).abs().max() > 1e-3  # the model sees its images
    assert len(spans.boxes) == len(SIZES)


def test_prompts_name_tasks_and_answers_are_bins_between_s_tokens():
    ids = family().prompts(["<OPEN_VOCABULARY_DETECTION>a cat"], [Image.new("RGB", (9, 5))]).ids[0]
    assert family().tokenizer.decode(ids[50:]) == "<s>Locate a cat in the image.</s>"
    assert ids[:50] == [family().image_id] * 50
    blind = family().question("<CAPTION>", 0)
    assert family().tokenizer.decode(blind) == "<s>What does the image describe?</s>"
    answer = family().answer("a cat<loc_7><loc_999>")
    tokens = family().tokenizer.convert_ids_to_tokens(answer.ids)
    assert [tokens[0], *tokens[-3:]] == ["<s>", "<loc_7>", "<loc_999>", "</s>"]
    assert family().text(answer.ids) == "a cat<loc_7><loc_999>"
    with pytest.raises(ValueError, match="has 2 <image> instead of 1; remove <image>"):
        family().question("a <image>", 50)
    with pytest.raises(ValueError, match="Task token <OD> should be the only content"):
        family().question("<OD>cat", 50)


def test_the_official_code_reads_the_same_box():
    size, box = (640, 480), Box(33.0, 159.0, 597.0, 372.5)
    frame = family().frame(*size)
    text = frame.write([Instance(box, "green car")]).text
    settings = {"phrase_grounding": {}}
    family().processor.post_processor.parse_task_config.update(settings)
    found = family().processor.post_process_generation(
        f"</s><s>{text}</s>", task="<CAPTION_TO_PHRASE_GROUNDING>", image_size=size
    )["<CAPTION_TO_PHRASE_GROUNDING>"]
    (ours,) = frame.read(text).items
    assert found["labels"] == [ours.label] == ["green car"]
    pixels = [int(x) for point in ours.shape.points for x in point]  # it drops fractions
    assert found["bboxes"] == [pixels]


def test_a_checkpoint_of_another_size_is_one_sentence():
    images = family().image_processor.__class__.from_dict(family().image_processor.to_dict())
    images.do_center_crop = True
    with pytest.raises(ValueError, match=r"do_center_crop True, .*, and Florence-2 needs a square"):
        Florence2(family().tokenizer, images, MODEL)
