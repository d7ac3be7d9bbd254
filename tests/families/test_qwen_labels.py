"""Labels of the Qwen families with the real tokenizer: the answer and its end only."""

import functools
import os
from pathlib import Path

import pytest
import torch
from tiny_models import TINY
from tiny_qwens import box_rows, each_qwen, qwen
from transformers import Qwen2Tokenizer

from mm_numeric.answers import ROLES, Box, Instance, Polygon
from mm_numeric.config.data import DataSource
from mm_numeric.data.collator import TrainingCollator
from mm_numeric.data.examples import load_examples
from mm_numeric.families.qwen2_vl import Qwen2VL
from mm_numeric.tasks.grounding import Grounding

REAL = Path(__file__).parents[3] / "shared" / "data" / "tokenizers" / "qwen2"
pytestmark = pytest.mark.skipif(not REAL.is_dir(), reason="the real tokenizers are not here")

MARKERS = {"<|object_ref_start|>": 151646, "<|object_ref_end|>": 151647,
           "<|box_start|>": 151648, "<|box_end|>": 151649, "<|quad_start|>": 151650,
           "<|quad_end|>": 151651, "<|vision_start|>": 151652, "<|vision_end|>": 151653,
           "<|vision_pad|>": 151654, "<|image_pad|>": 151655, "<|video_pad|>": 151656}  # fmt: skip
"""The tokens that Qwen2-VL adds to those of Qwen2, and their ids in its checkpoints."""

BOXES = {
    "qwen2_vl": "<|box_start|>(100,333),(400,833)<|box_end|>",
    "qwen2_5_vl": '[{"bbox_2d": [11, 19, 45, 47]}]',
    "qwen3_vl": '[{"bbox_2d": [100, 333, 400, 833]}]',
}


@functools.cache
def tokenizer():
    """Return the tokenizer of Qwen2-VL, with the chat template of the tiny families."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    found = Qwen2Tokenizer.from_pretrained(REAL)
    found.add_tokens(list(MARKERS), special_tokens=True)
    found.chat_template = qwen(Qwen2VL).tokenizer.chat_template
    return found


@functools.cache
def real(cls):
    """Return a tiny family's image processor with the tokenizer of Qwen2-VL."""
    return cls(tokenizer(), qwen(cls).image_processor, TINY)


@pytest.mark.slow
@each_qwen
def test_what_is_supervised_is_the_answer_and_its_end(cls, tmp_path):
    box_rows(tmp_path)
    source = DataSource(path=str(tmp_path / "rows.jsonl"))
    rows = load_examples(Grounding(), source, tmp_path, training=True)
    family, task = real(cls), Grounding()
    vocabulary = family.vocabulary()
    batch = TrainingCollator(family, task, vocabulary)(rows)
    answers = [task.format(row.answer, family.frame(*size)).text
               for row, size in zip(rows, ((100, 60), (70, 112)), strict=True)]  # fmt: skip
    assert answers[0] == BOXES[cls.default_coordinates]
    decoded = family.tokenizer.decode(batch["labels"])
    assert decoded == "".join(f"{answer}<|im_end|>" for answer in answers)
    # The row before a token predicts it: one on, the supervised rows are the labels themselves.
    following = batch["input_ids"].roll(-1, dims=1)
    assert torch.equal(following[batch["supervised"]], batch["labels"])
    # Each digit of a coordinate is one number token, and each coordinate one number.
    spans = batch["spans"]
    coordinates = [level for row, size in zip(rows, ((100, 60), (70, 112)), strict=True)
                   for point in row.answer.points
                   for level in family.frame(*size).encode(point)]  # fmt: skip
    assert spans.value.tolist() == coordinates
    assert spans.role.tolist() == [ROLES.index("x"), ROLES.index("y")] * 4
    assert len(spans.position) == sum(len(str(level)) for level in coordinates)
    digits = family.tokenizer.decode(batch["labels"][spans.position])
    assert digits == "".join(map(str, coordinates))


@pytest.mark.slow
@each_qwen
def test_a_thousand_is_four_number_tokens(cls):
    family = real(cls)
    ids = family.answer("1000").ids[:-1]
    assert [family.tokenizer.decode([i]) for i in ids] == ["1", "0", "0", "0"]
    assert set(ids) <= {token.id for token in family.vocabulary().tokens}


@pytest.mark.slow
@each_qwen
def test_markers_are_one_token_each_and_end_nothing(cls):
    family = real(cls)
    assert family.answer("".join(MARKERS)).ids == [*MARKERS.values(), 151645]
    assert family.stop_ids == [151645, 151643]
    assert (family.image_id, family.pad_id) == (151655, 151643)
    assert family.text([*list(MARKERS.values())[:6], 151643]) == "".join(list(MARKERS)[:6])


@pytest.mark.slow
def test_labels_and_polygons_of_qwen2_vl_survive_the_tokenizer():
    family = real(Qwen2VL)
    frame = family.frame(100, 100)
    written = frame.write(
        [
            Instance(Box(10, 20, 40, 100), "the cat's 2nd toy"),
            Instance(Polygon(((0, 0), (50, 0), (100, 100))), "猫"),
        ]
    )
    answer = family.answer(written.text)
    assert family.text(answer.ids) == written.text
    assert [family.tokenizer.decode([i]) for i in answer.ids].count("<|box_start|>") == 1
    assert [i.label for i in frame.read(family.text(answer.ids)).items] == [
        "the cat's 2nd toy",
        "猫",
    ]
