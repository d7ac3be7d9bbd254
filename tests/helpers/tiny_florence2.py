"""Create tiny random Florence-2 models, with the classes of the full-size models."""

from pathlib import Path

from transformers import (
    BartTokenizer,
    CLIPImageProcessorPil,
    Florence2Config,
    Florence2ForConditionalGeneration,
    Florence2Processor,
)
from transformers.convert_slow_tokenizer import bytes_to_unicode

from mm_numeric.families.tiny import add_words, save_tiny

_NAMED = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")  # in the order of BART's ids
_LOCATIONS = [f"<loc_{level}>" for level in range(1000)]
_MARKS = ["<od>", "</od>", "<ocr>", "</ocr>", "<sep>", "<poly>", "</poly>"]
_WORDS = ("Locate", "Ġthe", "Ġphrases", "Ġin", "Ġcaption", "Ġimage")
_WIDTH, _SIDE_PX, _STRIDES = 64, 56, (4, 2)
_SPREAD = _WIDTH**-0.5


def make_tiny_florence2(folder: Path, seed: int) -> None:
    """Save a Florence-2 model for images of 56 x 56 pixels (49 patches and their mean)."""
    tokenizer = tiny_bart_tokenizer()
    ids = tokenizer.get_vocab()
    config = Florence2Config(
        vision_config={
            "depths": (1, 1),
            "patch_size": (7, 3),
            "patch_stride": _STRIDES,
            "patch_padding": (3, 1),
            "patch_prenorm": (False, True),
            "embed_dim": (_WIDTH // 2, _WIDTH),
            "num_heads": (2, 4),
            "num_groups": (2, 4),
            "window_size": 7,
            "drop_path_rate": 0.0,
            "projection_dim": _WIDTH,
            "initializer_range": _SPREAD,
        },
        text_config={
            "model_type": "bart",
            "vocab_size": len(tokenizer),
            "d_model": _WIDTH,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_ffn_dim": 2 * _WIDTH,
            "decoder_ffn_dim": 2 * _WIDTH,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "dropout": 0.0,
            "init_std": _SPREAD,
            "bos_token_id": ids["<s>"],
            "pad_token_id": ids["<pad>"],
            "eos_token_id": ids["</s>"],
            "decoder_start_token_id": ids["</s>"],
        },
        image_token_id=ids["<image>"],
    )
    patches_a_side = _SIDE_PX // _STRIDES[0] // _STRIDES[1]
    images = CLIPImageProcessorPil(
        size={"height": _SIDE_PX, "width": _SIDE_PX},
        do_center_crop=False,
        image_seq_length=patches_a_side**2 + 1,
    )
    processor = Florence2Processor(images, tokenizer, post_processor_config={"pure_text": {}})
    save_tiny(folder, seed, Florence2ForConditionalGeneration, config, processor)


def tiny_bart_tokenizer() -> BartTokenizer:
    """Return a tokenizer like Florence-2's (byte-level BPE), with a small vocabulary."""
    tokens = [*_NAMED, *sorted(bytes_to_unicode().values())]
    merges = add_words(tokens, _WORDS)
    tokenizer = BartTokenizer(
        vocab={token: i for i, token in enumerate(tokens)},
        merges=merges,
        extra_special_tokens={"image_token": "<image>"},
    )
    tokenizer.add_special_tokens({"additional_special_tokens": [*_LOCATIONS, *_MARKS]})
    return tokenizer
