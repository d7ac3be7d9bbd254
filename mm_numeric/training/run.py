"""Train a model from a config and save it in a run folder."""

import gc
import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import transformers
from accelerate import PartialState
from transformers import PrinterCallback, ProgressCallback, TrainerState, TrainingArguments

from mm_numeric.answers import Example
from mm_numeric.baselines.baseline import Baseline
from mm_numeric.config.data import listed
from mm_numeric.config.schema import Config
from mm_numeric.config.trainer_settings import find_deepspeed
from mm_numeric.data.augment import make_augmenter
from mm_numeric.data.collator import (
    EncodedAnswers,
    TrainingCollator,
    has_mixed_modalities,
    make_collator,
)
from mm_numeric.data.examples import ONLY_KNOWN, load_examples, only_known_questions
from mm_numeric.data.framing import load_framed_image
from mm_numeric.data.images import UnreadableImageError
from mm_numeric.data.lengths import check_questions, with_new_tokens
from mm_numeric.data.streaming import ExampleStream
from mm_numeric.data.training_set import TrainingRows
from mm_numeric.distributed.deepspeed import (
    join_ranks,
    make_universal,
    num_parameters,
    require_deepspeed,
    validate_deepspeed,
    validate_sharding,
    with_universal_checkpoint,
    without_zero3_init,
)
from mm_numeric.distributed.ranks import Ranks, num_ranks
from mm_numeric.families.family import Family
from mm_numeric.io.files import read_json, stored_content
from mm_numeric.io.log import NO_PREFIX, ONCE, logger, progress, shows_progress
from mm_numeric.losses.numeric_loss import NumericLoss
from mm_numeric.losses.term import make_term
from mm_numeric.models.adapters import add_adapters
from mm_numeric.models.loading import (
    device_type,
    find_damage,
    load_family,
    load_model,
    model_source,
    quiet_unless_terminal,
)
from mm_numeric.models.parameter_groups import ModelModules, table_text
from mm_numeric.models.precision import Precision
from mm_numeric.runs.folder import (
    FINISHED,
    LOG,
    MODEL,
    STEP,
    claim,
    contains_run,
    finish,
    is_resumable,
    last_checkpoint,
    locked,
)
from mm_numeric.runs.manifest import check_files
from mm_numeric.runs.resume import read_step, with_same_rows
from mm_numeric.runs.tensor_files import require_tensor_files
from mm_numeric.training.callbacks.evaluation import (
    EvaluationCallback,
    evaluated_rows,
    evaluation_data,
    with_schedule,
)
from mm_numeric.training.callbacks.json_log import JsonLog, validate_report_to
from mm_numeric.training.callbacks.log_lines import LogLines, TrainingBar
from mm_numeric.training.distil import check_distillation, student_of, teacher_of
from mm_numeric.training.errors import translate_disk_full
from mm_numeric.training.image_positions import with_image_positions
from mm_numeric.training.padding_free import make_padding_free
from mm_numeric.training.task_answers import make_answer_tree
from mm_numeric.training.trainer import BaselineTrainer, NumericTrainer
from mm_numeric.training.vision_features import make_vision_cache


def train(
    config: Config,
    *,
    resume: bool = False,
    stoppable: bool = False,
    trust_remote_code: bool = False,
    draw: Callable[[Path], None] | None = None,
) -> Path:
    """Fine-tune a model and, with the config section ``distil``, also on its own answers.

    ``draw`` is called with the run folder after each evaluation and at the end; the other arguments
    are those of ``mm_numeric.train``. Returns the folder with the trained weights.
    """
    config.require_weights()
    train_part = partial(
        _train, stoppable=stoppable, trust_remote_code=trust_remote_code, draw=draw
    )
    if config.distil is None:
        contains_run(config.output_dir, config)  # raises if it is another, before rows are loaded
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
        gc.collect()  # its trainer, which would keep its weights on the device
    student = student_of(config)

    def whole_run() -> dict[str, Any]:
        own = read_json(finished)
        return {
            "teacher": {name: own[name] for name in ("steps", "rows")},
            "seconds": round(time.monotonic() - started, 1),
            "resumed": resume,
        }

    again = last_checkpoint(folder) is not None
    return train_part(student, resume=again, whole_run=whole_run)


