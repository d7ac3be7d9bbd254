"""Tiny random models for the family ``chat``, with the classes of the full-size models."""

from pathlib import Path

import torch
import transformers
from tiny_families import (
    CHAT_TEMPLATE,
    IMAGE_TOKENS,
    PATCH_PX,
    SIDE_PX,
    WIDTH,
    chat_tokenizer,
    make_tiny_internvl,
    plain_gemma_tokenizer,
    text_config,
    vision_settings,
)
from transformers import (
    DeepseekVLHybridConfig,
    DeepseekVLHybridForConditionalGeneration,
    DeepseekVLHybridImageProcessorPil,
    DeepseekVLHybridProcessor,
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Gemma3ImageProcessorPil,
    Gemma3Processor,
    Gemma4AudioFeatureExtractor,
    Gemma4Config,
    Gemma4ForConditionalGeneration,
    Gemma4ImageProcessorPil,
    Glm4vConfig,
    Glm4vForConditionalGeneration,
    Glm4vImageProcessorPil,
    Glm4vProcessor,
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    Idefics3ImageProcessorPil,
    Idefics3Processor,
    LlavaOnevisionConfig,
    LlavaOnevisionForConditionalGeneration,
    LlavaOnevisionImageProcessorPil,
    LlavaOnevisionProcessor,
    Qwen2VLImageProcessorPil,
    Qwen3_5Config,
    Qwen3_5ForConditionalGeneration,
    Qwen3VLProcessor,
)
from transformers.utils import is_torchvision_available

from mm_numeric.compat import VideoSettings, video_settings_alone
from mm_numeric.families.tiny import save_tiny

# Gemma 3's template for messages of the user and the assistant.
_GEMMA3_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "<start_of_turn>{{ 'model' if message['role'] == 'assistant' else message['role'] }}\n"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}<start_of_image>"
    "{% else %}{{ part['text'] | trim }}{% endif %}{% endfor %}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
_IDEFICS3_TEMPLATE = (
    "<|im_start|>{% for message in messages %}{{message['role'].capitalize()}}"
    "{% if message['content'][0]['type'] == 'image' %}{{':'}}{% else %}{{': '}}{% endif %}"
    "{% for line in message['content'] %}{% if line['type'] == 'text' %}{{line['text']}}"
    "{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>\n"
    "{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
# Gemma 4's and Qwen3.5's, which write an empty thought before an answer without thinking.
_GEMMA4_TEMPLATE = (
    "{{ bos_token }}{% set thought = '' if enable_thinking | default(false) else "
    "'<|channel>thought\n<channel|>' %}{% for message in messages %}"
    "{% set is_model = message['role'] == 'assistant' %}"
    "<|turn>{{ 'model' if is_model else message['role'] }}\n{{ thought if is_model }}"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}<|image|>"
    "{% else %}{{ part['text'] | trim }}{% endif %}{% endfor %}<turn|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|turn>model\n{{ thought }}{% endif %}"
)
_QWEN3_5_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ '<think>\n\n</think>\n\n' if message['role'] == 'assistant' }}"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{{ '<think>\n' if enable_thinking | default(true) else '<think>\n\n</think>\n\n' }}{% endif %}"
)


def make_tiny_gemma3(folder: Path, seed: int) -> None:
    """Save a Gemma 3 model for images of 56 x 56 pixels (16 patches, 4 image tokens)."""
    tokenizer = plain_gemma_tokenizer(
        extra_special_tokens={
            "image_token": "<image_soft_token>",
            "boi_token": "<start_of_image>",
            "eoi_token": "<end_of_image>",
        }
    )
    tokenizer.add_tokens(["<start_of_turn>", "<end_of_turn>"], special_tokens=True)
    ids = tokenizer.get_vocab()
    spread = WIDTH**-0.5  # as of PaliGemma
    config = Gemma3Config(
        text_config={
            "vocab_size": len(tokenizer),
            "hidden_size": WIDTH,
            "intermediate_size": 2 * WIDTH,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
            "head_dim": WIDTH // 4,
            "query_pre_attn_scalar": WIDTH // 4,
            "max_position_embeddings": 2048,
            "initializer_range": spread,
            "layer_types": ["sliding_attention", "full_attention"],
            "pad_token_id": ids["<pad>"],
            "bos_token_id": ids["<bos>"],
            "eos_token_id": ids["<eos>"],
        },
        vision_config=vision_settings(vision_use_head=False),
        mm_tokens_per_image=IMAGE_TOKENS,
        image_token_index=ids["<image_soft_token>"],
        boi_token_index=ids["<start_of_image>"],
        eoi_token_index=ids["<end_of_image>"],
        initializer_range=spread,
    )
    images = Gemma3ImageProcessorPil(size={"height": SIDE_PX, "width": SIDE_PX})
    processor = Gemma3Processor(
        images, tokenizer, chat_template=_GEMMA3_TEMPLATE, image_seq_length=IMAGE_TOKENS
    )
    save_tiny(folder, seed, _gemma3, config, processor)


