"""The pages of the documentation, and the blocks of code in them."""

import re

from import_graph import ROOT

PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md")))
}
"""Path of each Markdown file that readers see, relative to the repository, and its text."""


def blocks(page: str, language: str) -> list[str]:
    """Return the fenced blocks of a page in one language, in their order."""
    return re.findall(rf"^```{language}\n(.*?)^```", PAGES[page], re.DOTALL | re.MULTILINE)


def pages_with(language: str) -> list[str]:
    """Return the pages that have such blocks, without those whose blocks other tests run.

    tests/test_contributing.py runs the files of docs/extending.md in a folder of their own, and
    tests/integrations those of docs/frameworks.md in the frameworks.
    """
    others = ("docs/extending.md", "docs/frameworks.md")
    return [page for page in PAGES if blocks(page, language) and page not in others]
