"""Change one expression of the library at a time, and see whether a test fails: mutation testing.

The changes are those of mutmut, which must be installed (``pip install mutmut==3.8.1``). The quick
tests of the rooms run once, to find out which of them reach which line. Then each mutant runs those
that reach it in a fork of this process, until one fails. Not changed: constants of modules and
classes, default values, decorators, ``raise`` statements.

    ./scripts/mutate losses --sample 200
    ./scripts/mutate geometry metrics parsers numbers --seed 1

Prints a diff for each mutant that no test kills, and the share of killed mutants of each room.
``not reached`` are lines that none of these tests runs, for example because they run at import.
"""

import argparse
import functools
import gc
import os
import random
import resource
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from difflib import unified_diff
from pathlib import Path
from types import CodeType, FunctionType
from typing import NamedTuple

import coverage
import hypothesis
import libcst as cst
import pytest
from _pytest.runner import runtestprotocol
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation.mutators import mutation_operators

SOURCES = {
    "losses": ["mm_numeric/losses/**/*.py"],
    "geometry": ["mm_numeric/geometry/*.py"],
    "metrics": ["evaluation/metrics/*.py"],
    "parsers": ["tasks/*.py", "mm_numeric/parsing.py"],
    "numbers": ["mm_numeric/numbers/*.py"],
}
"""Name of a room -> patterns of its files."""

TESTS = {
    "losses": ["tests/losses"],
    "geometry": ["tests/geometry", "tests/tasks"],
    "metrics": ["tests/evaluation/metrics", "tests/tasks"],
    "parsers": ["tests/tasks", "tests/test_parsing.py"],
    "numbers": ["tests/numbers", "tests/tasks"],
}
ROOT = Path(__file__).resolve().parents[1]
PASSED, KILLED = 0, 1
_MOST_MEMORY = 8 << 30


class Mutant(NamedTuple):
    """A change of a file: the lines of its statement, and the text of the whole file with it."""

    file: Path
    lines: range
    old: cst.CSTNode
    new: cst.CSTNode
    module: cst.Module

    def text(self) -> str:
        """Return the changed file."""
        return self.module.deep_replace(self.old, self.new).code

    def diff(self) -> str:
        """Return what changed, with the number of the first line."""
        texts = (self.module.code, self.text())
        lines = list(unified_diff(*(text.splitlines() for text in texts), lineterm="", n=0))[3:]
        return "\n".join([f"{self.file.relative_to(ROOT)}:{self.lines[0]}", *lines])


class _Mutants(cst.CSTVisitor):
    """Collects the mutants of the functions of a module."""

    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self, file: Path, module: cst.Module):
        self.file, self.module = file, module
        self.found: list[Mutant] = []
        self.functions = 0
        self.first_lines = [1]

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, cst.BaseStatement | cst.BaseSmallStatement):
            self.first_lines.append(self._position(node).start.line)
        self.functions += isinstance(node, cst.FunctionDef)
        if isinstance(node, cst.Annotation | cst.Decorator | cst.Parameters | cst.Raise):
            return False  # on_leave is called nevertheless
        for kind, operator in mutation_operators if self.functions else ():
            if isinstance(node, kind):
                self.found += [self._mutant(node, new) for new in operator(node)]
        return True

    def on_leave(self, original_node: cst.CSTNode) -> None:
        self.functions -= isinstance(original_node, cst.FunctionDef)
        if isinstance(original_node, cst.BaseStatement | cst.BaseSmallStatement):
            self.first_lines.pop()

    def _mutant(self, node: cst.CSTNode, new: cst.CSTNode) -> Mutant:
        lines = range(self.first_lines[-1], self._position(node).end.line + 1)
        return Mutant(self.file, lines, node, new, self.module)

    def _position(self, node: cst.CSTNode):
        default = cst.metadata.CodeRange((self.first_lines[-1], 0), (self.first_lines[-1], 0))
        return self.get_metadata(PositionProvider, node, default)


def mutants(room: str) -> Iterator[Mutant]:
    """Yield every mutant of a room."""
    for file in sorted(file for pattern in SOURCES[room] for file in ROOT.glob(pattern)):
        wrapper = MetadataWrapper(cst.parse_module(file.read_text("utf-8")))
        visitor = _Mutants(file, wrapper.module)
        wrapper.visit(visitor)
        yield from visitor.found


