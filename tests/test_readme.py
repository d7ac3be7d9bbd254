"""What the README says can be pasted, can be pasted."""

import re
from pathlib import Path

import torch
from tiny_models import tiny_checkpoint

README = Path(__file__).parents[1] / "README.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


def test_the_python_example_runs(capsys):
    (example,) = blocks("python")
    example = example.replace("Qwen/Qwen2-VL-2B-Instruct", tiny_checkpoint())
    torch.manual_seed(0)
    labels = torch.tensor([[-100, -100, 22, 24, 15, 20, 100]])  # 7 9 0 5, then text
    logits = torch.randn(1, 7, 284, requires_grad=True)
    exec(compile(example, "README.md", "exec"), {"logits": logits, "labels": labels})
    assert logits.grad.abs().sum() > 0
    assert set(re.findall(r"'(\w+)'", capsys.readouterr().out)) == {
        "ce",
        "emd_exp",
        "relative",
        "magnitude",
    }


def test_every_command_of_the_table_exists(capsys):
    from mm_numeric.cli import EXAMPLES, _parser

    text = README.read_text(encoding="utf-8") + EXAMPLES
    help_text = _parser().format_help()
    for verb in set(re.findall(r"mm-numeric ([a-z]+)\b", text)):
        assert re.search(rf"^    {verb} ", help_text, re.MULTILINE), verb


def test_nothing_is_left_to_fill_in():
    assert "@@" not in README.read_text(encoding="utf-8")
