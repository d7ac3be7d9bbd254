"""Runs with ``data.augment``: a resumed run sees the images of an uninterrupted one."""

import multiprocessing

import pytest
import torch
from run_files import cut_off, weights
from tiny_models import small_config

from mm_numeric.training.run import train

pytestmark = pytest.mark.slow


def job(folder, *overrides):
    return small_config(
        folder,
        "data.train.synthetic.rows=8",
        "data.augment={operations: {colour: 0.8, blur: 0.5}}",
        "trainer.max_steps=6",
        "trainer.save_steps=3",
        "trainer.save_total_limit=3",
        *overrides,
    )


def test_a_resumed_run_goes_on_in_its_epoch(tmp_path):
    """Three epochs of two steps; it resumes in the second, with workers that persist."""
    train(job(tmp_path / "whole", "trainer.save_strategy='no'"))
    workers = ("trainer.dataloader_num_workers=2", "trainer.dataloader_persistent_workers=true")
    config = job(tmp_path / "cut", *workers)
    train(config)
    wanted = weights(tmp_path / "whole" / "run")
    assert same(weights(tmp_path / "cut" / "run"), wanted)
    assert not multiprocessing.active_children()  # none is left to the garbage collector
    cut_off(tmp_path / "cut" / "run", 3)
    train(config, resume=True)
    assert same(weights(tmp_path / "cut" / "run"), wanted)
    train(job(tmp_path / "plain", "data.augment=null", "trainer.save_strategy='no'"))
    assert not same(weights(tmp_path / "plain" / "run"), wanted)


def same(found, wanted):
    return all(torch.equal(value, wanted[name]) for name, value in found.items())
