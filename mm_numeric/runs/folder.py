"""Names of the files in a run folder, and functions to check, lock and read such a folder.

config.yaml       config with all defaults
log.jsonl         one line per logged step
checkpoint-N/     checkpoints of transformers.Trainer
model/            weights (only the adapters if there are any), tokenizer and image processor
run.json          written last: steps, number of training samples, machine, versions, commit
evaluation/       with evaluation during training: predictions.jsonl of the last evaluation, and
                  rows.json with the number of evaluated rows
progress.json     while the model answers rows: the progress of the evaluation or of ``predict``
report.html       page of the run, written at each evaluation and at the end, and by ``report``
best/             with evaluation during training: run folder with the best weights
teacher/          with the config section ``distil``: run folder of the teacher; the other files
                  then belong to the student, which is trained on the teacher's answers

``mm-numeric predict`` adds predictions.jsonl, and ``score`` adds scores.jsonl and results.json,
whose format is in ``mm_numeric.runs.results_file``.
``predict --training-rows`` and ``distil`` add training_answers.jsonl.
``calibrate`` adds calibration.RULE.json (``mm_numeric.inference.calibrate``) and, in the folder
calibration, the answers that it was fitted to.
``compare`` adds predictions.jsonl, scores.jsonl and results.json. For each further decoding rule,
it also adds files such as predictions.median.jsonl, scores.median.jsonl and results.median.json.
"""

import glob
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

from mm_numeric import __version__
from mm_numeric.config.decoding import GREEDY
from mm_numeric.config.reader import config_from_dict, with_overrides
from mm_numeric.config.schema import Config
from mm_numeric.io.atomic_files import reject_links
from mm_numeric.io.files import read_json, write_json, write_text
from mm_numeric.registry import import_from
from mm_numeric.runs.trust import named_code, require_no_code
from mm_numeric.settings import read_yaml, setting_at

CONFIG, LOG, MODEL, FINISHED = "config.yaml", "log.jsonl", "model", "run.json"
EVALUATION, BEST, TEACHER = "evaluation", "best", "teacher"
EVALUATED_ROWS, PROGRESS = "evaluation/rows.json", "progress.json"
PREDICTIONS, SCORES, RESULTS = "predictions.jsonl", "scores.jsonl", "results.json"
ENSEMBLE = "ensemble.jsonl"  # answers of an ensemble of this run and other runs
TRAINING_ANSWERS = "training_answers.jsonl"
STATED = "hypotheses.json"  # in the folder of a comparison
CALIBRATION = "calibration.json"
CALIBRATION_ANSWERS = "calibration/predictions.jsonl"
STEP, MANIFEST = "step.json", "manifest.json"  # in a checkpoint

WARM_START = "warm_start"
"""Prefix of the folder names of warm starts; no other run of a comparison may begin with it."""

_MAY_DIFFER = frozenset({"predict", "compare", "plugins"})  # these do not change the training
_LEFTOVERS = (
    CONFIG, STATED, LOG, EVALUATION, PROGRESS, BEST, "init", "checkpoint-*", "report.*",
    "*.unfinished",
)  # fmt: skip
_HEADER = "# Written by mm-numeric: the config of this folder, every default filled in.\n"
_MOST_NAMED = 5  # most settings named in an error message
_PACKAGES = ("torch", "transformers", "accelerate", "peft", "numpy", "pillow")


def claim(
    folder: Path, config: Config, *, ignore: Set[str] = _MAY_DIFFER, key: str = "trainer.output_dir"
) -> bool:
    """Prepare a folder for a run: write config.yaml, or check the run that the folder contains.

    Raises ValueError if the folder contains a run with another config, links to paths outside the
    folder, or other files. The config sections in ``ignore`` may differ. If the run in the folder
    stopped before its first checkpoint, its files are deleted, and config.yaml is written again.
    ``key`` is the setting that names the folder, for error messages. Returns True if the folder
    already contained a run with this config.
    """
    if contains_run(folder, config, ignore=ignore, key=key):
        reject_links(folder)
        return True
    require_free(folder, key)
    reject_links(folder)
    for path in _entries(folder)[1]:
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    folder.mkdir(parents=True, exist_ok=True)
    write_config(folder, config)
    return False


def require_free(folder: Path, key: str = "trainer.output_dir") -> None:
    """Raise ValueError if a folder without a run contains other files than a stopped run leaves.

    ``key`` is the setting that names the folder.
    """
    entries, left = _entries(folder)
    begun = len(left) < len(entries) or last_checkpoint(folder)
    # Delete no files because of their names alone: a config.yaml may be the user's.
    if (folder.exists() and not folder.is_dir()) or (entries and (begun or not _is_ours(folder))):
        raise ValueError(
            f"{folder} is not empty and contains no run. Choose another folder, such as "
            f"{key}=runs/other."
        )


