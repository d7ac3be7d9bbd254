"""Sections images and batches: workers, padding-free batches, and the cache of image features.

A Qwen2.5-VL with random weights and LoRA on its language model is trained on rows with an image.
Times are those between the ends of two steps, so that they include the collator. On a CPU they are
the time that the processor spends, which other processes change less, except with workers.
"""

import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from _gpu_facts import installed_version
from _gpu_jobs import Job, NotAvailableError, Record
from _gpu_model import make_model, qwen2_5_vl
from _gpu_training import LORA_LAYERS, make_family, settings
from peft import LoraConfig, get_peft_model
from PIL import Image
from transformers import (
    PrinterCallback,
    Qwen2_5_VLConfig,
    TrainerCallback,
)
from transformers import TrainingArguments as Arguments
from transformers.utils import is_flash_attn_2_available

from mm_numeric.answers import Example, Number
from mm_numeric.config.modules import ModulesConfig, ModuleSettings
from mm_numeric.data.collator import TrainingCollator
from mm_numeric.losses.numeric_loss import NumericLoss
from mm_numeric.losses.presets import PRESETS
from mm_numeric.models.parameter_groups import ModelModules
from mm_numeric.tasks.measurement import ReadInstrument
from mm_numeric.training.padding_free import make_padding_free
from mm_numeric.training.trainer import NumericTrainer
from mm_numeric.training.vision_features import make_vision_cache

FLASH = "padding-free, flash_attention_2"
PADDING = ("padded", "padded, grouped by length", "padding-free, sdpa", FLASH)
CACHE = ("without a cache", "data.vision_cache")
WORKERS = ("0 workers", "4 workers", "8 workers")


@dataclass(frozen=True)
class Size:
    """A model, and the rows that it is trained on."""

    model: Qwen2_5_VLConfig
    title: str
    rows: int
    batch: int
    shortest: int
    """Tokens of the shortest and the longest question, besides the image."""

    longest: int
    side_px: int
    """Width and height of an image."""

    most_pixels: int = 1 << 24
    """Images with more pixels are made smaller."""

    epochs: int = 2
    """Epochs of training, of which the last is measured."""


def size_of(toy: bool) -> Size:
    """Return the size of the benchmark on a GPU, or one for tests."""
    model = qwen2_5_vl(toy)
    if toy:
        return Size(model, "tiny Qwen2.5-VL", 4, 2, 20, 60, 56)
    return Size(model, "Qwen2.5-VL-7B, LoRA", 64, 8, 200, 2000, 448)


