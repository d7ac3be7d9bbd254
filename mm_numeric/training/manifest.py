"""List the files of a checkpoint in manifest.json, and check them before a run resumes.

transformers resumes without a word if optimizer.pt, scheduler.pt or the random state is missing,
and the run then ends with other weights. manifest.json is written last, when all ranks have saved.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mm_numeric.files import read_json, sha256_of, write_json
from mm_numeric.log import logger
from mm_numeric.run_folder import MANIFEST, STEP
from mm_numeric.training.resume import saved_ranks

_HASHED_BYTES = 256 * 2**20
"""Larger files, such as the weights of a large model, are only checked by name and size."""


def write_manifest(checkpoint: Path) -> None:
    """Write manifest.json: the size of each file, and the SHA-256 of files up to 256 MiB."""
    files = {
        file.relative_to(checkpoint).as_posix(): {
            "bytes": file.stat().st_size,
            "sha256": sha256_of(file) if file.stat().st_size <= _HASHED_BYTES else None,
        }
        for file in sorted(checkpoint.rglob("*"))
        if file.is_file() and file != checkpoint / MANIFEST
    }
    write_json(checkpoint / MANIFEST, {"files": files}, indent=1)


def check_files(checkpoint: Path, deepspeed: Any = None) -> None:
    """Raise ValueError, which names the files, if files of a checkpoint are missing or changed.

    Log a warning for a checkpoint of an earlier version, which has no manifest. ``deepspeed`` is
    the DeepSpeed configuration as a dictionary; None without DeepSpeed.
    """
    missing = list(_missing_state(checkpoint, deepspeed))
    changed: list[str] = []
    if (checkpoint / MANIFEST).is_file():
        for name, saved in _read_files(checkpoint).items():
            file = checkpoint / name
            if not file.is_file():
                missing += [] if name in missing else [name]
            elif not _is_same(file, saved):
                changed.append(name)
    else:
        logger.warning(
            "%s: has no %s, because an earlier version saved it; changed files cannot be detected.",
            checkpoint,
            MANIFEST,
        )
    faults = [
        f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} {what}"
        for names, what in ((missing, "missing"), (changed, "not as saved"))
        if names
    ]
    if faults:
        raise ValueError(
            f"{checkpoint}: {', and '.join(faults)}, so that the run would resume with another "
            "state; restore the files, or delete this checkpoint and resume from the previous one "
            "with --resume."
        )


def _missing_state(checkpoint: Path, deepspeed: Any) -> Iterator[str]:
    """Yield the missing files of a checkpoint: optimiser, scheduler and random state."""
    if deepspeed is None and not any(checkpoint.glob("optimizer*")):  # a folder under FSDP
        yield "optimizer.pt"
    if deepspeed is not None and not any(checkpoint.glob("global_step*")):
        yield "global_step*"
    has_own_scheduler = deepspeed is not None and "scheduler" in deepspeed
    if not has_own_scheduler and not (checkpoint / "scheduler.pt").is_file():
        yield "scheduler.pt"
    ranks = saved_ranks(checkpoint)
    if not (checkpoint / STEP).is_file() and any(checkpoint.glob("rng_state*.pth")):
        return  # the number of ranks is not known
    for rank in range(ranks):
        name = "rng_state.pth" if ranks == 1 else f"rng_state_{rank}.pth"
        if not (checkpoint / name).is_file():
            yield name


def _read_files(checkpoint: Path) -> dict[str, dict[str, Any]]:
    content = read_json(checkpoint / MANIFEST)
    files = content.get("files") if isinstance(content, dict) else None
    if not isinstance(files, dict) or not all(isinstance(own, dict) for own in files.values()):
        raise ValueError(f"{checkpoint / MANIFEST}: no entry `files` with a mapping for each file.")
    return files


def _is_same(file: Path, saved: dict[str, Any]) -> bool:
    if file.stat().st_size != saved.get("bytes"):
        return False
    return saved.get("sha256") is None or sha256_of(file) == saved["sha256"]
