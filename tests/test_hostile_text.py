"""No text of a row, a stored folder or a file name acts in a terminal or in a written document.

One walk through the commands with hostile texts at every place that a file can hold one.
"""

import csv
import io
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml
from finished_runs import copy_and_enter
from hypothesis import example, given
from hypothesis import strategies as st
from processes import python
from safetensors.torch import load_file, save_file

from mm_numeric.cli import main as cli
from mm_numeric.io.escaping import markdown_fence, markdown_sentence, markdown_text, terminal_text

pytestmark = pytest.mark.slow  # its runs take seconds to make

ESCAPES = "\x1b]0;owned\x07\x1b[2J\x9b1A\u202e\r"
HOSTILE = ESCAPES + (
    "`</code><img src=x onerror=owned()>\n\n# owned\n\n```\n~~~\n[owned](http://owned.example)\n"
    "| owned |\n- owned\n1. owned\n\\input{owned}\n=owned()"
)
NAME = ESCAPES + "=owned()"  # of a file
TAG = "<img onerror=owned()>.jsonl"


def rewrite(path, change):
    """Change each row of a .jsonl file, given as ``change(index, row)``."""
    rows = [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]
    for index, row in enumerate(rows):
        change(index, row)
    lines = [json.dumps(row) + "\n" for row in rows]
    Path(path).write_text("".join(lines), encoding="utf-8")


def hostile_answer(index, row):
    """Put a hostile text into another field of each row."""
    if index % 6 == 0:
        row["id"] += HOSTILE
    elif index % 6 == 1:
        row["buckets"] = dict.fromkeys(row["buckets"], HOSTILE)
    elif index % 6 == 2:
        row["buckets"] = dict.fromkeys(row["buckets"], "=owned()")
    elif index % 6 == 3:
        row |= {"parsed": None, "reason": HOSTILE, "text": HOSTILE}
    elif index % 6 == 4:
        row |= {"prompt": HOSTILE, "text": HOSTILE}


