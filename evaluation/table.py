"""Tables that can be written as plain text, HTML, Markdown, LaTeX and CSV.

A table holds texts and unrounded numbers. Each format rounds, aligns and escapes them.
"""

import csv
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from markupsafe import Markup

from mm_numeric.io.escaping import csv_text, latex_text, markdown_code, markdown_text, plain
from mm_numeric.io.markup import MISSING, element, joined

_DIGIT_EM, _SEEN_EM = 0.556, 0.05
_WIDTHS = {"%": 0.889, "m": 0.833, " ": 0.278, ".": 0.278, "i": 0.222, "t": 0.278, "s": 0.5}
"""Widths of characters in Helvetica, in em; other characters are about as wide as a digit."""

_NARROW = 3  # a table with more columns does not fit on a phone: it scrolls, with a shadow


def number(value: float, decimals: int = 1, *, sign: bool = False) -> str:
    """Format a number, such as ``1,234.5``; with ``sign``, positive numbers have a plus sign."""
    rounded = round(value, decimals)
    text = f"{abs(rounded):,.{decimals}f}" if abs(value) < 1e12 else f"{abs(value):.1e}"
    if rounded < 0:
        return "\N{MINUS SIGN}" + text
    return "+" + text if sign and rounded > 0 else text


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """A number with a unit and, if it is an estimate, an interval from ``low`` to ``high``."""

    value: float
    low: float | None = None
    high: float | None = None
    unit: str = ""  # percentages are stored as 0 to 100, with the unit %
    decimals: int = 1
    sign: bool = False  # True: positive numbers have a plus sign

    def __str__(self) -> str:
        unit = self.unit if self.unit in ("%", "") else f" {self.unit}"
        return number(self.value, self.decimals, sign=self.sign) + unit

    @property
    def interval(self) -> str:
        """Return the interval as text, such as ``65.0 to 75.0``, or an empty text."""
        if self.low is None or self.high is None:
            return ""
        low, high = (number(end, self.decimals, sign=self.sign) for end in (self.low, self.high))
        return f"{low} to {high}"


