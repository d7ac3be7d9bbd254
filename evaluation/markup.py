"""Escape text for HTML, Markdown, LaTeX and CSV.

Texts from models, data rows and file names are untrusted. They are escaped by the functions of
this module or by the HTML templates. In HTML, only values of the type ``Markup`` are not escaped.
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
    """Replace line breaks and tabs by spaces, and invisible characters by U+FFFD."""
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
    """Shorten a text to one line of ``limit`` characters, without invisible characters."""
    line = " ".join(visible(str(text)[: 4 * limit]).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def element(tag: str, *children: object, **attributes: object) -> Markup:
    """Return an HTML or SVG element, such as ``<p class="note">some text</p>``.

    Children are escaped unless they are ``Markup``; attribute values are always escaped. An
    attribute with the value None is omitted. In attribute names, ``_`` becomes ``-``
    (``stroke_width``), and a final ``_`` is removed (``class_``).
    """
    pairs = ((name.rstrip("_").replace("_", "-"), value) for name, value in attributes.items())
    written = "".join(
        f' {name}="{_attribute(value)}"' for name, value in pairs if value is not None
    )
    if tag in _VOID and not children:
        return Markup(f"<{tag}{written}/>")
    return Markup(f"<{tag}{written}>{joined(*children)}</{tag}>")


def joined(*children: object) -> Markup:
    """Concatenate HTML (``Markup``) and plain texts, and escape the plain texts."""
    return Markup("").join(c if isinstance(c, Markup) else visible(c) for c in children)


def _attribute(value: object) -> Markup:
    return escape(f"{round(value, 2):g}" if isinstance(value, float) else visible(value))


def markdown_text(text: object, limit: int = 300) -> str:
    """Escape a text for Markdown tables, so that it adds no tag, link, emphasis or column."""
    line = html.escape(plain(text, limit), quote=False)
    line = re.sub(r"([\\`*|\[\]~])", r"\\\1", line)
    line = re.sub(r"(?<!\w)_|_(?!\w)", r"\\_", line)
    return line.replace("://", "&#58;//").replace("www.", "www&#46;")


def markdown_code(name: str) -> str:
    """Return a name as inline code, escaped for a cell of a Markdown table."""
    return "`" + plain(name, 60).replace("`", "'").replace("|", "\\|") + "`"


def latex_text(text: object, limit: int = 300) -> str:
    """Return a text as one line, with the special characters of LaTeX escaped."""
    return "".join(_LATEX.get(character, character) for character in plain(text, limit))


def csv_text(text: object, limit: int = 300) -> str:
    """Return a text as one line that a spreadsheet does not run as a formula.

    An apostrophe is put before ``=``, ``+``, ``-`` and ``@``. The module ``csv`` adds quotes later.
    """
    line = plain(text, limit)
    return "'" + line if line[:1] in ("=", "+", "-", "@") else line
