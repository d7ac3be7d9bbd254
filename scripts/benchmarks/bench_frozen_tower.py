"""Measure a step with activation checkpointing, LoRA and a frozen vision tower on the CPU.

    python scripts/benchmarks/bench_frozen_tower.py          in about two minutes
    python scripts/benchmarks/bench_frozen_tower.py --toy    a tiny model

The model is a Qwen2.5-VL with random weights, all layers of Qwen2.5-VL-3B, and an eighth of its
widths and vocabulary, with LoRA on its language model, in float32. The row has a prompt of 300
tokens, 256 of them for an image, and an answer of 24 tokens. The trainers are NumericTrainer with
CE; the same, but differentiating the frozen tower, as transformers does; and transformers.Trainer,
which also computes the logits of all tokens.

GFLOP    floating-point operations of the second step, counted by torch.utils.flop_counter
CPU s    processor time of a step; median
loss     of the first step
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).parents[2]))  # from a checkout, whether installed or not

import torch
from _gpu_model import TOY_ROW, Workload, make_batch, make_model, qwen2_5_vl
from _gpu_training import LORA_LAYERS, TRAINERS, settings
from _measure import machine, table
from peft import LoraConfig, get_peft_model
from torch.utils.flop_counter import FlopCounterMode
from transformers import PrinterCallback, Qwen2_5_VLConfig, TrainerCallback

OURS, DIFFERENTIATED, THEIRS = NAMES = (
    "NumericTrainer, ce",
    "the same, tower differentiated",
    "transformers.Trainer",
)
ROW = Workload(prompt=300, answer=24, image_side=16, digits=0.5)
COUNTED, STEPS = 2, 4
MOST_OF_OPERATIONS = 0.75
"""Target: our operations, divided by those of transformers.Trainer."""


class Meter(TrainerCallback):
    """Counts the operations of the second step, and measures the processor time of later ones.

    In the first step, ``NumericTrainer`` finds out once how the model computes its logits.
    """

    def __init__(self) -> None:
        """Start without measurements."""
        self.counter, self.operations = FlopCounterMode(display=False), 0
        self.seconds: list[float] = []

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start counting or measuring."""
        if state.global_step == COUNTED - 1:
            self.counter.__enter__()
        self.start = time.process_time()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stop counting or measuring."""
        self.seconds.append(time.process_time() - self.start)
        if state.global_step == COUNTED:
            self.counter.__exit__(None, None, None)
            self.operations, self.seconds = self.counter.get_total_flops(), []


def main() -> int:
    """Measure, print the table and the target; return 1 if the target is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--toy", action="store_true", help="a tiny model")
    parser.add_argument("--rounds", type=int, default=2, help="rounds of two steps (default: 2)")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (default: 1)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    head = machine(torch.device("cpu"))
    print("{machine}, {threads} threads, torch {torch}, {platform}, load {load}\n".format(**head))
    config = qwen2_5_vl(toy=True) if options.toy else an_eighth()
    rounds = [{name: measure(name, config, options.toy) for name in NAMES}
              for _ in range(options.rounds)]  # fmt: skip
    rows = []
    for name in NAMES:
        operations, _, loss = rounds[0][name]
        seconds = statistics.median(s for turn in rounds for s in turn[name][1])
        rows.append([name, f"{operations / 1e9:,.4g}", f"{seconds:.3g}", f"{loss:.6f}"])
    print("\n".join(table(["", "GFLOP", "CPU s", "loss"], rows)), end="\n\n")
    share = rounds[0][OURS][0] / rounds[0][THEIRS][0]
    met = share <= MOST_OF_OPERATIONS
    print(f"operations, of {THEIRS}'s: {share:.3f}, target <= {MOST_OF_OPERATIONS}: "
          f"{'met' if met else 'MISSED'}")  # fmt: skip
    return int(not met)


def measure(name: str, config: Qwen2_5_VLConfig, toy: bool) -> tuple[int, list[float], float]:
    """Train for four steps; return operations, seconds of the last two, and the first loss."""
    model = make_model(config, "cpu").float()
    lora = LoraConfig(r=16, lora_alpha=32, target_modules=LORA_LAYERS)
    model, meter = get_peft_model(model, lora), Meter()
    batch = make_batch(config, TOY_ROW if toy else ROW)
    function = "mm_numeric.training.mixin.stop_gradients_at_frozen_towers"
    is_patched = name == DIFFERENTIATED
    with (
        tempfile.TemporaryDirectory() as folder,
        patch(function) if is_patched else nullcontext(),
    ):
        options = {**settings(folder, "cpu", toy=True), "bf16": False, "max_steps": STEPS}
        trainer = TRAINERS[OURS if is_patched else name](model, batch, options)
        trainer.remove_callback(PrinterCallback)
        trainer.add_callback(meter)
        trainer.train()
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    return meter.operations, meter.seconds, losses[0]


def an_eighth() -> Qwen2_5_VLConfig:
    """Return the config of Qwen2.5-VL-3B-Instruct with an eighth of each width."""
    config = qwen2_5_vl(toy=False)
    text, vision = config.text_config, config.vision_config
    text.vocab_size, text.hidden_size, text.intermediate_size = 151936 // 8, 2048 // 8, 11008 // 8
    text.num_attention_heads, text.num_key_value_heads, text.num_hidden_layers = 2, 1, 36
    text.layer_types = ["full_attention"] * text.num_hidden_layers
    text.bos_token_id = text.eos_token_id = None
    vision.hidden_size, vision.num_heads = 1280 // 8, 2
    vision.intermediate_size, vision.out_hidden_size = 3420 // 8, text.hidden_size
    config.tie_word_embeddings = text.tie_word_embeddings = True
    special = text.vocab_size - 16
    config.vision_start_token_id, config.vision_end_token_id = special, special + 1
    config.image_token_id, config.video_token_id = special + 3, special + 4
    return config


if __name__ == "__main__":
    sys.exit(main())
