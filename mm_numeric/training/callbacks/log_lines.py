"""Show the progress of training on stderr: a line per logged step, and a progress bar."""

import sys
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from transformers import ProgressCallback, TrainerCallback

from mm_numeric.io.log import NO_PREFIX, in_stage, logger

WIDTH = 100

_BARS = "▁▂▃▄▅▆▇█"
_METRICS = 3  # in the line of an evaluation, which may have dozens


class LogLines(TrainerCallback):
    """Callback that writes a line for each logged step, wrapped at 100 characters.

    The line has the step, the loss, the learning rate, rows per second, the time left and the loss
    components. The time left is estimated from the mean time per step since training began or
    resumed. After an evaluation, a line with its first three metrics is written; the first metric
    has a sparkline of its values in all evaluations of the run.
    """

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Store the time and the step, to estimate the time left; log where a resume continues."""
        self.began, self.first = time.monotonic(), state.global_step
        if self.first:  # the checkpoint was checked and loaded
            logger.info(
                "Training resumes after step %d of %d (%s/checkpoint-%d).",
                *(self.first, state.max_steps, args.output_dir, self.first),
                extra=NO_PREFIX,
            )

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Log the last step too, so that a run of fewer than ``logging_steps`` has a loss."""
        if state.global_step >= state.max_steps and args.logging_strategy == "steps":
            control.should_log = True

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Write the line of a logged step, or of an evaluation."""
        step = f"step {state.global_step}/{state.max_steps}"
        if logs and "loss" in logs:
            per_step = (time.monotonic() - self.began) / max(1, state.global_step - self.first)
            left = timedelta(seconds=round(per_step * (state.max_steps - state.global_step)))
            items = [step, f"loss {logs['loss']:.4g}"]
            if "learning_rate" in logs:
                items.append(f"lr {logs['learning_rate']:.3g}")
            items += [f"{logs['speed/samples_per_second']:.3g} rows/s", f"{left} left"]
            line = wrapped([*items, *_named(logs, "loss/")])
        elif metrics := _named(logs or {}, "eval_"):
            name = metrics[0].partition(" ")[0]
            values = [old.get(f"eval_{name}") for old in state.log_history]
            metrics[0] += sparkline([value for value in values if value is not None])
            line = wrapped([step, "evaluation", *metrics[:_METRICS]])
        else:
            return
        logger.info("%s", line, extra=NO_PREFIX)


class TrainingBar(ProgressCallback):
    """The progress bar of transformers with the loss and the first metric, without log lines."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Show the bar, in which a resumed run starts at its checkpoint's step."""
        super().on_train_begin(args, state, control, **kwargs)
        self.values: dict[str, str] = {}
        if self.training_bar is not None:
            self.training_bar.set_description(in_stage("training"))
            # Steps before the resume took no time here, which would shorten the time left.
            self.current_step = self.training_bar.initial = state.global_step
            self.training_bar.n = self.training_bar.last_print_n = state.global_step

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Show the last loss, and the first metric of the last evaluation, after the bar."""
        found = [name for name in logs or {} if name == "loss" or name.startswith("eval_")]
        for name in found[:1]:
            self.values[name.removeprefix("eval_")] = f"{logs[name]:.3g}"
        if self.training_bar is not None:
            self.training_bar.set_postfix(self.values, refresh=False)


def sparkline(values: Sequence[float]) -> str:
    """Draw a value as one character each, the lowest as ▁ and the highest as █, after a space.

    Returns "" for fewer than two values, and if stderr cannot show these characters.
    """
    try:
        _BARS.encode(getattr(sys.stderr, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return ""
    if len(values) < 2:
        return ""
    low, high = min(values), max(values)
    steps = (len(_BARS) - 1) / ((high - low) or 1)
    return " " + "".join(_BARS[round(steps * (value - low))] for value in values)


def wrapped(items: list[str]) -> str:
    """Join items with two spaces, and wrap them at 100 characters."""
    lines = [items[0]]
    for item in items[1:]:
        if len(lines[-1]) + 2 + len(item) <= WIDTH:
            lines[-1] += f"  {item}"
        else:
            lines.append(f"    {item}")
    return "\n".join(lines)


def _named(logs: Mapping[str, Any], prefix: str) -> list[str]:
    """Return the numbers whose names start with ``prefix``, as text such as ``ce 1.23``."""
    return [
        f"{name.removeprefix(prefix)} {value:.3g}"
        for name, value in logs.items()
        if name.startswith(prefix) and isinstance(value, int | float)
    ]
