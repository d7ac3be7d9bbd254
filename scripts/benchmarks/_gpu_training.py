"""Sections training and dense: training steps of Qwen2.5-VL-7B, with LoRA and with all weights.

Every trainer gets the same random bf16 weights, the same row with an image, bf16 autocast,
activation checkpointing, fused AdamW and gradient clipping. Batch size 1.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from _bench import Stand
from _gpu_facts import GIB, installed_version
from _gpu_jobs import Job, NotAvailableError, Record, one_line, without_package
from _gpu_model import (
    DENSE,
    SHORT,
    TOY_DENSE,
    TOY_SHORT,
    Workload,
    forward_flops,
    make_batch,
    make_model,
    qwen2_5_vl,
    step_flops,
)
from peft import LoraConfig, get_peft_model
from torch import Tensor
from transformers import Trainer, TrainerCallback, TrainingArguments

from mm_numeric import NumberVocabulary, NumericLoss
from mm_numeric.data.collator import Origin
from mm_numeric.families.tiny import tiny_qwen2_tokenizer
from mm_numeric.training.trainer import NumericTrainer

METHODS = ("LoRA", "full")
NAMES = ("NumericTrainer, ce", "NumericTrainer, ntl_was", "NumericTrainer, ntil",
         "transformers.Trainer", "transformers.Trainer, Liger", "trl.SFTTrainer",
         "trl.SFTTrainer, all logits", "ms-swift")  # fmt: skip
WARM_UP = 2  # AdamW allocates its state in the first step
STEPS, TOY_STEPS = 8, 1
LORA_LAYERS = r".*language_model.*\.(q|k|v|o|gate|up|down)_proj"
BYTES_OF_FULL = 2 * 4
"""Bytes per parameter: bf16 weight, gradient and the two moments of AdamW."""


def training_jobs(device: str, toy: bool) -> list[Job]:
    """Return the jobs of short answers: a prompt of 1,024 tokens and 24 tokens of answer."""
    return _jobs(TOY_SHORT if toy else SHORT, device, toy)


def dense_jobs(device: str, toy: bool) -> list[Job]:
    """Return the jobs of dense boxes: a prompt of 1,024 tokens and 4,096 tokens of answer."""
    found = _jobs(TOY_DENSE if toy else DENSE, device, toy)
    return found[:1] if toy else found  # the methods differ as in the section training


def _jobs(workload: Workload, device: str, toy: bool) -> list[Job]:
    """Return one job for each method."""
    size = "tiny Qwen2.5-VL" if toy else "Qwen2.5-VL-7B"
    return [
        Job(
            title=f"{size}, {method}, {workload.prompt:,} + {workload.answer:,} tokens",
            names=NAMES,
            function=measure,
            options={"workload": workload, "lora": method == "LoRA", "device": device, "toy": toy},
            unavailable=unavailable(device),
            seconds=150,
            shared_process=toy,
        )
        for method in METHODS
    ]


def measure(
    name: str, *, workload: Workload, lora: bool, device: str, toy: bool, peak_tflops: float | None
) -> Record:
    """Return time and peak memory of the steps of one trainer, tokens per second, MFU and loss."""
    config = qwen2_5_vl(toy)
    if device == "cuda" and not lora:
        check_memory(config)
    model = make_model(config, device)
    batch = make_batch(config, workload)
    flops = step_flops(*forward_flops(model, batch), lora=lora)
    if lora:
        model = get_peft_model(model, LoraConfig(r=16, lora_alpha=32, target_modules=LORA_LAYERS))
    watch = Stopwatch(device)
    with tempfile.TemporaryDirectory() as folder:
        trainer = TRAINERS[name](model, batch, settings(folder, device, toy))
        trainer.add_callback(watch)
        trainer.train()
    seconds = watch.seconds[WARM_UP:]
    median = statistics.median(seconds)
    mfu = None if peak_tflops is None else flops / median / (1e12 * peak_tflops)
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    return {
        "seconds_per_step": seconds,
        "median_seconds": median,
        "peak_bytes": torch.cuda.max_memory_allocated() if device == "cuda" else None,
        "tokens_per_second": batch["input_ids"].numel() / median,
        "flops_per_step": flops,
        "mfu": mfu,
        "loss": losses[0],
        "parameters": sum(p.numel() for p in model.parameters()),
    }


def check_memory(config: Any) -> None:
    """Raise NotAvailableError if a GPU cannot hold what training all weights needs."""
    with torch.device("meta"):
        parameters = sum(p.numel() for p in make_model(config, "meta").parameters())
    needed, there = BYTES_OF_FULL * parameters / GIB, torch.cuda.mem_get_info()[1] / GIB
    if needed > there:
        raise NotAvailableError(
            f"weights, gradients and AdamW's state need {needed:.0f} GiB, the GPU has {there:.0f}"
        )


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


def rows(options: dict[str, Any]) -> list[dict[str, int]]:
    """Return one row per step; the collators return the same batch for each."""
    return [{"row": step} for step in range(options["max_steps"])]


def _ours(preset: str) -> MakeTrainer:
    """Return a function that makes NumericTrainer with an objective."""

    def make(model: Any, batch: dict[str, Tensor], options: dict[str, Any]) -> Trainer:
        vocabulary = model.config.get_text_config().vocab_size
        numbers = NumberVocabulary.from_tokenizer(Stand(vocabulary))

        def collate(_: Sequence[Any]) -> dict[str, Any]:
            return {**batch, "origin": Origin(("0",), 0, {})}

        return NumericTrainer(
            model=model,
            args=TrainingArguments(**options),
            train_dataset=rows(options),
            data_collator=collate,
            objective=NumericLoss(preset, vocabulary=numbers),
        )

    return make


def _transformers(model: Any, batch: dict[str, Tensor], options: dict[str, Any]) -> Trainer:
    """Return transformers' Trainer with the model's own loss, on the logits of all positions."""
    args = TrainingArguments(**options)
    return Trainer(model, args, train_dataset=rows(options), data_collator=lambda _: dict(batch))


def _liger(model: Any, batch: dict[str, Tensor], options: dict[str, Any]) -> Trainer:
    """Return transformers' Trainer with Liger's kernels, fused linear CE among them."""
    trainer = _transformers(model, batch, {**options, "use_liger_kernel": True})
    try:
        import liger_kernel.transformers.model.qwen2_5_vl  # noqa: F401  or it fails in train()
    except ImportError as error:
        raise NotAvailableError(
            f"liger-kernel {installed_version('liger-kernel')} has no kernels for Qwen2.5-VL of "
            f"transformers {installed_version('transformers')} ({one_line(error)})"
        ) from error
    return trainer


def _trl(model: Any, batch: dict[str, Tensor], options: dict[str, Any]) -> Trainer:
    """Return TRL's SFTTrainer, which computes its loss in chunks."""
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    prepared = {"dataset_kwargs": {"skip_prepare_dataset": True}, "max_length": None}
    return SFTTrainer(
        model,
        SFTConfig(**options, **prepared),
        train_dataset=Dataset.from_list(rows(options)),
        data_collator=lambda _: dict(batch),
        processing_class=tiny_qwen2_tokenizer(),
    )


TRAINERS: dict[str, MakeTrainer] = {
    "NumericTrainer, ce": _ours("ce"),
    "NumericTrainer, ntl_was": _ours("ntl_was"),
    "NumericTrainer, ntil": _ours("ntil"),
    "transformers.Trainer": _transformers,
    "transformers.Trainer, Liger": _liger,
    "trl.SFTTrainer": _trl,
}


def unavailable(device: str) -> dict[str, str]:
    """Return the names of the trainers that cannot be measured here, and the reason of each."""
    without_trl = without_package("trl", "trl", device)
    found = {
        "transformers.Trainer, Liger": without_package(
            "liger_kernel", "liger-kernel", device, kernels=True
        ),
        "trl.SFTTrainer": without_trl or without_package("datasets", "datasets", device),
        "trl.SFTTrainer, all logits": without_trl
        or f"TRL {installed_version('trl')} always computes the loss in chunks",
        "ms-swift": "ms-swift 4.6.0 requires transformers<5.20, peft<0.21 and trl<1.0; mm-numeric "
        "requires newer versions",
    }
    return {name: reason for name, reason in found.items() if reason}
