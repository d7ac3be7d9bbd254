"""Import moments of videos: Charades-STA, QVHighlights and ActivityNet Captions.

charades_sta    AO8RW 0.0 6.9##a person is putting a book on a shelf.
                one line per moment: video, start and end in seconds, description
qvhighlights    {"qid": 2579, "query": "A girl and her mother cooked.", "duration": 150,
                "vid": "NUsG9BgSes0_210.0_360.0", "relevant_windows": [[82, 150]], ...}
                one line of JSON per query, with one or more spans in seconds
activitynet     {"v_QOlSCBRmfWY": {"duration": 82.7, "timestamps": [[0.8, 19.9]],
                "sentences": ["A young woman is seen standing in a room."]}}
                one JSON object of all videos, with one moment for each sentence

``--frames`` is a folder with one folder of images for each video, such as ``AO8RW/0001.jpg``, and
``--fps`` is the number of frames that were extracted per second. With ``--videos``, the frames are
extracted into ``--frames``, at most ``--max-frames`` for each video; a row's ``seconds`` are then
the times of its frames. In a config, set ``images`` of the data source to the folder ``--frames``.

Sources: https://github.com/jiyanggao/TALL, https://github.com/jayleicn/moment_detr (data), and
https://cs.stanford.edu/people/ranjaykrishna/densevid.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Any

from mm_numeric.importers.importer import (
    IMAGE_SUFFIXES,
    FileImporter,
    ImportedItem,
    InvalidRowError,
    Option,
    input_files,
    named_objects,
    numbered_lines,
    parse_number,
    parse_number_list,
    parse_text,
    read_texts,
    row_or_error,
    text_field,
)
from mm_numeric.importers.video_frames import VIDEO_SUFFIXES, extract_frames, require_reader

_CHARADES = re.compile(r"(\S+) (\S+) (\S+?)\s?##(.+)")


@dataclass(frozen=True, kw_only=True)
class _Moments(FileImporter):
    frames: Annotated[Path, Option("folder with a folder of images per video", name="FOLDER")]
    fps: Annotated[float, Option("number of frames per second in these folders")]
    videos: Annotated[
        Path | None,
        Option("folder of the videos, such as AO8RW.mp4, to extract frames from", name="FOLDER"),
    ] = None
    max_frames: Annotated[
        int | None, Option("largest number of frames to extract of a video, evenly spaced")
    ] = None

    def __post_init__(self) -> None:
        most = 10_000 if self.videos is None else 1000
        if not 0 < self.fps < most:
            raise ValueError(f"--fps: expected a number above 0 and below {most}, not {self.fps}.")
        if self.max_frames is not None and (self.videos is None or self.max_frames < 1):
            raise ValueError("--max-frames: expected a number of at least 1, next to --videos.")
        if self.videos is not None:
            require_reader()

    def moment(self, identity: str, video: str, query: str, spans: list[Any]) -> dict[str, Any]:
        """Return a row: the description ``query``, its ``spans`` in seconds, and the frames."""
        for i, value in enumerate(spans):
            spans[i] = span = parse_number_list(value)
            if len(span) != 2 or not 0 <= span[0] < span[1]:
                raise InvalidRowError("spans", f"the span {span} has not 0 <= start < end.")
        times, frames = self._find_frames(video)
        return {"id": identity, "query": query, **times, "spans": spans, "frames": frames}

    @cached_property
    def _find_frames(self) -> Callable[[str], tuple[dict[str, Any], list[str]]]:
        return cache(self._frames)

    def _frames(self, video: str) -> tuple[dict[str, Any], list[str]]:
        folder = self.frames / video
        times: dict[str, Any] = {"fps": self.fps}
        if Path(video).name != video:
            raise InvalidRowError("frames", f"{video!r:.60} is no name of a video.")
        if self.videos is not None:
            files = [self.videos / f"{video}{suffix}" for suffix in VIDEO_SUFFIXES]
            file = next((file for file in files if file.is_file()), None)
            if file is None:
                raise InvalidRowError("video", f"there is no {files[0].name} in {self.videos}.")
            times = {"seconds": extract_frames(file, folder, self.fps, self.max_frames)}
        if not folder.is_dir():
            raise InvalidRowError("frames", f"there is no folder {video!r:.60} in {self.frames}.")
        if not any(path.suffix.lower() in IMAGE_SUFFIXES for path in folder.iterdir()):
            raise InvalidRowError("frames", f"{folder} has no images.")
        images = input_files([folder], IMAGE_SUFFIXES)
        return times, [f"{video}/{path.name}" for path in images]


@dataclass(frozen=True, kw_only=True)
class CharadesSta(_Moments):
    """Importer for Charades-STA: text files with one moment per line."""

    endings = (".txt",)

    def entries(self, path: Path) -> Iterator[tuple[str, str, Any]]:
        """Yield the lines of a file."""
        ((_, _, text),) = read_texts([path], self.endings, "utf-8")
        if isinstance(text, InvalidRowError):
            yield str(path), "", text
            return
        for where, number, line in numbered_lines(path, text):
            yield where, f"{path.stem}-{number}", line.strip()

    def row(self, line: str, identity: str) -> dict[str, Any]:
        """Convert a line: the video, start and end in seconds, and the description."""
        match = _CHARADES.fullmatch(line)
        if match is None:
            raise InvalidRowError("line", "expected `VIDEO START END##DESCRIPTION`.")
        span = [parse_number(match[2]), parse_number(match[3])]
        return self.moment(identity, match[1], match[4].strip(), [span])


@dataclass(frozen=True, kw_only=True)
class QvHighlights(_Moments):
    """Importer for QVHighlights: JSON lines with one query each."""

    endings = (".jsonl",)

    def row(self, raw: Mapping[str, Any], identity: str) -> dict[str, Any]:
        """Convert a query and its spans."""
        windows = raw.get("relevant_windows")
        if not isinstance(windows, list) or not windows:
            raise InvalidRowError("spans", "no relevant_windows; test.jsonl has none.")
        if missing := {"qid", "vid"} - set(raw):
            raise InvalidRowError("fields", f"there is no {min(missing)!r}.")
        query, video = text_field(raw, "query"), text_field(raw, "vid")
        return self.moment(str(raw["qid"]), video, query, [*windows])


@dataclass(frozen=True, kw_only=True)
class ActivityNet(_Moments):
    """Importer for ActivityNet Captions: one JSON object with all videos."""

    endings = (".json",)

    def entries(self, path: Path) -> Iterator[tuple[str, str, Any]]:
        """Yield the videos of a file."""
        yield from named_objects(path, "video")

    def items(self, where: str, video: str, raw: Mapping[str, Any]) -> Iterator[ImportedItem]:
        """Yield the row of each sentence about a video, or an error."""
        spans, sentences = raw.get("timestamps"), raw.get("sentences")
        if not (isinstance(spans, list) and isinstance(sentences, list)) or len(spans) != len(
            sentences
        ):
            raise InvalidRowError("fields", "expected timestamps and as many sentences.")
        for i, (span, sentence) in enumerate(zip(spans, sentences, strict=True)):
            place = f"{where}, sentence {i}"
            yield row_or_error(place, self._sentence, f"{video}-{i}", video, sentence, span)

    def _sentence(self, identity: str, video: str, sentence: Any, span: Any) -> dict[str, Any]:
        query = parse_text(sentence, "a sentence").strip()
        return self.moment(identity, video, query, [span])
