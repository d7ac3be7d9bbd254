"""Write prediction files of all tasks, score them, and compare the scores with another commit's.

    python scripts/prediction_files.py /tmp/files    # at one commit; at another one:
    python scripts/prediction_files.py /tmp/files --scores new.json --against /tmp/files/scores.json

The first call writes the files, ``cases.json`` with the arguments that score each of them, and
``scores.json``. The second call scores the same files, prints each value that differs, and fails if
one does. The value of a file that cannot be scored is the error message.

Answers are right, changed in a digit, truncated, in prose, not parseable, or changed at random as
by ``scripts/fuzz``. They are in the formats of several tools, and there are files with several
texts for each question, from which a rule chooses. Published answers of docs/results and the files
of tests/fixtures are scored, too.
"""

import argparse
import csv
import gzip
import json
import random
import re
import shutil
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # from a checkout, whether installed or not

from fuzz import changed

from mm_numeric.cli import main as cli
from mm_numeric.registry import PROTOCOLS, TASKS

ROOT = Path(__file__).resolve().parents[1]
COUNT = 24
WIDTH, HEIGHT = 560, 448  # multiples of 28, which Qwen2.5-VL does not resize
PUBLISHED = 8  # files of each archive

Case = dict[str, Any]
"""Arguments of the command ``score`` and, if it runs before, of the command ``decode``."""


def _box(i: int) -> list[int]:
    return [13 * i % 300, 7 * i % 200, 13 * i % 300 + 40 + 5 * i, 7 * i % 200 + 30 + 4 * i]


def _corners(x1: int, y1: int, x2: int, y2: int) -> list[int]:
    return [x1, y1, x2, y1, x2, y2, x1, y2]


def _shapes(i: int) -> list[dict[str, Any]]:
    names = ("car", "red car", "dog")
    return [{"box": _box(i + 5 * k), "label": names[(i + k) % 3]} for k in range(i % 4)]


def _as_json(items: Sequence[Mapping[str, Any]], key: str = "label") -> str:
    return json.dumps([{"bbox_2d": own["box"], key: own["label"]} for own in items])


def _clockbench(i: int) -> tuple[dict[str, Any], str]:
    if i % 5 == 4:
        return {"answer": {"valid": False}}, '{"valid": false}'
    time = {"valid": True, "hours": i % 12, "minutes": 2 * i, "seconds": i if i % 2 else False}
    return {"answer": time | {"minutes": [2 * i, 2 * i + 1]}}, json.dumps(time)


def _measurement(i: int) -> tuple[dict[str, Any], str]:
    time = {"time": f"{1 + i % 12}:{i:02}:30"}
    row = time if i % 4 == 3 else {"answer": f"{20 + i}.5", "unit": ["°C", "Celsius"]}
    text = f"{20 + i}.5 °C" if "unit" in row else time["time"]
    return {
        "question": "What does it show?",
        "range": None if "time" in row else [0, 50],
        **row,
    }, text


def _mathvista(i: int) -> tuple[dict[str, Any], str]:
    form = {"question_type": "free_form", "answer_type": "integer", "answer": str(i)}
    if i % 3 == 1:
        form = {"question_type": "multi_choice", "answer_type": "text", "answer": "square"}
        return {"question": "Which?", "choices": ["circle", "square"], **form}, "(B) square"
    if i % 3 == 2:
        form |= {"answer_type": "float", "answer": f"{i}.5", "precision": 1}
    return {"question": "How many?", **form}, f"The answer is {form['answer']}"


def _multirc(i: int) -> tuple[dict[str, Any], str]:
    answers = [{"text": f"In {1990 + i}", "label": 1}, {"text": "Never", "label": i % 2}]
    text = " | ".join(own["text"] for own in answers if own["label"])
    return {"passage": f"It was {1990 + i}.", "question": "When?", "answers": answers}, text


def _number(i: int, text: str | None = None) -> tuple[dict[str, Any], str]:
    text = text or ("-12", "3.50", "2/7", "1234", "0")[i % 5]
    return {"question": f"What is number {i}?", "answer": text, "category": "ab"[i % 2]}, text


def _words(i: int) -> tuple[dict[str, Any], str]:
    items = _shapes(i)
    found = [{"polygon": _corners(*own["box"]), "text": own["label"], "ignore": k == 2}
             for k, own in enumerate(items)]  # fmt: skip
    return {"instances": found}, _as_json(items, "text_content")


