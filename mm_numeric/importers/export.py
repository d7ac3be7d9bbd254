"""Write rows as data sets of other tools, in the file and coordinate formats that they train on.

A task converts each row to a question and an answer. A frame writes the answer's coordinates in the
format of a model family. An ``Exporter`` writes the files of a tool, in a folder next to the rows:
``rows.ms-swift`` next to ``rows.jsonl``.
"""

import json
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from mm_numeric.answers import IMAGE, Box, Example, Instances
from mm_numeric.config.data import DataSource
from mm_numeric.data.examples import examples_of_row, rows_of_file
from mm_numeric.data.images import image_file, image_size
from mm_numeric.geometry.frame_presets import FrameRule
from mm_numeric.geometry.frames import Frame
from mm_numeric.io.atomic_files import atomic_folder
from mm_numeric.registry import EXPORTERS, choose
from mm_numeric.settings import read_dataclass
from mm_numeric.tasks.base import Task, task_class

TRAIN = "train.jsonl"
_ORIENTATION = 0x0112  # EXIF tag; images with the values 2 to 8 are rotated or mirrored


Sample = tuple[Example, Frame | None]
"""An example (question, answer and paths of images), and the frame in which the model to be trained
writes coordinates. The frame is None without an image, or if answers have no coordinates."""


class Exporter(ABC):
    """Base class that writes the files of one tool."""

    tool: ClassVar[str]
    """Name of the tool, and the version for which files are written."""

    rotates_images: ClassVar[bool] = True
    """True if the tool rotates images upright according to their EXIF orientation."""

    files: ClassVar[frozenset[str]] = frozenset({TRAIN})
    """Names of the files in the folder."""

    image_max_pixels: ClassVar[int | None] = None
    """Maximum image area in pixels. By default, the tool downscales larger images to it before the
    model's own resizing. None: there is no maximum."""

    tags: ClassVar[tuple[str, ...]] = ()
    """Texts that rows must not have, because the tool would replace them."""

    @abstractmethod
    def row(self, prompt: str, answer: str, frame: Frame | None) -> dict[str, Any]:
        """Return the row without id and images. ``prompt`` has ``IMAGE`` once for each image."""

    @abstractmethod
    def usage(self, folder: Path, name: str, frame: FrameRule | None) -> str:
        """Return the command or the settings with which the tool trains on the files in ``folder``.

        ``name`` is the name of the rows' file without its ending, such as ``train``.
        """

    def write(self, task: Task, samples: Iterator[Sample], folder: Path, name: str) -> None:
        """Write a file with one line of JSON for each question."""
        with (folder / TRAIN).open("w", encoding="utf-8") as file:
            for example, frame in samples:
                try:
                    answer = task.format(example.answer, frame).text
                    prompt = example.prompt
                    for tag in self.tags:
                        if tag in prompt or tag in answer:
                            raise ValueError(f"its text has {tag}, which {self.tool} replaces")
                    if example.image is not None and IMAGE not in prompt:
                        prompt = IMAGE + prompt
                    fields = self.row(prompt, answer, frame)
                except ValueError as error:
                    message = str(error).removeprefix(f"{example.where}: ").rstrip(".")
                    raise ValueError(f"{example.where}: {message}; change the row.") from error
                row = {"id": example.id, **fields, "images": [*map(str, example.images)]}
                file.write(json.dumps(row, ensure_ascii=False) + "\n")


