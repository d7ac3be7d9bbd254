"""Qwen2.5-VL with random weights, a batch for it, and the operations of a training step.

Axes    t tokens of prompt and answer, p patches of the image
"""

from dataclasses import dataclass
from typing import Any

import torch
from _bench import Setting
from torch import Tensor, nn
from transformers import AutoModelForImageTextToText, Qwen2_5_VLConfig

from mm_numeric.numbers.spans import IGNORE_INDEX


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The tokens of one training row, and the size of its image."""

    prompt: int
    answer: int
    image_side: int
    """Width and height of the image in merged patches, one token each."""

    digits: float
    """Share of the answer's tokens that are digits."""


ROW = Workload(prompt=976, answer=24, image_side=30, digits=0.5)
TOY_ROW = Workload(prompt=40, answer=8, image_side=4, digits=0.5)


def qwen2_5_vl(toy: bool) -> Qwen2_5_VLConfig:
    """Return the config of Qwen2.5-VL-7B-Instruct, or a tiny one of the same structure."""
    width, vocabulary = (64, 1000) if toy else (3584, 152064)
    special = vocabulary - 16 if toy else 151652  # <|vision_start|>; three others follow
    return Qwen2_5_VLConfig(
        text_config={
            "vocab_size": vocabulary,
            "hidden_size": width,
            "intermediate_size": 128 if toy else 18944,
            "num_hidden_layers": 2 if toy else 28,
            "num_attention_heads": 4 if toy else 28,
            "num_key_value_heads": 2 if toy else 4,
            "max_position_embeddings": 128000,
            "rms_norm_eps": 1e-6,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e6,
                "mrope_section": [2, 3, 3] if toy else [16, 24, 24],
            },
            "bos_token_id": None if toy else 151643,
            "eos_token_id": None if toy else 151645,
        },
        vision_config={
            "depth": 2 if toy else 32,
            "hidden_size": 32 if toy else 1280,
            "intermediate_size": 64 if toy else 3420,
            "num_heads": 2 if toy else 16,
            "out_hidden_size": width,
            "patch_size": 14,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "window_size": 112,
            "fullatt_block_indexes": [1] if toy else [7, 15, 23, 31],
        },
        vision_start_token_id=special,
        vision_end_token_id=special + 1,
        image_token_id=special + 3,
        video_token_id=special + 4,
        tie_word_embeddings=False,
    )


def make_model(config: Qwen2_5_VLConfig, device: str) -> Any:
    """Return a model with random bf16 weights, created on the device."""
    torch.manual_seed(0)
    with torch.device(device):
        return AutoModelForImageTextToText.from_config(
            config, dtype=torch.bfloat16, attn_implementation="sdpa"
        )


def make_batch(config: Qwen2_5_VLConfig, workload: Workload) -> dict[str, Tensor]:
    """Return the model inputs and labels [1, t] of one row with an image, on the CPU."""
    torch.manual_seed(0)
    images = workload.image_side**2
    text = config.vision_start_token_id - 10  # labels without the special tokens
    sizes = {"vocabulary": text, "digits": 0.0}
    asked = Setting(rows=workload.prompt - images - 2, **sizes).labels()
    sizes = {"vocabulary": text, "digits": workload.digits}
    answer = Setting(rows=workload.answer, **sizes).labels()
    image = torch.full((images,), config.image_token_id)
    start, end = (
        torch.tensor([token])
        for token in (config.vision_start_token_id, config.vision_end_token_id)
    )
    ids = torch.cat([start, image, end, asked, answer])
    vision = config.vision_config
    patches = vision.spatial_merge_size * workload.image_side
    values = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
    return {
        "input_ids": ids[None],
        "attention_mask": torch.ones_like(ids)[None],
        "mm_token_type_ids": (ids == config.image_token_id).int()[None],
        "pixel_values": torch.randn(patches**2, values),
        "image_grid_thw": torch.tensor([[1, patches, patches]]),
        "labels": torch.cat([torch.full((workload.prompt,), IGNORE_INDEX), answer])[None],
    }


@torch.no_grad()
def step_flops(model: Any, batch: dict[str, Tensor], head_positions: int) -> float:
    """Return the floating-point operations of a training step with LoRA on the language model.

    Counts the forward and the backward pass of the linear layers and the causal attention of the
    language model, and the forward pass of the linear layers of the vision tower; nothing that
    activation checkpointing computes again. The weights are frozen, so the backward pass takes as
    many operations as the forward pass. ``batch`` has one row. ``head_positions`` is the number of
    positions at which the output head is computed. The attention of the vision tower, most of it in
    windows, is not counted.
    """
    counts = {True: 0.0, False: 0.0}
    head = model.get_output_embeddings()

    def hook(is_vision: bool) -> Any:
        def count(layer: nn.Linear, inputs: tuple[Tensor], _: Tensor) -> None:
            counts[is_vision] += 2.0 * inputs[0].numel() * layer.out_features

        return count

    handles = [
        module.register_forward_hook(hook(".visual." in f".{name}."))
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and module is not head
    ]
    device = next(model.parameters()).device
    inputs = {name: tensor.to(device) for name, tensor in batch.items() if name != "labels"}
    inputs["pixel_values"] = inputs["pixel_values"].to(torch.bfloat16)
    model(**inputs, logits_to_keep=1)
    for handle in handles:
        handle.remove()
    text, tokens = model.config.text_config, batch["input_ids"].shape[1]
    attention = 2.0 * tokens**2 * text.hidden_size * text.num_hidden_layers
    language = counts[False] + attention + 2.0 * head_positions * head.weight.numel()
    return 2 * language + counts[True]


def repeated(batch: dict[str, Tensor], rows: int) -> dict[str, Tensor]:
    """Return a batch with the row of ``batch`` several times."""
    return {name: value.repeat(rows, *[1] * (value.ndim - 1)) for name, value in batch.items()}
