"""Import scene text: ICDAR 2015, SCUT-CTW1500 and Total-Text, one text file per image.

ICDAR 2015: ``gt_img_1.txt`` for ``img_1.jpg``, with a quadrilateral in each line.

    377,117,463,117,465,130,378,130,Genaxis Theatre

SCUT-CTW1500: polygons of 14 points, published in three formats, which the importer detects. Points
are in pixels of the image; in the first release, they are relative to (xmin, ymin). A line without
#### belongs to the first release and must have 32 numbers.

    1001.txt (first release)   xmin,ymin,xmax,ymax,x1,y1,...,x14,y14
    0001.xml (training, 2020)  <segs>x1,y1,...,x14,y14</segs> and <label>
    0001001.txt (test, 2020)   x1,y1,...,x14,y14,####transcription

Total-Text: ``poly_gt_img1.txt`` for ``img1``. Arrays are printed by numpy: numbers are separated by
spaces, and long arrays span several lines. Files with y before x, or with commas, are also
accepted.

    x: [[206 251 386 542]], y: [[ 633  811  931  946]], ornt: [u'c'], transcriptions: [u'the']

Regions with the transcription ``###`` (ICDAR, CTW1500), or the transcription or orientation ``#``
(Total-Text), are marked ``ignore``.

Sources: https://rrc.cvc.uab.es, challenge 4, task 1;
https://github.com/Yuliang-Liu/Curve-Text-Detector, data/README.md;
https://github.com/cs-chan/Total-Text-Dataset, Groundtruth/Text, txt_format.zip.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from mm_numeric.importers.importer import (
    InvalidRowError,
    of_shape,
    parse_number,
    parse_polygon,
)
from mm_numeric.importers.text_files import TextFiles, Word, leading_numbers
from mm_numeric.io.files import parse_xml
from mm_numeric.numbers.numerals import whole_number

_UNREADABLE = "###"


@dataclass(frozen=True, kw_only=True)
class Icdar2015(TextFiles):
    """Importer for ICDAR 2015: lines of eight numbers and a transcription, one row per image."""

    def word(self, record: str) -> Word:
        """Parse a text region: ``377,117,463,117,465,130,378,130,Genaxis Theatre``."""
        parts = record.split(",", 8)
        count = leading_numbers(parts[:8])
        if count < 8:
            raise InvalidRowError(
                "numbers", f"expected eight numbers and a transcription, found {count} numbers."
            )
        text = parts[8] if len(parts) > 8 else None
        return Word([parse_number(part) for part in parts[:8]], text, text == _UNREADABLE)


_MARK = ",####"


@dataclass(frozen=True, kw_only=True)
class CTW1500(TextFiles):
    """Importer for SCUT-CTW1500: text or XML files with 14-point polygons, one row per image."""

    endings = (".txt", ".xml")

    def image(self, stem: str) -> str:
        """Convert the stem of a text file, ``0001001``, to the stem of its image, ``1001``."""
        number = whole_number(stem)
        if number is None:
            raise InvalidRowError("name", f"{stem!r:.60} is not the number of an image.")
        return f"{number:04d}"

    def records(self, text: str, ending: str) -> Iterator[tuple[int, str]]:
        """Yield (line number, line) of an annotation file, which has one text region per line.

        Each region of an XML file is converted to ``x1,y1,...,x14,y14,####transcription``, and gets
        a number from 1 instead of a line number.
        """
        if ending != ".xml":
            yield from super().records(text, ending)
            return
        try:
            boxes = list(parse_xml(text).iter("box"))
        except ValueError as error:
            raise InvalidRowError("xml", f"{error}.") from error
        for count, box in enumerate(boxes, start=1):
            label = (box.findtext("label") or "").replace("\n", " ")
            yield count, f"{(box.findtext('segs') or '').strip()}{_MARK}{label}"

    def word(self, record: str) -> Word:
        """Parse a text region from its line, such as ``x1,y1,...,x14,y14,####transcription``."""
        before, mark, text = record.partition(_MARK)
        numbers = [parse_number(part) for part in before.split(",")]
        if mark:
            return Word(numbers, text, text == _UNREADABLE)
        if len(numbers) != 32:
            raise InvalidRowError(
                "numbers",
                "expected 32 numbers, or points and ####transcription; found "
                f"{len(numbers)} numbers without a transcription.",
            )
        left, top = numbers[:2]
        offsets = zip(numbers[4::2], numbers[5::2], strict=True)
        points = [(left + x, top + y) for x, y in offsets]
        return Word([coordinate for point in points for coordinate in point], None, False)


_BEGIN = re.compile(r"\s*[xy]\s*:")
_ARRAY = r"\[\[(?P<{}>[^\]]*)\]\]\s*,\s*"
_RECORD = re.compile(
    rf"\s*(?P<first>[xy])\s*:\s*{_ARRAY.format('a')}(?P<second>[xy])\s*:\s*{_ARRAY.format('b')}"
    r"ornt\s*:\s*(?P<orientation>\[[^\]]*\])\s*,\s*transcriptions\s*:\s*(?P<text>\[.*\])\s*",
    re.DOTALL,
)
_UNREADABLE_OF_TOTAL_TEXT = "#"


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
        points = zip(axes["x"], axes["y"], strict=True)
        numbers = [coordinate for point in points for coordinate in point]
        with of_shape({"polygon": parse_polygon(numbers)}):
            text, orientation = _string(match["text"]), _string(match["orientation"])
        ignore = _UNREADABLE_OF_TOTAL_TEXT in (text, orientation) or text is None
        return Word(numbers, text, ignore)


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
