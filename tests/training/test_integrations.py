"""Each integration trains the same model to the same weights."""

import contextlib
import importlib
import json
import math
import pickle
from dataclasses import replace
from types import SimpleNamespace

import pytest
import tiny_integrations
import torch
from datasets import Dataset
from peft import (
    CPTConfig,
    PrefixTuningConfig,
    PromptEncoderConfig,
    PromptTuningConfig,
    get_peft_model,
)
from processes import Job
from safetensors.torch import load_file
from tiny_integrations import (
    COLLATE,
    NUMBERS,
    STEPS,
    TEXTS,
    NumericSFTTrainer,
    NumericTrainerForTests,
    by_loop,
    by_sft_trainer,
    by_trainer,
    rows,
    settings,
    weights,
)
from tiny_models import tiny_byt5, tiny_causal_lm
from transformers import (
    ByT5Tokenizer,
    CLIPVisionConfig,
    DataCollatorForSeq2Seq,
    GitConfig,
    GitForCausalLM,
    Glm4MoeConfig,
    Glm4MoeForCausalLM,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    M2M100Config,
    M2M100ForConditionalGeneration,
    MixtralConfig,
    MixtralForCausalLM,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    Trainer,
    TrainingArguments,
)
from transformers.modeling_outputs import CausalLMOutputWithPast, Seq2SeqLMOutput
from trl import DPOTrainer, RLOOTrainer, SFTTrainer

from mm_numeric import (
    NumberVocabulary,
    NumericLoss,
    NumericLossMixin,
    collate_with_spans,
    loss_func,
    step_counts,
)
from mm_numeric.training.integrations import check_base

pytestmark = pytest.mark.slow

FLAT_COLLATE = replace(COLLATE, padding_free=True)
FIXED = ["ntl_was", "ntil"]


def assert_same(model, other, tolerance=1e-5):
    expected = weights(other)
    apart = max((value - expected[name]).abs().max() for name, value in weights(model).items())
    assert apart <= tolerance


def moved(model, start) -> bool:
    before = weights(start)
    return all((value - before[name]).abs().max() > 1e-3 for name, value in weights(model).items())


@pytest.mark.parametrize("preset", ["ce", "ntil_soft"])
def test_three_integrations_reach_the_same_weights(tmp_path, preset):
    loss_of = NumericLoss(preset, vocabulary=NUMBERS)
    looped = by_loop(loss_of)
    assert moved(looped, tiny_causal_lm())
    assert_same(
        by_trainer(tmp_path, compute_loss_func=loss_func(loss_of, shift=True)).model, looped
    )
    assert_same(by_trainer(tmp_path, NumericTrainerForTests, objective=loss_of).model, looped)
    assert_same(by_sft_trainer(tmp_path, objective=loss_of).model, looped)


@pytest.mark.slow
@pytest.mark.parametrize("preset", FIXED)
def test_unequal_micro_batches_train_as_one_batch_does(tmp_path, preset):
    loss_of = NumericLoss(preset, vocabulary=NUMBERS, balance="fixed")
    labels = [COLLATE(list(rows())[i : i + 2])["labels"] for i in (0, 2, 4, 6)]
    digits = [step_counts(loss_of, [each], shift=True).tokens.item() for each in labels]
    assert digits == [9, 0, 4, 1]
    whole = by_loop(loss_of)
    assert_same(by_loop(loss_of, micro_batches=4), whole)
    changes = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}
    trainer = by_trainer(tmp_path, NumericTrainerForTests, objective=loss_of, changes=changes)
    assert_same(trainer.model, whole)
    assert_same(by_sft_trainer(tmp_path, objective=loss_of, changes=changes).model, whole)


@pytest.mark.parametrize("preset", ["ntil", "ntl_was"])
def test_a_running_balance_is_the_same_however_a_step_is_cut(tmp_path, preset):
    def trained(parts):
        changes = {"per_device_train_batch_size": 8 // parts, "gradient_accumulation_steps": parts}
        loss_of = NumericLoss(preset, vocabulary=NUMBERS, balance="running")
        made = by_trainer(tmp_path, NumericTrainerForTests, objective=loss_of, changes=changes)
        return made.model, loss_of.balance.means.tolist()

    (whole, means), (cut, same) = trained(1), trained(4)
    assert_same(cut, whole)
    assert same == pytest.approx(means)
    fixed = NumericLoss(preset, vocabulary=NUMBERS, balance="fixed")
    other = by_trainer(tmp_path, NumericTrainerForTests, objective=fixed).model
    with pytest.raises(AssertionError):
        assert_same(other, whole, tolerance=1e-3)


def test_a_running_balance_resumes_from_a_checkpoint(tmp_path):
    def trainer(steps):
        return NumericTrainerForTests(
            tiny_causal_lm(),
            TrainingArguments(
                **settings(tmp_path, max_steps=steps, save_strategy="steps", save_steps=2)
            ),
            train_dataset=rows(),
            data_collator=COLLATE,
            objective=NumericLoss("ntil", vocabulary=NUMBERS, balance="running"),
        )

    whole = trainer(STEPS)
    whole.train()
    rest = trainer(STEPS)
    rest.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert_same(rest.model, whole.model, tolerance=0)
    assert torch.equal(rest.objective.balance.means, whole.objective.balance.means)
    stored = tmp_path / "checkpoint-2" / "objective_balance.json"
    for damaged in ["{}", '{"means": [1.0]}']:
        stored.write_text(damaged)
        with pytest.raises(ValueError, match=r"objective_balance\.json: damaged or of another"):
            trainer(STEPS).train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    stored.unlink()
    with pytest.raises(ValueError, match=r"checkpoint-2/objective_balance\.json: not found"):
        trainer(STEPS).train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))