def jobs(device: str, toy: bool) -> list[Job]:
    """Return the jobs: batches with and without padding, and short questions about images."""
    size = size_of(toy)
    missing = {} if is_flash_attn_2_available() else {FLASH: "flash-attn is not installed"}
    lengths = f"{size.shortest:,} to {size.longest:,} tokens"
    common = {"seconds": 240, "shared_process": toy}
    return [
        Job(
            title=f"{size.title}, questions of {lengths}",
            names=PADDING,
            function=measure_padding,
            options={"size": size, "device": device},
            unavailable=missing,
            **common,
        ),
        Job(
            title=f"{size.title}, images of {size.side_px} x {size.side_px} pixels",
            names=CACHE,
            function=measure_cache,
            options={
                "size": replace(size, rows=size.rows // 2, shortest=24, longest=24),
                "device": device,
            },
            **common,
        ),
    ]  # type: ignore[list-item]


def image_jobs(device: str, toy: bool) -> list[Job]:
    """Return the job of JPEGs that 0 to 8 workers decode."""
    size = replace(size_of(toy), shortest=24, longest=24)
    size = size if toy else replace(size, rows=32, side_px=1000)
    return [
        Job(
            title=f"{size.title}, JPEGs of {size.side_px:,} x {size.side_px:,} pixels",
            names=WORKERS,
            function=measure_images,
            options={"size": size, "device": device},
            seconds=60,
            shared_process=toy,
        )
    ]


def measure_images(name: str, *, size: Size, device: str) -> Record:
    """Return the time of a step with a number of workers of the data loader."""
    with tempfile.TemporaryDirectory() as folder:
        run = Run(size, device, Path(folder), "sdpa")
        return run.train(run.collator, dataloader_num_workers=int(name.split()[0]))


def measure_padding(name: str, *, size: Size, device: str) -> Record:
    """Return the time of a step and the tokens per second of one kind of batches."""
    attention = "flash_attention_2" if name == FLASH else "sdpa"
    with tempfile.TemporaryDirectory() as folder:
        run = Run(size, device, Path(folder), attention)
        collate: Callable[..., Any] = run.collator
        if name.startswith("padding-free"):
            collate = make_padding_free(run.model, run.collator, attention)
        grouped = {"train_sampling_strategy": "group_by_length"} if "grouped" in name else {}
        return run.train(collate, **grouped)


def measure_cache(name: str, *, size: Size, device: str) -> Record:
    """Return the time of a step with or without cached image features, after the first epoch."""
    with tempfile.TemporaryDirectory() as folder:
        run = Run(size, device, Path(folder), "sdpa")
        return run.train(run.with_cache() if name == CACHE[1] else run.collator)


class Run:
    """A model with adapters, its collator, and rows."""

    def __init__(self, size: Size, device: str, folder: Path, attention: str) -> None:
        """Create the model and the rows; ``folder`` gets the images."""
        self.size, self.device, self.folder, self.attention = size, device, folder, attention
        family, config = make_family(size.most_pixels), size.model
        config.image_token_id = family.image_id
        config.vision_start_token_id, config.vision_end_token_id, config.video_token_id = (
            family.token_id(f"<|{name}|>") for name in ("vision_start", "vision_end", "video_pad")
        )
        model = make_model(config, device)
        if attention != "sdpa":
            model.set_attn_implementation(attention)
        model = model if device == "cuda" else model.float()
        lora = LoraConfig(r=16, lora_alpha=32, target_modules=LORA_LAYERS)
        self.model = get_peft_model(model, lora)
        self.rows = _rows(size, folder)
        self.collator = TrainingCollator(
            family, ReadInstrument(write_unit=False), family.vocabulary()
        )

    def with_cache(self) -> TrainingCollator:
        """Return the collator with a cache of image features."""
        adapted = ModulesConfig(language=ModuleSettings(how="adapted"))
        modules = ModelModules(self.collator.family, adapted, 1e-5, "bench")
        data = SimpleNamespace(vision_cache=str(self.folder / "cache"))
        model = SimpleNamespace(attention=self.attention)
        config: Any = SimpleNamespace(title="bench", data=data, model=model)
        try:
            cache = make_vision_cache(self.model, modules, config, self._arguments())
        except ValueError as error:  # older versions of transformers accept no image features
            here = installed_version("transformers")
            raise NotAvailableError(f"with transformers {here}, {error}") from error
        return replace(self.collator, vision_cache=cache)

    def train(self, collate: Callable[..., Any], **options: Any) -> Record:
        """Train, and return the times of the last epoch."""
        clock = Clock(self.device, is_wall="dataloader_num_workers" in options)
        trainer = NumericTrainer(
            model=self.model,
            args=self._arguments(**options),
            train_dataset=self.rows,
            data_collator=collate,
            objective=NumericLoss(PRESETS["ce"], vocabulary=self.collator.vocabulary),
            callbacks=[clock],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.lengths = self.collator.lengths(self.rows)
        trainer.train()
        steps = self.size.rows // self.size.batch
        ends = clock.times[-steps - 1 :]
        seconds = [end - start for start, end in pairwise(ends)]
        losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
        cuda = self.device == "cuda"
        return {
            "seconds_per_step": seconds,
            "first_epoch_seconds": (clock.times[steps] - clock.times[0]) / steps,
            "tokens_per_second": sum(trainer.lengths) / sum(seconds),
            "rows_per_second": self.size.rows / sum(seconds),
            "peak_bytes": torch.cuda.max_memory_allocated() if cuda else None,
            "loss": statistics.fmean(losses),
        }

    def _arguments(self, **options: Any) -> Arguments:
        steps = self.size.epochs * self.size.rows // self.size.batch
        given = settings(str(self.folder / "run"), self.device, toy=False)
        batch = {"max_steps": steps, "per_device_train_batch_size": self.size.batch}
        saving = dict.fromkeys(("bf16", "gradient_checkpointing"), self.device == "cuda")
        return Arguments(**{**given, **batch, **saving, **options})


class Clock(TrainerCallback):
    """Records when training begins and when each step ends."""

    def __init__(self, device: str, *, is_wall: bool) -> None:
        """Set the device, which the clock waits for, and whether a CPU's clock is the wall's."""
        self.on_gpu, self.times = device == "cuda", list[float]()
        self.now = time.perf_counter if self.on_gpu or is_wall else time.process_time

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        """Record the time."""
        if self.on_gpu:
            torch.cuda.synchronize()
        self.times.append(self.now())

    on_step_end = on_train_begin


def _rows(size: Size, folder: Path) -> Sequence[Example]:
    """Write an image for each row; lengths of questions are log-uniform, in a random order."""
    generator = random.Random(0)
    ratio = size.longest / size.shortest
    examples = []
    for i in range(size.rows):
        file = folder / f"{i}.jpg"
        coarse = Image.frombytes("RGB", (16, 16), generator.randbytes(3 * 16**2))
        coarse.resize((size.side_px, size.side_px), Image.Resampling.BICUBIC).save(file)
        words = round(size.shortest * ratio ** (i / max(size.rows - 1, 1)))
        row = {"id": str(i), "image": file, "prompt": " the" * words, "where": f"row {i}"}
        examples.append(Example(answer=Number(str(i)), **row))  # type: ignore[arg-type]
    generator.shuffle(examples)
    return examples
