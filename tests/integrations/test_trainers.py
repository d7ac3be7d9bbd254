import pytest
import torch
from tiny_llama import TOKENIZER, model
from transformers import (
    DataCollatorForSeq2Seq,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    Trainer,
    TrainingArguments,
)

from mm_numeric import NumericLoss
from mm_numeric.integrations.trainers import (
    check_other_losses,
    read_objective,
    trainer_with_objective,
)


class FrameworkTrainer(Trainer):
    """Counts tokens in its ``compute_loss``, as axolotl does."""

    tokens = 0

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.model_accepts_loss_kwargs = False

    def compute_loss(self, model, inputs, *args, **kwargs):
        self.tokens += int((inputs["labels"] != -100).sum())
        return super().compute_loss(model, inputs, *args, **kwargs)

    def log(self, logs, start_time=None):
        super().log(logs | {"ppl": 1.0}, start_time)


class FrameworkSeq2SeqTrainer(Seq2SeqTrainer):
    """Has a ``compute_loss`` that calls its parent's, as LLaMA-Factory's trainer has."""

    def compute_loss(self, model, inputs, *args, **kwargs):
        return super().compute_loss(model, inputs, *args, **kwargs)

    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None, **options):
        return super().prediction_step(
            model, inputs, prediction_loss_only=prediction_loss_only, ignore_keys=ignore_keys
        )


def test_an_evaluation_in_a_framework_is_a_mean_over_tokens(tmp_path):
    rows = [
        {"input_ids": ids, "labels": ids}
        for text in ("it is 12 or 7", "5", "no number", "1234 5")
        for ids in [TOKENIZER(text, add_special_tokens=False).input_ids]
    ]
    found = []
    for size in (1, 3):
        arguments = Seq2SeqTrainingArguments(
            str(tmp_path), per_device_eval_batch_size=size, use_cpu=True, report_to=[]
        )
        collator = DataCollatorForSeq2Seq(TOKENIZER)
        spec = NumericLoss("emd", TOKENIZER).spec
        trainer = trainer_with_objective(FrameworkSeq2SeqTrainer, spec)(
            model=model().float(), args=arguments, eval_dataset=rows, data_collator=collator,
            processing_class=TOKENIZER,
        )  # fmt: skip
        found.append(trainer.evaluate())
    for name in ("loss", "loss/ce", "loss/emd", "numbers/accuracy", "numbers/error/free"):
        assert found[0][f"eval_{name}"] == pytest.approx(found[1][f"eval_{name}"], rel=1e-5), name


@pytest.mark.parametrize(
    ("framework", "arguments"),
    [(FrameworkTrainer, TrainingArguments), (FrameworkSeq2SeqTrainer, Seq2SeqTrainingArguments)],
)
def test_the_objective_replaces_the_loss_of_a_framework(tmp_path, framework, arguments):
    ids = TOKENIZER("it is 12 or 7", add_special_tokens=False).input_ids
    rows = [{"input_ids": ids, "labels": ids}] * 4
    loss_of = NumericLoss("ntil", TOKENIZER)
    trainer = trainer_with_objective(framework, loss_of.spec)(
        model=model().float(),
        args=arguments(
            str(tmp_path),
            max_steps=2,
            per_device_train_batch_size=2,
            gradient_accumulation_steps=2,
            logging_steps=1,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
        ),
        train_dataset=rows,
        processing_class=TOKENIZER,
    )
    batch = torch.tensor([ids])
    with torch.no_grad():
        result = loss_of(trainer.model(batch).logits, batch, shift=True)
    trainer.train()
    first = trainer.state.log_history[0]
    assert first["loss"] == pytest.approx(result.loss.item(), abs=1e-4)  # 4.57 rounds it
    assert first["loss/emd_exp"] == pytest.approx(result.components["emd_exp"].item(), abs=1e-5)
    assert "ppl" not in first
    assert getattr(trainer, "tokens", 8 * len(ids)) == 8 * len(ids)


def test_an_objective_is_required():
    with pytest.raises(ValueError, match=r"a\.yaml has no numeric_loss: add a line such as"):
        read_objective(None, "a.yaml")
    assert read_objective({"preset": "ntil", "balance": "fixed"}, "a.yaml").balance == "fixed"
    with pytest.raises(ValueError, match=r"numeric_loss.*'ntill'.*ntil"):
        read_objective("ntill", "a.yaml")


def test_a_second_loss_is_an_error():
    check_other_losses({"use_dft_loss": False}, ["use_dft_loss"])
    with pytest.raises(ValueError, match="use_dft_loss: True requests another loss than"):
        check_other_losses({"use_dft_loss": True}, ["use_dft_loss"])