def _gemma3(config: Gemma3Config) -> Gemma3ForConditionalGeneration:
    """Create a model that sees its images: transformers initialises the projector with zeros."""
    model = Gemma3ForConditionalGeneration(config)
    torch.nn.init.normal_(model.model.multi_modal_projector.mm_input_projection_weight, std=0.1)
    return model


def make_tiny_idefics3(folder: Path, seed: int) -> None:
    """Save an Idefics3, which splits images into rows and columns of tiles, each with a token."""
    tiles = [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)]
    special = ["<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>"]
    tokenizer = chat_tokenizer(folder, [*special, *tiles])
    processor = Idefics3Processor(
        Idefics3ImageProcessorPil(
            size={"longest_edge": 2 * SIDE_PX}, max_image_size={"longest_edge": SIDE_PX}
        ),
        tokenizer,
        image_seq_len=IMAGE_TOKENS,
        chat_template=_IDEFICS3_TEMPLATE,
    )
    config = Idefics3Config(
        vision_config=vision_settings(),
        text_config={"model_type": "llama", **text_config(tokenizer)},
        image_token_id=processor.image_token_id,
        scale_factor=2,
        tie_word_embeddings=True,
    )
    save_tiny(folder, seed, Idefics3ForConditionalGeneration, config, processor)


def make_tiny_llava_onevision(folder: Path, seed: int) -> None:
    """Save a LLaVA-OneVision, which pads tiles and adds a token after each row of patches."""
    tokenizer = chat_tokenizer(folder, ["<image>", "<video>"])
    tiles = [[SIDE_PX, 2 * SIDE_PX], [2 * SIDE_PX, SIDE_PX], [2 * SIDE_PX, 2 * SIDE_PX]]
    images = LlavaOnevisionImageProcessorPil(
        size={"height": SIDE_PX, "width": SIDE_PX}, image_grid_pinpoints=tiles
    )
    with video_settings_alone():
        processor = LlavaOnevisionProcessor(
            images,
            tokenizer,
            VideoSettings(video_processor_type="LlavaOnevisionVideoProcessor"),
            num_image_tokens=(SIDE_PX // PATCH_PX) ** 2,
            vision_feature_select_strategy="full",
            chat_template=CHAT_TEMPLATE.replace("<IMG_CONTEXT>", "<image>"),
        )
    config = LlavaOnevisionConfig(
        vision_config=vision_settings(model_type="siglip_vision_model", vision_use_head=False),
        text_config={"model_type": "qwen2", **text_config(tokenizer)},
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        video_token_index=tokenizer.convert_tokens_to_ids("<video>"),
        image_grid_pinpoints=tiles,
        vision_feature_select_strategy="full",
        tie_word_embeddings=True,
    )
    save_tiny(folder, seed, LlavaOnevisionForConditionalGeneration, config, processor)


def make_tiny_glm4v(folder: Path, seed: int) -> None:
    """Save a GLM-4.1V, which resizes images to multiples of 28 pixels and has M-RoPE."""
    begin, end = "<|begin_of_image|>", "<|end_of_image|>"
    videos = ["<|begin_of_video|>", "<|video|>", "<|end_of_video|>"]
    tokenizer = chat_tokenizer(folder, [begin, "<|image|>", end, *videos])
    images = Glm4vImageProcessorPil(
        size={"shortest_edge": SIDE_PX**2, "longest_edge": 4 * SIDE_PX**2},
        patch_size=PATCH_PX,
        merge_size=2,
    )
    template = CHAT_TEMPLATE.replace("<IMG_CONTEXT>", f"{begin}<|image|>{end}")
    with video_settings_alone():
        video = VideoSettings(video_processor_type="Glm4vVideoProcessor")
        processor = Glm4vProcessor(images, tokenizer, video, chat_template=template)
    token_id = tokenizer.convert_tokens_to_ids
    rope = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [2, 3, 3]}
    config = Glm4vConfig(
        vision_config={
            "depth": 2,
            "num_heads": 4,
            "hidden_size": WIDTH,
            "intermediate_size": 2 * WIDTH,
            "out_hidden_size": WIDTH,
            "image_size": SIDE_PX,
            "patch_size": PATCH_PX,
            "spatial_merge_size": 2,
        },
        text_config={
            **text_config(tokenizer),
            "rope_parameters": {**rope, "partial_rotary_factor": 1.0},
        },
        image_token_id=token_id("<|image|>"),
        image_start_token_id=token_id(begin),
        image_end_token_id=token_id(end),
        video_start_token_id=token_id(videos[0]),
        video_token_id=token_id(videos[1]),
        video_end_token_id=token_id(videos[2]),
        tie_word_embeddings=True,
    )
    save_tiny(folder, seed, Glm4vForConditionalGeneration, config, processor)


