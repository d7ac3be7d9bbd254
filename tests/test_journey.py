"""The commands from a COCO file to a program that uses the trained model, with nothing edited."""

import itertools
import json
import re
import shlex
import shutil
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest
from importing import SHARED
from PIL import Image, ImageDraw
from transformers import Qwen2_5_VLProcessor

from mm_numeric.cli import main as cli
from mm_numeric.families.qwen2_5_vl import Qwen2_5VL

_NAMES = (
    "person, bicycle, car, motorcycle, airplane, bus, train, truck, boat, traffic light, "
    "fire hydrant, stop sign, parking meter, bench, bird, cat, dog, horse, sheep, cow, elephant, "
    "bear, zebra, giraffe, backpack, umbrella, handbag, tie, suitcase, frisbee, skis, snowboard, "
    "sports ball, kite, baseball bat, baseball glove, skateboard, surfboard, tennis racket, "
    "bottle, wine glass, cup, fork, knife, spoon, bowl, banana, apple, sandwich, orange, broccoli, "
    "carrot, hot dog, pizza, donut, cake, chair, couch, potted plant, bed, dining table, toilet, "
    "tv, laptop, mouse, remote, keyboard, cell phone, microwave, oven, toaster, sink, "
    "refrigerator, book, clock, vase, scissors, teddy bear, hair drier, toothbrush"
)
NAMES = _NAMES.split(", ")
PHOTOGRAPHS = Path(__file__).parent / "photographs"
GAPS = {12, 26, 29, 30, 45, 66, 68, 69, 71, 83}
"""Ids from 1 to 90 that COCO does not use."""
IDS = [i for i in range(1, 91) if i not in GAPS]
SIZES = ((112, 84), (84, 112))
ORIENTATION = 0x0112
"""EXIF tag; the value 6 says that the stored image is turned 90 degrees to the left."""


def draw_coco_shaped(folder: Path, split: str, images: int, first_class: int = 0) -> None:
    """Write ``instances_SPLIT.json`` and the folder SPLIT.

    Every second image has the other size, every fourth has no objects, and every fifth is turned
    by EXIF. The others have two crowds and up to four objects, of 40 categories from
    ``first_class``, every second one. Two of an image are less than a pixel apart in height, and
    the higher one is on the right.
    """
    (folder / split).mkdir()
    classes = itertools.cycle(range(first_class, first_class + 80, 2))
    data = {"info": {}, "licenses": [], "images": [], "annotations": [], "categories": []}
    data["categories"] = [
        {"supercategory": "thing", "id": i, "name": name}
        for i, name in zip(IDS, NAMES, strict=True)
    ]
    for i in range(images):
        (width, height), key = SIZES[i % 2], 139 + 146 * i
        image = Image.linear_gradient("L").resize((width, height)).convert("RGB")
        draw = ImageDraw.Draw(image)
        boxes = [
            [8.27 + i, 44.84, 25.5, 31.16], [46.13, 44.41, 30.39, 27.07],
            [5.91, 4.33 + i, 31.07, 22.6], [49.75, 9.08, 24.92, 25.31],
        ][: 0 if i % 4 == 3 else 4]  # fmt: skip
        for x, y, w, h in boxes:
            number = len(data["annotations"])
            kind = next(classes) % 80
            draw.rectangle((x, y, x + w, y + h), fill=f"hsl({40 * number}, 90%, 50%)")
            corners = [x, y, x + w, y, x + w, y + h, x, y + h]
            rle = {"size": [height, width], "counts": [0, height * width]}
            crowd = number in (2, 5)
            data["annotations"].append({
                "segmentation": rle if crowd else [corners], "area": w * h, "iscrowd": int(crowd),
                "image_id": key, "bbox": [x, y, w, h], "category_id": IDS[kind],
                "id": 908800 + number,
            })  # fmt: skip
        name = f"{key:012}.jpg"
        exif = Image.Exif()
        if i % 5 == 4:
            exif[ORIENTATION] = 6
            image = image.transpose(Image.Transpose.ROTATE_90)
        image.save(folder / split / name, exif=exif)
        data["images"].append({
            "license": 4, "file_name": name, "height": height, "width": width, "id": key,
            "coco_url": f"http://images.cocodataset.org/{split}/{name}",
            "date_captured": "2013-11-14 17:02:52",
        })  # fmt: skip
    (folder / f"instances_{split}.json").write_text(json.dumps(data), encoding="utf-8")


QUICK = ["trainer.max_steps=2", "trainer.per_device_train_batch_size=2",
         "trainer.gradient_accumulation_steps=1", "trainer.dataloader_num_workers=0",
         "model.dtype=float32", "trainer.bf16=false",  # of equal answers, bf16 chooses any
         "predict.max_new_tokens=24"]  # fmt: skip


