"""Sections training and flash: training steps of Qwen2.5-VL-7B with LoRA.

Every trainer gets the same random bf16 weights, the same batch of rows with an image, bf16
autocast, activation checkpointing, fused AdamW and gradient clipping.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import patch

import torch
from _bench import Stand
from _gpu_facts import installed_version
from _gpu_jobs import Job, Record, without_package
from _gpu_model import (
    ROW,
    TOY_ROW,
    Workload,
    make_batch,
    make_model,
    qwen2_5_vl,
    repeated,
    step_flops,
)
from peft import LoraConfig, get_peft_model
from torch import Tensor
from torch.nn import functional
from transformers import Qwen2VLImageProcessorPil, Trainer, TrainerCallback, TrainingArguments
from transformers.utils import is_flash_attn_2_available

from mm_numeric import NumberVocabulary, NumericLoss
from mm_numeric.config.reader import read_config
from mm_numeric.config.schema import ModelConfig
from mm_numeric.data.collator import Origin
from mm_numeric.evaluation.check_data.memory import RowLength, estimate_memory
from mm_numeric.families.qwen2_5_vl import Qwen2_5VL
from mm_numeric.families.tiny import tiny_qwen2_tokenizer
from mm_numeric.numbers.spans import IGNORE_INDEX
from mm_numeric.training.trainer import NumericTrainer

DEFAULT = "transformers.Trainer"
KEPT, LIGER = f"{DEFAULT}, logits_to_keep", f"{DEFAULT}, Liger's loss"
ESTIMATE = "estimate of check-data"
FLASH = "flash_attention_2"
WARM_UP = 2  # AdamW allocates its state in the first step
STEPS, TOY_STEPS = 4, 1
LORA_LAYERS = r".*language_model.*\.(q|k|v|o|gate|up|down)_proj"


def training_jobs(device: str, toy: bool) -> list[Job]:
    """Return the job of 16 rows for each trainer."""
    return [_job((ESTIMATE, *TRAINERS), 2 if toy else 16, device, toy)]


def flash_jobs(device: str, toy: bool) -> list[Job]:
    """Return the job of 32 rows with torch's attention and with flash-attention."""
    names = ("NumericTrainer, ce", f"NumericTrainer, ce, {FLASH}")
    return [_job((ESTIMATE, *names), 4 if toy else 32, device, toy)]


def _job(names: Sequence[str], rows: int, device: str, toy: bool) -> Job:
    """Return the job of a number of rows."""
    workload = TOY_ROW if toy else ROW
    size, length = "tiny Qwen2.5-VL" if toy else "Qwen2.5-VL-7B", workload.prompt + workload.answer
    return Job(
        title=f"{size}, LoRA, {rows} rows of {length:,} tokens",
        names=tuple(names),
        function=measure,
        options={"workload": workload, "rows": rows, "device": device, "toy": toy},
        unavailable=unavailable(device),
        seconds=60,
        shared_process=toy,
    )


def measure(
    name: str, *, workload: Workload, rows: int, device: str, toy: bool, peak_tflops: float | None
) -> Record:
    """Return time and peak memory of the steps of one trainer, tokens per second, MFU and loss."""
    config = qwen2_5_vl(toy)
    if name == ESTIMATE:
        return {"peak_bytes": estimated_bytes(config, workload, rows)}
    model = make_model(config, device)
    if name.endswith(FLASH):
        model.set_attn_implementation(FLASH)
        name = name.removesuffix(f", {FLASH}")
    one = make_batch(config, workload)
    positions = one["labels"].numel() if name == DEFAULT else workload.answer
    flops = rows * step_flops(model, one, positions)
    batch = repeated(one, rows)
    model = get_peft_model(model, LoraConfig(r=16, lora_alpha=32, target_modules=LORA_LAYERS))
    watch = Stopwatch(device)
    with tempfile.TemporaryDirectory() as folder:
        trainer = TRAINERS[name](model, batch, settings(folder, device, toy))
        trainer.add_callback(watch)
        trainer.train()
    seconds = watch.seconds[WARM_UP:]
    median = statistics.median(seconds)
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    return {
        "seconds_per_step": seconds,
        "median_seconds": median,
        "peak_bytes": torch.cuda.max_memory_allocated() if device == "cuda" else None,
        "tokens_per_second": batch["input_ids"].numel() / median,
        "flops_per_step": flops,
        "mfu": None if peak_tflops is None else flops / median / (1e12 * peak_tflops),
        "loss": losses[0],
    }


def make_family(most_pixels: int = 1 << 24) -> Qwen2_5VL:
    """Return the family of the model, with a tiny tokenizer."""
    size = {"shortest_edge": 28**2, "longest_edge": most_pixels}
    processor = Qwen2VLImageProcessorPil(patch_size=14, merge_size=2, size=size)
    return Qwen2_5VL(tiny_qwen2_tokenizer(), processor, ModelConfig(name="tiny"))


def estimated_bytes(settings: Any, workload: Workload, rows: int) -> float:
    """Return the memory of a step by the estimate of `mm-numeric check-data`, in bytes."""
    overrides = ["modules.language=adapted", "lora.rank=16", "model.dtype=bfloat16",
                 "trainer.bf16=true", "trainer.activation_checkpointing=true",
                 f"trainer.per_device_train_batch_size={rows}"]  # fmt: skip
    length = RowLength(workload.prompt, workload.answer, workload.image_side**2)
    config = read_config("clock_tiny", overrides)
    return estimate_memory(config, make_family(), settings, [length] * rows).total


