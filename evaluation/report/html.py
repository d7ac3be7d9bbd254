"""What a report is made of: safe text, numbers written one way, the shell.

Everything that comes from a model or a file name goes through ``html_text`` or
``markdown_text``; both put it on one line, drop what cannot be seen and cut what is too long.
"""

import html
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

NOTHING = "–"  # what stands where a number is missing


@dataclass(frozen=True, kw_only=True)
class Section:
    """One chapter of the report, written twice with the same numbers."""

    anchor: str
    title: str
    html: str
    markdown: str
    css: str = ""


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A column of the table; with the unit ``%`` its values are shares of 1."""

    name: str
    label: str
    unit: str = ""
    higher_is_better: bool = True

    @property
    def scale(self) -> float:
        """What a value is multiplied by before it is written."""
        return 100.0 if self.unit == "%" else 1.0

    def _written(self, value: float, unit: str, *, sign: bool = False) -> str:
        text = number(self.scale * value, 1 if self.unit else 3, sign=sign)
        return text + (unit if unit in ("%", "") else " " + unit)

    def value(self, value: float | None) -> str:
        """Write a value with its unit."""
        return NOTHING if value is None else self._written(value, self.unit)

    def change(self, value: float) -> str:
        """Write a difference with its sign; differences of percentages are points."""
        return self._written(value, "points" if self.unit == "%" else self.unit, sign=True)

    def interval(self, cell: Mapping[str, Any], *, sign: bool = False) -> str:
        """Write from where to where the interval goes, without unit."""
        low, high = (self._written(cell[end], "", sign=sign) for end in ("low", "high"))
        return f"{low} to {high}"

    def moved(self, difference: Mapping[str, Any]) -> str:
        """Return better, worse, or unclear where the interval of a difference holds 0."""
        if difference["low"] <= 0 <= difference["high"]:
            return "unclear"
        return "better" if (difference["low"] > 0) == self.higher_is_better else "worse"


def plain(text: object, limit: int = 300) -> str:
    """Put a text on one visible line of at most ``limit`` characters."""
    shown = "".join(
        " "
        if character.isspace()
        else "\N{REPLACEMENT CHARACTER}"
        if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Cn")
        else character
        for character in str(text)[: 4 * limit]
    )
    line = " ".join(shown.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def html_text(text: object, limit: int = 300) -> str:
    """Make a text safe between tags and inside quoted attributes."""
    return html.escape(plain(text, limit), quote=True)


def markdown_text(text: object, limit: int = 300) -> str:
    """Make a text safe in a Markdown table cell: no tag, link, emphasis or column of its own."""
    line = html.escape(plain(text, limit), quote=False)
    line = re.sub(r"([\\`*|\[\]~])", r"\\\1", line)
    line = re.sub(r"(?<!\w)_|_(?!\w)", r"\\_", line)
    return line.replace("://", "&#58;//").replace("www.", "www&#46;")


def markdown_name(name: str) -> str:
    """Write a name as code that fits in a Markdown table."""
    return "`" + plain(name, 60).replace("`", "'").replace("|", "\\|") + "`"


def number(value: float, decimals: int = 1, *, sign: bool = False) -> str:
    """Write a number with a real minus, and a plus if asked; never ``-0.0``."""
    rounded = round(value, decimals)
    text = f"{abs(rounded):,.{decimals}f}" if abs(value) < 1e12 else f"{abs(value):.1e}"
    if rounded < 0:
        return "\N{MINUS SIGN}" + text
    return "+" + text if sign and rounded > 0 else text


def percent(share: float) -> str:
    """Write a share of 1 as a percentage with one decimal."""
    return number(100 * share) + "%"


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a table whose cells are already safe; all columns but the first are set right."""
    lines = [list(header), ["---"] + ["---:"] * (len(header) - 1), *map(list, rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def html_table(header: Iterable[str], body: str, kind: str = "") -> str:
    """Put rows under a header whose cells are already safe; wide tables scroll by themselves."""
    head = "".join(f"<th>{cell}</th>" for cell in header)
    return (
        f'<div class="scroll"><table class="{kind}"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def html_page(title: str, header: str, sections: Sequence[Section]) -> str:
    """Put sections into one self-contained page: no script, no font, no request."""
    links = "".join(f'<a href="#{s.anchor}">{html_text(s.title)}</a>' for s in sections)
    body = "\n".join(
        f'<section id="{s.anchor}"><h2>{html_text(s.title)}</h2>\n{s.html}\n</section>'
        for s in sections
    )
    css = CSS + "".join(s.css for s in sections)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "img-src data:; style-src 'unsafe-inline'\">\n"
        f"<title>{html_text(title)}</title>\n<style>{css}</style>\n</head>\n<body>\n"
        f'<header class="top">\n{header}\n<nav aria-label="Sections">{links}</nav>\n</header>\n'
        f"<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


CSS = """
:root {
  --paper: #fdfdfc; --card: #fff; --ink: #171b22; --soft: #59626f; --faint: #dfe3e8;
  --grid: #e8ebef; --wash: #f3f5f7; --good: #00694d; --bad: #a3400a;
  --true: #1550c8; --read: #b8450a;
  --base: #333d4b; --control: #7b8593; --warm: #8c95a1;
  --o0: #0067a8; --o1: #c9500a; --o2: #00805e; --o3: #a8478a; --o4: #946400; --o5: #5145c2;
  --sans: -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
  --mono: ui-monospace, "SF Mono", Menlo, Consolas, "Liberation Mono", monospace;
}
@media (prefers-color-scheme: dark) { :root {
  --paper: #10141a; --card: #171c23; --ink: #e9ecf1; --soft: #a3adba; --faint: #313944;
  --grid: #262d37; --wash: #1b212a; --good: #4fd1a5; --bad: #ff9d66;
  --true: #86b3ff; --read: #ff9d5c;
  --base: #d5dbe4; --control: #8f99a7; --warm: #7d8794;
  --o0: #55b4f2; --o1: #ff8a4c; --o2: #3ecb9d; --o3: #ea98cb; --o4: #e9b53c; --o5: #aca3ff;
} }
* { box-sizing: border-box; }
html { scroll-behavior: smooth; -webkit-text-size-adjust: 100%; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.55 var(--sans);
  overflow-wrap: anywhere; }
.top, main { max-width: 1120px; margin: 0 auto; padding: 0 28px; }
.top { padding-top: 56px; }
.kicker { margin: 0 0 6px; color: var(--soft); font-size: 14px; }
h1 { margin: 0; font: 650 40px/1.12 var(--sans); letter-spacing: -.022em; }
.about { margin: 10px 0 0; max-width: 70ch; color: var(--soft); }
.verdict { margin: 36px 0 0; max-width: 40em; font-size: 25px; line-height: 1.36;
  letter-spacing: -.011em; text-wrap: pretty; }
.caveats { margin: 18px 0 0; padding: 0; max-width: 74ch; list-style: none; color: var(--soft); }
.caveats li { margin: 0 0 6px; padding-left: 18px; position: relative; }
.caveats li::before { content: ""; position: absolute; left: 0; top: .72em; width: 9px;
  border-top: 1.5px solid var(--soft); }
nav { display: flex; flex-wrap: wrap; gap: 4px 22px; margin-top: 34px; padding: 22px 0 0;
  font-size: 14px;
  background:
    repeating-linear-gradient(90deg, var(--ink) 0 1px, transparent 1px 50px) 0 0 / 100% 11px
      no-repeat,
    repeating-linear-gradient(90deg, var(--soft) 0 1px, transparent 1px 10px) 0 0 / 100% 6px
      no-repeat; }
nav a { color: var(--soft); text-decoration: none; }
nav a:hover, nav a:focus-visible { color: var(--ink); text-decoration: underline; }
section { padding: 46px 0 0; }
main { padding-bottom: 80px; }
h2 { margin: 0 0 6px; font: 650 23px/1.25 var(--sans); letter-spacing: -.014em; }
h3 { margin: 30px 0 8px; font: 600 16px/1.35 var(--sans); }
p { margin: 0 0 12px; max-width: 84ch; }
.note { color: var(--soft); font-size: 14.5px; }
code, .name { font-family: var(--mono); font-size: .9em; }
.name { font-weight: 600; }
figcaption .who { max-width: 100%; }
figure { margin: 0; min-width: 0; }
figcaption { font-size: 14px; margin-bottom: 4px; }
svg { display: block; overflow: visible; }
svg text { font: 11.5px var(--sans); fill: var(--soft); font-variant-numeric: tabular-nums; }
.panels svg { width: 100%; height: auto; }
.panels { display: grid; gap: 28px 30px; margin-top: 14px;
  grid-template-columns: repeat(auto-fill, minmax(300px, 1fr)); }
.legend { display: flex; flex-wrap: wrap; gap: 4px 20px; margin: 12px 0 4px; padding: 0;
  list-style: none; font-size: 14px; }
.legend svg, .who svg { flex: none; }
.who { display: inline-flex; align-items: baseline; gap: 8px; }
.who svg { position: relative; top: 2.5px; }
.dots { display: grid; grid-template-columns: max-content 1fr max-content; margin-top: 16px; }
.dots > div { display: contents; }
.dots .who, .dots .told { padding: 0 18px 0 0; align-self: center; }
.dots .told { padding: 0 0 0 22px; font-size: 14px; line-height: 1.35;
  font-variant-numeric: tabular-nums; }
.dots .told b { font-size: 17px; }
.dots .apart > * { margin-top: 12px; }
.dots .plot { width: 100%; }
.scroll { overflow-x: auto; margin-top: 14px; }
table { border-collapse: collapse; width: 100%; font-size: 15px;
  font-variant-numeric: tabular-nums; }
th, td { padding: 9px 0 9px 22px; text-align: right; vertical-align: top; font-weight: 400;
  border-bottom: 1px solid var(--faint); overflow-wrap: normal; white-space: nowrap; }
th:first-child, td:first-child { padding-left: 0; text-align: left; }
thead th { color: var(--soft); font-size: 13.5px; vertical-align: bottom;
  border-bottom: 1.5px solid var(--ink); }
td small { display: block; color: var(--soft); font-size: 13px; }
td .best { font-weight: 700; border-bottom: 2.5px solid currentColor; }
td .plain { font-weight: 500; }
.better { color: var(--good); } .worse { color: var(--bad); } .unclear { color: var(--soft); }
td small.better { color: var(--good); } td small.worse { color: var(--bad); }
tr.apart > * { border-top: 5px double var(--faint); }
tr.aside { color: var(--soft); }
.bar { display: inline-block; height: 9px; margin-left: 9px; vertical-align: baseline;
  border-radius: 1px; min-width: 1px; }
dl { display: grid; grid-template-columns: max-content 1fr; margin: 14px 0 0; font-size: 15px; }
dt, dd { margin: 0; padding: 8px 0; border-bottom: 1px solid var(--faint); }
dt { color: var(--soft); padding-right: 32px; }
pre { margin: 12px 0 0; padding: 14px 18px; background: var(--wash); border-radius: 4px;
  font: 14px/1.6 var(--mono); white-space: pre-wrap; }
.roses { display: grid; gap: 18px 20px; margin-top: 14px;
  grid-template-columns: repeat(auto-fill, minmax(185px, 1fr)); }
.roses .rose { width: 100%; height: auto; }
svg .tiny { font-size: 9.5px; }
.halves { display: grid; gap: 24px 44px; align-items: center;
  grid-template-columns: minmax(0, 1fr) minmax(0, 1fr); }
.panels.wide { display: block; }
.gallery-seeds { margin: 14px 0 6px; padding: 0; border: 0; display: flex; gap: 16px;
  align-items: center; font-size: 14.5px; }
.gallery-seeds legend { float: left; padding: 0; color: var(--soft); }
.store { position: absolute; width: 0; height: 0; }
.key { display: inline-block; width: 26px; height: 4px; margin: 0 7px 3px 0; border-radius: 1px; }
.key.dashed { margin-left: 12px;
  background: repeating-linear-gradient(90deg, currentColor 0 9px, transparent 9px 13px); }
.case { display: grid; grid-template-columns: 172px minmax(0, 1fr); gap: 22px; padding: 18px 0;
  border-bottom: 1px solid var(--faint); }
.truth svg { width: 100%; }
.truth p { margin: 6px 0 0; font-size: 12.5px; line-height: 1.4; color: var(--soft); }
.truth b { font-size: 22px; color: var(--true); font-variant-numeric: tabular-nums; }
.tiles { display: grid; gap: 14px; align-content: start;
  grid-template-columns: repeat(auto-fit, minmax(128px, 1fr)); }
.tile { min-width: 0; font-size: 13px; line-height: 1.35; }
.tile > svg { width: 100%; }
.tile .who svg { width: 13px; }
.tile figcaption { font-size: 13px; }
.tile.off .words { color: var(--read); }
.tile.near .words { color: var(--soft); }
.tile { max-width: 176px; }
.bins td, .bins thead th { text-align: left; }
.share { display: inline-block; min-width: 3.3em; text-align: right; }
.words { display: block; margin-top: 4px; font-variant-numeric: tabular-nums; }
summary { cursor: pointer; padding: 14px 0; color: var(--soft); }
@media (max-width: 700px) {
  .top, main { padding-left: 18px; padding-right: 18px; }
  .top { padding-top: 32px; }
  h1 { font-size: 31px; } .verdict { font-size: 20px; margin-top: 26px; }
  .dots { display: block; } .dots > div { display: grid; grid-template-columns: 1fr max-content; }
  .dots .plot { grid-column: 1 / -1; grid-row: 2; }
  .dots .told { padding: 0; text-align: right; } .dots .told br { display: none; }
  .dots > div:not(.axis) { margin-top: 8px; }
  .scroll th:first-child, .scroll td:first-child { position: sticky; left: 0; z-index: 1;
    background: var(--paper); padding-right: 10px; }
  .halves { grid-template-columns: minmax(0, 1fr); }
  .roses { grid-template-columns: repeat(auto-fill, minmax(140px, 1fr)); }
  .case { grid-template-columns: minmax(0, 1fr); gap: 12px; }
  .truth { display: flex; gap: 14px; align-items: center; }
  .truth svg { width: 96px; flex: none; }
  .tiles { grid-template-columns: repeat(auto-fill, minmax(100px, 1fr)); }
  dl { display: block; } dt { border: 0; padding: 10px 0 0; } dd { padding-top: 0; }
}
@media print {
  :root { --paper: #fff; --card: #fff; }
  body { font-size: 11pt; } nav { display: none; }
  figure, tr, .dots > div, .case { break-inside: avoid; } h2, h3 { break-after: avoid; }
  .bar, .dots svg { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  .scroll { overflow: visible; }
}
"""