def make_tiny_gemma4(folder: Path, seed: int) -> None:
    """Save a Gemma 4, whose images have as many tokens as their shape needs."""
    from transformers import Gemma4Processor  # imports torchvision in transformers 5.15

    named = {
        "image_token": "<|image|>",
        "boi_token": "<|image>",
        "eoi_token": "<image|>",
        "audio_token": "<|audio|>",
        "boa_token": "<|audio>",
        "eoa_token": "<audio|>",
    }
    tokenizer = plain_gemma_tokenizer(extra_special_tokens=named)
    more = ["<|turn>", "<turn|>", "<|channel>", "<channel|>", "<|video|>"]
    tokenizer.add_tokens(more, special_tokens=True)
    images = Gemma4ImageProcessorPil(patch_size=PATCH_PX, max_soft_tokens=70, pooling_kernel_size=2)
    with video_settings_alone():
        processor = Gemma4Processor(
            Gemma4AudioFeatureExtractor(),
            images,
            tokenizer,
            VideoSettings(video_processor_type="Gemma4VideoProcessor"),
            chat_template=_GEMMA4_TEMPLATE,
        )
    ids = tokenizer.get_vocab()
    heads = {"num_attention_heads": 4, "head_dim": WIDTH // 4}
    config = Gemma4Config(
        text_config={
            **text_config(tokenizer),
            **heads,
            "num_key_value_heads": 1,
            "global_head_dim": WIDTH // 4,
            "vocab_size_per_layer_input": len(tokenizer),
            "hidden_size_per_layer_input": 8,
            "layer_types": ["sliding_attention", "full_attention"],
            "use_bidirectional_attention": "vision",
        },
        vision_config={
            **heads,
            "num_key_value_heads": 4,
            "hidden_size": WIDTH,
            "intermediate_size": 2 * WIDTH,
            "num_hidden_layers": 2,
            "patch_size": PATCH_PX,
            "pooling_kernel_size": 2,
            "position_embedding_size": 256,
        },
        image_token_id=ids["<|image|>"],
        boi_token_id=ids["<|image>"],
        eoi_token_id=ids["<image|>"],
        video_token_id=ids["<|video|>"],
        audio_token_id=ids["<|audio|>"],
        boa_token_id=ids["<|audio>"],
        eoa_token_index=ids["<audio|>"],
    )
    save_tiny(folder, seed, Gemma4ForConditionalGeneration, config, processor)


def make_tiny_qwen3_5(folder: Path, seed: int) -> None:
    """Save a Qwen3.5, whose first layer has linear attention."""
    tokenizer = chat_tokenizer(folder, ["<think>", "</think>"])
    images = Qwen2VLImageProcessorPil(
        patch_size=16,
        temporal_patch_size=1,
        merge_size=2,
        size={"shortest_edge": 64**2, "longest_edge": 128**2},
    )
    with video_settings_alone():
        video = VideoSettings(video_processor_type="Qwen3VLVideoProcessor")
        processor = Qwen3VLProcessor(images, tokenizer, video, chat_template=_QWEN3_5_TEMPLATE)
    token_id = tokenizer.convert_tokens_to_ids
    config = Qwen3_5Config(
        text_config={
            **text_config(tokenizer),
            "head_dim": WIDTH // 4,
            "layer_types": ["linear_attention", "full_attention"],
            "linear_key_head_dim": WIDTH // 4,
            "linear_value_head_dim": WIDTH // 4,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10_000.0,
                "mrope_section": [2, 3, 3],
                "partial_rotary_factor": 1.0,
            },
        },
        vision_config={
            "depth": 2,
            "num_heads": 4,
            "hidden_size": WIDTH,
            "intermediate_size": 2 * WIDTH,
            "out_hidden_size": WIDTH,
            "patch_size": 16,
            "temporal_patch_size": 1,
            "num_position_embeddings": 64,
        },
        image_token_id=token_id("<|image_pad|>"),
        video_token_id=token_id("<|video_pad|>"),
        vision_start_token_id=token_id("<|vision_start|>"),
        vision_end_token_id=token_id("<|vision_end|>"),
        tie_word_embeddings=True,
    )
    save_tiny(folder, seed, Qwen3_5ForConditionalGeneration, config, processor)


