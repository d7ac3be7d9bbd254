"""Find the names of torch that the library uses."""

import ast

from import_graph import ROOT

FOLDERS = ("mm_numeric", "tasks", "evaluation")


def used_names():
    """Return each name of torch in the library, such as ``torch.cuda.is_available``, and a file."""
    found = {}
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for name in _names(ast.parse(path.read_text("utf-8"))):
                found.setdefault(name, path.relative_to(ROOT).as_posix())
    return found


def _names(tree):
    aliases = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            aliases |= {a.asname or a.name.partition(".")[0]: a.name for a in node.names
                        if a.name.partition(".")[0] == "torch"}  # fmt: skip
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            aliases |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
    yield from aliases.values()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            words, inner = [node.attr], node.value
            while isinstance(inner, ast.Attribute):
                words.append(inner.attr)
                inner = inner.value
            if isinstance(inner, ast.Name) and inner.id in aliases:
                yield ".".join([aliases[inner.id], *reversed(words)])
