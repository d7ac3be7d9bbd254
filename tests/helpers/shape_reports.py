"""Reports on made-up answers to rendered scenes and pages, and the tables in them."""

import html
import json
import re

from clock_reports import summary_of
from result_files import write_lines

from mm_numeric.answers import Box, Instance
from mm_numeric.evaluation.metrics.matching import match_rows
from mm_numeric.evaluation.report.report import write_report
from mm_numeric.evaluation.score import score
from mm_numeric.geometry.coordinates import COORDINATES
from mm_numeric.geometry.frames import Frame, Resize
from mm_numeric.synthetic.scenes import Phrases
from mm_numeric.synthetic.word_pages import Words

HOSTILE = "<script>alert('[1, 2]')</script> | [x](http://a.b) \x00\u202e\ud800"
FRAME = Frame(112, 112, Resize(kind="none").view(112, 112), COORDINATES["qwen2_vl"])


def compared(folder, task, runs):
    """Write what ``compare`` writes, and return the page and its twin.

    Args:
        folder: Where to.
        task: Its name.
        runs: The rows of scores.jsonl by objective and seed.
    """
    objectives = list(dict.fromkeys(name for name, _ in runs))
    cell = {"value": 0.5, "low": 0.4, "high": 0.6, "seeds": [], "difference": None}
    summary = {
        **summary_of(objectives, task),
        "seeds": sorted({seed for _, seed in runs}),
        "metrics": [{"name": "m", "label": "a metric", "unit": "%", "higher_is_better": True}],
        "table": {name: {"m": cell} for name in objectives},
        "runs": [
            {
                "objective": name,
                "seed": seed,
                "folder": f"seed{seed}/{objectives.index(name)}",
                "warm_start": f"seed{seed}/warm_start",
            }
            for name, seed in runs
        ],
    }
    for run, rows in zip(summary["runs"], runs.values(), strict=True):
        write_lines(folder / run["folder"] / "scores.jsonl", rows)
    (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    return tuple(path.read_text(encoding="utf-8") for path in write_report(folder))


def lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def scenes(folder, shifts_px, count=16):
    """Render scenes; answer each with the true box moved, and score the answers.

    Args:
        folder: Where to.
        shifts_px: By objective and seed, how far it moves the box of row i: times i.
        count: Of scenes.
    """
    file = Phrases(rows=count, seed=3).write(folder / "scenes")
    runs = {}
    for key, shift in shifts_px.items():
        rows = []
        for i, row in enumerate(lines(file)):
            x1, y1, x2, y2 = row["box"]
            x1, x2 = (min(max(x + shift * i, 0), 112) for x in (x1, x2))
            moved = FRAME.write([Instance(Box(x1, y1, x2, y2))]).text
            rows.append(
                {
                    "id": row["id"],
                    "image": str(file.parent / row["image"]),
                    "task": "grounding",
                    "prompt": f"Locate: {row['phrase']}",
                    "text": HOSTILE if i % 8 == 7 else moved,
                    "target": {"box": row["box"]},
                    "frame": FRAME.to_dict(),
                }
            )
        answers = write_lines(folder / "answers" / f"{key[1]}" / "predictions.jsonl", rows)
        runs[key] = score(answers, out=folder / "scored").rows
    return runs


def counted(row):
    """Add what a scorer of several shapes writes."""
    (own,) = match_rows([row])
    counts = {"matched": sum(own.found), "detected": sum(own.counts), "truths": len(own.truths)}
    return row | counts


def pages(folder, keys, count=16):
    """Render pages of words, straight, curved and ignored; leave out and move some."""
    words = Words(rows=count, seed=3, width_px=224, height_px=168, most=4, curved=0.4, ignored=0.2)
    file = words.write(folder / "pages")
    runs = {}
    for place, key in enumerate(keys):
        rows = []
        for i, row in enumerate(lines(file)):
            target = [{k: w[k] for k in ("polygon", "ignore") if k in w} for w in row["instances"]]
            answers = [{"polygon": [at + place for at in word["polygon"]]} for word in target]
            unread = i % 8 == 7
            rows.append(
                counted(
                    {
                        "id": row["id"],
                        "image": str(file.parent / row["image"]),
                        "target": target,
                        "text": HOSTILE if unread else "...",
                        "parsed": None if unread else answers[(i + place) % 2 :],
                        "reason": "no coordinates" if unread else None,
                        "cut": i % 4 == 1,
                        "malformed": int(i % 5 == 1),
                    }
                )
            )
        runs[key] = rows
    return runs


def one_box(id_, target, parsed, iou, **more):
    """Return a scored row of grounding."""
    parsed = None if parsed is None else {"box": parsed}
    row = {"id": id_, "image": None, "target": {"box": target}, "text": "a text", "parsed": parsed}
    return row | {"reason": None if parsed else "no box", "iou": iou} | more


def table(page, anchor):
    """Return the rows of the first table of a chapter as lists of words."""
    section = page.split(f'<section id="{anchor}">')[1].split("</section>")[0]
    rows = re.findall("<tr.*?>(.*?)</tr>", section.split("<table")[1].split("</table>")[0])
    return [
        [
            html.unescape(re.sub("<[^>]+>", "", cell))
            for cell in re.findall(r"<t[hd].*?>(.*?)</t[hd]>", row)
        ]
        for row in rows
    ]


def twin_table(twin, title):
    """Return the rows of the first table of a chapter of the twin."""
    chapter = twin.split(f"## {title}\n")[1].split("\n## ")[0]
    rows = chapter[chapter.index("\n|") + 1 :].split("\n\n")[0].splitlines()
    cells = [[cell.strip(" `") for cell in row.strip("|").split(" | ")] for row in rows]
    return [cells[0], *cells[2:]]
