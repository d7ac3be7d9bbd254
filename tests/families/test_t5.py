"""The T5 family: labels that are not shifted, modules, and training a tiny T5."""

import json
import random

import pytest
import torch
import transformers
from device_waits import Waits
from real_tokenizers import load
from sums import SUMS, collator_of, sums_config
from tiny_models import TINY, examples_of, tiny_folder

from mm_numeric.answers import Example
from mm_numeric.data.collator import BATCH_KEYS, make_collator
from mm_numeric.families.t5 import T5
from mm_numeric.inference.generate import generate
from mm_numeric.training.setup import make_trainer, training_arguments


@pytest.fixture(scope="module")
def checkpoint():
    return tiny_folder("t5")


@pytest.fixture(scope="module")
def family(checkpoint):
    return T5.load(checkpoint, TINY)


def trainer_of(folder, checkpoint, family, preset="ce"):
    config = sums_config(folder, "t5", objective=preset)
    collator = make_collator(config, family)
    return make_trainer(
        config, training_arguments(config), examples_of(config), collator, checkpoint
    )


# Prompts and answers


@pytest.mark.parametrize("name", [None, "t5-small"])
def test_prompts_and_answers_end_and_come_back(family, name):
    family = T5(load(name), None, TINY) if name else family
    tokenizer = family.tokenizer
    assert family.prompts(["3+4="], [None]).ids == [tokenizer("3+4=")["input_ids"]]
    for text in ("12 3.5", "-7", "1,234 and 0.125"):
        answer = family.answer(text)
        assert answer.ids == tokenizer(text)["input_ids"]
        assert answer.ids[-1] == family.stop_ids[0]
        assert family.text([*answer.ids, family.pad_id]) == text


def test_the_tiny_tokenizer_writes_every_digit_by_itself(family):
    ids = family.answer("12 3.5").ids
    tokens = family.tokenizer.convert_ids_to_tokens(ids)
    assert tokens == ["▁", "1", "2", "▁", "3", ".", "5", "</s>"]


def test_the_labels_of_the_real_tokenizer_are_the_answers_and_nothing_else(tmp_path):
    family = T5(load("t5-small"), None, TINY)
    family.decoder_start_id = 0
    batch = collator_of(family)(examples_of(sums_config(tmp_path, "t5")))
    text = family.tokenizer.decode(batch["labels"], skip_special_tokens=False)
    assert text.split("</s>") == [answer if not i else f" {answer}"
                                  for i, answer in enumerate(SUMS.values())] + [""]  # fmt: skip


def test_numbers_are_found_whatever_tokens_they_are_cut_into():
    """T5 has tokens such as 3.5, 0.05, -7, ▁1,000 and 2018."""
    family = T5(load("t5-small"), None, TINY)
    family.decoder_start_id = 0
    draw, collate = random.Random(0), collator_of(family)
    for _ in range(60):
        values = [round(draw.uniform(-2000, 2000), draw.randint(0, 3)) for _ in range(4)]
        text = " ".join(f"{value:g}" for value in values)
        example = Example(id="", image=None, prompt="?", answer=text, where="")
        assert collate([example])["spans"].value.tolist() == [float(t) for t in text.split()]


def test_a_character_that_cannot_be_written_is_rejected(family):
    example = Example(id="", image=None, prompt="?", answer="7 ☃", where="x, line 3")
    with pytest.raises(ValueError, match="x, line 3: the answer '7 ☃' holds '☃', for which the"):
        collator_of(family)([example])


def test_byt5_has_a_token_for_each_byte():
    family = T5(transformers.ByT5Tokenizer(), None, TINY)
    family.decoder_start_id = 0
    example = Example(id="", image=None, prompt="3+4=", answer="é 12 -3.5", where="")
    batch = collator_of(family)([example])
    assert family.text(batch["labels"].tolist()) == "é 12 -3.5"
    assert batch["spans"].value.tolist() == [12, -3.5]
    assert batch["spans"].position.tolist() == [3, 4, 7, 9]


