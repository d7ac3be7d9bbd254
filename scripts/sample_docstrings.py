"""Print docstrings drawn at random, for a reader who has not seen the code.

    python scripts/sample_docstrings.py --seed 0 --count 60

A reader marks each as plain or not: plain is what an engineer who has fine-tuned a VLM understands
at the first reading. CONTRIBUTING.md asks for 9 of 10.
"""

import argparse
import ast
import random
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("mm_numeric", "tasks", "evaluation")


def docstrings() -> list[tuple[str, str]]:
    """Return the place and the text of every docstring of the library."""
    found = []
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if any(parent.is_symlink() for parent in path.parents):
                continue
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                kinds = ast.Module | ast.ClassDef | ast.FunctionDef
                text = ast.get_docstring(node) if isinstance(node, kinds) else None
                if text:
                    line = getattr(node, "lineno", 1)
                    name = getattr(node, "name", path.stem)
                    found.append((f"{path.relative_to(ROOT)}:{line} {name}", text))
    return found


def main() -> None:
    """Print the sample."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=60)
    arguments = parser.parse_args()
    found = docstrings()
    sample = random.Random(arguments.seed).sample(found, arguments.count)
    for number, (place, text) in enumerate(sample, start=1):
        print(f"--- {number}. {place}\n{text}\n")
    print(f"{len(found)} docstrings in all")


if __name__ == "__main__":
    main()
