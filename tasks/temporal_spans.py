"""Task: find when a described event happens in a video, as spans of seconds.

Example  {"id": "1", "frames": ["0.png", "1.png"], "seconds": [0.0, 1.0], "query": "a dog barks",
         "spans": [[0.0, 1.0]]}
Prompt   <0.0 seconds><image><1.0 seconds><image>When does this happen in the video: a dog barks?
         Answer with the start and the end in seconds.
Text     0.0 - 1.0 seconds

Rows     {"id": text, "frames": [path, ...], "seconds": [0.0, 0.5, ...], "query": text,
         "spans": [[24.3, 30.4], ...]}; "seconds" has the time of each frame. "fps" (frames per
         second, such as 2) may replace "seconds"; the first frame is then at 0. Video files are not
         decoded; ``prepare --videos`` extracts their frames
Prompt   each frame after its time, ``<24.5 seconds>``, then the question
Answer   ``24.3 - 30.4 seconds``; further spans before the unit: ``1.0 - 2.5, 24.3 - 30.4 seconds``.
         A span may have a score only in JSON, as in QVHighlights: ``[[24.3, 30.4, 0.9]]``
Scorer   mm_numeric.evaluation.metrics.temporal_spans

The model needs a family that accepts several images: qwen2_vl, qwen2_5_vl, qwen3_vl or chat.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from mm_numeric.answers import IMAGE, Example, TimeSpans, Unreadable, Written
from mm_numeric.geometry.frames import Frame
from mm_numeric.geometry.row_shapes import finite_numbers, is_text
from mm_numeric.numbers.numerals import NUMBER_FORMATS, plain_numbers
from mm_numeric.tasks.base import BaseTask, Rows, check_choice
from mm_numeric.tasks.number_questions import with_numerals

_TIME = r"(?:[0-9]{1,3}:){0,2}[0-9]{1,6}(?:\.[0-9]{1,20})?"
_END = r"(?![0-9:]|\.[0-9])"  # the number ends here
_UNIT = r"(?:[ ]?(?:s|secs?|seconds?)\b)?"
_SPAN = re.compile(
    rf"(?<![0-9.:])({_TIME}){_UNIT}[ ]{{0,4}}(?:-|–|—|to|and|until)[ ]{{0,4}}({_TIME}){_END}",
    re.IGNORECASE,
)
_COMMA = r"\s{0,8},\s{0,8}"
_SCORE = r"(-?[0-9]{1,20}(?:\.[0-9]{1,20})?(?:[eE][-+]?[0-9]{1,3})?)"
_JSON_SPAN = re.compile(
    rf'"start(?:_time)?"\s{{0,8}}:\s{{0,8}}"?({_TIME})"?{_COMMA}'
    rf'"end(?:_time)?"\s{{0,8}}:\s{{0,8}}"?({_TIME}){_END}'
    rf'(?:"?{_COMMA}"score"\s{{0,8}}:\s{{0,8}}{_SCORE})?'
)
_JSON_LIST = re.compile(rf"\[\s{{0,8}}({_TIME}){_COMMA}({_TIME})(?:{_COMMA}{_SCORE})?\s{{0,8}}\]")
_LIST_OF_LISTS = re.compile(r"\[\s{0,8}(?=\[)")
_CUT = re.compile("[0-9],\0|\0,[0-9]")  # \0 stands for a span
_ONE_TIME = re.compile(rf"(?<![0-9.:]){_TIME}{_END}")


@dataclass(frozen=True, kw_only=True)
class FindSpans(BaseTask):
    """Task: find the spans of a video in which a described event happens."""

    version: ClassVar[int] = 4
    reads_by: ClassVar[tuple[str, ...]] = ("number_format",)
    report_sections: ClassVar[tuple[str, ...]] = ("spans",)
    augmentations: ClassVar[tuple[str, ...]] = ("flip",)

    prompt: str = (
        "When does this happen in the video: {query}? Answer with the start and the end in seconds."
    )
    """Question after the frames; ``{query}`` is replaced by the event that the row describes."""

    max_frames: int = 16
    """Largest number of frames that the model sees. From a row with more frames, this number is
    selected, at equal distances from the first to the last frame."""

    decimals: int = 1
    """Number of decimals of the seconds in an answer."""

    number_format: str = NUMBER_FORMATS[0]
    """Format of numbers in generated texts, shown by 1234.5: ``1,234.5``, ``1.234,5``, ``1 234,5``
    or ``1 234.5``. The thousands separator is optional. Rows, training answers and JSON always have
    a decimal point and no thousands separator."""

    def __post_init__(self) -> None:
        if "{query}" not in self.prompt or IMAGE in self.prompt:
            raise ValueError(f"prompt needs {{query}} in it, not {self.prompt!r:.60}")
        if self.max_frames < 1 or not 0 <= self.decimals <= 3:
            raise ValueError(
                "max_frames is at least 1 and decimals 0 to 3, not "
                f"{self.max_frames} and {self.decimals}"
            )
        check_choice("number_format", self.number_format, NUMBER_FORMATS)

    def examples(self, rows: Rows, *, training: bool) -> Iterator[Example]:
        """Yield one example per row, with its frames as images."""
        for where, row in rows:
            if row.get("id") in (None, ""):
                raise ValueError(f'{where}: no id; each row needs an "id" of its own.')
            if not is_text(row.get("query")):
                raise ValueError(f'{where}: no query; each row needs "query" (a text).')
            frames = _frames(row, where)
            shown = [frames[i] for i in evenly(len(frames), self.max_frames)]
            times = "".join(f"<{seconds:.1f} seconds>{IMAGE}" for _, seconds in shown)
            first, *others = (Path(name) for name, _ in shown)
            yield Example(
                id=str(row["id"]),
                image=first,
                more_images=tuple(others),
                prompt=times + self.prompt.replace("{query}", row["query"].rstrip(". ")),
                answer=read_spans(row.get("spans"), f"{where}, spans"),
                where=where,
            )

    def format(self, answer: TimeSpans, frame: Frame | None = None) -> Written:
        """Return spans as text, such as ``24.3 - 30.4 seconds``, with their numbers' positions."""
        spans = [f"{a:.{self.decimals}f} - {b:.{self.decimals}f}" for a, b in answer.spans]
        return with_numerals(f"{', '.join(spans)} seconds")

    def parse(self, text: str, frame: Frame | None = None) -> TimeSpans | Unreadable:
        """Return the spans in a generated text, in the order of the text.

        Spans are ``24.3 - 30.4``, ``from 24.3 to 30.4 seconds``, ``24.3s - 30.4s``, ``0:24.3 -
        0:30.4`` (minutes and seconds), JSON objects with ``start``, ``end`` and optionally
        ``score``, or a JSON list such as ``[[24.3, 30.4]]`` or, with scores, ``[[24.3, 30.4,
        0.9]]``. If the text has no span but exactly two times, return ``Unreadable`` with the span
        between them as ``lenient``.
        """
        if not text.strip():
            return Unreadable("empty answer")
        prose = plain_numbers(text, self.number_format)
        if self.number_format == NUMBER_FORMATS[0] and _SPAN.search(text) and not _is_cut(text):
            prose = text  # the comma in 1 - 2,100 - 200 is between two spans
        written = [(*span, "") for span in _SPAN.findall(prose)]
        lists = _LIST_OF_LISTS.search(text)
        listed = _JSON_LIST.findall(text, lists.end()) if lists else []
        if found := _JSON_SPAN.findall(text) or written or listed:
            if found is written and _is_cut(prose):
                return Unreadable("a comma inside a number; see the option number_format")
            scores = [float(score) for *_, score in found if score]
            return TimeSpans(
                tuple((_seconds(start), _seconds(end)) for start, end, _ in found),
                tuple(scores) if len(scores) == len(found) else (),
            )
        times = [_seconds(time) for time in _ONE_TIME.findall(prose)]
        lenient = TimeSpans(((times[0], times[1]),)) if len(times) == 2 else None
        return Unreadable("no span as START - END", lenient)

    def grammar(self, frame: Frame | None = None) -> str:
        """Return a regular expression of spans: ``24.3 - 30.4 seconds``."""
        decimals = rf"\.[0-9]{{{self.decimals}}}" if self.decimals else ""
        number = rf"(?:0|[1-9][0-9]{{0,4}}){decimals}"
        span = f"{number} - {number}"
        return f"{span}(?:, {span})* seconds"

    def record(self, answer: TimeSpans) -> list[list[float]]:
        """Convert spans to a JSON list for predictions.jsonl."""
        return [list(span) for span in answer.spans]

    def recorded(self, value: Any) -> TimeSpans:
        """Convert a JSON list in predictions.jsonl back to spans."""
        return read_spans(value, "the target")


