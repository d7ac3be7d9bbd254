"""Tiny random models of the families for which the library has none, with their own classes."""

import re
import string
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from transformers import (
    AutoTokenizer,
    BartTokenizer,
    CLIPImageProcessorPil,
    Florence2Config,
    Florence2ForConditionalGeneration,
    Florence2Processor,
    GemmaTokenizer,
    GotOcr2ImageProcessorPil,
    InternVLConfig,
    InternVLForConditionalGeneration,
    InternVLProcessor,
    LlamaTokenizer,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaImageProcessorPil,
    PaliGemmaConfig,
    PaliGemmaForConditionalGeneration,
    SiglipImageProcessorPil,
)
from transformers.convert_slow_tokenizer import bytes_to_unicode

from mm_numeric.compat import VideoSettings, video_settings_alone
from mm_numeric.families.tiny import add_words, save_tiny, tiny_qwen2_tokenizer
from mm_numeric.families.yi_vl import SYSTEM_PROMPT, YiVLForConditionalGeneration

WIDTH, SIDE_PX, PATCH_PX = 64, 56, 14
IMAGE_TOKENS = (SIDE_PX // PATCH_PX // 2) ** 2  # patches, merged 2 x 2
_SPREAD = WIDTH**-0.5


def vision_settings(**more: Any) -> dict[str, Any]:
    """Return settings of a small CLIP or SigLIP vision tower; ``more`` are further ones."""
    return {
        "hidden_size": WIDTH,
        "intermediate_size": 2 * WIDTH,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "image_size": SIDE_PX,
        "patch_size": PATCH_PX,
        **more,
    }


# Florence-2

_BART_NAMED = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")  # in the order of BART's ids
_BART_LOCATIONS = [f"<loc_{level}>" for level in range(1000)]
_MARKS = ["<od>", "</od>", "<ocr>", "</ocr>", "<sep>", "<poly>", "</poly>"]
_BART_WORDS = ("Locate", "Ġthe", "Ġphrases", "Ġin", "Ġcaption", "Ġimage")
_STRIDES = (4, 2)


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
            "embed_dim": (WIDTH // 2, WIDTH),
            "num_heads": (2, 4),
            "num_groups": (2, 4),
            "window_size": 7,
            "drop_path_rate": 0.0,
            "projection_dim": WIDTH,
            "initializer_range": _SPREAD,
        },
        text_config={
            "model_type": "bart",
            "vocab_size": len(tokenizer),
            "d_model": WIDTH,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_ffn_dim": 2 * WIDTH,
            "decoder_ffn_dim": 2 * WIDTH,
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
    patches_a_side = SIDE_PX // _STRIDES[0] // _STRIDES[1]
    images = CLIPImageProcessorPil(
        size={"height": SIDE_PX, "width": SIDE_PX},
        do_center_crop=False,
        image_seq_length=patches_a_side**2 + 1,
    )
    processor = Florence2Processor(images, tokenizer, post_processor_config={"pure_text": {}})
    save_tiny(folder, seed, Florence2ForConditionalGeneration, config, processor)


def tiny_bart_tokenizer() -> BartTokenizer:
    """Return a tokenizer like Florence-2's (byte-level BPE), with a small vocabulary."""
    tokens = [*_BART_NAMED, *sorted(bytes_to_unicode().values())]
    merges = add_words(tokens, _BART_WORDS)
    tokenizer = BartTokenizer(
        vocab={token: i for i, token in enumerate(tokens)},
        merges=merges,
        extra_special_tokens={"image_token": "<image>"},
    )
    tokenizer.add_special_tokens({"additional_special_tokens": [*_BART_LOCATIONS, *_MARKS]})
    return tokenizer


# InternVL, and what chat models share

_VIDEO = {"video_processor_type": "InternVLVideoProcessor", "num_frames": 7}

CHAT_TEMPLATE = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n'}}"
    "{% for content in message['content'] %}{% if content['type'] == 'image' %}"
    "{{ '<IMG_CONTEXT>\n' }}{% else %}{{ content['text'] }}{% endif %}{% endfor %}"
    "{{'<|im_end|>\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{'<|im_start|>assistant\n' }}{% endif %}"
)


def make_tiny_internvl(folder: Path, seed: int) -> None:
    """Save an InternVL whose images are one to four tiles and, if several, a thumbnail."""
    tokenizer = chat_tokenizer(
        folder,
        ["<ref>", "</ref>", "<box>", "</box>"],
        start_image_token="<img>",
        end_image_token="</img>",
        context_image_token="<IMG_CONTEXT>",
        video_token="<video>",
    )
    images = GotOcr2ImageProcessorPil(
        size={"height": SIDE_PX, "width": SIDE_PX}, crop_to_patches=True, max_patches=4
    )
    with video_settings_alone():
        processor = InternVLProcessor(
            images,
            tokenizer,
            VideoSettings(_VIDEO),
            image_seq_length=IMAGE_TOKENS,
            chat_template=CHAT_TEMPLATE,
        )
    config = InternVLConfig(
        vision_config=vision_settings(image_size=[SIDE_PX] * 2, patch_size=[PATCH_PX] * 2),
        text_config={"model_type": "qwen2", **text_config(tokenizer)},
        image_token_id=tokenizer.context_image_token_id,
        image_seq_length=IMAGE_TOKENS,
        tie_word_embeddings=True,
    )
    save_tiny(folder, seed, InternVLForConditionalGeneration, config, processor)


def chat_tokenizer(folder: Path, tokens: list[str], **named: str) -> Any:
    """Return the tokenizer of tiny Qwen2-VLs with more special tokens, some of them with names."""
    tokenizer = tiny_qwen2_tokenizer()
    tokenizer.add_tokens([*tokens, *named.values()], special_tokens=True)
    tokenizer.pad_token = "<|endoftext|>"
    tokenizer.chat_template = None
    tokenizer.save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder, extra_special_tokens=named)


