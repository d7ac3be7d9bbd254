"""Adapters in every part of a model. That only these change is tested in test_export.py."""

import json

import pytest
import torch
from adapted_runs import UNTIED, adapted_config, logits, run_of
from tiny_models import tiny_folder

from mm_numeric.training.run import train

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", ["llava", "qwen2_vl", "qwen3_vl", "paligemma"])
def test_every_part_with_layers_of_its_own_can_be_adapted(tmp_path, name):
    parts = dict.fromkeys(("vision", "projector", "language"), "adapted")
    if name in UNTIED:
        parts.update(embeddings="adapted", head="adapted")
    config = adapted_config(tmp_path, name, parts, {"rank": 2}, max_steps=1)
    train(config)
    table = json.loads((config.output_dir / "run.json").read_text())["modules"]
    assert {part for part, row in table.items() if row["trained"]} == set(parts)
    family, model = run_of(config)
    base = family.load_model(tiny_folder(name), config.model).eval()
    assert not torch.allclose(logits(config, family, base), logits(config, family, model))
