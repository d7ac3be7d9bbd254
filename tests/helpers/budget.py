"""Measure the size of the repository, and print it next to the budget in CONTRIBUTING.md.

python tests/helpers/budget.py
"""

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

from processes import python

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("mm_numeric", "tasks", "evaluation")
SETTINGS = ("config-reference", "config-tasks", "config-terms")
LONGEST = 50


def files(room, pattern="*.py"):
    """Return the files of a folder, without those that links of ``mm_numeric/`` lead to."""
    links = [path for path in (ROOT / "mm_numeric").iterdir() if path.is_symlink()]
    return [
        path
        for path in sorted((ROOT / room).rglob(pattern))
        if path.is_file()
        and "__pycache__" not in path.parts
        and path.suffix != ".xz"  # an archive has no lines
        and not any(path.is_relative_to(link) for link in links)
    ]


def lines(*rooms, pattern="*.py"):
    return sum(path.read_bytes().count(b"\n") for room in rooms for path in files(room, pattern))


def statements(node):
    """Yield the statements in a node, those in other statements too."""
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        for own in getattr(node, name, ()):
            if isinstance(own, ast.stmt):
                yield own
            yield from statements(own)


@cache  # for the two measures of code
def code_of(text):
    """Return the numbers of the lines with code, and the functions.

    Code is what is not blank, no comment and no docstring. A docstring is any text that is a
    statement, also below a field. All lines of another text are code.
    """
    lines = enumerate(text.splitlines(), 1)
    found = {i for i, line in lines if line.strip() and not line.lstrip().startswith("#")}
    functions = []
    for node in statements(ast.parse(text)):
        own = range(node.lineno, node.end_lineno + 1)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            functions.append(node)
        elif isinstance(node, ast.Expr) and isinstance(getattr(node.value, "value", None), str):
            found.difference_update(own)
        elif not hasattr(node, "body") and not found.issuperset(own):
            for each in ast.walk(node):
                if isinstance(each, ast.Constant | ast.JoinedStr):
                    found.update(range(each.lineno, each.end_lineno + 1))
    return found, functions


def code_lines(text):
    """Return the numbers of the lines with code."""
    return code_of(text)[0]


def long_functions(path):
    """Return the functions of a file with more than ``LONGEST`` lines of code, decorators aside."""
    code, functions = code_of(path.read_text(encoding="utf-8"))
    return [
        f"{path.relative_to(ROOT).as_posix()}:{node.name}"
        for node in functions
        if sum(line in code for line in range(node.lineno, node.end_lineno + 1)) > LONGEST
    ]


def settings():
    """Count the rows of the generated tables of settings; those of generators are not in them."""
    pages = ((ROOT / f"docs/{page}.md").read_text(encoding="utf-8") for page in SETTINGS)
    return sum(
        len(re.findall(r"^\| `", page.partition("<!-- generated")[2], re.M)) for page in pages
    )


def formats():
    """Count the formats of ``mm-numeric prepare``."""
    from mm_numeric.registry import IMPORTERS

    return len(IMPORTERS)


@cache
def walks():
    """Return the files that each walk of ``files_walked`` lists."""
    script = Path(__file__).with_name("files_walked.py")
    # A row needs torch, which a forked process has imported.
    row = python(script, "row")
    command = [sys.executable, script, "answer", "config"]
    others = subprocess.run(command, capture_output=True, text=True)
    lines = row.stdout.splitlines() + others.stdout.splitlines()
    assert len(lines) == len(WALKS), row.stderr + others.stderr
    return {name: files for name, *files in map(str.split, lines)}


STATIC = {
    "lines of library (mm_numeric, tasks, evaluation)": lambda: lines(*ROOMS),
    "of which code": lambda: sum(
        len(code_lines(path.read_text(encoding="utf-8"))) for room in ROOMS for path in files(room)
    ),
    "lines of scripts": lambda: lines("scripts", pattern="*"),
    "lines of tests": lambda: lines("tests"),
    "own settings, without those of generators": settings,
    "formats of `prepare`": formats,
    f"functions above {LONGEST} lines of code": lambda: sum(
        len(long_functions(path)) for room in ROOMS for path in files(room)
    ),
}
WALKS = {
    "files that a row passes to its loss": "row",
    "files that one scored answer runs": "answer",
    "files from the command `train` to its config": "config",
}
MEASURES = STATIC | {name: lambda own=own: len(walks()[own]) for name, own in WALKS.items()}
"""Name of each row of the budget -> function that measures it."""


def budget():
    """Return the limit of each row of the table in CONTRIBUTING.md, and the goal."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.+?) \| ([0-9,]+) \| ([0-9,]+) \|$", text, re.M)
    return {name: [int(own.replace(",", "")) for own in values] for name, *values in rows}


if __name__ == "__main__":
    print("| what | now | at most | goal |\n|---|---|---|---|")
    for name, (most, goal) in budget().items():
        print(f"| {name} | {MEASURES[name]():,} | {most:,} | {goal:,} |")
    for room in ROOMS:
        print(f"{room}: {lines(room):,} lines")
    print(
        *(own for room in ROOMS for path in files(room) for own in long_functions(path)), sep="\n"
    )
