"""Serve a tiny Qwen2.5-VL with vLLM, and compare its answers with those of ``predict``.

    ./scripts/benchmarks/compare_vllm [FOLDER]
    OMP_NUM_THREADS=1 ./scripts/benchmarks/compare_vllm FOLDER RUN

One model answers the questions of three tasks: greedily, within the grammars, and with 32 sampled
answers, from which ``mbr`` chooses one. The table has the number of rows with the same greedy text,
the largest difference of a token score, the mean confidence of sampled answers, and the time.

With a finished RUN, its model is served, and answers its test questions greedily. The table has the
elapsed time and the CPU time of ``predict`` and of the server.
"""

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import psutil

from mm_numeric.config.reader import read_config
from mm_numeric.inference.endpoint import Endpoint
from mm_numeric.inference.generate import predict
from mm_numeric.models.export import export
from mm_numeric.training.run import train

ROOT = Path(__file__).resolve().parents[2]
PORT = 8124
TASKS = {
    "text_detection": ("text_detection_tiny", 20),
    "clock": ("clock_tiny", 40),
    "arithmetic": ("arithmetic_tiny", 40),
}
MODES = {
    "greedy": {},
    "constrained": {"constrain": True},
    "mbr of 32 samples": {"decode": "mbr", "samples": 32},
}


def make_runs(folder: Path) -> Path:
    """Train a model to detect text; copy its run for the other tasks; return the exported model."""
    exported = folder / "exported"
    for task, (name, rows) in TASKS.items():
        config = read_config(
            name,
            [
                f"trainer.output_dir={folder / task}",
                f"data.cache={folder / 'cache'}",
                "data.train.synthetic.rows=2000",
                f"data.test.synthetic.rows={rows}",
                "model={family: qwen2_5_vl, name: tiny, dtype: float32, "
                "coordinates: {preset: qwen2_vl, max_value: 99}}",
                "objective=ce",
                "trainer.max_steps=100",
                "predict.max_new_tokens=64",
            ],
        )
        if not exported.exists():
            export(train(config).parent, exported)
        elif not config.output_dir.exists():
            shutil.copytree(folder / "text_detection", config.output_dir)
            (config.output_dir / "config.yaml").write_text(config.to_yaml(), encoding="utf-8")
    return exported


def start_vllm(model: Path, log: Path) -> subprocess.Popen[bytes]:
    """Start vLLM, and return when it answers."""
    command = [ROOT / ".venv-vllm/bin/python", "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--model", model, "--served-model-name", "tiny", "--dtype", "float32"]
    command += ["--enforce-eager", "--max-model-len", "2048", "--port", str(PORT)]
    # Otherwise it splits prompts, and fails on a CPU if an answer is sampled with a seed.
    command += ["--max-num-batched-tokens", "32768"]
    settings = {"VLLM_TARGET_DEVICE": "cpu", "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
    environment = {**os.environ, **settings, "VLLM_NO_USAGE_STATS": "1"}
    environment["VLLM_ALLOW_LONG_MAX_MODEL_LEN"] = "1"
    environment.pop("PYTHONPATH", None)
    with log.open("wb") as file:
        server = subprocess.Popen(command, env=environment, stdout=file, stderr=file)
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # without http_proxy
    while True:
        time.sleep(1)
        if server.poll() is not None:
            sys.exit(f"vLLM ended with exit code {server.returncode}; see {log}")
        try:
            with direct.open(f"http://127.0.0.1:{PORT}/health", timeout=5):
                return server
        except OSError:
            continue


def compare(folder: Path) -> None:
    """Predict with the model here and on the server, and print how the answers differ."""
    endpoint = Endpoint(url=f"http://127.0.0.1:{PORT}/v1", model="tiny")
    print("| task | answers | rows | same greedy text | token scores, largest difference |", end="")
    print(" mean confidence here, vLLM | time here, vLLM |\n|---|---|---|---|---|---|---|")
    for task in TASKS:
        for mode, settings in MODES.items():
            here, there = (
                timed(folder, task, f"{task}.{mode.split()[0]}.{name}.jsonl", where, settings)
                for name, where in (("here", None), ("vllm", endpoint))
            )
            same = [a for a in zip(here.rows, there.rows, strict=True) if text(a[0]) == text(a[1])]
            gaps = [
                abs(x - y)
                for a, b in same
                for x, y in zip(scores(a), scores(b), strict=False)  # none if constrained
            ]
            gap = f"{max(gaps):.0e} of {len(gaps)}" if gaps else "-"
            print(f"| {task} | {mode} | {len(here.rows)} | {len(same)} | {gap} | ", end="")
            print(f"{here.confidence}, {there.confidence} | ", end="")
            print(f"{here.seconds:.1f} s, {there.seconds:.1f} s |", flush=True)


@dataclass
class Predicted:
    """The rows of a predictions file, and how long they took."""

    rows: list[dict]
    seconds: float

    @property
    def confidence(self) -> str:
        """Return the mean confidence of decoded answers."""
        found = [row["decode"]["confidence"] for row in self.rows if "decode" in row]
        known = [value for value in found if value is not None]
        return f"{fmean(known):.3f}" if known else "-"


def timed(folder, task, name, where, settings) -> Predicted:
    """Predict anew, and measure the time."""
    out = folder / name
    for old in folder.glob(f"{name}*"):
        old.unlink()
    start = time.perf_counter()
    predict(folder / task, None, out, endpoint=where, **settings)
    seconds = time.perf_counter() - start
    return Predicted(list(map(json.loads, out.read_text("utf-8").splitlines())), seconds)


def time_run(folder: Path, run: Path, server: subprocess.Popen[bytes]) -> None:
    """Print how long greedy answers to the test rows of a run take, here and on the server."""
    endpoint = Endpoint(url=f"http://127.0.0.1:{PORT}/v1", model="tiny")
    print("| answers of | rows | elapsed | CPU time | same text |\n|---|---|---|---|---|")
    for _ in range(2):  # the server starts more slowly the first time
        texts = []
        for name, where in (("predict", None), ("vLLM", endpoint)):
            before = cpu_seconds(server)
            found = timed(folder, run.resolve(), f"time.{name}.jsonl", where, {})
            used = cpu_seconds(server) - before
            texts.append([text(row) for row in found.rows])
            same = sum(map(str.__eq__, texts[0], texts[-1]))
            print(f"| {name} | {len(found.rows)} | {found.seconds:.1f} s | {used:.1f} s | {same} |")


def cpu_seconds(server: subprocess.Popen[bytes]) -> float:
    """Return the CPU time of this process, of the server and of its children."""
    process = psutil.Process(server.pid)
    all_times = [each.cpu_times() for each in (process, *process.children(recursive=True))]
    return time.process_time() + sum(times.user + times.system for times in all_times)


def text(row: dict) -> str:
    """Return the greedy text of a row."""
    return row.get("greedy", row["text"])


def scores(row: dict) -> list[float]:
    """Return the mean probabilities of the tokens of each object in the greedy text."""
    return [] if "decode" in row else row.get("scores", [])


def main() -> None:
    """Make the runs, start vLLM, compare and stop it."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    run = Path(sys.argv[2]) if len(sys.argv) > 2 else None
    if run is None:
        exported = make_runs(folder)
    else:
        exported = folder / "exported_run"
        shutil.rmtree(exported, ignore_errors=True)
        export(run, exported)
    server = start_vllm(exported, folder / "vllm.log")
    try:
        if run is None:
            compare(folder)
        else:
            time_run(folder, run, server)
    finally:
        server.terminate()
        server.wait(60)


if __name__ == "__main__":
    main()
