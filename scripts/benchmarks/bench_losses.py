"""Measure time and peak memory of a step of each objective, compared with torch's cross-entropy.

    python scripts/benchmarks/bench_losses.py   the targets, in about ten minutes
    python scripts/benchmarks/bench_losses.py --preset ntl_was ntil --forward
    python scripts/benchmarks/bench_losses.py --rows 512 --dtype bfloat16 --device cuda --compile

One table per comparison: every preset with torch's CE (and with torch's CE plus ntloss, if the
ntloss package has the term) from the logits of the supervised rows; every preset with torch's CE
from all logits and padded labels, with 0, 50 and 95 % of the labels ignored; each of these terms
alone with ntloss alone; and NumericLoss.from_hidden with torch's CE on all logits.

x CE, x ntloss   ratio of times within one round; median over the rounds
peak             peak of the process's resident memory (on a GPU: of torch's allocator) during the
                 step, beyond that before it
waits            number of times the host waits for the GPU in a step
"""

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # from a checkout, whether installed or not

import torch
from _bench import ALONE, FULL, HIDDEN_FROZEN, HIDDEN_TRAINED, PADDED, Setting, blocks, known_names
from _measure import Result, compile_fails, compiled, machine, measure, table
from _targets import at_target_size, targets

from mm_numeric.registry import unknown

MIB = 1 << 20


def main() -> None:
    """Run the benchmark."""
    options = arguments()
    if options.threads:
        torch.set_num_threads(options.threads)
    setting = Setting(
        vocabulary=options.vocabulary,
        rows=options.rows,
        digits=options.digits,
        width=options.width,
        dtype=getattr(torch, options.dtype),
        device=torch.device(options.device),
    )
    head = machine(setting.device)
    print("{machine}, {threads} threads, torch {torch}, {platform}, load {load}".format(**head))
    passes = "forward" if options.forward else "forward and backward"
    print(f"{options.dtype}; {passes}, median of {options.repeats} rounds\n")
    made = blocks(setting, options.preset, options.repeats, time_hidden=options.from_hidden)
    if options.compile:
        made += [compiled(block) for block in made]
    results = measure(made, setting.device, backward=not options.forward, report=tell)
    show(results, options)
    found = targets(results) if at_target_size(setting) and not options.forward else []
    if found:
        show_targets(found)
    if options.json:
        settings = {k: v for k, v in vars(options).items() if k != "json"}
        summaries = [result.summary() for result in results]
        whole = {**head, "settings": settings, "results": summaries, "targets": found}
        options.json.write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default, what in (
        ("vocabulary", 151936, "size of the vocabulary"),
        ("rows", 1024, "supervised tokens in the step"),
        ("digits", 0.3, "share of digits among them, 0 to 0.75"),
        ("width", 896, "width of the hidden states"),
        ("repeats", 5, "timed rounds"),
    ):
        parser.add_argument(
            f"--{name}", type=type(default), default=default, help=f"{what} (default: {default})"
        )
    parser.add_argument(
        "--preset", nargs="+", metavar="NAME", help="presets and terms to measure (default: all)"
    )
    parser.add_argument("--forward", action="store_true", help="without the backward pass")
    parser.add_argument("--compile", action="store_true", help="under torch.compile as well")
    parser.add_argument(
        "--from-hidden",
        action="store_true",
        help="time from_hidden too, with several objectives; slow on a CPU",
    )
    parser.add_argument(
        "--threads", type=int, help="number of CPU threads (default: that of torch)"
    )
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16", "float16"),
        default="float32",
        help="dtype of logits and hidden states (default: float32)",
    )
    parser.add_argument(
        "--device",
        default="cuda" if torch.cuda.is_available() else "cpu",
        help="cpu or cuda (default: cuda if available)",
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="also write all results to this file"
    )
    options = parser.parse_args()
    check(parser, options)
    return options


