"""Sums in words, for models that read text alone: a task of eight rows, and a config for it."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mm_numeric.answers import Example, Mark, Unreadable, Written
from mm_numeric.config.reader import config_from_dict
from mm_numeric.config.schema import Config
from mm_numeric.data.collator import TrainingCollator
from mm_numeric.evaluation.metrics.base import Metric, Scorer, mean_of
from mm_numeric.families.family import Family
from mm_numeric.numbers.numerals import find_numerals
from mm_numeric.tasks.base import BaseTask

SUMS = {
    "3+4=": "7",
    "12+30=": "42",
    "3-10=": "-7",
    "7/2=": "3.5",
    "100-1=": "99",
    "2*64=": "128",
    "1/8=": "0.125",
    "one, and two and a half": "1 2.5",
}


@dataclass(frozen=True, kw_only=True)
class Sums(BaseTask):
    """Sums in, numbers out; an answer is its text."""

    scorer = "sums:EXACT"
    prompt: str = "{sum}"

    def examples(self, rows, *, training):
        for where, row in rows:
            yield Example(
                id=row["id"],
                image=Path(row["image"]) if "image" in row else None,
                prompt=self.prompt.format(sum=row["sum"]),
                answer=row["answer"],
                where=where,
            )

    def format(self, answer, frame=None):
        assert frame is None
        return Written(answer, tuple(Mark(n.start, n.end) for n in find_numerals(answer)))

    def parse(self, text, frame=None):
        return text if find_numerals(text) else Unreadable("no number")

    def record(self, answer):
        return answer

    def recorded(self, value):
        return value


EXACT = Scorer(
    columns=lambda answers, targets: {
        "exact": np.array([a == t for a, t in zip(answers, targets, strict=True)], dtype=float)
    },
    metrics=(
        Metric(
            name="exact", label="exact", unit="%", higher_is_better=True, value=mean_of("exact")
        ),
    ),
)


def sums_config(folder: Path, family: str, objective="ce", sections=None, **trainer) -> Config:
    """Return a config that trains the tiny model of a family on the sums, all eight at a time."""
    rows = folder / "rows.jsonl"
    lines = [{"id": str(i), "sum": s, "answer": a} for i, (s, a) in enumerate(SUMS.items())]
    rows.write_text("".join(json.dumps(line) + "\n" for line in lines))
    raw = {
        "task": {"name": "sums:Sums"},
        "data": {"train": {"path": str(rows)}, "test": {"path": str(rows)}},
        "model": {"name": "tiny", "family": family, "dtype": "float32"},
        "objective": objective,
        "trainer": {
            "output_dir": str(folder / "run"),
            "per_device_train_batch_size": 8,
            "max_steps": 80,
            "learning_rate": 1.0e-3,
            "logging_steps": 10,
            "seed": 0,
            **trainer,
        },
        "evaluate": None,
        **(sections or {}),
    }
    return config_from_dict(raw, where="sums", title="sums")


def collator_of(family: Family) -> TrainingCollator:
    """Return the collator of a family for the sums."""
    return TrainingCollator(family, Sums(), family.vocabulary())