def contains_run(
    folder: Path, config: Config, *, ignore: Set[str] = _MAY_DIFFER, key: str = "trainer.output_dir"
) -> bool:
    """Return True if a folder contains a run with this config that reached its first checkpoint.

    Raises ValueError if the run has another config. The arguments are described in ``claim``.
    """
    entries, left = _entries(folder)
    begun = len(left) < len(entries) or last_checkpoint(folder)
    if not (folder / CONFIG).is_file() or not begun:
        return False
    stored, own = stored_settings(folder), config.to_dict()
    # Compare these settings first, because reading the stored config imports the modules it names.
    different = differences_text(named_code(stored), named_code(own))
    if not different:
        theirs = _moved(_read(folder, stored).to_dict(), own)
        different = differences_text(_without(theirs, ignore), _without(own, ignore))
    if different:
        raise ValueError(
            f"{folder} contains another run: {different}. Choose another folder, such as "
            f"{key}=runs/other, or delete this one."
        )
    return True


def _entries(folder: Path) -> tuple[list[Path], list[Path]]:
    """Return all files in a folder, and the files that a run writes before its first checkpoint."""
    entries = list(folder.iterdir()) if folder.is_dir() else []
    return entries, [p for p in entries if any(p.match(name) for name in _LEFTOVERS)]


def decoded_name(name: str, rule: str) -> str:
    """Return the name of a file for the answers of a decoding rule: ``results.median.json``.

    ``name`` is the name for the rule ``greedy``: PREDICTIONS, TRAINING_ANSWERS, SCORES or RESULTS.
    """
    if rule == GREEDY:
        return name
    stem, _, suffix = name.rpartition(".")
    return f"{stem}.{rule}.{suffix}"


def write_config(folder: Path, config: Config) -> None:
    """Write config.yaml, whose first line marks it as written by this library."""
    write_text(folder / CONFIG, _HEADER + config.to_yaml())


def _is_ours(folder: Path) -> bool:
    """Return True if this library wrote the config.yaml of a folder, even if incompletely."""
    path = folder / CONFIG
    if path.is_file():
        return path.read_bytes().startswith(_HEADER.encode())
    return any(folder.glob(f"{CONFIG}.*.unfinished"))


def read_run(
    folder: Path, *, trust_remote_code: bool = False, overrides: Sequence[str] = ()
) -> Config:
    """Return the config of a finished run; ``overrides`` change settings of task, data and predict.

    Without ``trust_remote_code``, raises ValueError if the config imports modules from outside this
    library or executes code of the checkpoint, because a run folder may come from somebody else.
    """
    if not (folder / CONFIG).is_file():
        raise ValueError(f"{folder} contains no run; use the output_dir of `mm-numeric train`.")
    if not (folder / FINISHED).is_file():
        raise ValueError(f"{folder} is not finished; resume with `mm-numeric train ... --resume`.")
    stored = _changed(stored_settings(folder), overrides)
    if not trust_remote_code:
        require_no_code(stored, folder, folder / MODEL)
    else:
        import_plugins(stored)
    config = _read(folder, stored)
    if config.predict.max_new_tokens is None:  # use the length measured on the training answers
        number = read_json(folder / FINISHED).get("max_new_tokens")
        config = replace(config, predict=replace(config.predict, max_new_tokens=number))
    return config


