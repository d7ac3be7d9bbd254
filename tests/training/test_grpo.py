"""GRPO on the model families: prompts, log-probabilities, rewards, resuming, ranks, comparisons."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from each_family import marked
from planned import seed_configs
from processes import Job
from safetensors.torch import load_file
from train_runs import cut_off, same
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLVisionBlock

from mm_numeric.answers import IMAGE
from mm_numeric.cli import main as cli
from mm_numeric.comparison.rows import compared_rows
from mm_numeric.config.reader import config_from_dict
from mm_numeric.data.collator import make_collator, padded_inputs
from mm_numeric.data.examples import load_examples
from mm_numeric.data.framing import load_framed_image
from mm_numeric.inference.generate import predict
from mm_numeric.models.loading import load_family, model_source
from mm_numeric.registry import FAMILIES
from mm_numeric.training.run import make_trainer, train, training_arguments

DECODERS = [name for name in FAMILIES if name not in ("t5", "florence2", "kosmos2")]
GRPO = {"rewards": {"time": 1, "format": 0.5},
        "trainer": {"num_generations": 4, "gradient_checkpointing": False}}  # fmt: skip


def settings(folder, family="qwen2_vl", **changes):
    """Return a config that trains a tiny model by rewards, as a dictionary."""
    return {
        "task": "clock",
        "data": {"train": {"render": 12, "seed": 1}, "test": {"render": 4, "seed": 2},
                 "cache": str(folder / "cache")},
        "model": {"family": family, "name": "tiny", "dtype": "float32"},
        "trainer": {"output_dir": str(folder / "run"), "per_device_train_batch_size": 8,
                    "max_steps": 4, "save_steps": 2, "logging_steps": 1, "learning_rate": 1.0e-3},
        "predict": {"max_new_tokens": 6},
        "grpo": GRPO,
        **changes,
    }  # fmt: skip


def config_of(*arguments, **changes):
    return config_from_dict(settings(*arguments, **changes), where="small.yaml", title="small")


@pytest.fixture(scope="module")
def warm(tmp_path_factory):
    """The folder of a model that has learnt to write times, as a warm start."""
    folder = tmp_path_factory.mktemp("warm")
    trainer = {"output_dir": str(folder / "run"), "per_device_train_batch_size": 12,
               "max_steps": 25, "learning_rate": 4.0e-3}  # fmt: skip
    train(config_of(folder, grpo=None, trainer=trainer))
    return {"family": "qwen2_vl", "name": str(folder / "run/model"), "dtype": "float32"}


def log_of(run):
    return [json.loads(line) for line in (run / "log.jsonl").open()]


@pytest.mark.slow
def test_a_run_counts_its_tokens_logs_its_rewards_evaluates_and_resumes(tmp_path, warm):
    config = config_of(tmp_path, evaluate={"every_steps": 4, "rows": 4}, model=warm)
    train(config)
    run, again = tmp_path / "run", tmp_path / "again"
    lines = [line for line in log_of(run) if "loss" in line]
    lengths = [8 * line["completions"]["mean_length"] for line in lines]
    counted = [line["generated_tokens"] for line in lines]
    assert counted == [round(sum(lengths[: i + 1])) for i in range(4)]
    assert json.loads((run / "run.json").read_text())["generated_tokens"] == counted[-1]
    for line in lines:
        rewards, failures = line["rewards"], line["unparseable"]["time"]
        assert line["reward"] == pytest.approx(
            rewards["time"]["mean"] + 0.5 * rewards["format"]["mean"]
        )
        assert failures["all"] == pytest.approx(
            sum(value for reason, value in failures.items() if reason != "all")
        )
        assert line["reward"] > 0.1
        assert line["speed"]["samples_per_second"] > 0
    assert {"within_5_minutes", "failures"} <= log_of(run)[-1]["eval"].keys()

    shutil.copytree(run, again)
    cut_off(again, 2)
    resumed = replace(config, trainer={**config.trainer, "output_dir": str(again)})
    text = (again / "config.yaml").read_text().replace(str(run), str(again))
    (again / "config.yaml").write_text(text)
    train(resumed, resume=True)
    assert same(run, again)
    assert json.loads((again / "run.json").read_text())["generated_tokens"] == counted[-1]
    assert predict(again, None, again / "predictions.jsonl") == 4


def test_an_evaluation_leaves_the_rewards_to_the_next_line_of_the_training(tmp_path):
    config = config_of(tmp_path, evaluate={"every_steps": 1, "rows": 2})
    source = model_source(config, tmp_path)
    family = load_family(config, source)
    examples = load_examples(config.task, config.data.train, tmp_path / "cache", training=True)
    trainer = make_trainer(
        config, training_arguments(config), examples, make_collator(config, family), source
    )
    trainer.model.train()
    (tmp_path / "run").mkdir(exist_ok=True)
    trainer._metrics["train"]["reward"] += [0.25, 0.75]
    trainer.log({"eval_mae_minutes": 2.0, "eval_failures": 1})
    assert "reward" not in trainer.state.log_history[-1]
    assert trainer.state.log_history[-1]["eval_mae_minutes"] == 2
    assert log_of(tmp_path / "run")[-1]["eval"] == {"mae_minutes": 2, "failures": 1}
    trainer.log({"train_runtime": 1.0})
    assert trainer.state.log_history[-1]["reward"] == 0.5


def rows_of(config, family):
    """Return two examples, the second without its image; a family of texts has no images."""
    source = config.data.train
    cache = Path(config.data.cache)
    first, second = load_examples(config.task, source, cache, training=True)[:2]
    return [first if family.takes_images else replace(first, image=None, size_px=None),
            replace(second, image=None, size_px=None, more_images=(),
                    prompt=second.prompt.replace(IMAGE, ""))]  # fmt: skip


SPANS = {"task": {"name": "temporal_spans", "max_frames": 3},
         "grpo": {**GRPO, "rewards": {"iou": 1}}}  # fmt: skip


@pytest.mark.parametrize("name", marked(DECODERS))
def test_log_probabilities_equal_those_of_the_familys_own_batches(tmp_path, name):
    """One row at a time, without padding, as the family trains on labels (slow reference).

    Questions of one family have several images.
    """
    config = config_of(tmp_path, name, **SPANS if name == "qwen2_vl" else {})
    source = model_source(config, tmp_path)
    family = load_family(config, source)
    examples = rows_of(config, family)
    assert len(examples[0].images) == (3 if name == "qwen2_vl" else family.takes_images)
    trainer = make_trainer(
        config, training_arguments(config), examples, make_collator(config, family), source
    )
    model = trainer.model.train()
    trainer.state.max_steps = 1
    inputs = [trainer.train_dataset[i] for i in (0, 0, 0, 0, 1, 1, 1, 1)]
    batch = trainer._generate_and_score_completions(inputs)
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
    mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
    images = {name: batch.get(name) for name in ("pixel_values", "image_grid_thw", "num_images")}
    types = {name: batch[name] for name in batch if name.endswith("token_type_ids")}
    found, _, _ = trainer._get_per_token_logps_and_entropies(
        model, ids, mask, batch["completion_ids"].shape[1], **images, **types
    )
    for i, row in enumerate(inputs):
        example = examples[i // 4]
        image, _ = load_framed_image(family, example)
        prompts = family.prompts([example.prompt], [image])
        assert batch["prompt_ids"][i][batch["prompt_mask"][i] > 0].tolist() == prompts.ids[0]
        assert row["id"] == example.id
        completion = batch["completion_ids"][i][batch["completion_mask"][i] > 0].tolist()
        whole = prompts.ids[0] + completion
        logits = model(**padded_inputs(family, prompts, [whole], left=False)).logits[0]
        expected = logits.log_softmax(-1)[torch.arange(len(whole) - 1), whole[1:]]
        expected = expected[len(prompts.ids[0]) - 1 :]
        torch.testing.assert_close(found[i, : len(completion)], expected, rtol=1e-4, atol=1e-4)
    assert trainer.generated_tokens == int(batch["completion_mask"].sum())


@pytest.mark.slow
def test_an_adapter_is_trained_against_its_own_start(tmp_path, warm, monkeypatch):
    """With ``beta``, TRL adds a frozen copy of the adapter, which is not saved."""
    forward, differentiated = Qwen2VLVisionBlock.forward, []

    def recorded(block, hidden, *args, **kwargs):
        differentiated.append(hidden.requires_grad and torch.is_grad_enabled())
        return forward(block, hidden, *args, **kwargs)

    monkeypatch.setattr(Qwen2VLVisionBlock, "forward", recorded)
    grpo = {**GRPO, "trainer": {"num_generations": 4, "gradient_checkpointing": True, "beta": 0.1}}
    modules = {"language": "adapted", "vision": "frozen", "projector": "frozen",
               "embeddings": "frozen", "head": "frozen"}  # fmt: skip
    config = config_of(tmp_path, model=warm, grpo=grpo, modules=modules)
    train(config)
    saved = load_file(tmp_path / "run/model/adapter_model.safetensors")
    assert {name.rpartition(".lora_")[2] for name in saved} == {"A.weight", "B.weight"}
    assert any(value.any() for name, value in saved.items() if "lora_B" in name)
    assert log_of(tmp_path / "run")[-1]["kl"] >= 0
    assert set(differentiated) == {False}  # the frozen tower
    assert predict(tmp_path / "run", None, tmp_path / "run/predictions.jsonl") == 4


@pytest.mark.slow
def test_two_ranks_train_one_model(tmp_path, warm):
    file = tmp_path / "small.yaml"
    file.write_text(yaml.safe_dump(settings(tmp_path, model=warm)))
    overrides = ["trainer.per_device_train_batch_size=4", "trainer.use_cpu=true"]
    job = Job(cli.main, ["grpo", str(file), *overrides], tmp_path / "output.txt", ranks=2)
    assert job.wait(300) == [0, 0], job.text()
    lines = [line for line in log_of(tmp_path / "run") if "loss" in line]
    lengths = [8 * line["completions"]["mean_length"] for line in lines]
    assert lines[-1]["generated_tokens"] == round(sum(lengths))
    assert all(line["reward"] > 0.1 for line in lines)


def test_a_row_of_a_comparison_starts_from_the_shared_warm_start(tmp_path):
    grpo = {"name": "grpo", "with": {"grpo": GRPO, "trainer.learning_rate": 1.0e-4}}
    compare = {"output_dir": str(tmp_path), "seeds": [0], "objectives": ["ce", grpo],
               "warm_start": {"max_steps": 7}}  # fmt: skip
    config = config_of(tmp_path, grpo=None, compare=compare)
    names = [(row.name, row.warm_start, row.config.grpo is not None)
             for row in compared_rows(config)]  # fmt: skip
    assert names == [("ce", "warm_start", False), ("ce_times_1.3", "warm_start", False),
                     ("grpo", "warm_start", True)]  # fmt: skip
    warm, *others = seed_configs(config, 0)
    assert warm.grpo is None
    assert warm.trainer["max_steps"] == 7
    assert {own.model.name for own in others} == {str(tmp_path / "seed0/warm_start/model")}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"grpo": {"rewards": {}}}, "at least one reward"),
        ({"grpo": {"rewards": {"time": 1}, "trainer": {"num_generation": 4}}},
         "Did you mean 'num_generations'"),
        ({"grpo": {"rewards": {"time": 1}, "trainer": {"reward_weights": [1]}}}, "grpo.rewards"),
        ({"grpo": {"rewards": {"time": 1}, "trainer": {"beta": "much"}}}, "grpo.trainer.beta"),
        ({"objective": "ntil"}, "combined with objective"),
        ({"distil": {}}, "combined with distil"),
        ({"data": {"train": {"path": "a.jsonl"}, "test": {"path": "a.jsonl"},
                   "on_bad_image": "skip"}}, "combined with data.on_bad_image: skip"),
    ],
)  # fmt: skip
def test_a_mistake_in_the_config_is_one_sentence(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        config_of(tmp_path, **changes)


def test_mistakes_that_need_the_model_or_the_command(tmp_path, capsys):
    config = config_of(tmp_path, "t5", task="arithmetic", grpo={**GRPO, "rewards": {"correct": 1}})
    with pytest.raises(ValueError, match="encoder-decoder"):
        train(config)
    unfit = replace(config, grpo=replace(config.grpo, rewards={"time": 1}))
    with pytest.raises(ValueError, match=r"small, grpo.rewards: .* 'time' does not fit"):
        train(unfit)
    with pytest.raises(ValueError, match=r"trainer: .*divisible by"):
        training_arguments(
            replace(config, trainer={**config.trainer, "per_device_train_batch_size": 3})
        )
    assert cli.main(["grpo", "clock_tiny"]) == 2
    assert "no section grpo" in capsys.readouterr().err
