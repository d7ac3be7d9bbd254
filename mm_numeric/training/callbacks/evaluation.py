"""Periodic evaluation during training: generate answers, score them, keep the best weights.

Each rank answers some of the evaluation questions, and rank 0 scores all answers like
``mm-numeric score``. The trainer logs each metric as ``eval_NAME`` (W&B and TensorBoard show it as
``eval/NAME``); log.jsonl has it too. Metrics that are nan or infinite are omitted, such as a mean
over zero answers. After a resume, the best evaluation is read from the trainer's log.

Files in the run folder:
    evaluation/predictions.jsonl    predictions of the last evaluation; ``rows_due`` is the number
                                    of evaluated rows, not of all rows
    evaluation/rows.json            number of evaluated rows, the same in all evaluations of the run
    evaluation/predictions.jsonl.made_by.json    after the training, unless the weights have changed
                                    since the last evaluation; see ``predictions_file``
    progress.json                   progress of the current evaluation (``ProgressFile``)
    best/                           run folder with the best weights: model/, config.yaml, run.json
"""

import importlib
import json
import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import islice, product
from pathlib import Path
from typing import Any, NamedTuple

from accelerate.utils import broadcast_object_list, gather_object
from PIL import Image
from transformers import TrainerCallback, TrainingArguments

from mm_numeric.answers import Example, Instance, Instances, Shape
from mm_numeric.compat import save_without_push
from mm_numeric.config.data import MOST_EVALUATED_ROWS, EvaluateConfig, listed
from mm_numeric.config.decoding import PredictConfig, is_greedy_alone
from mm_numeric.config.schema import Config
from mm_numeric.data.collator import has_mixed_modalities
from mm_numeric.data.examples import ONLY_KNOWN, load_examples, only_known_questions
from mm_numeric.data.framing import load_framed_image
from mm_numeric.data.images import UnreadableImageError, open_sized
from mm_numeric.data.lengths import check_questions
from mm_numeric.data.training_set import TrainingRows
from mm_numeric.evaluation.metrics.base import CATEGORY, Metric, metrics_by_category, select_rows
from mm_numeric.evaluation.metrics.matching import read_shapes
from mm_numeric.evaluation.score import score
from mm_numeric.families.family import Family
from mm_numeric.geometry.row_shapes import read_instances
from mm_numeric.inference.constrain import Constrainer
from mm_numeric.inference.decode import Explorer, check_rules
from mm_numeric.inference.draw import ANSWER_COLOUR, TRUE_COLOUR, draw_shapes
from mm_numeric.inference.generate import generate, prediction
from mm_numeric.inference.list_limits import ListLimits
from mm_numeric.inference.predictions_file import (
    answer_order,
    answer_sections,
    made_by,
    made_with,
    write_evaluated,
)
from mm_numeric.inference.progress import AnswerProgress, ProgressFile
from mm_numeric.io.files import read_json, stored_content, write_json, write_text
from mm_numeric.io.log import NO_PREFIX, ONCE, logger, progress
from mm_numeric.models.precision import Precision
from mm_numeric.registry import SCORERS, scorer_of, unknown
from mm_numeric.runs.folder import (
    BEST,
    EVALUATED_ROWS,
    EVALUATION,
    FINISHED,
    MODEL,
    PREDICTIONS,
    PROGRESS,
    finish,
    write_config,
)

FAILURES = "eval_failures"
"""Log entry with the number of unparseable answers; only log lines of an evaluation have it."""

_EVALUATIONS, _TRAINED_PER_ASKED = 10, 10  # most evaluations; least trained rows per evaluated row
_FEWEST_ROWS = 50  # least number of evaluated rows, unless ``evaluate.rows`` is set
_TIME_SHARE = 0.25  # longest evaluation, relative to the training time before it


class Best(NamedTuple):
    """The best evaluation of a run so far."""

    step: int
    metric: str
    value: float
    worse: int
    """Number of evaluations since the best one."""


def evaluation_data(config: Config) -> list[Example]:
    """Load all rows of ``evaluate.data``, or else of ``data.test``; [] without ``evaluate``."""
    if config.evaluate is None:
        return []
    source = config.evaluate.data or config.data.test
    return load_examples(config.task, source, Path(config.data.cache), training=False)


