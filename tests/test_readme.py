"""What README.md and the pages of docs/ show can be pasted: code, commands and configs."""

import json
import re
import shlex
from pathlib import Path

import pytest
import tiny_integrations
import torch
import yaml
from clock_run import clock_images, clock_run
from datasets import Dataset
from documents import PAGES, blocks, pages_with
from PIL import Image
from tiny_models import tiny_byt5, tiny_causal_lm, tiny_checkpoint
from torch.utils.data import DataLoader
from transformers import ByT5Tokenizer, Seq2SeqTrainingArguments, TrainingArguments
from trl import GRPOConfig, SFTConfig

from mm_numeric import NumericLoss, collate_with_spans
from mm_numeric.cli import main as cli
from mm_numeric.cli import prepare as prepare_command
from mm_numeric.cli.arguments import make_parser
from mm_numeric.comparison.rows import read_comparison
from mm_numeric.config.explain import explain
from mm_numeric.config.reader import find_config
from mm_numeric.families.qwen2_5_vl import Qwen2_5VL
from mm_numeric.families.tiny import tiny_qwen2_tokenizer
from mm_numeric.registry import API, IMPORTERS, choose

CLASSES = {"helmet": "red", "vest": "blue"}


def draw_coco(folder: Path, split: str, count: int) -> None:
    """Write ``instances_SPLIT.json`` and the folder SPLIT; every third image has no object."""
    (folder / split).mkdir()
    images, boxes = [], []
    for i in range(count):
        image = Image.new("RGB", (112, 84), "white")
        image.paste("gray", (0, 80, 112, 84))
        for k, color in enumerate(list(CLASSES.values())[: i % 3]):
            x, y = 10 + i + 50 * k, 20 + 9 * k
            image.paste(color, (x, y, x + 40, y + 40))
            box = {"image_id": i, "category_id": k, "bbox": [x, y, 40, 40], "area": 1600}
            boxes.append({"id": len(boxes) + 1, "iscrowd": 0, **box})
        image.save(folder / split / f"{i}.png")
        images.append({"id": i, "file_name": f"{i}.png", "width": 112, "height": 84})
    names = [{"id": i, "name": name} for i, name in enumerate(CLASSES)]
    data = {"images": images, "annotations": boxes, "categories": names}
    (folder / f"instances_{split}.json").write_text(json.dumps(data), encoding="utf-8")


BYT5 = ByT5Tokenizer()
COMMANDS = ("ls", "cp", "check", "prepare", "check-data", "labels", "run", "train", "predict",
            "demo", "calibrate", "decode", "score", "compare", "export", "push", "report",
            "doctor")  # fmt: skip
YOURS = "clock_qwen2_vl_2b"
"""The config that stands for mine.yaml, which a reader has copied from a shipped one."""


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    """Maps the hub names of the examples to folders of tiny checkpoints."""
    folder = tmp_path_factory.mktemp("hub")
    BYT5.save_pretrained(folder / "byt5")
    tiny_byt5().float().save_pretrained(folder / "byt5")
    located = tiny_qwen2_tokenizer()
    located.add_tokens([*(f"<loc{i:04d}>" for i in range(1024)), "none", "half", "one"])
    located.save_pretrained(folder / "located")
    return {"Qwen/Qwen2-VL-2B-Instruct": tiny_checkpoint(),
            "google/paligemma-3b-pt-224": str(folder / "located"),
            "google/byt5-small": str(folder / "byt5")}  # fmt: skip


def stand_ins(folder):
    """Return what the examples take as given: small, and all of it real."""
    settings = tiny_integrations.settings(folder, max_steps=2)
    rows, model = tiny_integrations.rows(), tiny_causal_lm().float()
    loss_of = NumericLoss("ntil", tiny_qwen2_tokenizer())
    collate = collate_with_spans(tiny_integrations.COLLATE, loss_of)
    batches = [collate(list(rows)[i : i + 2]) for i in range(0, 8, 2)]
    pairs = [
        {**BYT5(text["prompt"]), "labels": BYT5(text["completion"]).input_ids}
        for text in tiny_integrations.TEXTS
    ]
    return {
        "logits": torch.randn(1, 7, 284, requires_grad=True),
        "labels": torch.tensor([[-100, -100, 22, 24, 15, 20, 100]]),  # 7 9 0 5, then text
        "model": model,
        "tokenizer": tiny_qwen2_tokenizer(),
        "args": TrainingArguments(**settings),
        "rows": rows,
        "collate": tiny_integrations.COLLATE,
        "sft_args": SFTConfig(**settings, bf16=False),
        "grpo_args": GRPOConfig(**settings, bf16=False, num_generations=4, max_completion_length=4),
        "texts": Dataset.from_list(tiny_integrations.TEXTS),
        "steps": [batches[:2], batches[2:]],
        "loader": DataLoader(batches, batch_size=None),
        "optimizer": torch.optim.AdamW(model.parameters()),
        "seq2seq_args": Seq2SeqTrainingArguments(**settings),
        "pairs": Dataset.from_list(pairs),
    }


