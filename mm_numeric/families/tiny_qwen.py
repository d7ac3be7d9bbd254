"""Create tiny random Qwen2-VL, Qwen2.5-VL and Qwen3-VL models with a million parameters.

The standard deviation of the initial weights is 0.08, about 1/sqrt(width). With the usual 0.02, a
tiny Qwen2-VL ignored the image for more than 1,000 training steps; with 0.08, for at most 400.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import Qwen2VLImageProcessorPil

from mm_numeric.families.tiny import save_tiny, tiny_qwen2_tokenizer

_INITIALIZER_RANGE = 0.08
_WIDTH = 128


@dataclass(frozen=True)
class _Recipe:
    """The settings in which the tiny Qwen2-VL, Qwen2.5-VL and Qwen3-VL models differ."""

    vision: Mapping[str, Any]
    mrope_section: list[int]
    sides_px: tuple[int, int]
    """(a, b): resized images have a * a to b * b pixels."""


_RECIPES = {
    "qwen2_vl": _Recipe(
        {
            "embed_dim": _WIDTH,
            "hidden_size": _WIDTH,
            "mlp_ratio": 2,
            "hidden_act": "gelu_pytorch_tanh",
            "patch_size": 14,
        },
        mrope_section=[4, 6, 6],
        sides_px=(56, 56),
    ),
    "qwen2_5_vl": _Recipe(
        {
            "hidden_size": _WIDTH,
            "intermediate_size": _WIDTH,
            "out_hidden_size": _WIDTH,
            "patch_size": 14,
            "window_size": 56,  # of the first layer; the second attends to the whole image
            "fullatt_block_indexes": [1],
        },
        mrope_section=[4, 6, 6],
        sides_px=(56, 112),
    ),
    "qwen3_vl": _Recipe(
        {
            "hidden_size": _WIDTH // 2,
            "intermediate_size": _WIDTH,
            "out_hidden_size": _WIDTH,
            "patch_size": 16,
            "num_position_embeddings": 64,
            "deepstack_visual_indexes": [0],
        },
        mrope_section=[6, 5, 5],
        sides_px=(64, 128),
    ),
}


def make_tiny_qwen(model_class: Any, folder: Path, seed: int) -> None:
    """Save a tiny random model of a Qwen-VL class, with a tokenizer and an image processor."""
    recipe = _RECIPES[model_class.config_class.model_type]
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
                "mrope_section": recipe.mrope_section,
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
            **recipe.vision,
        },
        image_token_id=token_id("<|image_pad|>"),
        video_token_id=token_id("<|video_pad|>"),
        vision_start_token_id=token_id("<|vision_start|>"),
        vision_end_token_id=token_id("<|vision_end|>"),
        tie_word_embeddings=True,
        initializer_range=_INITIALIZER_RANGE,
    )
    smallest, largest = recipe.sides_px
    processor = Qwen2VLImageProcessorPil(
        patch_size=recipe.vision["patch_size"],
        temporal_patch_size=1,
        merge_size=2,
        size={"shortest_edge": smallest**2, "longest_edge": largest**2},
    )
    save_tiny(folder, seed, model_class, config, tokenizer, processor)
