"""A config in, a trained model in a run folder out."""

import gc
import os
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import transformers
from accelerate import PartialState
from transformers import PrinterCallback, TrainerState, TrainingArguments

from mm_numeric.answers import Example
from mm_numeric.config.schema import Config
from mm_numeric.config.training_arguments import find_deepspeed
from mm_numeric.data.collator import has_mixed_modalities, make_collator
from mm_numeric.data.streaming import ExampleStream
from mm_numeric.data.training_set import TrainingRows
from mm_numeric.families.family import Family
from mm_numeric.log import NO_PREFIX, logger, shows_progress
from mm_numeric.losses.objective import make_term
from mm_numeric.models.adapters import add_adapters
from mm_numeric.models.loading import (
    device_type,
    load_family,
    load_model,
    model_source,
    quiet_unless_terminal,
)
from mm_numeric.models.parameter_groups import ModelModules, table_text
from mm_numeric.run_folder import (
    FINISHED,
    LOG,
    MODEL,
    claim,
    finish,
    last_checkpoint,
    locked,
)
from mm_numeric.training.deepspeed import (
    join_ranks,
    make_universal,
    parameters,
    reading_other_ranks,
    refuse_settings,
    refuse_unsharded,
    require_deepspeed,
    whole_models,
)
from mm_numeric.training.errors import StoppedError, full_disk_as_ours
from mm_numeric.training.evaluation_callback import Evaluation, evaluated_rows
from mm_numeric.training.gradient_check import GradientCheck
from mm_numeric.training.json_log import JsonLog, refuse_reports
from mm_numeric.training.resume import with_same_rows
from mm_numeric.training.trainer import NumericTrainer


def train(config: Config, *, resume: bool = False, stoppable: bool = False) -> Path:
    """Fine-tune a model as a config says.

    Args:
        config: The whole job.
        resume: Go on from the last checkpoint of the run folder.
        stoppable: Save a checkpoint and stop at SIGTERM or SIGUSR1.

    Returns:
        The folder of the trained model.

    Raises:
        ValueError: If the config, the data or the run folder cannot be used, a number is not
            finite, or the disk is full.
        StoppedError: If a signal has stopped it.
    """
    started = time.monotonic()
    quiet_unless_terminal()
    folder = config.output_dir
    checkpoint = last_checkpoint(folder) if resume else None
    args = training_arguments(_as_saved(config, checkpoint) if checkpoint else config)
    for term in config.objective.spec.terms:  # refused before a folder is claimed or a model loaded
        make_term(term.name, term.options, f"{config.title}, objective")
    if resume and checkpoint is None and not (folder / FINISHED).is_file():
        raise ValueError(f"{folder}: no checkpoint to resume from; train without --resume.")
    if resume and args.save_only_model:
        raise ValueError(
            f"{config.title}, trainer.save_only_model: such checkpoints lack the optimiser's "
            "state, so that nothing can be resumed from them."
        )
    with ExitStack() as stack:
        with PartialState().main_process_first():
            rows = TrainingRows(config)
            evaluated = evaluated_rows(config)
            if args.should_save:
                stack.enter_context(locked(folder))
                take_folder(config, resume=resume)
            if resume and (folder / FINISHED).is_file():
                return folder / MODEL
            with whole_models(args):
                source = model_source(config, folder)
            if checkpoint and args.should_save:
                make_universal(args, checkpoint)
            family = load_family(config, source)
            examples = rows.for_trainer(make_collator(config, family))
        trainer = make_trainer(config, args, examples, family, source)
        assert trainer.parts is not None
        parts = trainer.parts.table(trainer.model)
        logger.info("%s", table_text(parts), extra=NO_PREFIX)

        def facts() -> dict[str, Any]:
            return {
                "steps": trainer.state.global_step,
                **rows.metadata(),
                "rows_left_out": len(trainer.left_out.ids),
                "batch_rows": args.train_batch_size
                * args.gradient_accumulation_steps
                * args.world_size,
                "parameters": parameters(trainer.model),
                "modules": parts,
                "task_version": config.task.version,
                "seconds": round(time.monotonic() - started, 1),
                "resumed": resume,
            }

        if config.evaluate:
            Evaluation(trainer, config, family, evaluated, facts)
        with full_disk_as_ours(folder), trainer.stopping.listening(stoppable):
            fit(trainer, checkpoint)
            if trainer.stopping.stopped:
                resumable = not args.save_only_model
                raise StoppedError(trainer.stopping.sentence(folder, resumable=resumable))
            trainer.left_out.count()
            trainer.save_model(str(folder / MODEL))
            if args.should_save:
                family.save(folder / MODEL)
                outcome = trainer.evaluation.outcome() if trainer.evaluation else {}
                finish(folder, {**facts(), **outcome})
    return folder / MODEL


