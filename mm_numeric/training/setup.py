"""Create the TrainingArguments and the trainer from a config."""

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from multiprocessing import get_start_method
from typing import Any

import transformers
from transformers import PrinterCallback, ProgressCallback, TrainingArguments

from mm_numeric.answers import Example
from mm_numeric.baselines.baseline import Baseline
from mm_numeric.config.schema import Config
from mm_numeric.config.trainer_settings import find_deepspeed
from mm_numeric.data.augment import make_augmenter
from mm_numeric.data.collator import EncodedAnswers, TrainingCollator, has_mixed_modalities
from mm_numeric.data.streaming import ExampleStream
from mm_numeric.distributed.deepspeed import (
    join_ranks,
    require_deepspeed,
    validate_deepspeed,
    validate_sharding,
)
from mm_numeric.distributed.ranks import PARALLEL_RUNS, num_cores
from mm_numeric.io.log import shows_progress
from mm_numeric.losses.numeric_loss import NumericLoss
from mm_numeric.models.adapters import add_adapters
from mm_numeric.models.loading import device_type, load_model
from mm_numeric.models.parameter_groups import ModelModules
from mm_numeric.runs.folder import LOG
from mm_numeric.training.callbacks.json_log import JsonLog, validate_report_to
from mm_numeric.training.callbacks.log_lines import LogLines, TrainingBar
from mm_numeric.training.image_positions import with_image_positions
from mm_numeric.training.padding_free import make_padding_free
from mm_numeric.training.trainer import BaselineTrainer, NumericTrainer
from mm_numeric.training.vision_features import make_vision_cache

_LEAST_ROWS, _MOST_WORKERS = 1000, 4  # also in BY_MACHINE of mm_numeric.config.trainer_settings


def training_arguments(config: Config) -> TrainingArguments:
    """Create and check the TrainingArguments from the config section ``trainer``.

    With a launcher such as torchrun, this also initialises the process group.
    """
    cpu = device_type() == "cpu"
    settings = {
        "dataloader_pin_memory": not cpu,
        "use_cpu": cpu,  # required with several ranks on CPUs
        "disable_tqdm": not shows_progress(),
        **config.trainer,
    }
    if settings.get("deepspeed"):
        where = f"{config.title}, trainer.deepspeed"
        require_deepspeed(where)
        if isinstance(settings["deepspeed"], str):
            settings["deepspeed"] = str(find_deepspeed(settings["deepspeed"], where))
    try:
        args = TrainingArguments(**settings)
        _ = args.device  # joins the process group
        join_ranks(args)
    except (ValueError, TypeError, ImportError, KeyError) as error:
        # transformers does not name the setting: "adamx is not a valid OptimizerNames, ..."
        value = str(error).partition(" is not a valid ")[0]
        names = [f".{name}" for name, own in config.trainer.items() if own == value]
        raise ValueError(f"{config.title}, trainer{''.join(names[:1])}: {error}") from error
    validate_deepspeed(args, f"{config.title}, trainer.deepspeed")
    sharing = args.accelerator_config
    if sharing.split_batches or sharing.dispatch_batches or not sharing.even_batches:
        raise ValueError(
            f"{config.title}, trainer.accelerator_config: each rank must read the same number of "
            "its own batches; remove split_batches, dispatch_batches and even_batches."
        )
    validate_report_to(args, f"{config.title}, trainer")
    if args.n_gpu > 1:
        raise ValueError(
            f"one process sees {args.n_gpu} GPUs; start one process per GPU with `torchrun "
            f"--nproc-per-node {args.n_gpu} -m mm_numeric train ...`, or set CUDA_VISIBLE_DEVICES."
        )
    return args


def default_workers(args: TrainingArguments, examples: Sequence[Example]) -> int:
    """Return the default of ``trainer.dataloader_num_workers`` for a list of training rows.

    One core reads a large JPEG in about 0.1 s, during which a GPU would wait. Few rows are read
    faster than processes start. Runs that share the machine already use all cores.
    """
    method = args.dataloader_multiprocessing_context or get_start_method()
    with_image = sum(example.image is not None for example in examples)
    if with_image < _LEAST_ROWS or method != "fork" or PARALLEL_RUNS in os.environ:
        return 0
    return min(_MOST_WORKERS, num_cores())


def make_trainer(
    config: Config,
    args: TrainingArguments,
    examples: list[Example] | ExampleStream,
    collator: TrainingCollator,
    source: str,
) -> NumericTrainer:
    """Create the trainer from a config, with its model, adapters, objective and callbacks.

    ``source`` is the model name on the Hugging Face hub, or the folder of the weights.
    """
    family = collator.family
    known = [] if isinstance(examples, ExampleStream) else examples
    mixed = has_mixed_modalities(family, known) if known else family.takes_images
    if "dataloader_num_workers" not in config.trainer:
        args.dataloader_num_workers = default_workers(args, known)
    collator = replace(collator, add_dummy_image_row=mixed, augment=make_augmenter(config, known))
    if isinstance(family, Baseline):
        family.fit(config.task, known)  # the tokens of answers may change, so clear their cache
        collator = replace(collator, encoded=EncodedAnswers())
    modules = ModelModules(family, config.modules, args.learning_rate, config.title)
    transformers.set_seed(args.seed)
    model = load_model(config, family, source)
    modules.check(model)
    model = add_adapters(model, modules, config.lora, source, config.model.revision)
    modules.freeze(model)
    if config.data.vision_cache is not None:
        vision_cache = make_vision_cache(model, modules, config, args)
        collator = replace(collator, vision_cache=vision_cache)
    spec = config.objective.spec
    make: Any = NumericTrainer
    if isinstance(family, Baseline) and family.own_loss:
        make = partial(BaselineTrainer, baseline=family)
    packs = config.data.padding_free
    packed = make_padding_free(model, collator, config.model.attention) if packs else collator
    trainer: NumericTrainer = make(
        model=model,
        modules=modules,
        args=args,
        train_dataset=examples,
        data_collator=with_image_positions(model, family, packed),
        objective=NumericLoss(spec, vocabulary=collator.vocabulary),
        callbacks=[JsonLog(config.output_dir / LOG), LogLines()],
    )
    trainer.checks_padding_free = packs
    if args.train_sampling_strategy == "group_by_length":
        trainer.lengths = collator.lengths(known)
    validate_sharding(trainer, f"{config.title}, trainer")
    trainer.remove_callback(PrinterCallback)
    if trainer.pop_callback(ProgressCallback):
        trainer.add_callback(TrainingBar)
    return trainer
