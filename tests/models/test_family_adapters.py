"""Adapters on every family's tiny model: only the configured modules change, also after loading."""

import json
import re

import pytest
import torch
from adapted_runs import BLIND, UNTIED, adapted_config, logits, run_of
from tiny_models import tiny_folder

from mm_numeric.inference.generate import predict
from mm_numeric.models.adapters import has_adapters
from mm_numeric.registry import FAMILIES
from mm_numeric.runs.folder import read_run
from mm_numeric.training.run import train

pytestmark = pytest.mark.slow


def weights(model):
    """Return a model's own weights under their own names, without its adapters."""
    inside = re.compile(r"base_model\.model\.|\.base_layer")
    state = model.state_dict()
    return {inside.sub("", name): state[name] for name in state if ".lora_" not in name}


@pytest.mark.parametrize(
    ("name", "dora"),
    [*((name, False) for name in FAMILIES), *((n, True) for n in ("causal_lm", "qwen2_vl", "t5"))],
)
def test_only_the_named_parts_change(tmp_path, name, dora):
    blind = name in BLIND
    parts = {"language": "adapted"} if blind else {"projector": "trained", "language": "adapted"}
    lora = {"rank": 4, "alpha": 8, "dora": dora}
    config = adapted_config(tmp_path, name, parts, lora)
    train(config)
    assert has_adapters(config.output_dir / "model")
    family, model = run_of(config)
    before = weights(family.load_model(tiny_folder(name), config.model))
    after = weights(model)
    assert before.keys() == after.keys()
    changed = {key for key in before if not torch.equal(before[key], after[key])}
    if blind:
        assert changed == set()
    else:
        assert {
            re.match(family.module_patterns["projector"], key) is not None for key in changed
        } == {True}
    adapters = [n for n, p in model.named_parameters() if ".lora_" in n]
    layers = {n.removeprefix("base_model.model.").partition(".lora_")[0] for n in adapters}
    assert all(re.fullmatch(family.lora_targets, layer) for layer in layers)
    assert len(layers) >= 7
    assert len(adapters) == len(layers) * (3 if dora else 2)
    ups = [p for n, p in model.named_parameters() if ".lora_B." in n]
    assert sum(bool(p.any()) for p in ups) == len(ups)  # all were trained


@pytest.mark.parametrize("name", ["llava", "qwen2_vl", "qwen3_vl", "paligemma"])
def test_every_part_with_layers_of_its_own_can_be_adapted(tmp_path, name):
    parts = dict.fromkeys(("vision", "projector", "language"), "adapted")
    if name in UNTIED:
        parts.update(embeddings="adapted", head="adapted")
    config = adapted_config(tmp_path, name, parts, {"rank": 2})
    train(config)
    table = json.loads((config.output_dir / "run.json").read_text())["modules"]
    assert {part for part, row in table.items() if row["trained"]} == set(parts)
    family, model = run_of(config)
    base = family.load_model(tiny_folder(name), config.model).eval()
    assert not torch.allclose(logits(config, family, base), logits(config, family, model))


def test_a_run_with_adapters_answers_rows(tmp_path):
    config = adapted_config(tmp_path, "llava", {"language": "adapted"})
    train(config)
    assert read_run(config.output_dir).lora.rank == 16
    assert predict(config.output_dir, None, tmp_path / "predictions.jsonl") == 8
