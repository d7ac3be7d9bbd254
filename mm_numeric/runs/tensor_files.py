"""Load the pickle files of a checkpoint without executing code that they may contain.

A pickle can call any function when it is loaded. transformers loads the states of the optimiser,
the scheduler and the random generators with ``weights_only``; DeepSpeed and FSDP load their states
without it.
"""

import os
import pickle
import pickletools
import re
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.serialization import safe_globals
from transformers.trainer_pt_utils import safe_globals as safe_numpy_globals

from mm_numeric.compat import SHARD_METADATA_GLOBALS, deepspeed_state_classes
from mm_numeric.runs.trust import FLAG

_FORCE, _FORBID = "TORCH_FORCE_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"
_ENDINGS = (".pt", ".pth", ".bin")
_NOT_LOADED = "training_args.bin"  # written by transformers for information
_NAMED = re.compile(r"GLOBAL (\S+)")


@contextmanager
def tensors_only(checkpoint: str | Path, *, trust_remote_code: bool = False) -> Iterator[None]:
    """Context manager in which ``torch.load`` accepts only tensors and plain values.

    This includes calls with ``weights_only=False``, unless ``trust_remote_code`` is True. For a
    file with other objects, ValueError names ``checkpoint``, the folder that is loaded.
    """
    before = {name: os.environ.pop(name, None) for name in (_FORCE, _FORBID)}
    if not trust_remote_code:
        os.environ[_FORCE] = "1"
    try:
        with _allowed_classes(Path(checkpoint)):
            yield
    except pickle.UnpicklingError as error:
        raise ValueError(f"{checkpoint}: {_reason(error)}") from error
    finally:
        os.environ.pop(_FORCE, None)
        os.environ.update({name: value for name, value in before.items() if value is not None})


def require_tensor_files(checkpoint: Path, *, trust_remote_code: bool = False) -> None:
    """Raise ValueError if a file of a checkpoint contains other objects than tensors and values.

    Nothing in the files is executed. With ``trust_remote_code``, files in subfolders, which belong
    to DeepSpeed and FSDP, are not checked. The other files are always checked, because transformers
    would not load other objects from them.
    """
    for folder, folders, names in os.walk(checkpoint, followlinks=True):
        if trust_remote_code:
            folders.clear()
        for name in sorted(names):
            file = Path(folder, name)
            is_torch = name.endswith(_ENDINGS) and name != _NOT_LOADED
            try:
                if is_torch:
                    _check_torch_file(file, checkpoint)
                elif name.endswith(".metadata"):  # of torch.distributed.checkpoint, used by FSDP
                    _check_shard_metadata(file)
            except Exception as error:  # an arbitrary file can raise any error
                raise ValueError(f"{file}: {_reason(error)}") from error


def _check_torch_file(file: Path, checkpoint: Path) -> None:
    with _allowed_classes(checkpoint):
        # Memory-mapped, so that tensors are not read; older formats do not allow this.
        is_mapped = zipfile.is_zipfile(file)
        torch.load(file, map_location="meta", weights_only=True, mmap=is_mapped)


def _check_shard_metadata(file: Path) -> None:
    size = file.stat().st_size
    with file.open("rb") as stream:
        for opcode, argument, _ in pickletools.genops(stream):
            # The memo of an unpickler has as many entries as the largest index, which can be 2^32.
            if "PUT" in opcode.name and argument is not None and argument > size:
                raise pickle.UnpicklingError(f"the memo index {argument} is not plausible")
        stream.seek(0)
        _InertUnpickler(stream).load()


@contextmanager
def _allowed_classes(checkpoint: Path) -> Iterator[None]:
    """Context manager in which torch.load also accepts random states and DeepSpeed's states."""
    with ExitStack() as stack:
        stack.enter_context(safe_numpy_globals())
        if any(checkpoint.glob("global_step*")):
            stack.enter_context(safe_globals(deepspeed_state_classes()))
        yield


def _reason(error: Exception) -> str:
    """Return the end of an error message: why a checkpoint file is rejected, and the remedy."""
    if isinstance(error, pickle.UnpicklingError) and (named := _NAMED.search(str(error))):
        return (
            f"it names {named[1]}, which is neither a tensor nor a plain value, and loading it "
            "could execute code; resume from another checkpoint, or, if it is a file of DeepSpeed "
            f"or FSDP and you trust whoever made it, add {FLAG}."
        )
    first = str(error).strip().partition("\n")[0].partition(". In PyTorch")[0].rstrip(".")
    return (
        f"it cannot be read as tensors ({type(error).__name__}: {first:.100}); delete this "
        "checkpoint and resume from the previous one with --resume."
    )


class _Inert:
    """Placeholder that replaces every class and function in a pickle, so that none is called."""

    def __new__(cls, *_: Any, **__: Any) -> "_Inert":
        return object.__new__(cls)

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __setstate__(self, _: Any) -> None:
        pass


class _InertUnpickler(pickle.Unpickler):
    """Unpickler for FSDP's metadata; raises an error for unexpected classes and functions."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a placeholder for a class or function that the pickle file names.

        Raise UnpicklingError if it is not one that FSDP writes to its metadata file.
        """
        if (module, name) not in SHARD_METADATA_GLOBALS and not _is_dtype(module, name):
            raise pickle.UnpicklingError(f"GLOBAL {module}.{name} is not allowed")
        return _Inert


def _is_dtype(module: str, name: str) -> bool:
    return module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