def settings(folder: str, device: str, toy: bool) -> dict[str, Any]:
    """Return the arguments of every trainer."""
    return {
        "output_dir": folder,
        "max_steps": WARM_UP + (TOY_STEPS if toy else STEPS),
        "per_device_train_batch_size": 1,
        "learning_rate": 1e-5,
        "lr_scheduler_type": "constant",
        "optim": "adamw_torch_fused",
        "bf16": True,
        "gradient_checkpointing": True,
        "gradient_checkpointing_kwargs": {"use_reentrant": False},
        "save_strategy": "no",
        "logging_steps": 1,
        "report_to": [],
        "use_cpu": device == "cpu",
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
        "remove_unused_columns": False,
    }


class Stopwatch(TrainerCallback):
    """Measures each step, from receiving the batch to freeing the gradients."""

    def __init__(self, device: str) -> None:
        """Set the device, which the clock waits for."""
        self.on_gpu = device == "cuda"
        self.seconds: list[float] = []

    def _now(self) -> float:
        """Return the time after everything on the device is done."""
        if self.on_gpu:
            torch.cuda.synchronize()
        return time.perf_counter()

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        """Start the clock; after the warm-up also the measurement of the peak."""
        if self.on_gpu and len(self.seconds) == WARM_UP:
            torch.cuda.reset_peak_memory_stats()
        self.start = self._now()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        """Stop the clock."""
        self.seconds.append(self._now() - self.start)


# -- trainers -------------------------------------------------------------------------------------

MakeTrainer = Callable[[Any, dict[str, Tensor], dict[str, Any]], Trainer]


def rows_of(options: dict[str, Any]) -> list[dict[str, int]]:
    """Return one row per step; the collators return the same batch for each."""
    return [{"row": step} for step in range(options["max_steps"])]


def _ours(preset: str) -> MakeTrainer:
    """Return a function that makes NumericTrainer with an objective."""

    def make(model: Any, batch: dict[str, Tensor], options: dict[str, Any]) -> Trainer:
        vocabulary = model.config.get_text_config().vocab_size
        numbers = NumberVocabulary.from_tokenizer(Stand(vocabulary))
        origin = Origin(tuple(map(str, range(len(batch["labels"])))), 0, {})
        return NumericTrainer(
            model=model,
            args=TrainingArguments(**options),
            train_dataset=rows_of(options),
            data_collator=lambda _: {**batch, "origin": origin},
            objective=NumericLoss(preset, vocabulary=numbers),
        )

    return make


class TrainerOfAnswers(Trainer):
    """Trainer with ``logits_to_keep``: the output head runs only where a row has a label."""

    def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Tensor:
        """Return the cross-entropy per supervised token."""
        labels = inputs.pop("labels")
        kept = (labels != IGNORE_INDEX).any(dim=0).nonzero().squeeze(1)
        found = self.loss_of_logits(model, {**inputs, "logits_to_keep": kept - 1}, labels[:, kept])
        return found / (labels != IGNORE_INDEX).sum()

    def loss_of_logits(self, model: Any, inputs: Any, labels: Tensor) -> Tensor:
        """Return the sum of the losses, by torch's cross-entropy."""
        logits = model(**inputs).logits.flatten(0, 1)
        return functional.cross_entropy(logits.float(), labels.flatten(), reduction="sum")


class LigerTrainer(TrainerOfAnswers):
    """The same with Liger's fused linear cross-entropy, called with hidden states and head."""

    def loss_of_logits(self, model: Any, inputs: Any, labels: Tensor) -> Tensor:
        """Return the sum of the losses; the output head returns its input, the hidden states."""
        from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

        head = self.model.get_output_embeddings()
        with patch.object(head, "forward", lambda hidden: hidden):
            hidden = model(**inputs).logits.flatten(0, 1)
        fused = LigerFusedLinearCrossEntropyLoss(reduction="sum")
        return fused(head.weight, hidden.to(head.weight), labels.flatten())


def _trainer_of(cls: type[Trainer]) -> MakeTrainer:
    """Return a function that makes transformers' Trainer or a subclass."""
    return lambda model, batch, options: cls(
        model,
        TrainingArguments(**options),
        train_dataset=rows_of(options),
        data_collator=lambda _: dict(batch),
    )


def _trl(model: Any, batch: dict[str, Tensor], options: dict[str, Any]) -> Trainer:
    """Return TRL's SFTTrainer; its only loss ``nll`` is computed in chunks (TRL 1.16)."""
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    prepared = {"dataset_kwargs": {"skip_prepare_dataset": True}, "max_length": None}
    return SFTTrainer(
        model,
        SFTConfig(**options, **prepared),
        train_dataset=Dataset.from_list(rows_of(options)),
        data_collator=lambda _: dict(batch),
        processing_class=tiny_qwen2_tokenizer(),
    )


TRAINERS: dict[str, MakeTrainer] = {
    "NumericTrainer, ce": _ours("ce"),
    "NumericTrainer, ntil": _ours("ntil"),
    DEFAULT: _trainer_of(Trainer),
    KEPT: _trainer_of(TrainerOfAnswers),
    LIGER: _trainer_of(LigerTrainer),
    "trl.SFTTrainer": _trl,
}
"""The trainers, each with its best options; ``DEFAULT`` is Trainer with the model's own loss."""


def unavailable(device: str) -> dict[str, str]:
    """Return the names of the trainers that cannot be measured here, and the reason of each."""
    found = {
        LIGER: without_package("liger_kernel", "liger-kernel", device, kernels=True),
        "trl.SFTTrainer": without_package("trl", "trl", device)
        or without_package("datasets", "datasets", device),
        f"NumericTrainer, ce, {FLASH}": ""
        if is_flash_attn_2_available()
        else f"flash-attn is {installed_version('flash-attn')}",
    }
    return {name: reason for name, reason in found.items() if reason}
