"""The three Qwen families, tiny and real, and rows with a box to train them on."""

import functools
import json
from pathlib import Path

import pytest
import torch
from PIL import Image, ImageDraw
from tiny_models import TINY, small_config, tiny_folder
from transformers import Qwen2VLImageProcessorPil

from mm_numeric.config.schema import Config
from mm_numeric.families.qwen2_5_vl import Qwen2_5VL
from mm_numeric.families.qwen2_vl import Qwen2VL
from mm_numeric.families.qwen3_vl import Qwen3VL

QWENS = (Qwen2VL, Qwen2_5VL, Qwen3VL)
each_qwen = pytest.mark.parametrize("cls", QWENS, ids=lambda cls: cls.default_coordinates)


def checkpoint(cls) -> str:
    """Return the folder of a tiny model."""
    return tiny_folder(cls.default_coordinates)  # which is also the name of the family


@functools.cache
def qwen(cls):
    """Return its family."""
    return cls.load(checkpoint(cls), TINY)


def qwen_model(cls):
    """Return a fresh copy of its weights."""
    return qwen(cls).load_model(checkpoint(cls), TINY).eval()


def real_sizes(cls):
    """Return a tiny family with the patches and the pixel limits of the real checkpoints."""
    if cls is Qwen3VL:
        real = Qwen2VLImageProcessorPil(
            patch_size=16, size={"shortest_edge": 65536, "longest_edge": 16777216}
        )
    else:
        real = Qwen2VLImageProcessorPil(min_pixels=3136, max_pixels=12845056)
    return cls(qwen(cls).tokenizer, real, TINY)


def real_model(cls):
    """Return a model as large as the class has it by default, without weights."""
    with torch.device("meta"):
        return cls.model_class(cls.model_class.config_class())


def box_rows(folder: Path) -> list[dict]:
    """Draw two images with a box each, of two sizes, and write their rows."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for name, size, box in (("a", (100, 60), [10, 20, 40, 50]), ("b", (70, 112), [7, 0, 70, 56])):
        image = Image.new("RGB", size, (20, 40, 60))
        ImageDraw.Draw(image).rectangle(box, fill=(200, 180, 40))
        image.save(folder / f"{name}.png")
        rows.append({"id": name, "image": f"{name}.png", "phrase": "the block", "box": box})
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return rows


def box_config(folder: Path, family: str, *overrides: str) -> Config:
    """Return a config that trains a tiny model of a family on ``box_rows`` for two steps."""
    box_rows(folder)
    source = f"{{path: {folder / 'rows.jsonl'}}}"
    return small_config(
        folder,
        "task={name: grounding}",
        f"data={{train: {source}, test: {source}}}",
        f"model.family={family}",
        "objective=ce",
        "trainer.max_steps=2",
        "trainer.save_strategy='no'",
        *overrides,
    )
