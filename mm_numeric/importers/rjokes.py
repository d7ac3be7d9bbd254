"""Import rJokes (Weller and Seppi, LREC 2020): jokes with a score from 0 to 11.

The score is the logarithm of the number of votes for a joke. Files:

    data/train.tsv, dev.tsv, test.tsv, optionally .gz; each line has a score, a tab and a joke

Tabs and backslashes in a joke are escaped with a backslash, as in the authors' script.
"""

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mm_numeric.importers.importer import (
    FileImporter,
    InvalidRowError,
    numbered_lines,
    parse_text,
    shorten,
)
from mm_numeric.io.files import read_gzip
from mm_numeric.numbers.numerals import whole_number
from mm_numeric.tasks.number_questions import RJokes


@dataclass(frozen=True, kw_only=True)
class RJokesImporter(FileImporter):
    """Importer for rJokes: jokes and their scores, one row per line of the file."""

    endings = (".tsv", ".gz")

    def entries(self, path: Path) -> Iterator[tuple[str, str, str]]:
        """Yield the lines of a file."""
        try:
            raw = read_gzip(path) if path.suffix == ".gz" else path.read_bytes()
            text = raw.decode("utf-8-sig")
        except (UnicodeDecodeError, EOFError, OSError, zlib.error) as error:
            raise ValueError(f"{path}: cannot be read ({error}).") from error
        for where, number, line in numbered_lines(path, text):
            yield where, f"{path.name.partition('.')[0]}-{number}", line

    def row(self, line: str, identity: str) -> dict[str, Any]:
        """Convert a line: the score, a tab and the joke."""
        score, tab, joke = line.partition("\t")
        if not tab:
            why = f"expected a score, a tab and a joke, found {shorten(line)}."
            raise InvalidRowError("line", why)
        points = whole_number(score)
        if points is None or points > RJokes.highest:
            why = f"the score must be 0 to {RJokes.highest}, not {shorten(score)}."
            raise InvalidRowError("score", why)
        question = parse_text(re.sub(r"\\(.)", r"\1", joke), "the joke").strip()
        return {"id": identity, "question": question, "answer": points}
