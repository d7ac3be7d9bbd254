"""Check on one GPU that everything works, and measure the speed.

    scripts/bench_gpu --short                 the first seven sections, in 560 seconds on an H200
    scripts/bench_gpu                         everything, within 30 minutes
    scripts/bench_gpu --only losses images    some sections
    scripts/bench_gpu --toy --short           at a tiny size, on a CPU too
    PYTHON=python3 scripts/bench_gpu          with this Python instead of .venv

It installs nothing, needs no network, and first prints the packages that it uses: any versions that
pyproject.toml allows.

hardware   bandwidth of a copy, and the peak of a product
losses     a step of each loss at a vocabulary of 151,936 with 8,192 and 32,768 rows: ours, ours of
           commit 3429b85c, torch, torch.compile, Liger, cut-cross-entropy
training   a step of Qwen2.5-VL-7B (random weights) with LoRA, 16 rows of 1,000 tokens:
           NumericTrainer, and transformers.Trainer and SFTTrainer with their best options
flash      32 rows, with torch's attention and with flash-attention
answers    64 answers to prompts of 1,000 tokens: greedy, median, MBR
images     training on JPEGs of a megapixel, which 0, 4 or 8 workers decode
resume     training of a tiny Qwen2-VL with LoRA, and --resume
works      training with bf16, --resume, predict, score and export of a tiny Qwen2-VL with all
           weights, with LoRA, and with DeepSpeed ZeRO-2 on one rank; `pytest -m device` tests more
batches    tokens per second of questions of 200 to 2,000 tokens, padded, grouped by length and
           padding-free; and with the features of a frozen vision tower from data.vision_cache

Results are written to --json after each measurement, with a Markdown file (.md) and a log (.log)
next to it. Measurements that are in the file are not repeated without --again. A package that is
not installed is reported as such: pip install liger-kernel cut-cross-entropy trl deepspeed.

Each measurement runs in a process of its own, forked from one that has imported everything but has
not used the GPU. If an import uses it, each process imports everything again, which is reported.

Exit code 0: everything was measured, or could not be (not installed, out of memory). 1: something
failed, or was not run within --seconds. 2: an invalid option, or a version that is not allowed.
"""

import sys

from _gpu_versions import check_versions

if __name__ == "__main__":
    check_versions()  # before the imports, which may fail with other versions

import argparse
import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or the profiler prints two lines a time
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # or each process starts others
# Or torch.cuda.is_available() uses the GPU, after which no forked process can.
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
sys.path.insert(0, str(Path(__file__).parents[2]))  # from a checkout, whether installed or not

import _gpu_answers
import _gpu_batches
import _gpu_losses
import _gpu_training
import _gpu_works
import torch
from _gpu_facts import commit, facts
from _gpu_jobs import FAILED, NO_MEMORY, OK, Job, Record, context, run
from _gpu_table import explain, markdown, versions

from mm_numeric.io.files import read_json, write_json, write_text

SCRIPTS = Path(__file__).parent
SECTIONS: dict[str, tuple[Callable[[str, bool], list[Job]], float]] = {
    "hardware": (_gpu_losses.hardware_jobs, 30),
    "losses": (_gpu_losses.jobs, 90),
    "training": (_gpu_training.training_jobs, 200),
    "flash": (_gpu_training.flash_jobs, 60),
    "answers": (_gpu_answers.jobs, 100),
    "images": (_gpu_batches.image_jobs, 60),
    "resume": (_gpu_works.resume_jobs, 20),
    "works": (_gpu_works.jobs, 420),
    "batches": (_gpu_batches.jobs, 400),
}
"""The jobs of each section, and its time limit in seconds."""

SHORT = tuple(SECTIONS)[:7]
SHORT_SECONDS, SECONDS = 560.0, 1800.0
"""Time limits with and without ``--short``."""

DEFAULT_FILE = Path("runs/bench_gpu.json")

KEPT = (OK, NO_MEMORY)
"""Results that a later run does not measure again."""

