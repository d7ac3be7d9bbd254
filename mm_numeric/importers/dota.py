"""Import DOTA: one text file per image, ``labelTxt/P0706.txt`` for ``images/P0706.png``.

    imagesource:GoogleEarth
    gsd:0.255589285596
    1054 1028 1063 1011 1111 1040 1112 1062 ship 1

A line has the four corners of a rotated box, its class, and 1 if the object is difficult, which may
be missing. Difficult objects are marked ``ignore``, as in DOTA's evaluation. Both header lines are
optional. Use the rows with ``task: {name: detection, shape: rotated_box}``.

Source: https://github.com/CAPTAIN-WHU/DOTA_devkit, dota_utils.py and dota_evaluation_task1.py.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from mm_numeric.geometry.row_shapes import DOTA_HEADERS, read_dota_object
from mm_numeric.importers.importer import invalid_as
from mm_numeric.importers.text_files import TextFiles, Word


@dataclass(frozen=True, kw_only=True)
class Dota(TextFiles):
    """Importer for DOTA: lines of four corners, a class and a flag, one row per image."""

    version = 3  # 3: exponents in numbers; 2: difficult objects
    text_field = "label"
    image_ending = ".png"

    def records(self, text: str, ending: str) -> Iterator[tuple[int, str]]:
        """Yield (line number, line) of each object."""
        for line, record in super().records(text, ending):
            if not record.startswith(DOTA_HEADERS):
                yield line, record

    def word(self, record: str) -> Word:
        """Parse an object: ``1054 1028 1063 1011 1111 1040 1112 1062 ship 1``."""
        with invalid_as("numbers"):
            found = read_dota_object(record, "")
        numbers = [coordinate for point in found.shape.points for coordinate in point]
        return Word(numbers, found.label, found.ignore)
