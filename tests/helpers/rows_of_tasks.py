"""Rows of tasks, as their users have them."""

import json

from PIL import Image

_SOLUTION = "Tom has 3 x 4 = <<3*4=12>>12 eggs.\nHe eats 2, so {} are left.\n#### {}"
_ANSWERS = [
    {"answer": "square", "choices": ["circle", "square"], "question_type": "multi_choice"},
    {"answer": "5", "answer_type": "integer"},
    {"answer": "1.2", "answer_type": "float", "precision": 1},
    {"answer": "[2, 8]", "answer_type": "list"},
]


def gsm8k(i):
    return {"question": f"How many are left of {i}?", "answer": _SOLUTION.format(i, i)}


def clockbench(i):
    times = [
        {"hours": i % 12, "minutes": [i, i + 1], "seconds": False, "weekday": "Monday"},
        {"hours": i % 24, "minutes": i, "seconds": {"a": i, "b": [i + 1, i + 2]}, "date": 1 + i},
    ]
    answer = {"valid": False} if i % 3 == 2 else {"valid": True, **times[i % 2]}
    return {"image": f"{i}.png", "answer": answer}


def mathvista(i):
    form = {"question_type": "free_form", "answer_type": "text", **_ANSWERS[i % len(_ANSWERS)]}
    return {"image": f"{i}.png", "question": "What is it?", **form}


def multirc(i):
    answers = [{"text": f"In {1990 + i}", "label": 1}, {"text": "Never", "label": 0}]
    return {"passage": f"It was {1990 + i}.", "question": "When was it?", "answers": answers}


def mathematics(i):
    return {"question": f"What is {i} - 7?", "answer": str(i - 7), "category": "interpolation"}


def rjokes(i):
    return {"question": f"{i} men walk into a bar.", "answer": i % 12}


ROWS = {row.__name__: row for row in (clockbench, gsm8k, mathematics, mathvista, multirc, rjokes)}


def written_rows(task, folder, count, images=range(0)):
    """Write rows, and images where the task or ``images`` says so; return their file."""
    lines = []
    for i in range(count):
        row = {"id": str(i), **ROWS[task](i)}
        if i in images:
            row["image"] = f"{i}.png"
        if "image" in row:
            color = (40 * i % 256, 90, 30)
            Image.new("RGB", (64, 48 + i), color).save(folder / row["image"])
        lines.append(json.dumps(row))
    path = folder / f"{task}_{count}.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path
