"""Small models of the real classes, made from code, so that everything runs offline.

They are saved with ``save_pretrained`` and loaded like any checkpoint.
"""

from pathlib import Path

import torch
from tokenizers.pre_tokenizers import ByteLevel
from transformers import (
    Qwen2Tokenizer,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen2VLImageProcessorPil,
)

_SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
_WORDS = ("user", "assistant", "What", "Ġtime", "Ġis", "Ġit")

# Qwen2-VL's own template without its system prompt, which would triple the length of a question.
_CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

# Weights are drawn about as wide as 1/sqrt(width). At the usual 0.02 this small a model sits on a
# plateau (answers without looking) for more than 1,000 steps; at 0.08 every seed tried left it
# within 400, at a learning rate of 1e-3 with 50 steps of warm-up.
_INITIALIZER_RANGE = 0.08
_WIDTH = 128


def make_tiny_qwen2_vl(folder: Path, seed: int) -> None:
    """Save a Qwen2-VL of a million parameters that sees pictures at 56 x 56 pixels.

    Args:
        folder: Where ``from_pretrained`` will find it.
        seed: Of the weights.
    """
    tokenizer = tiny_qwen2_tokenizer()
    ids = {token: tokenizer.convert_tokens_to_ids(token) for token in _SPECIAL_TOKENS}
    config = Qwen2VLConfig(
        text_config={
            "vocab_size": len(tokenizer),
            "hidden_size": _WIDTH,
            "intermediate_size": 2 * _WIDTH,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "max_position_embeddings": 2048,
            "initializer_range": _INITIALIZER_RANGE,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10_000.0,
                "mrope_section": [4, 6, 6],
            },
            "bos_token_id": None,
            "eos_token_id": ids["<|im_end|>"],
            "pad_token_id": ids["<|endoftext|>"],
        },
        vision_config={
            "depth": 2,
            "embed_dim": _WIDTH,
            "hidden_size": _WIDTH,
            "num_heads": 4,
            "mlp_ratio": 2,
            "hidden_act": "gelu_pytorch_tanh",
            "patch_size": 14,
            "temporal_patch_size": 1,
            "spatial_merge_size": 2,
            "initializer_range": _INITIALIZER_RANGE,
        },
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=True,
        initializer_range=_INITIALIZER_RANGE,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2VLForConditionalGeneration(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    Qwen2VLImageProcessorPil(
        patch_size=14,
        temporal_patch_size=1,
        merge_size=2,
        size={"shortest_edge": 56 * 56, "longest_edge": 56 * 56},
    ).save_pretrained(folder)


def tiny_qwen2_tokenizer() -> Qwen2Tokenizer:
    """Return a byte-level tokenizer that splits text as Qwen2's does, each digit by itself.

    Its tokens are the 256 bytes, the beginnings of a few words, and the family's special tokens.
    """
    tokens = sorted(ByteLevel.alphabet())
    merges = []
    for word in _WORDS:
        for end in range(2, len(word) + 1):
            if word[:end] not in tokens:
                tokens.append(word[:end])
                merges.append((word[: end - 1], word[end - 1]))
    return Qwen2Tokenizer(
        vocab={token: i for i, token in enumerate(tokens)},
        merges=merges,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=list(_SPECIAL_TOKENS),
        chat_template=_CHAT_TEMPLATE,
    )
