"""Tiny, randomly initialised models, for ``model.name: tiny``: Qwen-VL, GPT-2 and T5.

Configs of the demo train them without a download. The standard deviation of their initial weights
is 0.08, about 1/sqrt(width). With the usual 0.02, a tiny Qwen2-VL ignored the image for more than
1,000 training steps; with 0.08, for at most 400.

The tokenizers have one token per digit, and one token for each word of questions such as "What is
3 + 4?".
"""

import string
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    GPT2Tokenizer,
    Qwen2Tokenizer,
    Qwen2VLImageProcessorPil,
    T5Config,
    T5ForConditionalGeneration,
    T5Tokenizer,
)
from transformers.convert_slow_tokenizer import bytes_to_unicode

_INITIALIZER_RANGE = 0.08
_WIDTH = 128

# The special tokens of Qwen, in the order of their ids.
_SPECIAL_TOKENS = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>",
    "<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>",
    "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>",
)  # fmt: skip
_CHAT_WORDS = ("user", "assistant", "What", "Ġtime", "Ġis", "Ġit", "Locate")
# Words of rendered scenes: one token each, like in any pretrained tokenizer.
_PHRASES = (
    "the", "Ġthe", "Ġat", "Ġred", "Ġgreen", "Ġblue", "Ġyellow", "Ġpurple", "Ġwhite", "Ġcircle",
    "Ġsquare", "Ġtriangle", "Ġlarge", "Ġsmall", "Ġleft", "Ġright", "Ġtop", "Ġbottom", "Ġshapes",
    "red", "green", "blue", "yellow", "purple", "white",
)  # fmt: skip
# Parts of boxes: `[{"bbox_2d": [12, 3, 40, 51], "label": "cat"}]` and `(12,3),(40,51)`.
_PUNCTUATION = ('[{"', "bbox", '":', "Ġ[", "],", 'Ġ"', "label", '"}', "]}]", "),(")

# Qwen2-VL's template without its system prompt, which would triple the length of a question.
_CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def save_tiny(folder: Path, seed: int, model_class: Any, config: Any, *processors: Any) -> None:
    """Create a model with seeded random weights; save it with its tokenizer and processors."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = model_class(config)
    for part in (model, *processors):
        part.save_pretrained(folder)


def add_words(tokens: list[str], words: Iterable[str]) -> list[tuple[str, str]]:
    """Add words and their prefixes to the BPE vocabulary ``tokens``; return the new merges."""
    merges = []
    for word in words:
        for end in range(2, len(word) + 1):
            if word[:end] not in tokens:
                tokens.append(word[:end])
                merges.append((word[: end - 1], word[end - 1]))
    return merges


def tiny_qwen2_tokenizer() -> Qwen2Tokenizer:
    """Return a tokenizer like Qwen2's (byte-level BPE), with a small vocabulary."""
    tokens = sorted(bytes_to_unicode().values())
    merges = add_words(tokens, _CHAT_WORDS + _PHRASES + _PUNCTUATION)
    tokenizer = Qwen2Tokenizer(
        vocab={token: i for i, token in enumerate(tokens)},
        merges=merges,
        additional_special_tokens=list(_SPECIAL_TOKENS),
        chat_template=_CHAT_TEMPLATE,
    )
    tokenizer.eos_token = "<|im_end|>"  # set later, so that <|endoftext|> keeps the lower id
    return tokenizer


_RECIPES: dict[str, tuple[dict[str, Any], list[int], tuple[int, int]]] = {
    "qwen2_vl": (
        {
            "embed_dim": _WIDTH,
            "hidden_size": _WIDTH,
            "mlp_ratio": 2,
            "hidden_act": "gelu_pytorch_tanh",
            "patch_size": 14,
        },
        [4, 6, 6],
        (56, 56),
    ),
    "qwen2_5_vl": (
        {
            "hidden_size": _WIDTH,
            "intermediate_size": _WIDTH,
            "out_hidden_size": _WIDTH,
            "patch_size": 14,
            "window_size": 56,  # only for the first layer; the second attends to the whole image
            "fullatt_block_indexes": [1],
        },
        [4, 6, 6],
        (56, 112),
    ),
    "qwen3_vl": (
        {
            "hidden_size": _WIDTH // 2,
            "intermediate_size": _WIDTH,
            "out_hidden_size": _WIDTH,
            "patch_size": 16,
            "num_position_embeddings": 64,
            "deepstack_visual_indexes": [0],
        },
        [6, 5, 5],
        (64, 128),
    ),
}
"""Maps a ``model_type`` to the settings of the vision tower, the sections of M-RoPE, and two sides
(a, b): resized images have a * a to b * b pixels."""


