"""Yi-VL: its projector, its prompt, and images at the token ``<unk>``."""

import pytest
import torch
from PIL import Image
from tiny_models import TINY, tiny_folder
from torch import nn

from mm_numeric.answers import Box, Instance
from mm_numeric.families.yi_vl import SYSTEM_PROMPT, YiVL

SAMPLE_IMAGE = Image.new("RGB", (80, 60), (200, 100, 50))


@pytest.fixture(scope="module")
def tiny():
    """The folder of a tiny checkpoint."""
    return tiny_folder("yi_vl")


@pytest.fixture
def family(tiny):
    """Its family."""
    return YiVL.load(tiny, TINY)


def test_the_projector_is_two_linear_layers_with_norms(family, tiny):
    model = family.load_model(tiny, TINY)
    projector = model.model.multi_modal_projector
    layers = nn.Sequential(  # as numbered in the checkpoints of Yi-VL
        nn.Linear(96, 96), nn.LayerNorm(96), nn.GELU(), nn.Linear(96, 96), nn.LayerNorm(96)
    )
    names = {"0": "linear_1", "1": "norm_1", "3": "linear_2", "4": "norm_2"}
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in projector.parameters():
            parameter.normal_(generator=generator)
    for number, name in names.items():
        layers[int(number)].load_state_dict(getattr(projector, name).state_dict())
    features = torch.randn(2, 5, 96, generator=generator)
    torch.testing.assert_close(projector(features), layers(features))
    assert len(list(projector.parameters())) == len(list(layers.parameters())) == 8


def test_a_new_projector_is_drawn_like_the_rest(tiny, family):
    projector = family.load_model(tiny, TINY).model.multi_modal_projector
    for linear in (projector.linear_1, projector.linear_2):
        assert 0.095 < linear.weight.std() < 0.105
        assert not linear.bias.any()


def test_the_prompt_is_yi_s_own(family):
    text = family.prompt_text("Where is the cat?", with_image=True)
    assert text.startswith("This is a chat between an inquisitive human and an AI assistant. Assu")
    assert "answers. 这是一个好奇的人类和一个人工智能助手之间的对话。假设" in text
    assert text.endswith("\n\n### Human: <unk>\nWhere is the cat?\n### Assistant:")
    plain = family.prompt_text("Where is the cat?", with_image=False)
    assert plain == f"{SYSTEM_PROMPT}\n\n### Human: Where is the cat?\n### Assistant:"


def test_the_image_stands_where_the_mark_was(family):
    (ids,) = family.prompts(["Where is the cat?"], [SAMPLE_IMAGE]).ids
    assert ids.count(family.image_id) == 16
    at = ids.index(family.image_id)
    before, after = ids[:at], ids[at + 16 :]
    tokenizer = family.tokenizer
    first, second = family.prompt_text("Where is the cat?", True).split("<unk>")
    assert before == tokenizer(first)["input_ids"]
    assert after == tokenizer(second, add_special_tokens=False)["input_ids"]
    assert family.image_id == tokenizer.unk_token_id


def test_an_answer_begins_with_the_space_after_the_prompt(family):
    """Yi's tokenizer writes no space itself, and mm_default has one after ``Assistant:``."""
    tokenizer = family.tokenizer
    assert tokenizer.tokenize("(1") == ["(", "1"]
    answer = family.answer("(1,2)")
    tokens = tokenizer.convert_ids_to_tokens(answer.ids)
    assert tokens == ["▁(", "1", ",", "2", ")", "<|endoftext|>"]
    assert answer.offsets == [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (0, 0)]
    assert family.text(answer.ids) == "(1,2)"
    (prompt,) = family.prompts(["Where?"], [None]).ids
    whole = tokenizer(f"{family.prompt_text('Where?', False)} (1,2)")["input_ids"]
    assert prompt + answer.ids[:-1] == whole


def test_no_text_becomes_the_token_that_stands_for_an_image(family):
    ids = family.prompts(["naïve ☃ 图 \u2603 \x00"], [None]).ids[0]
    assert family.image_id not in ids
    with pytest.raises(ValueError, match="has 1 <unk> instead of 0"):
        family.prompts(["What is <unk>?"], [None])


def test_padding_is_not_taken_for_an_image(family):
    """Yi's own padding is ``<unk>``."""
    assert family.tokenizer.pad_token_id == family.image_id != family.pad_id


def test_what_is_written_from_the_next_turn_on_is_cut_off(family):
    ids = family.tokenizer("(1,2),(3,4)\n### Human: no", add_special_tokens=False)["input_ids"]
    assert family.text(ids) == "(1,2),(3,4)"
    assert family.text(family.answer("(1,2),(3,4)").ids) == "(1,2),(3,4)"


def test_places_are_parts_of_999_of_the_padded_square(family):
    text = family.frame(640, 200).write([Instance(Box(0, 0, 640, 200))]).text
    assert text == "(0,343),(999,656)"  # 220 and 420 of 640
