"""Train a model by rewards (config section ``grpo``): arguments, data set and trainer for TRL."""

from functools import partial
from typing import Any

from datasets import Dataset
from trl.trainer.grpo_config import GRPOConfig

from mm_numeric.answers import Example
from mm_numeric.config.schema import Config
from mm_numeric.data.collator import TrainingCollator
from mm_numeric.families.chat_template import listed
from mm_numeric.families.family import Family
from mm_numeric.rewards import Reward, reward, reward_columns
from mm_numeric.training.grpo_trainer import FamilyProcessor, RunGRPOTrainer


def grpo_arguments(config: Config, settings: dict[str, Any], *, cpu: bool) -> GRPOConfig:
    """Create TRL's GRPOConfig from ``settings`` (section ``trainer``) and the section ``grpo``."""
    grpo = config.grpo
    assert grpo is not None
    return GRPOConfig(
        **{
            "bf16": None if not cpu else False,
            **settings,
            **grpo.trainer,
            "reward_weights": [float(weight) for weight in grpo.rewards.values()],
        }
    )


def make_grpo_trainer(
    config: Config,
    family: Family,
    collator: TrainingCollator,
    examples: list[Example],
    **options: Any,
) -> RunGRPOTrainer:
    """Create the trainer; ``options`` are the model, ``args``, ``modules`` and callbacks."""
    if family.encoder_decoder:
        raise ValueError(
            f"{config.title}, grpo: TRL trains decoder-only models, and model.family "
            f"{family.name} is an encoder-decoder; choose another model, or remove grpo."
        )
    model, args = options["model"], options["args"]
    if family.takes_images and not hasattr(model.config, "image_token_id"):
        raise ValueError(
            f"{config.title}, grpo: TRL needs image_token_id in the config.json of the model, and "
            f"{family.name} has none; choose another model, or remove grpo."
        )
    model.generation_config.eos_token_id = list(family.stop_ids)
    assert config.grpo is not None
    if "max_completion_length" not in config.grpo.trainer:
        args.max_completion_length = config.predict.new_tokens
    if args.use_vllm:
        ends = {"stop_token_ids": list(family.stop_ids), "skip_special_tokens": False}
        args.generation_kwargs = {**ends, **(args.generation_kwargs or {})}
    return RunGRPOTrainer(
        family=family,
        reward_funcs=list(make_rewards(config, examples, FamilyProcessor(family))),
        train_dataset=_dataset(config, family, collator, examples),
        **options,
    )


def make_rewards(config: Config, examples: list[Example], tokenizer: Any = None) -> list[Reward]:
    """Return the rewards of the section ``grpo``, after checking that they fit the answers."""
    grpo = config.grpo
    assert grpo is not None
    try:
        rewards = [
            reward(name, task=config.task, tokenizer=tokenizer, answer_after=grpo.answer_after)
            for name in grpo.rewards
        ]
        for own in rewards:
            own.check(examples[0].answer)
    except ValueError as error:
        raise ValueError(f"{config.title}, grpo.rewards: {error}") from error
    return rewards


def _dataset(
    config: Config, family: Family, collator: TrainingCollator, examples: list[Example]
) -> Dataset:
    """Return a data set of prompts, images, targets and frames, which are made when read."""
    # Not a function in this one: `datasets` would disassemble all that it calls, for seconds.
    rows = partial(_rows, config, family, collator, examples)
    return Dataset.from_dict({"index": list(range(len(examples)))}).with_transform(rows)


def _rows(
    config: Config,
    family: Family,
    collator: TrainingCollator,
    examples: list[Example],
    batch: dict[str, list[int]],
) -> dict[str, list[Any]]:
    rows = []
    for example in map(examples.__getitem__, batch["index"]):
        images, frame = collator.load_image(example)
        columns = reward_columns(config.task, example.answer, frame)
        row: dict[str, Any] = {"id": example.id, "prompt": example.prompt, **columns}
        if family.takes_images:
            row["prompt"] = [{"role": "user", "content": example.prompt}]
            row["images"] = listed(images)
        rows.append(row)
    return {name: [row[name] for row in rows] for name in rows[0]}
