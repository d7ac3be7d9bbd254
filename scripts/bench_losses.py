"""How long one step of each objective takes, forward and backward, next to torch's cross-entropy.

    python scripts/bench_losses.py
    python scripts/bench_losses.py --vocabulary 32000 --rows 2048 --dtype bfloat16 --json bench.json

The contenders take turns within each round, and a ratio is that of two neighbours in one round:
machines drift, and a minute later the same work can take half as long again.
"""

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).parents[1]))  # from a checkout, whether installed or not

from mm_numeric.losses.objective import objective
from mm_numeric.spans import NumberSpans
from mm_numeric.vocabulary import NumberVocabulary

TORCH = "torch cross_entropy"
PRESETS = ("ce", "emd", "ntl_was", "ntil", "ntil_published")
DIGITS = {str(digit): 15 + digit for digit in range(10)}  # the ids of Qwen2

Step = Callable[[torch.Tensor], torch.Tensor]


def main() -> None:
    """Time every contender and print the table."""
    options = arguments()
    if options.threads:
        torch.set_num_threads(options.threads)
    device = torch.device(options.device)
    torch.manual_seed(0)
    dtype = getattr(torch, options.dtype)
    logits = torch.randn(options.rows, options.vocabulary, device=device, dtype=dtype)
    logits.requires_grad_()
    contenders = steps(labels(options), options.vocabulary, device)
    clock = milliseconds_cuda if device.type == "cuda" else milliseconds_cpu
    rounds: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(options.repeats + 1):
        for name, step in contenders.items():
            elapsed = clock(step, logits)
            if turn:  # the first round warms up
                rounds[name].append(elapsed)
        if sys.stderr.isatty():
            print(f"\rround {turn} of {options.repeats}", end="", file=sys.stderr, flush=True)
    if sys.stderr.isatty():
        print("\r" + " " * 30 + "\r", end="", file=sys.stderr)
    show(rounds, options, device)


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--vocabulary", type=int, default=151936, help="tokens (Qwen2: 151936)")
    parser.add_argument("--rows", type=int, default=512, help="supervised tokens in the step")
    parser.add_argument("--digits", type=float, default=0.3, help="share of them that are digits")
    parser.add_argument("--repeats", type=int, default=7, help="rounds after one to warm up")
    parser.add_argument("--threads", type=int, help="threads on the CPU (default: torch's own)")
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16", "float16"),
        default="float32",
        help="of the logits",
    )
    parser.add_argument(
        "--device",
        default="cuda" if torch.cuda.is_available() else "cpu",
        help="cpu or cuda (default: cuda where there is one)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every round here as well")
    options = parser.parse_args()
    if options.vocabulary < 100 or options.rows < 1 or options.repeats < 1:
        parser.error("--vocabulary must be >= 100, --rows and --repeats >= 1")
    if not 0 <= options.digits <= 1:
        parser.error("--digits is a share, from 0 to 1")
    return options


def labels(options: argparse.Namespace) -> torch.Tensor:
    """Return labels [1, n]: numbers of three digits between text."""
    wanted = torch.randint(30, options.vocabulary, (options.rows,))
    numbers = round(options.rows * options.digits / 3)
    spaced = torch.linspace(0, max(0, options.rows - 4), numbers).long()
    for start in spaced.tolist():
        stop = min(start + 3, options.rows)
        wanted[start:stop] = 15 + torch.randint(10, (stop - start,))
    return wanted[None]


def steps(batch: torch.Tensor, vocabulary: int, device: torch.device) -> dict[str, Step]:
    """Return what to time: each takes logits [n, v] to a loss. Spans are made with the batch."""
    numbers = NumberVocabulary(tuple(DIGITS.values()), tuple(float(digit) for digit in range(10)))
    wanted = batch[0].to(device)
    contenders: dict[str, Step] = {TORCH: lambda z: functional.cross_entropy(z.float(), wanted)}
    for name in PRESETS:
        made = objective(name, numbers)
        spans = NumberSpans.from_labels(batch, numbers, digit_runs=made.spec.digit_runs).to(device)
        contenders[name] = lambda z, made=made, spans=spans: made(z, wanted, spans).loss
    try:
        from ntloss import NTLoss
    except ImportError:
        return contenders
    ntl = NTLoss(Stand(vocabulary), vocab_size=vocabulary, reweigh=False)
    contenders["torch + ntloss"] = lambda z: (
        functional.cross_entropy(z.float(), wanted) + 0.3 * ntl(z.float()[None], wanted[None])
    )
    return contenders


class Stand:
    """Stands in for a tokenizer: ten digits, and a vocabulary of the size asked for."""

    def __init__(self, size: int) -> None:
        """Take the size of the vocabulary."""
        self.size = size

    def __len__(self) -> int:
        """Return the size of the vocabulary."""
        return self.size

    def add_tokens(self, _: list[str]) -> int:
        """Say that nothing had to be added."""
        return 0

    def get_vocab(self) -> dict[str, int]:
        """Return the tokens that matter."""
        return {**DIGITS, "a": 0}


def milliseconds_cpu(step: Step, logits: torch.Tensor) -> float:
    """Time one step forward and backward."""
    logits.grad = None
    start = time.perf_counter()
    step(logits).backward()
    return 1000 * (time.perf_counter() - start)


def milliseconds_cuda(step: Step, logits: torch.Tensor) -> float:
    """Time one step forward and backward on the GPU's own clock."""
    logits.grad = None
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    step(logits).backward()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end))


def processor() -> str:
    """Return the name of the CPU."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def show(rounds: dict[str, list[float]], options: argparse.Namespace, device: torch.device) -> None:
    """Print medians, and the median and range of the ratios to torch in the same round."""
    machine = torch.cuda.get_device_name() if device.type == "cuda" else processor()
    threads = torch.get_num_threads()
    print(f"{machine}, {threads} threads, torch {torch.__version__}, {platform.platform()}")
    print(
        f"{options.rows} rows, {options.digits:.0%} digits, vocabulary {options.vocabulary}, "
        f"{options.dtype}; forward and backward, median of {options.repeats} rounds\n"
    )
    print(f"{'':<22}{'ms':>9}{'x torch':>10}   range")
    table = {}
    for name, times in rounds.items():
        ratios = sorted(mine / base for mine, base in zip(times, rounds[TORCH], strict=True))
        table[name] = {
            "median_milliseconds": statistics.median(times),
            "median_ratio": statistics.median(ratios),
            "milliseconds": times,
        }
        print(
            f"{name:<22}{statistics.median(times):>9.1f}{statistics.median(ratios):>10.2f}"
            f"   {ratios[0]:.2f} to {ratios[-1]:.2f}"
        )
    if options.json:
        settings = {key: value for key, value in vars(options).items() if key != "json"}
        head = {
            "machine": machine,
            "threads": threads,
            "torch": torch.__version__,
            "settings": settings,
        }
        options.json.write_text(json.dumps({**head, "results": table}, indent=2) + "\n")


if __name__ == "__main__":
    main()
