"""Rows of which some have an image and some have none, and a task for them."""

import json
from dataclasses import dataclass
from pathlib import Path

from PIL import Image
from sums import Sums

from mm_numeric.answers import Example


@dataclass(frozen=True, kw_only=True)
class Counts(Sums):
    """Questions in, numbers out; about an image or not."""

    prompt: str = "{ask}"

    def examples(self, rows, *, training):
        for where, row in rows:
            yield Example(
                id=row["id"],
                image=Path(row["image"]) if row.get("image") else None,
                prompt=self.prompt.format(ask=row["ask"]),
                answer=row["answer"],
                where=where,
            )

    def format(self, answer, frame=None):
        return super().format(answer)  # about an image or not, the answer is plain text

    def parse(self, text, frame=None):
        return text


def write_mixed(folder: Path, pattern: str, id_prefix: str = "") -> Path:
    """Write a row for each letter: p has an image of its own, t has text alone."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for i, letter in enumerate(pattern):
        row = {"id": f"{id_prefix}{i}", "ask": f"{i} + {3 * i} =", "answer": str(4 * i)}
        if letter == "p":
            Image.effect_noise((64, 48), 40 + i).convert("RGB").save(folder / f"{i}.png")
            row["image"] = f"{i}.png"
        lines.append(json.dumps(row) + "\n")
    (folder / "rows.jsonl").write_text("".join(lines))
    return folder / "rows.jsonl"
