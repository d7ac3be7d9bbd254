"""Create tiny random Kosmos-2 models, with the classes of the full-size models."""

import string
from pathlib import Path

import torch
from tiny_families import vision_settings
from transformers import (
    CLIPImageProcessorPil,
    Kosmos2Config,
    Kosmos2ForConditionalGeneration,
    Kosmos2Processor,
    XLMRobertaTokenizer,
)

from mm_numeric.families.tiny import save_tiny

_NAMED = ("<s>", "<pad>", "</s>", "<unk>")
_WORDS = ("What", "Locate", "time", "is", "it", "red", "blue", "the", "box")
_WIDTH, _SIDE_PX, _PATCH_PX = 64, 56, 14


def make_tiny_kosmos2(folder: Path, seed: int) -> None:
    """Save a Kosmos-2 model for images of 56 x 56 pixels (16 patches)."""
    images = CLIPImageProcessorPil(
        size={"height": _SIDE_PX, "width": _SIDE_PX}, do_center_crop=False
    )
    processor = Kosmos2Processor(images, _tiny_tokenizer())  # adds tokens to the tokenizer
    config = Kosmos2Config(
        text_config={
            "vocab_size": len(processor.tokenizer),
            "embed_dim": _WIDTH,
            "layers": 2,
            "ffn_dim": 2 * _WIDTH,
            "attention_heads": 4,
            "dropout": 0.0,
            "attention_dropout": 0.0,
            "init_std": _WIDTH**-0.5,
        },
        vision_config=vision_settings(_WIDTH, _SIDE_PX, _PATCH_PX, initializer_range=_WIDTH**-0.5),
        latent_query_num=Kosmos2Processor.num_image_tokens,
    )
    save_tiny(folder, seed, _model, config, processor)


def _model(config: Kosmos2Config) -> Kosmos2ForConditionalGeneration:
    """Return a model whose image features, of norm 1, are as large as embedded tokens."""
    model = Kosmos2ForConditionalGeneration(config)
    with torch.no_grad():
        model.image_to_text_projection.dense.weight.mul_(_WIDTH**0.5)
    return model


def _tiny_tokenizer() -> XLMRobertaTokenizer:
    """Return a tokenizer like Kosmos-2's, with tokens of characters and of a few words."""
    pieces = ["\u2581", "\u00e9", *string.digits, *string.ascii_letters, *string.punctuation]
    pieces += [f"\u2581{word}" for word in _WORDS]
    scores = [*((name, 0.0) for name in _NAMED), *((piece, -1.0) for piece in pieces)]
    return XLMRobertaTokenizer(vocab=[*scores, ("<mask>", 0.0)])
