"""A finished run of a tiny model on rendered clocks, and its images; no test may change them."""

import functools

from tiny_models import ROOT, small_config

from mm_numeric.data.examples import load_examples
from mm_numeric.training.run import train


@functools.cache
def clock_run():
    """Return the folder of a run of one step."""
    steps = ("trainer.max_steps=1", "trainer.save_strategy='no'")
    return train(small_config(ROOT / "clock_run", *steps)).parent


@functools.cache
def clock_images():
    """Return the images of the first three test rows."""
    config = small_config(ROOT / "clock_run")
    rows = load_examples(config.task, config.data.test, ROOT / "cache", training=False)
    return [row.image for row in rows[:3]]
