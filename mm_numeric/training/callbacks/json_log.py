"""Write the training log to log.jsonl, and check the integrations in ``trainer.report_to``."""

import json
import math
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainingArguments
from transformers.integrations import get_reporting_integration_callbacks

from mm_numeric.io.atomic_files import append_to
from mm_numeric.io.files import stored_content, write_text


class JsonLog(TrainerCallback):
    """Callback that appends one line of JSON per logged step to log.jsonl.

    A resumed run appends to the same file. A value that the trainer logs as ``loss/ce`` is written
    as ``{"components": {"ce": ...}}``. The metrics of an evaluation are written as another line
    with the entry ``eval``. NaN and infinity are written as null.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Remove log lines of steps after the loaded checkpoint, and an incomplete last line."""
        if state.is_world_process_zero:
            with stored_content(self.path, "restore or delete it"):
                *lines, _ = self.path.read_text("utf-8").split("\n") if self.path.exists() else [""]
            kept = [
                line for i, line in enumerate(lines, 1) if self._step(line, i) <= state.global_step
            ]
            write_text(self.path, "".join(line + "\n" for line in kept))

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Append the logged values to the file."""
        if not state.is_world_process_zero or not logs:
            return
        if "loss" in logs:
            line: dict[str, Any] = {"step": state.global_step}
            for name, value in logs.items():
                *groups, last = name.split("/")
                if groups[:1] == ["loss"]:  # the entry ``loss`` is the total
                    groups = ["components"]
                target = line
                for group in groups:
                    target = target.setdefault(group, {})
                target[last] = value
            self._write({**line, "components": line.get("components", {})})
        scores = {k.removeprefix("eval_"): v for k, v in logs.items() if k.startswith("eval_")}
        if scores:
            self._write({"step": state.global_step, "epoch": logs.get("epoch"), "eval": scores})

    def _step(self, line: str, number: int) -> int:
        try:
            step: int = json.loads(line)["step"]
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise ValueError(
                f"{self.path}, line {number}: invalid log line ({error}); delete the line."
            ) from error
        return step

    def _write(self, line: dict[str, Any]) -> None:
        with append_to(self.path) as file:
            file.write(json.dumps(_without_nan(line), allow_nan=False) + "\n")


def validate_report_to(args: TrainingArguments, where: str) -> None:
    """Check that the packages of ``report_to`` are installed, before the model is loaded."""
    for name in args.report_to:
        try:
            for callback in get_reporting_integration_callbacks([name]):
                callback()
        except (ValueError, RuntimeError, ImportError) as error:
            reason = " ".join(str(error).split()).rstrip(".")
            raise ValueError(
                f"{where}.report_to: {name!r} is not available ({reason}); install its package, or "
                "remove it: log.jsonl contains the same values."
            ) from error


def _without_nan(value: Any) -> Any:
    """Return a copy of a log entry, with None in place of NaN and infinity."""
    if isinstance(value, dict):
        return {key: _without_nan(inner) for key, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
