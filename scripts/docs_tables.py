"""Write the generated parts of docs/ and README.md: presets, settings, frames, published results.

    python scripts/docs_tables.py            # write them
    python scripts/docs_tables.py --check    # fail if a page is out of date

A generated part of a page is between ``<!-- generated -->`` and ``<!-- end -->``, or between
``<!-- generated: NAME ARGUMENTS -->`` and ``<!-- end -->`` for a table of ``docs_results``. Two
figures are whole files.
"""

import argparse
import html
import re
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

from docs_choice import draw_choice
from docs_frames import draw_frames
from docs_results import TABLES

sys.path.insert(0, str(Path(__file__).parents[1]))  # from a checkout, whether installed or not

from mm_numeric.baselines.baseline import Baseline
from mm_numeric.config.explain import SECTIONS, default, kind, meanings
from mm_numeric.losses.presets import PRESETS
from mm_numeric.registry import BASELINES, GENERATORS, TASKS, TERMS, load
from mm_numeric.synthetic.generator import Generator

ROOT = Path(__file__).parents[1]

FAMILY_PAGES = {
    "cross-entropy.md": ("ce", "digit_ce"),
    "ntl.md": ("ntl_", "nl_ntl"),
    "ntil.md": ("emd", "ntil"),
    "soft-targets.md": ("gce",),
    "proper-scores.md": ("rps",),
    "raft.md": ("raft",),
}
"""Each page of losses, and the beginnings of the names of its presets."""


def main() -> None:
    """Write or check the generated part of each page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing; fail if out of date")
    check = parser.parse_args().check
    for page, text in pages():
        if text == page.read_text(encoding="utf-8"):
            continue
        if check:
            sys.exit(f"{page.relative_to(ROOT)} is out of date; run python {sys.argv[0]}.")
        page.write_text(text, encoding="utf-8")


def pages() -> Iterator[tuple[Path, str]]:
    """Yield each file that is generated, or has a generated part, and its up-to-date text."""
    yield ROOT / "docs/images/choice.svg", draw_choice()
    yield ROOT / "docs/images/frames.svg", draw_frames()
    for path, part in (
        ("losses/index.md", presets()),
        ("config-reference.md", sections({f"`{name}`": cls for name, cls in SECTIONS.items()})),
        ("config-tasks.md", sections(task_options())),
        ("config-terms.md", sections(term_options())),
        ("config-synthetic.md", generators()),
    ):
        page = ROOT / "docs" / path
        head, begin, rest = page.read_text(encoding="utf-8").partition("<!-- generated -->\n")
        _, end, tail = rest.partition("<!-- end -->\n")
        if not (begin and end):
            raise ValueError(
                f"{page}: the comments <!-- generated --> and <!-- end --> are missing."
            )
        yield page, f"{head}{begin}\n{part}\n{end}{tail}"
    for page in [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]:
        text = page.read_text(encoding="utf-8")
        if _RESULTS.search(text):
            yield page, _RESULTS.sub(_published, text)


_RESULTS = re.compile(r"(<!-- generated: ([^\n]+) -->\n).*?(<!-- end -->\n)", re.DOTALL)


def _published(found: re.Match[str]) -> str:
    """Return a part of a page that shows published results, such as ``pair distilled ntil``."""
    name, *arguments = found[2].split()
    return f"{found[1]}\n{TABLES[name](*arguments)}\n\n{found[3]}"


_ITEMS = {
    "supervised": "supervised tokens",
    "token": "number tokens",
    "number": "numbers",
    "answer": "answers",
}


def presets() -> str:
    """Return the table of all presets of ``objective``."""
    lines = ["| preset | training loss | terms averaged over | page |", "|---|---|---|---|"]
    for name, spec in PRESETS.items():
        where = " of text" if spec.ce_tokens == "text" else ""
        loss = f"{spec.ce_weight:g} CE{where}".replace("1 CE", "CE")
        if spec.terms:
            terms = " + ".join(f"{t.weight:g} {t.name}".removeprefix("1 ") for t in spec.terms)
            terms = terms if len(spec.terms) == 1 else f"({terms})"
            loss += f" + {spec.numeric_weight:g} {terms}".replace(" 1 ", " ")
        if spec.balance == "ratio":
            loss += ", terms scaled to CE"
        units = [_ITEMS[load(TERMS[term.name], name).per] for term in spec.terms]
        unit = "samples" if spec.reduction == "samples" else ", ".join(dict.fromkeys(units))
        page = _page(name)
        lines.append(f"| `{name}` | {loss} | {unit} | [{_title(page)}]({page}) |")
    return "\n".join(lines)


def _page(name: str) -> str:
    pages = [page for page, names in FAMILY_PAGES.items() if name.startswith(names)]
    if len(pages) != 1:
        raise ValueError(f"FAMILY_PAGES has {len(pages)} pages for the preset {name}; name one.")
    return pages[0]


def _title(page: str) -> str:
    return (ROOT / "docs/losses" / page).read_text(encoding="utf-8").partition("\n")[0].strip("# ")


def task_options() -> dict[str, type]:
    """Return the class of each task."""
    return {f"Task `{name}`": load(path, name) for name, path in TASKS.items()}


def generators() -> str:
    """Return the section of the settings of all generators, and those of each one."""
    classes = {f"`{name}`": load(path, name) for name, path in GENERATORS.items()}
    shared = {field.name for field in fields(Generator)}
    parts = [section("All generators", Generator)]
    for title, cls in classes.items():
        purpose = (cls.__doc__ or "").partition("\n")[0].replace("``", "`")
        heading, table = section(title, cls, without=shared).split("\n\n", 1)
        parts.append(f"{heading}\n\n{purpose}\n\n{table}")
    return "\n\n".join(part.replace("## ", "### ", 1) for part in parts)


def term_options() -> dict[str, type]:
    """Return the class of each term, and the settings class of each baseline."""
    classes = {f"Term `{name}`": load(path, name) for name, path in TERMS.items()}
    for name, path in BASELINES.items():
        baseline: type[Baseline] = load(path, name)
        classes[f"Baseline `{name}`"] = baseline.settings_class
    return classes


def sections(classes: Mapping[str, type]) -> str:
    """Return the section of each class that has fields."""
    return "\n\n".join(section(title, cls) for title, cls in classes.items() if fields(cls))


def section(title: str, cls: type, without: Collection[str] = ()) -> str:
    """Return a heading and the table of the fields of a dataclass, without some of them."""
    texts = meanings(cls)
    rows = [
        f"| `{field.name}` | {kind(field)} | {_default(field)} | {_in_a_cell(texts[field.name])} |"
        for field in fields(cls)
        if field.name not in without
    ]
    table = "\n".join(["| setting | type | default | meaning |", "|---|---|---|---|", *rows])
    return f"## {title}\n\n{table}"


def _default(field: "Field[Any]") -> str:
    value = default(field)
    return value if value == "required" else f"`{value}`"


def _in_a_cell(text: str) -> str:
    """Return the docstring of a field as Markdown in one cell of a table."""

    def code(found: re.Match[str]) -> str:
        return f"<code>{html.escape(found[1])}</code>".replace("|", "&#124;")

    return re.sub(r"`([^`]*\|[^`]*)`", code, text)  # GitHub and MkDocs escape | in code differently


if __name__ == "__main__":
    main()
