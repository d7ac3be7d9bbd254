"""In training, box_l1 divides by the largest coordinate of the model."""

from dataclasses import replace

import pytest
from tiny_models import TINY, small_config, tiny_checkpoint

from mm_numeric.data.collator import make_collator
from mm_numeric.families.qwen2_vl import Qwen2VL
from mm_numeric.training.run import make_trainer, training_arguments


@pytest.mark.slow
def test_coordinates_up_to_1_are_divided_by_1(tmp_path):
    config = small_config(tmp_path, "objective=box_l1")
    family = Qwen2VL.load(tiny_checkpoint(), replace(TINY, coordinates="unit_3"))
    trainer = make_trainer(
        config, training_arguments(config), [], make_collator(config, family), tiny_checkpoint()
    )
    assert trainer.objective.terms["box_l1"].scale == 1
