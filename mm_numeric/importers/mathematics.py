"""Import DeepMind's mathematics data set from text files or JSON lines.

In text files, such as interpolate/arithmetic__mixed.txt, each question is followed by its answer:

    What is -4/6*42/(-8)?
    7/2

The folder is the regime (train-easy, train-medium, train-hard, interpolate or extrapolate), and the
file name is the module. In .jsonl files, regime and module are fields of each line:

    {"regime": "interpolate", "module": "arithmetic__mixed", "question": "...", "answer": "7/2"}

Questions whose answer is not a number (letters, times, polynomials, True) are skipped and counted.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from mm_numeric.answers import Number
from mm_numeric.importers.charts import NOT_NUMERIC
from mm_numeric.importers.importer import (
    FileImporter,
    ImportedItem,
    InvalidRowError,
    Option,
    SkippedLine,
    input_files,
    read_texts,
    row_or_error,
    text_field,
)

_CATEGORIES = {"interpolate": "interpolation", "extrapolate": "extrapolation"}


@dataclass(frozen=True, kw_only=True)
class MathematicsImporter(FileImporter):
    """Importer for DeepMind's mathematics data set: one row per question with a numeric answer."""

    endings = (".txt", ".jsonl")

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
                found += input_files([path], self.endings)
                continue
            inside = sorted(p for p in path.rglob("*") if p.suffix in self.endings and p.is_file())
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
        return sorted(chosen, key=lambda path: path.suffix == ".jsonl")

    def _is_selected(self, regime: str, module: str) -> bool:
        pairs = ((self.modules, module), (self.regimes, regime))
        return all(names is None or name in names.split(",") for names, name in pairs)

    def entries(self, path: Path) -> Iterator[tuple[str, str, Any]]:
        """Yield the questions of a file as objects; .txt files get the fields of .jsonl files."""
        if path.suffix == ".jsonl":
            yield from super().entries(path)
            return
        ((_, _, text),) = read_texts([path], self.endings, "utf-8")
        if isinstance(text, InvalidRowError):
            yield str(path), "", text
            return
        regime, module = _regime_and_module(path)
        lines = text.rstrip().split("\n") if text.strip() else []
        for i in range(0, len(lines), 2):
            asked = dict(zip(("question", "answer"), lines[i : i + 2], strict=False))
            entry: Any = {"regime": regime, "module": module, **asked}
            if len(asked) == 1:
                entry = InvalidRowError("lines", "the question has no answer on the next line.")
            yield f"{path}, line {i + 1}", f"{module}.{i // 2 + 1}", entry

    def items(self, where: str, identity: str, entry: Any) -> list[ImportedItem]:
        """Convert a question, unless ``--modules`` or ``--regimes`` exclude it."""
        is_selected = self._is_selected(text_field(entry, "regime"), text_field(entry, "module"))
        return [row_or_error(where, self.row, entry, identity)] if is_selected else []

    def row(self, raw: Mapping[str, Any], identity: str) -> dict[str, Any] | SkippedLine:
        """Convert a question; skip it if its answer is not a number."""
        question, answer = (text_field(raw, name).strip() for name in ("question", "answer"))
        try:
            Number(answer)
        except ValueError:
            return NOT_NUMERIC
        return {
            "id": f"{raw['regime']}.{identity}",
            "question": question,
            "answer": answer,
            "category": _CATEGORIES.get(raw["regime"], raw["regime"]),
            "module": raw["module"],
        }


def _regime_and_module(path: Path) -> tuple[str, str]:
    """Return a file's regime (its folder) and module (its stem, ``arithmetic__mixed``)."""
    return path.resolve().parent.name, path.stem
