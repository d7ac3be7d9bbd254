"""Tiny models of many architectures, whose own loss is the reference of an objective.

scripts/test_versions uses all with several versions of transformers; ``made`` returns None for an
architecture that a version does not have.
"""

import torch
from peft import IA3Config, LoraConfig, PrefixTuningConfig, PromptTuningConfig, get_peft_model
from transformers import (
    CONFIG_MAPPING,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    Trainer,
    TrainingArguments,
)

from mm_numeric import NumberVocabulary, NumericLoss, NumericLossMixin

VOCABULARY = 40
WIDTH = 16
DECODER = {
    "hidden_size": WIDTH, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip
ENCODER_DECODER = {
    "d_model": WIDTH, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24,
    "max_position_embeddings": 64, "decoder_start_token_id": 2, "scale_embedding": True,
}  # fmt: skip
T5 = {
    "d_model": WIDTH, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2,
    "decoder_start_token_id": 0,
}  # fmt: skip
EXPERTS = DECODER | {
    "num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "n_routed_experts": 4,
    "moe_intermediate_size": 8, "shared_expert_intermediate_size": 8, "router_aux_loss_coef": 0.5,
    "output_router_logits": True,
}  # fmt: skip
LATENT = {
    "q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8,
    "v_head_dim": 8,
}  # fmt: skip
MAMBA = {
    "mamba_n_heads": 2, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 1,
    "attn_layer_indices": [1],
}  # fmt: skip

DECODERS = {
    "gpt2": DECODER, "gpt_neo": DECODER | {
        "attention_types": [[["global", "local"], 1]], "num_layers": 2,
    },
    "gpt_neox": DECODER, "gptj": DECODER | {"rotary_dim": 4}, "bloom": DECODER,
    "opt": DECODER | {"ffn_dim": 24, "word_embed_proj_dim": WIDTH},
    "falcon": DECODER, "xglm": DECODER | {"d_model": WIDTH, "num_layers": 2, "ffn_dim": 24,
                                          "attention_heads": 2},
    "llama": DECODER | {"tie_word_embeddings": True}, "mistral": DECODER, "qwen2": DECODER,
    "qwen3": DECODER, "phi": DECODER, "phi3": DECODER,
    "gemma": DECODER | {"head_dim": 8},  # tied, and its embeddings are scaled
    "gemma2": DECODER | {"head_dim": 8, "final_logit_softcapping": 2.0},
    "gemma3_text": DECODER | {"head_dim": 8},
    "cohere": DECODER | {"logit_scale": 0.25}, "cohere2": DECODER | {"logit_scale": 4.0},
    "granite": DECODER | {"logits_scaling": 8.0}, "olmo2": DECODER, "stablelm": DECODER,
    "starcoder2": DECODER, "smollm3": DECODER, "nemotron": DECODER,
    "mamba": DECODER | {"state_size": 4},
    "bamba": DECODER | MAMBA | {"z_loss_coefficient": 0.1},
}  # fmt: skip
MIXTURES = {
    "mixtral": EXPERTS, "qwen2_moe": EXPERTS, "qwen3_moe": EXPERTS, "olmoe": EXPERTS,
    "phimoe": EXPERTS, "granitemoe": EXPERTS, "gpt_oss": EXPERTS | {"head_dim": 8},
    "jetmoe": EXPERTS | {"num_attention_heads": 4, "kv_channels": 8, "aux_loss_coef": 0.5},
    "minimax": EXPERTS | {"head_dim": 8, "block_size": 4},
    "dbrx": {
        "d_model": WIDTH, "n_heads": 2, "n_layers": 2, "max_seq_len": 64,
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0},
        "output_router_logits": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        # As wide as the model: the router of transformers 5.6.0 takes this for the model's width.
        "ffn_config": {"ffn_hidden_size": WIDTH, "moe_num_experts": 4, "moe_top_k": 2,
                       "moe_loss_weight": 0.5},
    },
    "deepseek_v3": EXPERTS | LATENT | {"n_group": 1, "topk_group": 1, "first_k_dense_replace": 1},
}  # fmt: skip
ENCODER_DECODERS = {
    "t5": T5, "mt5": T5, "umt5": T5, "longt5": T5 | {"local_radius": 4}, "bart": ENCODER_DECODER,
    "mbart": ENCODER_DECODER, "pegasus": ENCODER_DECODER, "marian": ENCODER_DECODER,
    "m2m_100": ENCODER_DECODER, "blenderbot": ENCODER_DECODER,
    "switch_transformers": T5 | {
        "num_experts": 4, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1,
        "expert_capacity": 8, "router_aux_loss_coef": 0.5, "router_z_loss_coef": 0.5,
        "output_router_logits": True,
    },
    "nllb-moe": ENCODER_DECODER | {
        "num_experts": 4, "encoder_sparse_step": 2, "decoder_sparse_step": 2,
        "router_aux_loss_coef": 0.5, "output_router_logits": True,
    },
}  # fmt: skip
_LORA = {"r": 2, "init_lora_weights": False, "task_type": "CAUSAL_LM"}
ADAPTERS = {
    "lora": LoraConfig(**_LORA, target_modules=["q_proj", "down_proj"]),
    "dora": LoraConfig(**_LORA, target_modules=["q_proj"], use_dora=True),
    "lora_of_the_head": LoraConfig(**_LORA, target_modules=["q_proj", "lm_head"]),
    "trained_head": LoraConfig(**_LORA, target_modules=["q_proj"], modules_to_save=["lm_head"]),
    "ia3": IA3Config(
        task_type="CAUSAL_LM", target_modules=["k_proj", "down_proj"],
        feedforward_modules=["down_proj"], init_ia3_weights=False,
    ),
    "prompt": PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3),
    "prefix": PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3),
}  # fmt: skip

