"""Tokenizers of published models, where they are at hand."""

import functools
import os
import tempfile
from pathlib import Path

import pytest

REAL = Path(__file__).parents[3] / "shared" / "data" / "tokenizers"


@functools.cache
def load(name):
    """Load one of the real tokenizers, or skip where it or what reads it is missing."""
    if not (REAL / name).is_dir():
        pytest.skip("the real tokenizers are not here")
    if name in ("llama2", "llama3"):
        pytest.importorskip("tiktoken" if name == "llama3" else "sentencepiece")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    transformers = pytest.importorskip("transformers")
    if name == "llama3":
        return _tiktoken(REAL / name / "tokenizer.model")
    kinds = {"llama2": "Llama", "qwen2": "Qwen2", "gpt2": "GPT2", "t5-small": "T5"}
    return getattr(transformers, f"{kinds[name]}Tokenizer").from_pretrained(REAL / name)


@functools.cache
def start_of_llama3(tokens=10_000):
    """Load the tokenizer of Llama-3 with its first tokens alone, which is ten times as fast."""
    load("gpt2")  # skips where there are none
    pytest.importorskip("tiktoken")
    lines = (REAL / "llama3" / "tokenizer.model").read_bytes().splitlines(keepends=True)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "tokenizer.model")
        file.write_bytes(b"".join(lines[:tokens]))
        return _tiktoken(file)


def _tiktoken(file):
    from transformers import PreTrainedTokenizerFast
    from transformers.convert_slow_tokenizer import TikTokenConverter

    return PreTrainedTokenizerFast(tokenizer_object=TikTokenConverter(str(file)).converted())
