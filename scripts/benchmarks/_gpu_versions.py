"""Compare the installed packages with the ranges of pyproject.toml, before any is imported."""

import sys
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).parents[2]


def check_versions() -> None:
    """Exit with code 2 if a package that every measurement needs is missing or not allowed."""
    try:
        from packaging.requirements import Requirement  # a dependency of transformers
    except ImportError:
        _end([f"{sys.executable} has no transformers"])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = [*project["dependencies"], *project["optional-dependencies"]["train"]]
    wrong = []
    for each in map(Requirement, needed):
        try:
            here = version(each.name) if each.name != "mm-numeric" else None
        except PackageNotFoundError:
            wrong.append(f"{each.name} is not installed")
            continue
        if here and not each.specifier.contains(here, prereleases=True):
            wrong.append(f"{each.name} {here} is not {each.specifier}")
    if wrong:
        _end(wrong)


def _end(wrong: list[str]) -> None:
    """Exit with a message about the problems and the remedy."""
    print(
        f"bench_gpu: {'; '.join(wrong)}. It installs nothing: run `{sys.executable} -m pip install "
        "-c scripts/constraints.txt -e '.[train]'`, or set PYTHON to another interpreter.",
        file=sys.stderr,
    )
    sys.exit(2)
