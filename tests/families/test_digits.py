"""Single-digit tokenisation: what it changes, what it keeps, and that it survives saving."""

import dataclasses
import functools
import json
import random
import string

import pytest
import torch
from real_tokenizers import load, start_of_llama3
from sums import SUMS, Sums, sums_config
from tiny_models import ROOT, TINY
from tokenizers.pre_tokenizers import ByteLevel
from transformers import (
    AutoTokenizer,
    ByT5Tokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    GPT2Tokenizer,
    T5Config,
    T5ForConditionalGeneration,
    T5Tokenizer,
)

from mm_numeric.data.collator import TrainingCollator
from mm_numeric.data.examples import load_examples
from mm_numeric.families.causal_lm import CausalLM
from mm_numeric.families.digits import merges_digits, with_digits
from mm_numeric.families.t5 import T5
from mm_numeric.inference.generate import predict
from mm_numeric.models.loading import load_family
from mm_numeric.training.run import train

pytestmark = pytest.mark.slow

FAMILIES = {"causal_lm": CausalLM, "t5": T5}
SIZES = {"n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 64}
PIECES = ("a", " ", "  ", "\n", "\n\n", "\t", "word", " word", "mp", "x", "²", "ò", "½", "१", "'s",
          ",", ".", "-", "$", "e", "(", "e\u0301", "日本", "\U0001f600", "<extra_id>")  # fmt: skip


def merging(kind):
    """Return a tokenizer that joins digits: a small one or a real one."""
    if kind == "causal_lm":
        tokens = ["<|endoftext|>", *sorted(ByteLevel.alphabet()), "12", "123", "Ġ1", "Ġ12", "34"]
        merges = [("1", "2"), ("12", "3"), ("Ġ", "12"), ("Ġ", "1"), ("3", "4")]
        return GPT2Tokenizer(vocab={token: i for i, token in enumerate(tokens)}, merges=merges)
    if kind == "t5":
        names = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
        pieces = ["\u2581", *string.digits, *string.ascii_letters, *string.punctuation,
                  "12", "▁12", "3.5", "-7", "▁100", "0.125"]  # fmt: skip
        return T5Tokenizer(vocab=[*names, *((piece, -1.0) for piece in pieces)], extra_ids=0)
    return start_of_llama3() if kind == "llama3" else load(kind)


@functools.cache
def both(kind):
    """Return a tokenizer that joins digits, and its copy with single digits."""
    stock = merging(kind)
    return stock, with_digits(stock, "single", "here")


def checkpoint(folder, kind):
    """Save a small model with a tokenizer that joins digits."""
    tokenizer = merging(kind)
    torch.manual_seed(0)
    if kind == "causal_lm":
        GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), **SIZES)).save_pretrained(folder)
    else:
        T5ForConditionalGeneration(
            T5Config(
                vocab_size=len(tokenizer), d_model=32, d_kv=16, d_ff=32, num_layers=1, num_heads=2,
                decoder_start_token_id=0,
            )
        ).save_pretrained(folder)  # fmt: skip
    tokenizer.save_pretrained(folder)
    return str(folder)


def texts(count, kind):
    """Yield texts without digits; to the real T5 ² is a 2 and ½ a 1 and a 2."""
    draw = random.Random(0)
    pieces = [piece for piece in PIECES if kind != "t5-small" or piece not in "²½"]
    for _ in range(count):
        yield "".join(draw.choice(pieces) for _ in range(draw.randint(1, 12)))


each_merging = pytest.mark.parametrize("kind", ["causal_lm", "t5", "gpt2", "llama3", "t5-small"])


@each_merging
def test_text_without_digits_is_cut_as_before(kind):
    stock, single = both(kind)
    for text in texts(300, kind):
        assert single(text)["input_ids"] == stock(text)["input_ids"], text


@each_merging
def test_every_digit_is_a_token_and_all_else_is_cut_as_before(kind):
    stock, single = both(kind)
    vocabulary = stock.get_vocab()
    assert single.get_vocab() == vocabulary
    draw = random.Random(1)
    for text in texts(300, kind):
        number = str(draw.randrange(10 ** draw.randint(1, 6)))
        whole = f"{text}{number} {text}"
        found = single.tokenize(whole)
        assert [token for token in found if set(token) & set(string.digits)] == list(number)
        pieces, after = (
            tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str(whole)
            for tokenizer in (stock, single)
        )
        kept = [piece for piece in pieces if not set(piece[0]) & set(string.digits)]
        assert all(piece in after for piece in kept)
    assert not merges_digits(single)
    assert merges_digits(stock)


@pytest.mark.parametrize("kind", ["t5", "t5-small"])
def test_t5_with_single_digits_comes_back(tmp_path, kind):
    family = T5(both(kind)[1], None, TINY)
    answer = family.answer("12 3.5")
    tokens = family.tokenizer.convert_ids_to_tokens(answer.ids)
    assert tokens == ["▁", "1", "2", "▁", "3", ".", "5", "</s>"]
    draw = random.Random(0)
    for _ in range(200):
        values = [round(draw.uniform(-2000, 2000), draw.randint(0, 3)) for _ in range(3)]
        text = " ".join(f"{value:g}" for value in values)
        assert family.text(family.answer(text).ids) == text


