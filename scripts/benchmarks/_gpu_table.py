"""Markdown tables of the results of ``bench_gpu``."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from _gpu_facts import GIB, NOT_INSTALLED, PACKAGES
from _gpu_jobs import OK, Record

MIB = 1 << 20
Cell = Callable[[Record], str]

ABOUT = {
    "works": "A tiny Qwen2-VL on rendered clocks. Change: the distance between the weights of the "
    "resumed and the uninterrupted run, divided by the change of the weights after the checkpoint.",
    "losses": "One step, forward and backward, bf16; median of ten steps (lowest to highest). Peak "
    "is the memory in addition to the inputs. Waits: number of times the host waits for the GPU.",
    "training": "One training step, batch size 1, bf16, activation checkpointing, fused AdamW; "
    "median (lowest to highest). Peak includes weights and AdamW's state. MFU counts the forward "
    "and backward pass at all positions, without recomputation.",
}
ABOUT["dense"] = ABOUT["training"]
ABOUT["batches"] = (
    "LoRA, micro-batches of several rows; times include the collator, and are from the second of "
    "two epochs. Tokens are counted in questions, images and answers, without padding."
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
        values = record[key]
        assert isinstance(values, list)
        ordered = sorted(scale * value for value in values)
        middle = len(ordered) // 2
        median = ordered[middle] if len(ordered) % 2 else sum(ordered[middle - 1 : middle + 1]) / 2
        return f"{median:,.1f} ({ordered[0]:,.1f} to {ordered[-1]:,.1f})"

    return text


_TRAINING: dict[str, Cell] = {
    "ms per step": _times("seconds_per_step", 1000),
    "tokens/s": _number("tokens_per_second", ",.0f"),
    "MFU": _number("mfu", ".1%"),
    "peak GiB": _number("peak_bytes", ".1f", 1 / GIB),
    "loss": _number("loss", ".4f"),
}
COLUMNS: dict[str, dict[str, Cell]] = {
    "works": {
        "seconds": _number("seconds", ".1f"),
        "passed": _number("passed", ".0f"),
        "skipped": _number("skipped", ".0f"),
        "not imported": _number("not imported", ".0f"),
        "loss": _number("loss", ".4f"),
        "change": _number("distance_of_change", ".1e"),
        "answers": _number("answers", ".0f"),
    },
    "losses": {
        "ms": _times("milliseconds", 1),
        "peak MiB": _number("peak_bytes", ",.1f", 1 / MIB),
        "waits": _number("waits", ".0f"),
        "loss": _number("loss", ".4f"),
    },
    "training": _TRAINING,
    "dense": _TRAINING,
    "batches": {**_TRAINING, "ms in the first epoch": _number("first_epoch_seconds", ",.1f", 1000)},
}


def markdown(
    head: Mapping[str, object], sections: Mapping[str, Mapping[str, Mapping[str, Record | None]]]
) -> str:
    """Return the page: device and versions, then one table for each job of each section.

    Args:
        head: Entries of ``_gpu_facts.facts``, and the commit.
        sections: Records by section, title of the job, and name; None if it was not run.
    """
    lines = [f"# bench_gpu: {head['device']}", "", *_versions(head)]
    for section, jobs in sections.items():
        lines += ["", f"## {section}", "", ABOUT[section]]
        for title, records in jobs.items():
            lines += ["", *_table(title, COLUMNS[section], records)]
    return "\n".join(lines) + "\n"


def _versions(head: Mapping[str, object]) -> Iterator[str]:
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
