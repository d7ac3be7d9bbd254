"""Markdown tables of the results of ``bench_gpu``."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median

from _gpu_facts import GIB, NOT_INSTALLED, PACKAGES
from _gpu_jobs import OK, Record

MIB = 1 << 20
Cell = Callable[[Record], str]

ABOUT = {
    "hardware": "A copy of 8 GiB, read and written, and a product of two square matrices; bf16.",
    "losses": "One step, forward and backward, bf16; median of five steps (lowest to highest). "
    "GB/s counts 6 bytes a logit, TFLOP/s the products that no method saves. Peak is the memory in "
    "addition to the inputs. Waits: number of times the host waits for the GPU.",
    "training": "One training step, bf16, activation checkpointing, fused AdamW; median (lowest to "
    "highest). Peak includes weights and AdamW's state; `mm-numeric check-data` prints the "
    "estimate. MFU counts the forward and backward pass without recomputation, and the output head "
    "only at positions where the trainer computes it.",
    "answers": "The time includes the prompts, parsing and the choice of the answer. Positions: "
    "tokens that the model reads for an answer, with those of the prompt. MBR draws 32 samples.",
    "images": "LoRA, micro-batches of several rows; times include the collator, and are from the "
    "second of two epochs.",
    "works": "A tiny Qwen2-VL on rendered clocks. Change: the distance between the weights of the "
    "resumed and the uninterrupted run, divided by the change of the weights after the checkpoint.",
}
ABOUT |= {"flash": ABOUT["training"], "resume": ABOUT["works"]}
ABOUT["batches"] = (
    ABOUT["images"] + " Tokens are counted in questions, images and answers, without padding."
)


def _number(key: str, form: str, scale: float = 1.0) -> Cell:
    """Return a function that formats an entry of a record; empty if the record lacks it."""

    def text(record: Record) -> str:
        value = record.get(key)
        return "" if value is None else format(float(str(value)) * scale, form)

    return text


def _times(key: str, scale: float) -> Cell:
    """Return a function that formats the median and the range of a list of times."""

    def text(record: Record) -> str:
        values = record.get(key)
        if not isinstance(values, list):
            return ""
        found = [scale * value for value in values]
        return f"{median(found):,.1f} ({min(found):,.1f} to {max(found):,.1f})"

    return text


_TRAINING: dict[str, Cell] = {
    "ms per step": _times("seconds_per_step", 1000),
    "tokens/s": _number("tokens_per_second", ",.0f"),
    "MFU": _number("mfu", ".1%"),
    "peak GiB": _number("peak_bytes", ".1f", 1 / GIB),
    "loss": _number("loss", ".4f"),
}
_LOSSES: dict[str, Cell] = {
    "ms": _times("milliseconds", 1),
    "GB/s": _number("gb_per_second", ",.0f"),
    "TFLOP/s": _number("tflops", ",.1f"),
    "peak MiB": _number("peak_bytes", ",.1f", 1 / MIB),
    "waits": _number("waits", ".0f"),
    "loss": _number("loss", ".4f"),
}
_WORKS: dict[str, Cell] = {
    "seconds": _number("seconds", ".1f"),
    "loss": _number("loss", ".4f"),
    "change": _number("distance_of_change", ".1e"),
    "answers": _number("answers", ".0f"),
}
_IMAGES = {
    **{name: cell for name, cell in _TRAINING.items() if name != "MFU"},
    "rows/s": _number("rows_per_second", ",.1f"),
    "ms in the first epoch": _number("first_epoch_seconds", ",.1f", 1000),
}
COLUMNS: dict[str, dict[str, Cell]] = {
    "hardware": _LOSSES,
    "losses": _LOSSES,
    "training": _TRAINING,
    "flash": _TRAINING,
    "answers": {
        "ms per answer": _times("seconds_per_answer", 1000),
        "positions": _number("positions", ",.1f"),
        "peak GiB": _number("peak_bytes", ".1f", 1 / GIB),
    },
    "images": _IMAGES,
    "resume": _WORKS,
    "works": _WORKS,
    "batches": _IMAGES,
}


def markdown(
    head: Mapping[str, object], sections: Mapping[str, Mapping[str, Mapping[str, Record | None]]]
) -> str:
    """Return the page: device and versions, then one table for each job of each section.

    Args:
        head: Entries of ``_gpu_facts.facts``, and the commit.
        sections: Records by section, title of the job, and name; None if it was not run.
    """
    lines = [f"# bench_gpu: {head['device']}", "", *versions(head)]
    for section, jobs in sections.items():
        lines += ["", f"## {section}", "", ABOUT[section]]
        for title, records in jobs.items():
            lines += ["", *_table(title, COLUMNS[section], records)]
    return "\n".join(lines) + "\n"


def versions(head: Mapping[str, object]) -> Iterator[str]:
    """Yield the lines about device and versions."""
    gpu = [f"{head['memory_gib']} GiB", f"driver {head['driver']}", f"CUDA {head['cuda']}"]
    here = gpu if head["memory_gib"] is not None else ["no GPU"]
    size = ["toy size: the times mean nothing"] if head["toy"] else []
    yield ", ".join([f"Commit {head['commit']}", *size, *here, f"torch {head['torch']}"]) + "."
    found = [f"{name} {head[name]}" for name in PACKAGES if head[name] != NOT_INSTALLED]
    missing = [name for name in PACKAGES if head[name] == NOT_INSTALLED]
    yield ", ".join([*found, f"Python {head['python']}"]) + "."
    if missing:
        yield f"Not installed: {', '.join(missing)}."


def _table(
    title: str, columns: Mapping[str, Cell], records: Mapping[str, Record | None]
) -> Iterator[str]:
    """Yield the lines of one table; columns without an entry are left out."""
    done = [record for record in records.values() if record and record["status"] == OK]
    shown = {name: cell for name, cell in columns.items() if any(map(cell, done))} or dict(
        list(columns.items())[:1]
    )
    yield _row([title, *shown])
    yield _row([":--", *["--:"] * len(shown)])
    for name, record in records.items():
        if record is not None and record["status"] == OK:
            cells = [cell(record) for cell in shown.values()]
        else:
            cells = [explain(record), *[""] * (len(shown) - 1)]
        yield _row([name, *cells])


def explain(record: Record | None) -> str:
    """Return the status and the reason of a measurement without a result."""
    if record is None:
        return "not run"
    return f"{record['status']}: {record['reason']}"


def _row(cells: Sequence[str]) -> str:
    """Return a row of a table; a bar inside of a cell would end it."""
    return "| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |"
