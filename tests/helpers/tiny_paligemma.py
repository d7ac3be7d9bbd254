"""Create tiny random PaliGemma models, with the classes of the full-size models."""

from pathlib import Path
from typing import Any

from tiny_families import vision_settings
from transformers import (
    GemmaTokenizer,
    PaliGemmaConfig,
    PaliGemmaForConditionalGeneration,
    SiglipImageProcessorPil,
)

from mm_numeric.families.tiny import add_words, save_tiny

_NAMED = ("<pad>", "<eos>", "<bos>", "<unk>", "<mask>")
_LOCATIONS = [f"<loc{level:04d}>" for level in range(1024)]
_WORDS = ("▁time", "▁is", "▁it", "What", "Locate", "detect")
_SIDE_PX, _PATCH_PX = 56, 14
_WIDTH = 64


def make_tiny_paligemma(folder: Path, seed: int, **changes: Any) -> None:
    """Save a PaliGemma model for images of 56 x 56 pixels (16 patches).

    ``changes`` are settings of the language model: ``model_type="gemma2"`` makes a PaliGemma 2.
    """
    tokenizer = tiny_gemma_tokenizer()
    ids = tokenizer.get_vocab()
    # Gemma multiplies its embeddings, which are tied to the head, by sqrt(width). With a standard
    # deviation of 1/sqrt(width), embedded tokens and logits start with a standard deviation of 1.
    spread = _WIDTH**-0.5
    config = PaliGemmaConfig(
        text_config={
            "model_type": "gemma",
            "vocab_size": len(tokenizer),
            "hidden_size": _WIDTH,
            "intermediate_size": 2 * _WIDTH,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
            "head_dim": _WIDTH // 4,
            "max_position_embeddings": 2048,
            "initializer_range": spread,
            **changes,
        },
        vision_config=vision_settings(
            _WIDTH, _SIDE_PX, _PATCH_PX, model_type="siglip_vision_model", vision_use_head=False
        ),
        projection_dim=_WIDTH,
        hidden_size=_WIDTH,
        vocab_size=len(tokenizer),
        image_token_index=ids["<image>"],
        pad_token_id=ids["<pad>"],
        bos_token_id=ids["<bos>"],
        eos_token_id=ids["<eos>"],
    )
    processor = SiglipImageProcessorPil(
        size={"height": _SIDE_PX, "width": _SIDE_PX}, image_seq_length=(_SIDE_PX // _PATCH_PX) ** 2
    )
    save_tiny(folder, seed, PaliGemmaForConditionalGeneration, config, tokenizer, processor)


def tiny_gemma_tokenizer() -> GemmaTokenizer:
    """Return a tokenizer like PaliGemma's, with one token per digit and a small vocabulary."""
    tokenizer = plain_gemma_tokenizer()
    tokenizer.add_tokens(_LOCATIONS)  # not special tokens, like in the checkpoints
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    return tokenizer


def plain_gemma_tokenizer(**options: Any) -> GemmaTokenizer:
    """Return a tokenizer like Gemma's, without location and image tokens."""
    characters = ["\n", "▁", *map(chr, range(ord("!"), ord("~") + 1))]
    tokens = [*_NAMED, *(f"<0x{byte:02X}>" for byte in range(256)), *characters]
    merges = add_words(tokens, _WORDS)
    vocabulary = {token: i for i, token in enumerate(tokens)}
    return GemmaTokenizer(vocab=vocabulary, merges=merges, **options)
