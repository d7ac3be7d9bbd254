"""In training, box_l1 divides by the largest coordinate of the model."""

from tiny_models import small_config, tiny_checkpoint, tiny_family

from mm_numeric.geometry.coordinates import COORDINATES
from mm_numeric.training.run import make_trainer, training_arguments


def test_coordinates_up_to_1_are_divided_by_1(tmp_path):
    config = small_config(tmp_path, "objective=box_l1")
    family = tiny_family()
    family.coordinates = COORDINATES["unit_3"]
    trainer = make_trainer(config, training_arguments(config), [], family, tiny_checkpoint())
    assert trainer.objective.terms["box_l1"].scale == 1
