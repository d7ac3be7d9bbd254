"""Settings of the training, test and evaluation data. Loads no torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mm_numeric.parsing import check_at_least_1, check_choices


@dataclass(frozen=True, kw_only=True)
class DataSource:
    """Rows of a task: files, a Hugging Face dataset, or rows rendered by the task."""

    path: str | tuple[str, ...] | None = None
    """A .jsonl, .jsonl.gz, .json or .csv file, a glob pattern (``shards/*.jsonl.gz``), or a list of
    these. Relative image paths start at the folder of the file."""

    dataset: str | None = None
    """A Hugging Face dataset: a name on the hub, a folder written by ``save_to_disk``, or a folder
    of parquet, arrow, JSON or CSV files. The image column may have any name."""

    subset: str | None = None
    """Subset (configuration) of ``dataset``; needed if it has several."""

    split: str = "train"
    """Split of ``dataset``."""

    revision: str | None = None
    """Branch, tag or commit of ``dataset`` on the hub; None: the default branch."""

    render: int | None = None
    """Number of rows to render, at least 1. They are rendered once and stored in ``data.cache``."""

    seed: int = 0
    """Random seed of the renderer."""

    categories: tuple[str, ...] = ()
    """Categories of the rendered rows, an equal number of each, for example
    ``[interpolation, extrapolation]``. Empty (the default): the task's first category, which is its
    training distribution."""

    images: str | None = None
    """Folder of the images. None: the folder of the file, then its subfolder ``images``."""

    weight: float | None = None
    """Sampling weight among several sources, above 0: the share of training rows from this source
    is its weight divided by the sum of all weights."""

    def __post_init__(self) -> None:
        """Require exactly one of ``path``, ``dataset`` and ``render``, and validate the rest."""
        given = [value is not None for value in (self.path, self.dataset, self.render)]
        if sum(given) != 1 or self.path == ():
            raise ValueError("set exactly one of path (a file), dataset and render")
        check_at_least_1(self, "render")
        if self.categories and self.render is None:
            raise ValueError("categories require render; rows of a file have their own category")
        if self.weight is not None and not 0 < self.weight < float("inf"):
            raise ValueError(f"weight must be above 0, not {self.weight:g}")
        chosen = (self.subset, self.split, self.revision)
        if self.dataset is None and chosen != (None, "train", None):
            raise ValueError("subset, split and revision require dataset; set it, too")

    @property
    def name(self) -> str:
        """Description of the source, for messages."""
        if self.render is not None:
            return f"{self.render} rendered rows"
        if self.dataset is not None:
            return ", ".join(filter(None, (self.dataset, self.subset, self.split)))
        assert self.path is not None
        return self.path if isinstance(self.path, str) else ", ".join(self.path)


Sources = DataSource | tuple[DataSource, ...]
"""One source, or several sources that are mixed."""


def listed(sources: Sources) -> tuple[DataSource, ...]:
    """Return the sources as a tuple."""
    return (sources,) if isinstance(sources, DataSource) else sources


def named(sources: Sources) -> str:
    """Return a description of the sources, for messages."""
    return " and ".join(source.name for source in listed(sources))


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Training and test data."""

    train: tuple[DataSource, ...] | DataSource
    """One source or a list of sources. Without weights an epoch contains each row once; with
    weights it ends when it contains each row at least once."""

    test: DataSource
    """Rows that ``predict`` and ``compare`` answer."""

    cache: str = "runs/cache"
    """Folder for rendered images and for tables of Hugging Face ``datasets``."""

    on_bad_image: str = "stop"
    """``stop`` training at an image that cannot be read, or ``skip`` and count its row."""

    stream: bool = False
    """Read training rows during training instead of loading all of them; requires
    ``trainer.max_steps``."""

    shuffle_rows: int = 1000
    """Size of the shuffle buffer of a stream in rows, at least 1; the order of files is shuffled
    completely."""

    max_tokens: int | None = None
    """Maximum length of a training row in tokens (question, image and answer), at least 1; None: no
    limit."""

    too_long: str = "stop"
    """What happens to a row above ``max_tokens``. ``stop``: training stops. ``drop``: the row is
    dropped and counted. ``resize``: its image is downscaled until it fits, for families with
    variable image sizes. Answers are never truncated."""

    image_cache: str | None = None
    """Folder for decoded, resized images; None: no cache."""

    def __post_init__(self) -> None:
        check_choices(self, on_bad_image=("stop", "skip"), too_long=("stop", "drop", "resize"))
        check_at_least_1(self, "max_tokens", "shuffle_rows")
        if self.too_long != "stop" and self.max_tokens is None:
            raise ValueError(f"too_long: {self.too_long} requires max_tokens; set it")
        if self.test.weight is not None:
            raise ValueError("test has a weight, which only training sources have; remove it")
        sources = listed(self.train)
        if not sources:
            raise ValueError("train has no source; add at least one")
        if len({source.weight is None for source in sources}) > 1:
            raise ValueError("train: set a weight for every source or for none")

    def check_trainer(self, trainer: Mapping[str, Any], where: str) -> None:
        """Check that the trainer's settings work with ``stream``."""
        if not self.stream:
            return
        if trainer.get("max_steps", -1) < 1:
            raise ValueError(
                f"{where}, data.stream: a stream has no known length; set trainer.max_steps."
            )
        if trainer.get("train_sampling_strategy", "random") not in ("random", "sequential"):
            raise ValueError(
                f"{where}, data.stream: rows of a stream cannot be grouped by length; set "
                "trainer.train_sampling_strategy to random or sequential."
            )


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig:
    """Periodic evaluation during training, always on the same rows.

    With ``best``, set ``data`` to rows that are not test rows: results on the rows that selected
    the weights are biased.
    """

    every_steps: int
    """Evaluate every N optimiser steps, at least 1, and after the last step."""

    rows: int | None = 64
    """Number of rows from the start of the data, at least 1; null: all rows."""

    data: DataSource | None = None
    """Source of the rows; null: ``data.test``."""

    best: str | None = None
    """Metric of results.json; the weights with its best value are saved in ``best/``. null: only
    the last weights are saved."""

    patience: int | None = None
    """Early stopping after this many consecutive evaluations without a new best value, at least 1;
    requires ``best``. null: no early stopping."""

    def __post_init__(self) -> None:
        check_at_least_1(self, "every_steps", "rows", "patience")
        if self.patience is not None and self.best is None:
            raise ValueError("patience requires a metric; set best, or remove patience")
