"""What a run keeps in its folder, and whether a folder may be used.

config.yaml       the config with every default filled in
log.jsonl         one line for each logged step
checkpoint-N/     of transformers.Trainer
model/            the weights (of a model with adapters, those), tokenizer and image processor
run.json          written last: what was done, with which versions
evaluation/       predictions.jsonl of the last evaluation on the way, if the config asks for them
best/             the best weights of those, as a run folder of its own

and, where it was tested, predictions.jsonl, scores.jsonl and results.json; in a comparison also
digits.json (see digit_chances).
"""

import fcntl
import json
import os
import platform
import shutil
from collections.abc import Iterator, Set
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mm_numeric.config.reader import config_from_dict
from mm_numeric.config.schema import Config
from mm_numeric.files import write_text
from mm_numeric.parsing import read_yaml

CONFIG, LOG, MODEL, FINISHED = "config.yaml", "log.jsonl", "model", "run.json"
EVALUATION, BEST = "evaluation", "best"
PREDICTIONS, SCORES, RESULTS = "predictions.jsonl", "scores.jsonl", "results.json"
DIGITS = "digits.json"

_FREE_TO_CHANGE = frozenset({"predict", "compare"})  # what does not change what is trained
_LEFTOVERS = (CONFIG, LOG, EVALUATION, BEST, "init", "checkpoint-*", "*.unfinished")
_HEADER = "# Written by mm-numeric: the config of this folder, every default filled in.\n"
_PACKAGES = ("mm-numeric", "torch", "transformers", "accelerate", "peft", "numpy", "pillow")


def claim(folder: Path, config: Config, *, ignore: Set[str] = _FREE_TO_CHANGE) -> bool:
    """Take a folder for a run: write its config, or check that it is this very run's.

    What a run left behind that ended before its first checkpoint is cleared away: nothing in it can
    be gone on with, and the config may have been at fault.

    Returns:
        Whether the run was already there, with something to go on with.

    Raises:
        ValueError: If the folder holds something else.
    """
    entries = list(folder.iterdir()) if folder.is_dir() else []
    left = [p for p in entries if any(p.match(name) for name in _LEFTOVERS)]
    begun = len(left) < len(entries) or last_checkpoint(folder)
    if (folder / CONFIG).is_file() and begun:
        difference = _first_difference(_without(_read(folder), ignore), _without(config, ignore))
        if difference:
            raise ValueError(
                f"{folder} holds another run: {difference}. Choose another folder, or delete it."
            )
        return True
    # Nothing is cleared away on the word of a file name: a config.yaml may be the user's own.
    if (folder.exists() and not folder.is_dir()) or (entries and (begun or not _is_ours(folder))):
        raise ValueError(f"{folder} is not empty and holds no run. Choose another folder.")
    for path in left:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    folder.mkdir(parents=True, exist_ok=True)
    write_config(folder, config)
    return False


def write_config(folder: Path, config: Config) -> None:
    """Write the config of a folder, marked as written here."""
    write_text(folder / CONFIG, _HEADER + config.to_yaml())


def _is_ours(folder: Path) -> bool:
    """Say whether a run has claimed a folder, or was cut off while it did."""
    path = folder / CONFIG
    if path.is_file():
        return path.read_bytes().startswith(_HEADER.encode())
    return any(folder.glob(f"{CONFIG}.*.unfinished"))


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep a folder to one process at a time; the lock ends with the process, killed included.

    Raises:
        ValueError: If another process is at work in it.
    """
    beside = folder.with_name(f".{folder.name}.lock")
    beside.parent.mkdir(parents=True, exist_ok=True)
    with beside.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ValueError(
                f"{folder}: another process is at work in it; wait for it or choose another folder."
            ) from None
        yield


def read_run(folder: Path) -> Config:
    """Return the config of a finished run.

    Raises:
        ValueError: If the folder holds none.
    """
    if not (folder / CONFIG).is_file():
        raise ValueError(f"{folder} holds no run; give the output_dir of `mm-numeric train`.")
    if not (folder / FINISHED).is_file():
        raise ValueError(f"{folder} is not finished; go on with `mm-numeric train ... --resume`.")
    return _read(folder)


def _read(folder: Path) -> Config:
    where = str(folder / CONFIG)
    raw = read_yaml(folder / CONFIG)
    return config_from_dict(raw, where=where, title=folder.name, stored=True)


def _without(config: Config, parts: Set[str]) -> dict[str, Any]:
    return {key: value for key, value in config.to_dict().items() if key not in parts}


def last_checkpoint(folder: Path) -> Path | None:
    """Return the newest checkpoint that was saved to its end, or None.

    transformers writes ``trainer_state.json`` last, so that a checkpoint without it, or with a part
    of it, was cut off.
    """
    complete = [
        path.parent
        for path in folder.glob("checkpoint-*/trainer_state.json")
        if path.parent.name.rpartition("-")[2].isdecimal() and _is_json(path)
    ]
    return max(complete, key=lambda p: int(p.name.rpartition("-")[2]), default=None)


def finish(folder: Path, facts: dict[str, Any]) -> None:
    """Write that a run has ended, with which versions and where."""
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    facts = {**facts, "machine": machine, "python": platform.python_version()}
    facts["versions"] = versions()
    write_text(folder / FINISHED, json.dumps(facts, indent=1) + "\n")


def versions() -> dict[str, str]:
    """Return the versions of the packages that a result depends on."""
    return {name: version(name) for name in _PACKAGES}


def _is_json(path: Path) -> bool:
    try:
        json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return False
    return True


def _first_difference(theirs: Any, mine: Any, at: str = "") -> str | None:
    """Say where two configs part, or None."""
    if isinstance(theirs, dict) and isinstance(mine, dict):
        for key in sorted({*theirs, *mine}):
            found = _first_difference(theirs.get(key), mine.get(key), f"{at}.{key}".lstrip("."))
            if found:
                return found
        return None
    return None if theirs == mine else f"{at} is {theirs!r:.60} there and {mine!r:.60} here"


WARM_START = "warm_start"
"""The folder of the run that rows go on from; where they have settings of their own, it begins so.
No row may have its name."""
