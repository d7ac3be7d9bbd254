"""Create tiny random GPT-2 and T5 models.

Their tokenizers have one token per digit, and one per word of questions such as "What is 3 + 4?".
"""

import string
from pathlib import Path

from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    GPT2Tokenizer,
    T5Config,
    T5ForConditionalGeneration,
    T5Tokenizer,
)
from transformers.convert_slow_tokenizer import bytes_to_unicode

from mm_numeric.families.tiny import add_words, save_tiny

_WIDTH = 128
# Words of rendered questions: one token each, like in any pretrained tokenizer.
_WORDS = (
    "What", "Calculate", "Evaluate", " is", " the", " value", " of", " times", " +", " -", " (",
)  # fmt: skip


def make_tiny_gpt2(folder: Path, seed: int) -> None:
    """Save a GPT-2 model with two layers, for texts of up to 512 tokens."""
    tokenizer = tiny_gpt2_tokenizer()
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=512,
        n_embd=_WIDTH,
        n_layer=2,
        n_head=4,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        initializer_range=0.08,  # about 1 / sqrt(width), as in mm_numeric.families.tiny_qwen
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    save_tiny(folder, seed, GPT2LMHeadModel, config, tokenizer)


def make_tiny_t5(folder: Path, seed: int) -> None:
    """Save a T5 model with two encoder layers and two decoder layers."""
    tokenizer = tiny_t5_tokenizer()
    config = T5Config(
        vocab_size=len(tokenizer),
        d_model=_WIDTH,
        d_kv=_WIDTH // 8,
        d_ff=2 * _WIDTH,
        num_layers=2,
        num_heads=8,  # with 4, learning to distinguish 99 from 9 takes twice as many steps
        dropout_rate=0.0,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        decoder_start_token_id=tokenizer.pad_token_id,
    )
    save_tiny(folder, seed, T5ForConditionalGeneration, config, tokenizer)


def tiny_gpt2_tokenizer() -> GPT2Tokenizer:
    """Return a tokenizer like GPT-2's, with tokens for all bytes and for a few words."""
    tokens = ["<|endoftext|>", *sorted(bytes_to_unicode().values())]
    merges = add_words(tokens, (word.replace(" ", "\u0120") for word in _WORDS))
    return GPT2Tokenizer(vocab={token: i for i, token in enumerate(tokens)}, merges=merges)


def tiny_t5_tokenizer() -> T5Tokenizer:
    """Return a tokenizer like T5's, with tokens for ASCII characters and for a few words."""
    names = ["<pad>", "</s>", "<unk>"]
    pieces = ["\u2581", *string.digits, *string.ascii_letters, *string.punctuation]
    pieces += [f"\u2581{word.strip()}" for word in _WORDS]
    scores = [*((name, 0.0) for name in names), *((piece, -1.0) for piece in pieces)]
    return T5Tokenizer(vocab=scores, extra_ids=0)
