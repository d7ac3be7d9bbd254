"""Measure the size of the repository, and print it next to the budget in CONTRIBUTING.md.

python tests/helpers/budget.py
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("mm_numeric", "tasks", "evaluation")
SETTINGS = ("config-reference", "config-tasks", "config-terms")
LONGEST = 50
_NO_CODE = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
            tokenize.ENCODING, tokenize.ENDMARKER)  # fmt: skip


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


@cache  # for the two measures of code
def code_lines(text):
    """Return the numbers of the lines with code: not blank, no comment, no docstring.

    A docstring is any text that is a statement, also below a field. All lines of another text are
    code.
    """
    found = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            found.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(getattr(node.value, "value", None), str):
            found.difference_update(range(node.lineno, node.end_lineno + 1))
    return found


def long_functions(path):
    """Return the functions of a file with more than ``LONGEST`` lines of code, decorators aside."""
    text = path.read_text(encoding="utf-8")
    code = code_lines(text)
    return [
        f"{path.relative_to(ROOT).as_posix()}:{node.name}"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and sum(node.lineno <= line <= node.end_lineno for line in code) > LONGEST
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


def walk(name):
    """Return the files that a walk of ``files_walked`` lists, in a process of its own.

    In a process that has done other work, caches have the results of some functions already.
    """
    script = Path(__file__).with_name("files_walked.py")
    done = subprocess.run([sys.executable, script, name], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


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
MEASURES = STATIC | {name: lambda own=own: len(walk(own)) for name, own in WALKS.items()}
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
