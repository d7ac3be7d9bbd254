"""Rows of ``prepare --to``, read by the data code of the tools where they are installed."""

import dataclasses
import importlib
import importlib.machinery
import importlib.util
import json
import sys
import types
from pathlib import Path

import pytest
from datasets import Image, List, load_dataset
from importing import json_file, make_image
from tiny_models import tiny_folder
from transformers import AutoConfig, PreTrainedTokenizerFast, Qwen2VLImageProcessorPil

from mm_numeric.api import prepare
from mm_numeric.config.schema import ModelConfig
from mm_numeric.families.qwen2_vl import Qwen2VL
from mm_numeric.geometry.frame_presets import FAMILY_RESIZES, FrameRule
from mm_numeric.importers.export import Target

SIZES = [(640, 480), (1333, 800), (97, 211), (2000, 1500)]
FAMILIES = ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"]


def installed(*packages):
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The working folder, with images and rows of two boxes each."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    rows = []
    for i, (width, height) in enumerate(SIZES):
        make_image(tmp_path / "images" / f"{i}.png", (width, height))
        boxes = [
            [width / 9, height / 7, width, height / 3],
            [1.5, 2.5, width / 2 + i, height - 0.5],
        ]
        labels = zip(boxes, ["a red car", 'a "cat"'], strict=True)
        instances = [{"box": box, "label": label} for box, label in labels]
        rows.append({"id": str(i), "image": f"{i}.png", "instances": instances})
    return json_file(tmp_path / "raw.jsonl", rows).parent


def written(tool, family):
    """Return the folder of a tool, and the answers; those of ms-swift as TRL has them."""
    texts = "llamafactory" if tool == "llamafactory" else "trl"
    for name in {tool, texts}:
        to = Target(tool=name, frame=FrameRule.of_family(family), images="images")
        prepare("rows", "raw.jsonl", "rows.jsonl", force=True, to=to, images=None)
    lines = Path(f"rows.{texts}/train.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    turns = [row["messages"] if "messages" in row else row["completion"] for row in rows]
    return f"rows.{tool}", [messages[-1]["content"] for messages in turns]


def answer(tokenizer, labels):
    text = tokenizer.decode([token for token in labels if token >= 0], skip_special_tokens=False)
    return text.removesuffix("\n").removesuffix("<|im_end|>")


@pytest.mark.slow
def test_the_collator_of_trl():
    from trl.trainer.sft_trainer import DataCollatorForVisionLanguageModeling

    folder, texts = written("trl", "qwen2_vl")
    rows = load_dataset("json", data_files=f"{folder}/train.jsonl", split="train")
    rows = rows.cast_column("images", List(Image()))
    family = Qwen2VL.load(tiny_folder("qwen2_vl"), ModelConfig(name="tiny"))
    collate = DataCollatorForVisionLanguageModeling(family.processor, completion_only_loss=True)
    for row, text in zip(rows, texts, strict=True):
        batch = collate([row])
        assert answer(family.tokenizer, batch["labels"][0]) == text
        assert "image_grid_thw" in batch


@installed("llamafactory")
@pytest.mark.parametrize("family", FAMILIES)
def test_the_data_code_of_llamafactory(family):
    from llamafactory.data import get_dataset, get_template_and_fix_tokenizer
    from llamafactory.hparams import DataArguments
    from transformers import Seq2SeqTrainingArguments

    folder, texts = written("llamafactory", family)
    resize = FAMILY_RESIZES[family]
    limits = {"shortest_edge": resize.min_pixels, "longest_edge": resize.max_pixels}
    patch = resize.factor // 2
    images = Qwen2VLImageProcessorPil(patch_size=patch, merge_size=2, size=limits)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tiny_folder(family))
    processor = types.SimpleNamespace(
        tokenizer=tokenizer, image_processor=images, video_processor=images
    )
    data = DataArguments(
        template={"qwen3_vl": "qwen3_vl_nothink"}.get(family, "qwen2_vl"),
        dataset="rows",
        dataset_dir=folder,
        media_dir=".",
        cutoff_len=10_000,
        preprocessing_num_workers=1,
    )
    data.dataset = ["rows"]
    names = ("cache_dir", "hf_hub_token", "ms_hub_token", "om_hub_token", "block_diag_attn")
    model = types.SimpleNamespace(**dict.fromkeys(names))
    training = Seq2SeqTrainingArguments("out", use_cpu=True, report_to="none")
    template = get_template_and_fix_tokenizer(tokenizer, data)
    found = get_dataset(
        template, model, data, training, stage="sft", tokenizer=tokenizer, processor=processor
    )["train_dataset"]
    rule = dataclasses.replace(FrameRule.of_family(family), image_max_pixels=768 * 768)
    for row, text, size in zip(found, texts, SIZES, strict=True):
        assert answer(tokenizer, row["labels"]) == text
        seen = template.mm_plugin._get_mm_inputs(row["images"], [], [], processor)
        _, height, width = seen["image_grid_thw"][0].tolist()
        view = rule.frame(*size).view
        assert (width * patch, height * patch) == (view.width_px, view.height_px)


@installed("swift", "qwen_vl_utils")
@pytest.mark.parametrize("family", FAMILIES)
def test_the_template_of_ms_swift(family, monkeypatch):
    if importlib.util.find_spec("torchvision") is None:  # qwen_vl_utils imports it, for videos
        for name in ("torchvision", "torchvision.io", "torchvision.transforms"):
            module = types.ModuleType(name)
            module.__spec__ = importlib.machinery.ModuleSpec(name, None)
            monkeypatch.setitem(sys.modules, name, module)
        module.InterpolationMode = None
        vars(sys.modules["torchvision"]).update(__version__="0", io=None, transforms=None)
    if family != "qwen2_vl":
        monkeypatch.setenv("QWENVL_BBOX_FORMAT", "new")
    from swift.dataset import load_dataset as load_rows
    from swift.model import MODEL_MAPPING
    from swift.template import get_template

    folder, texts = written("ms-swift", family)
    source = tiny_folder(family)
    info = types.SimpleNamespace(
        config=AutoConfig.from_pretrained(source),
        task_type="causal_lm",
        max_model_len=10_000,
        model_dir=source,
        model_type=family,
        torch_dtype=None,
    )
    processor = types.SimpleNamespace(
        tokenizer=PreTrainedTokenizerFast.from_pretrained(source),
        image_processor=Qwen2VLImageProcessorPil.from_pretrained(source),
        model_info=info,
        model_meta=MODEL_MAPPING[family],
    )
    template = get_template(processor, template_type=family)
    template.set_mode("train")
    rows, _ = load_rows([f"{folder}/train.jsonl"], num_proc=1, split_dataset_ratio=0.0)
    for row, text in zip(rows, texts, strict=True):
        labels = template.encode(dict(row))["labels"]
        assert answer(processor.tokenizer, labels) == text