class Plugin:
    """Runs the tests once, and then those that reach a mutant for each mutant."""

    def __init__(self, rooms: Sequence[str], sample: int, seed: int, seconds: float):
        self.seconds = seconds
        found = {room: list(mutants(room)) for room in rooms}
        self.total = {room: len(found[room]) for room in rooms}
        chosen = {
            room: random.Random(seed).sample(found[room], min(sample, len(found[room])))
            for room in rooms
        }
        # In turn, so that a run that is stopped has something of each room.
        longest = max(map(len, chosen.values()))
        self.chosen = [
            (r, chosen[r][i]) for i in range(longest) for r in rooms if i < len(chosen[r])
        ]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run the tests, then the mutants."""
        files = {mutant.file for _, mutant in self.chosen}
        tests, seconds = _reaching_tests(session.items, files)
        if session.testsfailed:
            print("\nthe tests must pass before anything is changed")
            return True
        functions = _functions(files)
        gc.freeze()
        results: dict[str, Counter[str]] = defaultdict(Counter)
        for number, (room, mutant) in enumerate(self.chosen, start=1):
            items = {item for line in mutant.lines for item in tests[mutant.file][line]}
            result = self._run(mutant, items, seconds, functions) if items else "not reached"
            results[room][result] += 1
            if result in ("survived", "not reached"):
                print(f"\n{number}, {result}, {len(items)} tests: {mutant.diff()}", flush=True)
        for room, counts in results.items():
            killed = 1 - (counts["survived"] + counts["not reached"]) / counts.total()
            print(f"\n{room}: {killed:.1%} of {counts.total()} killed, {dict(counts)}", end="")
            print(f"; all mutants: {self.total[room]}")
        return True

    def _run(self, mutant, items, seconds, functions) -> str:
        """Return what became of a mutant: ``killed``, ``timeout`` or ``survived``."""
        ordered = _chosen(items, seconds, self.seconds)
        child = os.fork()
        if not child:
            limit = int(sum(seconds[item] for item in ordered) * 5 + 10)
            resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
            resource.setrlimit(resource.RLIMIT_DATA, (_MOST_MEMORY, _MOST_MEMORY))
            signal.alarm(limit * 10)
            os._exit(_test_mutant(mutant, ordered, functions))
        status = os.waitpid(child, 0)[1]
        if os.WIFSIGNALED(status):
            too_long = os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGALRM, signal.SIGKILL)
            return "timeout" if too_long else "killed"
        return "survived" if os.WEXITSTATUS(status) == PASSED else "killed"


def _chosen(items, seconds, budget):
    """Return tests of at most ``budget`` seconds, first one of each function, by module.

    The tests of a module follow each other because of its fixtures.
    """
    functions, modules = defaultdict(list), defaultdict(list)
    for item in sorted(items, key=seconds.__getitem__):
        functions[item.function].append(item)
    ranked = [(i, seconds[own], own) for some in functions.values() for i, own in enumerate(some)]
    for _, needed, item in sorted(ranked, key=lambda entry: entry[:2]):
        if budget > 0:
            modules[item.module].append(item)
        budget -= needed
    return [item for of_module in modules.values() for item in of_module]


def _reaching_tests(items, files):
    """Return the tests that run each line of each file, and the seconds of each test."""
    measured = coverage.Coverage(data_file=None, include=[str(file) for file in files])
    by_name = {item.nodeid: item for item in items}
    seconds = {}
    with measured.collect():
        for item, following in zip(items, [*items[1:], None], strict=True):
            measured.switch_context(item.nodeid)
            start = time.process_time()
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            seconds[item] = time.process_time() - start
    data = measured.get_data()
    tests = {file: defaultdict(list) for file in files}
    for file in files:
        for line, names in data.contexts_by_lineno(str(file)).items():
            tests[file][line] = [by_name[name] for name in names if name in by_name]
    return tests, seconds


def _functions(files):
    """Return the live functions of files by file, name and first line; empty all caches."""
    gc.unfreeze()
    gc.collect()
    found = defaultdict(list)
    for value in gc.get_objects():
        kind = type(value)  # not isinstance, which asks torch's deprecated objects for their class
        if kind is functools._lru_cache_wrapper:
            value.cache_clear()
        elif kind is FunctionType:
            code = value.__code__
            path = Path(os.path.realpath(code.co_filename))
            if path in files:
                found[path, code.co_qualname, code.co_firstlineno].append(value)
        elif str(kind.__module__).startswith("mm_numeric."):
            for name in _cached_properties(kind):
                vars(value).pop(name, None)
    return found


@functools.cache
def _cached_properties(kind):
    members = [item for base in kind.__mro__ for item in vars(base).items()]
    return [name for name, own in members if isinstance(own, functools.cached_property)]


def _test_mutant(mutant: Mutant, items, functions) -> int:
    """Run tests with a mutant until one fails. Return the exit status."""
    try:
        code = compile(mutant.text(), str(mutant.file), "exec")
    except SyntaxError:
        return KILLED
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)
    os.dup2(null, 2)
    for part in _codes(code):
        for function in functions.get((mutant.file, part.co_qualname, part.co_firstlineno), ()):
            if part.co_freevars == function.__code__.co_freevars:
                function.__code__ = part
    for item, following in zip(items, [*items[1:], None], strict=True):
        if any(report.failed for report in runtestprotocol(item, log=False, nextitem=following)):
            return KILLED
    return PASSED


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of each function within a code."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rooms", nargs="*", metavar="ROOM", help=f"of {', '.join(SOURCES)}")
    parser.add_argument("--sample", type=int, default=150, help="mutants of each room")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--seconds", type=float, default=10, help="of tests for each mutant")
    given = parser.parse_args()
    rooms = given.rooms or list(SOURCES)
    if unknown := set(rooms) - set(SOURCES):
        parser.error(f"no such room: {', '.join(unknown)}")
    # Failing examples are neither stored nor made smaller.
    phases = [hypothesis.Phase.explicit, hypothesis.Phase.generate]
    hypothesis.settings.register_profile(
        "mutate", database=None, derandomize=True, deadline=None, phases=phases
    )
    hypothesis.settings.load_profile("mutate")
    tests = sorted({test for room in rooms for test in TESTS[room]})
    with tempfile.TemporaryDirectory() as folder:
        options = ["-s", "-m", "not slow", "-p", "no:cacheprovider", f"--basetemp={folder}/tests"]
        plugin = Plugin(rooms, given.sample, given.seed, given.seconds)
        return pytest.main([*options, *tests], plugins=[plugin])


if __name__ == "__main__":
    sys.exit(main())
