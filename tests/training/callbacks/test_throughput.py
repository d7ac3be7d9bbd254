"""Throughput on one process and on several ranks."""

from types import SimpleNamespace

import pytest
import torch

from mm_numeric.training.callbacks.throughput import Throughput
from mm_numeric.training.unread import read


def test_a_group_of_one_rank_gathers_nothing() -> None:
    """NCCL refuses counts on the CPU, also in the group of one rank that DeepSpeed makes."""

    def gather(own: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("Tensors must be CUDA and dense")

    throughput = Throughput(
        SimpleNamespace(num_processes=1, device=torch.device("cpu"), gather=gather)
    )
    throughput.count(12, samples=3)
    entries = read([throughput.unread()])
    seconds = 12 / entries["speed/tokens_per_second"]
    assert entries["speed/samples_per_second"] == pytest.approx(3 / seconds)
