"""Each generator makes rows that its task reads, the same ones for the same settings."""

import hashlib
import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from PIL import Image
from synthetic_rows import GENERATOR_OF

from mm_numeric.config.data import DataSource
from mm_numeric.config.explain import explain
from mm_numeric.data.examples import load_examples
from mm_numeric.registry import GENERATORS, load
from mm_numeric.settings import read_dataclass
from mm_numeric.synthetic.__main__ import main
from mm_numeric.synthetic.generator import Generator, ImageGenerator
from mm_numeric.tasks.base import task_class

ROOT = Path(__file__).parents[2]
TASKS_OF = [*GENERATOR_OF.items(), ("arithmetic", "multiplication")]
DIGESTS = {
    "arithmetic": "b9cb65d6d0179c14",
    "charts": "d8e8cf028223fbdb",
    "clips": "136bf93d842deeb7",
    "clocks": "7b04a85ca1ce7c76",
    "counts": "4245917c5b91738a",
    "instruments": "97ada10c446f4105",
    "multiplication": "d5726f1dfd0ccb06",
    "objects": "07dc19d6950e9120",
    "phrases": "61e8760acac79d2e",
    "points": "453dad819d331529",
    "screens": "9db220368bb4840a",
    "noisy clocks": "e695ba571dd1189d",
    "noisy phrases": "b78bf6038177b773",
}


def read(**settings):
    return read_dataclass(Generator, settings, "here")


@pytest.mark.parametrize(("task", "name"), TASKS_OF)
def test_a_task_reads_the_rows_of_its_generator(task, name, tmp_path):
    source = DataSource(synthetic=read(name=name, rows=3, seed=1))
    assert source.name == "3 synthetic rows"
    assert source.synthetic == load(GENERATORS[name], name)(rows=3, seed=1)
    examples = load_examples(task_class(task, "here")(), source, tmp_path, training=True)
    assert len({example.id for example in examples}) >= 3
    (folder,) = tmp_path.iterdir()  # and a second training reads the same files
    before = folder.stat().st_mtime_ns
    assert load_examples(task_class(task, "here")(), source, tmp_path, training=True) == examples
    assert folder.stat().st_mtime_ns == before


def test_every_generator_has_a_task():
    assert {name for _, name in TASKS_OF} == {*GENERATORS}


@pytest.mark.parametrize("name", DIGESTS)
def test_the_rows_of_a_seed_stay_as_they_are(name, tmp_path):
    """Words are left out, whose outlines depend on the font of Pillow."""
    noise = {"noisy clocks": {"noise_minutes": 5}, "noisy phrases": {"noise_pixels": 4}}
    settings = {"name": name.removeprefix("noisy "), "rows": 4, "seed": 1, **noise.get(name, {})}
    rows = read(**settings).write(tmp_path).read_bytes()
    assert hashlib.sha256(rows).hexdigest()[:16] == DIGESTS[name]


def test_a_folder_is_written_from_the_command_line(tmp_path, monkeypatch, capsys):
    out = tmp_path / "new" / "clocks"
    monkeypatch.setattr(
        sys, "argv", ["synthetic", "clocks", "--out", str(out), "rows=2", "seed=3", "size_px=16"]
    )
    main()
    rows = out / "rows.jsonl"
    assert capsys.readouterr().out == f"{rows}\n"
    assert [json.loads(line)["id"] for line in rows.open(encoding="utf-8")] == [
        "3-000000",
        "3-000001",
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["clock", "--out", "new"],
            "clock.name: there is no generator 'clock'. Did you mean 'clocks'",
        ),
        (["clocks", "--out", "new", "size=3"], "clocks: there is no setting 'size'. Did you mean"),
        (["clocks", "--out", "."], ". exists; name a new folder."),
        (
            ["arithmetic", "--out", "new", "operators='*'", "terms=[9,9]", "numbers=[9,9]"],
            "largest_answer: no expression of 9 to 9 numbers within 9999",
        ),
    ],
)
def test_a_wrong_command_is_one_sentence(arguments, message, tmp_path):
    command = [sys.executable, "-m", "mm_numeric.synthetic", *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_generator_of_a_user_is_named_by_its_import_path(tmp_path, monkeypatch):
    page = (ROOT / "docs/config-synthetic.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"`my_generators\.py`:\n\n```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "my_generators.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "my_generators", raising=False)
    made = read(name="my_generators:Doubles", rows=3, seed=8)
    source = DataSource(synthetic=made)
    examples = load_examples(task_class("numbers", "here")(), source, tmp_path, training=True)
    assert [example.prompt for example in examples] == ["2 * 8?", "2 * 9?", "2 * 0?"]
    assert (made.has_noise, made.with_noise_of(3), made.describe()) == (False, made, "")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rows": 3}, r"^here\.name: name a generator\. Known: arithmetic, charts, "),
        ({"name": 3}, r"^here\.name: name a generator"),
        ({"name": "clock"}, r"^here\.name: there is no generator 'clock'\. Did you mean 'clocks'"),
        ({"name": "json:dumps"}, r"^here\.name: 'json:dumps' is no generator; derive it from mm"),
        ({"name": "clocks", "least": 2}, r"^here: there is no setting 'least'"),
        ({"name": "clocks", "rows": 1.5}, r"^here\.rows: 1\.5 is not a whole number"),
        ({"name": "words", "fonts": ["x.ttf"]}, r"^fonts: x\.ttf is not a font"),
    ],
)
def test_wrong_settings_are_named(settings, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        read(**settings).write(tmp_path)


@dataclass(frozen=True, kw_only=True)
class Drawn(ImageGenerator):
    """An own generator whose ``draw`` returns ``DRAWN``."""

    def draw(self, rng):
        return DRAWN[self.seed]


PIXELS = Image.new("RGB", (9, 9))
DRAWN = (PIXELS, (PIXELS, 90), ({"degrees": 90}, PIXELS), (PIXELS, {"degrees": 90}))


@dataclass(frozen=True, kw_only=True)
class Undrawn(ImageGenerator):
    """An own generator without ``draw``."""


@dataclass(frozen=True, kw_only=True)
class Unwritten(Generator):
    """An own generator without ``write``."""


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        *(
            ({"name": "Drawn", "seed": seed}, r"^Drawn: draw returned \w+, not an image and the fi")
            for seed in range(3)
        ),
        ({"name": "Drawn", "image_noise": 0.5}, r"^here: there is no setting 'image_noise'"),
        ({"name": "Undrawn"}, "^Undrawn has neither draw nor drawings; define draw$"),
        ({"name": "Unwritten"}, rf"^here\.name: the generator '{__name__}:Unwritten' lacks write;"),
    ],
)
def test_a_mistake_in_a_generator_is_one_sentence(settings, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        read(**{**settings, "name": f"{__name__}:{settings['name']}"}).write(tmp_path / "wrong")
    (row,) = read(name=f"{__name__}:Drawn", seed=3, rows=1).write(tmp_path / "r").open()
    assert json.loads(row) == {"id": "3-000000", "image": "images/000000.png", "degrees": 90}


def test_the_settings_of_generators_are_explained():
    text = explain("data.train.synthetic.noise_minutes")
    assert text.startswith(
        "data.train.synthetic.noise_minutes (generator clocks)\n  type:    number"
    )
    assert (
        "evaluate.data.synthetic (generator multiplication): name, rows, seed, categories, digits"
        in (explain("evaluate.data.synthetic"))
    )
