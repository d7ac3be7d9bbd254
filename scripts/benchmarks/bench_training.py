"""Measure time and peak memory of a training step, compared with other trainers on the same model.

    python scripts/benchmarks/bench_training.py   the targets, in about five minutes
    python scripts/benchmarks/bench_training.py --rounds 9 --threads 1 --json training.json

A randomly initialised Qwen2 (hidden 256, 2 layers, 151,936 tokens) is trained on prompts of 1,000
tokens with answers of 24 tokens, batch size 1, float32, on the CPU, by

transformers.Trainer    with the model's own loss, the default; with `logits_to_keep`, which needs
                        a subclass of eight lines; and, on a GPU, with Liger's fused loss
trl.SFTTrainer          its own loss, which it always computes in chunks, and which skips positions
                        without a label on a GPU but not on a CPU; without its activation
                        checkpointing, which would slow it down
NumericTrainer          objectives ce and ntil

Each trainer runs its own loop in its own process; in a round each takes one step while the others
wait, and ratios are computed within a round. Everything else is equal: weights, data, AdamW (fused,
transformers' default) and gradient clipping.

step           time from receiving the batch to freeing the gradients; median
before AdamW   the part of it before the optimiser: forward, backward, clipping
x ours         ratio to the step of NumericTrainer with ce in the same round; median
peak           peak of the process's resident memory during a step, beyond the weights and AdamW's
               state before it; includes the gradients
loss           loss of the first step
"""

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).parents[2]))  # from a checkout, whether installed or not

