"""What the README says can be pasted, can be pasted."""

import re
from pathlib import Path

import pytest
import tiny_integrations
import torch
from datasets import Dataset
from tiny_models import tiny_byt5, tiny_causal_lm, tiny_checkpoint
from torch.utils.data import DataLoader
from transformers import ByT5Tokenizer, Seq2SeqTrainingArguments, TrainingArguments
from trl import SFTConfig

from mm_numeric import cli
from mm_numeric.families.tiny import tiny_qwen2_tokenizer

BYT5 = ByT5Tokenizer()
README = Path(__file__).parents[1] / "README.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


def stand_ins(folder):
    """Return what the examples take as given: small, and all of it real."""
    settings = tiny_integrations.settings(folder, max_steps=2)
    rows, model = tiny_integrations.rows(), tiny_causal_lm().float()
    batches = [tiny_integrations.COLLATE(list(rows)[i : i + 2]) for i in range(0, 8, 2)]
    pairs = [
        {**BYT5(text["prompt"]), "labels": BYT5(text["completion"]).input_ids}
        for text in tiny_integrations.TEXTS
    ]
    return {
        "logits": torch.randn(1, 7, 284, requires_grad=True),
        "labels": torch.tensor([[-100, -100, 22, 24, 15, 20, 100]]),  # 7 9 0 5, then text
        "model": model,
        "args": TrainingArguments(**settings),
        "rows": rows,
        "collate": tiny_integrations.COLLATE,
        "sft_args": SFTConfig(**settings, bf16=False),
        "texts": Dataset.from_list(tiny_integrations.TEXTS),
        "steps": [batches[:2], batches[2:]],
        "loader": DataLoader(batches, batch_size=None),
        "optimizer": torch.optim.AdamW(model.parameters()),
        "seq2seq_args": Seq2SeqTrainingArguments(**settings),
        "pairs": Dataset.from_list(pairs),
    }


def test_every_python_example_trains(tmp_path, capsys):
    """One after the other, as a reader would paste them; hub names are folders here."""
    BYT5.save_pretrained(tmp_path / "byt5")
    tiny_byt5().float().save_pretrained(tmp_path / "byt5")
    located = tiny_qwen2_tokenizer()
    located.add_tokens([*(f"<loc{i:04d}>" for i in range(1024)), "none", "half", "one"])
    located.save_pretrained(tmp_path / "located")
    folders = {"Qwen/Qwen2-VL-2B-Instruct": tiny_checkpoint(),
               "google/paligemma-3b-pt-224": str(tmp_path / "located"),
               "google/byt5-small": str(tmp_path / "byt5")}  # fmt: skip
    torch.manual_seed(0)
    names = stand_ins(tmp_path)
    first, *others = blocks("python")
    for name, folder in folders.items():
        first = first.replace(name, folder)
        others = [example.replace(name, folder) for example in others]
    exec(compile(first, "README.md", "exec"), names)
    assert names["logits"].grad.abs().sum() > 0
    printed = set(re.findall(r"'(\w+)'", capsys.readouterr().out))
    assert printed == {"ce", "emd_exp", "relative", "magnitude"}
    for example in others:
        before, trainer = names["model"].model.norm.weight.clone(), names.get("trainer")
        exec(compile(example, "README.md", "exec"), names)
        if names.get("trainer") is not trainer:
            assert names["trainer"].state.global_step == 2
        elif "optimizer" in example:
            assert (names["model"].model.norm.weight != before).all()
        elif "number_distribution" in example:
            assert names["found"] is None or 0 < names["found"].covered <= 1
        elif "from_hidden" in example:
            assert names["model"].model.norm.weight.grad.abs().min() > 0
            names["model"].zero_grad()
        else:
            assert (len(names["places"]), len(names["words"])) == (1024, 3)
            assert len(names["both"]) == 1034
    assert len(others) == 8


def test_every_command_of_the_table_exists(capsys):
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    help_text = capsys.readouterr().out
    text = README.read_text(encoding="utf-8") + help_text
    for verb in set(re.findall(r"mm-numeric ([a-z]+)\b", text)):
        assert re.search(rf"^    {verb} ", help_text, re.MULTILINE), verb


def test_nothing_is_left_to_fill_in():
    assert "@@" not in README.read_text(encoding="utf-8")
