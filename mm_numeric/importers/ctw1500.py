"""SCUT-CTW1500: polygons of 14 points, in the three ways they were published.

first release   xmin,ymin,xmax,ymax,x1,y1,...,x14,y14       offsets from (xmin, ymin); 1001.txt
training, 2020  <segs>x1,y1,...,x14,y14</segs> and <label>  pixels of the image; 0001.xml
test, 2020      x1,y1,...,x14,y14,####the text              pixels of the image; 0001001.txt

Only the number of numbers and the #### say which it is: 32 without a text are offsets. A text of
``###`` is to be ignored.

Source: https://github.com/Yuliang-Liu/Curve-Text-Detector, data/README.md.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar
from xml.etree import ElementTree

from mm_numeric.importers.icdar import UNREADABLE
from mm_numeric.importers.importer import RefusedError, number
from mm_numeric.importers.text_files import TextFiles, Word

_MARK = ",####"


@dataclass(frozen=True, kw_only=True)
class CTW1500(TextFiles):
    """SCUT-CTW1500: text or XML files with 14 points and, but in the first release, a text."""

    endings: ClassVar[tuple[str, ...]] = (".txt", ".xml")

    def image(self, stem: str) -> str:
        """Return the name of an image without its ending: 1001 of 0001001, 0001 of 0001."""
        if not (stem.isascii() and stem.isdecimal()):
            raise RefusedError("name", f"{stem!r} is not the number of an image.")
        return f"{int(stem):04d}"

    def records(self, text: str, ending: str) -> Iterator[tuple[int, str]]:
        """Yield regions; those of XML as the test set has them, counted instead of their lines."""
        if ending != ".xml":
            yield from super().records(text, ending)
            return
        try:
            boxes = list(ElementTree.fromstring(text).iter("box"))
        except ElementTree.ParseError as error:
            raise RefusedError("xml", f"not XML, or not all of it ({error}).") from error
        for count, box in enumerate(boxes, start=1):
            label = (box.findtext("label") or "").replace("\n", " ")
            yield count, f"{(box.findtext('segs') or '').strip()}{_MARK}{label}"

    def word(self, record: str) -> Word:
        """Read a region."""
        before, mark, text = record.partition(_MARK)
        numbers = [number(part) for part in before.split(",")]
        if mark:
            return Word(numbers, text, text == UNREADABLE)
        if len(numbers) != 32:
            raise RefusedError(
                "numbers",
                "expected 32 numbers, or points and ####text; found "
                f"{len(numbers)} numbers without a text.",
            )
        left, top = numbers[:2]
        offsets = zip(numbers[4::2], numbers[5::2], strict=True)
        points = [(left + x, top + y) for x, y in offsets]
        return Word([coordinate for point in points for coordinate in point], None, False)
