"""Qwen3-VL: boxes in thousandths of the image, patches of 16, deepstack projectors."""

import re

import torch
from PIL import Image
from tiny_qwens import box_rows, checkpoint, qwen, qwen_model

from mm_numeric.answers import Box
from mm_numeric.config.data import DataSource
from mm_numeric.config.schema import ModelConfig
from mm_numeric.data.collator import TrainingCollator
from mm_numeric.data.examples import load_examples
from mm_numeric.families.qwen3_vl import Qwen3VL
from mm_numeric.tasks.grounding import Grounding


def test_boxes_are_thousandths_of_the_image_at_any_limits():
    small = Qwen3VL.load(
        checkpoint(Qwen3VL), ModelConfig(name="x", image_size={"max_pixels": 4096})
    )
    frames = qwen(Qwen3VL).frame(100, 60), small.frame(100, 60)
    assert (frames[0].view.width_px, frames[0].view.height_px) == (96, 64)
    assert frames[0].view != frames[1].view
    for frame in frames:
        text = Grounding().format(Box(10, 20, 40, 50), frame).text
        assert text == '[{"bbox_2d": [100, 333, 400, 833]}]'
        text = Grounding().format(Box(0, 0, 100, 60), frame).text
        assert text == '[{"bbox_2d": [0, 0, 1000, 1000]}]'
        assert Grounding().parse(text, frame) == Box(0, 0, 100, 60)


def test_every_projector_is_trained_those_of_deepstack_included(tmp_path):
    box_rows(tmp_path)
    rows = load_examples(
        Grounding(), DataSource(path=str(tmp_path / "rows.jsonl")), tmp_path, training=True
    )
    family, model = qwen(Qwen3VL), qwen_model(Qwen3VL)
    batch = TrainingCollator(family, Grounding(), family.vocabulary())(rows)
    labels, supervised, _ = (batch.pop(key) for key in ("labels", "supervised", "spans"))
    logits = model(**batch, logits_to_keep=supervised).logits
    torch.nn.functional.cross_entropy(logits, labels).backward()
    projector = {
        name: parameter.grad
        for name, parameter in model.named_parameters()
        if re.match(family.module_patterns["projector"], name)
    }
    assert sum("deepstack" in name for name in projector) == 6
    assert all(grad.abs().max() > 0 for grad in projector.values())


def test_what_deepstack_adds_reaches_the_answer():
    family, model = qwen(Qwen3VL), qwen_model(Qwen3VL)
    prompts = family.prompts(["Where?"], [Image.effect_noise((90, 70), 90).convert("RGB")])
    ids = torch.tensor(prompts.ids)
    answered = torch.zeros_like(ids, dtype=torch.bool)
    inputs = family.model_inputs(ids, torch.ones_like(ids), answered, prompts.images)
    with torch.no_grad():
        before = model(**inputs).logits
        for parameter in model.model.visual.deepstack_merger_list[0].linear_fc2.parameters():
            parameter.zero_()
        after = model(**inputs).logits
    first = prompts.ids[0].index(family.image_id)
    assert torch.equal(before[:, :first], after[:, :first])
    assert (before[:, -1] - after[:, -1]).abs().max() > 1e-3
