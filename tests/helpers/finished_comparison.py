"""Folders of finished comparisons of clocks, as far as a summary reads them."""

import json

from mm_numeric.config.reader import read_config

TARGETS = {"a": "7:05", "b": "12:58", "c": "3:00", "d": "6:30"}
# deviations     a 0, b 4, c 60, d unread       a 0, b 0, c 10, d 2
POOR = {"a": "7:05", "b": "1:02", "c": "4:00", "d": "?"}
GOOD = {"a": "7:05", "b": "12:58", "c": "3:10", "d": "6:32"}
NONE = dict.fromkeys(TARGETS, "?")


def settings(folder, objectives, control="null", seeds=(3, 5), overrides=()):
    """Return the config of a comparison, by default of two seeds."""
    return read_config(
        "clock_tiny",
        [
            f"compare.output_dir={folder}",
            f"trainer.output_dir={folder}/train",
            f"compare.objectives=[{', '.join(objectives)}]",
            f"compare.control={control}",
            f"compare.seeds={list(seeds)}",
            *overrides,
        ],
    )


def write_run(folder, answers, *, steps=500, backwards=False):
    """Write the folder of a finished run, as far as a summary reads it."""
    folder.mkdir(parents=True)
    facts = {"parameters": 1234567, "rows": 12000, "steps": steps, "machine": "Linux, 2 cores"}
    facts |= {"batch_rows": 64, "seconds": 90, "resumed": False}
    (folder / "run.json").write_text(json.dumps({**facts, "versions": {"torch": "2.0"}}), "utf-8")
    rows = [
        {"id": key, "task": "clock", "text": text, "target": TARGETS[key], "image": f"{key}.png"}
        for key, text in answers.items()
    ]
    lines = [json.dumps(row) + "\n" for row in (rows[::-1] if backwards else rows)]
    (folder / "predictions.jsonl").write_text("".join(lines), encoding="utf-8")


def comparison(folder, runs, **more):
    """Write runs, ``{"ce": (answers of seed 3, answers of seed 5)}``, and their warm starts.

    ``more`` are arguments of ``settings``.
    """
    config = settings(folder, [name for name in runs if name != "ce_times_1.3"], **more)
    for place, seed in enumerate(more.get("seeds", (3, 5))):
        write_run(folder / f"seed{seed}" / "warm_start", NONE, steps=800)
        for name, answers in runs.items():
            backwards = place == 1 and name == "emd"
            write_run(folder / f"seed{seed}" / name, answers[place], backwards=backwards)
    return config
