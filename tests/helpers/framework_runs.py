"""Train a tiny Llama for 20 steps with a framework, in a process of its own.

As a script (FOLDER MODULE ARGUMENTS), it runs a module as its main program, and saves the first
batch of its training and its log in the folder.
"""

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import torch

MODEL, ROWS, BATCH, LOG = "model", "chat.jsonl", "batch.pt", "log.jsonl"
PAIRS = [("a 12 b", "1234 or 99"), ("how", "30"), ("what time", "none"), ("x", "it is 7")]
STEPS = 20


def prepare(folder, weights=torch.float32):
    """Save the model, its tokenizer and 32 conversations in a folder."""
    from tiny_llama import TOKENIZER, model

    model().to(weights).save_pretrained(folder / MODEL)
    TOKENIZER.save_pretrained(folder / MODEL)
    turns = [
        [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]
        for prompt, answer in PAIRS
    ]
    lines = [json.dumps({"messages": messages}) + "\n" for messages in turns * 8]
    (folder / ROWS).write_text("".join(lines), encoding="utf-8")


def run(folder, module, *arguments, **variables):
    """Run a framework in a folder; return the first and the last entry that it has logged."""
    done = process(folder, module, *arguments, **variables)
    assert done.returncode == 0, done.stdout[-3000:]
    lines = (folder / LOG).read_text(encoding="utf-8").splitlines()
    logs = [entry for entry in map(json.loads, lines) if "loss" in entry]
    assert len(logs) == STEPS
    return logs[0], logs[-1]


def process(folder, module, *arguments, **variables):
    """Run a framework in a folder; return its process, with all it has written."""
    environment = os.environ | {
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": os.pathsep.join(sys.path),
        "OMP_NUM_THREADS": "1",
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),  # torchrun
        **variables,
    }
    return subprocess.run(
        [sys.executable, __file__, str(folder), module, *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )


def expected(folder, objective, auto="AutoModelForCausalLM"):
    """Return the loss of the first batch and its components, from NumericLoss alone."""
    import transformers

    from mm_numeric import NumericLoss

    batch = torch.load(folder / BATCH)
    labels = batch.pop("labels")
    model = getattr(transformers, auto).from_pretrained(folder / MODEL, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / MODEL)
    with torch.no_grad():
        result = NumericLoss(objective, tokenizer)(model(**batch).logits, labels, shift=True)
    components = {f"loss/{name}": value.item() for name, value in result.components.items()}
    return {"loss": result.loss.item(), **components}


def record(folder):
    """Let transformers' Trainer save the first batch that it reads and all that it logs."""
    from transformers import Trainer

    read, log = Trainer.get_batch_samples, Trainer.log

    def recorded_read(self, *args, **kwargs):
        batches, items = read(self, *args, **kwargs)
        if not (folder / BATCH).exists():
            tensors = {n: v.cpu() for n, v in batches[0].items() if isinstance(v, torch.Tensor)}
            torch.save(tensors, folder / BATCH)
        return batches, items

    def recorded_log(self, logs, *args, **kwargs):
        with open(folder / LOG, "a", encoding="utf-8") as file:
            file.write(json.dumps(logs, default=float) + "\n")
        log(self, logs, *args, **kwargs)

    Trainer.get_batch_samples, Trainer.log = recorded_read, recorded_log


if __name__ == "__main__":
    record(Path(sys.argv[1]))
    module = sys.argv[2]
    sys.argv = sys.argv[2:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