def _changed(stored: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Return the settings of a run with overrides; only task, data and predict may change."""
    for override in overrides:
        name = override.partition("=")[0]
        if name == "task.name" or not name.startswith(("task.", "data.", "predict.")):
            raise ValueError(
                f"{override}: the settings of a trained model are fixed; a prediction may change "
                "those of task (except its name), data and predict."
            )
    return with_overrides(stored, overrides)


def check_test_rows(folder: Path, overrides: Sequence[str] = ()) -> None:
    """Raise ValueError if the test rows of a finished run are missing, without loading torch."""
    if (folder / CONFIG).is_file() and (folder / FINISHED).is_file():
        path = setting_at(_changed(stored_settings(folder), overrides), "data.test.path")
        if isinstance(path, str) and not glob.has_magic(path) and not Path(path).exists():
            raise ValueError(
                f"{path}: there is no such file. The run stores it relative to the folder where it "
                "was trained; predict there, or name the file with --data and --images."
            )


def stored_settings(folder: Path) -> dict[str, Any]:
    """Return the settings in the config.yaml of a run."""
    return read_yaml(folder / CONFIG)


def import_plugins(stored: dict[str, Any]) -> None:
    """Add the folder ``plugins`` of stored settings that the user trusts to the import path."""
    if stored.get("plugins"):
        import_from(str(stored["plugins"]))


def _read(folder: Path, stored: dict[str, Any]) -> Config:
    return config_from_dict(stored, where=str(folder / CONFIG), title=folder.name)


def _moved(theirs: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Return the stored config of a moved run, with the new paths of its folder and weights."""
    folders = [config["trainer"]["output_dir"] for config in (theirs, own)]
    names = [config["model"]["name"] for config in (theirs, own)]
    pairs = list(zip(names, folders, strict=True))
    # A teacher's folder is inside the folder of its run.
    runs = [path.parent if path.name == TEACHER else path for path in map(Path, folders)]
    inside = all(run.parent in Path(name).parents for name, run in zip(names, runs, strict=True))
    same = inside and len({os.path.relpath(name, folder) for name, folder in pairs}) == 1
    return {
        **theirs,
        "trainer": theirs["trainer"] | {"output_dir": folders[1]},
        "model": theirs["model"] | {"name": names[same]},
    }


def _without(config: dict[str, Any], sections: Set[str]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in sections}


def last_checkpoint(folder: Path) -> Path | None:
    """Return the complete checkpoint with the highest step; None if there is none.

    A checkpoint is complete if it has ``manifest.json``, which is written last and atomically.
    """
    complete = [
        path
        for path in folder.glob("checkpoint-*")
        if path.name.rpartition("-")[2].isdecimal() and (path / MANIFEST).is_file()
    ]
    return max(complete, key=lambda p: int(p.name.rpartition("-")[2]), default=None)


def is_resumable(folder: Path) -> bool:
    """Return True if a run folder has a checkpoint, or a teacher that has one or is finished."""
    teacher = folder / TEACHER
    saved = last_checkpoint(folder) or last_checkpoint(teacher)
    return saved is not None or (teacher / FINISHED).is_file()


def finish(folder: Path, facts: dict[str, Any]) -> None:
    """Mark a run as finished: write its metadata, machine, versions and commit to run.json."""
    facts = {**facts, "machine": machine_name(), "python": platform.python_version()}
    facts |= {"versions": versions(), "commit": source_commit()}
    write_json(folder / FINISHED, facts, indent=1)


def versions() -> dict[str, str]:
    """Return the installed version of each package that can change the results of a run."""
    ours = {"mm-numeric": __version__}  # not its metadata, which a checkout on PYTHONPATH lacks
    return ours | {name: version(name) for name in _PACKAGES}


def differences_text(theirs: Mapping[str, Any], mine: Mapping[str, Any]) -> str:
    """Return the settings that differ as text, ``KEY is 2 there and 3 here``; "" if none does.

    At most five of them are named. ``theirs`` are stored settings, and ``mine`` the present ones.
    """
    found = list(_differences(theirs, mine, ""))
    more = [f"and {len(found) - _MOST_NAMED} more"] if len(found) > _MOST_NAMED else []
    return "; ".join([*found[:_MOST_NAMED], *more])


def _differences(theirs: Any, mine: Any, at: str) -> Iterator[str]:
    if isinstance(theirs, list | tuple) and isinstance(mine, list | tuple):
        entries = _differences(dict(enumerate(theirs)), dict(enumerate(mine)), at)
        yield from islice(entries, 1)  # the others would hide other settings
    elif isinstance(theirs, Mapping) and isinstance(mine, Mapping):
        for key in sorted({*theirs, *mine}):
            yield from _differences(theirs.get(key), mine.get(key), f"{at}.{key}".lstrip("."))
    elif theirs != mine:
        there, here = ("not set" if own is None else f"{own!r:.60}" for own in (theirs, mine))
        yield f"{at} is {there} there and {here} here"


_CHECKOUT = Path(__file__).parents[2]


def machine_name() -> str:
    """Return system, CPU, number of cores and GPUs, such as ``Linux x86_64, AMD EPYC, 2 cores``.

    GPUs are listed only if torch was already imported.
    """
    parts = [f"{platform.system()} {platform.machine()}", _cpu_name(), f"{os.cpu_count()} cores"]
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        parts += [f"{names.count(name)} x {name}" for name in dict.fromkeys(names)]
    return ", ".join(filter(None, parts))


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor()


def source_commit(checkout: Path = _CHECKOUT) -> str | None:
    """Return the git commit of this library, with ``-dirty`` if files have been changed since.

    Returns None if the library is not run from a git checkout, or git is not installed.
    """
    if not (checkout / ".git").exists():  # an installed package, maybe inside another repository
        return None
    command = ["git", "describe", "--always", "--abbrev=12", "--dirty", "--exclude=*"]
    try:
        found = subprocess.run(command, cwd=checkout, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None
