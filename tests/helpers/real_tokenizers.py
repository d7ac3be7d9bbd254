"""Tokenizers of published models, where they are at hand."""

import functools
import os
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
        from transformers.convert_slow_tokenizer import TikTokenConverter

        file = str(REAL / name / "tokenizer.model")
        return transformers.PreTrainedTokenizerFast(
            tokenizer_object=TikTokenConverter(vocab_file=file).converted()
        )
    kinds = {"llama2": "Llama", "qwen2": "Qwen2", "gpt2": "GPT2", "t5-small": "T5"}
    return getattr(transformers, f"{kinds[name]}Tokenizer").from_pretrained(REAL / name)
