"""The Kosmos-2 family: prompts and loss are those of the official processor, and answers of a
batch do not depend on its other prompts."""

import functools
from dataclasses import replace

import pytest
import torch
from PIL import Image
from sized_rows import SIZES, sized_rows
from tiny_models import TINY, small_config, tiny_folder

from mm_numeric.answers import Box
from mm_numeric.config.reader import config_from_dict
from mm_numeric.data.collator import BATCH_KEYS, TrainingCollator, make_collator, prompt_batch
from mm_numeric.families.kosmos2 import Kosmos2
from mm_numeric.inference.generate import generate_tokens
from mm_numeric.losses.numeric_loss import NumericLoss
from mm_numeric.tasks.grounding import Grounding

MODEL = replace(TINY, family="kosmos2")
TASK = Grounding()


@functools.cache
def family():
    return Kosmos2.load(tiny_folder("kosmos2"), MODEL)


def questions():
    """Return questions about boxes, in images of four sizes, as the model was trained with."""
    asked = "<grounding><phrase> {}</phrase>"
    rows = sized_rows()
    return [replace(r, prompt=asked.format(r.prompt.removeprefix("Locate: "))) for r in rows]


def test_the_first_loss_is_that_of_the_official_processor():
    rows = questions()
    model = family().load_model(tiny_folder("kosmos2"), MODEL).eval()
    official_model = Kosmos2.model_class.from_pretrained(tiny_folder("kosmos2")).eval()
    images = [Image.open(row.image) for row in rows]
    boxes = [
        [tuple(x / edge for x, edge in zip(sum(row.answer.points, ()), size * 2, strict=True))]
        for row, size in zip(rows, SIZES, strict=True)
    ]
    texts = [row.prompt for row in rows]
    whole = family().processor(
        images=images, text=texts, bboxes=boxes, padding=True, return_tensors="pt"
    )
    end = torch.full((len(rows), 1), family().pad_id)
    ids = torch.cat([whole["input_ids"], end], dim=1)
    lengths = whole["attention_mask"].sum(1)
    ids[range(len(rows)), lengths] = family().stop_ids[0]
    mask = torch.arange(ids.shape[1]) <= lengths[:, None]
    begin = (ids == family().token_id("<object>")).int().argmax(1)
    labels = ids.masked_fill(~mask | (torch.arange(ids.shape[1]) < begin[:, None]), -100)
    features = torch.cat([whole["image_embeds_position_mask"], torch.zeros_like(end)], dim=1)
    batch = TrainingCollator(family(), TASK, family().vocabulary())(rows)
    wanted, supervised, spans, _ = (batch.pop(key) for key in BATCH_KEYS)
    assert torch.equal(batch["input_ids"], ids)
    assert torch.equal(batch["image_embeds_position_mask"], features)
    assert torch.equal(batch["pixel_values"], whole["pixel_values"])
    assert wanted.tolist() == labels[labels >= 0].tolist()
    assert len(spans.value) == 0  # a token is a point
    with torch.no_grad():
        logits = model(**batch, logits_to_keep=supervised).logits
        loss = official_model(
            pixel_values=whole["pixel_values"], input_ids=ids, attention_mask=mask.long(),
            image_embeds_position_mask=features, labels=labels,
        ).loss  # fmt: skip
        blind = model(**{**batch, "pixel_values": batch["pixel_values"].flip(0)}).logits
    found = NumericLoss("ce", vocabulary=family().vocabulary())(logits, wanted, spans).loss
    torch.testing.assert_close(found, loss, rtol=0, atol=1e-4)
    assert (logits - blind[supervised]).abs().max() > 1e-3  # the model sees its images


def test_one_placeholder_of_an_image_keeps_the_question():
    """As a model card shows it."""
    whole, short = (family().question("Where is it?", tokens) for tokens in (65, 1))
    assert short == [*whole[:2], *whole[66:]]


def test_an_answer_does_not_depend_on_the_other_prompts_of_its_batch():
    rows = questions()
    blind = replace(rows[0], prompt="Why?", image=None)
    rows = [rows[0], blind, rows[3]]
    model = family().load_model(tiny_folder("kosmos2"), MODEL).eval()
    together, _ = prompt_batch(family(), rows)
    lengths = together["attention_mask"].sum(1)
    assert len(set(lengths.tolist())) == 3
    written = generate_tokens(model, family(), together, 8)
    for i, row in enumerate(rows):
        alone, _ = prompt_batch(family(), [row])
        assert generate_tokens(model, family(), alone, 8)[0].tolist() == (
            written[i, -len(alone["input_ids"][0]) - 8 :].tolist()
        )
    plain = Kosmos2.model_class.from_pretrained(tiny_folder("kosmos2")).eval()
    alone, _ = prompt_batch(family(), rows[:1])
    assert torch.equal(*(generate_tokens(m, family(), alone, 8) for m in (plain, model)))


def test_what_kosmos_2_cannot_do_is_one_sentence(tmp_path):
    with pytest.raises(ValueError, match="has 2 <image> instead of 1; remove <image>"):
        family().question("a <image>", 65)
    with pytest.raises(ValueError, match=r"the answer 'a .' holds '.', for which the tokenizer"):
        family().answer("a \u2603")
    images = family().image_processor.__class__()
    with pytest.raises(ValueError, match=r"shortest_edge.: 224}, .*, and Kosmos-2 needs a square"):
        Kosmos2(family().tokenizer, images, MODEL)
    shapes = {
        "task": "grounding", "data": {"train": {"render": 1}, "test": {"render": 1}},
        "model": {"name": "tiny", "family": "kosmos2"}, "trainer": {"output_dir": str(tmp_path)},
    }  # fmt: skip
    config = config_from_dict({**shapes, "objective": "ntil"}, where="test", title="test")
    with pytest.raises(ValueError, match=r"objective: numeric losses need a number for each coord"):
        make_collator(config, family())
    make_collator(replace(config, task=small_config(tmp_path).task), family())  # clocks have digits
    make_collator(config_from_dict(shapes, where="test", title="test"), family())


def test_a_box_of_the_grid_is_read_in_pixels():
    frame = family().frame(640, 480)
    text = "<object><patch_index_0044><patch_index_0863></object>"
    found = Grounding().parse(text, frame)
    assert sum(found.points, ()) == pytest.approx((250, 22.5, 630, 397.5))
    assert Grounding().format(Box(250, 22.5, 630, 397.5), frame).text == text
