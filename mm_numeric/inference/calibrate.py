"""Calibration: map the confidence of an answer to the probability that the answer is correct.

A model learns its confidences from the training labels. If the labels are noisy or few, confidences
differ from the share of correct answers. A map is therefore fitted to answers whose correctness is
known, for rows that are neither training nor test rows. There are two maps:

    temperature   one parameter T: the probability of each candidate answer is raised to the power
                  1 / T. Fitted only if the model computed the probabilities of the candidates:
                  shares of sampled answers are too coarse
    platt         two parameters: sigmoid(slope * logit(confidence) + offset) (Platt 1999)

Both are fitted by minimising the log loss. They change the confidence of an answer, and never the
answer. The file calibration.RULE.json in the folder of a run has both maps. Its field ``applied``
names the map with the lower cross-validated log loss. This module does not import torch.

Shapes    n answers or objects, k candidates of an answer; arrays are float64
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mm_numeric.answers import EmbeddedImage, Example
from mm_numeric.config.data import Sources, listed, named
from mm_numeric.config.schema import Config
from mm_numeric.evaluation.metrics.bootstrap import group_numbers
from mm_numeric.evaluation.metrics.calibration import Confidences, reliability_entry
from mm_numeric.inference.number_distribution import Floats
from mm_numeric.inference.predictions_file import record_of
from mm_numeric.io.files import read_json, sha256_of, write_json
from mm_numeric.io.log import logger
from mm_numeric.runs.folder import CALIBRATION, decoded_name, differences_text

FEWEST = 20
"""Smallest number of questions that a calibration is fitted to."""

RAW = "raw"

_OF_THE_FILE = ("rows", "precision", "calibration")
"""Fields of *.made_by.json that are left out of ``Calibration.settings``."""

VERSION = 1
"""Version of calibration.RULE.json."""

PLATT, TEMPERATURE = "platt", "temperature"

_CLOSEST = 1e-3
"""Confidences are clipped to this distance from 0 and 1, where log loss and logit are infinite."""

_LARGEST = 20.0  # temperature; the smallest is 1 / 20

Support = tuple[Sequence[float], Sequence[float]]
"""Two lists with one value for each of k candidates: the probability of the candidate, and how
correct the chosen answer is if this candidate is the true answer, 0 to 1."""


class Supports(NamedTuple):
    """The ``Support`` of each of n answers, padded to k, the largest number of candidates."""

    logs: Floats
    """Logarithm of the probability of each candidate, [n, k]; -inf for padding."""

    rights: Floats
    """How correct the answer is if the candidate is true, 0 to 1, [n, k]."""

    @classmethod
    def of(cls, supports: Sequence[Support]) -> "Supports":
        """Pad the supports of n answers to the same length."""
        size = len(supports), max(len(probs) for probs, _ in supports)
        probs, rights = np.zeros(size), np.zeros(size)
        for i, own in enumerate(supports):
            probs[i, : len(own[0])], rights[i, : len(own[0])] = own
        with np.errstate(divide="ignore"):
            return cls(np.log(probs), rights)

    def select(self, at: Any) -> "Supports":
        """Return the supports of the answers with the indices, or the mask, ``at``."""
        return Supports(self.logs[at], self.rights[at])

    def confidences(self, temperature: float) -> Floats:
        """Return the confidence of each answer under a temperature, [n].

        The total probability of the candidates is unchanged.
        """
        covered = np.exp(self.logs).sum(axis=1)
        scaled = self.logs / temperature
        weights = np.exp(scaled - scaled.max(axis=1, keepdims=True))
        shares: Floats = (weights * self.rights).sum(axis=1) / weights.sum(axis=1)
        return (covered * shares).clip(0, 1)


def logit(confidence: Any) -> Floats:
    """Return log(c / (1 - c)), after clipping c to at least ``_CLOSEST`` from 0 and 1."""
    inside = np.clip(np.asarray(confidence, dtype=np.float64), _CLOSEST, 1 - _CLOSEST)
    return np.log(inside) - np.log1p(-inside)


def log_loss(confidence: Floats, right: Floats) -> float:
    """Return the mean negative log likelihood; ``right`` is 1 for correct answers, 0 for wrong."""
    inside = confidence.clip(_CLOSEST, 1 - _CLOSEST)
    return float(-(right * np.log(inside) + (1 - right) * np.log1p(-inside)).mean())


@dataclass(frozen=True)
class Platt:
    """The map sigmoid(slope * logit(confidence) + offset)."""

    slope: float
    offset: float

    def __call__(self, confidence: Any) -> Floats:
        """Return the calibrated confidences, [n]."""
        return 1 / (1 + np.exp(-(self.slope * logit(confidence) + self.offset)))

    @classmethod
    def fit(cls, confidence: Floats, right: Floats) -> "Platt":
        """Fit to n answers by Newton's method, with the smoothed targets of Platt (1999).

        With the targets 0 and 1, the offset would be infinite if all answers were correct.
        """
        features = np.column_stack([logit(confidence), np.ones(len(right))])
        correct = right.sum()
        targets = np.where(right > 0, (correct + 1) / (correct + 2), 1 / (len(right) - correct + 2))

        def loss(values: Floats) -> float:
            logits = features @ values
            return float((np.logaddexp(0, logits) - targets * logits).sum())

        values = np.array([1.0, 0.0])
        for _ in range(100):
            found = 1 / (1 + np.exp(-features @ values))
            gradient = features.T @ (found - targets)
            hessian = (features.T * (found * (1 - found))) @ features
            # lstsq, not solve: if all confidences are equal, the matrix is singular.
            step = np.linalg.lstsq(hessian, gradient, rcond=None)[0]
            size = 1.0
            while size > 1e-9 and loss(values - size * step) > loss(values):
                size /= 2
            values = values - size * step
            if np.abs(size * step).max() < 1e-12:
                break
        return cls(float(values[0]), float(values[1]))


def fit_temperature(supports: Supports, right: Floats) -> float:
    """Return the temperature, 1/20 to 20, with the least log loss of n answers."""

    def loss(log: float) -> float:
        return log_loss(supports.confidences(math.exp(log)), right)

    limit, step = math.log(_LARGEST), math.log(_LARGEST) / 30
    best = min(np.arange(-30, 31) * step, key=loss)
    low, high = max(best - step, -limit), min(best + step, limit)
    for _ in range(40):  # ternary search
        third = (high - low) / 3
        if loss(low + third) <= loss(high - third):
            high -= third
        else:
            low += third
    return math.exp((low + high) / 2)


class Fitted(NamedTuple):
    """Both maps, fitted to the same answers."""

    platt: Platt
    temperature: float | None
    """The fitted temperature; None if the supports of the answers are unknown."""

    @classmethod
    def of(cls, confidence: Floats, right: Floats, supports: Supports | None) -> "Fitted":
        """Fit both maps to n answers."""
        temperature = None if supports is None else fit_temperature(supports, right)
        return cls(Platt.fit(confidence, right), temperature)

    def confidences(self, confidence: Floats, supports: Supports | None) -> dict[str, Floats]:
        """Return the calibrated confidences of n answers under each map."""
        found = {PLATT: self.platt(confidence)}
        if supports is not None and self.temperature is not None:
            found[TEMPERATURE] = supports.confidences(self.temperature)
        return found


def cross_validated(
    confidence: Floats, right: Floats, groups: Any, supports: Supports | None, folds: int = 5
) -> dict[str, Floats]:
    """Return cross-validated confidences: each map is fitted to the answers of the other folds.

    ``groups`` [n] is the group of each answer's row. A group is not split: group i is in fold
    ``i % folds``. The result has the confidences [n] of each map.
    """
    number = group_numbers(groups)
    found: dict[str, Floats] = {}
    for fold in range(folds):
        own = number % folds == fold
        fitted = Fitted.of(
            confidence[~own], right[~own], None if supports is None else supports.select(~own)
        )
        parts = fitted.confidences(
            confidence[own], None if supports is None else supports.select(own)
        )
        for name, values in parts.items():
            found.setdefault(name, np.empty(len(right)))[own] = values
    return found


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """The calibration of a run under a decoding rule."""

    version: int = VERSION
    rule: str
    settings: Mapping[str, Any]
    """Settings of ``predict`` that the confidences depend on, such as ``max_new_tokens``."""

    correct: str
    """When an answer or object counts as correct, such as ``within 5 minutes``."""

    per_object: bool
    """True for lists of objects, each of which has a confidence."""

    applied: str
    """The map that ``predict`` applies, ``platt`` or ``temperature``."""

    platt: Platt
    temperature: float | None
    """The fitted temperature; None if the candidates are answers that were drawn at random."""

    rows: int
    """Number of rows that the maps were fitted to."""

    left_out: int
    """Number of rows that were left out because their questions are training or test questions."""

    checked: bool
    """False if the training or test rows could not be read, so that no row was left out."""

    data: str
    """The file with the rows that the maps were fitted to."""

    reliability: Mapping[str, Mapping[str, Any]]
    """Cross-validated metrics of the confidences before calibration (``raw``), and of the maps
    ``platt`` and ``temperature``: ``count``, ``mean_confidence``, ``right`` (share of correct
    answers), ``log_loss`` and the other metrics of ``reliability_entry``."""

    def __call__(self, confidence: float, support: Support | None) -> float:
        """Return the calibrated confidence of an answer or object."""
        if self.applied == TEMPERATURE and support is not None:
            assert self.temperature is not None
            return float(Supports.of([support]).confidences(self.temperature)[0])
        return float(self.platt(confidence))

    def record(self) -> dict[str, Any]:
        """Return the fitted parameters, to store them next to predictions that they changed."""
        return {"applied": self.applied, "temperature": self.temperature, **asdict(self.platt)}

    def write(self, run: Path) -> Path:
        """Write calibration.RULE.json in the folder of the run, and return its path."""
        path = run / decoded_name(CALIBRATION, self.rule)
        write_json(path, asdict(self), indent=1)
        return path


def read_calibration(run: Path, rule: str) -> Calibration | None:
    """Return the calibration of a run for a decoding rule; None if the run has no such file."""
    path = run / decoded_name(CALIBRATION, rule)
    if not path.is_file():
        return None
    found = read_json(path)
    again = f"delete it, or fit it again with `mm-numeric calibrate {run} --data ROWS`"
    if found.get("version") != VERSION:
        raise ValueError(f"{path}: its version is {found.get('version')}, not {VERSION}; {again}.")
    try:
        return Calibration(**{**found, "platt": Platt(**found["platt"])})
    except (KeyError, TypeError):
        raise ValueError(f"{path} is damaged; {again}.") from None


def check_settings(found: Calibration, settings: Mapping[str, Any], run: Path) -> None:
    """Raise ValueError if ``settings`` differ from those of the answers of the fit."""
    one, two = ({**own, **own["decode"]} for own in (found.settings, settings))
    if different := differences_text({**one, "decode": None}, {**two, "decode": None}):
        raise ValueError(
            f"{run / decoded_name(CALIBRATION, found.rule)} was fitted to answers with other "
            f"settings ({different}); predict with the same ones, fit it again (`mm-numeric "
            "calibrate`), or delete the file."
        )


def fit_calibration(
    config: Config,
    source: Sources,
    predictions: Path,
    rule: str,
    rows: Sequence[Mapping[str, Any]],
    confidences: Confidences | None,
) -> Calibration:
    """Fit the maps to the answers in a file that ``predict`` wrote with ``calibrates=True``.

    ``source`` are the rows that were answered. ``rows`` are the lines of the file, and
    ``confidences`` were computed from them by the scorer. Raises ValueError if the task does not
    define correct answers, or if there are too few answers.
    """
    if confidences is None:
        raise ValueError(
            f"{predictions}: the task {config.task_name} does not define when an answer with a "
            "confidence is correct, so that there is nothing to calibrate."
        )
    known = known_ids(config, source)
    kept = [
        (known is None or rows[i]["id"] not in known)
        and rows[i]["decode"]["confidence"] is not None  # None for unparseable answers
        for i in confidences.index.tolist()
    ]
    raw, right = confidences.confidence[kept], confidences.right[kept]
    groups = confidences.groups[kept]
    used = [rows[i] for i in confidences.index[kept].tolist()]
    if (count := len(np.unique(groups))) < FEWEST:
        raise ValueError(
            f"{named(source)}: {count} questions with a parseable answer are neither training nor "
            f"test questions; a calibration needs at least {FEWEST}, better 250. Give more rows."
        )
    supports = None
    if not confidences.per_object and all(row["decode"]["support"] for row in used):
        supports = Supports.of([row["decode"]["support"] for row in used])
    held_out = cross_validated(raw, right, groups, supports)
    fitted = Fitted.of(raw, right, supports)
    made_by = read_json(record_of(predictions))
    return Calibration(
        rule=rule,
        settings={name: own for name, own in made_by.items() if name not in _OF_THE_FILE},
        correct=confidences.correct,
        per_object=confidences.per_object,
        applied=min(held_out, key=lambda name: log_loss(held_out[name], right)),
        platt=fitted.platt,
        temperature=fitted.temperature,
        rows=len({row["id"] for row in used}),
        left_out=sum(row["id"] in (known or ()) for row in rows),
        checked=known is not None,
        data=named(source),
        reliability={
            name: {"log_loss": log_loss(own, right), **reliability_entry(own, right, groups)}
            for name, own in {RAW: raw, **held_out}.items()
        },
    )


def known_ids(
    config: Config, source: Sources, known: Sequence[Sources] | None = None
) -> set[str] | None:
    """Return the ids of the rows of ``source`` whose question is also a question of ``known``.

    By default, ``known`` are the training and the test rows of the config. Two questions are equal
    if their prompts and the contents of their images are equal. If the rows of ``known`` cannot be
    read, log a warning and return None.
    """
    from mm_numeric.data.examples import load_examples

    cache = Path(config.data.cache)
    own = load_examples(config.task, source, cache, training=False)
    sizes = {image.stat().st_size for e in own for image in e.images if isinstance(image, Path)}
    content = lru_cache(None)(lambda image: _content(image, sizes))

    def questions(examples: Iterable[Example]) -> set[tuple[Any, ...]]:
        return {(e.prompt, *map(content, e.images)) for e in examples}

    found: set[tuple[Any, ...]] = set()
    for others in (config.data.train, config.data.test) if known is None else known:
        try:
            # Sources are loaded one by one, because the same id may be in two of them.
            for each in listed(others):
                found |= questions(load_examples(config.task, each, cache, training=False))
        except (ValueError, OSError) as error:
            logger.warning(
                "%s: not compared with the training and test rows of the run: %s",
                named(source),
                error,
            )
            return None
    return {e.id for e in own if not found.isdisjoint(questions([e]))}


def _content(image: Any, sizes: set[int]) -> Any:
    """Return a hash of an image file, or only its size in bytes if no file in ``sizes`` has it."""
    if isinstance(image, EmbeddedImage):
        return str(image)
    size = image.stat().st_size
    return sha256_of(image) if size in sizes else size
