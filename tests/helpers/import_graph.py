"""The import graph of the package, read from the source with ``ast``."""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
LINKED = ("tasks", "evaluation", "configs")
"""Folders at the root that are imported as ``mm_numeric.NAME``."""

STATEMENTS = (ast.stmt, ast.excepthandler, ast.match_case)
"""The nodes in which an import may stand."""


class Imports(NamedTuple):
    """The modules that one module imports, by full name."""

    at_load: frozenset[str]
    """Imported when the module is loaded."""

    lazy: frozenset[str]
    """Imported inside a function, or for type checkers only."""


@functools.cache
def packages() -> dict[str, Path]:
    """Return the name and the folder of every package on the disk."""
    found = {}
    for top, folder in [
        ("mm_numeric", ROOT / "mm_numeric"),
        *((f"mm_numeric.{name}", ROOT / name) for name in LINKED),
    ]:
        for path in folder.rglob("*.py"):
            inner = path.parent.relative_to(folder).parts
            if not any((folder / part).is_symlink() for part in inner[:1]):
                found[".".join((top, *inner))] = path.parent
    return found


@functools.cache
def modules() -> dict[str, Path]:
    """Return the name and the file of every module of the package."""
    return {
        f"{package}.{path.stem}".removesuffix(".__init__"): path
        for package, folder in packages().items()
        for path in sorted(folder.glob("*.py"))
    }


@functools.cache
def syntax_tree(path: Path) -> ast.Module:
    """Return the syntax tree of a file, which several tests walk."""
    return ast.parse(path.read_text(encoding="utf-8"))


def imports_of(path: Path) -> Imports:
    """Return the imports of one file.

    ``from package import name`` gives ``package.name``: a module or a name in one.

    Raises:
        AssertionError: If an import is relative.
    """
    at_load, lazy = set(), set()
    waiting: list[tuple[ast.AST, bool]] = [(syntax_tree(path), False)]
    while waiting:
        node, is_lazy = waiting.pop()
        (lazy if is_lazy else at_load).update(_names(node, path))
        is_lazy |= isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or (
            isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        )
        inner = (c for c in ast.iter_child_nodes(node) if isinstance(c, STATEMENTS))
        waiting.extend((child, is_lazy) for child in inner)
    return Imports(frozenset(at_load), frozenset(lazy))


def _names(node: ast.AST, path: Path) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, f"{path.name}, line {node.lineno}: a relative import"
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def graph() -> dict[str, Imports]:
    """Return the imports of every module, those of this package resolved to modules."""
    known = modules()

    def resolved(names: frozenset[str]) -> frozenset[str]:
        return frozenset(
            name
            if name in known
            else name.rpartition(".")[0]
            if name.rpartition(".")[0] in known
            else name
            for name in names
        )

    found = {}
    for module, path in known.items():
        own = imports_of(path)
        found[module] = Imports(resolved(own.at_load), resolved(own.lazy))
    return found


def loaded_by(module: str, edges: dict[str, Imports]) -> dict[str, str]:
    """Return every module that loading ``module`` loads, each with the module that imports it."""
    found: dict[str, str] = {}
    waiting = [module]
    while waiting:
        current = waiting.pop()
        if current not in edges:
            continue
        packages_above = [current.rsplit(".", n)[0] for n in range(1, current.count(".") + 1)]
        for name in [*edges[current].at_load, *packages_above]:
            if name not in found and name != module:
                found[name] = current
                waiting.append(name)
    return found