import torch
from _bench import Setting, Stand
from _gpu_training import KEPT, LIGER, TrainerOfAnswers, unavailable
from _measure import machine, start_process_peak, table
from datasets import Dataset
from transformers import (
    PrinterCallback,
    Qwen2Config,
    Qwen2ForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from mm_numeric import NumberVocabulary, NumericLoss
from mm_numeric.data.collator import Origin
from mm_numeric.families.tiny import tiny_qwen2_tokenizer
from mm_numeric.numbers.spans import IGNORE_INDEX
from mm_numeric.training.trainer import NumericTrainer

OURS = "NumericTrainer, ce"
DEFAULTS = ("transformers.Trainer", "trl.SFTTrainer")
THEIRS = (*DEFAULTS, KEPT, LIGER)
NAMES = (*THEIRS, OURS, "NumericTrainer, ntil")
WARM_UP = 2  # AdamW allocates its state in the first step
FASTER, MOST_OF_PEAK = (5.0, 1.0), (1 / 3, 1.0)
"""Targets relative to each default, and to the best of all others."""

SAME_LOSS = 1e-5
MIB = 1 << 20


def main() -> None:
    """Run the benchmark."""
    options = arguments()
    torch.set_num_threads(options.threads)
    head = machine(torch.device("cpu"))
    print("{machine}, {threads} threads, torch {torch}, {platform}, load {load}".format(**head))
    results = measure(options)
    found = targets(results)
    show(results, found, options)
    if options.json:
        settings = {k: v for k, v in vars(options).items() if k != "json"}
        whole = {**head, "settings": settings, "results": results, "targets": found}
        options.json.write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default, what in (
        ("vocabulary", 151936, "size of the vocabulary"),
        ("hidden", 256, "width of the model"),
        ("layers", 2, "number of layers"),
        ("prompt", 1000, "tokens of the prompt"),
        ("answer", 24, "tokens of the answer"),
        ("rounds", 5, "timed steps per trainer"),
        ("threads", torch.get_num_threads(), "number of CPU threads"),
    ):
        parser.add_argument(
            f"--{name}", type=int, default=default, help=f"{what} (default: {default})"
        )
    parser.add_argument("--json", type=Path, help="also write all results to this file")
    return parser.parse_args()


# -- the process that compares ----------------------------------------------------------------


class Worker:
    """A trainer in its own process, forked from this one, which has only imported all."""

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        """Start the process."""
        self.name = name
        processes = multiprocessing.get_context("fork")
        self.connection, theirs = processes.Pipe()
        self.process = processes.Process(target=work, args=(name, options, theirs), daemon=True)
        self.process.start()
        theirs.close()  # so that recv ends with the process

    def step(self, what: str) -> dict[str, Any]:
        """Run one step and return its ``time`` or its ``memory``."""
        self.connection.send(what)
        try:
            found: dict[str, Any] = self.connection.recv()
        except EOFError:
            sys.exit(f"{self.name} has ended; its error is above.")
        return found


@contextmanager
def workers(options: argparse.Namespace) -> Iterator[list[Worker]]:
    """Start all workers, and stop them on exit."""
    with ExitStack() as stack:
        started = []
        for name in measured():
            started.append(Worker(name, options))
            stack.callback(started[-1].process.join)
            stack.callback(started[-1].process.kill)
        yield started


def measure(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Measure the memory of each worker once, and its time in rounds."""
    with workers(options) as everyone:
        warm = {each.name: [each.step("time") for _ in range(WARM_UP)] for each in everyone}
        peaks = {each.name: each.step("memory")["peak_bytes"] for each in everyone}
        rounds = [
            {each.name: each.step("time") for each in everyone} for _ in range(options.rounds)
        ]
    return {
        name: {
            "loss": warm[name][0]["loss"],
            "peak_bytes": peaks[name],
            "seconds": [turn[name]["seconds"] for turn in rounds],
            "seconds_before_optimizer": [turn[name]["before_optimizer"] for turn in rounds],
            "times_ours": [turn[name]["seconds"] / turn[OURS]["seconds"] for turn in rounds],
        }
        for name in measured()
    }


def measured() -> list[str]:
    """Return the names of the trainers that can be measured on a CPU."""
    missing = unavailable("cpu")
    return [name for name in NAMES if name not in missing]


def targets(results: dict[str, dict[str, Any]]) -> list[dict[str, object]]:
    """Compare ``ce`` with its targets relative to the other trainers."""
    theirs = {name: results[name] for name in THEIRS if name in results}
    faster = {n: statistics.median(each["times_ours"]) for n, each in theirs.items()}
    share = {n: results[OURS]["peak_bytes"] / each["peak_bytes"] for n, each in theirs.items()}
    found = []

    def add(what: str, measured: float, least: float | None = None, most: float = 0.0) -> None:
        met = measured >= least if least is not None else measured <= most
        target = f"<= {most:.3g}" if least is None else f">= {least:g}"
        found.append({"what": what, "measured": measured, "target": target, "met": met})

    for name in DEFAULTS:
        add(f"speed-up of a step over {name}", faster[name], least=FASTER[0])
        add(f"share of {name}'s peak", share[name], most=MOST_OF_PEAK[0])
    fastest, smallest = min(faster, key=faster.__getitem__), max(share, key=share.__getitem__)
    add(f"speed-up over the fastest, {fastest}", faster[fastest], least=FASTER[1])
    add(f"share of the lowest peak, {smallest}'s", share[smallest], most=MOST_OF_PEAK[1])
    for name, each in theirs.items():
        apart = abs(results[OURS]["loss"] - each["loss"])
        add(f"difference from {name}'s loss", apart, most=SAME_LOSS)
    return found


def show(
    results: dict[str, dict[str, Any]],
    found: Sequence[dict[str, Any]],
    options: argparse.Namespace,
) -> None:
    """Print the tables."""
    weights = sum(p.numel() * p.element_size() for p in make_model(options).parameters())
    print(f"float32, median of {options.rounds} rounds; weights {weights / MIB:,.1f} MiB\n")
    rows = []
    for name, result in results.items():
        step, before = (
            f"{1000 * statistics.median(result[key]):,.0f}"
            for key in ("seconds", "seconds_before_optimizer")
        )
        times, peak = statistics.median(result["times_ours"]), result["peak_bytes"] / MIB
        rows.append([name, step, before, f"{times:.2f}", f"{peak:,.1f}", f"{result['loss']:.6f}"])
    header = ["", "step, ms", "before AdamW", "x ours", "peak, MiB", "loss"]
    print("\n".join(table(header, rows)))
    skipped = [f"{name}: {why}" for name, why in unavailable("cpu").items() if name in NAMES]
    print("\n".join([*skipped, ""]))
    lines = [
        [
            each["what"],
            f"{each['measured']:.3g}",
            each["target"],
            "met" if each["met"] else "MISSED",
        ]
        for each in found
    ]
    print("\n".join(table(["", "measured", "target", ""], lines)))


# -- the process of a trainer -----------------------------------------------------------------


class Stopwatch(TrainerCallback):
    """Waits for a command before each step, measures the step, and sends the result."""

    def __init__(self, connection: Connection) -> None:
        """Set where commands come from and results go to."""
        self.connection = connection
        self.peak: Callable[[], int] | None = None
        self.peak_bytes: int | None = None

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        """Wait for a command, and start measuring."""
        self.peak = start_process_peak() if self.connection.recv() == "memory" else None
        self.start = time.perf_counter()

    def on_pre_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        """Record the time before the optimiser step."""
        self.before_optimizer = time.perf_counter() - self.start

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        """Stop measuring."""
        self.seconds = time.perf_counter() - self.start
        self.peak_bytes = None if self.peak is None else self.peak()

    def on_log(self, *args: Any, logs: dict[str, float], **kwargs: Any) -> None:
        """Send the result with the loss that the trainer logs after each step."""
        if "loss" in logs:
            found = {
                "seconds": self.seconds,
                "before_optimizer": self.before_optimizer,
                "loss": logs["loss"],
                "peak_bytes": self.peak_bytes,
            }
            self.connection.send(found)


def work(name: str, options: argparse.Namespace, connection: Connection) -> None:
    """Train step by step on command."""
    sys.stdout = sys.stderr  # a trainer may print to stdout
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(name, options, Path(folder))
        trainer.remove_callback(PrinterCallback)
        trainer.add_callback(Stopwatch(connection))
        trainer.train()


def make_trainer(name: str, options: argparse.Namespace, folder: Path) -> Trainer:
    """Return the worker's trainer, with the same model, data and settings as the others."""
    steps = WARM_UP + 1 + options.rounds
    settings = {
        "output_dir": str(folder),
        "max_steps": steps,
        "per_device_train_batch_size": 1,
        "learning_rate": 1e-4,
        "lr_scheduler_type": "constant",
        "save_strategy": "no",
        "logging_steps": 1,
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
    }
    model, data = make_model(options), Dataset.from_list([make_row(options)] * steps)
    if name == "trl.SFTTrainer":
        from trl import SFTConfig, SFTTrainer

        more = {"bf16": False, "gradient_checkpointing": False, "max_length": None}
        return SFTTrainer(
            model,
            SFTConfig(**settings, **more),
            train_dataset=data,
            processing_class=tiny_qwen2_tokenizer(),
        )
    args = TrainingArguments(**settings, remove_unused_columns=False)
    if name in THEIRS:
        made = TrainerOfAnswers if name == KEPT else Trainer
        return made(model, args, train_dataset=data, data_collator=collate)
    numbers = NumberVocabulary.from_tokenizer(Stand(options.vocabulary))
    return NumericTrainer(
        model=model,
        args=args,
        train_dataset=data,
        data_collator=lambda rows: {**collate(rows), "origin": Origin(("0",), 0, {})},
        objective=NumericLoss(name.rpartition(" ")[2], vocabulary=numbers),
    )


def make_model(options: argparse.Namespace) -> Qwen2ForCausalLM:
    """Return the model, with the same weights in each process."""
    torch.manual_seed(0)
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=options.vocabulary,
            hidden_size=options.hidden,
            intermediate_size=4 * options.hidden,
            num_hidden_layers=options.layers,
            num_attention_heads=4,
            num_key_value_heads=4,
            tie_word_embeddings=True,  # as Qwen2 has them at this size
        )
    )


def make_row(options: argparse.Namespace) -> dict[str, list[int]]:
    """Return a text prompt and an answer with numbers, the same in each process."""
    torch.manual_seed(0)
    asked = Setting(vocabulary=options.vocabulary, rows=options.prompt, digits=0.0).labels()
    answer = Setting(vocabulary=options.vocabulary, rows=options.answer, digits=0.5).labels()
    labels = [IGNORE_INDEX] * options.prompt + answer.tolist()
    return {"input_ids": asked.tolist() + answer.tolist(), "labels": labels}


def collate(rows: Sequence[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    """Return rows of equal length as tensors."""
    batch = {name: torch.tensor([row[name] for row in rows]) for name in rows[0]}
    return {**batch, "attention_mask": torch.ones_like(batch["input_ids"])}


if __name__ == "__main__":
    main()
