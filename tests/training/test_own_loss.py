"""What a model adds to its own loss is trained, or is an error with both numbers."""

import re
from dataclasses import replace

import architectures
import own_losses
import pytest
import torch
from mixed_rows import write_mixed
from own_losses import AddsLoss, adding
from processes import Job
from tiny_integrations import (
    COLLATE,
    NUMBERS,
    NumericTrainerForTests,
    by_sft_trainer,
    by_trainer,
    mixture,
    rows,
    settings,
)
from tiny_models import small_config, tiny_causal_lm, tiny_checkpoint
from transformers import Trainer, TrainingArguments
from trl import SFTTrainer

from mm_numeric import NumericLoss, loss_func
from mm_numeric.data.collator import BATCH_KEYS, make_collator
from mm_numeric.data.examples import load_examples
from mm_numeric.models.loading import load_family
from mm_numeric.training.own_loss import COMPARED_TOKENS
from mm_numeric.training.setup import make_trainer, training_arguments

pytestmark = pytest.mark.slow

ACCUMULATED = {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 4, "max_steps": 2}


def loss_of(policy="stop", preset="ce"):
    return NumericLoss(preset, vocabulary=NUMBERS, own_loss=policy)


def trainer_of(folder, model, policy="stop"):
    args = TrainingArguments(**settings(folder))
    return NumericTrainerForTests(model, args, objective=loss_of(policy))


def lines(trainer):
    return [line for line in trainer.state.log_history if "loss" in line]


def test_another_loss_of_a_model_is_an_error_with_both_numbers(tmp_path):
    model, batch = adding(tiny_causal_lm()).eval(), COLLATE(list(rows())[:8])
    own, alone = model(**batch).loss.item(), tiny_causal_lm()(**batch).loss.item()
    numbers = f"own loss is {own:.6g} in the first batch, but .* losses are {alone:.6g}, so that"
    with pytest.raises(ValueError, match=f"^own_loss: the model's {numbers} .* to keep.* ignore"):
        trainer_of(tmp_path, model).compute_loss(model, batch)
    assert own - alone > 0.05
    found = {p: trainer_of(tmp_path, model, p).compute_loss(model, batch).item()
             for p in ("keep", "ignore")}  # fmt: skip
    assert found == pytest.approx({"keep": own, "ignore": alone}, rel=1e-6)


def test_a_kept_loss_is_trained_and_logged_over_the_whole_step(tmp_path):
    """Also next to numeric losses, and where a micro-batch has no labels."""
    model = adding(tiny_causal_lm())
    trainer = by_trainer(
        tmp_path, NumericTrainerForTests, model=model, objective=loss_of("keep", "ntl_was"),
        changes=ACCUMULATED,
    )  # fmt: skip
    for line in lines(trainer):
        parts = line["loss/ce"] + 0.3 * line["loss/ntl_was"] + line["loss/own"]
        assert line["loss"] == pytest.approx(parts, rel=1e-6)
    batches = [COLLATE(list(rows())[i : i + 4]) for i in (0, 4)]
    squares = [adding(tiny_causal_lm()).squares(b).item() for b in batches]
    assert lines(trainer)[0]["loss/own"] == pytest.approx(sum(squares) / 2, rel=1e-5)
    one = by_trainer(tmp_path, NumericTrainerForTests, model=adding(tiny_causal_lm()),
                     objective=loss_of("keep"), changes={"max_steps": 2})  # fmt: skip
    own = by_trainer(tmp_path, Trainer, model=adding(tiny_causal_lm()), changes={"max_steps": 2})
    assert [x["loss"] for x in lines(one)] == pytest.approx(
        [x["loss"] for x in lines(own)], rel=1e-5
    )
    batch = COLLATE(list(rows())[:4])
    batch["labels"][:] = -100
    trainer.model.eval()
    loss = trainer.compute_loss(trainer.model, batch)
    assert loss.item() == pytest.approx(trainer.model.squares(batch).item(), rel=1e-5)