def test_a_short_last_accumulation_is_a_step_of_its_own(tmp_path):
    loss_of = NumericLoss("ntil_soft", vocabulary=NUMBERS)
    changes = {"max_steps": -1, "num_train_epochs": 1, "per_device_train_batch_size": 2,
               "gradient_accumulation_steps": 4}  # fmt: skip
    few = rows().select(range(12))  # a step of 8 rows, then one of 4
    cut = by_trainer(tmp_path, NumericTrainerForTests, few, objective=loss_of, changes=changes)
    assert cut.state.global_step == 2
    model = tiny_causal_lm()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0, fused=True)
    for part in (range(8), range(8, 12)):
        batch = COLLATE(list(few.select(part)))
        labels = batch.pop("labels")
        loss_of(model(**batch).logits, labels, shift=True).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert_same(cut.model, model)


def test_a_micro_batch_without_labels_adds_nothing(tmp_path):
    loss_of = NumericLoss("ntil_soft", vocabulary=NUMBERS)
    changes = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}

    def silence(example, i):
        return {"labels": [-100] * len(example["labels"])} if i % 8 in (2, 3) else {}

    data = rows().map(silence, with_indices=True)
    assert (COLLATE([data[2], data[3]])["labels"] == -100).all()
    some = by_trainer(tmp_path, NumericTrainerForTests, data, objective=loss_of, changes=changes)
    whole = by_trainer(tmp_path, NumericTrainerForTests, data, objective=loss_of)
    assert_same(some.model, whole.model)


def test_loss_func_weighs_micro_batches_by_their_supervised_tokens():
    """As its docstring says: exact for cross-entropy, a weighed mean of means for the others."""
    model = tiny_causal_lm()
    loss_of, cross_entropy = (
        NumericLoss("ntl_was", vocabulary=NUMBERS),
        NumericLoss("ce", vocabulary=NUMBERS),
    )
    data = list(rows())
    batches = [COLLATE(data[:2]), COLLATE(data[2:4]), COLLATE(data[4:8])]
    whole = COLLATE(data[:8])
    tokens = [(b["labels"][:, 1:] != -100).sum() for b in batches]
    outputs = [model(b["input_ids"], b["attention_mask"]) for b in batches]

    def accumulated(each):
        pairs = zip(outputs, batches, strict=True)
        return sum(loss_func(each, shift=True)(o, b["labels"], num_items_in_batch=sum(tokens))
                   for o, b in pairs)  # fmt: skip

    logits = model(whole["input_ids"], whole["attention_mask"]).logits
    expected = cross_entropy(logits, whole["labels"], shift=True).loss
    torch.testing.assert_close(accumulated(cross_entropy), expected)
    means = [loss_of(o.logits, b["labels"], shift=True).loss
             for o, b in zip(outputs, batches, strict=True)]  # fmt: skip
    weighed = sum(n * mean for n, mean in zip(tokens, means, strict=True)) / sum(tokens)
    torch.testing.assert_close(accumulated(loss_of), weighed)
    torch.testing.assert_close(
        loss_func(loss_of, shift=True)(outputs[0], batches[0]["labels"]), means[0]
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"completion_only_loss": False},
        {"packing": True, "max_length": 24},
        {"packing": True, "max_length": 24, "packing_strategy": "wrapped"},
        {"padding_free": True, "max_length": None},
        {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 2},
    ],
    ids=["completion", "all", "packed", "wrapped", "padding_free", "accumulated"],
)
def test_with_ce_sft_trainer_goes_where_it_goes_without_us(tmp_path, changes):
    """Text in, TRL's own preparation: the labels are read as TRL reads them.

    With SGD: its own head works in float32, and Adam makes a step of a gradient's rounding.
    """
    changes = {"optim": "sgd", "learning_rate": 0.1, **changes}
    data = Dataset.from_list(TEXTS * 8)
    own = by_sft_trainer(tmp_path, SFTTrainer, data, changes=changes)
    ours = by_sft_trainer(
        tmp_path, data=data, objective=NumericLoss("ce", vocabulary=NUMBERS), changes=changes
    )
    assert_same(ours.model, own.model, tolerance=1e-6)
    losses = [[line["loss"] for line in t.state.log_history if "loss" in line] for t in (own, ours)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


def test_numbers_in_packed_rows_are_those_of_their_samples(tmp_path):
    loss_of = NumericLoss("ntil_soft", vocabulary=NUMBERS)
    data = Dataset.from_list(TEXTS * 5)
    plain = by_sft_trainer(tmp_path, data=data, objective=loss_of)
    flat = {"padding_free": True, "max_length": None}
    assert_same(by_sft_trainer(tmp_path, data=data, objective=loss_of, changes=flat).model,
                plain.model)  # fmt: skip


def test_documents_in_a_row_of_a_vlm_do_not_see_each_other(tmp_path):
    """Its text model has a cache of keys, with which transformers sees no documents in a row."""
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2}
    text = LlamaConfig(**sizes, num_hidden_layers=1, vocab_size=len(tiny_integrations.TOKENIZER))
    vision = CLIPVisionConfig(**sizes, num_hidden_layers=1, image_size=28, patch_size=14)
    model = LlavaForConditionalGeneration(LlavaConfig(text_config=text, vision_config=vision))
    with torch.no_grad():
        for layer in model.model.language_model.layers:
            layer.self_attn.o_proj.weight.mul_(1000)
    args = TrainingArguments(**settings(tmp_path))
    trainer = NumericTrainerForTests(
        model.eval(), args, objective=NumericLoss("ce", vocabulary=NUMBERS)
    )
    data = list(rows())[:8]
    losses = [trainer.compute_loss(model, each(data)) for each in (COLLATE, FLAT_COLLATE)]
    torch.testing.assert_close(*losses)