def make_tiny_deepseek_vl_hybrid(folder: Path, seed: int) -> None:
    """Save a DeepSeek-VL of 7B parameters, which sees each image in two sizes."""
    tokenizer = chat_tokenizer(folder, [], image_token="<image_placeholder>")
    side_px = 128  # of the larger image
    processor = DeepseekVLHybridProcessor(
        DeepseekVLHybridImageProcessorPil(
            size={"height": SIDE_PX, "width": SIDE_PX},
            high_res_size={"height": side_px, "width": side_px},
        ),
        tokenizer,
        chat_template=CHAT_TEMPLATE.replace("<IMG_CONTEXT>", "<image_placeholder>"),
        num_image_tokens=(SIDE_PX // PATCH_PX) ** 2,
    )
    config = DeepseekVLHybridConfig(
        vision_config=vision_settings(model_type="siglip_vision_model", vision_use_head=False),
        high_res_vision_config={
            "hidden_size": WIDTH // 2,
            "mlp_dim": WIDTH,
            "output_channels": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "global_attn_indexes": [0, 1],
            "image_size": side_px,
            "patch_size": 16,
            "window_size": 4,
        },
        text_config={"model_type": "llama", **text_config(tokenizer)},
        image_token_id=processor.image_token_id,
    )
    save_tiny(folder, seed, DeepseekVLHybridForConditionalGeneration, config, processor)


CHATS = {
    "gemma3": make_tiny_gemma3,
    "internvl": make_tiny_internvl,
    "idefics3": make_tiny_idefics3,
    "llava_onevision": make_tiny_llava_onevision,
    "glm4v": make_tiny_glm4v,
    "gemma4": make_tiny_gemma4,
    "qwen3_5": make_tiny_qwen3_5,
    "deepseek_vl_hybrid": make_tiny_deepseek_vl_hybrid,
}
"""Functions of a folder and a seed, by ``model_type``."""


# Models that are newer than the tested transformers (5.23), which scripts/test_versions tests. The
# image processors of Apertus 1.5 and Inkling 2 Loop need torchvision.


def make_tiny_hy_v4_vl(folder: Path, seed: int) -> None:
    """Save an HY-V4-VL (Hy4), with a token after each row of patches and sparse attention."""
    tokenizer = chat_tokenizer(folder, [])
    images = transformers.HYV4VLImageProcessorPil(
        size={"shortest_edge": 64**2, "longest_edge": 128**2}
    )
    with video_settings_alone():
        processor = transformers.HYV4VLProcessor(
            images,
            tokenizer,
            VideoSettings(video_processor_type="HYV4VLVideoProcessor"),
            chat_template=CHAT_TEMPLATE.replace("<IMG_CONTEXT>", "<|image_pad|>"),
        )
    text = text_config(tokenizer)
    rope = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [2, 3, 3]}
    config = transformers.HYV4VLConfig(
        text_config={
            **{name: text[name] for name in text.keys() - {"num_key_value_heads", "head_dim"}},
            "moe_intermediate_size": 32,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "q_lora_rank": 16,
            "kv_lora_rank": 16,
            "qk_nope_head_dim": 8,
            "qk_rope_head_dim": 16,
            "v_head_dim": 16,
            "hc_mult": 2,
            "rope_parameters": rope,
            "index_topk": 64,
            "index_head_dim": 32,
            "index_n_heads": 2,
        },
        vision_config={
            "hidden_size": WIDTH,
            "intermediate_size": 2 * WIDTH,
            "out_hidden_size": WIDTH,
            "num_attention_heads": 4,
            "num_hidden_layers": 2,
            "max_image_size": 128,
        },
        image_token_id=processor.image_token_id,
        video_token_id=processor.video_token_id,
    )
    save_tiny(folder, seed, transformers.HYV4VLForConditionalGeneration, config, processor)


