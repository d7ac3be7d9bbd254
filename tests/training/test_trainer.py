"""The trainer: cross-entropy as in transformers, global counts, raw components in the log."""

import dataclasses
import json

import pytest
import torch
import transformers
from tiny_models import small_config, tiny_family, tiny_model

from mm_numeric.data.collator import TrainingCollator
from mm_numeric.losses.numeric_loss import NumericLoss
from mm_numeric.losses.presets import PRESETS
from mm_numeric.numbers.vocabulary import NumberVocabulary
from mm_numeric.training.callbacks.json_log import JsonLog
from mm_numeric.training.setup import training_arguments
from mm_numeric.training.trainer import NumericTrainer


def make_trainer(tmp_path, clock_examples, preset, *overrides, **spec):
    task, examples = clock_examples
    family = tiny_family()
    vocabulary = NumberVocabulary.from_tokenizer(family.tokenizer)
    args = training_arguments(small_config(tmp_path, *overrides))
    transformers.set_seed(0)
    return NumericTrainer(
        model=tiny_model(),
        args=args,
        train_dataset=examples,
        data_collator=TrainingCollator(family, task, vocabulary),
        objective=NumericLoss(dataclasses.replace(PRESETS[preset], **spec), vocabulary=vocabulary),
        callbacks=[JsonLog(tmp_path / "log.jsonl")],
    )


def first_gradient(trainer):
    """Run one optimiser step with a learning rate of 0 and return the gradients it used.

    In float64, where sums in another order agree: the sharp softmax of ntil multiplies the rounding
    errors of float32 by ten.
    """
    trainer.model.double()
    kept = {}

    class Keep(transformers.TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, **kwargs):
            kept.update({n: p.grad.clone() for n, p in trainer.model.named_parameters()})

    trainer.add_callback(Keep())
    trainer.train()
    return kept


ONE_STEP = ("trainer.max_steps=1", "trainer.learning_rate=0.0", "trainer.max_grad_norm=0.0",
            "trainer.save_strategy='no'", "trainer.logging_steps=1")  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["ce", "ntil"])
def test_four_micro_batches_give_the_gradient_of_one_batch(tmp_path, clock_examples, preset):
    whole = make_trainer(
        tmp_path / "a", clock_examples, preset, *ONE_STEP,
        "trainer.per_device_train_batch_size=8", balance="fixed",
    )  # fmt: skip
    parts = make_trainer(
        tmp_path / "b", clock_examples, preset, *ONE_STEP,
        "trainer.per_device_train_batch_size=2", "trainer.gradient_accumulation_steps=4",
        balance="fixed",
    )  # fmt: skip
    expected, found = first_gradient(whole), first_gradient(parts)
    apart = torch.stack([(found[name] - gradient).norm() for name, gradient in expected.items()])
    size = torch.stack([gradient.norm() for gradient in expected.values()]).norm()
    assert apart.norm() / size < 1e-6  # norms inside the model are taken in float32 all the same


@pytest.mark.slow
def test_without_weight_the_gradients_are_exactly_those_of_ce(tmp_path, clock_examples):
    plain = make_trainer(tmp_path, clock_examples, "ce", *ONE_STEP)
    expected = first_gradient(plain)
    for preset in ("ntl_was", "ntil"):
        trainer = make_trainer(tmp_path, clock_examples, preset, *ONE_STEP, numeric_weight=0.0)
        found = first_gradient(trainer)
        assert all(torch.equal(found[name], gradient) for name, gradient in expected.items())


def test_ce_equals_the_model_s_own_loss(tmp_path, clock_examples):
    trainer = make_trainer(tmp_path, clock_examples, "ce")
    batch = trainer.data_collator(clock_examples[1][:6])
    labels, supervised = batch["labels"], batch["supervised"]
    unshifted = torch.full(supervised.shape, -100)
    unshifted[supervised.roll(1, dims=1)] = labels
    inputs = {k: v for k, v in batch.items() if k not in ("labels", "supervised", "spans")}
    model = trainer.model.eval()
    with torch.no_grad():
        own = model(**inputs, labels=unshifted).loss
        ours = trainer.compute_loss(model, batch)
    torch.testing.assert_close(ours.cpu(), own.cpu())


@pytest.mark.slow
def test_the_log_holds_every_raw_part(tmp_path, clock_examples):
    trainer = make_trainer(tmp_path, clock_examples, "ntil", "trainer.save_strategy='no'")
    trainer.train()
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [2, 4, 6]
    for line in lines:
        assert set(line["components"]) == {"ce", "emd_exp", "relative", "magnitude"}
        # The published ratio makes the total 1.3 times CE, up to the rounding of float32.
        assert line["loss"] == pytest.approx(1.3 * line["components"]["ce"], rel=0.02)


@pytest.mark.slow
def test_parts_are_means_over_all_that_was_seen_since_the_last_log(tmp_path, clock_examples):
    trainer = make_trainer(tmp_path, clock_examples, "emd", *ONE_STEP,
                           "trainer.per_device_train_batch_size=2",
                           "trainer.gradient_accumulation_steps=4")  # fmt: skip
    seen = []
    collate = trainer.data_collator
    trainer.data_collator = lambda examples: seen.append(examples) or collate(examples)
    trainer.train()
    line = json.loads((tmp_path / "log.jsonl").read_text())
    with torch.no_grad():
        batch = collate([example for examples in seen[:4] for example in examples])
        labels, supervised, spans = (batch.pop(k) for k in ("labels", "supervised", "spans"))
        logits = tiny_model().eval()(**batch, logits_to_keep=supervised).logits
        expected = trainer.objective(logits, labels, spans).components
    for name in ("ce", "emd"):
        assert line["components"][name] == pytest.approx(expected[name].item(), rel=1e-4)
