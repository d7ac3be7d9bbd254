"""Import SCUT-CTW1500: text regions as polygons of 14 points, published in three formats.

1001.txt (first release)   xmin,ymin,xmax,ymax,x1,y1,...,x14,y14
0001.xml (training, 2020)  <segs>x1,y1,...,x14,y14</segs> and <label>
0001001.txt (test, 2020)   x1,y1,...,x14,y14,####transcription

Points are pixels of the image, except in the first release, where they are offsets from (xmin,
ymin). The importer detects the format. A line without #### belongs to the first release and must
have 32 numbers. Regions with the transcription ``###`` are marked ``ignore``.

Source: https://github.com/Yuliang-Liu/Curve-Text-Detector, data/README.md.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from mm_numeric.importers.icdar import UNREADABLE
from mm_numeric.importers.importer import InvalidRowError, parse_number
from mm_numeric.importers.text_files import TextFiles, Word
from mm_numeric.io.files import parse_xml
from mm_numeric.numbers.numerals import whole_number

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

        In an XML file, each region is converted to ``x1,y1,...,x14,y14,####transcription``. The
        regions are numbered from 1.
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
            return Word(numbers, text, text == UNREADABLE)
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