@dataclass(frozen=True, kw_only=True)
class Target:
    """The tool that rows are written for, and the model that it trains."""

    tool: str
    """A key of ``EXPORTERS``, such as ``ms-swift``."""

    frame: FrameRule | None = None
    """How the model resizes images and writes coordinates; None if answers have no coordinates."""

    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the task, such as ``{"shape": "polygon"}``."""

    images: str | None = None
    """Folder of the images. None: the folder of the rows, or its subfolder ``images``."""

    def folder(self, rows: Path) -> Path:
        """Return the folder of the tool's files."""
        return rows.with_name(f"{rows.stem}.{self.tool}")

    def check(self, rows: Path, *, force: bool) -> Exporter:
        """Return the exporter; raise ValueError if its folder exists.

        With ``force``, the folder may exist, but must have no files except those of an exporter.
        """
        exporter: Exporter = choose(self.tool, EXPORTERS, "tool", "--to")()
        folder = self.folder(rows)
        if folder.exists() and not force:
            raise ValueError(f"{folder} exists; name another --out, or replace it with --force.")
        others = [each for each in folder.glob("*") if each.name not in exporter.files]
        if others:
            raise ValueError(
                f"{min(others)} is not of `prepare`, and --force would delete it; move it, or name "
                "another --out."
            )
        return exporter

    def write(self, rows: Path, setting: Any) -> str:
        """Write prepared rows for the tool, and return how to train with it on these rows.

        ``setting`` is the value of ``task`` in a config: a name, or a mapping with options.
        """
        exporter = self.check(rows, force=True)
        options = {"name": setting} if isinstance(setting, str) else dict(setting or {})
        if "name" in self.options:  # another task: its class may lack the options in ``setting``
            options = {}
        options.update(self.options)
        name = options.pop("name", None)
        if name is None:
            raise ValueError(
                f"--to {self.tool}: the rows are for several tasks; name one, such as with "
                "--option name=detection."
            )
        task: Task = read_dataclass(task_class(name, "--to"), options, "--option")
        rule, folder = self.frame, self.folder(rows)
        if rule is not None and rule.image_max_pixels is None:
            rule = replace(rule, image_max_pixels=exporter.image_max_pixels)
        with atomic_folder(folder) as unfinished:
            samples = self._samples(rows, task, name, exporter, rule)
            exporter.write(task, samples, unfinished, rows.stem)
            if folder.exists():
                shutil.rmtree(folder)
        return f"{exporter.tool}: {exporter.usage(folder, rows.stem, rule)}"

    def _samples(
        self, rows: Path, task: Task, name: str, exporter: Exporter, rule: FrameRule | None
    ) -> Iterator[Sample]:
        source = DataSource(path=str(rows), images=self.images)
        for row in rows_of_file(rows):
            for example, error in examples_of_row(task, row, source, training=True):
                if example is None:
                    raise error or ValueError(f"{rows}: a row without a question.")
                if error is not None:  # its image is missing
                    raise ValueError(
                        f"{example.where}: there is no image {example.image} in "
                        f"{self.images or rows.parent}; name the folder with --images (for formats "
                        "without this option: prepare the format rows next)."
                    )
                if rule is None:
                    self._check_text(name, example)
                yield self._sample(example, exporter, rule)

    def _check_text(self, name: str, example: Example) -> None:
        if isinstance(example.answer, Box | Instances):
            raise ValueError(
                f"--to {self.tool}: answers of the task {name!r} are coordinates, which depend on "
                "the model; name it with --family (such as qwen3_vl), or their format with --frame."
            )

    def _sample(self, example: Example, exporter: Exporter, rule: FrameRule | None) -> Sample:
        if example.answer is None:
            raise ValueError(f"{example.where}: no answer to train on; remove the row.")
        if example.image is None:
            return example, None
        try:
            size = image_size(example.image)
            if example.size_px not in (None, size):
                raise ValueError(f"the row declares {example.size_px}, and the image has {size}")
            for image in () if exporter.rotates_images else example.images:
                with image_file(image) as opened:
                    turned = opened.getexif().get(_ORIENTATION) in range(2, 9)
                if turned:
                    raise ValueError(
                        f"{image} is rotated by its EXIF orientation, which {exporter.tool} "
                        "ignores, so that it would show another image; save it upright"
                    )
            frame = None if rule is None else rule.frame(*size)
        except ValueError as error:
            raise ValueError(f"{example.where}: {error}.") from error
        return example, frame
