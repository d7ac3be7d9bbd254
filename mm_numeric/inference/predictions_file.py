"""Predictions files: each has the answers of one run to one set of rows, with the same settings.

predictions.jsonl.made_by.json stores digests of the run and of the rows, and the settings that the
answers depend on. If several ranks predict, rank 0 appends to predictions.jsonl, and each other
rank to its own file, such as predictions.jsonl.rank1. ``merge_ranks`` merges the files.

The answers of an evaluation after the last training step have such a file too. It also stores the
config sections ``task``, ``data`` and ``predict``, and a checksum of the answers.
"""

import glob
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from mm_numeric.answers import Example
from mm_numeric.config.decoding import GREEDY, MBR, PredictConfig, is_greedy_alone
from mm_numeric.config.schema import Config
from mm_numeric.io.atomic_files import reject_link
from mm_numeric.io.files import read_json, sha256_of, write_json, write_text
from mm_numeric.io.log import NO_PREFIX, logger
from mm_numeric.runs.folder import decoded_name, differences_text

_GOLDEN_RATIO = (5**0.5 - 1) / 2


def files_of(out: Path, rules: Sequence[str]) -> dict[str, Path]:
    """Return the predictions file of each decoding rule; ``out`` is the file of the first rule.

    The file of another rule has the same name with that rule, such as predictions.median.jsonl.
    """
    if GREEDY in rules[1:] or len(set(rules)) < len(rules):
        raise ValueError(f"rules: {list(rules)}; list greedy first, and each rule once.")
    name = out.name
    if name.endswith(f".{rules[0]}.jsonl"):
        name = name.removesuffix(f".{rules[0]}.jsonl") + ".jsonl"
    named = {rule: out.with_name(decoded_name(name, rule)) for rule in rules}
    return named | {rules[0]: out}


def made_with(settings: PredictConfig, rule: str, rules: Sequence[str]) -> dict[str, Any]:
    """Return the settings that the answers of a rule depend on."""
    found: dict[str, Any] = {"max_new_tokens": settings.new_tokens}
    if settings.constrain:
        found["constrain"] = True
    for name in ("stop_duplicates", "max_objects"):
        if (value := getattr(settings, name)) is not None:
            found[name] = value
    if not is_greedy_alone(rules):
        risk = {"for": settings.risk} if rule == MBR else {}
        sizes = {"mass": settings.mass, "branches": settings.branches, "samples": settings.samples}
        # Since version 2, prefixes that exceed ``branches`` are drawn, not dropped.
        found["decode"] = {"version": 2, "rule": rule, **risk, **sizes, "seed": settings.seed}
    return found


