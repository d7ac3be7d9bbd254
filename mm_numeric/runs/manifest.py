"""List the files of a checkpoint in manifest.json, and check them before a run resumes.

transformers resumes without a warning if optimizer.pt, scheduler.pt or the random state is missing,
and the run then ends with other weights. manifest.json is written after all ranks have saved.
"""

from pathlib import Path
from typing import Any

from mm_numeric.io.files import read_json, sha256_of, write_json
from mm_numeric.runs.folder import MANIFEST

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


def check_files(checkpoint: Path, *, deepspeed: bool = False) -> None:
    """Raise ValueError if files of a checkpoint are missing or have changed.

    ``deepspeed`` is True if the run resumes with DeepSpeed. transformers would silently use a new
    optimiser if a checkpoint saved with DeepSpeed were resumed without it, or the reverse.
    """
    missing, changed = [], []
    for name, saved in _read_files(checkpoint).items():
        file = checkpoint / name
        if not file.is_file():
            missing.append(name)
        elif file.stat().st_size != saved.get("bytes") or (
            saved.get("sha256") is not None and sha256_of(file) != saved["sha256"]
        ):
            changed.append(name)
    faults = [
        f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} {what}"
        for names, what in ((missing, "missing"), (changed, "not as saved"))
        if names
    ]
    optimizer = "global_step*" if deepspeed else "optimizer*"  # FSDP writes a folder optimizer_0
    if not faults and not any(checkpoint.glob(optimizer)):
        faults.append(f"{optimizer} is missing")
    if faults:
        raise damaged_checkpoint(checkpoint, ", and ".join(faults))


def damaged_checkpoint(checkpoint: Path, fault: str) -> ValueError:
    """Return the error for a checkpoint with a fault such as ``optimizer.pt is missing``."""
    return ValueError(
        f"{checkpoint}: {fault}, so that the run would resume with another state; restore the "
        "files, or delete this checkpoint and resume from the previous one with --resume."
    )


def _read_files(checkpoint: Path) -> dict[str, dict[str, Any]]:
    content = read_json(checkpoint / MANIFEST)
    files = content.get("files") if isinstance(content, dict) else None
    if not isinstance(files, dict) or not all(isinstance(own, dict) for own in files.values()):
        raise ValueError(f"{checkpoint / MANIFEST}: no entry `files` with a mapping for each file.")
    return files
