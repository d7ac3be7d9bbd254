"""Import Total-Text: one text file per image, such as ``poly_gt_img1.txt`` for ``img1``.

    x: [[206 251 386 542]], y: [[ 633  811  931  946]], ornt: [u'c'], transcriptions: [u'the']

Arrays are printed by numpy: numbers are separated by spaces, and long arrays span several lines.
Files with y before x, or with commas, are read too. A region whose transcription or orientation is
``#`` is marked ``ignore``. The authors of the data set converted the files from .mat.

Source: https://github.com/cs-chan/Total-Text-Dataset, Groundtruth/Text, txt_format.zip.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from mm_numeric.importers.importer import InvalidRowError, parse_number
from mm_numeric.importers.text_files import TextFiles, Word

_BEGIN = re.compile(r"\s*[xy]\s*:")
_ARRAY = r"\[\[(?P<{}>[^\]]*)\]\]\s*,\s*"
_RECORD = re.compile(
    rf"\s*(?P<first>[xy])\s*:\s*{_ARRAY.format('a')}(?P<second>[xy])\s*:\s*{_ARRAY.format('b')}"
    r"ornt\s*:\s*(?P<orientation>\[[^\]]*\])\s*,\s*transcriptions\s*:\s*(?P<text>\[.*\])\s*",
    re.DOTALL,
)
UNREADABLE = "#"


@dataclass(frozen=True, kw_only=True)
class TotalText(TextFiles):
    """Importer for Total-Text: text files with polygons and transcriptions, one row per image."""

    def image(self, stem: str) -> str:
        """Convert the stem of a text file, ``poly_gt_img1``, to the stem of its image, ``img1``."""
        return stem.removeprefix("poly_").removeprefix("gt_")

    def records(self, text: str, ending: str) -> Iterator[tuple[int, str]]:
        """Split a file into regions of one or more lines; yield (line number, text) of each."""
        first_line, lines = 1, list[str]()
        for number_, line in enumerate(text.split("\n"), start=1):
            if _BEGIN.match(line) and lines:
                yield first_line, "\n".join(lines)
                lines = []
            if line.strip():
                first_line = first_line if lines else number_
                lines.append(line)
        if lines:
            yield first_line, "\n".join(lines)

    def word(self, record: str) -> Word:
        """Parse a region: ``x: [[...]], y: [[...]], ornt: [u'c'], transcriptions: [u'the']``."""
        match = _RECORD.fullmatch(record)
        if not match or match["first"] == match["second"]:
            raise InvalidRowError(
                "record",
                "expected x: [[...]], y: [[...]], ornt: [...], transcriptions: [...], found "
                f"{record.strip()!r:.60}.",
            )
        axes = {match["first"]: _array(match["a"]), match["second"]: _array(match["b"])}
        if len(axes["x"]) != len(axes["y"]):
            why = f"{len(axes['x'])} x and {len(axes['y'])} y coordinates do not form points."
            raise InvalidRowError("numbers", why)
        text, orientation = _string(match["text"]), _string(match["orientation"])
        ignore = UNREADABLE in (text, orientation) or text is None
        points = zip(axes["x"], axes["y"], strict=True)
        return Word([coordinate for point in points for coordinate in point], text, ignore)


def _array(text: str) -> list[float]:
    return [parse_number(part) for part in text.replace(",", " ").split()]


def _string(text: str) -> str | None:
    """Parse a printed list of one string: ``[u'the']`` returns ``the``, and ``[]`` returns None."""
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        found = [None]
    if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
        raise InvalidRowError("text", f"{text!r:.60} is not a list with one text, as [u'the'].")
    if len(found) > 1:
        raise InvalidRowError("text", f"{text!r:.60} contains {len(found)} texts, not one.")
    return found[0] if found else None