def text_config(tokenizer: Any) -> dict[str, Any]:
    """Return the settings of a tiny language model with a tokenizer's vocabulary."""
    return {
        "vocab_size": len(tokenizer),
        "hidden_size": WIDTH,
        "intermediate_size": 2 * WIDTH,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "max_position_embeddings": 2048,
        "initializer_range": _SPREAD,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }


# LLaVA-1.5 and Yi-VL

_LLAVA_WIDTH = 96
# About 1/sqrt(width): both overfit eight boxes within 60 steps at a learning rate of 2e-3 (three of
# three seeds).
_LLAVA_SPREAD = 0.1


def make_tiny_llava(folder: Path, seed: int) -> None:
    """Save a LLaVA model with half a million parameters, for images of 56 x 56 pixels."""
    tokenizer = _llama_tokenizer(["▁USER", "▁ASSISTANT", "▁Locate"], "<s>", "</s>")
    tokenizer.add_special_tokens({"pad_token": "<pad>", "additional_special_tokens": ["<image>"]})
    image_id = tokenizer.convert_tokens_to_ids("<image>")
    _save_llava(folder, seed, LlavaForConditionalGeneration, tokenizer, image_id)


def make_tiny_yi_vl(folder: Path, seed: int) -> None:
    """Save a Yi-VL model with half a million parameters. Its tokenizer has no image token."""
    text = f"{SYSTEM_PROMPT} ### Human Assistant Locate".replace(" ", "▁")
    words = re.findall("▁?[^▁。，]+[。，]?", text)
    ends = "<|startoftext|>", "<|endoftext|>"
    tokenizer = _llama_tokenizer(words, *ends, add_prefix_space=False)  # like Yi's
    tokenizer.pad_token = "<unk>"
    _save_llava(folder, seed, YiVLForConditionalGeneration, tokenizer, tokenizer.unk_token_id)


def _save_llava(folder: Path, seed: int, model_class: Any, tokenizer: Any, image_id: int) -> None:
    shared = {
        "hidden_size": _LLAVA_WIDTH,
        "intermediate_size": 2 * _LLAVA_WIDTH,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "initializer_range": _LLAVA_SPREAD,
    }
    config = LlavaConfig(
        vision_config={
            **shared,
            "model_type": "clip_vision_model",
            "projection_dim": _LLAVA_WIDTH,
            "image_size": SIDE_PX,
            "patch_size": PATCH_PX,
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
        image_seq_length=(SIDE_PX // PATCH_PX) ** 2,
        initializer_range=_LLAVA_SPREAD,
    )
    processor = LlavaImageProcessorPil(  # crops and does not pad, like those of the hub
        size={"shortest_edge": SIDE_PX}, crop_size={"height": SIDE_PX, "width": SIDE_PX}
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


# PaliGemma

_GEMMA_NAMED = ("<pad>", "<eos>", "<bos>", "<unk>", "<mask>")
_GEMMA_LOCATIONS = [f"<loc{level:04d}>" for level in range(1024)]
_GEMMA_WORDS = ("▁time", "▁is", "▁it", "What", "Locate", "detect")


def make_tiny_paligemma(folder: Path, seed: int, **changes: Any) -> None:
    """Save a PaliGemma model for images of 56 x 56 pixels (16 patches).

    ``changes`` are settings of the language model: ``model_type="gemma2"`` makes a PaliGemma 2.
    """
    tokenizer = tiny_gemma_tokenizer()
    ids = tokenizer.get_vocab()
    # Gemma multiplies its embeddings, which are tied to the head, by sqrt(width). With a standard
    # deviation of 1/sqrt(width), embedded tokens and logits start with a standard deviation of 1.
    config = PaliGemmaConfig(
        text_config={
            "model_type": "gemma",
            "vocab_size": len(tokenizer),
            "hidden_size": WIDTH,
            "intermediate_size": 2 * WIDTH,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
            "head_dim": WIDTH // 4,
            "max_position_embeddings": 2048,
            "initializer_range": _SPREAD,
            **changes,
        },
        vision_config=vision_settings(model_type="siglip_vision_model", vision_use_head=False),
        projection_dim=WIDTH,
        hidden_size=WIDTH,
        vocab_size=len(tokenizer),
        image_token_index=ids["<image>"],
        pad_token_id=ids["<pad>"],
        bos_token_id=ids["<bos>"],
        eos_token_id=ids["<eos>"],
    )
    processor = SiglipImageProcessorPil(
        size={"height": SIDE_PX, "width": SIDE_PX}, image_seq_length=(SIDE_PX // PATCH_PX) ** 2
    )
    save_tiny(folder, seed, PaliGemmaForConditionalGeneration, config, tokenizer, processor)


def tiny_gemma_tokenizer() -> GemmaTokenizer:
    """Return a tokenizer like PaliGemma's, with one token per digit and a small vocabulary."""
    tokenizer = plain_gemma_tokenizer()
    tokenizer.add_tokens(_GEMMA_LOCATIONS)  # not special tokens, like in the checkpoints
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    return tokenizer


def plain_gemma_tokenizer(**options: Any) -> GemmaTokenizer:
    """Return a tokenizer like Gemma's, without location and image tokens."""
    characters = ["\n", "▁", *map(chr, range(ord("!"), ord("~") + 1))]
    tokens = [*_GEMMA_NAMED, *(f"<0x{byte:02X}>" for byte in range(256)), *characters]
    merges = add_words(tokens, _GEMMA_WORDS)
    vocabulary = {token: i for i, token in enumerate(tokens)}
    return GemmaTokenizer(vocab=vocabulary, merges=merges, **options)
