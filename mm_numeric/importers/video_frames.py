"""Extract frames of a video at equal distances, with PyAV if it is installed.

For each time, the frame that a player shows is saved: the last frame that begins at or before this
time. Frames of rotated videos are turned upright.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import chain
from math import ceil
from pathlib import Path
from typing import Any

from PIL import Image

from mm_numeric.importers.importer import InvalidRowError
from mm_numeric.io.atomic_files import atomic_folder
from mm_numeric.tasks.temporal_spans import evenly

VIDEO_SUFFIXES = (".mp4", ".mkv", ".webm", ".mov")

_TOLERANCE = 1e-6  # seconds: times are multiples of a fraction of a second, rounded to floats


def extract_frames(video: Path, folder: Path, fps: float, most: int | None) -> list[float]:
    """Save frames of a video as JPEG files named by their seconds, such as ``00024.500.jpg``.

    ``fps`` is the number of frames to save per second; the first is at 0. If these are more than
    ``most`` frames, only ``most`` of them are saved, at equal distances. If ``folder`` exists, it
    must already have these frames. Returns the time of each frame in seconds.
    """
    with _invalid_as_row(video):
        seconds, images = _open(video)
    count = max(1, ceil(fps * (seconds - _TOLERANCE)))
    times = [round(i / fps, 3) for i in evenly(count, most or count)]
    names = [f"{time:09.3f}.jpg" for time in times]
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with atomic_folder(folder) as unfinished:
            for name, image in zip(names, _decoded(video, images(times)), strict=True):
                image.save(unfinished / name, quality=95)
    if sorted(path.name for path in folder.iterdir()) != names:
        raise InvalidRowError(
            "frames", f"{folder} has other frames than --fps and --max-frames choose; delete it."
        )
    return times


def require_reader() -> None:
    """Raise ValueError if PyAV is not installed."""
    if find_spec("av") is None:
        raise ValueError(
            "--videos needs PyAV, which is not installed: run `pip install av`; or extract the "
            "frames, such as with `ffmpeg -i AO8RW.mp4 -vf fps=2 FRAMES/AO8RW/%04d.jpg`, and leave "
            "--videos out."
        )


@contextmanager
def _invalid_as_row(video: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, RuntimeError) as error:
        raise InvalidRowError("video", f"{video} cannot be read as a video: {error}") from error


def _decoded(video: Path, images: Iterable[Image.Image]) -> Iterator[Image.Image]:
    """Yield images; convert errors of PyAV, but not errors of the caller, such as a full disk."""
    with _invalid_as_row(video):
        yield from images


def _open(video: Path) -> tuple[float, Callable[[Iterable[float]], Iterator[Image.Image]]]:
    """Return a video's length in seconds, and a function that maps ascending times to images."""
    import av  # type: ignore[import-not-found]

    container: Any = av.open(str(video))
    if not container.streams.video:
        raise ValueError("it has no images")
    stream = container.streams.video[0]
    frames = container.decode(stream)
    first = next(frames, None)
    if first is None:
        raise ValueError("it has no frames")
    if stream.duration is not None:
        seconds = float(stream.duration * stream.time_base)
    elif container.duration is not None:  # Matroska and WebM have the end time
        seconds = container.duration / av.time_base - first.time
    else:  # browsers write no duration while they record
        raise ValueError("it does not state its length; copy it with `ffmpeg -i VIDEO -c copy NEW`")

    def images(times: Iterable[float]) -> Iterator[Image.Image]:
        shown, due = first, list(times)
        for frame in chain(frames, [None]):
            while due and (frame is None or frame.time - first.time > due[0] + _TOLERANCE):
                del due[0]
                yield shown.to_image().rotate(shown.rotation, expand=True)
            if not due:
                container.close()
                return
            shown = frame

    return seconds, images
