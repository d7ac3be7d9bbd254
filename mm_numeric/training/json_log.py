"""Where the log of a run goes: always into a file, and to what ``trainer.report_to`` names."""

import json
import math
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainingArguments
from transformers.integrations import get_reporting_integration_callbacks

from mm_numeric.files import write_text


class JsonLog(TrainerCallback):
    """Writes one line of JSON for each logged step; a resumed run goes on where it left off.

    ``parts/ce`` is written as ``{"parts": {"ce": ...}}``, the figures of an evaluation as a line
    with ``eval``, and a number that is not finite, for which JSON has no word, as null.
    """

    def __init__(self, path: Path) -> None:
        """Write to a file."""
        self.path = path

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Drop what was logged behind the checkpoint that is resumed from, and a line cut off."""
        if state.is_world_process_zero:
            *lines, _ = self.path.read_text("utf-8").split("\n") if self.path.exists() else [""]
            kept = [
                line for i, line in enumerate(lines, 1) if self._step(line, i) <= state.global_step
            ]
            write_text(self.path, "".join(line + "\n" for line in kept))

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Append what the trainer logs, what belongs together in one place."""
        if not state.is_world_process_zero or not logs:
            return
        if "loss" in logs:
            line: dict[str, Any] = {"step": state.global_step}
            for name, value in logs.items():
                *groups, last = name.split("/")
                place = line
                for group in groups:
                    place = place.setdefault(group, {})
                place[last] = value
            self._write({**line, "parts": line.get("parts", {})})
        scores = {k.removeprefix("eval_"): v for k, v in logs.items() if k.startswith("eval_")}
        if scores:
            self._write({"step": state.global_step, "epoch": logs.get("epoch"), "eval": scores})

    def _step(self, line: str, number: int) -> int:
        try:
            step: int = json.loads(line)["step"]
        except (ValueError, LookupError, TypeError) as error:
            raise ValueError(
                f"{self.path}, line {number}: not a line of a log ({error}); delete the line."
            ) from error
        return step

    def _write(self, line: dict[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(_finite(line), allow_nan=False) + "\n")


def refuse_reports(args: TrainingArguments, where: str) -> None:
    """Refuse to report to what is not there, which the trainer does when its model is loaded.

    Raises:
        ValueError: If transformers knows no such name, or its package is not installed.
    """
    for name in args.report_to:
        try:
            for callback in get_reporting_integration_callbacks([name]):
                callback()
        except (ValueError, RuntimeError, ImportError) as error:
            said = " ".join(str(error).split()).rstrip(".")
            raise ValueError(
                f"{where}.report_to: {name!r} cannot be reported to ({said}); install what is "
                "missing, or take it out: log.jsonl has all of it."
            ) from error


def _finite(value: Any) -> Any:
    """Return the same with null for every number that is not finite."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