@pytest.mark.slow
@pytest.mark.parametrize("page", pages_with("python"))
def test_every_python_example_runs(page, hub, tmp_path, capsys):
    """One after the other, as a reader would paste them; hub names are folders here."""
    torch.manual_seed(0)
    names = stand_ins(tmp_path)
    for example in blocks(page, "python"):
        # Not installed with the tests, and minutes of training (tests/test_api.py has seconds).
        if any(own in example for own in ("lightning", "rapidocr", 'train("clock_tiny")')):
            continue
        for name, folder in hub.items():
            example = example.replace(name, folder)
        if "LoadedRun" in example:
            files = {"runs/mine": clock_run(), "clock.png": clock_images()[0]}
            for name, file in {**files, "answer.png": tmp_path / "answer.png"}.items():
                example = example.replace(name, str(file))
        before, trainer = names["model"].model.norm.weight.clone(), names.get("trainer")
        exec(compile(example, page, "exec"), names)
        if names.get("trainer") is not trainer:
            assert names["trainer"].state.global_step == 2
        if "ImageGenerator" in example:  # of the example, as data.train.synthetic writes them
            path = names["Compasses"](name="my_images:Compasses", rows=2).write(tmp_path)
            assert path.read_text(encoding="utf-8").count('"degrees": ') == 2
        if "LoadedRun" in example:
            assert (tmp_path / "answer.png").is_file()
        if "optimizer.step" in example:
            assert (names["model"].model.norm.weight != before).all()
        if "result.components" in example:
            assert names["logits"].grad.abs().sum() > 0
            printed = set(re.findall(r"'(\w+)'", capsys.readouterr().out))
            assert printed == {"ce", "emd_exp", "relative", "magnitude"}
        if "spans.{name" in example:  # the batch of CONTRIBUTING.md
            assert capsys.readouterr().out.endswith(blocks(page, "text")[0])
        if "normalise_places" in example:
            assert capsys.readouterr().out.endswith(blocks(page, "text")[0])
        if "number_distribution" in example:
            assert names["found"] is None or 0 < names["found"].covered <= 1
        if "from_hidden" in example:
            assert names["model"].model.norm.weight.grad.abs().min() > 0
        if "TuneLoss(" in example:  # flattened and shifted, as a recipe of torchtune calls it
            loss = names["TuneLoss"](hub["Qwen/Qwen2-VL-2B-Instruct"], "ntil")
            logits, labels = names["logits"], names["labels"]
            flat = torch.nn.functional.pad(labels, (0, 1), value=loss.ignore_index)[:, 1:].flatten()
            expected = names["loss_of"](logits, labels, shift=True).loss
            torch.testing.assert_close(loss(logits.flatten(0, 1), flat), expected)
        if "from_tokens" in example:
            assert [len(names[n]) for n in ("locations", "words", "both")] == [1024, 3, 1034]


def test_the_example_of_lightning_runs(hub, tmp_path, monkeypatch):
    pytest.importorskip("lightning", reason="lightning is not installed with the tests")
    monkeypatch.chdir(tmp_path)
    names = stand_ins(tmp_path)
    before = names["model"].model.norm.weight.clone()
    first, *examples = blocks("docs/quickstarts/trainers.md", "python")
    for name, folder in hub.items():
        first = first.replace(name, folder)
    for example in (first, *(text for text in examples if "lightning" in text)):
        exec(compile(example, "trainers.md", "exec"), names)
    assert names["trainer"].global_step == 2
    assert (names["model"].model.norm.weight != before).all()
    assert names["trainer"].logged_metrics.keys() >= {"loss/ce", "loss/emd_exp"}


def commands(page):
    """Return the words of each ``mm-numeric`` command in shell blocks and in the text of a page."""
    shell = "\n".join(blocks(page, "sh")).replace("\\\n", " ").replace("&&", "\n").splitlines()
    found = [*shell, *re.findall(r"`([^`\n]*mm[-_]numeric [^`\n]*)`", PAGES[page])]
    ours = [re.search(r"(?:mm-numeric|(?:-m|--module) mm_numeric) +(.*)", line) for line in found]
    return [shlex.split(match[1], comments=True) for match in ours if match]


