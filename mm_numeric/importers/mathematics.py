"""Import DeepMind's mathematics data set from text files or JSON lines.

In text files, such as interpolate/arithmetic__mixed.txt, each question is followed by its answer:

    What is -4/6*42/(-8)?
    7/2

The folder is the regime (train-easy, train-medium, train-hard, interpolate or extrapolate), and the
file name is the module. In .jsonl files, each line has them as fields:

    {"regime": "interpolate", "module": "arithmetic__mixed", "question": "...", "answer": "7/2"}

Questions whose answer is not a number (letters, times, polynomials, True) are skipped and counted.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from mm_numeric.answers import Number
from mm_numeric.importers.files import input_files, read_texts, rows_from_objects
from mm_numeric.importers.importer import (
    ImportedItem,
    InvalidRowError,
    Option,
    Row,
    SkippedLine,
    parse_text,
)

_ENDINGS = (".txt", ".jsonl")
_CATEGORIES = {"interpolate": "interpolation", "extrapolate": "extrapolation"}


@dataclass(frozen=True, kw_only=True)
class MathematicsImporter:
    """Importer for DeepMind's mathematics data set: one row per question with a numeric answer."""

    version: ClassVar[int] = 1

    modules: Annotated[
        str | None,
        Option("modules, such as arithmetic__mul,arithmetic__mixed (default: all)", name="NAMES"),
    ] = None
    regimes: Annotated[
        str | None,
        Option("regimes (folder or field), such as interpolate (default: all)", name="NAMES"),
    ] = None

    def files(self, inputs: Sequence[Path]) -> list[Path]:
        """Return the files to read; folders are searched recursively."""
        found: list[Path] = []
        for path in inputs:
            if not path.is_dir():
                found += input_files([path], _ENDINGS)
                continue
            inside = sorted(p for p in path.rglob("*") if p.suffix in _ENDINGS and p.is_file())
            if not inside:
                raise ValueError(f"{path}: no .txt or .jsonl files in this folder.")
            found += inside
        chosen = [
            p for p in found if p.suffix == ".jsonl" or self._is_selected(*_regime_and_module(p))
        ]
        if not chosen:
            raise ValueError(
                f"{inputs[0]}: no file has modules {self.modules or 'any'} and regimes "
                f"{self.regimes or 'any'}; files must be named REGIME/MODULE.txt."
            )
        return chosen

    def rows(self, files: Sequence[Path]) -> Iterator[ImportedItem]:
        """Yield one row per question with a numeric answer."""
        texts = [path for path in files if path.suffix == ".txt"]
        for path, (_, _, text) in zip(texts, read_texts(texts, _ENDINGS, "utf-8"), strict=True):
            if isinstance(text, InvalidRowError):
                yield text.at(str(path))
            else:
                yield from self._pairs(path, text)
        yield from rows_from_objects([p for p in files if p.suffix == ".jsonl"], self._object)

    def _is_selected(self, regime: str, module: str) -> bool:
        pairs = ((self.modules, module), (self.regimes, regime))
        return all(names is None or name in names.split(",") for names, name in pairs)

    def _pairs(self, path: Path, text: str) -> Iterator[ImportedItem]:
        """Yield a row for each question of a text file; the answer is on the line after it."""
        lines = text.split("\n")
        while lines and not lines[-1].strip():
            del lines[-1]
        regime, module = _regime_and_module(path)
        for i in range(0, len(lines), 2):
            where = f"{path}, line {i + 1}"
            try:
                if i + 1 == len(lines):
                    raise InvalidRowError("lines", "the question has no answer on the next line.")
                yield _row(where, f"{path.stem}.{i // 2 + 1}", regime, module, *lines[i : i + 2])
            except InvalidRowError as error:
                yield error.at(where)

    def _object(self, where: str, identity: str, raw: Mapping[str, Any]) -> Iterator[ImportedItem]:
        """Yield the row of a question, unless ``--modules`` or ``--regimes`` exclude it."""
        regime, module = (parse_text(raw.get(name), name) for name in ("regime", "module"))
        if self._is_selected(regime, module):
            yield _row(where, identity, regime, module, raw.get("question"), raw.get("answer"))


def _regime_and_module(path: Path) -> tuple[str, str]:
    """Return a file's folder and stem, such as ``interpolate`` and ``arithmetic__mixed``."""
    return path.resolve().parent.name, path.stem


def _row(
    where: str, identity: str, regime: str, module: str, question: Any, answer: Any
) -> ImportedItem:
    """Return the row of a question, or a ``SkippedLine`` if the answer is not a number."""
    question = parse_text(question, "question").strip()
    answer = parse_text(answer, "answer").strip()
    try:
        Number(answer)
    except ValueError:
        return SkippedLine("questions without a numeric answer")
    category = _CATEGORIES.get(regime, regime)
    fields = {"id": f"{regime}.{identity}", "question": question, "answer": answer}
    return Row(where, {**fields, "category": category, "module": module})