def made_by(run: bytes, examples: Sequence[Example], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the digests of a run and of the answered samples, and the settings of the answers.

    ``run`` is the content of the run's file run.json, or another identifier of the model.
    """
    return {"run": digest_of(run), "rows": _digest_of_rows(examples), **settings}


def _digest_of_rows(examples: Sequence[Example]) -> str:
    return digest_of(*("".join(map(repr, (e, *e.more_images))).encode() for e in examples))


def answer_sections(config: Config) -> dict[str, Any]:
    """Return all sections of a config that can change answers, except those of the training."""
    sections = config.to_dict()
    return {name: sections[name] for name in ("task", "data", "predict")}


def write_evaluated(answers: Path, made_by: Mapping[str, Any]) -> None:
    """Store what made the answers of an evaluation, so that ``predict`` can copy them."""
    write_json(record_of(answers), {**made_by, "sha256": sha256_of(answers)}, indent=1)


def copy_evaluated(
    answers: Path, out: Path, made_by: Mapping[str, Any], examples: Sequence[Example]
) -> set[str]:
    """Copy the answers of an evaluation that ``predict`` would generate again; return their ids.

    ``made_by`` is what would make the answers to ``examples``, with ``answer_sections``. Nothing is
    copied unless all of it is the same, for the first samples if the evaluation had no more; the
    samples must be in ``answer_order``. An answer depends a little on the other samples of its
    batch. Therefore an incomplete batch is only copied if it is the last one of ``examples``.
    """
    record = record_of(answers)
    if not record.is_file():
        return set()
    lines = answers.read_text(encoding="utf-8").splitlines()
    same = {**made_by, "rows": _digest_of_rows(examples[: len(lines)])}
    same["sha256"] = sha256_of(answers)
    if read_json(record) != json.loads(json.dumps(same)):
        return set()
    if len(lines) < len(examples):
        size = made_by["predict"]["batch_size"]
        lines = lines[: len(lines) // size * size]
    if not lines:
        return set()
    copied = [{**json.loads(line), "rows_due": len(examples)} for line in lines]
    write_text(out, "".join(json.dumps(line) + "\n" for line in copied))
    logger.info(
        "%d of %d answers are those of the last evaluation: same weights, rows and settings",
        *(len(copied), len(examples)),
        extra=NO_PREFIX,
    )
    return {line["id"] for line in copied}


def claim_predictions(
    out: Path, run: bytes, examples: Sequence[Example], settings: Mapping[str, Any]
) -> set[str]:
    """Return the ids of the samples whose answers are in ``out``; merge the files of other ranks.

    Raises ValueError if the answers are from another run, other samples or other settings;
    ``made_by`` describes the arguments.
    """
    own = made_by(run, examples, settings)
    reject_link(out)
    record = record_of(out)
    if not out.exists():
        out.parent.mkdir(parents=True, exist_ok=True)
        for part in _parts(out):  # leftovers of a file that was deleted
            part.unlink()
    if not any(path.stat().st_size for path in (out, *_parts(out)) if path.exists()):
        write_json(record, own, indent=1)
    theirs = _parse_object(record.read_text(encoding="utf-8"), record) if record.exists() else {}
    if different := differences_text(theirs, own):
        raise ValueError(
            f"{out} contains predictions of another run, of other rows or with other settings "
            f"({different}); choose another file with --out, or delete it."
        )
    return merge_ranks(out, examples)


def record_of(out: Path) -> Path:
    """Return the file that stores what made the answers in ``out``."""
    return out.with_name(out.name + ".made_by.json")


def file_of_rank(out: Path, rank: int) -> Path:
    """Return the file to which a rank appends its answers, before they are merged into ``out``."""
    return out if rank == 0 else out.with_name(f"{out.name}.rank{rank}")


def merge_ranks(out: Path, examples: Sequence[Example]) -> set[str]:
    """Merge the files of all ranks into ``out``, in the order of the samples, and delete them.

    Incomplete lines of killed processes are removed. Returns the ids of the answered samples.
    """
    parts = _parts(out)
    lines: dict[str, str] = {}
    before = out.read_text(encoding="utf-8") if out.exists() else ""
    for path, text in [(out, before), *((p, p.read_text(encoding="utf-8")) for p in parts)]:
        for line in text.split("\n")[:-1]:
            lines.setdefault(_parse_object(line, path)["id"], line)
    order = {example.id: i for i, example in enumerate(examples)}
    after = "".join(lines[key] + "\n" for key in sorted(lines, key=lambda key: order.get(key, -1)))
    if after != before:
        write_text(out, after)
    for part in parts:
        part.unlink()
    return set(lines)


def answer_order(examples: Sequence[Example]) -> list[Example]:
    """Return the samples in an order whose first N are spread evenly over the file, for every N.

    The first rows of a file may all be of one class. Sample ``i`` is placed by the fraction of
    ``i`` times the golden ratio: then the gaps between the first N have at most three lengths, and
    do not follow a period of the file.
    """
    order = sorted(range(len(examples)), key=lambda i: i * _GOLDEN_RATIO % 1)
    return [examples[i] for i in order]


def open_batches(examples: list[Example], size: int, todo: Set[str]) -> list[list[Example]]:
    """Divide the examples into batches, and return those with at least one id in ``todo``.

    The batches are the same after each restart and on every rank, because the answers and their
    probabilities depend a little on the other samples of a batch.
    """
    batches = [examples[i : i + size] for i in range(0, len(examples), size)]
    return [batch for batch in batches if any(example.id in todo for example in batch)]


def merge_all(files: Iterable[Path], examples: Sequence[Example], todo: Sequence[str]) -> None:
    """Merge the files of all ranks; raise ValueError if a sample of ``todo`` has no answer."""
    for file in files:
        lost = set(todo) - merge_ranks(file, examples)
        if lost:
            raise ValueError(
                f"{file}: the answers to {len(lost)} rows are missing; all ranks must write to the "
                "same folder: choose a shared one with --out."
            )


def _parts(out: Path) -> list[Path]:
    return sorted(out.parent.glob(f"{glob.escape(out.name)}.rank*"))


def digest_of(*parts: bytes) -> str:
    """Return a hash of all ``parts`` together, in 16 hexadecimal digits."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()[:16]


def _parse_object(text: str, path: Path) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{path}: corrupt ({error}); delete it and predict again.") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path}: corrupt ({text!r:.40}); delete it and predict again.")
    return found