ALL = [*DECODERS, *MIXTURES, *ENCODER_DECODERS, *(f"qwen2+{name}" for name in ADAPTERS)]
FEW = [
    "gemma2", "granite", "bamba", "jetmoe", "qwen3_moe", "dbrx", "switch_transformers", "nllb-moe",
    "qwen2+lora_of_the_head", "qwen2+prompt",
]  # fmt: skip
"""Those that ./scripts/test tries: each has a loss, a scale or a head that Llama and T5 lack."""


def made(name: str):
    """Return a model whose weights are large enough that its losses differ from each other."""
    kind, _, adapter = name.partition("+")
    sizes = {**DECODERS, **MIXTURES, **ENCODER_DECODERS}[kind]
    if kind not in CONFIG_MAPPING:
        return None
    ids = {"vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    config = CONFIG_MAPPING[kind](**sizes, **ids)
    if kind == "dbrx":  # transformers 4 does not accept it as a setting
        config.ffn_config.hidden_size = WIDTH
    auto = AutoModelForSeq2SeqLM if kind in ENCODER_DECODERS else AutoModelForCausalLM
    torch.manual_seed(0)
    model = auto.from_config(config)
    if kind == "jetmoe" and not hasattr(model, "num_experts"):
        return None  # transformers 4.57 reads it, and does not set it
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.3)
    return (get_peft_model(model, ADAPTERS[adapter]) if adapter else model).eval()


def batch_of(model):
    """Return three rows of 9, 7 and 4 tokens, padded on the right; 10 of them have a label."""
    ids = torch.randint(3, VOCABULARY, (3, 9), generator=torch.Generator().manual_seed(0))
    mask = torch.arange(9) < torch.tensor([9, 7, 4])[:, None]
    batch = {"input_ids": ids.where(mask, 0), "attention_mask": mask.long()}
    if model.config.is_encoder_decoder:
        labels = ids[:, :5].where(torch.arange(5) < torch.tensor([5, 3, 2])[:, None], -100)
    else:
        labels = ids.where(mask & (torch.arange(9) >= torch.tensor([4, 4, 2])[:, None]), -100)
    return batch | {"labels": labels}


class Tokens:
    """A tokenizer whose tokens 5 to 14 are the digits."""

    def get_vocab(self):
        return {str(i - 5) if 5 <= i < 15 else f"t{i}": i for i in range(VOCABULARY)}


class OwnTrainer(NumericLossMixin, Trainer):
    """The mixin on transformers' trainer."""


def trainer_of(model, folder):
    """Return a trainer with the mixin and cross-entropy."""
    args = TrainingArguments(str(folder), use_cpu=True, report_to=[])
    loss_of = NumericLoss("ce", vocabulary=NumberVocabulary.from_tokenizer(Tokens()))
    return OwnTrainer(model, args, objective=loss_of)
