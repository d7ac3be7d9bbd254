"""Decoder-only language models: prompts, answers, labels, modules, and training a tiny GPT-2."""

import dataclasses

import pytest
import torch
import transformers
from PIL import Image
from real_tokenizers import REAL, load
from sums import SUMS, Sums, collator_of, sums_config
from tiny_models import ROOT, TINY, examples_of, tiny_folder

from mm_numeric.config.data import DataSource
from mm_numeric.data.collator import BATCH_KEYS, make_collator
from mm_numeric.data.examples import load_examples
from mm_numeric.families.causal_lm import CausalLM
from mm_numeric.losses.numeric_loss import NumericLoss
from mm_numeric.training.setup import make_trainer, training_arguments

ANSWERS = ("12 3.5", "-7", "1,234 and 0.125", "yes")


@pytest.fixture(scope="module")
def checkpoint():
    return tiny_folder("causal_lm")


@pytest.fixture(scope="module")
def family(checkpoint):
    return CausalLM.load(checkpoint, TINY)


# Prompts and answers


def test_a_question_ends_with_a_line_break(family):
    texts = [family.text(ids) for ids in family.prompts(["3+4=", "3+4=\n"], [None, None]).ids]
    assert texts == ["3+4=\n", "3+4=\n"]


@pytest.mark.slow
def test_the_token_that_begins_a_text_is_there_if_the_tokenizer_adds_it():
    load("llama2")
    llama = transformers.LlamaTokenizer.from_pretrained(REAL / "llama2", add_bos_token=True)
    (ids,) = CausalLM(llama, None, TINY).prompts(["3+4="], [None]).ids
    assert ids == [llama.bos_token_id, *CausalLM(load("llama2"), None, TINY).question("3+4=", 0)]


def test_a_chat_template_is_the_prompt():
    tokenizer = load("qwen2")
    (ids,) = CausalLM(tokenizer, None, TINY).prompts(["3+4="], [None]).ids
    text = tokenizer.decode(ids)
    assert text.endswith("<|im_start|>user\n3+4=<|im_end|>\n<|im_start|>assistant\n")
    assert text.startswith("<|im_start|>system\n")


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("name", [None, "gpt2", "llama2", "qwen2"])
def test_prompt_and_answer_are_tokenised_as_one_text(family, name, answer):
    family = CausalLM(load(name), None, TINY) if name else family
    tokenizer, written = family.tokenizer, family.answer(answer)
    (prompt,) = family.prompts(["What is 3+4?"], [None]).ids
    whole = tokenizer.decode(prompt, skip_special_tokens=False) + answer
    assert prompt + written.ids[:-1] == tokenizer(whole, add_special_tokens=False)["input_ids"]
    assert written.ids[-1] == family.stop_ids[0] == tokenizer.eos_token_id
    assert family.text(written.ids) == family.text([*written.ids, 3, family.pad_id]) == answer
    assert written.offsets[-1] == (0, 0)
    assert "".join(answer[start:end] for start, end in written.offsets) == answer


@pytest.mark.parametrize("name", ["qwen2", "gpt2"])
def test_an_answer_that_would_melt_into_the_question_keeps_all_its_tokens(name):
    family = CausalLM(load(name), None, TINY)
    assert family.text(family.answer("\n\n7").ids) == "\n\n7"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "llama2", "qwen2"])
def test_the_labels_of_real_tokenizers_are_the_answers_and_nothing_else(tmp_path, name):
    family = CausalLM(load(name), None, TINY)
    batch = collator_of(family)(examples_of(sums_config(tmp_path, "causal_lm")))
    end = family.tokenizer.eos_token
    text = family.tokenizer.decode(batch["labels"], skip_special_tokens=False)
    # LLaMA-2's decoder writes each </s> with what follows it
    assert text.replace(f"{end} ", end) == "".join(answer + end for answer in SUMS.values())
    values = [float(word) for answer in SUMS.values() for word in answer.split()]
    assert batch["spans"].value.tolist() == values


# Labels and losses


