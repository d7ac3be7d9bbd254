"""Compare the installed packages with the ranges of pyproject.toml, before any is imported."""

import sys
import tomllib
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXTRAS = ("deepspeed", "test")
"""Extras that some measurements need; these are left out if packages are missing."""


def check_versions() -> list[str]:
    """Return one line for each package whose version is not the tested one.

    Ends the process with exit code 2 if a package that every measurement needs is not installed, or
    has a version that pyproject.toml does not allow.
    """
    try:
        from packaging.requirements import Requirement  # a dependency of transformers
    except ImportError:
        _end([f"{sys.executable} has no transformers"])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    needed = {r.name: r for r in map(Requirement, _expanded(["mm-numeric[train]"], extras))}
    needed |= {r.name: r for r in map(Requirement, project["dependencies"]) if r.name not in needed}
    wanted = [f"mm-numeric[{','.join(EXTRAS)}]"]
    optional = {r.name: r for r in map(Requirement, _expanded(wanted, extras))}
    constraints = (ROOT / "scripts" / "constraints.txt").read_text(encoding="utf-8").splitlines()
    tested = dict(line.split("==") for line in constraints if "==" in line)
    lines, wrong = [], []
    for name, requirement in {**optional, **needed}.items():
        try:
            here = version(name)
        except PackageNotFoundError:
            (wrong if name in needed else lines).append(f"{name} is not installed")
            continue
        allowed = requirement.specifier.contains(here, prereleases=True)
        if here.partition("+")[0] != tested.get(name, here):
            how = "allowed" if allowed else "not allowed"
            lines.append(
                f"{name} {here}: {how} by {requirement.specifier}, tested with {tested[name]}"
            )
        if not allowed and name in needed:
            wrong.append(f"{name} {here} is not {requirement.specifier}")
    if wrong:
        _end(wrong)
    return lines


def _expanded(requirements: list[str], extras: Mapping[str, list[str]]) -> Iterator[str]:
    """Yield requirements; an extra of mm-numeric is replaced by its own requirements."""
    for each in requirements:
        if each.startswith("mm-numeric["):
            for name in each.removeprefix("mm-numeric[").rstrip("]").split(","):
                yield from _expanded(extras[name], extras)
        else:
            yield each


def _end(wrong: list[str]) -> None:
    """Exit with a message about the problems and the remedy."""
    print(
        f"bench_gpu: {'; '.join(wrong)}. It installs nothing: run `{sys.executable} -m pip install "
        "-c scripts/constraints.txt -e '.[train]'`, or set PYTHON to another interpreter.",
        file=sys.stderr,
    )
    sys.exit(2)
