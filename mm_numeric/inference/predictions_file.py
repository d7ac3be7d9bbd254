"""The file predictions.jsonl.made_by.json: a predictions file has answers of one kind only.

It stores digests of the run and of the rows, and the settings that the answers depend on.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mm_numeric.answers import Example
from mm_numeric.config.decoding import MBR, PredictConfig, is_greedy_alone
from mm_numeric.files import write_json, write_text


def made_with(settings: PredictConfig, rule: str, rules: Sequence[str]) -> dict[str, Any]:
    """Return the settings that the answers of a rule depend on."""
    found: dict[str, Any] = {"max_new_tokens": settings.max_new_tokens}
    if settings.constrain:
        found["constrain"] = True
    if not is_greedy_alone(rules):
        risk = {"for": settings.risk} if rule == MBR else {}
        sizes = {"mass": settings.mass, "branches": settings.branches, "samples": settings.samples}
        found["decode"] = {"rule": rule, **risk, **sizes}
    return found


def claim_predictions(
    out: Path, run: bytes, examples: Sequence[Example], settings: Mapping[str, Any]
) -> set[str]:
    """Return the ids of the samples answered in the file ``out``; raise if another run wrote it.

    ``run`` is the content of the file run.json of the run, or what else identifies the model.
    """
    made_by = {
        "run": _digest(run),
        "rows": _digest(*(repr(example).encode() for example in examples)),
        **settings,
    }
    record = out.with_name(out.name + ".made_by.json")
    if not out.exists():
        out.parent.mkdir(parents=True, exist_ok=True)
        write_json(record, made_by, indent=1)
        return set()
    theirs = _parse_object(record.read_text(encoding="utf-8"), record) if record.exists() else {}
    for key in {**made_by, **theirs}:
        value = made_by.get(key)
        if theirs.get(key) != value:
            raise ValueError(
                f"{out} contains predictions of another run, of other rows or with other settings "
                f"({key} is {theirs.get(key)} there and {value} here); choose another file "
                "with --out, or delete it."
            )
    *lines, rest = out.read_text(encoding="utf-8").split("\n")
    if rest:  # an incomplete line of a killed process
        write_text(out, "".join(line + "\n" for line in lines))
    return {_parse_object(line, out)["id"] for line in lines}


def _digest(*parts: bytes) -> str:
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