def percent(share: float | None, decimals: int = 1) -> Quantity | None:
    """Convert a share (0 to 1) to a percentage (0 to 100). None is returned unchanged."""
    return None if share is None else Quantity(value=100 * share, unit="%", decimals=decimals)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A cell of a table: a text or a number, and optional details such as a note."""

    content: str | Quantity | None = None  # None for a missing number
    change: Quantity | None = None  # difference of the number to a baseline
    trend: Literal["", "better", "worse", "unclear"] = ""  # sets the colour of the change in HTML
    best: bool = False  # True: the cell is highlighted
    is_name: bool = False  # True: the text is an identifier, shown in a monospaced font
    note: str = ""  # a remark after a name
    symbol: Markup | None = None  # an image before the text in HTML, such as a chart's marker
    bar: tuple[float, str] | None = None  # HTML: width (pixels) and colour of a bar after the text
    css: str = ""  # the class of the text in HTML
    limit: int = 300  # the text is truncated to this number of characters

    @property
    def text(self) -> str:
        """Return the text or number of the cell, without interval or difference to the baseline."""
        return MISSING if self.content is None else plain(self.content, self.limit)

    @property
    def interval(self) -> str:
        """Return the confidence interval in the cell, like ``65.0 to 75.0``, or an empty text."""
        return self.content.interval if isinstance(self.content, Quantity) else ""

    def _details(self) -> Iterator[str]:
        if self.interval:
            yield f" ({self.interval})"
        if self.change:
            yield f"; Δ {self.change}"
            if self.change.interval:
                yield f" ({self.change.interval})"
        if self.note:
            yield f" ({self.note})"

    def to_terminal(self) -> str:
        """Return the cell as plain text."""
        return self.text + "".join(self._details())

    @property
    def tail_em(self) -> float:
        """Return the width, in em, of a number's text from the decimal point to the end."""
        whole = re.match(r"[^\d]*[\d,]*", self.text)
        tail = self.text[whole.end() :] if whole and isinstance(self.content, Quantity) else ""
        return sum(_WIDTHS.get(letter, _DIGIT_EM) for letter in tail)

    def to_html(self, pad_em: float = 0.0) -> Markup:
        """Return the cell as HTML, without the ``td`` tag, followed by a space of ``pad_em`` em."""
        if self.is_name:
            name = element("span", self.text, class_="name")
            name = element("span", self.symbol, name, class_="who") if self.symbol else name
            return joined(name, element("small", self.note)) if self.note else name
        kind = self.css or ("best" if self.best else None)
        parts = [element("span", self.text, class_=kind) if kind else joined(self.text)]
        if pad_em > _SEEN_EM:
            parts.append(element("span", class_="pad", style=f"width:{pad_em:.2f}em"))
        if self.bar:
            style = f"width:{self.bar[0]:.1f}px;background:{self.bar[1]}"
            parts.append(element("span", class_="bar", style=style))
        parts += [element("small", text) for text in (self.interval, self.note) if text]
        if self.change:
            reach = [element("br"), self.change.interval] if self.change.interval else []
            parts.append(element("small", f"Δ {self.change}", *reach, class_=self.trend or None))
        return joined(*parts)

    def to_markdown(self) -> str:
        """Return the cell as Markdown."""
        text = markdown_text(self.text, self.limit)
        text = markdown_code(self.text) if self.is_name else text
        details = "".join(self._details())
        space = " " * details.startswith(" ")
        return (f"**{text}**" if self.best else text) + space + markdown_text(details, 400)

    def to_latex(self) -> str:
        """Return the cell as LaTeX, with interval and difference to the baseline below it."""
        text = latex_text(self.text, self.limit)
        text = f"\\texttt{{{text}}}" if self.is_name else text
        text = f"\\textbf{{{text}}}" if self.best else text
        if self.note:
            text += f" ({latex_text(self.note)})"
        small = [self.interval] if self.interval else []
        if self.change:
            small += [f"Δ {self.change}", self.change.interval]
        lines = [text, *(f"\\scriptsize {latex_text(line)}" for line in small if line)]
        stacked = r" \\ ".join(lines)
        return f"\\begin{{tabular}}[t]{{@{{}}r@{{}}}}{stacked}\\end{{tabular}}" if small else text

    def csv_values(self) -> dict[str, str]:
        """Return the value, interval and difference to the baseline of this cell, for CSV columns.

        The keys are appended to the column header: ``""`` for the value, ``" low"`` and ``" high"``
        for the interval, and ``" difference"`` for the difference to the baseline.
        """
        if isinstance(self.content, str):
            return {"": csv_text(self.content, self.limit)}
        found = {}
        for suffix, quantity in (("", self.content), (" difference", self.change)):
            if quantity:
                found[suffix] = f"{quantity.value:.10g}"
            if quantity and quantity.low is not None and quantity.high is not None:
                found[f"{suffix} low"] = f"{quantity.low:.10g}"
                found[f"{suffix} high"] = f"{quantity.high:.10g}"
        return found


