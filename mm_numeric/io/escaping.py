"""Escape text for a terminal, Markdown, LaTeX and CSV.

Texts from models, data rows, file names and stored folders are untrusted. Each medium has its
function: ``terminal_text``, ``markdown_text`` (``markdown_code`` and ``markdown_fence`` for code),
``latex_text`` and ``csv_text``. HTML is escaped by Jinja and by ``io.markup.element``.
"""

import html
import re
import unicodedata

_UNSEEN = ("Cc", "Cf", "Cs", "Co", "Cn")  # control, format, surrogate, private and unassigned
_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "[": "{[}",  # at the start of a row, LaTeX reads it as an option of the line break
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


def terminal_text(text: object) -> str:
    r"""Write control and other invisible characters, but not line breaks and tabs, as ``\x1b``.

    A terminal would execute them: they can hide lines, change its title or write to the clipboard.
    """
    shown = str(text)
    return shown if shown.isprintable() else "".join(map(_inert_character, shown))


def _inert_character(character: str) -> str:
    obeyed = character not in "\n\t" and unicodedata.category(character) in (*_UNSEEN, "Zl", "Zp")
    return repr(character)[1:-1] if obeyed else character


def markdown_text(text: object, limit: int = 300) -> str:
    """Escape a text for Markdown as one line that adds no tag, link, heading, list or column."""
    line = html.escape(plain(text, limit), quote=False)
    line = re.sub(r"([\\`*|\[\]~])", r"\\\1", line)
    line = re.sub(r"(?<!\w)_|_(?!\w)", r"\\_", line)
    line = re.sub(r"^(\d*)([-+#=.)])(?=[-#=]*(?:\s|$))", r"\1\\\2", line)
    return line.replace("://", "&#58;//").replace("www.", "www&#46;")


def markdown_sentence(text: str) -> str:
    """Escape a text like ``markdown_text``, but keep code in backticks; up to 600 characters."""
    # Code that begins with two backticks would not be closed by a single one.
    single = r"(?<!\\`)\\`((?:(?!\\`).)+)\\`(?!\\`)"
    return re.sub(single, _as_code, markdown_text(text, 600))


def _as_code(escaped: re.Match[str]) -> str:
    text = re.sub(r"\\(.)", r"\1", escaped[1])
    return f"`{html.unescape(text)}`"


def markdown_code(name: str) -> str:
    """Return a name as inline code, escaped for a cell of a Markdown table."""
    return "`" + plain(name, 64).replace("`", "'").replace("|", "\\|") + "`"


def markdown_fence(text: str, language: str = "") -> str:
    """Return a text as a Markdown code block, which no line of the text can close."""
    text = terminal_text(text).rstrip("\n")
    fence = "`" * (2 + max([1, *(len(run) for run in re.findall("`+", text))]))
    return f"{fence}{language}\n{text}\n{fence}"


def latex_text(text: object, limit: int = 300) -> str:
    """Return a text as one line, with the special characters of LaTeX escaped."""
    return "".join(_LATEX.get(character, character) for character in plain(text, limit))


def csv_text(text: object, limit: int = 300) -> str:
    """Return a text as one line that a spreadsheet does not run as a formula.

    An apostrophe is put before ``=``, ``+``, ``-`` and ``@``. The module ``csv`` adds quotes later.
    """
    line = plain(text, limit)
    return "'" + line if line[:1] in ("=", "+", "-", "@") else line
