"""List the ``mm-numeric`` commands in groups, and suggest a similar word for an unknown one."""

import argparse
import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, NoReturn

from mm_numeric.io.escaping import terminal_text
from mm_numeric.registry import unknown

EXAMPLES = """\
examples:
  mm-numeric ls                                        list tasks, families, losses and configs
  mm-numeric cp clock_tiny mine.yaml                   copy a shipped config
  mm-numeric check mine.yaml                           validate it and print it with all defaults
  mm-numeric prepare coco instances_val2017.json --out val.jsonl    convert a published format
  mm-numeric check-data mine.yaml                      validate the data before training
  mm-numeric run mine.yaml                             from the data to a report, resumable
  mm-numeric train mine.yaml objective=emd             train, with one setting changed
  mm-numeric predict --model runs/mine --data test.jsonl --out predictions.jsonl
  mm-numeric predict --model runs/mine --image clock.png --draw answer.png
  mm-numeric score predictions.jsonl                   metrics, intervals, parse failures
  mm-numeric score submit.zip --truth gt.zip           score detections of another tool (ICDAR)
  mm-numeric compare clock_tiny                        compare objectives over several seeds
  mm-numeric export runs/mine --out my-model           merge adapters and write a model card
  torchrun --nproc-per-node 8 -m mm_numeric train mine.yaml
"""


def positive(text: str) -> int:
    """Parse a whole number of at least 1, for argparse's ``type=``."""
    if not re.fullmatch("[0-9]{1,18}", text) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text:.40} is not a whole number of at least 1")
    return int(text)


GROUPS: Mapping[str, tuple[str, ...]] = {
    "configs": ("ls", "cp", "check"),
    "data": ("prepare", "check-data", "labels"),
    "all steps": ("run",),
    "one model": ("train", "predict", "demo", "calibrate", "decode", "score", "export", "push"),
    "several objectives": ("compare", "report"),
    "installation": ("doctor",),
}
"""Maps the title of each group of commands in the overview to the names of its commands."""


def overview(texts: Mapping[str, str]) -> str:
    """Return the commands in groups, one line each; ``texts`` maps each name to its help text."""
    lines = []
    for title, names in GROUPS.items():
        lines += [f"{title}:", *(f"    {name:<11} {texts[name]}" for name in names)]
    return "\n".join(lines)


class CommandParser(argparse.ArgumentParser):
    """Argument parser that suggests the most similar choice or option if one is unknown."""

    def reject(self, words: Sequence[str]) -> NoReturn:
        """Exit with an error message for arguments that this parser does not have."""
        near = [o for w in words for o in get_close_matches(w, self._option_string_actions, n=1)]
        hint = f" (did you mean {near[0]}?)" if near else ""
        self.error(f"unrecognized arguments: {' '.join(words)}{hint}")

    def error(self, message: str) -> NoReturn:
        """Print the usage and an error message, and exit with code 2."""
        super().error(terminal_text(message))

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            what = "command" if isinstance(action, argparse._SubParsersAction) else "choice"
            where = "/".join(action.option_strings) or str(action.metavar or action.dest)
            raise argparse.ArgumentError(None, str(unknown(value, action.choices, what, where)))
