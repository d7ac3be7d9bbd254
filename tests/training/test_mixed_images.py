"""Rows with and without images in one run: same losses, and no rank waits for another."""

import json
from dataclasses import replace

import pytest
import torch
from mixed_rows import Counts, write_mixed
from rank_runs import run
from run_files import log, weights
from tiny_models import small_config, tiny_family, tiny_model

from mm_numeric.config.data import DataSource
from mm_numeric.data.collator import (
    BATCH_KEYS,
    TrainingCollator,
    has_mixed_modalities,
    prompt_batch,
)
from mm_numeric.data.examples import load_examples
from mm_numeric.inference.generate import generate
from mm_numeric.losses.numeric_loss import NumericLoss

pytestmark = pytest.mark.slow

STEPS = 6
EVALUATED = 8  # rows: two batches a rank, one of them with an image
PATTERN = "ptttttptpptttpptttpptttt"
"""Four rows a step, two on each rank: an image on the one, the other or both, or on none (last)."""


def examples_of(folder, pattern):
    rows = write_mixed(folder, pattern)
    return load_examples(Counts(), DataSource(path=str(rows)), folder, training=True)


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    return examples_of(tmp_path_factory.mktemp("texts"), "ttt")


@pytest.fixture
def collator():
    family = tiny_family()
    return TrainingCollator(family, Counts(), family.vocabulary())


def gradients(collator, examples, digit_runs=False):
    batch = replace(collator, digit_runs=digit_runs)(examples)
    labels, supervised, spans, _ = (batch.pop(key) for key in BATCH_KEYS)
    model = tiny_model()
    logits = model(**batch, logits_to_keep=supervised).logits
    loss = NumericLoss("ntil_soft", vocabulary=collator.vocabulary, reduction="samples")(
        logits, labels, spans
    )
    loss.loss.backward()
    return loss.loss, {name: p.grad for name, p in model.named_parameters()}


@pytest.mark.parametrize("digit_runs", [False, True])
def test_a_blank_image_changes_no_sum(collator, texts, digit_runs):
    """The loss is unchanged for both reductions, and the vision tower has a gradient of 0."""
    loss, without = gradients(collator, texts, digit_runs)
    shows = replace(collator, add_dummy_image_row=True)
    same, found = gradients(shows, texts, digit_runs)
    assert loss > 0
    torch.testing.assert_close(same, loss)
    for name, gradient in found.items():
        wanted = without[name]
        assert (wanted is None) == ("visual" in name)
        wanted = torch.zeros_like(gradient) if wanted is None else wanted
        torch.testing.assert_close(gradient, wanted, rtol=1e-5, atol=1e-7)


def test_a_batch_with_an_image_is_left_as_it_is(collator, tmp_path):
    examples = examples_of(tmp_path, "tp")
    batch, same = collator(examples), replace(collator, add_dummy_image_row=True)(examples)
    assert all(torch.equal(batch[key], same[key]) for key in ("input_ids", "pixel_values"))


def test_only_what_is_mixed_needs_a_blank_image(collator, tmp_path):
    examples = examples_of(tmp_path, "ttp")
    assert has_mixed_modalities(collator.family, examples)
    assert not has_mixed_modalities(collator.family, examples[:2])
    assert not has_mixed_modalities(collator.family, examples[2:])


def test_answers_are_those_without_a_blank_image(texts):
    family, model = tiny_family(), tiny_model().eval()
    inputs, frames = prompt_batch(family, texts, add_dummy_image_row=True)
    assert (len(inputs["input_ids"]), len(frames)) == (4, 3)
    plain = [found.text for found in generate(model, family, texts, 6)]
    shown = [found.text for found in generate(model, family, texts, 6, add_dummy_image_row=True)]
    assert shown == plain


def job(folder, rows, family, *overrides):
    config = small_config(
        folder,
        "task={name: 'mixed_rows:Counts'}",
        f"data={{train: {{path: {rows}}}, test: {{path: {rows}}}}}",
        f"model.family={family}",
        "objective=ntil_soft",
        f"trainer.max_steps={STEPS}",
        "trainer.per_device_train_batch_size=2",
        "trainer.train_sampling_strategy=sequential",
        "trainer.warmup_steps=0",
        "trainer.logging_steps=1",
        "trainer.save_strategy='no'",
        "trainer.adam_epsilon=1.0e-5",  # see test_ranks
        f"evaluate={{every_steps: {STEPS}, rows: {EVALUATED}}}",
        "predict={batch_size: 2, max_new_tokens: 4}",
        *overrides,
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "job.yaml").write_text(config.to_yaml())
    return str(folder / "job.yaml")


FAMILIES = ("qwen2_vl", "paligemma")


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    return write_mixed(tmp_path_factory.mktemp("rows"), PATTERN)


@pytest.fixture(scope="module")
def alone(tmp_path_factory, rows):
    """Each family trained on one rank, all four rows of a step in one batch."""
    folder = tmp_path_factory.mktemp("alone")
    one = "trainer.per_device_train_batch_size=4"
    run(1, [job(folder / family, rows, family, one) for family in FAMILIES])
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["ddp", "zero3", "padding_free"])
def test_ranks_with_and_without_images_reach_the_weights_of_one(tmp_path, rows, alone, mode):
    """A hang would be the end of this test: the ranks wait for each other for 100 s and no more."""
    families, overrides = FAMILIES, ["trainer.ddp_timeout=100"]
    if mode == "zero3":
        families = FAMILIES[:1]  # the wait is in ZeRO, not in the model
        overrides.append("trainer.deepspeed=zero3")
    if mode == "padding_free":
        families = FAMILIES[:1]
        overrides.append("data.padding_free=true")
    run(2, [job(tmp_path / family, rows, family, *overrides) for family in families])
    for family in families:
        whole, split = weights(alone / family / "run"), weights(tmp_path / family / "run")
        for name, value in whole.items():
            torch.testing.assert_close(split[name], value, rtol=0, atol=1e-5, msg=name)
        lines = [
            [line for line in log(folder / family / "run") if "loss" in line]
            for folder in (alone, tmp_path)
        ]
        assert len(lines[0]) == len(lines[1]) == STEPS
        for line, other in zip(*lines, strict=True):
            assert line["loss"] == pytest.approx(other["loss"], rel=1e-4)
        answers = [
            [json.loads(line) for line in (f / family / "run/evaluation/predictions.jsonl").open()]
            for f in (alone, tmp_path)
        ]
        assert answers[0] == answers[1]
        assert len(answers[0]) == EVALUATED
