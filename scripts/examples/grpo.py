"""Train a model on rewards for its own answers, with TRL's GRPOTrainer.

    pip install 'mm-numeric[train,datasets]' trl
    python scripts/examples/grpo.py mine.yaml model.name=runs/mine/model

The questions, images and true answers are the training rows of the config, and the model starts
from ``model.name``, which has a chat template. The rewards in the last lines are those of clock
times. Copy this file to change them or the settings of GRPOConfig.
"""

import sys
from functools import partial
from pathlib import Path
from typing import Any

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from mm_numeric.answers import Example
from mm_numeric.config.reader import read_config
from mm_numeric.config.schema import Config
from mm_numeric.data.examples import load_examples
from mm_numeric.data.framing import load_framed_image
from mm_numeric.families.chat_template import listed, message
from mm_numeric.families.family import Family
from mm_numeric.models.loading import load_family, load_model
from mm_numeric.rewards import reward, reward_columns


def make_trainer(config: Config, rewards: dict[str, float], **settings: Any) -> GRPOTrainer:
    """Return a trainer; ``rewards`` maps names to weights, ``settings`` are those of GRPOConfig."""
    family = load_family(config, config.model.name)
    model = load_model(config, family, config.model.name)
    model.generation_config.eos_token_id = list(family.stop_ids)
    examples = load_examples(config.task, config.data.train, Path(config.data.cache), training=True)
    data = Dataset.from_dict({"index": range(len(examples))})
    make = partial(reward, task=config.task, tokenizer=family.tokenizer)
    return GRPOTrainer(
        model=model,
        reward_funcs=[make(name) for name in rewards],
        args=GRPOConfig(
            output_dir=str(config.output_dir),
            max_completion_length=config.predict.new_tokens,
            reward_weights=list(rewards.values()),
            **settings,
        ),
        train_dataset=data.with_transform(partial(rows, config, family, examples)),
        processing_class=family.processor if family.takes_images else family.tokenizer,
    )


def rows(
    config: Config, family: Family, examples: list[Example], batch: dict[str, list[int]]
) -> dict[str, list[Any]]:
    """Return the prompts, images, targets and frames of a batch of indices, as columns."""
    found = []
    for example in map(examples.__getitem__, batch["index"]):
        images, frame = load_framed_image(family, example)
        row: dict[str, Any] = reward_columns(config.task, example.answer, frame)
        row["prompt"] = [{"role": "user", "content": example.prompt}]
        if family.takes_images:
            row["prompt"] = [message("user", example.prompt, with_image=True)]
            row["images"] = listed(images)
        found.append(row)
    return {name: [row[name] for row in found] for name in found[0]}


if __name__ == "__main__":
    mine = read_config(sys.argv[1], sys.argv[2:])
    trainer = make_trainer(mine, {"time": 1.0, "format": 0.1}, num_generations=8)
    trainer.train()
    trainer.save_model()