SAME = ("commit", "toy", "device", "torch", "transformers")
"""Entries of the head that are equal for all results in a file."""


def main() -> int:
    """Run the benchmark and return the exit code."""
    options = arguments()
    set_environment(options.device)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that processes are killed too
    bench = Bench(options)
    print("\n".join(versions(bench.head)))
    for section in options.only:
        bench.run_section(section)
        bench.write()
        print(f"{section} is written; {bench.end - time.monotonic():.0f} s left", flush=True)
    print(f"\n{bench.page()}\n{options.json} and {options.json.with_suffix('.md')} are written.")
    return bench.exit_code()


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=SECTIONS, help="sections to run")
    parser.add_argument("--short", action="store_true", help=f"only {', '.join(SHORT)}")
    parser.add_argument("--toy", action="store_true", help="tiny sizes, on a CPU too")
    parser.add_argument(
        "--seconds", type=float, metavar="S",
        help=f"time limit of the run (default: {SECONDS:.0f}; with --short {SHORT_SECONDS:.0f})",
    )  # fmt: skip
    parser.add_argument(
        "--again", action="store_true", help="repeat the sections that are in the file"
    )
    parser.add_argument(
        "--json", type=Path, default=DEFAULT_FILE, metavar="FILE",
        help=f"file for the results (default: {DEFAULT_FILE})",
    )  # fmt: skip
    parser.add_argument(
        "--device", choices=("cuda", "cpu"), help="default: cuda; with --toy cuda if there is one"
    )
    parser.add_argument("--commit", help="commit to report (default: that of this checkout)")
    options = parser.parse_args()
    is_there = torch.cuda.is_available()
    options.device = options.device or ("cuda" if is_there or not options.toy else "cpu")
    if options.device == "cuda" and not is_there:
        parser.error("torch sees no GPU here; --toy runs everything at a tiny size on the CPU")
    if options.device == "cpu" and not options.toy:
        parser.error("--device cpu needs --toy: the real sizes are those of a GPU")
    options.only = options.only or list(SHORT if options.short else SECTIONS)
    if options.seconds is None:
        options.seconds = SHORT_SECONDS if options.short else SECONDS
    if options.seconds <= 0:
        parser.error("--seconds must be > 0")
    if options.json == DEFAULT_FILE:
        DEFAULT_FILE.parent.mkdir(exist_ok=True)
    if not options.json.absolute().parent.is_dir():
        parser.error(f"--json: there is no folder {options.json.absolute().parent}")
    options.commit = options.commit or commit()
    return options


def set_environment(device: str) -> None:
    """Set environment variables for the processes of measurements: the device and module paths."""
    if device == "cpu":
        os.environ |= {"CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu"}
    else:
        os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")
    paths = [str(SCRIPTS), str(SCRIPTS.parents[1]), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))


