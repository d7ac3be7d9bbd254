"""Adapters on every family's tiny twin: only the named parts change, and what was saved is read."""

import json
import re

import pytest
import torch
from rectangles import write_rectangles
from sums import SUMS

from mm_numeric.adapters import has_adapters
from mm_numeric.choose import choose
from mm_numeric.collate import TrainingCollator
from mm_numeric.config import config_from_dict
from mm_numeric.data import load_examples
from mm_numeric.families import FAMILIES
from mm_numeric.generate import predict
from mm_numeric.run_folder import read_run
from mm_numeric.train import load_family, load_model, train

BLIND = ("causal_lm", "t5")
UNTIED = ("llava", "yi_vl")  # twins whose head is not their embeddings


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """Eight pictures of rectangles, and as many sums."""
    folder = tmp_path_factory.mktemp("rows")
    sums = [{"id": str(i), "sum": s, "answer": a} for i, (s, a) in enumerate(SUMS.items())]
    (folder / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in sums))
    return {"rectangles": write_rectangles(folder), "sums": folder / "sums.jsonl"}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """The folder of the tiny twin of a family, made once."""
    made = {}

    def folder_of(name):
        if name not in made:
            made[name] = tmp_path_factory.mktemp("twins") / name
            choose(name, FAMILIES, "family", "test").make_tiny(made[name], seed=0)
        return str(made[name])

    return folder_of


def a_config(folder, rows, name, source, parts, lora=None, **trainer):
    """Return a run of a few steps."""
    data = {"path": str(rows["sums" if name in BLIND else "rectangles"])}
    task = {"name": "sums:Sums"} if name in BLIND else {"name": "grounding", "prompt": "{phrase}"}
    return config_from_dict(
        {
            "task": task,
            "data": {"train": data, "test": data},
            "model": {"name": source, "family": name, "dtype": "float32"},
            "parts": parts,
            "lora": lora,
            "trainer": {
                "output_dir": str(folder / "run"),
                "per_device_train_batch_size": 4,
                "max_steps": 3,
                "learning_rate": 1.0e-2,
                "save_strategy": "no",
                "seed": 0,
                **trainer,
            },
            "predict": {"max_new_tokens": 4},
        },
        where="test",
        title="test",
    )


def run_of(config):
    """Return the family and the model of a run."""
    folder = str(config.output_dir / "model")
    family = load_family(config, folder)
    return family, load_model(config, family, folder).eval()


def logits(config, family, model):
    """Return what a model says of the rows."""
    examples = load_examples(config.task, config.data.train, config.output_dir, training=True)
    batch = TrainingCollator(family, config.task, family.vocabulary())(examples)
    labels, _, _ = batch.pop("labels"), batch.pop("spans"), batch.pop("supervised", None)
    if family.encoder_decoder:
        batch["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(labels)
    with torch.no_grad():
        return model(**batch).logits


def weights(model):
    """Return a model's own weights under their own names, without its adapters."""
    inside = re.compile(r"base_model\.model\.|\.base_layer")
    state = model.state_dict()
    return {inside.sub("", name): state[name] for name in state if ".lora_" not in name}


@pytest.mark.parametrize("dora", [False, True])
@pytest.mark.parametrize("name", FAMILIES)
def test_only_the_named_parts_change(tmp_path, rows, checkpoint, name, dora):
    blind = name in BLIND
    parts = {"language": "adapted"} if blind else {"projector": "trained", "language": "adapted"}
    lora = {"rank": 4, "alpha": 8, "dora": dora}
    config = a_config(tmp_path, rows, name, checkpoint(name), parts, lora)
    train(config)
    assert has_adapters(config.output_dir / "model")
    family, model = run_of(config)
    before = weights(family.load_model(checkpoint(name), config.model))
    after = weights(model)
    assert before.keys() == after.keys()
    changed = {key for key in before if not torch.equal(before[key], after[key])}
    if blind:
        assert changed == set()
    else:
        assert {re.match(family.parts["projector"], key) is not None for key in changed} == {True}
    adapters = [n for n, p in model.named_parameters() if ".lora_" in n]
    layers = {n.removeprefix("base_model.model.").partition(".lora_")[0] for n in adapters}
    assert all(re.fullmatch(family.lora_targets, layer) for layer in layers)
    assert len(layers) >= 7
    assert len(adapters) == len(layers) * (3 if dora else 2)
    ups = [p for n, p in model.named_parameters() if ".lora_B." in n]
    assert sum(bool(p.any()) for p in ups) == len(ups)  # all were trained


@pytest.mark.parametrize("name", ["llava", "qwen2_vl", "qwen3_vl", "paligemma"])
def test_every_part_with_layers_of_its_own_can_be_adapted(tmp_path, rows, checkpoint, name):
    parts = dict.fromkeys(("vision", "projector", "language"), "adapted")
    if name in UNTIED:
        parts.update(embeddings="adapted", head="adapted")
    config = a_config(tmp_path, rows, name, checkpoint(name), parts, {"rank": 2})
    train(config)
    table = json.loads((config.output_dir / "run.json").read_text())["parts"]
    assert {part for part, row in table.items() if row["trained"]} == set(parts)
    family, model = run_of(config)
    base = family.load_model(checkpoint(name), config.model).eval()
    assert not torch.allclose(logits(config, family, base), logits(config, family, model))


def test_a_run_with_adapters_answers_rows(tmp_path, rows, checkpoint):
    config = a_config(tmp_path, rows, "llava", checkpoint("llava"), {"language": "adapted"})
    train(config)
    assert read_run(config.output_dir).lora.rank == 16
    assert predict(config.output_dir, None, tmp_path / "predictions.jsonl") == 8
