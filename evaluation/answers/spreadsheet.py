"""Read the first sheet of an .xlsx file (Excel) as rows, without a package for spreadsheets.

An .xlsx file is a zip of XML files (ECMA-376). The workbook lists the sheets, and a sheet has rows
of cells. Texts that occur in several cells may be stored once, in a table of shared strings.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

from mm_numeric.io.files import parse_xml, zipped_files

LONGEST_CELL = 32_767
"""Maximum number of characters in a cell. Longer texts are truncated when a file is written."""

_MAIN = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
_RELATION_ID = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}id"
_WORKBOOK = "xl/workbook.xml"
_RELATIONS = "xl/_rels/workbook.xml.rels"
_SHARED = "xl/sharedStrings.xml"
_ESCAPED = re.compile("_x([0-9A-Fa-f]{4})_")


def read_sheet(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (location, fields) for each row of the first sheet of an .xlsx file.

    The first row has the names of the fields. All values are text, as in a CSV file; an empty cell
    becomes "". The location, such as ``a.xlsx, row 2``, is for error messages.
    """
    files = dict(zipped_files(path, (".xml", ".rels")))
    try:
        sheet, shared = _first_sheet(files)
    except (KeyError, StopIteration, ValueError) as error:
        raise ValueError(f"{path}: not a spreadsheet that can be read ({error}).") from error
    names: dict[str, str] = {}
    for number, row in enumerate(sheet.iter(f"{_MAIN}row"), start=1):
        where = f"{path}, row {row.get('r', number)}"
        cells = _cells(row, shared, where)
        if not names:
            names = {column: name for column, name in cells.items() if name}
        elif any(cells.values()):
            yield where, {name: cells.get(column, "") for column, name in names.items()}


def _first_sheet(files: Mapping[str, bytes]) -> tuple[Element, list[str]]:
    first = next(_xml(files, _WORKBOOK).iter(f"{_MAIN}sheet")).attrib[_RELATION_ID]
    targets = {found.get("Id"): found.get("Target", "") for found in _xml(files, _RELATIONS)}
    name = targets[first]
    sheet = _xml(files, name.lstrip("/") if name.startswith("/") else f"xl/{name}")
    if _SHARED not in files:
        return sheet, []
    return sheet, [_text(item) for item in _xml(files, _SHARED).iter(f"{_MAIN}si")]


def _xml(files: Mapping[str, bytes], name: str) -> Element:
    try:
        return parse_xml(files[name])
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def _cells(row: Element, shared: list[str], where: str) -> dict[str, str]:
    """Return the texts of the cells of a row as column -> text, such as ``{"A": "1"}``."""
    found = {}
    for number, cell in enumerate(row.iter(f"{_MAIN}c")):
        column = re.sub("[0-9]+", "", cell.get("r", "")) or str(number)
        kind, value = cell.get("t", "n"), cell.findtext(f"{_MAIN}v", "")
        if kind == "inlineStr":
            value = _text(cell)
        elif kind == "s":
            try:
                value = shared[int(value)]
            except (ValueError, IndexError) as error:
                raise ValueError(f"{where}: the file is damaged ({error}).") from error
        elif kind == "n":
            value = value.removesuffix(".0")
        formula = cell.find(f"{_MAIN}f")
        if formula is not None and formula.text and value in ("", "0"):
            # XlsxWriter and openpyxl write an answer such as "=5" as a formula, with the result 0
            # or no result, because Excel calculates it when it opens the file.
            is_array = formula.get("t") == "array"
            value = f"{{={formula.text}}}" if is_array else f"={formula.text}"
        found[column] = value
    return found


def _text(item: Element) -> str:
    """Return the text of a cell without formatting and phonetic hints."""
    runs = [item, *item.findall(f"{_MAIN}r"), *item.findall(f"{_MAIN}is")]
    runs += item.findall(f"{_MAIN}is/{_MAIN}r")
    texts = (text.text or "" for run in runs for text in run.findall(f"{_MAIN}t"))
    # Characters that XML does not allow are escaped, such as _x000D_.
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), "".join(texts))
