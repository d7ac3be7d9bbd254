"""Task: read every word in an image, with its outline and its text.

Example  {"id": "1", "image": "1.png", "instances": [{"box": [20, 30, 120, 60], "text": "EXIT"}]}
Prompt   Read every word, and locate it.
Text     [{"bbox_2d": [20, 30, 120, 60], "text_content": "EXIT"}]

Rows     as for text_detection; each instance has "text", its transcription, or "ignore": true. A
         word with an empty text is also ignored, because ICDAR's script cannot compare it
Answer   all words without "ignore": true, sorted by the option ``order``, in the coordinate format
         of the model family. Qwen2.5-VL and Qwen3-VL write JSON with "text_content". Florence-2
         writes a word's text before its four corners, PaliGemma after its box. Formats that do not
         enclose labels in marks, such as ``brackets``, are replaced by the JSON of Qwen
Scorer   mm_numeric.evaluation.metrics.text_spotting
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from mm_numeric.answers import Example, Instance, Instances, Polygon, Unreadable, Written
from mm_numeric.geometry.frames import Frame
from mm_numeric.geometry.row_shapes import corners
from mm_numeric.tasks.base import Rows, frame_of_image, image_example
from mm_numeric.tasks.text_detection import TextDetection


@dataclass(frozen=True, kw_only=True)
class TextSpotting(TextDetection):
    """Task: read the words in an image, and outline them."""

    version: ClassVar[int] = 2  # 2: the parser accepts other coordinate formats
    labels: ClassVar[bool] = True
    # No operation that moves words is allowed: it may clip a word, and change its text.
    augmentations: ClassVar[tuple[str, ...]] = ()
    reads_by: ClassVar[tuple[str, ...]] = ("lexicon",)
    scorer = "mm_numeric.evaluation.metrics.text_spotting:TEXT_SPOTTING"

    prompt: str = "Read every word, and locate it."
    """Prompt of all images."""

    lexicon: str | None = None
    """Path of a text file with one word per line, such as the weak or the generic lexicon of ICDAR
    2015. Each generated word is replaced by the most similar word of the file; if several words are
    equally similar, by the first. A generated word that differs from all words of the file by more
    than one character is left out, except in detection metrics. Letter case is ignored. null:
    answers are scored unchanged."""

    def examples(self, rows: Rows, *, training: bool) -> Iterator[Example]:
        """Yield one example per row."""
        for where, row in rows:
            items = tuple(self.read_shapes(_transcribed(row, where), where))
            yield image_example(row, where, prompt=self.prompt, answer=Instances(items))

    def format(self, answer: Instances, frame: Frame | None = None) -> Written:
        """Format the words as text, without ignored words."""
        if (count := self.text_frame(frame_of_image(frame)).coordinates.text.points) is not None:
            items = tuple(replace(i, shape=_outline(i, count)) for i in answer.items)
            answer = replace(answer, items=items)
        return super().format(answer, frame)

    def parse(self, text: str, frame: Frame | None = None) -> Instances | Unreadable:
        """Parse all words in a generated text, and replace them by words of the lexicon."""
        found = super().parse(text, frame)
        if self.lexicon is None or isinstance(found, Unreadable):
            return found
        known = _read_lexicon(self.lexicon)
        return replace(found, items=tuple(map(known.corrected, found.items)))

    def text_frame(self, frame: Frame) -> Frame:
        """Return the frame in the coordinate format of words with their texts."""
        return replace(frame, coordinates=frame.coordinates.of_words)


def _outline(item: Instance, count: int) -> Polygon:
    """Return a word's shape as a polygon; raise ValueError unless it has ``count`` points."""
    points = corners(item.shape)
    if len(points) != count and not item.ignore:
        raise ValueError(
            f"the word {item.label!r} has {len(points)} points, and the model family writes words "
            f"of {count}; set task.shape to box"
        )
    return Polygon(points)


def _transcribed(row: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    instances = row.get("instances")
    if not isinstance(instances, list):
        return row
    read = (_word(item, f"{where}, instances.{i}") for i, item in enumerate(instances))
    return {**row, "instances": list(read)}


def _word(item: Any, where: str) -> Any:
    if not isinstance(item, Mapping) or item.get("ignore") is True:
        return {**item, "label": None} if isinstance(item, Mapping) else item
    text = item.get("text")
    if not isinstance(text, str):
        raise ValueError(
            f'{where}: no text; each word needs "text", or "ignore": true, or set `task: '
            "text_detection` for words without transcriptions."
        )
    text = " ".join(text.split())
    return {**item, "label": text, "ignore": not text}


class _Lexicon:
    """The words of a file, and a search for words that differ by at most one character."""

    def __init__(self, words: Sequence[str]) -> None:
        self._words = words
        # Of several words that differ only in case, the first is kept.
        self._places = {word.upper(): place for place, word in reversed([*enumerate(words)])}
        self._characters = {character for word in self._places for character in word}

    def corrected(self, item: Instance) -> Instance:
        """Return a word as spelled in the lexicon, or with ``ignore`` if the lexicon lacks it."""
        word = item.label.upper()
        near = [word] if word in self._places else self._changed(word)
        place = min((self._places[text] for text in near if text in self._places), default=None)
        if place is None:
            return replace(item, ignore=True)
        return replace(item, label=self._words[place])

    def _changed(self, word: str) -> Iterator[str]:
        for i in range(len(word) + 1):
            before, after = word[:i], word[i:]
            yield before + after[1:]
            for character in self._characters:
                yield before + character + after
                yield before + character + after[1:]


@cache
def _read_lexicon(path: str) -> _Lexicon:
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"task.lexicon: {path} cannot be read ({error}).") from error
    return _Lexicon([line.strip() for line in lines if line.strip()])