def test_a_model_that_takes_no_use_cache_is_trained_without_padding(tmp_path):
    class Plain(type(tiny_causal_lm())):
        def forward(self, input_ids, position_ids):
            return super().forward(input_ids=input_ids, position_ids=position_ids, use_cache=False)

    model = tiny_causal_lm().eval()
    model.__class__ = Plain
    args = TrainingArguments(**settings(tmp_path))
    trainer = NumericTrainerForTests(model, args, objective=NumericLoss("ce", vocabulary=NUMBERS))
    flat = FLAT_COLLATE(list(rows())[:2])
    batch = {name: flat[name] for name in ("input_ids", "position_ids", "labels")}
    assert trainer.compute_loss(model, batch).isfinite()


def test_virtual_tokens_of_prompt_tuning_have_no_loss(tmp_path):
    torch.manual_seed(0)
    prompt = PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
    model = get_peft_model(tiny_causal_lm(), prompt).eval()
    args = TrainingArguments(**settings(tmp_path))
    trainer = NumericTrainerForTests(model, args, objective=NumericLoss("ce", vocabulary=NUMBERS))
    batch = COLLATE(list(rows())[:8])
    loss, outputs = trainer.compute_loss(model, batch, return_outputs=True)
    torch.testing.assert_close(loss, model(**batch).loss, check_dtype=False)
    assert outputs.logits.shape[:2] == batch["labels"].shape


PROMPT_TUNING = (
    PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3),
    PromptEncoderConfig(task_type="CAUSAL_LM", num_virtual_tokens=3, encoder_hidden_size=16),
    CPTConfig(task_type="CAUSAL_LM", cpt_token_ids=[1], cpt_mask=[1], cpt_tokens_type_mask=[1]),
)
PREFIX_TUNING = PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)


@pytest.mark.parametrize("prompt", [*PROMPT_TUNING, PREFIX_TUNING])
def test_prompt_tuning_needs_the_mixin_and_a_document_in_each_row(tmp_path, prompt):
    def tuned():
        torch.manual_seed(0)
        return get_peft_model(tiny_causal_lm(), prompt)

    loss_of, one = NumericLoss("ntil", vocabulary=NUMBERS), {"max_steps": 1}
    of_mixin = by_trainer(tmp_path, NumericTrainerForTests, model=tuned(), objective=loss_of,
                          changes=one).state.log_history[0]["loss"]  # fmt: skip
    for integration, cls in ((by_trainer, Trainer), (by_sft_trainer, SFTTrainer)):
        options = {"changes": one, "compute_loss_func": loss_func(loss_of, shift=True)}
        if prompt is PREFIX_TUNING:  # has no virtual tokens; TRL 1.16 cannot train it
            if integration is by_trainer:
                found = integration(tmp_path, cls, model=tuned(), **options).state.log_history
                assert found[0]["loss"] == pytest.approx(of_mixin, rel=1e-3)
            continue
        with pytest.raises(ValueError, match=r"adds virtual tokens .*: use NumericLossMixin"):
            integration(tmp_path, cls, model=tuned(), **options)
    changes = {"padding_free": True, "max_length": None}
    with pytest.raises(
        ValueError, match=f"PEFT ignores position_ids under {prompt.peft_type.name}"
    ):
        by_sft_trainer(tmp_path, model=tuned(), objective=loss_of, changes=changes)