@pytest.mark.parametrize("integration", ["loss_func", "loss_func in SFTTrainer", "mixin"])
def test_router_losses_are_the_mean_over_micro_batches(tmp_path, integration):
    """As in SFTTrainer. Trainer adds those of a step, so that their weight depends on its size."""
    own = by_sft_trainer(tmp_path, SFTTrainer, model=mixture(), changes=ACCUMULATED)
    func = {"compute_loss_func": loss_func(loss_of(), shift=True)}
    if integration == "mixin":
        found = by_trainer(tmp_path, NumericTrainerForTests, model=mixture(), objective=loss_of(),
                           changes=ACCUMULATED)  # fmt: skip
        for line in lines(found):
            parts = line["loss/ce"] + line["loss/router"]
            assert line["loss"] == pytest.approx(parts, rel=1e-6)
            assert line["loss/router"] > 0.4
    elif integration == "loss_func":
        found = by_trainer(tmp_path, Trainer, model=mixture(), **func, changes=ACCUMULATED)
    else:
        found = by_sft_trainer(tmp_path, SFTTrainer, model=mixture(), **func, changes=ACCUMULATED)
    expected = [line["loss"] for line in lines(own)]
    assert [line["loss"] for line in lines(found)] == pytest.approx(expected, rel=1e-5)


def test_the_weight_of_sft_config_is_used(tmp_path):
    changes = {"router_aux_loss_coef": 2.0, "max_steps": 1}
    own = by_sft_trainer(tmp_path, SFTTrainer, model=mixture(), changes=changes)
    ours = by_sft_trainer(tmp_path, model=mixture(), objective=loss_of(), changes=changes)
    assert lines(ours)[0]["loss"] == pytest.approx(lines(own)[0]["loss"], rel=1e-5)


def test_loss_func_rejects_what_it_cannot_train(tmp_path):
    def train(model, policy="stop"):
        func = loss_func(loss_of(policy), shift=True)
        return by_trainer(tmp_path, model=model, compute_loss_func=func, changes={"max_steps": 1})

    with pytest.raises(ValueError, match=r"^own_loss: the model's own loss is "):
        train(adding(tiny_causal_lm()))
    with pytest.raises(ValueError, match=r"cannot give it any: use NumericLossMixin, or set own_"):
        train(adding(tiny_causal_lm()), "keep")
    assert train(adding(tiny_causal_lm()), "ignore").state.global_step == 1


def test_loss_func_says_that_it_is_not_called_by_a_trainer(logged):
    batch = COLLATE(list(rows())[:2])
    func = loss_func(loss_of(), shift=True)
    outputs = tiny_causal_lm()(batch["input_ids"])
    for _ in range(2):
        func(outputs, batch["labels"])
    assert logged.getvalue().count("loss_func is not called by a Trainer, so that losses wh") == 1


def test_the_probe_changes_nothing_and_computes_few_logits(tmp_path):
    class Watched(AddsLoss):
        def forward(self, *args, labels=None, **kwargs):
            if labels is not None:
                self.count += 1  # in place
                self.register_buffer("scale", torch.rand(3))
            outputs = super().forward(*args, labels=labels, **kwargs)
            if labels is not None:
                self.sizes.append(outputs.logits.shape[:-1].numel())
            return outputs

    model = adding(tiny_causal_lm(attention_dropout=0.5), Watched).train()
    model.sizes, scale = [], torch.ones(2)
    model.register_buffer("count", torch.zeros(1))
    model.register_buffer("scale", scale)
    trainer = trainer_of(tmp_path, model)
    batch = COLLATE(list(rows()))
    assert (batch["labels"] != -100).sum() > COMPARED_TOKENS
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    with pytest.raises(ValueError, match="own_loss"):
        trainer.compute_loss(model, batch)
    assert torch.equal(torch.rand(4), expected)
    assert model.training
    assert model.count == 0
    assert model.scale is scale
    assert torch.equal(scale, torch.ones(2))
    assert model.sizes == [COMPARED_TOKENS + 1]


def test_a_probe_that_fails_is_a_warning(tmp_path, logged):
    class Fails(AddsLoss):
        def forward(self, input_ids=None, attention_mask=None, labels=None, **kwargs):
            if labels is not None:
                raise KeyError("no labels, please")
            return super().forward(input_ids, attention_mask, **kwargs)

    trainer = by_trainer(tmp_path, NumericTrainerForTests, model=adding(tiny_causal_lm(), Fails),
                         objective=loss_of(), changes={"max_steps": 2})  # fmt: skip
    assert trainer.state.global_step == 2
    warning = r"could not be computed \(KeyError: 'no labels, please'\); router losses among"
    assert len(re.findall(warning, logged.getvalue())) == 1


