"""Regression head: its hidden state, its numbers, and its loss."""

import dataclasses

import pytest
import torch
from baseline_runs import FAMILIES, answers_of, baseline_config, family_of, loss_of
from tiny_models import TINY, examples_of, tiny_folder

from mm_numeric.answers import Number
from mm_numeric.baselines.number_head import NumberOutput
from mm_numeric.baselines.values import value_of
from mm_numeric.data.collator import BATCH_KEYS, TrainingCollator, prompt_batch
from mm_numeric.tasks.number_questions import Numbers

pytestmark = pytest.mark.slow

each_family = pytest.mark.parametrize("kind", FAMILIES)


def fitted(kind, folder, **settings):
    family = family_of(kind, {"name": "regression_head", **settings})
    config = baseline_config(folder, kind, "regression_head")
    family.fit(Numbers(), examples_of(config))
    return family, examples_of(config)


@each_family
@pytest.mark.parametrize("log", [False, True])
def test_a_row_has_one_number_to_learn(kind, log, tmp_path):
    family, examples = fitted(kind, tmp_path, log=log)
    batch = TrainingCollator(family, Numbers(), family.vocabulary())(examples)
    assert batch["labels"].shape == (len(examples),)
    assert batch["supervised"].sum(dim=1).tolist() == [1] * len(examples)
    numbers = [family.scale.number(value_of(token)) for token in batch["labels"].tolist()]
    assert numbers == pytest.approx([e.answer.value for e in examples], rel=1e-4, abs=1e-4)
    scaled = torch.tensor([value_of(token) for token in batch["labels"].tolist()])
    assert float(scaled.mean()) == pytest.approx(0, abs=1e-5)
    assert float(scaled.std(correction=0)) == pytest.approx(1, abs=1e-5)
    assert [family.text([token]) for token in batch["labels"].tolist()] == [
        example.answer.text for example in examples
    ]
    assert not (batch["input_ids"] >= 2**40).any()


def test_without_normalising_it_is_the_number_itself(tmp_path):
    family, _ = fitted("causal_lm", tmp_path, normalise=False)
    assert value_of(family.answer("-42").ids[0]) == -42


@each_family
def test_it_reads_the_same_state_in_training_and_in_prediction(kind, tmp_path):
    """The hidden state of the output head: at the end of the question or the decoder's start."""
    family, examples = fitted(kind, tmp_path)
    model = family.load_model(tiny_folder(kind), TINY).eval()
    batch = TrainingCollator(family, Numbers(), family.vocabulary())(examples)
    inputs = {key: value for key, value in batch.items() if key not in BATCH_KEYS}
    with torch.no_grad():
        trained = model(**inputs).numbers.flatten()[batch["spans"].supervised]
        asked, _ = prompt_batch(family, examples)
        written = answers_of(family, model, asked, 8)
        found = torch.tensor([value_of(ids[0]) for ids in written])
        states = []
        model.lm_head.register_forward_pre_hook(lambda _, args: states.append(args[0]))
        one, _ = prompt_batch(family, examples[:1])
        answers_of(family, model, one, 8)
        state = states[0][:, -1] * (model.config.d_model**0.5 if kind == "t5" else 1)
        alone = model.baseline(state)[0]
    torch.testing.assert_close(trained, found, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(alone, found[0], rtol=1e-4, atol=1e-5)
    assert found.std() > 1e-3


def test_the_loss_is_the_mean_squared_error(tmp_path):
    family, examples = fitted("t5", tmp_path)
    batch = TrainingCollator(family, Numbers(), family.vocabulary())(examples)
    numbers = torch.randn(batch["supervised"].shape, requires_grad=True)
    output = NumberOutput(numbers=numbers, logits=torch.randn(len(examples), 1, 9))
    result = loss_of(family, output, batch["labels"], batch["spans"])
    wanted = torch.tensor([value_of(token) for token in batch["labels"].tolist()])
    torch.testing.assert_close(result.loss, (numbers[:, 0] - wanted).square().mean())
    assert list(result.sums) == ["mse"]


def test_the_logits_of_a_large_vocabulary_do_not_overflow_in_fp16(tmp_path):
    family, examples = fitted("causal_lm", tmp_path)
    batch = TrainingCollator(family, Numbers(), family.vocabulary())(examples)
    logits = torch.full((len(examples), 1, 150_000), -5.0, dtype=torch.float16)
    numbers = torch.zeros(batch["input_ids"].shape)
    outputs = NumberOutput(logits=logits, numbers=numbers)
    assert loss_of(family, outputs, batch["labels"], batch["spans"]).loss.isfinite()


def test_an_answer_of_two_numbers_is_rejected(tmp_path):
    family, examples = fitted("t5", tmp_path)
    two = dataclasses.replace(examples[0], answer=Number("2/7"), where="x, line 3")
    collate = TrainingCollator(family, Numbers(), family.vocabulary())
    with pytest.raises(ValueError, match=r"x, line 3: the answer '2/7' holds 2 numbers, and a"):
        collate([two])
