"""The upper bounds of pyproject.toml, and the script that tests what lies above them."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "test_newest"
PRIVATE = ("accelerate", "datasets", "deepspeed", "peft", "torch", "transformers", "trl")
"""Libraries whose private names or internals this library or its tests use."""


def declared():
    """Return the requirements in pyproject.toml, of the losses and of the extras, by name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    lines = [*project["dependencies"], *(line for name in extras for line in extras[name])]
    return [(r.name, r.specifier) for r in map(Requirement, lines)]


def pinned_versions():
    """Return the tested version of each library."""
    lines = (ROOT / "scripts" / "constraints.txt").read_text("utf-8").splitlines()
    return {r.name: Version(str(r.specifier)[2:]) for r in map(Requirement, lines[1:])}


def rows_of_versions():
    """Return (transformers, TRL, whether the commands support them) of scripts/test_versions."""
    text = SCRIPT.with_name("test_versions").read_text("utf-8")
    rows = re.findall(r"^(\d[\d.]*) (\d[\d.]*) (yes|no)$", text, re.MULTILINE)
    return [(Version(a), Version(b), supported == "yes") for a, b, supported in rows]


def newest_tested():
    """Return the newest tested version of each library."""
    newest = max(transformers for transformers, _, _ in rows_of_versions())
    return pinned_versions() | {"transformers": max(newest, pinned_versions()["transformers"])}


def test_the_lower_bound_of_transformers_is_tested():
    (specifier,) = {str(found) for name, found in declared() if name == "transformers"}
    oldest = min(transformers for transformers, _, supported in rows_of_versions() if supported)
    assert f">={oldest.major}.{oldest.minor}" in specifier.split(",")
    assert oldest.micro == 0


@pytest.mark.parametrize("library", PRIVATE)
def test_the_upper_bound_is_the_release_after_the_tested_one(library):
    version = newest_tested()[library]
    bounds = [specifier for name, specifier in declared() if name == library]
    assert bounds
    for specifier in bounds:
        assert version in specifier
        assert f"{version.major}.{version.minor}.999" in specifier
        assert f"{version.major}.{version.minor + 1}" not in specifier


def test_every_tested_version_is_allowed():
    versions = pinned_versions()
    for name, specifier in declared():
        if name in versions:
            assert versions[name] in specifier, name


def test_the_script_lists_the_newest_versions_except_for_torch():
    subprocess.run(["bash", "-n", SCRIPT], check=True)
    done = subprocess.run([SCRIPT, "--list"], check=True, capture_output=True, text=True)
    found = {r.name: r.specifier for r in map(Requirement, done.stdout.splitlines())}
    assert found.keys() >= {*PRIVATE, "pytest", "numpy", "jinja2"}
    assert str(found.pop("torch")) == f"=={pinned_versions()['torch']}"
    assert all(s.operator == ">=" for specifier in found.values() for s in specifier)