# Labels and losses


def test_each_supervised_row_predicts_the_label_at_its_own_place(family, tmp_path):
    batch = collator_of(family)(examples_of(sums_config(tmp_path, "t5")))
    assert (batch["decoder_input_ids"][:, 0] == family.decoder_start_id).all()
    for inputs, supervised, answer in zip(
        batch["decoder_input_ids"], batch["supervised"], SUMS.values(), strict=True
    ):
        ids = family.answer(answer).ids
        assert supervised.tolist() == [i < len(ids) for i in range(len(supervised))]
        assert inputs[1 : len(ids)].tolist() == ids[:-1]
    assert batch["labels"].tolist() == [
        i for text in SUMS.values() for i in family.answer(text).ids
    ]
    assert family.text(batch["input_ids"][0].tolist()) == "3+4="


def test_the_decoder_begins_with_what_the_checkpoint_names(tmp_path, family):
    T5.make_tiny(tmp_path, seed=0)
    file = tmp_path / "config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps({**config, "decoder_start_token_id": 5}))
    other = T5.load(str(tmp_path), TINY)
    examples = examples_of(sums_config(tmp_path, "t5"))
    assert other.decoder_start_id == 5
    assert (collator_of(other)(examples)["decoder_input_ids"][:, 0] == 5).all()
    model, seen = other.load_model(str(tmp_path), TINY).eval(), []
    model.decoder.register_forward_pre_hook(
        lambda _, args, kwargs: seen.append(kwargs["input_ids"]), with_kwargs=True
    )
    list(generate(model, other, examples[:1], 1))
    assert seen[0].tolist() == [[5]]
    file.write_text(json.dumps({**config, "decoder_start_token_id": None}))
    with pytest.raises(ValueError, match="has no decoder_start_token_id"):
        T5.load(str(tmp_path), TINY)


@pytest.mark.slow
@pytest.mark.parametrize("runs", [False, True])
def test_ce_of_the_trainer_is_the_model_s_own_loss(checkpoint, family, tmp_path, runs):
    trainer = trainer_of(tmp_path, checkpoint, family, {"preset": "ce", "digit_runs": runs})
    batch = trainer.data_collator(trainer.train_dataset)
    labels = torch.full(batch["supervised"].shape, -100)
    labels[batch["supervised"]] = batch["labels"]
    asked = {key: batch[key] for key in ("input_ids", "attention_mask")}
    inputs = {key: value for key, value in batch.items() if key not in BATCH_KEYS}
    model = trainer.model.double().eval()
    asked_for = []
    model.register_forward_pre_hook(lambda _, args, kw: asked_for.extend(kw), with_kwargs=True)
    with torch.no_grad():
        own = model(**asked, labels=labels)  # its decoder inputs are made by transformers
        ours = trainer.compute_loss(model, batch)
        logits = model(**inputs).logits
        wrong = model(**asked, labels=labels.roll(-1, dims=1)).loss
    torch.testing.assert_close(ours, own.loss, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(
        logits.flatten(0, 1)[batch["spans"].supervised], own.logits[labels != -100]
    )
    assert (wrong - own.loss).abs() > 1e-2
    assert "logits_to_keep" not in asked_for  # T5 would swallow it and give every row


def test_a_step_waits_for_the_device_less_than_the_model_alone(checkpoint, family, tmp_path):
    trainer = trainer_of(tmp_path, checkpoint, family, "ntil")
    batch = trainer.data_collator(trainer.train_dataset)
    inputs = {key: value for key, value in batch.items() if key not in BATCH_KEYS}
    trainer.compute_loss(trainer.model, batch)  # the tables are made once
    with Waits() as waits:
        trainer.compute_loss(trainer.model, batch).backward()
    with Waits() as own:
        trainer.model(**inputs).logits.sum().backward()
    # For the look at the labels, which is for a CPU. The model alone looks at its masks.
    assert waits.found == ["aten._local_scalar_dense.default"]
    assert own.found == 2 * waits.found