class Bench:
    """The results of a file, and the measurements that are missing in it."""

    def __init__(self, options: argparse.Namespace) -> None:
        """Read the file of earlier results, and determine device and versions."""
        self.options = options
        self.limit = time.monotonic()  # grows with each section, which may use what others leave
        self.end = self.limit + options.seconds
        self.processes = context()
        self.log = options.json.with_suffix(".log")
        self.head = self._head()
        self.results: dict[str, dict[str, dict[str, Record]]] = self._earlier()
        self.jobs_of: dict[str, list[Job]] = {}

    def _head(self) -> Record:
        """Return device, versions and commit."""
        job = Job(
            title="device",
            names=("device",),
            function=facts,
            options={"device": self.options.device},
            seconds=120,
        )
        ((_, found),) = run(job, job.names, lambda: 120, self.processes, self.log)
        if found["status"] != OK and self.options.device == "cuda":
            print(f"No forked process can use the GPU ({explain(found)}): each imports all again.")
            self.processes = multiprocessing.get_context("spawn")
            ((_, found),) = run(job, job.names, lambda: 120, self.processes, self.log)
        if found["status"] != OK:
            sys.exit(f"the device cannot be used ({explain(found)}); see {self.log}")
        here = {key: value for key, value in found.items() if key not in ("status", "seconds")}
        return {**here, "commit": self.options.commit, "toy": self.options.toy}

    def _earlier(self) -> dict[str, dict[str, dict[str, Record]]]:
        """Return the results of the file, without those that are to be measured again."""
        options = self.options
        if not options.json.is_file():
            return {}
        found = read_json(options.json)
        head = found.get("head") if isinstance(found, dict) else None
        if not isinstance(head, dict) or not set(SAME) <= head.keys():
            sys.exit(f"{options.json} is not from bench_gpu; set another file with --json.")
        other = [key for key in SAME if head[key] != self.head[key]]
        if other and not options.again:
            sys.exit(
                f"{options.json} has results with {other[0]} {head[other[0]]}, and here it "
                f"is {self.head[other[0]]}: set another file with --json, or replace this one "
                "with --again."
            )
        kept = {} if other else found["results"]
        return {s: jobs for s, jobs in kept.items() if not (options.again and s in options.only)}

    def jobs(self, section: str) -> list[Job]:
        """Return the jobs of a section."""
        if section not in self.jobs_of:
            self.jobs_of[section] = SECTIONS[section][0](self.options.device, self.options.toy)
        return self.jobs_of[section]

    def record(self, section: str, job: Job, name: str) -> Record | None:
        """Return the record of a measurement, None if it was not run."""
        return self.results.get(section, {}).get(job.title, {}).get(name)

    def run_section(self, section: str) -> None:
        """Run the measurements of a section that are missing, and write each record at once."""
        self.limit += SECTIONS[section][1]
        end = min(self.end, self.limit)
        for job in self.jobs(section):
            missing = [name for name in job.names if not self._is_kept(section, job, name)]
            if missing and job.in_order:
                missing = list(job.names)
            with tempfile.TemporaryDirectory(prefix="bench_gpu-") as folder:
                given = {**job.options, **self._extra(section, folder)}
                changed = replace(job, options=given)
                left = lambda: end - time.monotonic()  # noqa: E731
                for name, found in run(changed, missing, left, self.processes, self.log):
                    self.results.setdefault(section, {}).setdefault(job.title, {})[name] = found
                    self.write()
                    outcome = "ok" if found["status"] == OK else explain(found)
                    print(f"{section}: {job.title}: {name}: {outcome}", flush=True)

    def _extra(self, section: str, folder: str) -> dict[str, object]:
        """Return the options of measurements that are known only here."""
        if section in ("works", "resume"):
            return {"folder": folder}
        if section in ("training", "flash"):
            return {"peak_tflops": self.head["peak_tflops"]}
        return {}

    def _is_kept(self, section: str, job: Job, name: str) -> bool:
        """Return True if a measurement has a result that is not to be measured again."""
        found = self.record(section, job, name)
        return found is not None and found["status"] in KEPT

    def write(self) -> None:
        """Write the results and the Markdown tables."""
        write_json(self.options.json, {"head": self.head, "results": self.results})
        write_text(self.options.json.with_suffix(".md"), self.page())

    def page(self) -> str:
        """Return the Markdown tables of all sections that have a result or were asked for."""
        shown = [s for s in SECTIONS if s in self.results or s in self.options.only]
        tables = {
            section: {
                job.title: {name: self.record(section, job, name) for name in job.names}
                for job in self.jobs(section)
            }
            for section in shown
        }
        return markdown(self.head, tables)

    def exit_code(self) -> int:
        """Return 1 if a measurement that was asked for has failed or was not run, else 0."""
        found = [
            self.record(section, job, name)
            for section in self.options.only
            for job in self.jobs(section)
            for name in job.names
        ]
        failed = sum(each is not None and each["status"] == FAILED for each in found)
        left = sum(each is None for each in found)
        if failed:
            print(f"{failed} of {len(found)} measurements failed; {self.log} has the errors.")
        if left:
            print(f"{left} of {len(found)} were not run in time; the same command runs them.")
        return int(bool(failed or left))


if __name__ == "__main__":
    sys.exit(main())