def make_tiny_qwen(model_class: Any, folder: Path, seed: int) -> None:
    """Save a tiny random model of a Qwen-VL class, with a tokenizer and an image processor."""
    vision, mrope_section, (smallest, largest) = _RECIPES[model_class.config_class.model_type]
    tokenizer = tiny_qwen2_tokenizer()
    token_id = tokenizer.convert_tokens_to_ids
    config = model_class.config_class(
        text_config={
            "vocab_size": len(tokenizer),
            "hidden_size": _WIDTH,
            "intermediate_size": 2 * _WIDTH,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "head_dim": _WIDTH // 4,
            "max_position_embeddings": 2048,
            "initializer_range": _INITIALIZER_RANGE,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10_000.0,
                "mrope_section": mrope_section,
            },
            "bos_token_id": None,
            "eos_token_id": token_id("<|im_end|>"),
            "pad_token_id": token_id("<|endoftext|>"),
        },
        vision_config={
            "depth": 2,
            "num_heads": 4,
            "temporal_patch_size": 1,
            "spatial_merge_size": 2,
            "initializer_range": _INITIALIZER_RANGE,
            **vision,
        },
        image_token_id=token_id("<|image_pad|>"),
        video_token_id=token_id("<|video_pad|>"),
        vision_start_token_id=token_id("<|vision_start|>"),
        vision_end_token_id=token_id("<|vision_end|>"),
        tie_word_embeddings=True,
        initializer_range=_INITIALIZER_RANGE,
    )
    processor = Qwen2VLImageProcessorPil(
        patch_size=vision["patch_size"],
        temporal_patch_size=1,
        merge_size=2,
        size={"shortest_edge": smallest**2, "longest_edge": largest**2},
    )
    save_tiny(folder, seed, model_class, config, tokenizer, processor)


# Words of rendered questions: one token each, like in any pretrained tokenizer.
_WORDS = (
    "What", "Calculate", "Evaluate", " is", " the", " value", " of", " times", " +", " -", " (",
)  # fmt: skip


def make_tiny_gpt2(folder: Path, seed: int) -> None:
    """Save a GPT-2 model with two layers, for texts of up to 512 tokens."""
    tokenizer = tiny_gpt2_tokenizer()
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=512,
        n_embd=_WIDTH,
        n_layer=2,
        n_head=4,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        initializer_range=_INITIALIZER_RANGE,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    save_tiny(folder, seed, GPT2LMHeadModel, config, tokenizer)


def make_tiny_t5(folder: Path, seed: int) -> None:
    """Save a T5 model with two encoder layers and two decoder layers."""
    tokenizer = tiny_t5_tokenizer()
    config = T5Config(
        vocab_size=len(tokenizer),
        d_model=_WIDTH,
        d_kv=_WIDTH // 8,
        d_ff=2 * _WIDTH,
        num_layers=2,
        num_heads=8,  # with 4, learning to distinguish 99 from 9 takes twice as many steps
        dropout_rate=0.0,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        decoder_start_token_id=tokenizer.pad_token_id,
    )
    save_tiny(folder, seed, T5ForConditionalGeneration, config, tokenizer)


def tiny_gpt2_tokenizer() -> GPT2Tokenizer:
    """Return a tokenizer like GPT-2's, with tokens for all bytes and for a few words."""
    tokens = ["<|endoftext|>", *sorted(bytes_to_unicode().values())]
    merges = add_words(tokens, (word.replace(" ", "\u0120") for word in _WORDS))
    return GPT2Tokenizer(vocab={token: i for i, token in enumerate(tokens)}, merges=merges)


def tiny_t5_tokenizer() -> T5Tokenizer:
    """Return a tokenizer like T5's, with tokens for ASCII characters and for a few words."""
    names = ["<pad>", "</s>", "<unk>"]
    pieces = ["\u2581", *string.digits, *string.ascii_letters, *string.punctuation]
    pieces += [f"\u2581{word.strip()}" for word in _WORDS]
    scores = [*((name, 0.0) for name in names), *((piece, -1.0) for piece in pieces)]
    return T5Tokenizer(vocab=scores, extra_ids=0)
