"""Runs with ``data.augment``: a resumed run sees the images of an uninterrupted one."""

import pytest
import torch
from rank_runs import cut, weights
from tiny_models import small_config

from mm_numeric.training.run import train

pytestmark = pytest.mark.slow


def job(folder, *overrides):
    return small_config(
        folder,
        "data.train.synthetic.rows=12",
        "data.augment={operations: {colour: 0.8, blur: 0.5}}",
        "trainer.max_steps=9",
        "trainer.save_steps=4",
        "trainer.save_total_limit=3",
        *overrides,
    )


def test_a_resumed_run_goes_on_in_its_epoch(tmp_path):
    """Three epochs of three steps; it resumes in the second, with workers that persist."""
    train(job(tmp_path / "whole"))
    workers = ("trainer.dataloader_num_workers=2", "trainer.dataloader_persistent_workers=true")
    config = job(tmp_path / "cut", *workers)
    train(config)
    wanted = weights(tmp_path / "whole")
    assert same(weights(tmp_path / "cut"), wanted)
    cut(tmp_path / "cut", 4)
    train(config, resume=True)
    assert same(weights(tmp_path / "cut"), wanted)
    train(job(tmp_path / "plain", "data.augment=null"))
    assert not same(weights(tmp_path / "plain"), wanted)


def same(found, wanted):
    return all(torch.equal(value, wanted[name]) for name, value in found.items())
