"""What one training step costs on the simulated device, for each family.

python tests/helpers/step_costs.py              the rows of docs/training/waiting.md
python tests/helpers/step_costs.py qwen2_vl     one of them, with what causes its waits
"""

import logging
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import simulated_device
import torch
from simulated_device import Costs, record
from tiny_models import small_config
from transformers import Trainer, set_seed

from mm_numeric.config.schema import Config
from mm_numeric.data.collator import BATCH_KEYS, TrainingCollator, make_collator
from mm_numeric.data.examples import load_examples
from mm_numeric.models.adapters import add_adapters
from mm_numeric.models.loading import load_family, load_model, model_source
from mm_numeric.models.parameter_groups import ModelModules
from mm_numeric.numbers.spans import IGNORE_INDEX
from mm_numeric.training.run import train
from mm_numeric.training.setup import training_arguments

ROWS = "trainer.per_device_train_batch_size"
CASES: Mapping[str, tuple[str, ...]] = {
    "qwen2_vl": (),
    "qwen2_vl, 16 rows": (f"{ROWS}=16",),
    "qwen2_vl, LoRA": ("modules.language=adapted", "lora.rank=4"),
    "qwen2_vl, padding_free": ("data.padding_free=true",),
    "qwen2_5_vl, 16 rows": ("model.family=qwen2_5_vl", f"{ROWS}=16"),
    "qwen3_vl, 16 rows": ("model.family=qwen3_vl", f"{ROWS}=16"),
    "llava": ("model.family=llava",),
    "llava, objective: ce": ("model.family=llava", "objective=ce"),
    "yi_vl": ("model.family=yi_vl",),
    "paligemma": ("model.family=paligemma",),
    "florence2": ("model.family=florence2",),
    "chat": ("model.family=chat",),
}
"""Overrides of ``clock_tiny``, with 4 rows and NTIL unless named, for each row of the table."""

ORDINARY, LOGGED, STEPS = 2, 3, 4


class EnoughError(Exception):
    """All steps that were asked for are recorded."""


@contextmanager
def recorded_steps(most: int | None = None) -> Iterator[list[Costs]]:
    """Record the costs of each step in a list, without what comes after the last one.

    With ``most``, raise an ``EnoughError`` after this number of steps.
    """
    steps: list[Costs] = []
    with record() as costs, pytest.MonkeyPatch.context() as patch:
        read, before = Trainer.get_batch_samples, []

        def recording(*arguments: Any, **options: Any) -> Any:
            if before:
                steps.append(costs.since(before[-1]))
            if len(steps) == most:
                raise EnoughError
            before.append(costs.copy())
            return read(*arguments, **options)

        patch.setattr(Trainer, "get_batch_samples", recording)
        yield steps


def costs_of(name: str, folder: Path) -> tuple[Costs, Costs]:
    """Train with an objective; return the costs of an ordinary step, and of a logged one."""
    with recorded_steps(LOGGED) as steps, suppress(EnoughError):
        train(config_of(name, folder))
    return steps[ORDINARY - 1], steps[LOGGED - 1]


def config_of(name: str, folder: Path) -> Config:
    """Return the config of a row of the table."""
    return small_config(
        folder,
        "trainer.save_strategy='no'",
        f"trainer.logging_steps={LOGGED}",
        f"trainer.max_steps={STEPS}",
        "data.train.synthetic.rows=64",
        "data.test.synthetic.rows=2",
        "evaluate=null",
        *CASES[name],
    )


# -- the same with transformers.Trainer -----------------------------------------------------------


@dataclass(frozen=True)
class Unshifted:
    """Collates batches as transformers.Trainer takes them: with labels [b, t], and no spans."""

    collate: TrainingCollator

    def __call__(self, examples: Any) -> dict[str, Any]:
        """Return a batch."""
        batch = self.collate(examples)
        own = {key: value for key, value in batch.items() if key not in BATCH_KEYS}
        mask = batch["supervised"]
        if "decoder_input_ids" not in own:
            mask = mask.roll(1, dims=1)
        labels = torch.full(mask.shape, IGNORE_INDEX)
        labels[mask] = batch["labels"]
        return {**own, "labels": labels}


def plain_costs_of(name: str, folder: Path) -> tuple[Costs, Costs]:
    """Do the same with transformers.Trainer and the cross-entropy of the model."""
    config = config_of(name, folder)
    args = training_arguments(config)
    source = model_source(config, folder)
    family = load_family(config, source)
    modules = ModelModules(family, config.modules, args.learning_rate, config.title)
    set_seed(args.seed)
    model = load_model(config, family, source)
    model = add_adapters(model, modules, config.lora, source, config.model.revision)
    modules.freeze(model)
    rows = load_examples(config.task, config.data.train, Path(config.data.cache), training=True)
    trainer = Trainer(
        model=model,
        args=replace(args, remove_unused_columns=False),
        train_dataset=rows,
        data_collator=Unshifted(make_collator(config, family)),
    )
    with recorded_steps() as steps:
        trainer.train()
    return steps[ORDINARY - 1], steps[LOGGED - 1]


def main() -> None:
    """Print the table, or the costs of some cases."""
    os.environ.update(
        ACCELERATE_TORCH_DEVICE=simulated_device.NAME,
        HF_HUB_OFFLINE="1",
        HF_DEACTIVATE_ASYNC_LOAD="1",
    )
    simulated_device.install()
    from cheap_lookups import make_cheap

    make_cheap()
    logging.disable()
    for name in sys.argv[1:] or CASES:
        with tempfile.TemporaryDirectory() as folder:
            found = [*costs_of(name, Path(folder, "ours"))]
            theirs = "padding_free" not in name
            found += plain_costs_of(name, Path(folder, "plain")) if theirs else []
        cells = [f"{n:,}" for costs in found for n in costs.totals().values()]
        print("| " + " | ".join([name, *cells]) + " |", flush=True)
        for costs in found if sys.argv[1:] else ():
            print()
            for kind in ("waits", "uploads"):
                for cause, count in getattr(costs, kind).most_common():
                    print(f"  {count:4} {kind}  {cause}")
            print("  ", costs.kernels.most_common(30))


if __name__ == "__main__":
    main()
