"""Runs of a micro model that many tests read, copy or damage; they are made once for all tests.

micro/                     a GPT-2 with one layer, 5,376 parameters and random weights
train.jsonl, test.jsonl    rows of the task arithmetic
run/                       a finished run with its predictions and scores
checkpoint/                a run of 8 steps that SIGTERM stopped after step 4
comparison/                a finished comparison without its weights

run.yaml, checkpoint.yaml and comparison.yaml are their configs. All paths are relative.
"""

import os
import shutil
import signal
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import yaml
from synthetic_rows import rows_for
from tokenizers.pre_tokenizers import ByteLevel
from transformers import GPT2Config, GPT2LMHeadModel, GPT2Tokenizer
from transformers.trainer_callback import CallbackHandler

from mm_numeric.cli.main import main
from mm_numeric.io.log import set_verbosity

STOP_AFTER = 4
TASK = {"name": "arithmetic", "prompt": "{question}"}
SUMS = {
    "operators": "+-",
    "terms": [2, 2],
    "longer": [3, 3],
    "numbers": [0, 9],
    "largest_answer": 99,
    "questions": ["{expression} ="],
}
ROWS = {"train": {"path": "train.jsonl"}, "test": {"path": "test.jsonl"}}
TRAINER = {"use_cpu": True, "learning_rate": 1.0e-2, "lr_scheduler_type": "cosine", "seed": 0}
RUN = {
    "task": TASK,
    "data": ROWS,
    "model": {"family": "causal_lm", "name": "micro"},
    "objective": "ntl_was",
    "trainer": {
        **TRAINER,
        "output_dir": "run",
        "per_device_train_batch_size": 32,
        "max_steps": 200,
        "warmup_steps": 20,
        "logging_steps": 50,
        "save_strategy": "no",
    },
    "predict": {"batch_size": 16, "max_new_tokens": 4},
}
CHECKPOINT = {
    **RUN,
    "model": {"family": "causal_lm", "name": "run/model"},
    "objective": {"preset": "ntil", "balance": "running"},  # checkpoints store the running means
    "trainer": {
        "output_dir": "checkpoint",
        "use_cpu": True,
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 2,
        "max_steps": 8,
        "learning_rate": 3.0e-3,
        "adam_epsilon": 1.0e-3,  # so that gradients of rounding errors alone do not move weights
        "lr_scheduler_type": "linear",
        "logging_steps": 1,
        "save_steps": 100,  # only the signal saves a checkpoint
        "seed": 0,
    },
    "evaluate": {"every_steps": 2, "rows": 16, "best": "rmse"},
}
COMPARISON = {
    "task": TASK,
    "data": {
        "train": rows_for("arithmetic", 400, 1, **SUMS),
        "test": rows_for(
            "arithmetic", 24, 2, **SUMS, categories=["interpolation", "extrapolation"]
        ),
        "cache": "cache",
    },
    "model": RUN["model"],
    "trainer": {
        **TRAINER,
        "output_dir": "unused",
        "per_device_train_batch_size": 16,
        "max_steps": 8,
        "logging_steps": 2,
        "save_strategy": "no",
    },
    # Answers below 0 have two tokens and cannot be parsed: the report shows failures.
    "predict": {"batch_size": 24, "max_new_tokens": 1},
    "compare": {
        "output_dir": "comparison",
        "seeds": [0, 1],
        "objectives": ["ce", "ntil"],
        "control": "ce_times_1.3",
        "warm_start": {"max_steps": 60, "warmup_steps": 10, "logging_steps": 20},
    },
}


def copy_and_enter(runs, folder, monkeypatch):
    """Copy the runs to ``folder`` and change to it: their paths are relative to their folder."""
    shutil.copytree(runs, folder)
    monkeypatch.chdir(folder)
    return folder


def make_runs(folder):
    """Make the runs in ``folder``."""
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        make_micro_model(Path("micro"))
        configs = {"run": RUN, "checkpoint": CHECKPOINT, "comparison": COMPARISON}
        for name, config in configs.items():
            Path(f"{name}.yaml").write_text(yaml.safe_dump(config, sort_keys=False), "utf-8")
        command("compare", "comparison.yaml")
        for rows in Path("cache").glob("*/rows.jsonl"):
            count = len(rows.read_text(encoding="utf-8").splitlines())
            shutil.copy(rows, "train.jsonl" if count == 400 else "test.jsonl")
        shutil.rmtree("cache")
        for run in Path("comparison").glob("seed*/*/"):
            shutil.rmtree(run / "model")
        command("train", "run.yaml")
        command("predict", "--model", "run")
        command("score", "run/predictions.jsonl")
        with stopped_after(STOP_AFTER):
            command("train", "checkpoint.yaml")
        assert [path.name for path in Path("checkpoint").glob("checkpoint-*")] == ["checkpoint-4"]
        assert not Path("checkpoint/run.json").exists()


def make_micro_model(folder):
    """Save a GPT-2 with one token for each printable ASCII character."""
    letters = ByteLevel.alphabet()
    characters = [c for c in map(chr, range(33, 127)) if c in letters]
    tokens = ["<|endoftext|>", "\u010a", "\u0120", *characters]  # line break and space
    tokenizer = GPT2Tokenizer(vocab={token: i for i, token in enumerate(tokens)}, merges=[])
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=32,
        n_embd=16,
        n_layer=1,
        n_head=2,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        initializer_range=0.2,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    torch.manual_seed(0)
    GPT2LMHeadModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def command(*arguments):
    """Run a command of mm-numeric, which must succeed."""
    try:
        assert main([*arguments, "--quiet"]) == 0
    finally:
        set_verbosity()  # for the other tests of this process


@contextmanager
def stopped_after(step, sent=signal.SIGTERM):
    """Return a context that sends a signal to this process at the end of a training step."""
    original = CallbackHandler.on_step_end

    def on_step_end(handler, args, state, control, **kwargs):
        if state.global_step == step:
            os.kill(os.getpid(), sent)
        return original(handler, args, state, control, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CallbackHandler, "on_step_end", on_step_end)
        yield