def test_each_supervised_position_predicts_the_next_token(family, tmp_path):
    batch = collator_of(family)(examples_of(sums_config(tmp_path, "causal_lm")))
    after = batch["supervised"].roll(1, dims=1)
    assert torch.equal(batch["input_ids"][after], batch["labels"])
    assert torch.equal(
        batch["spans"].supervised, batch["supervised"].flatten().nonzero().squeeze(1)
    )
    assert family.text(batch["input_ids"][0].tolist()) == "3+4=\n7"


@pytest.mark.parametrize("runs", [False, True])
def test_ce_of_the_trainer_is_the_model_s_own_loss(checkpoint, family, tmp_path, runs):
    config = sums_config(tmp_path, "causal_lm", objective={"preset": "ce", "digit_runs": runs})
    trainer = make_trainer(
        config,
        training_arguments(config),
        examples_of(config),
        make_collator(config, family),
        checkpoint,
    )
    batch = trainer.data_collator(trainer.train_dataset)
    unshifted = torch.full(batch["supervised"].shape, -100)
    after = batch["supervised"].roll(1, dims=1)
    unshifted[after] = batch["input_ids"][after]
    inputs = {key: value for key, value in batch.items() if key not in BATCH_KEYS}
    model = trainer.model.double().eval()
    with torch.no_grad():
        own = model(**inputs, labels=unshifted).loss
        ours = trainer.compute_loss(model, batch)
        wrong = model(**inputs, labels=unshifted.roll(-1, dims=1)).loss
    # transformers converts the logits of a causal model to float32
    torch.testing.assert_close(ours, own, rtol=1e-6, atol=1e-6, check_dtype=False)
    assert (wrong - own).abs() > 1e-2


@pytest.mark.parametrize("runs", [False, True])
def test_a_head_that_takes_no_rows_gives_the_same_loss(checkpoint, family, tmp_path, runs):
    collate = dataclasses.replace(collator_of(family), digit_runs=runs)
    batch = collate(examples_of(sums_config(tmp_path, "causal_lm")))
    labels, supervised, spans, _ = (batch.pop(key) for key in BATCH_KEYS)
    loss_of = NumericLoss("ntil", vocabulary=family.vocabulary())
    with torch.no_grad():
        model = family.load_model(checkpoint, TINY).eval()
        rows = loss_of(model(**batch, logits_to_keep=supervised).logits, labels, spans)
        full = loss_of(model(**batch).logits, labels, spans)
    torch.testing.assert_close(full.loss, rows.loss)


# Errors


def test_an_image_is_rejected_with_its_row(tmp_path, family):
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"id": "1", "image": "a.png", "sum": "3+4=", "answer": "7"}')
    (example,) = load_examples(Sums(), DataSource(path=str(rows)), ROOT, training=True)
    message = r"rows\.jsonl, line 1: the row has an image, but model\.family causal_lm accepts none"
    with pytest.raises(ValueError, match=message):
        collator_of(family)([example])
    assert family.image_tokens(4, 4) == 0


@pytest.mark.parametrize(
    ("config", "fits"),
    [
        (transformers.GraniteConfig(), True),
        (transformers.Gemma3TextConfig(), True),
        (transformers.Gemma3Config(), False),  # AutoModelForCausalLM would load both of these
        (transformers.BartConfig(), False),
        (transformers.PreTrainedConfig(auto_map={"AutoModelForCausalLM": "its.own"}), True),
        (transformers.T5Config(), False),
    ],
    ids=lambda value: getattr(value, "model_type", None),
)
def test_only_decoders_that_read_text_alone_fit(config, fits):
    assert CausalLM.supports(config) is fits


def test_a_tokenizer_without_an_end_is_rejected(checkpoint):
    endless = transformers.AutoTokenizer.from_pretrained(checkpoint, eos_token=None)
    with pytest.raises(ValueError, match=r"the tokenizer of '.*' has no eos_token; set"):
        CausalLM(endless, None, TINY)


def test_model_image_is_rejected(family):
    with pytest.raises(ValueError, match=r"model\.image_size\.side: causal_lm has no such setting"):
        CausalLM(family.tokenizer, None, dataclasses.replace(TINY, image_size={"side": 3}))