def _as_saved(config: Config, checkpoint: Path) -> Config:
    """Return a config that goes on from a checkpoint on the ranks that are here."""
    return reading_other_ranks(with_same_rows(config, checkpoint), checkpoint)


def make_trainer(
    config: Config,
    args: TrainingArguments,
    examples: list[Example] | ExampleStream,
    family: Family,
    source: str,
) -> NumericTrainer:
    """Put model, data and objective together."""
    known = [] if isinstance(examples, ExampleStream) else examples
    mixed = has_mixed_modalities(family, known) if known else family.takes_images
    collator = replace(make_collator(config, family), add_dummy_image_row=mixed)
    objective = family.objective(config.objective.spec, collator.vocabulary)
    family.fit(config.task, known)
    parts = ModelModules(family, config.modules, args.learning_rate, config.title)
    transformers.set_seed(args.seed)
    model = load_model(config, family, source)
    parts.check(model)
    model = add_adapters(model, parts, config.lora, source, config.model.revision)
    parts.freeze(model)
    trainer = NumericTrainer(
        model=model,
        parts=parts,
        args=args,
        train_dataset=examples,
        data_collator=collator,
        objective=objective,
        callbacks=[JsonLog(config.output_dir / LOG), GradientCheck(parts)],
    )
    if args.train_sampling_strategy == "group_by_length":
        trainer.lengths = collator.lengths(known)
    refuse_unsharded(trainer, f"{config.title}, trainer")
    trainer.remove_callback(PrinterCallback)
    return trainer


def fit(trainer: NumericTrainer, checkpoint: Path | None) -> None:
    """Train, from a checkpoint if there is one.

    A checkpoint of the last step, or of that which evaluation ended the training at, is only
    loaded: transformers would train one step more.
    """
    if checkpoint is not None:
        trainer.left_out.load(checkpoint)
        state = TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))
        evaluation = trainer.evaluation
        ended = evaluation is not None and evaluation.in_vain(state.log_history)
        if state.global_step >= state.max_steps or ended:
            trainer.load_weights(checkpoint)
            trainer.state = state
            return
        if isinstance(trainer.train_dataset, ExampleStream) and not trainer.args.ignore_data_skip:
            accumulated = trainer.args.gradient_accumulation_steps
            trainer.train_dataset.skipped = state.global_step * accumulated
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)


def training_arguments(config: Config) -> TrainingArguments:
    """Make transformers' own arguments from the ``trainer`` part of a config.

    Raises:
        ValueError: If transformers refuses them, ranks would share rows in another way, or one
            process sees several GPUs.
    """
    cpu = device_type() == "cpu"
    if cpu:  # or DeepSpeed, where it is installed, says on every start that it found no accelerator
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    settings = {
        "dataloader_pin_memory": not cpu,
        "use_cpu": cpu,  # several ranks on CPUs ask for it
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
        _ = args.device  # joins the other ranks
        join_ranks(args)
    except (ValueError, TypeError, ImportError, KeyError) as error:
        raise ValueError(f"{config.title}, trainer: {error}") from error
    refuse_settings(args, f"{config.title}, trainer.deepspeed")
    sharing = args.accelerator_config
    if sharing.split_batches or sharing.dispatch_batches or not sharing.even_batches:
        raise ValueError(
            f"{config.title}, trainer.accelerator_config: ranks share rows in one way alone, each "
            "reading as many batches of its own as the others; leave split_batches, "
            "dispatch_batches and even_batches out."
        )
    refuse_reports(args, f"{config.title}, trainer")
    if args.n_gpu > 1:
        raise ValueError(
            f"one process sees {args.n_gpu} GPUs; start one for each with `torchrun "
            f"--nproc-per-node {args.n_gpu} -m mm_numeric train ...`, or set CUDA_VISIBLE_DEVICES."
        )
    return args


def leave_process_group() -> None:
    """End this process's part in distributed work; nothing is done where there is none.

    A process group's threads may still need the GIL for the last work that they did. At Python's
    end that aborts the process, which a launcher reports as a job that failed (PyTorch #179291);
    freed by DDP's reducer, which keeps the GIL, it never ends. So models go first.
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        gc.collect()
        torch.distributed.destroy_process_group()


def take_folder(config: Config, *, resume: bool) -> None:
    """Claim the run folder, refusing to train over what it holds.

    Raises:
        ValueError: If it holds another run, or this one and ``resume`` was not asked for.
    """
    folder = config.output_dir
    known = claim(folder, config)
    if known and not resume and (last_checkpoint(folder) or (folder / FINISHED).exists()):
        raise ValueError(
            f"{folder} already holds this run: add --resume to go on with it, or choose another "
            "trainer.output_dir."
        )
