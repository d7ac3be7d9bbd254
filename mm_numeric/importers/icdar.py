"""Import ICDAR scene text (focused 2013, incidental 2015): ``gt_img_1.txt`` for ``img_1.jpg``.

2015    377,117,463,117,465,130,378,130,Genaxis Theatre     a quadrilateral; text ### means ignore
2013    38, 43, 920, 215, "Tiredness"                       left, top, right, bottom (test)
        158 128 411 181 "Footpath"                          the same (training)

Source: https://rrc.cvc.uab.es, challenges 2 and 4, task 1.
"""

import re
from dataclasses import dataclass

from mm_numeric.importers.importer import InvalidRowError, parse_number
from mm_numeric.importers.text_files import TextFiles, Word, leading_numbers

UNREADABLE = "###"


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
        return Word([parse_number(part) for part in parts[:8]], text, text == UNREADABLE)


@dataclass(frozen=True, kw_only=True)
class Icdar2013(TextFiles):
    """Importer for ICDAR 2013: lines of four numbers and a quoted text, one row per image."""

    def word(self, record: str) -> Word:
        """Parse a text region: ``38, 43, 920, 215, "Tiredness"``, also without the commas."""
        # Quotes are required: otherwise a line of ICDAR 2015 would parse as a box and a text.
        before, quote, quoted = record.strip().partition('"')
        parts = re.split(r"[,\s]+", before.strip().rstrip(",").rstrip())
        count = leading_numbers(parts)
        if count != 4 or len(parts) != 4:
            raise InvalidRowError(
                "numbers",
                'expected four numbers and a transcription in "quotes", found '
                f"{count} numbers" + (f" and {parts[count]!r:.40}." if count < len(parts) else "."),
            )
        if quote and not quoted.endswith('"'):
            raise InvalidRowError("text", "the transcription has no closing quote.")
        text = quoted[:-1] if quote else None
        return Word([parse_number(part) for part in parts], text, text == UNREADABLE, is_box=True)