def lines_of(capsys, *words):
    """Run a command, and return its lines."""
    capsys.readouterr()
    code = cli.main(list(words))
    out, err = capsys.readouterr()
    assert code == 0, out + err
    return out.splitlines()


@pytest.mark.slow
def test_from_a_coco_file_to_the_program_of_the_card(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    draw_coco_shaped(tmp_path, "train", 16)
    draw_coco_shaped(tmp_path, "val", 5, first_class=1)  # classes that no training row has
    Qwen2_5VL.make_tiny(tmp_path / "tiny", seed=0)

    run = partial(lines_of, capsys)

    def prepare(split):
        file = f"{split}.jsonl"
        return run("prepare", "coco", f"instances_{split}.json", "--images", split, "--out", file)

    *_, to_train, _ = prepare("train")
    head, *_, to_test = prepare("val")
    assert head == "coco: 5 rows, 16 instances, 2 ignored, 1 rows without instances"
    settings = [
        word for line in (to_train, to_test) for word in shlex.split(line.partition(": ")[2])
    ]
    config = run("check", "detection_qwen2_5_vl_lora", "model.name=tiny", *settings)
    Path("mine.yaml").write_text("\n".join(config), encoding="utf-8")
    *checked, verdict = run("check-data", "mine.yaml")
    assert verdict == "ready"
    ceilings = [line for line in checked if line.startswith("  ceiling ")]
    assert all("F1@0.5 100.00 %" in line for line in ceilings)
    assert len(ceilings) == 2
    *_, following = run("train", "mine.yaml", *QUICK)
    while following.startswith("next: "):  # predict, then score
        name, *words = shlex.split(following.removeprefix("next: "))
        assert name == "mm-numeric"
        *lines, following = run(*words)
    folder = Path("runs/detection_qwen2_5_vl_lora")
    assert lines[0].startswith("5 rows, task detection; ")
    run("report", str(folder))
    assert (folder / "report.html").is_file()
    run("export", str(folder), "--out", "exported")
    card = Path("exported/README.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    assert all(name in program for name in NAMES)
    if find_spec("torchvision") is None:  # as the card says, the video processor needs it
        without = classmethod(lambda _: ["image_processor", "tokenizer"])
        monkeypatch.setattr(Qwen2_5_VLProcessor, "get_attributes", without)
    rows = (folder / "predictions.jsonl").read_text(encoding="utf-8").splitlines()
    load, begin, ask = program.partition("image = ")
    exec(load, found := {})
    for row in map(json.loads, rows):
        shutil.copy(row["image"], "image.png")
        exec(begin + ask, found)
        assert found["text"] == row["text"].strip()


@pytest.mark.slow
def test_photographs_are_found_or_not_but_never_lost(tmp_path, monkeypatch, capsys):
    """The photographs of the repository and, where they are, others of six sources."""
    monkeypatch.chdir(tmp_path)
    run, rows = partial(lines_of, capsys), Path("rows.jsonl")
    coco = [str(PHOTOGRAPHS / "instances.json"), "--images", str(PHOTOGRAPHS)]
    assert run("prepare", "coco", *coco, "--out", str(rows))[0] == "coco: 3 rows, 24 instances"
    found = [
        {**row, "image": str(PHOTOGRAPHS / row["image"])}
        for row in map(json.loads, rows.read_text(encoding="utf-8").splitlines())
    ]
    if (SHARED / "photographs").is_dir():
        folder = SHARED / "photographs"
        lines = (folder / "test.jsonl").read_text(encoding="utf-8").splitlines()
        others = map(json.loads, lines[:: len(lines) // 6])
        found += [{**row, "image": str(folder / "images" / row["image"])} for row in others]
    rows.write_text("".join(json.dumps(row) + "\n" for row in found), encoding="utf-8")
    tiny = ["detection_tiny", "data.train.path=rows.jsonl", "data.test.path=rows.jsonl",
            "task.classes=[]", *QUICK,
            "evaluate=null", "predict.max_new_tokens=440"]  # fmt: skip
    assert run("check-data", *tiny)[-1] == "ready"
    run("train", *tiny)
    run("predict", "--model", "runs/detection_tiny")
    head = run("score", "runs/detection_tiny/predictions.jsonl")[0]
    assert head.startswith(f"{len(found)} rows, task detection; ")
    run("report", "runs/detection_tiny")
    page = Path("runs/detection_tiny/report.html").read_text(encoding="utf-8")
    assert page.count("data:image") >= 3