def test_a_model_with_more_logits_than_labels_is_rejected(tmp_path):
    """GIT puts the features of an image before the text."""
    size = len(tiny_integrations.TOKENIZER)
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "image_size": 16,
              "num_attention_heads": 2, "patch_size": 8}  # fmt: skip
    model = GitForCausalLM(GitConfig(
        vision_config=vision, vocab_size=size, hidden_size=16, num_hidden_layers=1,
        num_attention_heads=2, intermediate_size=16,
    ))  # fmt: skip

    def collate(examples):
        batch = COLLATE(examples)
        return {**batch, "pixel_values": torch.zeros(len(batch["labels"]), 3, 16, 16)}

    loss_of = NumericLoss("ntil", vocabulary=NUMBERS)
    for cls, option in (
        (Trainer, {"compute_loss_func": loss_func(loss_of, shift=True)}),
        (NumericTrainerForTests, {"objective": loss_of}),
    ):
        with pytest.raises(ValueError, match=r"have 24 positions, the labels 19: .*GIT"):
            by_trainer(tmp_path, cls, model=model, data_collator=collate, **option)


def test_the_router_loss_of_a_mixture_of_experts_is_kept(tmp_path):
    def mixtral():
        torch.manual_seed(0)
        return MixtralForCausalLM(MixtralConfig(
            vocab_size=len(tiny_integrations.TOKENIZER), hidden_size=32, intermediate_size=32,
            num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2,
            num_local_experts=4, router_aux_loss_coef=0.5,
        ))  # fmt: skip

    changes = {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 4}
    own = by_sft_trainer(tmp_path, SFTTrainer, model=mixtral(), changes=changes)
    ours = by_sft_trainer(
        tmp_path, model=mixtral(), objective=NumericLoss("ce", vocabulary=NUMBERS), changes=changes
    )
    assert_same(ours.model, own.model)


def test_a_mixture_of_experts_without_a_router_loss(tmp_path):
    """It returns its router logits, and balances its experts without a loss."""
    sizes = ("hidden_size", "intermediate_size", "moe_intermediate_size", "n_routed_experts")
    sizes += ("num_attention_heads", "num_key_value_heads", "num_experts_per_tok")
    config = Glm4MoeConfig(
        **dict.fromkeys(sizes, 8), vocab_size=len(tiny_integrations.TOKENIZER),
        num_hidden_layers=1, first_k_dense_replace=0, output_router_logits=True,
    )  # fmt: skip
    model = Glm4MoeForCausalLM(config).eval()
    args = TrainingArguments(**settings(tmp_path))
    trainer = NumericTrainerForTests(model, args, objective=NumericLoss("ce", vocabulary=NUMBERS))
    batch = COLLATE(list(rows())[:8])
    torch.testing.assert_close(trainer.compute_loss(model, batch), model(**batch).loss)