def _spans(i: int) -> tuple[dict[str, Any], str]:
    found = [[float(i), i + 2.5], [i + 4.0, i + 5.0]][: 1 + i % 2]
    text = ", ".join(f"{first} - {last}" for first, last in found) + " seconds"
    frames = [f"{k}.png" for k in range(8)]
    return {"frames": frames, "fps": 1, "query": "a person sits down", "spans": found}, text


def _gsm8k(i: int) -> tuple[dict[str, Any], str]:
    text = f"Tom has 3 x {i} = <<3*{i}={3 * i}>>{3 * i} eggs.\n#### {3 * i}"
    return {"question": "How many eggs?", "answer": text}, text


def _points(i: int) -> tuple[dict[str, Any], str]:
    items = _shapes(i)
    middles = [[(own["box"][0] + own["box"][2]) // 2, (own["box"][1] + own["box"][3]) // 2]
               for own in items]  # fmt: skip
    found = [{"polygon": _corners(*own["box"]), "point": p}
             for own, p in zip(items, middles, strict=True)]  # fmt: skip
    text = json.dumps([{"point_2d": p, "label": "a car"} for p in middles])
    return {"phrase": "a car", "instances": found}, text


def _click(i: int) -> tuple[dict[str, Any], str]:
    action = {"action": "left_click", "coordinate": [_box(i)[0] + 5, _box(i)[1] + 5]}
    return {"phrase": f"button {i}", "box": _box(i), "ui_type": ("text", "icon")[i % 2]}, (
        json.dumps(action)
    )


ROWS: Mapping[str, Callable[[int], tuple[dict[str, Any], str]]] = {
    "approximate_numbers": lambda i: _number(i, str(1000 + 37 * i)),
    "arithmetic": lambda i: _number(i, str(3 * i - 20)),
    "click": _click,
    "clock": lambda i: ({"time": f"{1 + i % 12}:{2 * i:02}"}, f"{1 + i % 12}:{2 * i:02}"),
    "clockbench": _clockbench,
    "counting": lambda i: _number(i, str(i)),
    "detection": lambda i: ({"instances": _shapes(i)}, _as_json(_shapes(i))),
    "grounding": lambda i: (
        {"phrase": "a car", "box": _box(i)},
        _as_json([{"box": _box(i), "label": "a car"}]),
    ),
    "gsm8k": _gsm8k,
    "mathvista": _mathvista,
    "measurement": _measurement,
    "multirc": _multirc,
    "pointing": _points,
    "rjokes": lambda i: _number(i, str(i % 12)),
    "temporal_spans": _spans,
    "text_detection": _words,
    "text_spotting": _words,
}
"""Task -> function that returns a row and its right answer; ``_number`` for any other task."""


def spoiled(text: str, kind: int, rng: random.Random) -> str:
    """Return a right answer changed in one of eight ways."""
    digits = [own.start() for own in re.finditer(r"[0-9]", text)]
    at = rng.choice(digits) if digits else 0
    ways = (text, text[:at] + str(rng.randint(0, 9)) + text[at + 1 :], f"I think it is {text}.",
            text[: len(text) // 2], "", "I cannot tell.", f"```json\n{text}\n```",
            text + text)  # fmt: skip
    return ways[kind % len(ways)]


def answers_of(right: Sequence[str], kind: str, rng: random.Random) -> list[str]:
    """Return the answers of a file: ``right``, ``near`` (a digit changed), ``mixed`` or fuzzed."""
    if kind == "fuzzed":
        seeds = [text.encode() for text in right]
        return [changed(own, seeds, rng).decode("utf-8", "replace")[:2000] for own in seeds]
    kinds = {"right": [0], "near": [0, 1], "mixed": range(8)}[kind]
    return [spoiled(own, kinds[i % len(kinds)], rng) for i, own in enumerate(right)]


def _lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path.name


def tool_files(folder: Path, task: str, ids: list[str], texts: list[str]) -> Iterator[list[str]]:
    """Write the same answers in the format of each tool; yield the arguments of each file."""
    pairs = list(zip(ids, texts, strict=True))
    batch = [{"custom_id": i, "response": {"body": {"choices": [{"message": {"content": t}}]}}}
             for i, t in pairs]  # fmt: skip
    kinds = {
        "ms_swift": [{"id": i, "response": t} for i, t in pairs],
        "llamafactory": [{"prompt": "", "predict": t, "label": ""} for _, t in pairs],
        "lmms_eval": [
            {"doc_id": k, "resps": [[t]], "target": ""} for k, (_, t) in enumerate(pairs)
        ],
        "batch": batch,
        "trl": [{"id": i, "completion": t} for i, t in pairs],
    }
    for tool, rows in kinds.items():
        yield [_lines(folder / f"{task}.{tool}.jsonl", rows)]
    for suffix, names in ((".tsv", ("index", "prediction")), (".csv", ("number", "said"))):
        path = folder / f"{task}.table{suffix}"
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, delimiter="\t" if suffix == ".tsv" else ",")
            writer.writerows([names, *((i, t.replace("\0", "")) for i, t in pairs)])
        yield [path.name, *(["--id", "number", "--text", "said"] if suffix == ".csv" else [])]


def task_cases(folder: Path) -> Iterator[Case]:
    """Write rows and answers of each task that the registry lists."""
    for task in TASKS:
        make, rng = ROWS.get(task, _number), random.Random(task)
        made = [make(i) for i in range(COUNT)]
        ids, right = [f"row {i}" for i in range(COUNT)], [text for _, text in made]
        size = {"image": "none.png", "width": WIDTH, "height": HEIGHT}
        rows = [{"id": own, **size, **row} for own, (row, _) in zip(ids, made, strict=True)]
        joined = ["--rows", _lines(folder / f"{task}.rows.jsonl", rows), "--task", task]
        for kind in ("right", "near", "mixed", "fuzzed"):
            texts = answers_of(right, kind, rng)
            rows = [{"id": i, "text": t} for i, t in zip(ids, texts, strict=True)]
            path = _lines(folder / f"{task}.{kind}.jsonl", rows)
            for family in ("qwen2_5_vl", "qwen2_vl") if kind == "right" else ("qwen2_5_vl",):
                yield {"score": [path, *joined, "--family", family]}
        for words in tool_files(folder, task, ids, answers_of(right, "mixed", rng)):
            yield {"score": [*words, *joined, "--family", "qwen2_5_vl"]}
        several = [[spoiled(own, kind, rng) for kind in (1, 1, 0, 2, 5)] for own in right]
        rows = [{"id": i, "texts": own} for i, own in zip(ids, several, strict=True)]
        path = _lines(folder / f"{task}.several.jsonl", rows)
        for rule in ("mean", "median", "mbr"):
            out = f"{task}.{rule}.jsonl"
            options = [*joined, "--family", "qwen2_5_vl", "--rule", rule, "--out", out]
            yield {"decode": [path, *options], "score": [out]}


def detector_cases(folder: Path) -> Iterator[Case]:
    """Write detections and true shapes as text files and as COCO JSON, for each protocol."""
    rng = random.Random(0)
    at, known = zip(*((i, own) for i in range(COUNT) for own in _shapes(i)), strict=True)
    near = [[n + rng.randint(-4, 4) for n in own["box"]] for own in known]
    files: dict[str, str] = {}
    for i, own, moved in zip(at, known, near, strict=True):
        label = own["label"].replace(" ", "-")
        true, found = _corners(*own["box"]), _corners(*moved)
        cells = [*true, label], [*found, f"0.{3 + i % 7}", label]
        for name, line in zip((f"gt/gt_{i}.txt", f"found/res_{i}.txt"), cells, strict=True):
            files[name] = files.get(name, "") + ",".join(map(str, line)) + "\n"
    for part in ("gt", "found"):
        with zipfile.ZipFile(folder / f"icdar_{part}.zip", "w") as archive:
            for name in (own for own in files if own.startswith(f"{part}/")):
                archive.writestr(name.partition("/")[2], files[name])
    for protocol in PROTOCOLS:
        yield {"score": ["icdar_found.zip", "--truth", "icdar_gt.zip", "--protocol", protocol]}
    numbers = {"car": 1, "red car": 2, "dog": 3}
    entries, results = [], []
    for i, own, moved in zip(at, known, near, strict=True):
        about = {"image_id": i, "category_id": numbers[own["label"]]}
        true, found = ([x, y, x2 - x, y2 - y] for x, y, x2, y2 in (own["box"], moved))
        is_crowd, number = len(entries) % 7 == 6, len(entries) + 1
        more = {"id": number, "iscrowd": int(is_crowd), "area": true[2] * true[3]}
        entries.append({**about, **more, "bbox": true})
        results.append({**about, "bbox": found, "score": rng.random()})
    size = {"width": WIDTH, "height": HEIGHT}
    images = [{"id": i, "file_name": f"{i}.png", **size} for i in range(COUNT)]
    names = [{"id": own, "name": name} for name, own in numbers.items()]
    whole = {"images": images, "annotations": entries, "categories": names}
    (folder / "truth.json").write_text(json.dumps(whole))
    (folder / "found.json").write_text(json.dumps(results))
    for options in ([], ["--protocol", "coco_ap"], ["--protocol", "coco_ap", "--ties", "averaged"]):
        yield {"score": ["found.json", "--truth", "truth.json", *options]}


def published_cases(folder: Path) -> Iterator[Case]:
    """Copy fixtures, and unpack published answers under several decoding rules."""
    fixtures = ROOT / "tests" / "fixtures"
    for path in sorted(fixtures.glob("*.jsonl.gz")):
        (folder / path.stem).write_bytes(gzip.decompress(path.read_bytes()))
        for options in [], ["--protocol", "coco_ap"]:
            if "detection" in path.name or not options:
                yield {"score": [path.stem, *options]}
    for path in sorted((fixtures / "other_tools").iterdir()):
        shutil.copy(path, folder)
        if path.name != "rows.jsonl":
            options = ["--rows", "rows.jsonl", "--task", "grounding", "--family", "qwen2_vl"]
            for more in [], ["--partial"]:
                yield {"score": [path.name, *options, *more]}
    for archive in sorted(ROOT.glob("docs/results/*/answers.tar.xz")):
        with tarfile.open(archive) as tar:
            members = sorted((m for m in tar if "/predictions" in m.name), key=lambda m: m.name)
            for own in members[:: max(1, len(members) // PUBLISHED)]:
                own.name = f"{archive.parent.name}/{own.name.replace('/', '.')}"
                tar.extract(own, folder, filter="data")
                yield {"score": [own.name]}


def scored(case: Case) -> dict[str, Any]:
    """Return the values of a case by their names, or the error message."""
    said, found = StringIO(), {}
    out = Path("out")
    shutil.rmtree(out, ignore_errors=True)
    commands = [["decode", *case["decode"]]] if "decode" in case else []
    commands.append(["score", *case["score"], "--out", str(out)])
    for command in commands:
        with redirect_stdout(said), redirect_stderr(said):
            try:
                code = cli.main(command)
            except SystemExit as error:
                code = error.code
        if code:
            return {"error": said.getvalue().strip().rpartition("\n")[2]}

    def collect(value: Any, name: str) -> None:
        if isinstance(value, dict):
            for key, own in value.items():
                if key not in ("label", "unit", "higher_is_better", "low", "high", "rules"):
                    collect(own, f"{name}.{key}")
        elif not isinstance(value, list):
            found[name[1:]] = value

    (results,) = out.glob("*.results.json")
    collect(json.loads(results.read_text(encoding="utf-8"))["protocols"], "")
    return found


def write_cases(folder: Path) -> None:
    """Write all files, and cases.json."""
    folder.mkdir(parents=True, exist_ok=True)
    cases = [*task_cases(folder), *detector_cases(folder), *published_cases(folder)]
    named = {" ".join(case["score"]): case for case in cases}
    (folder / "cases.json").write_text(json.dumps(named, indent=1), encoding="utf-8")


def main() -> None:
    """Write and score the files; exit with 1 if scores differ."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, metavar="OUT", help="folder of the files")
    parser.add_argument("--scores", type=Path, help="file to write (default: OUT/scores.json)")
    parser.add_argument("--against", type=Path, metavar="SCORES", help="scores to compare with")
    args = parser.parse_args()
    if not (args.out / "cases.json").is_file():
        write_cases(args.out)
    cases = json.loads((args.out / "cases.json").read_text(encoding="utf-8"))
    with chdir(args.out):
        scores = {name: scored(case) for name, case in cases.items()}
    path = args.scores or args.out / "scores.json"
    path.write_text(json.dumps(scores, indent=1), encoding="utf-8")
    values, errors = sum(map(len, scores.values())), sum("error" in own for own in scores.values())
    print(f"{path}: {values:,} values of {len(scores):,} files, {errors} of them error messages")
    if args.against:
        sys.exit(compare(json.loads(args.against.read_text(encoding="utf-8")), scores))


def compare(before: Mapping[str, Any], now: Mapping[str, Any]) -> int:
    """Print each value that differs; return 1 if there is one."""
    count = 0
    for name in before | now:
        old, new = before.get(name, {}), now.get(name, {})
        for key in old | new:
            if old.get(key) != new.get(key):
                print(f"{name}: {key}: {old.get(key)} before, {new.get(key)} now")
                count += 1
    print(f"{count:,} values differ")
    return int(count > 0)


if __name__ == "__main__":
    main()
