"""The sections of a report, and the blocks that they consist of.

A section is written once; each block returns itself as HTML and as Markdown.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from markupsafe import Markup

from mm_numeric.evaluation.markup import element, joined, markdown_text, plain
from mm_numeric.evaluation.table import Cell, Table


class Block(Protocol):
    """A part of a section; a ``Table`` is one."""

    def to_html(self) -> Markup:
        """Return the block as HTML."""
        ...

    def to_markdown(self) -> str:
        """Return the block as Markdown; empty if Markdown cannot show it."""
        ...


@dataclass(frozen=True)
class Paragraph:
    """A paragraph of text; a note is set smaller and in grey."""

    text: str
    is_note: bool = False
    limit: int = 900
    """The maximum number of characters."""

    def to_html(self) -> Markup:
        """Return a ``p`` element."""
        return element("p", plain(self.text, self.limit), class_="note" if self.is_note else None)

    def to_markdown(self) -> str:
        """Return one line."""
        return markdown_text(self.text, self.limit)


@dataclass(frozen=True)
class Heading:
    """A heading within a section."""

    text: str

    def to_html(self) -> Markup:
        """Return an ``h3`` element."""
        return element("h3", plain(self.text))

    def to_markdown(self) -> str:
        """Return a heading of level 3."""
        return f"### {markdown_text(self.text)}"


@dataclass(frozen=True)
class FactList:
    """Names and their values."""

    pairs: Sequence[tuple[str, str]]

    def to_html(self) -> Markup:
        """Return a ``dl`` element."""
        found = [(element("dt", plain(k)), element("dd", plain(v, 600))) for k, v in self.pairs]
        return element("dl", *(part for pair in found for part in pair))

    def to_markdown(self) -> str:
        """Return a table."""
        rows = [[name, Cell(content=value, limit=600)] for name, value in self.pairs]
        return Table.of(["", ""], rows, align="left").to_markdown() if rows else ""


@dataclass(frozen=True)
class ListOfLines:
    """A list of lines, which HTML shows in another way."""

    lines: Sequence[str]

    def to_html(self) -> Markup:
        """Return nothing."""
        return Markup("")

    def to_markdown(self) -> str:
        """Return a bullet list."""
        return "\n".join(f"- {markdown_text(line)}" for line in self.lines)


@dataclass(frozen=True)
class CodeBlock:
    """A command."""

    text: str

    def to_html(self) -> Markup:
        """Return a ``pre`` element."""
        return element("pre", plain(self.text, 600))

    def to_markdown(self) -> str:
        """Return an indented block."""
        return f"    {plain(self.text, 600)}"


@dataclass(frozen=True)
class Drawing:
    """HTML without a Markdown counterpart, such as a chart or the output of a template."""

    html: Markup

    def to_html(self) -> Markup:
        """Return the drawing."""
        return self.html

    def to_markdown(self) -> str:
        """Return nothing."""
        return ""


def figure(chart: Markup, caption: Cell | None = None, css: str | None = None) -> Drawing:
    """Return a chart with a caption."""
    above = () if caption is None else (element("figcaption", caption.to_html()),)
    return Drawing(element("figure", *above, chart, class_=css))


@dataclass(frozen=True)
class Group:
    """Blocks that HTML arranges by a CSS class."""

    css: str
    blocks: Sequence[Block]

    def to_html(self) -> Markup:
        """Return a ``div`` element."""
        return element("div", html_of(self.blocks), class_=self.css or None)

    def to_markdown(self) -> str:
        """Return the blocks one after the other."""
        return markdown_of(self.blocks)


@dataclass(frozen=True)
class Fold:
    """Blocks that HTML shows on a click; Markdown shows them as they are."""

    summary: str
    blocks: Sequence[Block]

    def to_html(self) -> Markup:
        """Return a ``details`` element."""
        return element("details", element("summary", self.summary), html_of(self.blocks))

    def to_markdown(self) -> str:
        """Return the blocks one after the other."""
        return markdown_of(self.blocks)


@dataclass(frozen=True, kw_only=True)
class Section:
    """One chapter of a report."""

    anchor: str
    title: str
    blocks: Sequence[Block]
    css: str = ""
    """Additional rules of style."""

    def to_html(self) -> Markup:
        """Return the blocks, without the title."""
        return html_of(self.blocks)

    def to_markdown(self) -> str:
        """Return the title and the blocks."""
        return f"## {self.title}\n\n{markdown_of(self.blocks)}"

    def tables(self) -> list[Table]:
        """Return the tables, those inside of groups included."""
        return list(_tables(self.blocks))


def html_of(blocks: Iterable[Block]) -> Markup:
    """Return blocks as HTML, one a line."""
    return joined(*(joined(block.to_html(), Markup("\n")) for block in blocks))


def markdown_of(blocks: Iterable[Block]) -> str:
    """Return blocks as Markdown."""
    return "\n\n".join(filter(None, (block.to_markdown() for block in blocks)))


def _tables(blocks: Iterable[Block]) -> Iterator[Table]:
    for block in blocks:
        if isinstance(block, Table):
            yield block
        elif isinstance(block, Group | Fold):
            yield from _tables(block.blocks)
