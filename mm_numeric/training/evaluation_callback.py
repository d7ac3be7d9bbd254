"""Evaluation on the way: every so many steps the model answers a few rows and is scored as ever.

The ranks share the rows in batches, each row is answered once, and rank 0 scores the texts as
``mm-numeric score`` does. The figures go into the trainer's log as ``eval_NAME``, which W&B and
TensorBoard show as ``eval/NAME``, and into log.jsonl; a figure that no row has (the mean over none)
is left out. Which weights were best so far is read from the log, so that a resumed run knows it.

In a run's folder:
    evaluation/predictions.jsonl    of the last evaluation, as `predict` writes them
    best/                           the best weights, as a run folder: model/, config.yaml, run.json
"""

import json
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from accelerate.utils import broadcast_object_list, gather_object
from transformers import TrainerCallback

from mm_numeric.answers import Example
from mm_numeric.config.schema import Config
from mm_numeric.data.collator import has_mixed_modalities
from mm_numeric.data.examples import load_examples
from mm_numeric.evaluation.metrics.base import Metric, metrics_by_category, select_rows
from mm_numeric.evaluation.score import read_scores, scorer_of
from mm_numeric.families.family import Family
from mm_numeric.files import write_text
from mm_numeric.inference.generate import generate, prediction
from mm_numeric.registry import unknown
from mm_numeric.run_folder import (
    BEST,
    EVALUATION,
    FINISHED,
    MODEL,
    PREDICTIONS,
    finish,
    write_config,
)

FAILURES = "eval_failures"
"""How many answers could not be read; it marks the lines of the log that are an evaluation's."""


class Best(NamedTuple):
    """The best evaluation of a run so far."""

    step: int
    metric: str
    value: float
    worse: int
    """How many evaluations there were behind it."""


def evaluated_rows(config: Config) -> list[Example]:
    """Return the rows that are answered on the way, none where the config has no evaluation.

    Raises:
        ValueError: If a row has no answer to compare with, or there is no such metric.
    """
    settings = config.evaluate
    if settings is None:
        return []
    source = settings.data or config.data.test
    examples = load_examples(config.task, source, Path(config.data.cache), training=False)
    examples = examples[: settings.rows]
    for example in examples:
        if example.answer is None:
            raise ValueError(
                f"{example.where}: the row has no answer to score with, and `evaluate` needs one; "
                "give it one, or name other rows as evaluate.data."
            )
    names = [metric.name for metric in _metrics(config, examples)]
    if settings.best is not None and settings.best not in names:
        raise unknown(settings.best, names, "metric", f"{config.title}, evaluate.best")
    return examples


