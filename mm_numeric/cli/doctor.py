"""``mm-numeric doctor``: check the installation, and try one training step."""

import argparse
import json
import logging
import platform
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, requires, version
from typing import NamedTuple

from mm_numeric import __version__
from mm_numeric.io.log import logger, show
from mm_numeric.registry import EXTRA_OF

OK, MISSING, WRONG = "ok", "missing", "WRONG"

_NO_EXTRA = {
    "bitsandbytes": "model.quantize needs it",
    "flash-attn": "model.attention: flash_attention_2 needs it",
}
"""Optional packages that no extra of mm-numeric installs, and what needs them."""

_NOT_FOR_USERS = ("all", "check", "docs", "test")
"""Extras for developers, and ``all``, which lists the other extras."""

_ONE_STEP = (
    "data.train={synthetic: {name: clocks, rows: 8}}",
    "objective=ntil",
    "trainer.max_steps=1",
    "evaluate=null",
    "trainer.logging_steps=1",
    "trainer.per_device_train_batch_size=8",
    "trainer.disable_tqdm=true",
)


class Finding(NamedTuple):
    """One line of the output."""

    state: str
    """``ok``, ``missing`` (something optional), or ``WRONG`` (something that is needed)."""

    text: str


def doctor(_: argparse.Namespace) -> None:
    """Print a line for each finding; exit with code 1 if something that is needed is wrong."""
    states = set()
    for finding in _findings():
        show(f"{finding.state:<8} {finding.text}")
        sys.stdout.flush()
        states.add(finding.state)
    if WRONG in states:
        sys.exit(1)


def _findings() -> Iterator[Finding]:
    yield Finding(OK, f"mm-numeric {__version__}, Python {platform.python_version()}")
    yield from _packages()
    for name, use in _NO_EXTRA.items():
        found = _version(name)
        yield Finding(OK, f"{name} {found}") if found else Finding(MISSING, f"{name}: {use}")
    for name, check in {"GPU": _device, "training step": _training_step}.items():
        try:
            yield check()
        except Exception as error:  # any error becomes a line of the output
            logger.debug("traceback of the error:", exc_info=error)
            if _is_of_extra(error):
                yield Finding(MISSING, f"{name}: optional; pip install 'mm-numeric[train]'")
                continue
            first = str(error).strip().partition("\n")[0]
            yield Finding(WRONG, f"{name}: {type(error).__name__}: {first}")


def _is_of_extra(error: Exception) -> bool:
    """Return True if a package is missing that only an extra of mm-numeric installs."""
    missing = str(error.name) if isinstance(error, ModuleNotFoundError) else ""
    return missing.partition(".")[0] in EXTRA_OF


def _packages() -> Iterator[Finding]:
    """Yield a finding for each package that mm-numeric, or one of its extras, requires."""
    try:
        from packaging.requirements import Requirement  # a dependency of transformers

        listed = [Requirement(text) for text in requires("mm-numeric") or ()]
    except (ImportError, PackageNotFoundError) as error:
        yield Finding(MISSING, f"versions of packages are not compared: {error}")
        return
    versions = {requirement.name: _version(requirement.name) for requirement in listed}
    needs: dict[str, dict[str, str]] = {}  # package -> extra ("" for none) -> version specifier
    for requirement in listed:
        extra = re.search('extra == "([^"]+)"', str(requirement.marker))
        name, of = requirement.name, extra[1] if extra else ""
        if name != "mm-numeric" and of not in _NOT_FOR_USERS:
            needs.setdefault(name, {})[of] = str(requirement.specifier)
    for name, specifiers in needs.items():
        yield _package(name, specifiers, needs, versions)


def _package(
    name: str,
    specifiers: Mapping[str, str],
    needs: Mapping[str, Mapping[str, str]],
    versions: Mapping[str, str | None],
) -> Finding:
    """Compare the version of a package with what mm-numeric and its extras require.

    A wrong version for an extra is an error only if all packages of the extra are installed.
    """
    from packaging.specifiers import SpecifierSet

    found, extra = versions[name], next(iter(specifiers))
    if found is None and extra:
        return Finding(MISSING, f"{name}: optional; pip install 'mm-numeric[{extra}]'")
    if found is None:
        return Finding(WRONG, f"{name} is not installed: pip install '{name}{specifiers[extra]}'")
    for extra, specifier in specifiers.items():
        if SpecifierSet(specifier).contains(found, prereleases=True):
            continue
        own = [other for other, wanted in needs.items() if extra in wanted]
        if extra and None in map(versions.get, own):
            command = f"pip install 'mm-numeric[{extra}]'"
            return Finding(
                MISSING, f"{name} {found}: the extra {extra} needs {name}{specifier}; {command}"
            )
        return Finding(WRONG, f"{name} {found}: pip install '{name}{specifier}'")
    return Finding(OK, f"{name} {found}")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _device() -> Finding:
    import torch

    from mm_numeric.models.loading import device_type

    kind = device_type()
    if kind == "cpu":
        built = f"CUDA {torch.version.cuda}" if torch.version.cuda else "the CPU"
        return Finding(MISSING, f"GPU: none is found by torch, which is built for {built}")
    device = torch.get_device_module(kind)
    free, total = device.mem_get_info()
    names = {device.get_device_name(i) for i in range(device.device_count())}
    memory = f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB free"
    text = f"{device.device_count()} x {', '.join(sorted(names))}, {memory}, {torch.version.cuda}"
    return Finding(OK, f"GPU: {text}")


def _training_step() -> Finding:
    from mm_numeric.config.reader import read_config
    from mm_numeric.runs.folder import LOG
    from mm_numeric.training.run import train

    started, level = time.monotonic(), logger.level
    if level == logging.INFO:
        logger.setLevel(logging.WARNING)
    try:
        with tempfile.TemporaryDirectory() as folder:
            paths = [f"trainer.output_dir={folder}/run", f"data.cache={folder}/cache"]
            config = read_config("clock_tiny", [*_ONE_STEP, *paths])
            train(config)
            lines = (config.output_dir / LOG).read_text(encoding="utf-8").splitlines()
    finally:
        logger.setLevel(level)
    loss = next(line["loss"] for line in map(json.loads, lines) if "loss" in line)
    seconds = time.monotonic() - started
    return Finding(OK, f"training step of a tiny model: loss {loss:.3f}, {seconds:.1f} s")
