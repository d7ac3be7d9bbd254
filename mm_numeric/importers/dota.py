"""Import DOTA: one text file per image, ``labelTxt/P0706.txt`` for ``images/P0706.png``.

    imagesource:GoogleEarth
    gsd:0.255589285596
    1054 1028 1063 1011 1111 1040 1112 1062 ship 1

A line has the four corners of a rotated box, its class, and optionally a flag, which is 1 if the
object is difficult. Difficult objects are marked ``ignore``, as in DOTA's evaluation. Both header
lines are optional. Use the rows with ``task: {name: detection, shape: rotated_box}``.

Source: https://github.com/CAPTAIN-WHU/DOTA_devkit, dota_utils.py and dota_evaluation_task1.py.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from mm_numeric.importers.importer import InvalidRowError, parse_number
from mm_numeric.importers.text_files import TextFiles, Word

_HEADERS = ("imagesource:", "gsd:")


@dataclass(frozen=True, kw_only=True)
class Dota(TextFiles):
    """Importer for DOTA: lines of four corners, a class and a flag, one row per image."""

    version = 3  # 3: numbers may have exponents; 2: difficult objects are ignored
    text_field = "label"
    image_ending = ".png"

    def records(self, text: str, ending: str) -> Iterator[tuple[int, str]]:
        """Yield (line number, line) of each object."""
        for line, record in super().records(text, ending):
            if not record.startswith(_HEADERS):
                yield line, record

    def word(self, record: str) -> Word:
        """Parse an object: ``1054 1028 1063 1011 1111 1040 1112 1062 ship 1``."""
        fields = record.split()
        if len(fields) not in (9, 10):
            raise InvalidRowError(
                "numbers",
                f"{len(fields)} fields, but an object of DOTA has eight numbers, a class and "
                f"possibly 0 or 1 (difficult): {record.strip()!r:.60}.",
            )
        numbers = [parse_number(text, exponent=True) for text in (*fields[:8], *fields[9:])]
        return Word(numbers[:8], fields[8], any(numbers[8:]))
