"""Train a model from a config and save it in a run folder."""

import gc
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from accelerate import PartialState
from transformers import TrainerState, TrainingArguments

from mm_numeric.config.schema import Config
from mm_numeric.data.collator import make_collator
from mm_numeric.data.lengths import with_new_tokens
from mm_numeric.data.streaming import ExampleStream
from mm_numeric.data.training_set import TrainingRows
from mm_numeric.distributed.deepspeed import (
    make_universal,
    num_parameters,
    with_universal_checkpoint,
    without_zero3_init,
)
from mm_numeric.distributed.ranks import Ranks, num_ranks
from mm_numeric.families.family import Family
from mm_numeric.io.atomic_files import locked
from mm_numeric.io.files import read_json, stored_content
from mm_numeric.io.log import NO_PREFIX, ONCE, logger
from mm_numeric.losses.term import make_term
from mm_numeric.models.loading import find_damage, load_family, model_source, quiet_unless_terminal
from mm_numeric.models.parameter_groups import table_text
from mm_numeric.models.precision import Precision
from mm_numeric.runs.folder import (
    FINISHED,
    MODEL,
    STEP,
    claim,
    contains_run,
    finish,
    is_resumable,
    last_checkpoint,
)
from mm_numeric.runs.manifest import check_files
from mm_numeric.runs.resume import read_step, with_same_rows
from mm_numeric.runs.tensor_files import require_tensor_files
from mm_numeric.training.callbacks.evaluation import (
    EvaluationCallback,
    check_test_rows,
    checked_rows,
    evaluated_rows,
    evaluation_data,
    with_schedule,
)
from mm_numeric.training.distil import check_distillation, student_of, teacher_of
from mm_numeric.training.errors import translate_disk_full
from mm_numeric.training.setup import make_trainer, training_arguments
from mm_numeric.training.trainer import NumericTrainer


def train(
    config: Config,
    *,
    resume: bool = False,
    stoppable: bool = False,
    trust_remote_code: bool = False,
    draw: Callable[[Path], None] | None = None,
) -> Path:
    """Fine-tune a model and, with the config section ``distil``, also on its own answers.

    ``draw`` is called with the run folder after each evaluation and at the end. The other arguments
    are described in ``mm_numeric.train``. Returns the folder with the trained weights.
    """
    config.require_weights()
    train_part = partial(
        _train, stoppable=stoppable, trust_remote_code=trust_remote_code, draw=draw
    )
    if config.distil is None:
        contains_run(config.output_dir, config)  # rejects another run before rows are loaded
        with translate_disk_full(config.output_dir):
            return train_part(config, resume=resume)
    started, folder = time.monotonic(), config.output_dir
    check_distillation(config)
    training_arguments(config)  # joins the process group
    Ranks().on_rank_0(partial(claim_for_training, folder, config, resume=resume))
    if (folder / FINISHED).is_file():
        return folder / MODEL
    teacher = teacher_of(config)
    finished = teacher.output_dir / FINISHED
    if not finished.is_file():
        train_part(teacher, resume=resume)
        gc.collect()  # the trainer would keep the weights on the device
    student = student_of(config)

    def whole_run() -> dict[str, Any]:
        own = read_json(finished)
        return {
            "teacher": {name: own[name] for name in ("steps", "rows")},
            "seconds": round(time.monotonic() - started, 1),
            "resumed": resume,
        }

    return train_part(student, resume=last_checkpoint(folder) is not None, whole_run=whole_run)


def _train(
    config: Config,
    *,
    resume: bool,
    stoppable: bool,
    trust_remote_code: bool,
    draw: Callable[[Path], None] | None,
    whole_run: Callable[[], dict[str, Any]] | None = None,
) -> Path:
    """Fine-tune a model once; arguments and result are the same as in ``train``.

    ``whole_run`` is used for the last training of a run with ``distil``, whose folder was already
    claimed. It is a function that returns metadata of the whole run for run.json.
    """
    started = time.monotonic()
    quiet_unless_terminal()
    folder = config.output_dir
    checkpoint = _checkpoint_to_resume(config) if resume else None
    args = training_arguments(_resumed(config, checkpoint))
    for term in config.objective.spec.terms:
        make_term(term.name, term.options, f"{config.title}, objective")
    with ExitStack() as stack:
        with PartialState().main_process_first():
            rows = TrainingRows(config)
            loaded = evaluation_data(config)
            planned = with_schedule(config, args, rows.count, loaded)
            check_test_rows(config, loaded, rows)
            evaluated = evaluated_rows(planned, loaded)
            if args.should_save:
                stack.enter_context(locked(folder))
                if whole_run is None:
                    claim_for_training(folder, config, resume=resume)
            if resume and (folder / FINISHED).is_file():
                return folder / MODEL
            with without_zero3_init(args):
                source = model_source(config, folder)
            if checkpoint and args.should_save:
                _open_checkpoint(checkpoint, args, trust_remote_code)
            collator = make_collator(config, load_family(config, source))
            examples, family = rows.for_trainer(collator), collator.family
            config = with_new_tokens(planned, rows.longest_answer)
            evaluated = checked_rows(config, family, evaluated)
        trainer = make_trainer(config, args, examples, collator, source)
        trainer.trust_remote_code = trust_remote_code
        modules = _log_modules(trainer)

        def facts() -> dict[str, Any]:
            own = {"seconds": round(time.monotonic() - started, 1), "resumed": resume}
            more = {} if whole_run is None else whole_run()
            return {**_facts(trainer, config, rows, modules), **own, **_after(checkpoint), **more}

        if config.evaluate:
            EvaluationCallback(trainer, config, family, evaluated, facts, draw)
        with translate_disk_full(folder), trainer.stopping.listening(stoppable):
            _fit_and_save(trainer, family, folder, checkpoint, facts, draw)
    return folder / MODEL


