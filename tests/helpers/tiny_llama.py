"""A tiny Llama and a tokenizer that all supported versions of transformers can make."""

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SPECIAL = ["<pad>", "</s>", "<user>", "<assistant>"]
LETTERS = "0123456789abcdefghijklmnopqrstuvwxyz .?="
TEMPLATE = (
    "{% for m in messages %}{% if m['role'] == 'user' %}<user>{{ m['content'] }}{% else %}"
    "<assistant>{% generation %}{{ m['content'] }}</s>{% endgeneration %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def tokenizer():
    """Return a tokenizer with one token for each character."""
    ids = {token: i for i, token in enumerate([*SPECIAL, *LETTERS])}
    made = Tokenizer(models.WordLevel(ids, unk_token="<pad>"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    made.decoder = decoders.Fuse()
    found = PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="</s>")
    found.add_special_tokens({"additional_special_tokens": SPECIAL[2:]})
    found.chat_template = TEMPLATE
    return found


TOKENIZER = tokenizer()


def model():
    """Return a Llama with one layer, in float64."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(TOKENIZER),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        initializer_range=0.3,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
    )
    return LlamaForCausalLM(config).double()
