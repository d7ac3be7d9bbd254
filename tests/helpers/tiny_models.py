"""Fixtures' helpers: real, tiny models and clocks, made once for a test session."""

import functools
import tempfile
from pathlib import Path

import torch
from transformers import (
    CONFIG_MAPPING,
    AutoModelForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

from mm_numeric.config.data import DataSource
from mm_numeric.config.reader import read_config
from mm_numeric.config.schema import Config, ModelConfig
from mm_numeric.data.examples import load_examples
from mm_numeric.families.qwen2_vl import Qwen2VL
from mm_numeric.families.tiny import tiny_gpt2_tokenizer, tiny_qwen2_tokenizer
from mm_numeric.registry import FAMILIES, choose
from mm_numeric.synthetic.clock_faces import Clocks

_KEPT = tempfile.TemporaryDirectory(prefix="mm-numeric-tests-")
ROOT = Path(_KEPT.name)
CACHE = ROOT / "cache"
TINY = ModelConfig(name="tiny", dtype="float32")


@functools.cache
def tiny_checkpoint(seed: int = 0) -> str:
    """Return the folder of a tiny Qwen2-VL."""
    folder = ROOT / f"tiny{seed}"
    Qwen2VL.make_tiny(folder, seed=seed)
    return str(folder)


@functools.cache
def tiny_folder(name: str) -> str:
    """Return the folder of the tiny model of a family, which no test may change."""
    folder = ROOT / "tiny" / name
    choose(name, FAMILIES, "family", "test").make_tiny(folder, seed=0)
    return str(folder)


@functools.cache
def tiny_family() -> Qwen2VL:
    """Return its tokenizer and image processor."""
    return Qwen2VL.load(tiny_checkpoint(), TINY)


def tiny_model(seed: int = 0):
    """Return a fresh copy of its weights."""
    return tiny_family().load_model(tiny_checkpoint(seed), TINY)


def small_config(folder: Path, *overrides: str) -> Config:
    """Return clock_tiny with little data and few steps, in a folder."""
    return read_config(
        "clock_tiny",
        [
            f"trainer.output_dir={folder / 'run'}",
            f"compare.output_dir={folder / 'compare'}",
            f"data.cache={CACHE}",
            "data.train.synthetic.rows=40",
            "data.test.synthetic.rows=12",
            "trainer.per_device_train_batch_size=4",
            "trainer.max_steps=6",
            "trainer.warmup_steps=2",
            "trainer.logging_steps=2",
            "trainer.save_steps=2",
            *overrides,
        ],
    )


def clocks(count: int, seed: int = 0):
    """Return a task and rendered examples of it."""
    task = small_config(ROOT / "unused").task
    return task, load_examples(
        task, DataSource(synthetic=Clocks(rows=count, seed=seed)), CACHE, training=False
    )


def examples_of(config: Config):
    """Return the training examples of a config."""
    return load_examples(config.task, config.data.train, ROOT, training=True)


def tiny_causal_lm(**changes):
    """Return a Qwen2 that writes text, with the vocabulary of ``tiny_qwen2_tokenizer``.

    In float64: Adam takes a gradient that is zero but for rounding (of the bias of a key) for one.
    """
    config = Qwen2Config(
        vocab_size=len(tiny_qwen2_tokenizer()),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.2,
        **changes,
    )
    torch.manual_seed(0)
    return Qwen2ForCausalLM(config).double()


def tiny_byt5():
    """Return a T5 with the vocabulary of ByT5, whose tokens are bytes; in float64 too."""
    config = T5Config(
        vocab_size=384,
        d_model=32,
        d_kv=16,
        d_ff=64,
        num_layers=2,
        num_heads=2,
        dropout_rate=0.0,
        decoder_start_token_id=0,
    )
    torch.manual_seed(0)
    return T5ForConditionalGeneration(config).double()


_SIZES = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 8,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
    "pad_token_id": 0,
}  # fmt: skip
_LATENT = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8}
_EXPERTS = {
    "num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16,
}  # fmt: skip
_LINEAR = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 8,
    "linear_value_head_dim": 8, "layer_types": ["linear_attention", "full_attention"],
}  # fmt: skip
_PLAIN = {
    "llama": {}, "qwen3": {}, "gemma3_text": {}, "phi3": {}, "granite": {}, "smollm3": {},
    "minicpm3": {"num_key_value_heads": 4, **_LATENT}, "qwen3_5_text": _LINEAR,
}  # fmt: skip
MIXTURES = {
    "gpt_oss": _EXPERTS, "mixtral": _EXPERTS, "qwen3_moe": _EXPERTS, "granitemoe": _EXPERTS,
    "qwen3_5_moe_text": _EXPERTS | _LINEAR,
}  # fmt: skip
TWINS = _PLAIN | MIXTURES
"""model_type of transformers: Phi-4 is phi3, Yi is llama."""


@functools.cache
def twin_checkpoint(name: str) -> str:
    """Save a tiny model of a type, with the tokenizer of the tiny GPT-2; return its folder."""
    folder, tokenizer = ROOT / f"twin-{name}", tiny_gpt2_tokenizer()
    own = {"vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id}
    torch.manual_seed(0)
    config = CONFIG_MAPPING[name](**_SIZES | own | TWINS[name])
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)
