"""Create tiny random LLaVA-1.5 and Yi-VL models, with the classes of the full-size models."""

import re
import string
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from transformers import (
    LlamaTokenizer,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaImageProcessorPil,
)

from mm_numeric.families.tiny import add_words, save_tiny
from mm_numeric.families.yi_vl import SYSTEM_PROMPT, YiVLForConditionalGeneration

_SIDE = 56
_WIDTH = 96
# About 1/sqrt(width): both overfit eight boxes within 60 steps at a learning rate of 2e-3 (three of
# three seeds).
_INITIALIZER_RANGE = 0.1


def make_tiny_llava(folder: Path, seed: int) -> None:
    """Save a LLaVA model with half a million parameters, for images of 56 x 56 pixels."""
    tokenizer = _llama_tokenizer(["▁USER", "▁ASSISTANT", "▁Locate"], "<s>", "</s>")
    tokenizer.add_special_tokens({"pad_token": "<pad>", "additional_special_tokens": ["<image>"]})
    image_id = tokenizer.convert_tokens_to_ids("<image>")
    _save(folder, seed, LlavaForConditionalGeneration, tokenizer, image_id)


def make_tiny_yi_vl(folder: Path, seed: int) -> None:
    """Save a Yi-VL model with half a million parameters. Its tokenizer has no image token."""
    text = f"{SYSTEM_PROMPT} ### Human Assistant Locate".replace(" ", "▁")
    words = re.findall("▁?[^▁。，]+[。，]?", text)
    ends = "<|startoftext|>", "<|endoftext|>"
    tokenizer = _llama_tokenizer(words, *ends, add_prefix_space=False)  # like Yi's
    tokenizer.pad_token = "<unk>"
    _save(folder, seed, YiVLForConditionalGeneration, tokenizer, tokenizer.unk_token_id)


def _save(folder: Path, seed: int, model_class: Any, tokenizer: Any, image_id: int) -> None:
    shared = {
        "hidden_size": _WIDTH,
        "intermediate_size": 2 * _WIDTH,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "initializer_range": _INITIALIZER_RANGE,
    }
    config = LlavaConfig(
        vision_config={
            **shared,
            "model_type": "clip_vision_model",
            "projection_dim": _WIDTH,
            "image_size": _SIDE,
            "patch_size": 14,
        },
        text_config={
            **shared,
            "model_type": "llama",
            "vocab_size": len(tokenizer),
            "num_key_value_heads": 4,
            "max_position_embeddings": 2048,
            "bos_token_id": tokenizer.bos_token_id,
            "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": tokenizer.pad_token_id,
        },
        image_token_index=image_id,
        image_seq_length=(_SIDE // 14) ** 2,
        initializer_range=_INITIALIZER_RANGE,
    )
    processor = LlavaImageProcessorPil(  # crops and does not pad, like those of the hub
        size={"shortest_edge": _SIDE}, crop_size={"height": _SIDE, "width": _SIDE}
    )
    save_tiny(folder, seed, model_class, config, tokenizer, processor)


def _llama_tokenizer(words: Iterable[str], begin: str, end: str, **options: Any) -> LlamaTokenizer:
    """Return a tokenizer like LLaMA's, with one token per digit and a small vocabulary."""
    tokens = ["<unk>", begin, end, *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens += ["▁", *string.ascii_letters, *string.digits, *string.punctuation]
    merges = list[tuple[str, str]]()
    for word in ["▁[", "▁(", *words]:
        tokens += [letter for letter in word if letter not in tokens]
        merges += add_words(tokens, [word])
    return LlamaTokenizer(
        vocab={token: i for i, token in enumerate(tokens)},
        merges=merges,
        bos_token=begin,
        eos_token=end,
        add_bos_token=True,
        **options,
    )
