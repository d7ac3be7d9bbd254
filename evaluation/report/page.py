"""The page of a report, its sections and their blocks, and functions that render HTML templates.

A block has the same content in two formats, HTML and Markdown.
"""

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from mm_numeric.evaluation.table import Cell, Table
from mm_numeric.io.escaping import latex_text, markdown_sentence, markdown_text, plain, visible
from mm_numeric.io.markup import element, joined

_SUMMARY_COLUMNS, _SUMMARY_ROWS, _SUMMARY_LIMITS = 3, 3, 3


@functools.cache
def _environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        finalize=_shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _shown(value: object) -> str:
    """Format a value for a template: round floats, replace invisible characters in texts."""
    if isinstance(value, Markup):
        return value
    return f"{round(value, 2):g}" if isinstance(value, float) else visible(value)


def render(template: str | Path, **context: object) -> Markup:
    """Render a template of the folder ``templates``, or any file, with the given variables."""
    if isinstance(template, Path):
        found = _environment().from_string(template.read_text(encoding="utf-8"))
    else:
        found = _environment().get_template(template)
    return Markup(found.render(**context).strip())


@dataclass(frozen=True)
class Block:
    """A paragraph, table, chart or list in a section. ``markdown`` may be empty for a chart."""

    html: Markup
    markdown: str = ""
    tables: Sequence[Table] = ()


Content = Block | Table | str
"""A part of a section; a ``str`` becomes a paragraph."""


@dataclass(frozen=True, kw_only=True)
class Section:
    """One section of a report, with a title and the id of the HTML anchor."""

    anchor: str
    title: str
    blocks: Sequence[Content]
    css: str = ""  # additional CSS rules

    @classmethod
    def of(cls, anchor: str, title: str, *blocks: Content, css: str = "") -> "Section":
        """Create a section from blocks (paragraphs, tables and charts) in the order of the page."""
        return cls(anchor=anchor, title=title, blocks=blocks, css=css)

    @property
    def content(self) -> Block:
        """Return the whole content of the section as one block."""
        return group(None, self.blocks)


def paragraph(text: str, css: str | None = None) -> Block:
    """Return a text as a paragraph with an optional CSS class."""
    return Block(element("p", plain(text, 900), class_=css), markdown_text(text, 900))


def sentence_html(text: str) -> Markup:
    """Return a sentence as HTML; a command in backticks becomes ``code``."""
    parts = enumerate(re.split("`([^`]*)`", plain(text, 600)))
    return joined(*(element("code", part) if index % 2 else part for index, part in parts))


def note(text: str) -> Block:
    """Return a text as a paragraph in small grey type."""
    return paragraph(text, "note")


def heading(text: str) -> Block:
    """Return a text as a heading within a section."""
    return Block(element("h3", plain(text)), f"### {markdown_text(text)}")


def fact_list(pairs: Sequence[tuple[str, str]]) -> Block:
    """Return pairs (name, value) as a definition list in HTML and a table in Markdown."""
    terms = [(element("dt", plain(k)), element("dd", plain(v, 600))) for k, v in pairs]
    rows = [[name, Cell(content=value, limit=600)] for name, value in pairs]
    markdown = Table.of(["", ""], rows, align="left").to_markdown() if rows else ""
    return Block(element("dl", *(part for pair in terms for part in pair)), markdown)


def group(css: str | None, blocks: Iterable[Content]) -> Block:
    """Join blocks into one block; with ``css``, the HTML is a ``div`` with this CSS class."""
    found = [_block(block) for block in blocks]
    html = joined(*(joined(block.html, Markup("\n")) for block in found))
    return Block(
        html if css is None else element("div", html, class_=css or None),
        "\n\n".join(block.markdown for block in found if block.markdown),
        [table for block in found for table in block.tables],
    )


def fold(summary: str, blocks: Iterable[Content]) -> Block:
    """Return blocks that HTML hides until ``summary`` is clicked; Markdown always shows them."""
    inside = group(None, blocks)
    html = element("details", element("summary", summary), inside.html)
    return Block(html, inside.markdown, inside.tables)


def _block(content: Content) -> Block:
    if isinstance(content, Table):
        return Block(content.to_html(), content.to_markdown(), [content])
    return paragraph(content) if isinstance(content, str) else content


@dataclass(frozen=True, kw_only=True)
class Page:
    """The content of a report. All formats have the same sections and numbers."""

    title: str
    kicker: str  # a line above the title
    about: str
    verdict: str  # the main result in one sentence
    caveats: Sequence[str]
    sections: Sequence[Section]
    metrics: Table
    """The table of all metrics, for report.csv."""

    data_files: Mapping[str, Table] = field(default_factory=dict)
    """Maps the names of CSV files that are written next to the page to their content."""

    @property
    def tables(self) -> dict[str, Table]:
        """Return name -> table. The name is the section's anchor, numbered if there are several."""
        found = {}
        for section in self.sections:
            own = section.content.tables
            for index, table in enumerate(own, start=1):
                found[f"{section.anchor}-{index}" if len(own) > 1 else section.anchor] = table
        return found

    def to_html(self) -> str:
        """Return a self-contained HTML page without scripts and network requests."""
        return render(
            "page.html",
            title=plain(self.title),
            kicker=plain(self.kicker),
            about=plain(self.about, 600),
            verdict=sentence_html(self.verdict),
            caveats=[sentence_html(line) for line in self.caveats],
            sections=self.sections,
        )

    def to_markdown(self) -> str:
        """Return the page as Markdown, without figures."""
        parts = [
            f"# {markdown_text(self.title)}",
            f"**{markdown_sentence(self.verdict)}**",
            "\n".join(f"- {markdown_sentence(line)}" for line in self.caveats),
            markdown_text(self.about, 600),
            *(
                f"## {markdown_text(section.title)}\n\n{section.content.markdown}"
                for section in self.sections
            ),
        ]
        return "\n\n".join(filter(None, parts)) + "\n"

    def to_summary(self) -> str:
        """Return up to ten lines of Markdown: verdict, first rows of the metrics, and caveats."""
        columns = self.metrics.columns[:_SUMMARY_COLUMNS]
        rows = [
            replace(row, cells=row.cells[: len(columns)])
            for row in self.metrics.rows[:_SUMMARY_ROWS]
        ]
        table = replace(self.metrics, columns=columns, rows=rows, title="")
        limits = [f"- {markdown_sentence(line)}" for line in self.caveats[:_SUMMARY_LIMITS]]
        lines = [f"**{markdown_text(self.title)}: {markdown_sentence(self.verdict)}**", ""]
        lines += table.to_markdown().splitlines() if rows else []  # the list below ends the table
        return "\n".join([*lines, *limits])

    def to_latex(self) -> str:
        """Return all tables as LaTeX ``tabular``, which need the package booktabs."""
        lines = [f"% {latex_text(self.title)}. Needs \\usepackage{{booktabs}}."]
        for name, table in self.tables.items():
            lines += ["", f"% --table {name}", table.to_latex()]
        return "\n".join(lines) + "\n"
