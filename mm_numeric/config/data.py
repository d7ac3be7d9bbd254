"""Which rows are trained on, tested on, and answered on the way: the settings. Loads no torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class DataSource:
    """Rows of a task: files of yours, a data set of Hugging Face, or rows rendered here."""

    path: str | tuple[str, ...] | None = None
    """A .jsonl, .jsonl.gz, .json or .csv file, a pattern of names (``shards/*.jsonl.gz``), or a
    list of those; images are looked up from the folder of their file."""

    dataset: str | None = None
    """Of Hugging Face's ``datasets``: a name on the hub, a folder that save_to_disk wrote, or one
    of parquet, arrow, JSON or CSV files. A column of images may be called anything."""

    subset: str | None = None
    """Of a ``dataset``, where it has several."""

    split: str = "train"
    """Of a ``dataset``."""

    revision: str | None = None
    """Of a ``dataset`` on the hub; pin a commit before a result is published."""

    render: int | None = None
    """How many rows to render, once; they are kept in ``data.cache``."""

    seed: int = 0
    """Of the renderer."""

    categories: tuple[str, ...] = ()
    """Which kinds of rows are rendered, as many of each, where the task has such:
    ``[interpolation, extrapolation]``; by default the first alone, which is what is trained on."""

    images: str | None = None
    """The folder that image names start from; by default the folder of the file, then ``images``
    inside it."""

    weight: float | None = None
    """Among several sources: its share of what is trained on is this over the sum of all."""

    def __post_init__(self) -> None:
        """Refuse a source that is none, or two."""
        given = [value is not None for value in (self.path, self.dataset, self.render)]
        if sum(given) != 1 or self.path == ():
            raise ValueError(
                "give either path (a .jsonl or .csv file), dataset (of Hugging Face) or render (a "
                "number of rows)"
            )
        if self.render is not None and self.render < 1:
            raise ValueError(f"render must be at least 1, not {self.render}")
        if self.categories and self.render is None:
            raise ValueError("categories are of rows that are rendered; a file's rows name theirs")
        if self.weight is not None and not 0 < self.weight < float("inf"):
            raise ValueError(f"weight must be above 0, not {self.weight:g}")
        if self.dataset is None and (self.subset, self.split, self.revision) != (
            None, "train", None
        ):  # fmt: skip
            raise ValueError("subset, split and revision are those of a dataset; name it, too")

    @property
    def name(self) -> str:
        """What it is called in a sentence."""
        if self.render is not None:
            return f"{self.render} rendered rows"
        if self.dataset is not None:
            return ", ".join(filter(None, (self.dataset, self.subset, self.split)))
        assert self.path is not None
        return self.path if isinstance(self.path, str) else ", ".join(self.path)


Sources = DataSource | tuple[DataSource, ...]
"""One, or several that are mixed."""


def listed(sources: Sources) -> tuple[DataSource, ...]:
    """Return sources as a list, also where there is one."""
    return (sources,) if isinstance(sources, DataSource) else sources


def named(sources: Sources) -> str:
    """Return what sources are called in a sentence."""
    return " and ".join(source.name for source in listed(sources))


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """What is trained on, and what is tested on."""

    train: tuple[DataSource, ...] | DataSource
    """A source, or a list of them. Without weights each row is in an epoch once; with weights an
    epoch ends when every row was in it at least once."""

    test: DataSource
    cache: str = "runs/cache"
    """Where rendered images, and tables of Hugging Face's ``datasets``, are kept."""

    on_bad_image: str = "stop"
    """What training does at an image that cannot be read: stop, or skip its row, counted."""

    stream: bool = False
    """Read training rows while they are trained on, and never hold them all; it needs
    ``trainer.max_steps``."""

    shuffle_rows: int = 1000
    """How many rows of a stream are held to be shuffled; the order of files is shuffled whole."""

    max_tokens: int | None = None
    """The longest row that is trained on: question, image and answer together."""

    too_long: str = "stop"
    """What is done with a longer one: stop, drop it, counted, or resize: its image is seen
    smaller until it fits, where the family lets images be of any size. No answer is cut."""

    image_cache: str | None = None
    """A folder that keeps images decoded, and as large as the family sees them."""

    def __post_init__(self) -> None:
        """Refuse what cannot be done."""
        for name, allowed in (
            ("on_bad_image", ("stop", "skip")),
            ("too_long", ("stop", "drop", "resize")),
        ):
            if (value := getattr(self, name)) not in allowed:
                raise ValueError(f"{name} is {join_or(allowed)}, not {value!r}")
        for name in ("max_tokens", "shuffle_rows"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        if self.too_long != "stop" and self.max_tokens is None:
            raise ValueError(f"too_long is {self.too_long}, and max_tokens says nothing; set it")
        if self.test.weight is not None:
            raise ValueError("test has a weight, and weights mix what is trained on; take it out")
        sources = listed(self.train)
        if not sources:
            raise ValueError("train has no source; give at least one")
        if len({source.weight is None for source in sources}) > 1:
            raise ValueError("train: give each source a weight, or none of them")

    def check_trainer(self, trainer: Mapping[str, Any], where: str) -> None:
        """Refuse settings of the trainer that a stream cannot be trained with.

        Raises:
            ValueError: If it has no last step, or rows would have to be known beforehand.
        """
        if not self.stream:
            return
        if trainer.get("max_steps", -1) < 1:
            raise ValueError(
                f"{where}, data.stream: nobody knows how many rows a stream has; set "
                "trainer.max_steps."
            )
        if trainer.get("train_sampling_strategy", "random") not in ("random", "sequential"):
            raise ValueError(
                f"{where}, data.stream: rows that are not known yet cannot be grouped; set "
                "trainer.train_sampling_strategy to random or sequential."
            )


def join_or(words: Sequence[str]) -> str:
    """Write ``stop, drop or resize``."""
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig:
    """Evaluation on the way: the model answers the same rows every so many steps, and at the end.

    Whoever chooses weights by a metric reports on other rows than these: give ``data``.
    """

    every_steps: int
    """Of the optimiser; the last step is evaluated too."""

    rows: int | None = 64
    """How many, from the first on; null for all."""

    data: DataSource | None = None
    """Where they are from; ``data.test`` by default."""

    best: str | None = None
    """The metric, as results.json calls it, whose best weights are kept in ``best/``; null keeps
    the last weights alone."""

    patience: int | None = None
    """Training stops after so many evaluations in a row that were no better than the best."""

    def __post_init__(self) -> None:
        """Refuse what evaluates nothing, and patience without a metric."""
        for name in ("every_steps", "rows", "patience"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        if self.patience is not None and self.best is None:
            raise ValueError("patience waits for a better metric; name it as best, or take it out")