def test_a_batch_without_labels_is_not_the_one_that_is_probed(tmp_path):
    model = adding(tiny_causal_lm()).eval()
    trainer = trainer_of(tmp_path, model)
    batch = COLLATE(list(rows())[:4])
    silent = batch | {"labels": torch.full_like(batch["labels"], -100)}
    assert trainer.compute_loss(model, silent) == 0
    with pytest.raises(ValueError, match="own_loss"):
        trainer.compute_loss(model, batch)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_loss_of_16_bits_may_differ_by_its_rounding(tmp_path, dtype):
    class Rounds(AddsLoss):
        def forward(self, *args, **kwargs):
            outputs = super().forward(*args, **kwargs)
            if outputs.loss is not None:
                outputs.loss = outputs.loss.to(dtype)
            return outputs

    batch = COLLATE(list(rows())[:8])
    for factor, is_error in ((0.0, False), (0.1, True)):
        model = adding(tiny_causal_lm(), Rounds, factor).to(dtype).eval()
        trainer = trainer_of(tmp_path, model)
        if is_error:
            with pytest.raises(ValueError, match="own_loss"):
                trainer.compute_loss(model, batch)
        else:
            trainer.compute_loss(model, batch)


def test_labels_are_needed_for_the_router_loss_of_nllb_and_the_z_loss_of_bamba(tmp_path):
    for name, component in (("nllb-moe", "router"), ("bamba", "own")):
        model = architectures.made(name)
        trainer = architectures.trainer_of(model, tmp_path)
        trainer.compute_loss(model, architectures.batch_of(model))
        assert trainer._own_loss.needs_labels
        assert trainer._own_loss.has_others == (component == "own")


@pytest.mark.parametrize("padding_free", ["true", "false"])
def test_batches_of_a_run(tmp_path, padding_free):
    """Their labels [n] are shifted already; the last batch has a dummy image row."""
    path = write_mixed(tmp_path / "rows", "ptpptp")
    config = small_config(
        tmp_path, "task={name: 'mixed_rows:Counts'}", f"model.name={tiny_checkpoint()}",
        f"data={{train: {{path: {path}}}, test: {{path: {path}}}, padding_free: {padding_free}}}",
        "objective={preset: ce, own_loss: keep}", "evaluate=null", "trainer.logging_steps=1",
    )  # fmt: skip
    family = load_family(config, tiny_checkpoint())
    examples = load_examples(config.task, config.data.train, tmp_path / "c", training=True)
    collator = make_collator(config, family)
    trainer = make_trainer(
        config, training_arguments(config), examples, collator, tiny_checkpoint()
    )
    adding(trainer.model)
    trainer.train()
    assert len(lines(trainer)) == 6
    for line in lines(trainer):
        assert line["loss"] == pytest.approx(line["loss/ce"] + line["loss/own"], rel=1e-5)
        assert line["loss/own"] > 0.01
    texts = [example for example in examples if example.image is None]
    batch = replace(collator, add_dummy_image_row=True)(texts)
    assert len(batch["input_ids"]) == len(texts) + 1
    labels = torch.full_like(batch["input_ids"], -100)
    at = batch["supervised"].roll(1, dims=1)
    labels[at] = batch["input_ids"][at]
    assert labels[at].tolist() == batch["labels"].tolist()
    inputs = {name: value for name, value in batch.items() if name not in BATCH_KEYS}
    model = trainer.model.eval()
    own = model(**inputs, labels=labels).loss
    torch.testing.assert_close(trainer.compute_loss(model, batch), own, rtol=1e-5, atol=0)


def test_a_difference_on_one_rank_is_an_error_on_all(tmp_path):
    job = Job(own_losses.main, [str(tmp_path)], tmp_path / "out.txt", ranks=2)
    assert job.wait() == [0, 0], job.text()
    found = {(tmp_path / f"{rank}.txt").read_text() for rank in (0, 1)}
    assert len(found) == 1
    assert found.pop().startswith("own_loss: the model's own loss is ")