@pytest.fixture(scope="module")
def walked(finished_runs, tmp_path_factory):
    """Run the commands on hostile files; return the folder and what each command printed."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        folder = copy_and_enter(
            finished_runs, tmp_path_factory.mktemp("hostile") / "files", monkeypatch
        )
        for page in folder.glob("*/report.html"):  # of a training on other texts
            page.unlink()
        make_hostile()
        yield folder, list(outputs())


def make_hostile():
    """Put hostile texts into rows, a stored run and a comparison."""
    rewrite("test.jsonl", lambda i, row: row.update(id=f"{i}{HOSTILE}", category=HOSTILE))
    rewrite("train.jsonl", lambda i, row: row.update(question=HOSTILE) if i == 0 else None)
    rewrite("run/predictions.jsonl", hostile_answer)
    config = yaml.safe_load(Path("run/config.yaml").read_text(encoding="utf-8"))
    config["task"]["prompt"] = "{question}" + HOSTILE
    config["data"]["train"]["path"] = NAME + "\n# owned.jsonl"
    config["model"]["revision"] = HOSTILE
    shutil.move("train.jsonl", TAG)
    shutil.copytree("run", NAME)
    for file in (f"{NAME}/config.yaml", f"{NAME}.yaml"):
        Path(file).write_text(yaml.safe_dump(config), encoding="utf-8")
    file = Path("comparison/summary.json")
    summary = json.loads(file.read_text(encoding="utf-8"))
    summary |= {"title": HOSTILE, "description": HOSTILE}
    summary["facts"] = dict.fromkeys(summary["facts"], HOSTILE)
    summary["metrics"][0]["label"] = summary["metrics"][1]["label"] = HOSTILE
    summary["metrics"][0]["unit"] = HOSTILE
    file.write_text(json.dumps(summary), encoding="utf-8")
    for path in Path("comparison").glob("seed*/*/scores.jsonl"):
        rewrite(path, hostile_answer)
    Path("rows.jsonl").write_text(json.dumps({"id": HOSTILE, HOSTILE: 1}) + "\n")


def outputs():
    """Yield each command, its exit code and what it printed to stdout and stderr."""
    out = f"{NAME}.jsonl"
    for words in (
        ["score", f"{NAME}/predictions.jsonl"],
        ["export", NAME, "--out", f"{NAME} export"],
        ["predict", "--model", "run", "--data", "test.jsonl", "--out", out],
        ["score", out],
        ["check-data", "run.yaml", f"data.train.path={TAG}", "--page", f"{NAME}.html"],
        ["check", f"{NAME}.yaml"],
        ["cp", "clock_tiny", f"{NAME} clock.yaml"],
        ["prepare", "rows", "rows.jsonl", "--out", f"{NAME} rows.jsonl"],
        ["prepare", "rows", "rows.jsonl", f"--{NAME}", "--out", "b.jsonl"],
        ["train", "run.yaml", f"trainer.{NAME}=1"],
        ["compare", "comparison.yaml", f'compare.output_dir="{HOSTILE!r}"', "--plan"],
        *(["report", "comparison", "--format", f] for f in ("html", "md", "latex", "csv")),
        ["score", f"{NAME}.csv"],
        [NAME],
        ["score", "a", "b", f"--{NAME}"],
    ):
        printed = io.StringIO()
        with pytest.MonkeyPatch.context() as monkeypatch:
            monkeypatch.setattr("sys.stdout", printed)
            monkeypatch.setattr("sys.stderr", printed)
            try:
                code = cli.main(words)
            except SystemExit as error:
                code = error.code
        yield words, code, printed.getvalue()


@pytest.mark.slow
def test_no_command_writes_escape_sequences_to_the_terminal(walked):
    _, printed = walked
    for words, _, text in printed:
        assert text, words
        assert re.sub("[\n\t]", "", text).isprintable(), (words, text)
    codes = [code for _, code, _ in printed]
    assert codes == [0, 0, 0, 0, 1, 0, 0, 1, 2, 2, 0, 0, 0, 0, 0, 2, 2, 2]


def documents(walked, ending):
    folder, _ = walked
    found = [path for path in folder.rglob(f"*{ending}") if "seed" not in path.parts[-3]]
    assert found
    texts = {path.name: path.read_text(encoding="utf-8") for path in found}
    assert all(re.sub("[\n\t]", "", text).isprintable() for text in texts.values())
    return texts


def outside_of_fences(text):
    """Yield the lines of a Markdown text that are in no fenced code block."""
    fence = None
    for line in text.split("\n"):
        found = re.match("(`{3,}|~{3,})", line)
        if fence is None and found:
            fence = found[1]
        elif fence is not None:
            fence = None if re.fullmatch(f"{fence}{fence[0]}*", line.rstrip()) else fence
        else:
            yield line
    assert fence is None


def is_inert(line):
    """Return whether no text in a Markdown line is a heading, list, tag or link."""
    if line.startswith("    "):  # code
        return True
    line = re.sub(r"`[^`]*`", "", line.removeprefix("- ").removeprefix("## ").removeprefix("# "))
    starts = re.match(r"\s*([-+=#>]|\d+[.)])(\s|$)", line)
    return not starts and not re.search(r"<|(?<!\\)\]\(|(?<!\\)~|://", line)


def test_markdown_has_no_heading_list_link_or_tag_of_a_text(walked):
    texts = documents(walked, ".md")
    assert set(texts) == {"README.md", "report.md"}
    for name, text in texts.items():
        lines = [line for line in outside_of_fences(text) if "owned" in line]
        assert len(lines) > 5, name
        assert [line for line in lines if not is_inert(line)] == []
        cells = {line.count("|") - line.count(r"\|") for line in lines if line.startswith("|")}
        assert cells
        assert not cells & {0, 1}
        assert "\n# owned" not in "\n".join(outside_of_fences(text))


def test_html_has_no_element_of_a_text(walked):
    class Attributes(HTMLParser):
        def handle_starttag(self, tag, attrs):
            assert tag != "script"
            assert "onerror" not in dict(attrs)

    for name, text in documents(walked, ".html").items():
        assert "owned" in text, name
        Attributes().feed(text)


def test_no_cell_is_a_formula_and_no_text_is_a_latex_command(walked):
    for text in documents(walked, ".csv").values():
        for cell in (cell for row in csv.reader(io.StringIO(text)) for cell in row):
            assert not re.match(r"[=@\t\r]|[-+](?!\d)", cell)
    for text in documents(walked, ".tex").values():
        assert "owned" in text
        assert r"\input" not in text


@example(text="```<b>`")
@given(text=st.text(alphabet="#-+=1.)>~`*_[]()|<&\\ \n\x1b", max_size=12))
def test_markdown_of_any_text(text):
    assert is_inert(markdown_text(text))
    sentence = markdown_sentence(text)
    assert "``" not in sentence
    assert is_inert(re.sub(r"\\.|`[^`]*`", "c", sentence))
    assert list(outside_of_fences(f"{markdown_fence(text)}\nafter")) == ["after"]
    assert terminal_text(text).count("\n") == text.count("\n")


UNCAUGHT = f"""
import logging, sys, threading, warnings
from mm_numeric.io.log import escape_libraries
escape_libraries()
logging.getLogger("library").error("of a logger %s", {ESCAPES!r})
warnings.warn("of a warning {ESCAPES!r}".replace("'", ""))
thread = threading.Thread(target=int, args=[{ESCAPES!r}], name={ESCAPES!r})
thread.start()
thread.join()
class Unraisable:
    def __del__(self):
        raise ValueError("of an object " + {ESCAPES!r})