def check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Set defaults, and exit with an error for invalid options."""
    options.preset = options.preset or known_names()
    for name in options.preset:
        if name not in known_names():
            parser.error(str(unknown(name, known_names(), "preset", "--preset")))
    if options.vocabulary < 100 or options.rows < 4:
        parser.error("--vocabulary must be >= 100 and --rows >= 4")
    if min(options.repeats, options.width) < 1 or (options.threads or 1) < 1:
        parser.error("--repeats, --width and --threads must be >= 1")
    if not 0 <= options.digits <= 0.75:
        parser.error("--digits must be 0 to 0.75: text separates numbers of three digits")
    if options.device.split(":")[0] not in ("cpu", "cuda"):
        parser.error(f"--device is cpu or cuda, not {options.device!r}")
    if options.device != "cpu" and not torch.cuda.is_available():
        parser.error("--device cuda: torch sees no GPU here")
    if options.compile and (reason := compile_fails()):
        parser.error(f"--compile: torch.compile does not work here: {reason}")
    if options.json and not options.json.absolute().parent.is_dir():
        parser.error(f"--json: there is no folder {options.json.absolute().parent}")


def show(results: Sequence[Result], options: argparse.Namespace) -> None:
    """Print one table per comparison."""
    size = f"{options.rows:,} rows, vocabulary {options.vocabulary:,}, {options.digits:.0%} digits"
    for title in dict.fromkeys(result.block for result in results):
        mine = [result for result in results if result.block == title and not result.compiled]
        fast = [result for result in results if result.block == title and result.compiled]
        first = "CE" if title.startswith((FULL, PADDED)) else "ntloss" if title == ALONE else "full"
        header = ["", "ms", f"x {first}", "range"]
        header += ["x ntloss"] * (title == FULL) + ["peak MiB", f"peak x {first}"]
        header += ["of it head"] * (title == HIDDEN_TRAINED) + ["waits"]
        header += ["compiled ms", "x compiled", "peak MiB", "waits"] * bool(fast)
        rows = []
        for index, result in enumerate(mine):
            row = [result.name, *times(result), spread(result)]
            row += [ratio(result.rival_ratio)] * (title == FULL)
            row += [f"{result.peak_bytes / MIB:,.1f}", f"{result.peak_ratio:.3f}"]
            row += [f"{result.head_gradient_bytes / MIB:,.1f}"] * (title == HIDDEN_TRAINED)
            row.append(waits(result))
            if fast:
                row += [*times(fast[index]), f"{fast[index].peak_bytes / MIB:,.1f}"]
                row.append(waits(fast[index]))
            rows.append(row)
        width = f", width {options.width}" if title in (HIDDEN_FROZEN, HIDDEN_TRAINED) else ""
        print(f"{title}; {size}{width}\n")
        print("\n".join(table(header, rows)), end="\n\n")


def times(result: Result) -> list[str]:
    """Return the median time and the median ratio as text."""
    median = result.median_milliseconds
    return ["-" if median is None else f"{median:,.1f}", ratio(result.ratio)]


def ratio(value: float | None) -> str:
    """Return a ratio as text."""
    return "-" if value is None else f"{value:.2f}"


def spread(result: Result) -> str:
    """Return the range of the ratios as text."""
    return f"{min(result.ratios):.2f} to {max(result.ratios):.2f}" if result.ratios else "-"


def waits(result: Result) -> str:
    """Return the number of waits as text."""
    return "-" if result.waits is None else str(result.waits)


def show_targets(found: Iterable[dict[str, object]]) -> None:
    """Print measured values and targets."""
    print("Targets\n")
    rows = [
        [
            each["what"],
            f"{each['measured']:.3f}",
            f"{each['bound']} {each['limit']}",
            "met" if each["met"] else "MISSED",
        ]
        for each in found
    ]
    print("\n".join(table(["", "measured", "target", ""], rows)))


def tell(line: str) -> None:
    """Show the progress on a terminal."""
    if sys.stderr.isatty():
        print(f"\r{line[:78]:<78}\r", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
