"""The wheel has everything that the repository has, under one import name."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from mm_numeric import __version__

ROOT = Path(__file__).parent.parent
SOURCES = ("mm_numeric", "tasks", "evaluation", "configs")
FILES = ("pyproject.toml", "setup.py", "README.md", "LICENSE")


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Build the wheel from a copy of the sources, and install it into a folder of its own."""
    work = tmp_path_factory.mktemp("packaging")
    source = work / "source"
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in SOURCES:
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=ignored)
    for name in FILES:
        if (ROOT / name).is_file():
            shutil.copy(ROOT / name, source / name)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "--quiet"]
    offline = ["--no-deps", "--no-index"]
    run([*pip, "wheel", *offline, "--no-build-isolation", "-w", str(work / "dist"), str(source)])
    (wheel,) = (work / "dist").glob("*.whl")
    run([*pip, "install", *offline, "--target", str(work / "site"), str(wheel)])
    return work / "site"


def run(command, **more):
    """Run a command, and show what it said if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, **more)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_only_one_name_is_at_the_top(installed):
    names = {path.name for path in installed.iterdir() if path.suffix != ".dist-info"}
    assert names - {"bin"} == {"mm_numeric"}


@pytest.mark.slow
def test_every_file_of_the_sources_is_inside(installed):
    wanted = {
        path.relative_to(ROOT)
        for name in SOURCES
        for path in (ROOT / name).rglob("*")
        if path.suffix in (".py", ".yaml", ".json", ".html", ".css") or path.name == "py.typed"
    }
    rooms = {path if path.parts[0] == "mm_numeric" else "mm_numeric" / path for path in wanted}
    missing = sorted(str(path) for path in rooms if not (installed / path).is_file())
    assert missing == []
    assert Path("mm_numeric/configs/clock_tiny.yaml") in rooms
    assert not (installed / "mm_numeric" / "tasks").is_symlink()


@pytest.mark.slow
def test_it_runs_from_there(installed, tmp_path):
    code = "import mm_numeric, sys; sys.stdout.write(mm_numeric.__file__)"
    environment = {"PYTHONPATH": str(installed), "PATH": ""}
    place = run([sys.executable, "-c", code], cwd=tmp_path, env=environment)
    assert Path(place).is_relative_to(installed)
    listed = run([sys.executable, "-m", "mm_numeric", "ls"], cwd=tmp_path, env=environment)
    assert ", clock, " in listed
    assert "clock_tiny" in listed


@pytest.mark.slow
def test_the_description_has_no_link_to_a_file(installed):
    (metadata,) = installed.glob("*.dist-info/METADATA")
    text = metadata.read_text(encoding="utf-8")
    assert "# mm-numeric\n" in text
    assert "[CONTRIBUTING.md](CONTRIBUTING.md)" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"\]\((?!https?:)", text) == []


def test_the_changelog_begins_with_this_version():
    headings = re.findall(r"^## (\S+) \(.+\)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == __version__


def test_only_the_job_that_publishes_can_identify_itself():
    """With one checked build before it, and no token or password."""
    text = (ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8")
    jobs = yaml.safe_load(text)["jobs"]
    assert {name: job["permissions"] for name, job in jobs.items()} == {
        "build": {"contents": "read"},
        "publish": {"id-token": "write"},
    }
    assert jobs["publish"]["needs"] == "build"
    lines = [step["run"] for step in jobs["build"]["steps"] if "run" in step]
    assert [line for line in lines if "twine check --strict" in line]
    assert "secrets." not in text
