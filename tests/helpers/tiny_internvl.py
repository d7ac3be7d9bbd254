"""Create tiny random InternVL models, with the classes of the full-size models."""

from pathlib import Path
from typing import Any

from transformers import (
    AutoTokenizer,
    GotOcr2ImageProcessorPil,
    InternVLConfig,
    InternVLForConditionalGeneration,
    InternVLProcessor,
)

from mm_numeric.compat import VideoSettings, video_settings_alone
from mm_numeric.families.tiny import save_tiny, tiny_qwen2_tokenizer

_WIDTH, _SIDE_PX, _PATCH_PX = 64, 56, 14
_IMAGE_TOKENS = (_SIDE_PX // _PATCH_PX // 2) ** 2  # patches, merged 2 x 2

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
        size={"height": _SIDE_PX, "width": _SIDE_PX}, crop_to_patches=True, max_patches=4
    )
    with video_settings_alone():
        processor = InternVLProcessor(
            images,
            tokenizer,
            VideoSettings(_VIDEO),
            image_seq_length=_IMAGE_TOKENS,
            chat_template=CHAT_TEMPLATE,
        )
    config = InternVLConfig(
        vision_config={
            "hidden_size": _WIDTH,
            "intermediate_size": 2 * _WIDTH,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "image_size": [_SIDE_PX, _SIDE_PX],
            "patch_size": [_PATCH_PX, _PATCH_PX],
        },
        text_config={"model_type": "qwen2", **text_config(tokenizer)},
        image_token_id=tokenizer.context_image_token_id,
        image_seq_length=_IMAGE_TOKENS,
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
        "hidden_size": _WIDTH,
        "intermediate_size": 2 * _WIDTH,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "max_position_embeddings": 2048,
        "initializer_range": _WIDTH**-0.5,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
