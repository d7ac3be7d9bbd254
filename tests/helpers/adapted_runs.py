"""Short runs with adapters on the tiny model of any family."""

import functools
import json

import torch
from rectangles import write_rectangles
from sums import SUMS
from tiny_models import ROOT, tiny_folder

from mm_numeric.config.reader import config_from_dict
from mm_numeric.data.collator import BATCH_KEYS, TrainingCollator
from mm_numeric.data.examples import load_examples
from mm_numeric.models.loading import load_family, load_model

BLIND = ("causal_lm", "t5")
UNTIED = ("llava", "yi_vl")  # twins whose head is not their embeddings


@functools.cache
def rows(name):
    """Return eight rows for a family: rectangles, or sums for a text family."""
    folder = ROOT / "adapted"
    folder.mkdir(exist_ok=True)
    if name not in BLIND:
        return write_rectangles(folder)
    sums = [{"id": str(i), "sum": s, "answer": a} for i, (s, a) in enumerate(SUMS.items())]
    (folder / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in sums))
    return folder / "sums.jsonl"


TASKS = {
    "detection": {"name": "detection", "classes": ["box", "red disc"]},
    "click": {"name": "click"},
    "clock": {"name": "clock"},
}
"""Tasks other than grounding, for families that accept images."""


@functools.cache
def rows_of_task(name):
    """Return the eight rectangles as rows of one of ``TASKS``."""
    lines = []
    for i, line in enumerate(rows("qwen2_vl").read_text(encoding="utf-8").splitlines()):
        row = json.loads(line)
        row["time"] = f"{i + 1}:{7 * i:02}"
        if name == "detection":  # a phrase would be asked for instead of the classes
            row["instances"] = [{"box": row.pop("box"), "label": row.pop("phrase")}]
        lines.append(json.dumps(row) + "\n")
    file = ROOT / "adapted" / f"{name}.jsonl"
    file.write_text("".join(lines), encoding="utf-8")
    return file


def adapted_config(folder, name, parts, lora=None, dtype="float32", task=None, **trainer):
    """Return a run of a few steps, of sums or grounding unless ``task`` is one of ``TASKS``."""
    data = {"path": str(rows_of_task(task) if task else rows(name))}
    own = {"name": "sums:Sums"} if name in BLIND else {"name": "grounding", "prompt": "{phrase}"}
    return config_from_dict(
        {
            "task": TASKS.get(task, own),
            "data": {"train": data, "test": data},
            "model": {"name": tiny_folder(name), "family": name, "dtype": dtype},
            "modules": parts,
            "lora": lora,
            "trainer": {
                "output_dir": str(folder / "run"),
                "per_device_train_batch_size": 4,
                "max_steps": 3,
                "learning_rate": 1.0e-2,
                "save_strategy": "no",
                "seed": 0,
                **trainer,
            },
            "predict": {"max_new_tokens": 4},
            "evaluate": None,
        },
        where="test",
        title="test",
    )


def run_of(config):
    """Return the family and the model of a run."""
    folder = str(config.output_dir / "model")
    family = load_family(config, folder)
    return family, load_model(config, family, folder).eval()


def a_batch(config, family):
    """Return the rows as model inputs."""
    examples = load_examples(config.task, config.data.train, config.output_dir, training=True)
    batch = TrainingCollator(family, config.task, family.vocabulary())(examples)
    return {key: value for key, value in batch.items() if key not in BATCH_KEYS}


def logits(config, family, model):
    """Return the logits of a model for the rows."""
    with torch.no_grad():
        return model(**a_batch(config, family)).logits
