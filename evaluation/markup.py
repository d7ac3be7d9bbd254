"""Escape text for HTML, Markdown, LaTeX and CSV.

Every text that comes from a model, a row or a file name passes through one of these functions or
through the templates, which use ``visible`` and escape what is not ``Markup``.
"""

import html
import re
import unicodedata

from markupsafe import Markup, escape

MISSING = "–"  # shown in place of a number that does not exist

_UNSEEN = ("Cc", "Cf", "Cs", "Co", "Cn")  # control, format, surrogate, private and unassigned
_VOID = {"br", "circle", "image", "input", "line", "path", "rect", "use"}
_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "[": "{[}",  # a row that begins with it would be an option of the line break before it
    "*": "{*}",
    "\N{REPLACEMENT CHARACTER}": "?",
    "…": r"\ldots{}",
    "–": "--",
    "“": "``",
    "”": "''",
    "’": "'",
    "\N{MINUS SIGN}": "$-$",
    "Δ": r"$\Delta$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "≥": r"$\geq$",
    "×": r"$\times$",
} | {character: "\\" + character for character in "#$%&_{}"}


def visible(text: object) -> str:
    """Replace line breaks by spaces and invisible characters by the replacement character."""
    shown = str(text)
    if shown.isprintable():
        return shown
    return "".join(map(_visible_character, shown))


def _visible_character(character: str) -> str:
    if character == "\N{NO-BREAK SPACE}":
        return character
    if character.isspace():
        return " "
    unseen = unicodedata.category(character) in _UNSEEN
    return "\N{REPLACEMENT CHARACTER}" if unseen else character


def plain(text: object, limit: int = 300) -> str:
    """Return a text as one visible line of at most ``limit`` characters."""
    line = " ".join(visible(str(text)[: 4 * limit]).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def element(tag: str, *children: object, **attributes: object) -> Markup:
    """Return an HTML or SVG element.

    Children that are not ``Markup`` and all attribute values are escaped. Attributes that are None
    are left out, ``class_`` is ``class``, and ``stroke_width`` is ``stroke-width``.
    """
    pairs = ((name.rstrip("_").replace("_", "-"), value) for name, value in attributes.items())
    written = "".join(
        f' {name}="{_attribute(value)}"' for name, value in pairs if value is not None
    )
    if tag in _VOID and not children:
        return Markup(f"<{tag}{written}/>")
    return Markup(f"<{tag}{written}>{joined(*children)}</{tag}>")


def joined(*children: object) -> Markup:
    """Join ``Markup`` and texts; the texts are escaped."""
    return Markup("").join(c if isinstance(c, Markup) else visible(c) for c in children)


def _attribute(value: object) -> Markup:
    return escape(f"{round(value, 2):g}" if isinstance(value, float) else visible(value))


def markdown_text(text: object, limit: int = 300) -> str:
    """Escape a text for a Markdown table: it cannot add a tag, a link, emphasis or a column."""
    line = html.escape(plain(text, limit), quote=False)
    line = re.sub(r"([\\`*|\[\]~])", r"\\\1", line)
    line = re.sub(r"(?<!\w)_|_(?!\w)", r"\\_", line)
    return line.replace("://", "&#58;//").replace("www.", "www&#46;")


def markdown_code(name: str) -> str:
    """Write a name as inline code that fits into a Markdown table."""
    return "`" + plain(name, 60).replace("`", "'").replace("|", "\\|") + "`"


def latex_text(text: object, limit: int = 300) -> str:
    """Escape a text for LaTeX."""
    return "".join(_LATEX.get(character, character) for character in plain(text, limit))


def csv_text(text: object, limit: int = 300) -> str:
    """Return a text that a spreadsheet does not read as a formula; csv quotes it."""
    line = plain(text, limit)
    return "'" + line if line[:1] in ("=", "+", "-", "@") else line
