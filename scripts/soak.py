"""Check that kills at random moments change nothing: each cycle must end as the first run did.

A cycle trains 20 steps, is killed and resumed; predicts, is killed and resumes on two ranks; and
scores. Weights, predictions and metrics must equal those of a run without kills, bit for bit, no
file of a killed process may be left, and the memory of the processes must not grow.

    ./scripts/soak --cycles 200
"""

import argparse
import hashlib
import multiprocessing
import os
import random
import resource
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

PRELOADED = [
    "mm_numeric.cli.main",
    "mm_numeric.training.run",
    "mm_numeric.inference.generate",
    "mm_numeric.families.causal_lm",
    "deepspeed.runtime.zero.muon.muon_optimizer",  # which accelerate imports for any training
]
TRAIN = [
    "train", "arithmetic_tiny", "trainer.max_steps=20", "trainer.save_steps=2",
    "trainer.use_cpu=true", "trainer.logging_steps=2", "data.train.synthetic.rows=200",
    "data.test.synthetic.rows=40", "evaluate=null",
]  # fmt: skip
COMPARED = ("model/model.safetensors", "predictions.jsonl", "scores.jsonl", "results.json")


def work(words: Sequence[str], log: str, environment: dict[str, str]) -> None:
    """Run one command of mm-numeric in this process, with its output in a file."""
    os.environ.update(environment, OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1")
    multiprocessing.set_start_method("fork", force=True)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    from mm_numeric.cli import main as cli

    code = cli.main(list(words))
    with Path(f"{log}.peaks").open("a") as peaks:
        peaks.write(f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10}\n")
    sys.exit(code)


def start(words: Sequence[str], log: Path, ranks: int = 1) -> list[BaseProcess]:
    """Start a command in a process that is forked from one with all imports, or on some ranks."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    found: list[BaseProcess] = []
    for rank in range(ranks):
        own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
        variables = {name: str(value) for name, value in own.items()} if ranks > 1 else {}
        variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port} if ranks > 1 else {}
        found.append(context.Process(target=work, args=(words, str(log), variables)))
        found[-1].start()
    return found


def finish(words: Sequence[str], log: Path, ranks: int = 1) -> None:
    """Run a command, and fail unless it succeeds."""
    processes = start(words, log, ranks)
    for process in processes:
        process.join(600)
    if any(process.exitcode for process in processes):
        raise SystemExit(f"{' '.join(words)} failed:\n{log.read_text()[-3000:]}")


def kill_after(words: Sequence[str], log: Path, seconds: float) -> None:
    """Run a command, and kill it after some time."""
    (process,) = start(words, log)
    process.join(seconds)
    process.kill()
    process.join()


def train(run: Path, log: Path) -> list[str]:
    """Return the command that trains or, if there is a checkpoint, resumes a run."""
    saved = any(run.glob("checkpoint-*/manifest.json")) or (run / "run.json").is_file()
    data = f"data.cache={run.parent / 'cache'}"
    return [*TRAIN, f"trainer.output_dir={run}", data, *["--resume"] * saved]


def digests(run: Path) -> dict[str, str]:
    """Return the SHA-256 of each file that must be equal, without the run's path in it."""
    found = {}
    for name in COMPARED:
        data = (run / name).read_bytes().replace(str(run).encode(), b"RUN")
        found[name] = hashlib.sha256(data).hexdigest()
    return found


def main() -> None:
    """Run the cycles, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cycles", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as folder:
        whole, log = Path(folder, "whole"), Path(folder, "log.txt")
        times = []
        for words in (train(whole, log), ["predict", "--model", str(whole)]):
            finish(words, log)  # the first also generates the rows, and starts the fork server
        for words in (train(Path(folder, "timed"), log), ["predict", "--model", f"{folder}/timed"]):
            began = time.monotonic()
            finish(words, log)
            times.append(time.monotonic() - began)
        finish(["score", f"{whole}/predictions.jsonl"], log)
        expected = digests(whole)
        for cycle in range(1, arguments.cycles + 1):
            began, run, kills = time.monotonic(), Path(folder, "run"), 0
            log.write_text("")
            while kills < rng.choice((1, 2, 3)):
                kill_after(train(run, log), log, rng.uniform(0, times[0]))
                kills += 1
            finish(train(run, log), log)
            predict = ["predict", "--model", str(run)]
            kill_after(predict, log, rng.uniform(0, times[1]))
            finish(predict, log, ranks=2)
            finish(["score", f"{run}/predictions.jsonl"], log)
            found = digests(run)
            wrong = [name for name in expected if found[name] != expected[name]]
            left = [str(path) for path in run.rglob("*") if ".unfinished" in path.name]
            left += [str(path) for path in run.glob("*.rank*")]
            if wrong or left:
                raise SystemExit(f"cycle {cycle}: not equal {wrong}, left {left}")
            shutil.rmtree(run)
            peaks = Path(f"{log}.peaks")
            peak = max(map(int, peaks.read_text().split()))
            peaks.unlink()
            seconds = time.monotonic() - began
            print(
                f"cycle {cycle}: {kills + 1} kills, equal, {seconds:.0f} s, peak {peak} MiB",
                flush=True,
            )


if __name__ == "__main__":
    main()
