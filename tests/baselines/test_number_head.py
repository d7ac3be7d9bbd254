"""The output head of numbers: its precision, and generation on several ranks."""

from types import SimpleNamespace

import pytest
import torch
from torch import distributed

from mm_numeric.baselines import number_head as module
from mm_numeric.baselines.number_head import NumberHead, NumberOutput, WithNumberHead


def number_head(inner):
    head = NumberHead(8, inner)
    head.initialise()
    return head


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("inner", [None, 16])
def test_numbers_are_float32_under_autocast_too(inner, dtype):
    """Otherwise a model trained with ``trainer.bf16`` could not tell 1.001 from 1.002."""
    torch.manual_seed(0)
    head, hidden = number_head(inner), torch.randn(2, 3, 8)
    with torch.autocast("cpu", dtype=dtype):
        found = head(hidden)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, head(hidden), rtol=0, atol=0)


END, TEXT = 1, 2


class Counted:
    """Answers with an end token at once, and counts its forward passes."""

    config = SimpleNamespace(is_encoder_decoder=False)
    passes = 0

    def __call__(self, input_ids, **_):
        self.passes += 1
        logits = torch.nn.functional.one_hot(torch.full_like(input_ids, END), 4).float()
        return NumberOutput(logits=logits, numbers=torch.zeros(input_ids.shape))

    def next_ids(self, tokens, numbers):
        return tokens


def generate(model):
    options = {"max_new_tokens": 8, "eos_token_id": [END], "pad_token_id": 0}
    ids, mask = torch.full((2, 3), TEXT), torch.ones(2, 3).long()
    return WithNumberHead.generate(model, ids, mask, **options)[:, 3:].tolist()


@pytest.mark.parametrize("name", ["is_deepspeed_zero3_enabled", "is_fsdp_managed_module"])
def test_where_ranks_share_the_weights_all_run_the_model_equally_often(monkeypatch, name):
    """A rank that stopped alone would leave the others waiting for its part of the weights."""
    others = iter([5, 1, 0])  # answers of other ranks that go on, after each step
    monkeypatch.setattr(module, name, lambda *_: True)
    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed, "all_reduce", lambda going: going.add_(next(others)))
    model = Counted()
    assert generate(model) == [[END, 0, 0]] * 2
    assert model.passes == 3


def test_a_rank_with_weights_of_its_own_stops_alone(monkeypatch):
    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    model = Counted()
    assert generate(model) == [[END]] * 2
    assert model.passes == 1