def make_tiny_inkling2_loop(folder: Path, seed: int) -> None:
    """Save an Inkling 2 Loop, some of whose layers run twice."""
    token = "<|unused_200054|>"
    tokenizer = chat_tokenizer(folder, [], image_token=token)
    processor = transformers.Inkling2Processor(
        transformers.Inkling2ImageProcessor(),
        tokenizer,
        chat_template=CHAT_TEMPLATE.replace("<IMG_CONTEXT>", token),
    )
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": WIDTH // 4}
    config = transformers.Inkling2LoopConfig(
        text_config={
            **text_config(tokenizer),
            **heads,
            **{f"swa_{name}": value for name, value in heads.items()},
            "unpadded_vocab_size": len(tokenizer),
            "num_hidden_layers": 6,
            "sliding_window_size": 32,
            "d_rel": 8,
            "rel_extent": 64,
            "moe_intermediate_size": 32,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "loop_layer_index_start": 2,
            "loop_layer_index_end": 4,
            "loop_num_passes": 2,
            "loop_gate_rank": 8,
            "n_layers_per_attn_res_block": 2,
        },
        vision_config={
            "model_type": "inkling2_vision",
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "hidden_size": WIDTH,
            "projection_hidden_dim": 2 * WIDTH,
            "text_hidden_size": WIDTH,
        },
        image_token_id=processor.image_token_id,
    )
    save_tiny(folder, seed, transformers.Inkling2LoopForConditionalGeneration, config, processor)


def make_tiny_apertus1p5(folder: Path, seed: int) -> None:
    """Save an Apertus 1.5, whose image tokens are discrete codes, with a header and row ends."""
    codes, sounds = 32, 8
    named = {"image_token": "<|image|>", "audio_token": "<|audio|>", "boi_token": "<|img_start|>"}
    named |= {"eoi_token": "<|img_end|>", "image_wrapper_token": "<|img_token_start|>"}
    named |= {"eol_token": "<|img_end_of_row|>", "boa_token": "<|audio_start|>"}
    tokenizer = chat_tokenizer(folder, [], **named, eoa_token="<|audio_end|>")
    first = len(tokenizer)
    tokenizer.add_tokens([f"<|code {i}|>" for i in range(codes + sounds)], special_tokens=True)
    processor = transformers.Apertus1p5Processor(
        transformers.Apertus1p5ImageProcessor(size={"min_pixels": 64**2, "max_pixels": 128**2}),
        transformers.WavTokenizerFeatureExtractor(),
        tokenizer,
        chat_template=CHAT_TEMPLATE.replace("<IMG_CONTEXT>", "<|image|>"),
    )
    config = transformers.Apertus1p5Config(
        text_config={**text_config(tokenizer), "hidden_act": "xielu"},
        vision_config={
            "codebook_size": codes,
            "embed_dim": 16,
            "latent_channels": 16,
            "base_channels": 32,
            "num_res_blocks": 1,
        },
        audio_config={"codebook_size": sounds},
        image_token_id=processor.image_token_id,
        audio_token_id=processor.audio_token_id,
        image_token_offset=first,
        audio_token_offset=first + codes,
    )
    save_tiny(folder, seed, transformers.Apertus1p5ForConditionalGeneration, config, processor)


def _is_there(name: str) -> bool:
    """Return True if this transformers has the model and what its image processor needs."""
    needs_torchvision = name != "HYV4VL"
    return hasattr(transformers, f"{name}ForConditionalGeneration") and (
        is_torchvision_available() or not needs_torchvision
    )


_MODELS = {
    "HYV4VL": make_tiny_hy_v4_vl,
    "Inkling2Loop": make_tiny_inkling2_loop,
    "Apertus1p5": make_tiny_apertus1p5,
}

NEWER_CHATS = {name: make for name, make in _MODELS.items() if _is_there(name)}
"""Functions of a folder and a seed, by the name of the model's class in transformers."""
