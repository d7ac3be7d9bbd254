"""Tiny language models of many architectures, by their ``model_type`` in transformers."""

import functools

import torch
from tiny_models import ROOT
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from mm_numeric.families.tiny import tiny_gpt2_tokenizer

SIZES = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 8,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
    "pad_token_id": 0,
}  # fmt: skip
LATENT = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8}
EXPERTS = {
    "num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16,
}  # fmt: skip
LINEAR = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 8,
    "linear_value_head_dim": 8, "layer_types": ["linear_attention", "full_attention"],
}  # fmt: skip
PLAIN = {
    "llama": {}, "qwen3": {}, "gemma3_text": {}, "phi3": {}, "granite": {}, "smollm3": {},
    "minicpm3": {"num_key_value_heads": 4, **LATENT}, "qwen3_5_text": LINEAR,
}  # fmt: skip
MIXTURES = {
    "gpt_oss": EXPERTS, "mixtral": EXPERTS, "qwen3_moe": EXPERTS, "granitemoe": EXPERTS,
    "qwen3_5_moe_text": EXPERTS | LINEAR,
}  # fmt: skip
TWINS = PLAIN | MIXTURES
"""model_type of transformers: Phi-4 is phi3, Yi is llama."""


@functools.cache
def checkpoint(name: str) -> str:
    """Save a tiny model of a type, with the tokenizer of the tiny GPT-2; return its folder."""
    folder, tokenizer = ROOT / f"twin-{name}", tiny_gpt2_tokenizer()
    own = {"vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id}
    torch.manual_seed(0)
    config = CONFIG_MAPPING[name](**SIZES | own | TWINS[name])
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)