def cell_of(content: Cell | Quantity | str | None) -> Cell:
    """Convert a text or a number to a table cell. A cell is returned unchanged."""
    return content if isinstance(content, Cell) else Cell(content=content)


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of a table: its header, alignment and minimum width."""

    header: Cell
    align: Literal["left", "right"] = "right"
    direction: str = ""  # an arrow after the header that points to better values
    min_width: int = 0  # characters in a terminal

    @property
    def title(self) -> Cell:
        """Return the header, followed by ``direction``, such as ``↑`` if higher is better."""
        if not self.direction:
            return self.header
        return Cell(content=f"{self.header.text} {self.direction}")


@dataclass(frozen=True, kw_only=True)
class TableRow:
    """A row of a table. Kind "aside": grey text; kind "separated": a line above the row."""

    cells: Sequence[Cell]
    kind: Literal["", "separated", "aside"] = ""


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of texts and numbers. The first cell of each row is the name of the row."""

    columns: Sequence[Column]
    rows: Sequence[TableRow]
    title: str = ""  # the caption
    css: str = ""  # the class of the table in HTML

    @classmethod
    def of(
        cls,
        header: Iterable[Any],
        rows: Iterable[Sequence[Any] | TableRow],
        *,
        title: str = "",
        css: str = "",
        align: Literal["left", "right"] = "right",
    ) -> "Table":
        """Create a table from a header and rows of cells: ``Cell``, ``Quantity``, text or None.

        The first column is left-aligned, the other columns are aligned by ``align``. A ``Column``
        in ``header`` keeps its own alignment, and a ``TableRow`` in ``rows`` keeps its own style.
        """
        heads = ((h, align if index else "left") for index, h in enumerate(header))
        columns = [
            head if isinstance(head, Column) else Column(header=cell_of(head), align=side)
            for head, side in heads
        ]
        lines = [
            row if isinstance(row, TableRow) else TableRow(cells=[cell_of(cell) for cell in row])
            for row in rows
        ]
        return cls(columns=columns, rows=lines, title=title, css=css)

    def to_terminal(self, *, header: bool = True, indent: int = 0) -> str:
        """Return the table as plain text with aligned columns."""
        titles = [column.title.to_terminal() for column in self.columns] if header else None
        lines = [[cell.to_terminal() for cell in row.cells] for row in self.rows]
        every = lines if titles is None else [titles, *lines]
        widths = [
            max([column.min_width, *(len(line[i]) for line in every)])
            for i, column in enumerate(self.columns)
        ]
        rules = [] if titles is None else [titles, ["-" * width for width in widths]]
        signs = ["<" if column.align == "left" else ">" for column in self.columns]
        form = "  ".join(f"{{:{s}{width}}}" for s, width in zip(signs, widths, strict=True))
        return "\n".join(" " * indent + form.format(*line).rstrip() for line in [*rules, *lines])

    def to_html(self) -> Markup:
        """Return the table as HTML that scrolls horizontally in a narrow window."""
        head = [element("th", column.title.to_html(), scope="col") for column in self.columns]
        classes = {"separated": "apart", "aside": "aside"}
        body = []
        tails = [
            max((row.cells[i].tail_em for row in self.rows), default=0.0)
            if column.align == "right"
            else 0.0
            for i, column in enumerate(self.columns)
        ]
        for row in self.rows:
            first, *rest = (
                cell.to_html(tail - cell.tail_em if isinstance(cell.content, Quantity) else 0.0)
                for cell, tail in zip(row.cells, tails, strict=True)
            )
            cells = (element("th", first, scope="row"), *(element("td", cell) for cell in rest))
            body.append(element("tr", *cells, class_=classes.get(row.kind)))
        parts = [element("caption", self.title)] if self.title else []
        parts += [element("thead", element("tr", *head)), element("tbody", *body)]
        table = element("table", *parts, class_=self.css or None)
        # With a tab stop, the table can also be scrolled with the keyboard.
        region = {"role": "region", "aria_label": self.title or None, "tabindex": "0"}
        is_wide = len(self.columns) > _NARROW
        return element("div", table, class_="scroll many" if is_wide else "scroll", **region)

    def to_markdown(self) -> str:
        """Return the table as a Markdown pipe table."""
        rules = ["---" if column.align == "left" else "---:" for column in self.columns]
        lines = [[column.title.to_markdown() for column in self.columns], rules]
        lines += [[cell.to_markdown() for cell in row.cells] for row in self.rows]
        title = f"*{markdown_text(self.title)}*\n\n" if self.title else ""
        return title + "\n".join(f"| {' | '.join(line)} |" for line in lines)

    def to_latex(self) -> str:
        """Return a LaTeX ``tabular``, which needs the package booktabs."""
        aligns = "".join(column.align[0] for column in self.columns)
        lines = [f"% {latex_text(self.title)}"] if self.title else []
        lines += [f"\\begin{{tabular}}{{{aligns}}}", "\\toprule"]
        lines += [" & ".join(c.title.to_latex() for c in self.columns) + r" \\", "\\midrule"]
        for row in self.rows:
            lines += ["\\midrule"] if row.kind == "separated" else []
            lines.append(" & ".join(cell.to_latex() for cell in row.cells) + r" \\")
        return "\n".join([*lines, "\\bottomrule", "\\end{tabular}"])

    def to_csv(self) -> str:
        """Return the table as CSV, with 10 significant digits.

        If a column's numbers have intervals, extra columns hold the lower and the upper bounds.
        Differences to the baseline are also in a column of their own.
        """
        columns: list[list[str]] = []
        for index, column in enumerate(self.columns):
            cells = [row.cells[index].csv_values() for row in self.rows]
            contents = [row.cells[index].content for row in self.rows]
            units = {c.unit for c in contents if isinstance(c, Quantity) and c.unit}
            for suffix in dict.fromkeys(["", *(suffix for cell in cells for suffix in cell)]):
                unit = f" ({', '.join(sorted(units))})" if units and not suffix else ""
                values = [cell.get(suffix, "") for cell in cells]
                columns.append([csv_text(f"{column.header.text}{suffix}{unit}"), *values])
        file = io.StringIO()
        csv.writer(file, lineterminator="\n").writerows(zip(*columns, strict=True))
        return file.getvalue()


def p_value(p: float) -> str:
    """Format a p-value: 0.0171 becomes ``p 0.017``."""
    return f"p {p:.3f}" if p >= 0.001 else "p < 0.001"