@each_merging
def test_it_is_saved_with_the_tokenizer(tmp_path, kind):
    _, single = both(kind)
    single.save_pretrained(tmp_path)
    types = {"t5": "t5", "t5-small": "t5", "llama3": "llama"}
    config = json.dumps({"model_type": types.get(kind, "gpt2")})
    (tmp_path / "config.json").write_text(config)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    for text in ("12 3.5", "a  100 mp3\n\n37", "1,000's"):
        assert loaded(text)["input_ids"] == single(text)["input_ids"]
    assert (loaded.eos_token, loaded.pad_token) == (single.eos_token, single.pad_token)
    assert with_digits(loaded, "single", "here") is loaded
    with pytest.raises(
        ValueError, match=r"merged needs tokens of several digits, .* 'here' has none"
    ):
        with_digits(loaded, "merged", "here")


def test_tokenizers_that_keep_digits_apart_stay_as_they_are():
    for tokenizer in (ByT5Tokenizer(), load("qwen2"), load("llama2")):
        assert with_digits(tokenizer, "single", "here") is tokenizer


def test_a_digit_without_a_token_is_one_sentence():
    tokenizer = T5Tokenizer(vocab=[("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0),
                                   *((d, -1.0) for d in "▁01236789"), ("45", -1.0)])  # fmt: skip
    with pytest.raises(ValueError, match="'here' has no token for 4, 5 alone; remove"):
        with_digits(tokenizer, "single", "here")


def config_of(tmp_path, kind, digits, **trainer):
    source = checkpoint(tmp_path / "source", kind)
    config = sums_config(tmp_path, kind, objective="ntl_was", max_steps=2, **trainer)
    model = dataclasses.replace(config.model, name=source, digits=digits)
    return dataclasses.replace(config, model=model)


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_run_loads_again_as_it_was_trained(tmp_path, kind):
    config = config_of(tmp_path, kind, "single")
    train(config)
    run = config.output_dir
    assert predict(run, None, run / "predictions.jsonl", trust_remote_code=True) == len(SUMS)
    model = str(run / "model")
    as_it_is = dataclasses.replace(config, model=dataclasses.replace(config.model, digits=None))
    tokens = load_family(as_it_is, model).tokenizer.tokenize("12")
    assert tokens[-2:] == ["1", "2"]
    merged = dataclasses.replace(config, model=dataclasses.replace(config.model, digits="merged"))
    with pytest.raises(ValueError, match="merged needs tokens of several digits"):
        load_family(merged, model)


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_model_trained_on_merged_digits_is_not_read_with_single_ones(tmp_path, kind):
    config = config_of(tmp_path, kind, None)
    train(config)
    single = dataclasses.replace(config, model=dataclasses.replace(config.model, digits="single"))
    with pytest.raises(ValueError, match="was trained with digits merged; remove"):
        load_family(single, str(config.output_dir / "model"))


def examples_of(folder, kind):
    config = sums_config(folder, kind)
    return load_examples(config.task, config.data.train, ROOT, training=True)


@pytest.mark.parametrize("kind", ["causal_lm", "t5", "gpt2", "t5-small"])
def test_multi_digit_tokens_are_numbers_too(tmp_path, kind):
    """The stock tokenizer's 12 and 3.5 are in the numeric loss, and so are single digits."""
    cls = T5 if kind.startswith("t5") else CausalLM
    wanted = [float(word) for answer in SUMS.values() for word in answer.split()]
    examples = examples_of(tmp_path, "t5" if cls is T5 else "causal_lm")
    targets = {}
    for digits, tokenizer in zip((None, "single"), both(kind), strict=True):
        family = cls(tokenizer, None, TINY)
        family.decoder_start_id = 0
        vocabulary = family.vocabulary()
        batch = TrainingCollator(family, Sums(), vocabulary)(examples)
        assert batch["spans"].value.tolist() == wanted
        targets[digits] = len(batch["spans"].target)
        tokens = [vocabulary.tokens[j] for j in batch["spans"].target.tolist()]
        if digits == "single":
            assert {token.digit_group for token in tokens} == {"0"}
        else:
            assert len({token.digit_group for token in tokens}) > 1
    assert targets[None] < targets["single"] == sum(c.isdigit() for a in SUMS.values() for c in a)


def test_stock_t5_trains_with_multi_digit_tokens(tmp_path):
    config = config_of(tmp_path, "t5", "merged", logging_steps=1)
    train(config)
    lines = [json.loads(line) for line in (config.output_dir / "log.jsonl").open()]
    assert all(line["components"]["ntl_was"] > 0 for line in lines if "components" in line)
