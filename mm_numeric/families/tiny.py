"""Helpers that create tiny, randomly initialised models, so that tests run offline."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen2Tokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

# The special tokens of Qwen, in the order of their ids.
_SPECIAL_TOKENS = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>",
    "<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>",
    "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>",
)  # fmt: skip
_WORDS = ("user", "assistant", "What", "Ġtime", "Ġis", "Ġit", "Locate")
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


def vision_settings(width: int, side_px: int, patch_px: int, **more: Any) -> dict[str, Any]:
    """Return settings of a small CLIP or SigLIP vision tower; ``more`` are further ones."""
    return {
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "image_size": side_px,
        "patch_size": patch_px,
        **more,
    }


def add_words(tokens: list[str], words: Iterable[str]) -> list[tuple[str, str]]:
    """Add words to a BPE vocabulary ``tokens``; return the BPE merges, such as (pl, u)."""
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
    merges = add_words(tokens, _WORDS + _PHRASES + _PUNCTUATION)
    tokenizer = Qwen2Tokenizer(
        vocab={token: i for i, token in enumerate(tokens)},
        merges=merges,
        additional_special_tokens=list(_SPECIAL_TOKENS),
        chat_template=_CHAT_TEMPLATE,
    )
    tokenizer.eos_token = "<|im_end|>"  # set later, so that <|endoftext|> keeps the lower id
    return tokenizer