def config_of(arguments):
    return arguments.config if {"config", "overrides"} <= vars(arguments).keys() else None


def check(words):
    """Parse a command. Read the config of a command that has one, with its changed settings."""
    if len(words) == 1 or re.search(r"\.\.\.|\b[A-Z]{3,}\b", " ".join(words)):  # a pattern
        assert words[0] in (*COMMANDS, "...")
        return
    arguments, rest = make_parser(dict.fromkeys(COMMANDS)).parse_known_args(words)
    if words[0] == "prepare" and arguments.format in IMPORTERS:
        kind = choose(arguments.format, IMPORTERS, "format", "prepare")
        prepare_command._parser(arguments.format, kind).parse_args(arguments.words)
    elif "explain" in arguments and arguments.explain:
        explain(arguments.explain)
    elif config := arguments.run if getattr(arguments, "folds", None) else config_of(arguments):
        own = config in ("mine.yaml", "compass.yaml")
        read_comparison(YOURS if own else config, [*arguments.overrides, *rest])
    else:
        assert rest == []


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)])
def test_every_command_is_valid(page):
    for words in commands(page):
        try:
            check(words)
        except (SystemExit, ValueError) as error:
            pytest.fail(f"{page}: {shlex.join(words)}: {error}")


@pytest.mark.parametrize("page", pages_with("yaml"))
def test_every_config_is_valid(page, tmp_path):
    """A block that is part of a config replaces the settings of a shipped one."""
    for i, block in enumerate(blocks(page, "yaml")):
        given = yaml.safe_load(block)
        config = yaml.safe_load(find_config(YOURS).read_text(encoding="utf-8"))
        config["trainer"]["max_steps"] = 100
        for section, own in given.items():
            both = isinstance(own, dict) and isinstance(config.get(section), dict)
            both = both and section != "task"
            config[section] = {**config[section], **own} if both else own
        path = tmp_path / f"block{i}.yaml"
        is_whole = "trainer" in given or given.get("model", {}).get("family") == API
        path.write_text(yaml.safe_dump(given if is_whole else config), encoding="utf-8")
        read_comparison(path)


def masked(text):
    """Return the lines of a transcript with # for each number, checksum and path of the page."""
    text = re.sub(r"^page: .*", "page: #", text, flags=re.MULTILINE)
    text = re.sub(r"sha256 \w+(?:\.\.\.)?", "sha256 #", text)
    return [" ".join(re.sub(r"\d[\d.,]*\d|\d", "#", line).split()) for line in text.splitlines()]


@pytest.mark.slow
def test_the_transcript_of_the_detection_quickstart(tmp_path, monkeypatch, capsys):
    """Four commands from a COCO file and a checkpoint folder to scores, as the page shows them."""
    page = "docs/quickstarts/detection.md"
    for split, images in (("train", 12), ("val", 4)):
        draw_coco(tmp_path, split, images)
    monkeypatch.chdir(tmp_path)
    Qwen2_5VL.make_tiny(tmp_path / "Qwen2.5-VL-3B-Instruct", seed=0)
    steps = re.split(r"^\$ ", "".join(blocks(page, "console")), flags=re.MULTILINE)[1:]
    assert len(steps) == 4
    for step in steps:
        command, _, expected = step.partition("\n")
        _, *words = shlex.split(command)
        if words[0] == "run":  # workers take seconds to start, and an epoch is a step
            words += ["trainer.dataloader_num_workers=0", "trainer.num_train_epochs=1"]
        assert cli.main(words) == 0, words
        out = capsys.readouterr().out
        if words[0] == "run":  # of an untrained model; the page shows the scores of a trained one
            assert out.startswith("4 rows, task detection; ")
            assert out.endswith("/runs/detection_qwen2_5_vl_lora/report.html\n")
        else:
            assert masked(out) == masked(expected), command
    assert Path("runs/detection_qwen2_5_vl_lora/results.json").is_file()


def test_every_command_is_documented_and_exists(capsys):
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    verbs = re.findall(r"^    ([a-z-]+) ", capsys.readouterr().out, re.MULTILINE)
    assert set(verbs) == set(COMMANDS)
    assert {words[0] for page in PAGES for words in commands(page)} >= set(COMMANDS)
