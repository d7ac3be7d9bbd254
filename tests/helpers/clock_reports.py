"""Folders that ``compare`` might have filled with clocks, and what their reports say."""

import html
import json
import re

from PIL import Image
from result_files import write_lines

from mm_numeric.evaluation.report.report import write_report

METRICS = [
    {"name": "within", "label": "within 5 min", "unit": "%", "higher_is_better": True},
    {"name": "deviation", "label": "mean deviation", "unit": "min", "higher_is_better": False},
]
HOSTILE = "<script>alert('7:05')</script> | [x](http://a.b) \x00\u202e\ud800"


def cell(mean, low, high, difference=None, p_holm=None):
    """Return a cell of the table; ``difference`` is (mean, low, high), of two seeds."""
    if difference is not None:
        difference = dict(zip(("value", "low", "high"), difference, strict=True))
        difference["seeds"] = [difference["low"], difference["high"]]
        if p_holm is not None:
            difference |= {"p": p_holm, "p_holm": p_holm}
    return {"value": mean, "low": low, "high": high, "seeds": [low, high], "difference": difference}


def compare_folder(folder, *, objectives=("ce", "emd"), seeds=(0, 1), rows=12, control=None):
    """Write what ``compare`` writes, small and not random; p is 0.012 with five seeds."""
    p = 0.012 if len(seeds) >= 5 else None
    table = {}
    for place, name in enumerate(objectives):
        gain = 0.05 * place
        difference = (gain, gain - 0.02, gain + 0.02) if place else None
        minutes = (-30 * gain, -30 * gain - 0.5, -30 * gain + 0.5) if place else None
        table[name] = {
            "within": cell(0.7 + gain, 0.65 + gain, 0.75 + gain, difference, p),
            "deviation": cell(20 - 30 * gain, 18 - 30 * gain, 22 - 30 * gain, minutes),
        }
        if place and name == control:
            table[name]["within"]["difference"].pop("p_holm", None)
    images = folder / "images"
    images.mkdir(parents=True)
    runs = []
    for index in range(min(rows, 40)):
        Image.new("RGB", (20, 16), (index * 5, 90, 200)).save(images / f"{index}.png")
    for seed in seeds:
        warm = folder / f"seed{seed}" / "warm_start"
        warm.mkdir(parents=True)
        lines = [{"step": 10 * k, "components": {"ce": 2 - 0.1 * k}} for k in range(1, 11)]
        write_lines(warm / "log.jsonl", [*lines, {"train_runtime": 3.1}])
        for place, name in enumerate(objectives):
            run = folder / f"seed{seed}" / f"run{place}"
            run.mkdir()
            folders = {"folder": f"seed{seed}/run{place}", "warm_start": f"seed{seed}/warm_start"}
            runs.append({"objective": name, "seed": seed, **folders})
            parts = {"ce": 1.0} if place == 0 else {"ce": 1.0, name: 0.5}
            log = [
                {"step": k, "components": {p: v / k + 0.01 * seed for p, v in parts.items()}}
                for k in range(1, 9)
            ]
            write_lines(run / "log.jsonl", log)
            write_lines(run / "scores.jsonl", [score(k, place, seed) for k in range(rows)])
    return {
        **summary_of(objectives, "clock"),
        "description": "A trial.",
        "control": control,
        "seeds": list(seeds),
        "metrics": METRICS,
        "table": table,
        "warm_start": {"within": cell(0.5, 0.4, 0.6), "deviation": cell(40, 35, 45)},
        "facts": {"test rows": f"{rows}, clean"},
        "runs": runs,
    }


def summary_of(objectives, task):
    """Return the keys of a summary.json of which most comparisons have none."""
    first = objectives[0]
    empty = ("axes", "other_warm_starts", "decoding", "calibration", "tuning", "facts")
    nothing = ("control", "published", "warm_start", "rows", "rows_due")
    return {
        "version": 1,
        "title": "tiny",
        "task": task,
        "description": "",
        "baseline": first,
        "objectives": list(objectives),
        "references": {name: None if name == first else first for name in objectives},
        **{name: {} for name in empty},
        "hypotheses": [],
        **dict.fromkeys(nothing),
    }


def score(index, place, seed):
    """Return one scored answer: a third right, a third an hour late, a third unreadable."""
    row = {"id": f"test-{index:05d}", "image": f"images/{index}.png", "target": "7:05"}
    kind = (index + place + seed) % 3
    if kind == 2:
        unread = {"text": HOSTILE, "parsed": None, "reason": "no time", "deviation_minutes": 360}
        return row | unread
    read = ("7:05", "8:05")[kind]
    return row | {"text": read, "parsed": read, "reason": None, "deviation_minutes": 60 * kind}


def written(folder, summary, **options):
    """Write the summary and the report, and return the text of both forms.

    ``options`` are arguments of ``write_report``.
    """
    (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    return tuple(path.read_text(encoding="utf-8") for path in write_report(folder, **options))


def html_cells(page, anchor):
    """Return the texts of the cells of the tables in a section, row by row."""
    section = page.split(f'<section id="{anchor}">')[1].split("</section>")[0]
    rows = re.findall(r"<tr.*?>(.*?)</tr>", section)
    found = []
    for row in rows:
        cells = re.findall(r"<t[hd].*?>(.*?)</t[hd]>", row)
        found.append([html.unescape(re.sub(r"<[^>]+>", " ", text)).split() for text in cells])
    return found


def markdown_cells(twin, title):
    """Return the texts of the cells of the tables in a chapter, row by row."""
    chapter = twin.split(f"## {title}\n")[1].split("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in chapter.splitlines() if line[:1] == "|"]
    return [
        [re.sub(r"[*`;()]|&\w+;", "", text).replace("control", "").split() for text in row]
        for row in rows
        if not row[0].startswith("---")
    ]