def _train(
    config: Config,
    *,
    resume: bool,
    stoppable: bool,
    trust_remote_code: bool,
    draw: Callable[[Path], None] | None,
    whole_run: Callable[[], dict[str, Any]] | None = None,
) -> Path:
    """Fine-tune a model in one training; arguments and result are those of ``train``.

    ``whole_run`` is given if this training is the last part of a run, which has claimed the folder:
    a function that returns metadata of that run for run.json.
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
            evaluated = _checked_evaluated(config, family, evaluated)
        trainer = make_trainer(config, args, examples, collator, source)
        trainer.trust_remote_code = trust_remote_code
        modules = _log_modules(trainer)

        def facts() -> dict[str, Any]:
            return {
                **_facts(trainer, config, rows, modules),
                "seconds": round(time.monotonic() - started, 1),
                "resumed": resume,
                **(whole_run() if whole_run else {}),
            }

        if config.evaluate:
            EvaluationCallback(trainer, config, family, evaluated, facts, draw)
        with translate_disk_full(folder), trainer.stopping.listening(stoppable):
            _fit_and_save(trainer, family, folder, checkpoint, facts)
            if draw and trainer.is_world_process_zero():  # after the weights, if the disk is full
                draw(folder)
    return folder / MODEL


def _log_modules(trainer: NumericTrainer) -> dict[str, Any]:
    assert trainer.modules is not None
    modules: dict[str, Any] = trainer.modules.table(trainer.model)
    logger.info("%s", table_text(modules), extra={**NO_PREFIX, **ONCE})
    return modules


def training_arguments(config: Config) -> TrainingArguments:
    """Create and check the TrainingArguments of a config.

    With a launcher such as torchrun this also initialises the process group.
    """
    cpu = device_type() == "cpu"
    if cpu:  # otherwise DeepSpeed, if installed, warns at each start that it found no accelerator
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
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


def _checked_evaluated(
    config: Config, family: Family, evaluated: Sequence[Example]
) -> list[Example]:
    """Return the rows to ask during training, for which the model must have positions.

    An unreadable image would end the training at its first evaluation. It raises its error now, or
    its row is left out with ``data.on_bad_image: skip``, unless no row can be read.
    """
    found, problems = list[Example](), list[UnreadableImageError]()
    for example in progress(evaluated, desc="checking images to evaluate", unit="row"):
        try:
            load_framed_image(family, example)
            found.append(example)
        except UnreadableImageError as error:
            if config.data.on_bad_image == "stop":
                raise
            problems.append(error)
    if problems and not found:
        raise problems[0]
    for problem in problems:
        logger.warning("row not evaluated: %s", problem, extra=ONCE)
    if found or config.predict.max_new_tokens is not None:
        check_questions(family, found, config.predict.new_tokens)
    return found


def check_test_rows(config: Config, loaded: Sequence[Example], trained: TrainingRows) -> None:
    """Raise ValueError for an invalid row of ``data.test``, which would end ``predict`` later.

    An example is a class that is not asked for. A warning is logged if all rows of ``data.test``
    are ``trained`` rows. ``loaded`` are the rows of ``evaluate``, which may be those of the test.
    """
    tests = loaded
    if config.evaluate is None or config.evaluate.data is not None:
        cache = Path(config.data.cache)
        tests = load_examples(config.task, config.data.test, cache, training=False)
    is_same_file = config.data.stream and any(
        own.path is not None and own.path == other.path
        for own, other in product(listed(config.data.train), listed(config.data.test))
    )
    if is_same_file or only_known_questions(trained.rows(), tests):
        logger.warning("%s", ONLY_KNOWN, extra=ONCE)


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
    """Return a config with the rows of each step, and the sharding, of a checkpoint."""
    if checkpoint is None:
        return config
    return with_universal_checkpoint(with_same_rows(config, checkpoint, num_ranks()), checkpoint)


def _open_checkpoint(checkpoint: Path, args: TrainingArguments, trust_remote_code: bool) -> None:
    """Check the files of a checkpoint. Convert a ZeRO checkpoint if the number of ranks changed."""
    check_files(checkpoint, deepspeed=args.deepspeed_plugin is not None)
    require_tensor_files(checkpoint, trust_remote_code=trust_remote_code)
    if damage := find_damage(checkpoint):  # of files that are too large for a checksum
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
        **trainer.facts(),
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
) -> None:
    """Train, save the model, and write run.json, which marks the run as finished.

    ``facts`` is a function that returns the metadata for run.json.
    """
    fit(trainer, checkpoint)
    if trainer.stopping.stopped:
        raise trainer.stopping.error(folder, resumable=not trainer.args.save_only_model)
    trainer.skipped_rows.count()
    trainer.save_model(str(folder / MODEL))
    if trainer.args.should_save:
        family.save(folder / MODEL)
        outcome = trainer.evaluation.outcome() if trainer.evaluation else {}
        finish(folder, {**facts(), **outcome})


def make_trainer(
    config: Config,
    args: TrainingArguments,
    examples: list[Example] | ExampleStream,
    collator: TrainingCollator,
    source: str,
) -> NumericTrainer:
    """Create the trainer of a config, with its model, adapters, objective and callbacks.

    ``source`` is the model name on the Hugging Face hub, or the folder of the weights.
    """
    family = collator.family
    known = [] if isinstance(examples, ExampleStream) else examples
    mixed = has_mixed_modalities(family, known) if known else family.takes_images
    tree, augment = make_answer_tree(config, family), make_augmenter(config, known)
    collator = replace(collator, add_dummy_image_row=mixed, answer_tree=tree, augment=augment)
    if isinstance(family, Baseline):
        family.fit(config.task, known)  # answers may now have other tokens than when measured
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
        objective=NumericLoss(spec, vocabulary=collator.vocabulary, answers=collator.answer_tree),
        callbacks=[JsonLog(config.output_dir / LOG), LogLines()],
    )
    trainer.checks_padding_free = config.data.padding_free
    if args.train_sampling_strategy == "group_by_length":
        trainer.lengths = collator.lengths(known)
    validate_sharding(trainer, f"{config.title}, trainer")
    trainer.remove_callback(PrinterCallback)
    if trainer.pop_callback(ProgressCallback):
        trainer.add_callback(TrainingBar)
    return trainer


def fit(trainer: NumericTrainer, checkpoint: Path | None) -> None:
    """Train the model, resuming from ``checkpoint`` if it is not None.

    If training had already ended at the checkpoint (last step or early stopping), only its weights
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
