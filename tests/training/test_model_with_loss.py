"""The documentation's module that computes the loss from hidden states, under DDP and FSDP2."""

import models_with_loss
import pytest
import torch
from processes import Job
from safetensors.torch import load_file


@pytest.mark.slow
def test_two_ranks_train_like_one_process(tmp_path):
    """Under FSDP2 the weight of the head is sharded outside of the forward pass."""
    job = Job(
        models_with_loss.main, [str(tmp_path)], tmp_path / "out.txt", ranks=models_with_loss.RANKS
    )
    assert job.wait() == models_with_loss.RANKS * [0], job.text()
    expected = models_with_loss.train("plain", [0, 1])
    for form in ("ddp", "fsdp"):
        found = load_file(tmp_path / f"{form}.safetensors")
        assert found.keys() == expected.keys()
        for name, value in found.items():
            torch.testing.assert_close(value, expected[name], rtol=0, atol=1e-5, msg=name)
