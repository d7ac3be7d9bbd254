"""Generation with the token [NUM] on several ranks."""

from types import SimpleNamespace

import pytest
import torch
from torch import distributed

from mm_numeric.baselines import number_token
from mm_numeric.baselines.number_head import NumberOutput
from mm_numeric.baselines.xval import Xval

END, TEXT, NUMBER = 1, 2, 3


class Counted:
    """Answers with an end token at once, and counts its forward passes."""

    config = SimpleNamespace(is_encoder_decoder=False)
    passes = 0

    def __call__(self, input_ids, **_):
        self.passes += 1
        logits = torch.nn.functional.one_hot(torch.full_like(input_ids, END), 4).float()
        return NumberOutput(logits=logits, numbers=torch.zeros(input_ids.shape))


def generate(model):
    family = SimpleNamespace(
        encoder_decoder=False,
        stop_ids=[END],
        first_id=NUMBER,
        pad_id=0,
        predicted_ids=lambda numbers: numbers.long(),
    )
    inputs = {"input_ids": torch.full((2, 3), TEXT), "attention_mask": torch.ones(2, 3).long()}
    return Xval.generate_answers(family, model, inputs, 8)


@pytest.mark.parametrize("name", ["is_deepspeed_zero3_enabled", "is_fsdp_managed_module"])
def test_where_ranks_share_the_weights_all_run_the_model_equally_often(monkeypatch, name):
    """A rank that stopped alone would leave the others waiting for its part of the weights."""
    others = iter([5, 1, 0])  # answers of other ranks that go on, after each step
    monkeypatch.setattr(number_token, name, lambda *_: True)
    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed, "all_reduce", lambda going: going.add_(next(others)))
    model = Counted()
    answers = generate(model)
    assert model.passes == 3
    assert [ids for ids, _ in answers] == [[END, 0, 0]] * 2


def test_a_rank_with_weights_of_its_own_stops_alone(monkeypatch):
    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    model = Counted()
    assert [ids for ids, _ in generate(model)] == [[END]] * 2
    assert model.passes == 1
