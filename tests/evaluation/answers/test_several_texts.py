"""Several texts of each question become one answer: that of a loop over the definition."""

import json
import math
import random
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from finished_runs import copy_and_enter
from result_files import section, values, write_lines

from mm_numeric.cli import main as cli
from mm_numeric.comparison.summary import read_run_scores
from mm_numeric.evaluation.score import score


def minutes(text):
    hour, minute = map(int, text.split(":"))
    return hour % 12 * 60 + minute


def clock_text(minute):
    return f"{minute // 60 % 12 or 12}:{minute % 60:02d}"


def clocks(rng, i):
    true = rng.randrange(720)
    texts = [clock_text((true + rng.randrange(-9, 10)) % 720) for _ in range(5)]
    return {"id": i, "image": f"{i}.png", "time": clock_text(true)}, texts


def numbers(rng, i):
    true = rng.randrange(-99, 99)
    texts = [str(true + rng.randrange(-6, 7)) for _ in range(5)]
    return {"id": i, "question": f"How many are {i}?", "answer": str(true)}, texts


def boxes(rng, i):
    x, y = rng.randrange(200), rng.randrange(200)
    texts = [
        f"[{x + rng.randrange(40)}, {y + rng.randrange(40)}, {x + 99}, {y + 99}]" for _ in range(5)
    ]
    row = {"id": i, "image": f"{i}.png", "phrase": f"block {i}", "width": 400, "height": 400}
    return {**row, "box": [x, y, x + 99, y + 99]}, texts


def circular(a, b):
    apart = abs(minutes(a) - minutes(b))
    return min(apart, 720 - apart)


def one_minus_iou(a, b):
    (a1, b1, a2, b2), (c1, d1, c2, d2) = json.loads(a), json.loads(b)
    shared = max(0, min(a2, c2) - max(a1, c1)) * max(0, min(b2, d2) - max(b1, d1))
    return 1 - shared / ((a2 - a1) * (b2 - b1) + (c2 - c1) * (d2 - d1) - shared)


def least(shares, cost, order=None):
    """Return the text with the least expected cost; of these the most probable, then the first."""
    expected = {
        text: math.fsum(share * cost(text, other) for other, share in shares.items())
        for text in shares
    }
    best = [text for text in shares if expected[text] <= min(expected.values()) + 1e-9]
    return min(best, key=lambda text: (-shares[text], order(text) if order else 0))


def lower_median(shares):
    total = 0.0
    for text in sorted(shares, key=float):
        total += shares[text]
        if 2 * total >= sum(shares.values()):
            return text
    raise AssertionError


TASKS = {
    "clock": (clocks, "median", [], lambda shares: least(shares, circular, minutes)),
    "numbers": (numbers, "median", [], lower_median),
    "grounding": (
        boxes, "mbr", ["--frame", "pixels_original"], lambda shares: least(shares, one_minus_iou)
    ),
}  # fmt: skip


def spoilt(rng, texts):
    """Replace one text in ten by one that cannot be parsed."""
    return ["I cannot see it." if rng.random() < 0.1 else text for text in texts]


def shares_of(texts, weights=None):
    found = defaultdict(float)
    for text, weight in zip(texts, weights or [1] * len(texts), strict=True):
        if text != "I cannot see it.":
            found[text] += weight
    return found


def written(tmp_path, task, count=200, seed=0):
    """Write rows, and return their path with the texts of each."""
    rng = random.Random(seed)
    made = [TASKS[task][0](rng, i) for i in range(count)]
    rows = write_lines(tmp_path / "rows.jsonl", [row for row, _ in made])
    return rows, [spoilt(rng, texts) for _, texts in made]


