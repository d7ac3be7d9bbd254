"""Config sections for the training, test and evaluation data. Does not import torch."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

from mm_numeric.config.decoding import GREEDY, check_decode
from mm_numeric.settings import check_at_least_1, check_choices
from mm_numeric.synthetic.generator import Generator

ALL, PARSEABLE = "all", "parseable"
"""Values of ``DataSource.keep_answers``."""


class Fold(NamedTuple):
    """One of ``of`` folds of the rows of a source or, if ``is_left_out``, all rows but it."""

    number: int
    of: int
    is_left_out: bool

    @classmethod
    def parse(cls, text: str) -> "Fold":
        """Read ``0 of 5`` or ``not 0 of 5``; raise ValueError for another text."""
        found = re.fullmatch(r"(not )?(\d+) of (\d+)", text)
        if found is None or not int(found[2]) < int(found[3]) or int(found[3]) < 2:
            raise ValueError(
                "fold is one of two folds or more, from 0 of 5 to 4 of 5, or all others, such as "
                f"not 0 of 5; found {text!r:.40}"
            )
        return cls(int(found[2]), int(found[3]), found[1] is not None)

    def __str__(self) -> str:
        return f"{'not ' * self.is_left_out}{self.number} of {self.of}"

    def contains(self, name: str) -> bool:
        """Return True if the rows called ``name`` are in the fold. Folds have similar sizes."""
        digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()
        own = int.from_bytes(digest[:8], "big") % self.of
        return (own == self.number) != self.is_left_out


@dataclass(frozen=True, kw_only=True)
class DataSource:
    """Source of samples: files, a Hugging Face dataset, or a generator of synthetic rows."""

    path: str | tuple[str, ...] | None = None
    """A .jsonl, .jsonl.gz, .json or .csv file, a glob pattern (``shards/*.jsonl.gz``), or a list of
    these. Image paths are relative to the folder of the file, unless ``images`` is set."""

    dataset: str | None = None
    """A Hugging Face dataset: a name on the hub, a folder written by ``save_to_disk``, or a folder
    of parquet, arrow, JSON or CSV files. The image column may have any name."""

    subset: str | None = None
    """Subset (configuration) of ``dataset``; required if the dataset has several."""

    split: str = "train"
    """Split of ``dataset``."""

    revision: str | None = None
    """Branch, tag or commit of ``dataset`` on the hub; null: the default branch."""

    boxes: str = "xywh"
    """Format of the boxes in the column ``objects`` of ``dataset``: ``xywh`` for [x, y, width,
    height] as in COCO and cppe-5, ``xyxy`` for [x1, y1, x2, y2]."""

    synthetic: Generator | None = None
    """A generator of rows: ``{name: clocks, rows: 12000, seed: 0, noise_minutes: 5}``. Each
    generator has its own settings. Rows are cached in ``data.cache``."""

    images: str | None = None
    """Folder of the images. null: the folder of the file, or else its subfolder ``images``."""

    fold: str | None = None
    """Rows to use: ``0 of 5`` is the first of five folds, and ``not 0 of 5`` the other four. Rows
    with the same image, or the same value of the field ``fold_group``, are in the same fold, so
    that ``data.train`` and ``data.test`` can name one file of rows. In a comparison, each seed
    tests on the next fold. null: all rows."""

    weight: float | None = None
    """Sampling weight of this training source, above 0. Its share of the training rows is its
    weight divided by the sum of the weights of all sources."""

    answers: str | None = None
    """File of a model's answers to the rows of this training source, as written by ``mm-numeric
    predict --model RUN --training-rows``. The model is trained on these answers in place of the
    labels. null: train on the labels."""

    keep_answers: Any = ALL
    """Answers to train on. ``all``: a row without a parseable answer is an error. ``parseable``:
    such rows are left out. A share above 0 and at most 1, such as 0.8: the 80 % of the answers with
    the highest confidence; other rows are left out."""

    def __post_init__(self) -> None:
        """Require exactly one of ``path``, ``dataset`` and ``synthetic``; validate the others."""
        given = [value is not None for value in (self.path, self.dataset, self.synthetic)]
        if sum(given) != 1 or self.path == ():
            raise ValueError("set exactly one of path (a file), dataset and synthetic")
        check_keep(self.keep_answers, "keep_answers")
        if self.keep_answers != ALL and self.answers is None:
            raise ValueError("keep_answers requires answers; set it, too")
        if self.weight is not None and not 0 < self.weight < float("inf"):
            raise ValueError(f"weight must be above 0, not {self.weight:g}")
        chosen = (self.subset, self.split, self.revision, self.boxes)
        if self.dataset is None and chosen != (None, "train", None, "xywh"):
            raise ValueError("subset, split, revision and boxes require dataset; set it, too")
        check_choices(self, boxes=("xywh", "xyxy"))
        if self.fold is not None:
            Fold.parse(self.fold)
            if self.synthetic is not None:
                raise ValueError("fold is not for synthetic rows; give test rows another seed")

    def with_next_fold(self, steps: int) -> Self:
        """Return a source with the fold that is ``steps`` folds later, the first after the last."""
        if self.fold is None:
            return self
        fold = Fold.parse(self.fold)
        return replace(self, fold=str(fold._replace(number=(fold.number + steps) % fold.of)))

    @property
    def name(self) -> str:
        """Return a short description of the source for messages, such as ``train.jsonl``."""
        return self._all_rows + (f", fold {self.fold}" if self.fold else "")

    @property
    def _all_rows(self) -> str:
        if self.synthetic is not None:
            return f"{self.synthetic.rows} synthetic rows"
        if self.dataset is not None:
            return ", ".join(filter(None, (self.dataset, self.subset, self.split)))
        assert self.path is not None
        return self.path if isinstance(self.path, str) else ", ".join(self.path)


def check_keep(value: Any, name: str) -> None:
    """Raise ValueError if ``value`` is not allowed as ``DataSource.keep_answers``."""
    is_share = type(value) in (int, float) and 0 < value <= 1
    if value not in (ALL, PARSEABLE) and not is_share:
        raise ValueError(
            f"{name} is {ALL}, {PARSEABLE} or a share above 0 and at most 1, not {value!r}"
        )


def check_not_training(source: DataSource, name: str) -> None:
    """Raise ValueError if a source that is not for training has a setting of training sources."""
    for setting in ("weight", "answers"):
        if getattr(source, setting) is not None:
            raise ValueError(f"{name} sets {setting}, which only training sources have; remove it")


Sources = DataSource | tuple[DataSource, ...]
"""One data source, or several that are mixed."""


def listed(sources: Sources) -> tuple[DataSource, ...]:
    """Return the sources as a tuple. A single source becomes a tuple of length 1."""
    return (sources,) if isinstance(sources, DataSource) else sources


def named(sources: Sources) -> str:
    """Return a short description of all sources, for messages."""
    return " and ".join(source.name for source in listed(sources))


@dataclass(frozen=True, kw_only=True)
class AugmentConfig:
    """Config section ``data.augment``: change training images at random, with their answers.

    Images above 32 million pixels are not changed. The random changes of a row depend on the epoch,
    the row's id, and ``trainer.data_seed`` or else ``trainer.seed``.
    """

    operations: Mapping[str, Any]
    """Maps the names of operations, in the order in which they are applied, to their probability
    for a row, or to ``probability`` and options: ``{flip: 0.5, rotate: {probability: 0.3, degrees:
    10}}``. A name may also be an import path ``my_package.module:function``."""

    kept: float = 0.75
    """Minimum share of the area of each box that must stay inside the image, above 0 and at most 1;
    polygons and points must stay inside as a whole. An operation is drawn again until this holds.
    After ten draws, the row is used without the operation."""

    smallest_px: float = 4.0
    """Minimum width and height of each object in the changed image, in pixels. There is no limit
    for an object that is smaller in the original image."""

    def __post_init__(self) -> None:
        if not self.operations:
            raise ValueError("operations must name at least one operation, such as {flip: 0.5}")
        if not 0 < self.kept <= 1:
            raise ValueError(f"kept is above 0 and at most 1, not {self.kept:g}")
        if self.smallest_px < 0:
            raise ValueError(f"smallest_px is at least 0, not {self.smallest_px:g}")
        self.chosen()

    def chosen(self) -> dict[str, tuple[float, dict[str, Any]]]:
        """Return the probability and the options of each operation."""
        found = {}
        for name, value in self.operations.items():
            options = dict(value) if isinstance(value, Mapping) else {"probability": value}
            probability = options.pop("probability", None)
            if type(probability) not in (int, float) or not 0 <= probability <= 1:
                raise ValueError(
                    f"operations.{name} has a probability from 0 to 1, as in {{{name}: 0.5}} or "
                    f"{{{name}: {{probability: 0.5}}}}, not {value!r:.60}"
                )
            found[name] = float(probability), options
        return found


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Config section ``data``: the training and test samples, and how they are read."""

    train: tuple[DataSource, ...] | DataSource = ()
    """One source or a list of sources; required, except for ``model.family: api``. Without weights,
    an epoch contains each row once. With weights, an epoch ends when it has contained each row at
    least once."""

    test: DataSource
    """Rows for which ``predict`` and ``compare`` generate answers."""

    cache: str = "runs/cache"
    """Folder for synthetic rows and for the cache of Hugging Face ``datasets``."""

    on_bad_image: str = "stop"
    """If an image cannot be read, ``stop`` training, or ``skip`` the row and count it."""

    largest_image: int = 128_000_000
    """Maximum number of pixels of an image, at least 1; for WebP files, a third of this. This
    limits the memory for decoding; WebP files take more. Images above 32 million pixels are decoded
    at half their width and height, or less; coordinates still refer to the original."""

    stream: bool = False
    """Read training rows during training, instead of all rows before it. Requires
    ``trainer.max_steps``."""

    shuffle_rows: int = 1000
    """Size of the shuffle buffer in rows, at least 1, with ``stream``. The order of the files is
    shuffled, too."""

    max_tokens: int | None = None
    """Maximum length of a training row (question, image and answer) in tokens, at least 1. null: no
    limit."""

    too_long: str = "stop"
    """If a row is longer than ``max_tokens``, ``stop`` training, ``drop`` the row and count it, or
    ``resize``: downscale its image until it fits, in families with variable image sizes. Answers
    are never truncated."""

    image_cache: str | None = None
    """Folder in which decoded and resized images are cached; null: no cache."""

    vision_cache: str | None = None
    """Folder in which the image features of a frozen vision tower are cached, so that it runs once
    for each image; null: no cache."""

    padding_free: bool = False
    """Concatenate the rows of a micro-batch into one sequence, instead of padding them to the
    length of the longest. Rows do not attend to each other; losses and gradients are the same."""

    augment: AugmentConfig | None = None
    """Change training images at random, together with their answers; null: train on the rows as
    they are."""

    def __post_init__(self) -> None:
        caches = {"image_cache": self.image_cache, "vision_cache": self.vision_cache}
        for name, folder in caches.items() if self.augment else ():
            if folder is not None:
                raise ValueError(
                    f"augment changes the images in every epoch, and {name} would store each of "
                    f"them once; remove {name} or augment"
                )
        check_choices(self, on_bad_image=("stop", "skip"), too_long=("stop", "drop", "resize"))
        check_at_least_1(self, "max_tokens", "shuffle_rows", "largest_image")
        if self.too_long != "stop" and self.max_tokens is None:
            raise ValueError(f"too_long: {self.too_long} requires max_tokens; set it")
        check_not_training(self.test, "test")
        if self.test.fold is not None:
            fold = Fold.parse(self.test.fold)
            others = str(fold._replace(is_left_out=not fold.is_left_out))
            for source in listed(self.train):
                same = (source.path, source.dataset) == (self.test.path, self.test.dataset)
                if same and source.fold != others:
                    raise ValueError(
                        f"test is fold {fold} of rows that train reads, too; set train.fold to "
                        f"{others}"
                    )
        if len({source.weight is None for source in listed(self.train)}) > 1:
            raise ValueError("train: set a weight for every source or for none")

    def check_trainer(self, trainer: Mapping[str, Any], where: str) -> None:
        """Raise ValueError if ``stream`` is set, and settings of the trainer do not allow it."""
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


MOST_EVALUATED_ROWS = 200
"""Largest number of rows that are evaluated during training if ``evaluate.rows`` is not set."""


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig:
    """Config section ``evaluate``: score the same samples periodically during training.

    A config without this section uses its defaults if the training lasts at least an epoch and the
    test samples have answers. ``evaluate: null`` switches the evaluation off.

    If ``best`` names a metric, the weights with its best value are saved. In that case, ``data``
    should not be the test samples, because selecting weights on them biases the test results.
    """

    every_steps: int | None = None
    """Optimiser steps between evaluations, at least 1; there is also one after the last step. null:
    at most ten evaluations, which together answer at most a tenth as many rows as are trained on;
    but at least one evaluation."""

    rows: int | None = None
    """Number of rows to evaluate, at least 1; all rows if there are fewer. They are spread evenly
    over the data, which are never streamed, so that their number is known. null: 200, or fewer if
    these would take more than a quarter of the training time between two evaluations, but at least
    50; the first evaluation chooses the number for the run. In ``compare``, null is 200."""

    data: DataSource | None = None
    """Source of the rows to evaluate; null: ``data.test``."""

    best: str | None = None
    """Name of a metric in results.json. The weights with its best value are saved in ``best/``.
    null: only the final weights are saved."""

    patience: int | None = None
    """Stop training after this number of consecutive evaluations without a new best value. Requires
    ``best``; at least 1. null: no early stopping."""

    decode: Any = GREEDY
    """How the answers are chosen, as in ``predict.decode``; ZeRO-3 and FSDP only allow greedy."""

    def __post_init__(self) -> None:
        check_at_least_1(self, "every_steps", "rows", "patience")
        check_decode(self.decode)
        if self.data is not None:
            check_not_training(self.data, "data")
        if self.patience is not None and self.best is None:
            raise ValueError("patience requires a metric; set best, or remove patience")