def _after(checkpoint: Path | None) -> dict[str, int]:
    """Return the step of the checkpoint that was resumed from, for run.json."""
    return {"resumed_after": int(checkpoint.name.partition("-")[2])} if checkpoint else {}


def _log_modules(trainer: NumericTrainer) -> dict[str, Any]:
    assert trainer.modules is not None
    modules: dict[str, Any] = trainer.modules.table(trainer.model)
    logger.info("%s", table_text(modules), extra={**NO_PREFIX, **ONCE})
    return modules


def _checkpoint_to_resume(config: Config) -> Path | None:
    """Return the last checkpoint of a run, or None if the run is finished."""
    folder = config.output_dir
    if config.trainer.get("save_only_model"):
        raise ValueError(
            f"{config.title}, trainer.save_only_model: its checkpoints lack the state of the "
            "optimiser, so the run cannot be resumed; train without --resume."
        )
    checkpoint = last_checkpoint(folder)
    if checkpoint is None and not (folder / FINISHED).is_file():
        cut = sorted(path.name for path in folder.glob("checkpoint-*"))
        which = f" ({', '.join(cut)}: saved incompletely)" if cut else ""
        raise ValueError(f"{folder}: no checkpoint to resume from{which}; train without --resume.")
    return checkpoint


def _resumed(config: Config, checkpoint: Path | None) -> Config:
    """Return the config with which ``checkpoint`` can resume on the present number of ranks."""
    if checkpoint is None:
        return config
    return with_universal_checkpoint(with_same_rows(config, checkpoint, num_ranks()), checkpoint)


def _open_checkpoint(checkpoint: Path, args: TrainingArguments, trust_remote_code: bool) -> None:
    """Check the files of a checkpoint. Convert a ZeRO checkpoint if the number of ranks changed."""
    check_files(checkpoint, deepspeed=args.deepspeed_plugin is not None)
    require_tensor_files(checkpoint, trust_remote_code=trust_remote_code)
    if damage := find_damage(checkpoint):  # finds damage in files too large for a checksum
        raise ValueError(
            f"{damage}; delete this checkpoint and resume from the previous one with --resume."
        )
    make_universal(args, checkpoint, trust_remote_code=trust_remote_code)


def _facts(
    trainer: NumericTrainer, config: Config, rows: TrainingRows, modules: dict[str, Any]
) -> dict[str, Any]:
    args = trainer.args
    batch_rows = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
    return {
        "steps": trainer.state.global_step,
        **rows.metadata(),
        "rows_skipped": len(trainer.skipped_rows.ids),
        "batch_rows": batch_rows,
        "parameters": num_parameters(trainer.model),
        "modules": modules,
        "precision": asdict(Precision.of_trainer(trainer)),
        "max_new_tokens": config.predict.max_new_tokens,
        "task_version": config.task.version,
    }


def _fit_and_save(
    trainer: NumericTrainer,
    family: Family,
    folder: Path,
    checkpoint: Path | None,
    facts: Callable[[], dict[str, Any]],
    draw: Callable[[Path], None] | None,
) -> None:
    """Train, save the model, and write run.json with the result of ``facts``; call ``draw``."""
    fit(trainer, checkpoint)
    if trainer.stopping.stopped:
        raise trainer.stopping.error(folder, resumable=not trainer.args.save_only_model)
    trainer.skipped_rows.count()
    trainer.save_model(str(folder / MODEL))
    if trainer.args.should_save:
        family.save(folder / MODEL)
        outcome = trainer.evaluation.outcome() if trainer.evaluation else {}
        finish(folder, {**facts(), **outcome})
        if trainer.evaluation:
            trainer.evaluation.record_answers()
    if draw and trainer.is_world_process_zero():  # after the weights, if the disk is full
        draw(folder)


def fit(trainer: NumericTrainer, checkpoint: Path | None) -> None:
    """Train the model, resuming from ``checkpoint`` if it is not None.

    If training had already ended at the checkpoint (last step or early stopping), only the weights
    are loaded, because transformers would train one more step.
    """
    if checkpoint is not None:
        with stored_content(checkpoint / STEP):
            trainer.restore(read_step(checkpoint))
        file = checkpoint / "trainer_state.json"
        with stored_content(file):
            state = TrainerState.load_from_json(str(file))
        evaluation = trainer.evaluation
        ended = evaluation is not None and evaluation.patience_exhausted(state.log_history)
        if state.global_step >= state.max_steps or ended:
            trainer.load_weights(checkpoint)
            trainer.state = state
            return
        if isinstance(trainer.train_dataset, ExampleStream) and not trainer.args.ignore_data_skip:
            accumulated = trainer.args.gradient_accumulation_steps
            trainer.train_dataset.skipped = state.global_step * accumulated
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)


def claim_for_training(folder: Path, config: Config, *, resume: bool) -> None:
    """Write the config to the run folder. Raise ValueError if this would overwrite a run."""
    known = claim(folder, config)
    if known and not resume and (is_resumable(folder) or (folder / FINISHED).exists()):
        raise ValueError(
            f"{folder} already contains this run: add --resume, or set another trainer.output_dir."
        )