def decoded(path, rows, task, *more):
    """Decode a file with the command, and return the rows of the predictions file."""
    _, rule, frame, _ = TASKS[task]
    out = path.with_name("decoded.jsonl")
    words = ["decode", str(path), "--rows", str(rows), "--task", task, "--rule", rule]
    assert cli.main([*words, "--out", str(out), *frame, *more]) == 0
    return [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_five_sampled_answers_are_decoded_as_by_the_definition(tmp_path, task):
    """200 rows; each text of a weight of its own, and weights as numbers of repeated texts."""
    rows, texts = written(tmp_path, task)
    rng = random.Random(1)
    weights = [[rng.choice([1, 2, 3]) for _ in own] for own in texts]
    definition = TASKS[task][3]
    for given in (None, weights):
        lines = [{"id": i, "texts": own} for i, own in enumerate(texts)]
        for i, line in enumerate(lines):
            line |= {} if given is None else {"weights": given[i]}
        found = decoded(write_lines(tmp_path / "a.jsonl", lines), rows, task)
        assert len(found) == 200
        for i, row in enumerate(found):
            shares = shares_of(texts[i], given and given[i])
            total = sum(given[i]) if given else 5
            assert row["text"] == (definition(shares) if shares else texts[i][0])
            assert row["decode"]["drawn"] == pytest.approx(sum(shares.values()) / total, abs=1e-6)
            assert row["decode"]["covered"] == 0
            assert row["decode"]["candidates"] == len(shares)
            assert row["decode"]["texts"] == 5
            assert row["decode"]["parsed"] == sum(text in shares for text in texts[i])
    repeated = [
        {"id": i, "text": text}
        for i, own in enumerate(texts)
        for text, weight in zip(own, weights[i], strict=True)
        for _ in range(weight)
    ]
    again = decoded(write_lines(tmp_path / "b.jsonl", repeated), rows, task)
    for one, other in zip(found, again, strict=True):
        counts = ("texts", "parsed")
        if task == "grounding":  # samples are judged by those that did not choose, weights are not
            del one["decode"]["confidence"], other["decode"]["confidence"]
        assert {**other["decode"], **{k: one["decode"][k] for k in counts}} == one["decode"]
        assert one["text"] == other["text"]


def chat(text):
    return {"message": {"content": text}}


FORMATS = {
    "rows with an id": lambda i, own: [{"id": i, "text": f"{text}</s>"} for text in own],
    "a list": lambda i, own: [{"id": str(i), "texts": own}],
    "ms-swift": lambda i, own: [{"id": i, "response": text} for text in own],
    "lmms-eval": lambda i, own: [{"doc_id": i, "resps": [own]}],
    "lmms-eval, requests": lambda i, own: [{"doc_id": i, "resps": [[text] for text in own]}],
    "OpenAI batch": lambda i, own: [
        {"custom_id": str(i), "response": {"body": {"choices": [chat(text) for text in own]}}}
    ],
    "two lists": lambda i, own: [{"id": i, "texts": own[:2]}, {"id": i, "texts": own[2:]}],
    "weights": lambda i, own: [{"id": i, "texts": own, "weights": [7] * 5}],
    "no id": lambda _, own: [{"texts": own}],
}


def test_every_format_has_the_same_answers_and_scores(tmp_path):
    rows, texts = written(tmp_path, "clock", 12)
    found = {}
    for name, lines_of in FORMATS.items():
        lines = [line for i, own in enumerate(texts) for line in lines_of(i, own)]
        if name == "rows with an id":
            random.Random(2).shuffle(lines)
            lines.sort(key=lambda line: line["text"])  # not in the order of the questions
        found[name] = decoded(write_lines(tmp_path / "a.jsonl", lines), rows, "clock")
    first = found["a list"]
    for name, own in found.items():
        assert own == first, name
    scores = score(tmp_path / "decoded.jsonl")
    assert scores.confidences.rule == "median"
    assert values(section(tmp_path))  # as of any predictions file


def test_log_probabilities_are_those_of_different_texts(tmp_path):
    row = {"id": "a", "question": "How many?", "answer": "3"}
    rows = write_lines(tmp_path / "rows.jsonl", [row])
    logs = [math.log(p) for p in (0.3, 0.2, 0.2, 0.1)]
    line = {"id": "a", "texts": ["3", "9", "9", "many"], "logprobs": logs}
    (found,) = decoded(write_lines(tmp_path / "a.jsonl", [line]), rows, "numbers")
    assert found["text"] == "3"  # .3 and .2; with 9 twice, it would be 9
    assert found["decode"]["covered"] == 0.5
    assert found["decode"]["confidence"] == 0.3
    assert found["decode"]["interval"] == [3, 9]


def test_reports_and_comparisons_read_what_was_decoded(finished_runs, tmp_path, monkeypatch):
    copy_and_enter(finished_runs, tmp_path / "runs", monkeypatch)
    rng = random.Random(0)
    asked = [json.loads(line) for line in Path("test.jsonl").read_text("utf-8").splitlines()]
    texts = [[str(int(row["answer"]) + rng.randrange(-3, 4)) for _ in range(5)] for row in asked]
    lines = [{"id": row["id"], "texts": own} for row, own in zip(asked, texts, strict=True)]
    sampled = write_lines(Path("sampled.jsonl"), lines)
    out = "run/predictions.median.jsonl"
    words = ["--rows", "test.jsonl", "--task", "arithmetic", "--rule", "median"]
    assert cli.main(["decode", str(sampled), *words, "--out", out]) == 0
    assert cli.main(["score", out]) == 0
    compared = read_run_scores(Path("run"), rule="median")
    medians = {
        row["id"]: lower_median(shares_of(own)) for row, own in zip(asked, texts, strict=True)
    }
    assert {row["id"]: row["text"] for row in compared.rows} == medians
    assert cli.main(["report", "run"]) == 0
    page = Path("run/report.md").read_text(encoding="utf-8")
    assert "| median |" in page.replace("  ", " ")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"texts": ["1", "2"], "weights": [1]}, r'"weights" is \[1\]; write one number, at least'),
        ({"texts": ["1"], "weights": [-1]}, "write one number, at least 0, for each"),
        ({"texts": ["1"], "logprobs": [0.5]}, "write one number, at most 0, for each"),
        ({"texts": ["1", "2"], "logprobs": [0, 0]}, "texts sum to 2; write the log probability"),
        ({"texts": ["1"], "weights": 0}, "weights of its texts sum to 0"),
        ({"texts": ["1"], "weights": 1, "logprobs": 0}, "weights and logprobs; remove one"),
        ({"texts": []}, '"text" is 0 texts'),
        ({"texts": ["1", 2]}, '"text" is a list with 2, and not a generated text or a list of'),
        ({"texts": ["1", "2"], "logprobs": [-2000, -1900]}, "sum to 0; write the log probability"),
        ({"texts": ["1", "2"], "weights": [1e308, 1e308]}, "weights of its texts sum to inf"),
    ],
)
def test_a_wrong_row_is_one_sentence(tmp_path, capsys, line, message):
    row = {"id": "a", "question": "How many?", "answer": "3"}
    rows = write_lines(tmp_path / "rows.jsonl", [row])
    path = write_lines(tmp_path / "a.jsonl", [{"id": "a", **line}])
    assert cli.main(["decode", str(path), "--rows", str(rows), "--task", "numbers"]) == 2
    assert re.search(message, capsys.readouterr().err.splitlines()[-1])
    assert not (tmp_path / "a.mbr.jsonl").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--rule", "mean", "--for", "exact"], "--for is the risk of --rule mbr"),
        (["--for", "iou"], "--for: the risk 'iou' does not fit answers of type ClockTime"),
        (["--for", "within"], "there is no risk 'within'"),
        (["--out", "a.json"], "--out a.json: name another file, which ends in .jsonl"),
    ],
)
def test_a_wrong_option_is_one_sentence(tmp_path, capsys, words, message):
    rows, texts = written(tmp_path, "clock", 1)
    path = write_lines(tmp_path / "a.jsonl", [{"id": 0, "texts": texts[0]}])
    assert cli.main(["decode", str(path), "--rows", str(rows), "--task", "clock", *words]) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_decoding_needs_no_torch(tmp_path):
    rows, texts = written(tmp_path, "grounding", 2)
    lines = [{"id": i, "texts": own} for i, own in enumerate(texts)]
    path = write_lines(tmp_path / "a.jsonl", lines)
    words = ["decode", str(path), "--rows", str(rows), "--task", "grounding"]
    words += ["--frame", "pixels_original"]
    code = (
        "import sys; sys.modules.update(torch=None, transformers=None); "
        f"from mm_numeric.cli.main import main; sys.exit(main({words}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"next: mm-numeric score {tmp_path / 'a.mbr.jsonl'}" in done.stdout
