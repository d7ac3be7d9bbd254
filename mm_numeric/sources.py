"""Which rows are trained on and tested on: the settings. Loads no torch."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class DataSource:
    """Rows of a task: a file of yours, or pictures rendered here."""

    path: str | None = None
    """A .jsonl or .csv file; pictures are looked up from its folder."""

    render: int | None = None
    """How many rows to render, once; they are kept in ``data.cache``."""

    seed: int = 0
    """Of the renderer."""

    images: str | None = None
    """The folder that picture names start from; by default the folder of the file, then ``images``
    inside it."""

    def __post_init__(self) -> None:
        """Refuse a source that is none, or two."""
        if (self.path is None) == (self.render is None):
            raise ValueError(
                "give either path (a .jsonl or .csv file) or render (a number of rows)"
            )
        if self.render is not None and self.render < 1:
            raise ValueError(f"render must be at least 1, not {self.render}")


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """What is trained on, and what is tested on."""

    train: DataSource
    test: DataSource
    cache: str = "runs/cache"
    """Where rendered pictures are kept."""
