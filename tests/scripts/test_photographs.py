"""scripts/experiments/photographs.py: photographs from a repository, and the rows."""

import json
import lzma
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

EXPERIMENTS = Path(__file__).parents[2] / "scripts/experiments"
GIT = ("git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(EXPERIMENTS))
    import photographs

    return photographs


def draw(seed):
    """Return a smooth image of 504 x 336 pixels."""
    values = np.random.default_rng(seed).integers(0, 256, (4, 6, 3), np.uint8)
    return Image.fromarray(values).resize((504, 336), Image.Resampling.BICUBIC)


def repository(folder):
    """Commit two photographs; there is another one with the first name. Return the commit."""
    for name, seed in (("train/one.jpg", 3), ("test/one.jpg", 1), ("train/two.rf.ab12.jpg", 2)):
        path = folder / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        draw(seed).save(path)
    (folder / "large").mkdir()
    (folder / "large/other.txt").write_text("not checked out")
    for command in (["init"], ["add", "--all"], ["commit", "--message", "a"]):
        subprocess.run([*GIT, "-C", folder, *command], check=True, capture_output=True)
    git = [*GIT, "-C", folder, "rev-parse", "--short=8", "HEAD"]
    return subprocess.run(git, check=True, capture_output=True, text=True).stdout.strip()


def run(script, monkeypatch, tmp_path, *options):
    monkeypatch.setattr(sys, "argv", ["photographs.py", str(tmp_path / "out"), *options])
    script.main()


@pytest.fixture
def source(script, monkeypatch, tmp_path):
    """A source with two photographs, each with a row."""
    commit = repository(tmp_path / "sources/me/pets")
    monkeypatch.setattr(script, "SOURCES", {"pets": ("me/pets", commit, "data")})
    rows = []
    for name, pattern, group, part in (
        ("a", "one.jpg", 1, "folds"),
        ("b", "two.rf.ab*", 2, "selection"),
    ):
        row = {"id": name, "image": f"{name}.jpg", "width": 168, "height": 112, "fold_group": group}
        row |= {"phrase": "the cat", "box": [1, 2, 3, 4], "category": "pets", "part": part}
        own = script.difference_hash(script.scaled(draw(group)))
        rows.append({**row, "file": pattern, "hash": own})
    text = "".join(f"{json.dumps(row)}\n" for row in rows)
    monkeypatch.setattr(script, "ROWS", tmp_path / "rows.jsonl.xz")
    script.ROWS.write_bytes(lzma.compress(text.encode()))
    return rows


def test_photographs_are_found_in_their_repository(script, source, monkeypatch, tmp_path):
    run(script, monkeypatch, tmp_path, "--repositories", (tmp_path / "sources").as_uri())
    for row in source:
        image = Image.open(tmp_path / "out/images" / row["image"])
        assert image.size == (168, 112)
        apart = np.asarray(image, float) - np.asarray(script.scaled(draw(row["fold_group"])), float)
        assert np.abs(apart).mean() < 3
    assert not (tmp_path / "out/repositories/pets/large").exists()
    every = (tmp_path / "out/grounding.jsonl").read_text()
    assert [json.loads(line) for line in every.splitlines()] == [
        {name: row[name] for name in script.FIELDS} for row in source
    ]
    parts = [(tmp_path / f"out/{own}.jsonl").read_text() for own in ("folds", "selection")]
    assert "".join(parts) == every


def test_scaled_photographs_are_copied(script, source, monkeypatch, tmp_path):
    for row in source:
        script.scaled(draw(row["fold_group"])).save(tmp_path / row["image"], quality=30)
    run(script, monkeypatch, tmp_path, "--images", str(tmp_path))
    for row in source:
        copied = tmp_path / "out/images" / row["image"]
        assert copied.read_bytes() == (tmp_path / row["image"]).read_bytes()


def test_another_photograph_is_an_error(script, source, monkeypatch, tmp_path):
    for row in source:
        script.scaled(draw(row["fold_group"] + 5)).save(tmp_path / row["image"])
    with pytest.raises(SystemExit, match=r"a.jpg: no file of the source pets is this photograph"):
        run(script, monkeypatch, tmp_path, "--images", str(tmp_path))


def test_the_rows_are_divided_by_groups(script):
    rows = script.read_rows(script.ROWS)
    assert len(rows) == len({row["id"] for row in rows}) == 1011
    assert {row["category"] for row in rows} == script.SOURCES.keys()
    for name in ("image", "fold_group"):
        assert len({(row[name], row["part"]) for row in rows}) == len({row[name] for row in rows})
    assert Counter(row["part"] for row in rows) == {"folds": 837, "selection": 174}