Unraisable()
try:
    raise ValueError("of the program " + {ESCAPES!r})
except ValueError:
    sys.excepthook(*sys.exc_info())
"""

PREDICT = """
import sys
from mm_numeric.cli.main import main
try:
    sys.exit(main(["predict", "--model", "run", "--data", "test.jsonl", "--out", "new.jsonl"]))
except Exception:
    sys.excepthook(*sys.exc_info())
"""


def test_what_libraries_log_warn_of_and_raise_is_escaped(tmp_path):
    found = python("-c", UNCAUGHT, cwd=tmp_path).stderr
    for kind in ("of a logger ", "of a warning ", "in thread ", "of an object ", "of the program "):
        assert kind + terminal_text(ESCAPES) in found, found
    assert re.sub("[\n\t]", "", found).isprintable()


def test_names_in_a_checkpoint_do_not_act_in_a_terminal(finished_runs, tmp_path, monkeypatch):
    """transformers logs the names of tensors that it does not use, and other values as errors."""
    copy_and_enter(finished_runs, tmp_path / "files", monkeypatch)
    file = Path("run/model/model.safetensors")
    tensors = load_file(file)
    unused = tensors["transformer.wpe.weight"].clone()
    save_file({**tensors, ESCAPES: unused}, file, {"format": "pt"})
    found = python("-c", PREDICT)
    assert found.returncode == 0, found.stderr
    monkeypatch.setenv("MM_NUMERIC_DEBUG", "1")
    config = json.loads(Path("run/model/config.json").read_text())
    config["dtype"] = ESCAPES
    Path("run/model/config.json").write_text(json.dumps(config))
    Path("new.jsonl").unlink()
    failed = python("-c", PREDICT)
    assert "is not the name of a dtype" in failed.stderr
    assert terminal_text(ESCAPES)[:12] in found.stderr
    for text in (found.stderr, failed.stderr):
        assert "owned" in text
        assert re.sub("[\n\t]", "", text).isprintable()