class Evaluation(TrainerCallback):
    """Evaluates the model of a trainer, keeps its best weights, and ends a training in vain."""

    def __init__(
        self,
        trainer: Any,
        config: Config,
        family: Family,
        examples: Sequence[Example],
        facts: Callable[[], dict[str, Any]],
    ) -> None:
        """Become the trainer's evaluation.

        Args:
            trainer: A NumericTrainer.
            config: With an ``evaluate`` part.
            family: Of the model.
            examples: From ``evaluated_rows``.
            facts: What run.json says of the run so far, for that of ``best/``.
        """
        assert config.evaluate is not None
        self.trainer, self.config, self.family = trainer, config, family
        self.settings, self.examples, self.facts = config.evaluate, examples, facts
        self.higher_is_better = {
            metric.name: metric.higher_is_better for metric in _metrics(config, examples)
        }
        self.folder = config.output_dir / BEST
        if trainer.args.should_save and _old(self.folder).exists() and not self.folder.exists():
            _old(self.folder).rename(self.folder)  # killed while one took the place of the other
        trainer.evaluation = self
        trainer.add_callback(self)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Ask for an evaluation; the trainer logs the loss first, and saves behind it."""
        if state.global_step % self.settings.every_steps == 0:
            control.should_evaluate = True
        if state.global_step >= state.max_steps:
            control.should_evaluate = True

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End the training where patience does."""
        if self.in_vain(state.log_history):
            control.should_training_stop = True

    def run(self) -> dict[str, float]:
        """Answer the rows, log what they score, and keep the weights if they are the best.

        Every rank calls it, and gets the same figures.
        """
        trainer = self.trainer
        lines = self._answer()
        figures: list[Any] = [self._score(lines) if trainer.args.should_save else None]
        broadcast_object_list(figures)
        logged: dict[str, float] = figures[0]
        trainer.log(logged)
        best = self.best(trainer.state.log_history)
        if best is not None and best.step == trainer.state.global_step:
            self._keep(best)
        trainer.control = trainer.callback_handler.on_evaluate(
            trainer.args, trainer.state, trainer.control, logged
        )
        return logged

    def best(self, history: Sequence[Mapping[str, Any]]) -> Best | None:
        """Return the best evaluation in a trainer's log, the first of equals; None without one."""
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

    def in_vain(self, history: Sequence[Mapping[str, Any]]) -> bool:
        """Say whether the last evaluations of a log were no better than the best, to patience."""
        best, patience = self.best(history), self.settings.patience
        return best is not None and patience is not None and best.worse >= patience

    def outcome(self) -> dict[str, Any]:
        """Return what run.json says of the evaluations: the best that is kept, if one is."""
        stopped = self.in_vain(self.trainer.state.log_history)
        if not (self.folder / FINISHED).is_file():
            return {"best": None, "stopped_early": stopped}
        kept = json.loads((self.folder / FINISHED).read_text(encoding="utf-8"))
        return {"best": kept["best"], "stopped_early": stopped}

    def _answer(self) -> list[dict[str, Any]]:
        """Return a prediction for every row, in their order, on every rank.

        Under ZeRO-3 a forward pass needs all ranks. So each generates as often as the others: one
        that has no batch left answers the last once more, and keeps nothing of it.
        """
        trainer, length = self.trainer, self.config.predict.max_new_tokens
        rank, ranks = trainer.args.process_index, trainer.args.world_size
        size = min(self.config.predict.batch_size, math.ceil(len(self.examples) / ranks))
        starts = range(0, len(self.examples), size)
        mine = []
        mixed = ranks > 1 and has_mixed_modalities(self.family, self.examples)
        model = trainer.accelerator.unwrap_model(trainer.model)
        was_training = model.training
        model.eval()
        for first in range(0, len(starts), ranks):
            number = first + rank
            start = starts[min(number, len(starts) - 1)]
            batch = self.examples[start : start + size]
            answers = list(generate(model, self.family, batch, length, add_dummy_image_row=mixed))
            if number < len(starts):
                pairs = zip(batch, answers, strict=True)
                mine.append((number, [prediction(self.config, self.family, *p) for p in pairs]))
        model.train(was_training)
        return [line for _, lines in sorted(gather_object(mine)) for line in lines]

    def _score(self, lines: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """Write predictions and return their figures, as the trainer logs them."""
        file = self.config.output_dir / EVALUATION / PREDICTIONS
        file.parent.mkdir(exist_ok=True)
        write_text(file, "".join(json.dumps(line) + "\n" for line in lines))
        scores = read_scores(file)
        figures = {
            m.name: float(m.value(select_rows(scores.columns, rows))) for m, rows in scores.figures
        }
        known = {f"eval_{name}": value for name, value in figures.items() if math.isfinite(value)}
        return {**known, FAILURES: sum(scores.failures.values())}

    def _keep(self, best: Best) -> None:
        """Let the weights of now take the place of the best ones."""
        unfinished, is_writer = _unfinished(self.folder), self.trainer.args.should_save
        if is_writer and unfinished.exists():
            shutil.rmtree(unfinished)
        self.trainer.save_model(str(unfinished / MODEL), _internal_call=True)
        if not is_writer:
            return
        self.family.save(unfinished / MODEL)
        write_config(unfinished, self.config)
        named = {"step": best.step, "metric": best.metric, "value": best.value}
        finish(unfinished, {**self.facts(), "best": named})
        if self.folder.exists():
            if _old(self.folder).exists():
                shutil.rmtree(_old(self.folder))
            self.folder.rename(_old(self.folder))
        unfinished.rename(self.folder)
        shutil.rmtree(_old(self.folder), ignore_errors=True)


def _metrics(config: Config, examples: Sequence[Example]) -> list[Metric]:
    """Return what is measured of the answers to some rows."""
    where = f"{config.title}, task"
    scorer = scorer_of(config.task, config.task_name, examples[0].answer, where)
    return [
        metric
        for metric, _ in metrics_by_category(scorer, [example.buckets for example in examples])
    ]


def _unfinished(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.unfinished")


def _old(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.old.unfinished")
