"""``mm-numeric predict --image`` prints answers and draws them."""

import os
import re
import shutil

import pytest
from clock_run import clock_images, clock_run
from PIL import Image

from mm_numeric.cli import main as cli

FEW = ("--branches", "2", "--constrain")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "clocks").mkdir()
    for number, image in enumerate(clock_images()[:2]):
        shutil.copy(image, tmp_path / "clocks" / f"{number}.png")
    (tmp_path / "clocks" / "notes.txt").write_text("no image")
    (tmp_path / "bad.png").write_text("no image")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def trained(capsys):
    """Train the run before a test reads what a command prints."""
    clock_run()
    capsys.readouterr()


def predict(*words):
    return cli.main(["predict", "--model", str(clock_run()), *words])


@pytest.mark.slow
def test_the_images_of_a_folder_are_answered_and_drawn(folder, capsys):
    assert predict("--image", "clocks", "--draw", "drawn", "--decode", "median", *FEW) == 0
    said = capsys.readouterr().out
    pattern = r"question: What time is it\?\n" + "".join(
        rf"clocks/{i}\.png: 1?\d:\d\d, confidence \d+\.\d %\n" for i in range(2)
    )
    assert re.fullmatch(pattern + "drawn: drawn\n", said)
    for number in range(2):
        with Image.open(f"drawn/{number}.png") as drawn:
            assert drawn.width == 480


@pytest.mark.slow
def test_the_other_images_of_a_folder_are_answered(folder, capsys):
    Image.new("RGB", (9000, 3)).save("clocks/00.png")
    shutil.copy("bad.png", "clocks/000.png")
    assert predict("--image", "clocks", "--draw", "drawn", *FEW) == 2
    said = capsys.readouterr()
    assert [line.split(":")[0] for line in said.out.splitlines()[1:3]] == [
        "clocks/0.png",
        "clocks/1.png",
    ]
    bad, long, last = said.err.splitlines()
    assert "the image clocks/000.png cannot be read" in bad
    assert long.endswith(
        "clocks/00.png: an image of 9000 x 3 pixels has an aspect ratio above 200; crop it or "
        "leave it out."
    )
    assert last.endswith("2 of 4 images could not be answered; see above.")
    assert sorted(os.listdir("drawn")) == ["0.png", "1.png"]


def test_a_question_of_one_s_own_about_one_image(folder, capsys):
    words = ("--image", "clocks/0.png", "--ask", "Which hour?", "--draw", "new/answer.jpg", *FEW)
    assert predict(*words) == 0
    said = capsys.readouterr().out
    assert said.startswith("question: Which hour?\nclocks/0.png: ")
    with Image.open("new/answer.jpg") as drawn:
        assert drawn.format == "JPEG"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--image bad.png", "the image bad.png cannot be read (it is not a JPEG, PNG, WEBP, B"),
        ("--image none.png", "--image none.png: there is no such file or folder."),
        ("--image empty", "--image empty: the folder contains no image (JPEG, PNG, "),
        ("--image clocks --data a.jsonl", "--data is for rows of a file, not for --image; remove"),
        ("--image clocks --engine ray", "--engine is for rows of a file, not for --image"),
        ("--image clocks --draw a.png", "--draw a.png: there are 2 images; name a folder."),
        ("--image clocks/0.png --draw a.txt", "--draw a.txt: the name of an image file ends in "),
        ("--image clocks/0.png --draw clocks/0.png", "it would overwrite an image; name another"),
        ("--image clocks/0.png clocks --draw d", "--draw: two images have the same name; draw th"),
        ("--ask hour? --draw a.png", "--draw draws the answer on the image; add --image."),
    ],
)
def test_a_mistake_is_one_sentence(folder, capsys, words, message):
    assert predict(*words.split()) == 2
    said = capsys.readouterr()
    assert message in said.err
    assert said.err.count("\n") == 1
    assert said.out == ""


def test_several_runs_cannot_be_asked(folder, capsys):
    assert cli.main(["predict", "--model", "a", "b", "--image", "clocks"]) == 2
    assert "--image asks one model; name one run with --model." in capsys.readouterr().err
