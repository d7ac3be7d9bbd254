"""One small training job for every integration. As a script, it is what each rank of two runs."""

import functools
from pathlib import Path

import torch
from accelerate import Accelerator
from datasets import Dataset
from safetensors.torch import save_file
from tiny_models import tiny_causal_lm
from torch import Tensor
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM, Trainer, TrainingArguments
from trl import SFTConfig, SFTTrainer
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

from mm_numeric import NumberVocabulary, NumericLoss, NumericLossMixin, loss_func, step_counts
from mm_numeric.distributed.ranks import leave_process_group
from mm_numeric.families.tiny import tiny_qwen2_tokenizer

TOKENIZER = tiny_qwen2_tokenizer()
NUMBERS = NumberVocabulary.from_tokenizer(TOKENIZER)
COLLATE = DataCollatorForLanguageModeling(pad_token_id=TOKENIZER.pad_token_id)

# Pairs of rows hold 9, 0, 4 and 1 digits, so that no two micro-batches of two weigh the same.
TEXTS = [
    {"prompt": "a 12 b ", "completion": "1234.5 or 99"},
    {"prompt": "how ", "completion": "-30"},
    {"prompt": "What time ", "completion": "none"},
    {"prompt": "x", "completion": "it is"},
    {"prompt": "What time is it ", "completion": "7:05"},
    {"prompt": "3 + 4 = ", "completion": "7"},
    {"prompt": "z", "completion": " 0 apples and more"},
    {"prompt": "ab ", "completion": "no"},
]
STEPS = 3


class NumericTrainerForTests(NumericLossMixin, Trainer):
    """The mixin on transformers' own."""


class NumericSFTTrainer(NumericLossMixin, SFTTrainer):
    """The mixin on TRL's."""


@functools.cache
def rows() -> Dataset:
    """Return 40 tokenised rows, trained on the completion alone."""
    tokenised = []
    for text in TEXTS * 5:
        prompt = TOKENIZER(text["prompt"]).input_ids
        answer = [*TOKENIZER(text["completion"]).input_ids, TOKENIZER.eos_token_id]
        tokenised.append({"input_ids": prompt + answer, "labels": [-100] * len(prompt) + answer})
    return Dataset.from_list(tokenised)


def settings(folder: Path, **changes) -> dict:
    """Return what every trainer here is given: ``STEPS`` steps, in the order of the data."""
    return {
        "output_dir": str(folder),
        "max_steps": STEPS,
        "per_device_train_batch_size": 8,
        "learning_rate": 1e-2,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0.0,
        "train_sampling_strategy": "sequential",
        "save_strategy": "no",
        "logging_steps": 1,
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        **changes,
    }


def by_trainer(folder: Path, cls=Trainer, data=None, model=None, **options):
    """Train with transformers.Trainer, or a subclass of it; return the trainer."""
    changes = options.pop("changes", {})
    model = model or tiny_causal_lm()
    trainer = cls(
        model,
        TrainingArguments(**settings(folder, **changes)),
        train_dataset=data or rows(),
        data_collator=options.pop("data_collator", COLLATE),
        **options,
    )
    trainer.train()
    return trainer


def by_sft_trainer(folder: Path, cls=NumericSFTTrainer, data=None, model=None, **options):
    """Train with TRL's SFTTrainer, or a subclass of it; return the trainer."""
    changes = options.pop("changes", {})
    trainer = cls(
        model or tiny_causal_lm(),
        SFTConfig(**settings(folder, bf16=False, **changes)),
        train_dataset=data or rows(),
        processing_class=TOKENIZER,
        **options,
    )
    trainer.train()
    return trainer


def by_loop(loss_of, micro_batches: int = 1, accelerator: Accelerator | None = None):
    """Train in a loop, the 8 rows of a step cut into micro-batches and ranks; return the model."""
    model = tiny_causal_lm()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0, fused=True)
    ranks, rank = (accelerator.num_processes, accelerator.process_index) if accelerator else (1, 0)
    wrapped = accelerator.prepare(model) if accelerator else model
    data, size = list(rows()), 8 // micro_batches // ranks
    for step in range(STEPS):
        starts = [8 * step + size * (ranks * i + rank) for i in range(micro_batches)]
        batches = [COLLATE(data[start : start + size]) for start in starts]
        counts = step_counts(
            loss_of, [b["labels"] for b in batches], shift=True, accelerator=accelerator
        )
        for batch in batches:
            labels = batch.pop("labels")
            loss = loss_of(wrapped(**batch).logits, labels, shift=True, counts=counts).loss
            (loss * ranks).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def weights(model) -> dict[str, Tensor]:
    """Return a copy of all weights but those that are tied to others."""
    return {name: value.detach().clone() for name, value in model.named_parameters()}


def main(arguments: list[str]) -> None:
    """Train by the mixin and by a loop with accelerate, on all ranks; write the weights."""
    _train_both(Path(arguments[0]))
    _train_router(Path(arguments[0]), Accelerator(cpu=True).num_processes)
    leave_process_group()  # after the models are freed: their reducers wait for it


def mixture() -> Qwen3MoeForCausalLM:
    """Return a mixture of experts with a router loss."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "moe_intermediate_size": 16}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "num_hidden_layers": 1}
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(
        **sizes, **heads, vocab_size=len(TOKENIZER), num_experts=4, num_experts_per_tok=2,
        router_aux_loss_coef=0.5, output_router_logits=True,
    ))  # fmt: skip


def _train_router(folder: Path, ranks: int) -> None:
    """Train on equal rows, so that the mean over the tokens of all ranks is that of each rank."""
    data = Dataset.from_list([rows()[0]] * 8)
    loss_of = NumericLoss("ce", vocabulary=NUMBERS)
    for average in (True, False):
        changes = {"average_tokens_across_devices": average, "max_steps": 2}
        changes |= {"per_device_train_batch_size": 4 // ranks, "optim": "sgd"}
        func = loss_func(loss_of, shift=True)
        trainer = by_trainer(
            folder, data=data, model=mixture(), compute_loss_func=func, changes=changes
        )
        if trainer.is_world_process_zero():
            save_file(weights(trainer.model), folder / f"router_{average}.safetensors")


def _train_both(folder: Path) -> None:
    loss_of = NumericLoss("ntil", vocabulary=NUMBERS, balance="fixed")
    ranks = Accelerator(cpu=True).num_processes
    changes = {"per_device_train_batch_size": 4 // ranks, "gradient_accumulation_steps": 2}
    trainer = by_trainer(folder, NumericTrainerForTests, objective=loss_of, changes=changes)
    looped = by_loop(loss_of, micro_batches=2, accelerator=Accelerator(cpu=True))
    if trainer.is_world_process_zero():
        save_file(weights(trainer.model), folder / "mixin.safetensors")
        save_file(weights(looped), folder / "loop.safetensors")
        trainer.state.save_to_json(str(folder / "state.json"))