class TestEncoderDecoder:
    """A T5 that reads and writes bytes: labels stand at the row that predicts them."""

    TOKENIZER = ByT5Tokenizer()
    NUMBERS = NumberVocabulary.from_tokenizer(TOKENIZER)

    def rows(self):
        return Dataset.from_list([
            {**self.TOKENIZER(t["prompt"]), "labels": self.TOKENIZER(t["completion"]).input_ids}
            for t in TEXTS * 5
        ])  # fmt: skip

    def looped(self, loss_of):
        model, data = tiny_byt5(), list(self.rows())
        collate = DataCollatorForSeq2Seq(self.TOKENIZER)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0, fused=True)
        for step in range(STEPS):
            batch = collate(data[8 * step : 8 * step + 8])
            start = torch.zeros(8, 1, dtype=torch.long)
            before = torch.cat([start, batch["labels"][:, :-1].clamp(min=0)], dim=1)
            logits = model(
                batch["input_ids"], batch["attention_mask"], decoder_input_ids=before
            ).logits
            loss_of(logits, batch["labels"], shift=False).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return model

    def test_both_integrations_reach_the_weights_of_a_loop(self, tmp_path):
        loss_of = NumericLoss("ntil_soft", vocabulary=self.NUMBERS)
        expected = self.looped(loss_of)
        assert moved(expected, tiny_byt5())
        model = tiny_byt5()
        func = by_trainer(
            tmp_path, Trainer, self.rows(), model,
            data_collator=DataCollatorForSeq2Seq(self.TOKENIZER, model),
            compute_loss_func=loss_func(loss_of, shift=False),
        )  # fmt: skip
        assert_same(func.model, expected)
        mixed = by_trainer(
            tmp_path, NumericTrainerForTests, self.rows(), tiny_byt5(),
            data_collator=DataCollatorForSeq2Seq(self.TOKENIZER), objective=loss_of,
            changes={"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4},
        )  # fmt: skip
        assert_same(mixed.model, expected)

    @pytest.mark.parametrize("missing", [None, "decoder_start_token_id", "pad_token_id"])
    def test_a_model_that_prepares_no_decoder_inputs(self, tmp_path, missing):
        """NLLB, which has no ``prepare_decoder_input_ids_from_labels``."""
        sizes = ("encoder_layers", "decoder_layers", "encoder_ffn_dim", "decoder_ffn_dim")
        sizes += ("encoder_attention_heads", "decoder_attention_heads")
        config = M2M100Config(**dict.fromkeys(sizes, 1), vocab_size=400, d_model=8, pad_token_id=0)
        config.decoder_start_token_id = 1
        model = M2M100ForConditionalGeneration(config).eval()
        args = TrainingArguments(**settings(tmp_path))
        trainer = NumericTrainerForTests(
            model, args, objective=NumericLoss("ce", vocabulary=self.NUMBERS)
        )
        batch = DataCollatorForSeq2Seq(self.TOKENIZER)(list(self.rows().select(range(8))))
        expected = model(**batch).loss
        if missing:
            setattr(model.config, missing, None)
            with pytest.raises(ValueError, match=f"no {missing}: set it, or let the"):
                trainer.compute_loss(model, batch)
        else:
            torch.testing.assert_close(trainer.compute_loss(model, batch), expected)

    def test_seq2seq_trainer_evaluates(self, tmp_path):
        class NumericSeq2SeqTrainer(NumericLossMixin, Seq2SeqTrainer):
            pass

        loss_of, data = (
            NumericLoss("ntl_was", vocabulary=self.NUMBERS),
            self.rows().select(range(8)),
        )
        trainer = NumericSeq2SeqTrainer(
            tiny_byt5(),
            Seq2SeqTrainingArguments(str(tmp_path), use_cpu=True, report_to=[], disable_tqdm=True,
                                     generation_max_length=4),
            eval_dataset=data,
            data_collator=collate_with_spans(
                DataCollatorForSeq2Seq(self.TOKENIZER), loss_of, shift=False
            ),
            objective=loss_of,
        )  # fmt: skip
        batch = trainer.data_collator.collator(list(data))
        with torch.no_grad():
            outputs = tiny_byt5().eval()(**batch)
        expected = loss_of(outputs.logits, batch["labels"], shift=False).loss
        assert trainer.evaluate()["eval_loss"] == pytest.approx(expected.item(), rel=1e-5)
        trainer.args.predict_with_generate = True
        found = trainer.predict(data)
        assert found.metrics["test_loss"] == pytest.approx(outputs.loss.item(), rel=1e-5)


def test_every_raw_component_is_logged_next_to_the_entries_of_sft_trainer(tmp_path):
    loss_of = NumericLoss("ntil", vocabulary=NUMBERS)
    changes = {"logging_steps": 2, "include_num_input_tokens_seen": "all", "max_steps": 2}
    log, _ = by_sft_trainer(tmp_path, objective=loss_of, changes=changes).state.log_history
    parts = {name.removeprefix("loss/") for name in log if name.startswith("loss/")}
    assert parts == {"ce", "emd_exp", "relative", "magnitude"}
    assert log["loss"] == pytest.approx(1.3 * log["loss/ce"], rel=1e-3)
    assert log["num_input_tokens_seen"] == sum(COLLATE(list(rows())[i : i + 8])["input_ids"].numel()
                                               for i in (0, 8))  # fmt: skip


def test_a_second_training_logs_none_of_the_first(tmp_path):
    """Whose last step was not logged."""
    first, second = rows().select([4] * 8), rows().select([1] * 8)
    loss_of, changes = NumericLoss("ce", vocabulary=NUMBERS), {"logging_steps": 2, "max_steps": 1}
    trainer = by_trainer(
        tmp_path, NumericTrainerForTests, first, objective=loss_of, changes=changes
    )
    trainer.args.logging_steps, trainer.train_dataset = 1, second
    trainer.train()
    (log,) = (line for line in trainer.state.log_history if "loss/ce" in line)
    assert log["loss/ce"] == pytest.approx(log["loss"], rel=1e-6)


@pytest.mark.parametrize("integration", [by_trainer, by_sft_trainer])
def test_evaluation_leaves_training_and_its_log_alone(tmp_path, integration):
    loss_of = NumericLoss("ntil_soft", vocabulary=NUMBERS)
    cls = NumericTrainerForTests if integration is by_trainer else NumericSFTTrainer
    held_out = rows().select([1, 3, 5])
    plain = integration(tmp_path, cls, objective=loss_of, changes={"logging_steps": STEPS})
    often = {"eval_strategy": "steps", "eval_steps": 1, "logging_steps": STEPS,
             "per_device_eval_batch_size": 3}  # fmt: skip
    watched = integration(tmp_path, cls, objective=loss_of, eval_dataset=held_out, changes=often)
    assert_same(watched.model, plain.model, tolerance=0)
    logs = [[line for line in t.state.log_history if "loss" in line] for t in (plain, watched)]
    assert logs[0] == [{**line, "step": STEPS} for line in logs[1]]
    batch = COLLATE(list(held_out))
    labels = batch.pop("labels")
    with torch.no_grad():
        expected = loss_of(watched.model.eval()(**batch).logits, labels, shift=True).loss.item()
    assert watched.evaluate()["eval_loss"] == pytest.approx(expected, rel=1e-5)
    found = watched.predict(held_out)  # asks for the outputs
    assert found.metrics["test_loss"] == pytest.approx(expected, rel=1e-5)
    logits = found.predictions[0] if isinstance(found.predictions, tuple) else found.predictions
    assert logits.shape == (*labels.shape, len(tiny_integrations.TOKENIZER))


@pytest.mark.parametrize("collator", [COLLATE, FLAT_COLLATE])
def test_a_collator_finds_the_spans_in_a_worker(tmp_path, monkeypatch, collator):
    loss_of = NumericLoss("ntil_soft", vocabulary=NUMBERS)
    plain = by_trainer(tmp_path, NumericTrainerForTests, objective=loss_of, data_collator=collator)
    collate = pickle.loads(pickle.dumps(collate_with_spans(collator, loss_of)))
    monkeypatch.setattr(loss_of, "spans", lambda *_: pytest.fail("the spans are there"))
    early = by_trainer(tmp_path, NumericTrainerForTests, objective=loss_of, data_collator=collate)
    assert_same(early.model, plain.model, tolerance=0)


def test_a_collator_needs_labels_and_the_shift_of_the_model(tmp_path):
    loss_of = NumericLoss("ce", vocabulary=NUMBERS)
    ids = torch.ones(1, 4, dtype=torch.long)
    collate = collate_with_spans(lambda _: {"input_ids": ids, "attention_mask": ids}, loss_of)
    with pytest.raises(ValueError, match="a batch has no labels"):
        collate([])
    collate = collate_with_spans(COLLATE, loss_of, shift=False)
    with pytest.raises(ValueError, match=r"a decoder: its .* shift=True\), not shift=False"):
        by_trainer(tmp_path, NumericTrainerForTests, objective=loss_of, data_collator=collate)


def test_a_collator_cannot_find_roles():
    terms = ({"name": "own_terms:BoxDistance"},)
    loss_of = NumericLoss({"terms": terms}, vocabulary=NUMBERS)
    with pytest.raises(ValueError, match="the term own_terms:BoxDistance needs roles and groups"):
        collate_with_spans(COLLATE, loss_of)


def test_the_name_of_an_objective_is_enough(tmp_path):
    spec = {"preset": "ntl_was", "numeric_weight": 0.5}
    trainer = by_sft_trainer(tmp_path, objective=spec)
    assert trainer.objective.spec == NumericLoss(spec, vocabulary=NUMBERS).spec
    assert trainer.objective.vocabulary == NUMBERS
    args = TrainingArguments(**settings(tmp_path))
    with pytest.raises(ValueError, match="pass the tokenizer of the model"):
        NumericTrainerForTests(tiny_causal_lm(), args, objective="ntil")
    with pytest.raises(ValueError, match="objective is 3; pass a name such as 'ntil'"):
        NumericTrainerForTests(tiny_causal_lm(), args, objective=3)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"label_smoothing_factor": 0.1}, "label_smoothing_factor=0.1 requests another loss than"),
        (
            {"use_liger_kernel": True},
            "use_liger_kernel=True requests another loss than the objective",
        ),
        (
            {"loss_type": "dft"},
            "loss_type='dft' requests another loss than the objective; remove it",
        ),
        ({"average_tokens_across_devices": False}, "an objective, which counts over all ranks"),
    ],
)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_settings_for_another_loss_are_rejected(tmp_path, changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        by_sft_trainer(tmp_path, objective=NumericLoss("ce", vocabulary=NUMBERS), changes=changes)


def test_label_smoothing_next_to_a_loss_function_is_rejected(tmp_path):
    """Trainer ignores it where there is a ``compute_loss_func``."""
    loss = loss_func(NumericLoss("ce", vocabulary=NUMBERS), shift=True)
    with pytest.raises(ValueError, match=r"^label_smoothing_factor=0\.1 requests another loss th"):
        by_trainer(tmp_path, compute_loss_func=loss, changes={"label_smoothing_factor": 0.1})


def test_trainers_with_a_loss_of_their_own_are_rejected(tmp_path, monkeypatch):
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    from trl.experimental.gkd import GKDTrainer

    class OwnLoss(SFTTrainer):
        def compute_loss(self, *args, **kwargs):
            return 2 * super().compute_loss(*args, **kwargs)

    class OwnName(SFTTrainer):
        pass

    for base in (GKDTrainer, RLOOTrainer, DPOTrainer, OwnLoss):
        cls = type("Numeric", (NumericLossMixin, base), {})
        with pytest.raises(ValueError, match=f"^Numeric: {base.__name__} has a compute_loss of it"):
            cls(tiny_causal_lm(), objective=NumericLoss("ce", vocabulary=NUMBERS))
    cls = type("Numeric", (NumericLossMixin, OwnName), {})
    assert by_sft_trainer(
        tmp_path, cls, objective=NumericLoss("ce", vocabulary=NUMBERS)
    ).state.global_step

    class OwnStep(Trainer):
        def training_step(self, model, inputs, num_items_in_batch=None):
            return model(**{k: v for k, v in inputs.items() if k != "spans"}).loss

    from trl.experimental.online_dpo import OnlineDPOTrainer

    for base in (OwnStep, OnlineDPOTrainer):
        cls = type("Numeric", (NumericLossMixin, base), {})
        message = f"^Numeric: the training_step of {base.__name__} does not call compute_loss"
        with pytest.raises(ValueError, match=message):
            cls(tiny_causal_lm(), objective=NumericLoss("ce", vocabulary=NUMBERS))

    class Skips(Trainer):
        def training_step(self, *args, **kwargs):
            return torch.zeros(()) if self else super().training_step(*args, **kwargs)

    cls = type("Numeric", (NumericLossMixin, Skips), {})
    with pytest.raises(ValueError, match="the training_step of Numeric does not call compute_loss"):
        by_trainer(tmp_path, cls, objective=NumericLoss("ce", vocabulary=NUMBERS))


def test_every_trainer_of_trl_trains_an_objective_or_is_rejected(monkeypatch):
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    accepted = set()
    for module in ("", *(f".experimental.{n}" for n in ("cpo", "gold", "kto", "orpo", "tpo"))):
        trl = importlib.import_module(f"trl{module}")
        for name in dir(trl):
            if name.endswith("Trainer"):
                with contextlib.suppress(ValueError):
                    cls = type(name, (NumericLossMixin, getattr(trl, name)), {})
                    check_base(cls, NumericLossMixin)
                    accepted.add(name)
    assert accepted == {"SFTTrainer"}


def test_settings_that_an_objective_excludes_are_rejected(tmp_path):
    loss_of = NumericLoss("ntil", vocabulary=NUMBERS, reduction="samples")
    with pytest.raises(ValueError, match="packing puts several into one row: set reduction="):
        by_sft_trainer(tmp_path, objective=loss_of, changes={"packing": True, "max_length": 24})
    trainer = NumericTrainerForTests(
        tiny_causal_lm(), TrainingArguments(**settings(tmp_path)), objective=loss_of
    )
    few = list(rows())[:2]
    trainer.compute_loss(trainer.model, FLAT_COLLATE(few[:1]))
    padded = COLLATE(few)
    trainer.compute_loss(trainer.model, {**padded, "attention_mask": padded["input_ids"] > 0})
    with pytest.raises(ValueError, match="packing puts several into one row: set reduction="):
        trainer.compute_loss(trainer.model, FLAT_COLLATE(few))
    with pytest.raises(
        ValueError, match="compute_loss_func requests another loss than the objective"
    ):
        by_trainer(tmp_path, NumericTrainerForTests, objective=loss_of,
                   compute_loss_func=loss_func(loss_of, shift=True))  # fmt: skip

    args = TrainingArguments(**tiny_integrations.settings(tmp_path))
    assert args.n_gpu <= 1  # asking settles on a number
    args._n_gpu = 2
    with pytest.raises(
        ValueError, match="one process sees 2 GPUs, but an objective requires one proc"
    ):
        NumericTrainerForTests(tiny_causal_lm(), args, objective=loss_of)

    class Cut(NumericTrainerForTests):
        def get_cp_size(self):
            return 2

    with pytest.raises(ValueError, match="context and sequence parallelism split sequences"):
        by_trainer(tmp_path, Cut, objective=loss_of)


def test_nothing_to_train_on_is_one_sentence(tmp_path):
    loss_of = NumericLoss("ce", vocabulary=NUMBERS)
    with pytest.raises(ValueError, match=r"at least one micro-batch; got none\."):
        step_counts(loss_of, [], shift=True)
    with pytest.raises(ValueError, match="a batch has no labels: the data collator must return"):
        by_trainer(
            tmp_path, NumericTrainerForTests, objective=loss_of,
            data_collator=lambda rows: {k: v for k, v in COLLATE(rows).items() if k != "labels"},
        )  # fmt: skip
    with pytest.raises(ValueError, match="a batch has no labels"):
        loss_func(loss_of, shift=True)(None, None)


@pytest.mark.parametrize(
    ("outputs", "shift", "message"),
    [
        (CausalLMOutputWithPast, False, r"is a decoder, .*: loss_func\(loss_of, shift=True\)"),
        (Seq2SeqLMOutput, True, r"an encoder-decoder are .*: loss_func\(loss_of, shift=False\)"),
    ],
)
def test_the_wrong_shift_is_rejected(outputs, shift, message):
    with pytest.raises(ValueError, match=message):
        loss_func(NumericLoss("ce", vocabulary=NUMBERS), shift=shift)(outputs(), torch.zeros(1, 2))


def test_a_vocabulary_of_another_tokenizer_is_rejected(tmp_path):
    shifted = {
        token: (i + 1) % len(tiny_integrations.TOKENIZER)
        for token, i in tiny_integrations.TOKENIZER.get_vocab().items()
    }
    other = NumberVocabulary.from_tokenizer(SimpleNamespace(get_vocab=lambda: shifted))
    with pytest.raises(ValueError, match=r"in the number vocabulary and .* make the vocabulary"):
        by_sft_trainer(tmp_path, objective=NumericLoss("ce", vocabulary=other))


def test_labels_without_numbers_are_warned_about_once(tmp_path, logged):
    words = Dataset.from_list([{"prompt": "a", "completion": "b c"}] * 40)
    trainer = by_sft_trainer(
        tmp_path, data=words, objective=NumericLoss("ntil", vocabulary=NUMBERS)
    )
    names = {name for line in trainer.state.log_history for name in line}
    assert "loss/ce" in names
    assert "loss/emd_exp" not in names
    assert logged.getvalue().count("have no number, so that the loss is cross-entropy alone") == 1


def test_a_diverging_loss_is_warned_about_once(tmp_path, logged):
    changes = {"learning_rate": 50.0}
    trainer = by_sft_trainer(
        tmp_path, objective=NumericLoss("ce", vocabulary=NUMBERS), changes=changes
    )
    worst = max(line["loss/ce"] for line in trainer.state.log_history if "loss/ce" in line)
    guessing = math.log(trainer.model.config.vocab_size)
    assert worst > 2 * guessing
    warning = f"twice that of guessing each token ({guessing:.1f}): the training diverges"
    assert logged.getvalue().count(warning) == 1
    assert "Lower the learning rate (now 50)" in logged.getvalue()


@pytest.mark.slow
def test_two_ranks_reach_the_weights_of_one(tmp_path):
    """Each rank takes half of every micro-batch; one has no number at all in some of them."""
    for ranks, name in enumerate(("one", "two"), start=1):
        (tmp_path / name).mkdir()
        folder = [str(tmp_path / name)]
        job = Job(tiny_integrations.main, folder, tmp_path / f"{name}.txt", ranks=ranks)
        assert job.wait() == ranks * [0], job.text()
    whole = weights(by_loop(NumericLoss("ntil", vocabulary=NUMBERS, balance="fixed")))
    for folder in ("one", "two"):
        for integration in ("mixin", "loop"):
            for name, value in load_file(tmp_path / folder / f"{integration}.safetensors").items():
                torch.testing.assert_close(value, whole[name], rtol=0, atol=1e-5)
    routers = [
        load_file(tmp_path / folder / f"router_{average}.safetensors")
        for folder in ("one", "two")
        for average in (True, False)
    ]
    for found in routers[1:]:
        torch.testing.assert_close(found, routers[0], rtol=0, atol=1e-6)
    one, two = (json.loads((tmp_path / x / "state.json").read_text())["log_history"]
                for x in ("one", "two"))  # fmt: skip
    for line, other in zip(one[:STEPS], two[:STEPS], strict=True):
        for what in ("loss", "grad_norm", *(name for name in line if name.startswith("loss/"))):
            assert line[what] == pytest.approx(other[what], rel=1e-4)


def test_the_trainer_that_unsloth_writes_is_sft_trainer():
    """Its compute_loss passes on to Trainer's (sft_trainer_compute_loss of unsloth 2026.10.9)."""

    def compute_loss(self, *args, **kwargs):
        return super(unsloth, self).compute_loss(*args, **kwargs)

    namespace = {"__module__": "UnslothSFTTrainer", "compute_loss": compute_loss}
    unsloth = type("_UnslothSFTTrainer", (SFTTrainer,), namespace)
    check_base(type("Own", (NumericLossMixin, unsloth), {}), NumericLossMixin)
    other = type("OtherTrainer", (SFTTrainer,), namespace)
    with pytest.raises(ValueError, match="OtherTrainer has a compute_loss of its own"):
        check_base(type("Own", (NumericLossMixin, other), {}), NumericLossMixin)