def with_schedule(
    config: Config, args: TrainingArguments, rows: int | None, loaded: Sequence[Example]
) -> Config:
    """Set ``evaluate.every_steps`` in a config that leaves it open.

    If the config does not change ``evaluate`` either, evaluation is switched off for a training
    that is shorter than one epoch, and for test rows without answers. ``rows`` is the number of
    training samples (None for a stream). ``loaded`` are the rows from ``evaluation_data``.
    """
    settings = config.evaluate
    if settings is None or settings.every_steps is not None:
        return config
    asked = answer_order(loaded)[: settings.rows or MOST_EVALUATED_ROWS]
    batch = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
    steps = args.max_steps
    if steps < 1:
        assert rows is not None  # a stream requires max_steps
        steps = math.ceil(args.num_train_epochs * math.ceil(rows / batch))
    if settings == EvaluateConfig():
        answers = [example.answer for example in asked]
        has_scorer = config.task.scorer or type(answers[0]) in SCORERS
        if rows is None or steps * batch < rows or None in answers or not has_scorer:
            return replace(config, evaluate=None)
    count = min(_EVALUATIONS, max(1, steps * batch // (_TRAINED_PER_ASKED * len(asked))))
    every = math.ceil(steps / count)
    logger.info(
        "evaluation: %s%d of %d rows every %d of %d steps; set evaluate.rows or "
        "evaluate.every_steps to change it, evaluate=null to switch it off",
        "up to " if settings.rows is None and len(asked) > _FEWEST_ROWS else "",
        *(len(asked), len(loaded), every, steps),
        extra={**NO_PREFIX, **ONCE},
    )
    return replace(config, evaluate=replace(settings, every_steps=every))


def evaluated_rows(config: Config, examples: list[Example]) -> list[Example]:
    """Return the rows to evaluate during training, in ``answer_order``.

    Raises ValueError if a row has no answer.
    """
    settings = config.evaluate
    if settings is None:
        return []
    examples = answer_order(examples)[: settings.rows or MOST_EVALUATED_ROWS]
    for example in examples:
        if example.answer is None:
            raise ValueError(
                f"{example.where}: the row has no answer, and `evaluate` compares with it; add "
                "one, or set evaluate.data to other rows."
            )
    names = [metric.name for metric in evaluation_metrics(config, examples)]
    if settings.best is not None and settings.best not in names:
        raise unknown(settings.best, names, "metric", f"{config.title}, evaluate.best")
    return examples


def checked_rows(config: Config, family: Family, evaluated: Sequence[Example]) -> list[Example]:
    """Check the images and the lengths of the rows to evaluate; return the rows.

    Without this check, an unreadable image would end the training at its first evaluation. Such an
    image raises an error now. With ``data.on_bad_image: skip``, its row is left out instead, unless
    no image can be read.
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
        logger.warning("row not evaluated: %s", problem)
    if found or config.predict.max_new_tokens is not None:
        check_questions(family, found, config.predict.new_tokens)
    return found


def check_test_rows(config: Config, loaded: Sequence[Example], trained: TrainingRows) -> None:
    """Load the rows of ``data.test``, so that an invalid row raises ValueError before training.

    Otherwise ``predict`` would fail after the training. If all test rows are ``trained`` rows, a
    warning is logged. ``loaded`` are the rows from ``evaluation_data``; without ``evaluate.data``,
    these are the test rows.
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
        logger.warning("%s", ONLY_KNOWN)


class EvaluationCallback(TrainerCallback):
    """Evaluates the model during training, saves the best weights, and can stop the training early.

    The training stops after ``evaluate.patience`` successive evaluations without an improvement.
    The constructor adds the callback to the trainer. ``facts`` is a function that returns the
    metadata of the run so far; it is saved as ``best/run.json``. ``draw`` is called with the run
    folder after each evaluation.
    """

    def __init__(
        self,
        trainer: Any,
        config: Config,
        family: Family,
        examples: Sequence[Example],
        facts: Callable[[], dict[str, Any]],
        draw: Callable[[Path], None] | None = None,
    ) -> None:
        assert config.evaluate is not None
        self.draw = draw
        self.trainer, self.config, self.family = trainer, config, family
        self.settings, self.examples, self.facts = config.evaluate, examples, facts
        decode = replace(config.predict, decode=config.evaluate.decode)
        self.answer_config = replace(config, predict=decode)
        check_rules(decode, [decode.rule], config.task, examples)
        self.explore = None if is_greedy_alone([decode.rule]) else self._make_explorer(decode)
        self.constrainer = None
        if config.predict.constrain:  # reads the whole vocabulary: once, not at each evaluation
            self.constrainer = Constrainer(config.task, family, trainer.args.device)
        self.higher_is_better = {
            metric.name: metric.higher_is_better for metric in evaluation_metrics(config, examples)
        }
        self.folder = config.output_dir / BEST
        self.unfinished = self.folder.with_name(f"{BEST}.unfinished")
        is_writer = trainer.args.should_save
        self.progress_file = ProgressFile(config.output_dir / PROGRESS if is_writer else None)
        self.answered_step: int | None = None
        self.begun: tuple[float, int] | None = None
        if trainer.args.should_save and (self.unfinished / FINISHED).is_file():
            self._replace_best()  # the process was killed before it was done
        trainer.evaluation = self
        trainer.add_callback(self)

    def _make_explorer(self, settings: PredictConfig) -> Explorer:
        plugin = self.trainer.args.deepspeed_plugin
        if self.trainer.args.fsdp or (plugin is not None and plugin.zero_stage == 3):
            raise ValueError(
                f"evaluate.decode: {settings.decode} needs different numbers of forward passes on "
                "the ranks, which ZeRO-3 and FSDP do not permit; use greedy, DDP or ZeRO-2."
            )
        return Explorer(settings, self.family, self.config.task)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Store the time and the step, and delete the progress file of a killed evaluation."""
        self.begun = time.monotonic(), state.global_step
        self.progress_file.delete()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Request an evaluation every ``evaluate.every_steps`` steps and after the last step."""
        step, every = state.global_step, self.settings.every_steps
        assert every is not None  # set by ``with_schedule``
        if step % every == 0 or step >= state.max_steps:
            control.should_evaluate = True

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Draw the training curves; stop the training if ``evaluate.patience`` is exhausted."""
        if self.draw and state.is_world_process_zero:
            self.draw(self.config.output_dir)
        if self.patience_exhausted(state.log_history):
            control.should_training_stop = True

    def run(self) -> dict[str, float]:
        """Evaluate the model, log the metrics, and save the weights if they are the best so far.

        All ranks must call this method, and all return the same metrics.
        """
        trainer = self.trainer
        lines = self._answer()
        metrics: list[Any] = [self._score(lines) if trainer.args.should_save else None]
        broadcast_object_list(metrics)
        logged: dict[str, float] = metrics[0]
        trainer.log(logged)
        self.progress_file.delete()
        best = self.best(trainer.state.log_history)
        if best is not None and best.step == trainer.state.global_step:
            self._save_best(best)
        trainer.control = trainer.callback_handler.on_evaluate(
            trainer.args, trainer.state, trainer.control, logged
        )
        return logged

    def best(self, history: Sequence[Mapping[str, Any]]) -> Best | None:
        """Return the best evaluation in the trainer's log (the first if several are equal).

        Returns None if ``evaluate.best`` names no metric, or its metric has no value in the log.
        """
        name = self.settings.best
        if name is None:
            return None
        sign = 1 if self.higher_is_better[name] else -1
        best = None
        for line in history:
            if FAILURES not in line:
                continue
            value = line.get(f"eval_{name}")
            if value is not None and (best is None or sign * value > sign * best.value):
                best = Best(line["step"], name, value, worse=0)
            elif best is not None:
                best = best._replace(worse=best.worse + 1)
        return best

    def patience_exhausted(self, history: Sequence[Mapping[str, Any]]) -> bool:
        """Return True if the last ``evaluate.patience`` evaluations did not improve the metric."""
        best, patience = self.best(history), self.settings.patience
        return best is not None and patience is not None and best.worse >= patience

    def outcome(self) -> dict[str, Any]:
        """Return the best evaluation, and whether training stopped early, for run.json."""
        stopped = self.patience_exhausted(self.trainer.state.log_history)
        file = self.folder / FINISHED
        with stored_content(file):
            best = read_json(file)["best"] if file.is_file() else None
        return {"best": best, "stopped_early": stopped}

    def record_answers(self) -> None:
        """Store what made the last answers if ``predict`` would generate the same.

        They must be those of the final weights, and answered in the same batches.
        """
        if self.answered_step != self.trainer.state.global_step:
            return
        config, folder = self.answer_config, self.config.output_dir
        settings = made_with(config.predict, config.predict.rule, (config.predict.rule,))
        settings["precision"] = asdict(Precision.of_trainer(self.trainer))
        own = made_by((folder / FINISHED).read_bytes(), self.examples, settings)
        write_evaluated(folder / EVALUATION / PREDICTIONS, {**own, **answer_sections(config)})

    def _answer(self) -> list[dict[str, Any]]:
        """Generate answers to all examples; return them in the same order on every rank.

        With ZeRO-3, all ranks must take part in each forward pass, so all ranks generate the same
        number of batches. A rank without a batch of its own generates the last batch again, and
        drops the answers.
        """
        trainer, length = self.trainer, self.config.predict.new_tokens
        rank, ranks = trainer.args.process_index, trainer.args.world_size
        training_s = self._training_seconds()
        is_known = self._read_rows()
        size = min(self.config.predict.batch_size, math.ceil(len(self.examples) / ranks))
        mine = []
        mixed = ranks > 1 and has_mixed_modalities(self.family, self.examples)
        model = trainer.accelerator.unwrap_model(trainer.model)
        # The precision of training. accelerate's autocast covers only ``model.forward``, not single
        # modules or the inner model of a PEFT model.
        precision = Precision.of_trainer(trainer)
        was_training = model.training
        model.eval()
        began, self.progress_file.step = time.monotonic(), trainer.state.global_step
        is_as_predict = size == min(self.config.predict.batch_size, len(self.examples))
        self.answered_step = self.progress_file.step if is_as_predict and not mixed else None
        with AnswerProgress("evaluating", len(self.examples), length, self.progress_file) as shown:
            while shown.answered < len(self.examples):
                number = shown.answered // size + rank
                last = math.ceil(len(self.examples) / size) - 1
                start = min(number, last) * size
                batch = self.examples[start : start + size]
                with shown.batch(model, min(ranks * size, shown.total - shown.answered)):
                    found = generate(
                        model,
                        self.family,
                        batch,
                        length,
                        add_dummy_image_row=mixed,
                        explore=self.explore,
                        constrainer=self.constrainer,
                        limits=ListLimits(self.config.task, self.config.predict),
                        precision=precision,
                    )
                    answers = list(found)
                if number <= last:
                    pairs = zip(batch, answers, strict=True)
                    config, rule = self.answer_config, self.answer_config.predict.rule
                    mine.append(
                        (number, [prediction(config, self.family, *pair, rule) for pair in pairs])
                    )
                if not is_known:
                    per_row = (time.monotonic() - began) / shown.answered
                    self._choose_rows(per_row, training_s, multiple=size * ranks)
                    is_known = True
                    shown.set_total(len(self.examples))
        model.train(was_training)
        lines = [line for _, own in sorted(gather_object(mine)) for line in own]
        return [{**line, "rows_due": len(self.examples)} for line in lines]

    def _training_seconds(self) -> float | None:
        """Return the seconds of training between two evaluations; None if not measured yet."""
        steps = 0 if self.begun is None else self.trainer.state.global_step - self.begun[1]
        if self.begun is None or steps < 1 or self.settings.every_steps is None:
            return None
        return (time.monotonic() - self.begun[0]) / steps * self.settings.every_steps

    def _read_rows(self) -> bool:
        """Use as many rows as the run's first evaluation; return False if this is the first."""
        file = self.config.output_dir / EVALUATED_ROWS
        known: list[int | None] = [None]
        if self.trainer.args.should_save:
            file.parent.mkdir(exist_ok=True)
            if file.is_file():
                with stored_content(file, "delete it"):
                    known = [int(read_json(file)["rows"])]
        broadcast_object_list(known)
        self.examples = self.examples[: known[0]]
        return known[0] is not None

    def _choose_rows(self, per_row: float, training_s: float | None, *, multiple: int) -> None:
        """Choose the number of rows for all evaluations of the run, and store it.

        ``per_row`` is the time to answer a row, and ``training_s`` the training time between two
        evaluations, both in seconds. The number is rounded up to a multiple of ``multiple``, the
        number of rows that all ranks answer at the same time.
        """
        chosen = [len(self.examples)]
        if self.trainer.args.should_save:
            if self.settings.rows is None and training_s is not None:
                fitting = max(_FEWEST_ROWS, math.floor(_TIME_SHARE * training_s / per_row))
                chosen = [min(len(self.examples), math.ceil(fitting / multiple) * multiple)]
            write_json(self.config.output_dir / EVALUATED_ROWS, {"rows": chosen[0]})
            if chosen[0] < len(self.examples):
                logger.info(
                    "evaluation: %d of %d rows each time, because a row takes about %.2g s and "
                    "the training between two evaluations %.0f s; set evaluate.rows to change it",
                    *(chosen[0], len(self.examples), per_row, training_s),
                    extra=NO_PREFIX,
                )
        broadcast_object_list(chosen)
        self.examples = self.examples[: chosen[0]]

    def _score(self, lines: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """Save the predictions to predictions.jsonl, score them, and return ``eval_*`` metrics."""
        file = self.config.output_dir / EVALUATION / PREDICTIONS
        file.parent.mkdir(exist_ok=True)
        write_text(file, "".join(json.dumps(line) + "\n" for line in lines))
        scores = score(
            file, task_name=self.config.task_name, scorer=self.config.task.scorer, write=False
        )
        args, step = self.trainer.args, self.trainer.state.global_step
        log_predictions(args.report_to, self.examples, scores.rows, step)
        values = {
            m.name: float(m.value(select_rows(scores.columns, rows)))
            for m, rows in scores.metrics_on_rows
        }
        known = {f"eval_{name}": value for name, value in values.items() if math.isfinite(value)}
        return {**known, FAILURES: sum(scores.failures.values())}

    def _save_best(self, best: Best) -> None:
        """Save the weights in ``best/``; if killed meanwhile, the older or new weights remain."""
        is_writer = self.trainer.args.should_save
        if is_writer:
            shutil.rmtree(self.unfinished, ignore_errors=True)
        save_without_push(self.trainer, self.unfinished / MODEL)
        if not is_writer:
            return
        self.family.save(self.unfinished / MODEL)
        write_config(self.unfinished, self.config)
        entry = {"step": best.step, "metric": best.metric, "value": best.value}
        finish(self.unfinished, {**self.facts(), "best": entry})  # written last
        self._replace_best()

    def _replace_best(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.unfinished.rename(self.folder)


def evaluation_metrics(config: Config, examples: Sequence[Example]) -> list[Metric]:
    """Return the metrics of each evaluation during training, the main metric first."""
    where = f"{config.title}, task"
    scorer = scorer_of(config.task, config.task_name, examples[0].answer, where)
    categories = [example.buckets.get(CATEGORY, "none") for example in examples]
    return [metric for metric, _ in metrics_by_category(scorer, categories)]


_REPORTERS = ("trackio", "wandb")  # both have the functions `log` and `Image`
_COUNT = 8  # images per evaluation: always the first 8, so that evaluations can be compared
_SIDE_PX = 512
_COLOURS = {"target": TRUE_COLOUR, "parsed": ANSWER_COLOUR}


def log_predictions(
    report_to: Sequence[str],
    examples: Sequence[Example],
    rows: Sequence[Mapping[str, Any]],
    step: int,
) -> None:
    """Log the first 8 evaluated images with their answers, if ``report_to`` has trackio or W&B.

    The caption has the text of the model and the true answer. True shapes are drawn in blue, and
    answered shapes in orange. ``rows`` are the scored rows of ``examples``, in the same order.
    """
    modules = [importlib.import_module(name) for name in _REPORTERS if name in report_to]
    if not modules:
        return
    pairs = zip(examples, rows, strict=True)
    found = [_drawn(*pair) for pair in islice((p for p in pairs if p[0].image), _COUNT)]
    for module in modules:
        images = {
            f"predictions/{i}": module.Image(image, caption=caption)
            for i, (image, caption) in enumerate(found)
        }
        module.log({**images, "train/global_step": step})  # the axis that transformers logs


def _drawn(example: Example, row: Mapping[str, Any]) -> tuple[Image.Image, str]:
    """Return a row's image with its shapes, downscaled to at most 512 pixels, and its caption."""
    image, size = open_sized(example)
    scale = min(1.0, _SIDE_PX / max(size))
    image = image.resize([max(1, round(scale * side)) for side in size])
    if isinstance(example.answer, Shape | Instances):
        for key, colour in _COLOURS.items():
            draw_shapes(image, _shapes(row[key], f"{row['id']}, {key}"), colour, scale=scale)
    return image, f"{row['id']}: {row['text']:.200} (true: {row['target']!s:.200})"


def _shapes(value: Any, where: str) -> Sequence[Instance]:
    """Return the shapes in the field ``target`` or ``parsed`` of a row.

    ``read_shapes`` does not accept points, so the answers of click and point tasks are read here.
    """
    if isinstance(value, list) and any("point" in item for item in value):
        return read_instances({"instances": value}, where, points=True).items
    return read_shapes(value, where)