def _is_cut(text: str) -> bool:
    """Return True if a comma and a digit are next to a span, as in ``24,3 - 30,4``."""
    return _CUT.search(_SPAN.sub("\0", text)) is not None


def evenly(count: int, most: int) -> list[int]:
    """Return at most ``most`` of the indices 0 to count - 1, including the first and the last.

    Their distances are equal, except for rounding. If ``most`` is 1, return the middle index.
    """
    if count <= most:
        return list(range(count))
    if most == 1:
        return [count // 2]
    return [(i * (count - 1) + (most - 1) // 2) // (most - 1) for i in range(most)]


def read_spans(value: Any, where: str) -> TimeSpans:
    """Read a list of at least one span ``[start, end]``, with 0 <= start < end."""
    if not isinstance(value, list) or not value:
        raise ValueError(f"{where}: expected a list such as [[24.3, 30.4]], found {value!r:.60}.")
    spans = [tuple(finite_numbers(span, where)) for span in value]
    for span in spans:
        if len(span) != 2 or not 0 <= span[0] < span[1]:
            raise ValueError(
                f"{where}: a span is [start, end] in seconds, the smaller one first, not "
                f"{list(span)!r:.60}."
            )
    return TimeSpans(tuple((start, end) for start, end in spans))


def _frames(row: Mapping[str, Any], where: str) -> list[tuple[str, float]]:
    paths, fps = row.get("frames"), row.get("fps")
    if not (isinstance(paths, list) and paths and all(map(is_text, paths))):
        raise ValueError(
            f'{where}: no frames; each row needs "frames" (a list of image paths) and their '
            '"seconds". Video files are not decoded: extract frames first, such as with ffmpeg, or '
            "with `mm-numeric prepare charades_sta --videos`."
        )
    if row.get("seconds") is None and isinstance(fps, int | float) and 0 < fps < 10_000:
        return [(path, i / fps) for i, path in enumerate(paths)]
    seconds = finite_numbers(row.get("seconds"), f"{where}, seconds")
    if len(seconds) != len(paths) or sorted(set(seconds)) != seconds or seconds[0] < 0:
        raise ValueError(
            f"{where}, seconds: expected {len(paths)} ascending times, one for each frame, found "
            f"{row['seconds']!r:.60}."
        )
    return list(zip(paths, seconds, strict=True))


def _seconds(text: str) -> float:
    total = 0.0
    for part in text.split(":"):
        total = 60 * total + float(part)
    return total
