"""Estimate the errors of labels from the differences between two labellings, by EM.

Axes    n rows, e values of a label (1, or 4 edges of a box), r resamples, k kinds of labels
Model   Rows are independent, and the second label is correct. With a fixed probability for each
        kind, the first label is
        - careful: the correct value plus an error. Errors are normal; each of the e values has its
          own mean (bias), and all have the same standard deviation (noise). If this is more likely,
          boxes have Student's t with 3 degrees of freedom, and values an asymmetric Laplace
          distribution with its peak at 0, such as times that are noted late.
        - random: uniform over all values, whatever is correct.
        - a mix-up: the value that the mix-up makes of the correct one, with an error like those of
          careful labels and a standard deviation of at least two units of the labels.
Fit     EM (Dempster, Laird and Rubin 1977; Kotz, Kozubowski and Podgorski 2001, section 3.5)
95 %    Noise and biases: bootstrap-t over images (Efron and Tibshirani 1993, section 12.5).
        Shares: Wilson's (1927), from 0 unless the fit without the kind is clearly less likely.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mm_numeric.evaluation.metrics.intervals import wilson_interval

Floats = NDArray[np.float64]

RANDOM = "random labels"
_RESAMPLES, _STEPS, _GAIN = 1000, 500, 1e-6
_FIRST_SHARE = 0.03  # of each kind but careful labels, at the first step
_Z, _TINY = 1.959964, 1e-300  # normal quantile for 95 %; smallest divisor
_BOX_ERRORS = np.array([[-1, 2, 0], [-1, 0, 2], [1, 2, 0], [1, 0, 2]]) / 4  # as LabelErrors.biases


class Differences(NamedTuple):
    """The differences between two labellings of the same rows."""

    values: Floats  # [n, e] label minus second label
    unit: float  # the smallest step between labels, to which they are rounded
    groups: NDArray[np.int64]  # [n] number of the image of each row; images are resampled whole
    log_random: float  # log density of a random label; -inf if none is random
    mixups: Mapping[str, Floats]  # [n, o, e] label minus the value of each form of the mix-up


class Estimate(NamedTuple):
    """An estimated value with its 95 % interval."""

    value: float
    low: float
    high: float


class LabelErrors(NamedTuple):
    """Estimated errors of labels."""

    noise: Estimate  # standard deviation of the errors of careful labels about their bias
    biases: tuple[Estimate, ...]  # of a value, or of boxes: larger on each side, right, down
    shares: Mapping[str, Estimate]  # of the labels that are random, and for each mix-up
    has_peak: bool  # the errors have their peak at 0, also if most have one direction


class _Fit(NamedTuple):
    mean: Floats  # [e]
    sd: float
    sides: tuple[float, float]  # mean sizes of the errors below and above the peak
    shares: Floats  # [k]


def estimate_errors(data: Differences) -> LabelErrors:
    """Estimate noise, biases and shares from differences, with 95 % intervals."""
    fits = [_fit(data, tailed=tailed) for tailed in (False, True)]
    tailed = fits[True][1] > fits[False][1]
    fit, likelihood = fits[tailed]
    posterior = np.exp(_posterior(data, fit, tailed=tailed)[0])
    images, rows = int(data.groups.max()) + 1, len(data.values)
    drawn = np.random.default_rng(0).multinomial(images, [1 / images] * images, _RESAMPLES)
    weights = np.concatenate([np.ones((1, images)), drawn])[:, data.groups] * posterior[0]
    squares = ((data.values - fit.mean) ** 2).mean(axis=1)
    noise = Estimate(*np.sqrt(np.maximum(_interval(squares, weights), 0)).tolist())
    errors = data.values if data.values.shape[1] == 1 else data.values @ _BOX_ERRORS
    shares = {}
    for kind, name in enumerate([RANDOM, *data.mixups], start=1):
        share, count = float(fit.shares[kind]), float(rows)
        if is_clear := likelihood - _fit(data, tailed=tailed, without=kind)[1] > _Z**2 / 2:
            # Labels that may be of several kinds count less.
            count = float(((posterior[kind] - share) ** 2).sum()) / (share * max(1 - share, 1e-12))
        own = share_of(share * count, count)
        shares[name] = own if is_clear else own._replace(low=0.0)
    biases = tuple(_interval(own, weights) for own in errors.T)
    return LabelErrors(noise, biases, shares, tailed and len(biases) == 1)


def _interval(values: Floats, weights: Floats) -> Estimate:
    """Return the mean of values [n] with its interval; the first weights of [1 + r, n] are 1."""
    weights = weights / np.maximum(weights.sum(axis=1, keepdims=True), _TINY)
    mean = weights @ values
    error = np.sqrt(np.maximum(weights @ values**2 - mean**2, 0))
    ratios = (mean - mean[0]) / np.where(error > 0, error, math.inf)
    ends = mean[0] - error[0] * np.percentile(ratios, [97.5, 2.5])
    return Estimate(float(mean[0]), *ends.tolist())


def share_of(found: float, count: float) -> Estimate:
    """Return the share of ``found`` in ``count`` with Wilson's interval."""
    low, high = wilson_interval(found / count, count)
    return Estimate(found / count, max(0.0, low), high)


def _fit(data: Differences, *, tailed: bool, without: int = 0) -> tuple[_Fit, float]:
    """Return the fit and its log likelihood; ``without`` is the number of a kind to leave out."""
    values, shares = data.values, np.array([1.0, *[_FIRST_SHARE] * (1 + len(data.mixups))])
    shares[1:] *= np.arange(1, len(shares)) != without
    middle = np.median(values, axis=0)
    sd = float(np.percentile(abs(values - middle), 90)) / 1.645
    fit, likelihood, before = _Fit(middle, sd, (sd, sd), shares / shares.sum()), 0.0, -math.inf
    for _ in range(_STEPS):
        log_kinds, log_rows = _posterior(data, fit, tailed=tailed)
        posterior, likelihood = np.exp(log_kinds), float(log_rows.sum())
        careful = posterior[0] / max(posterior[0].sum(), _TINY)
        mean = careful @ values
        sd = math.sqrt(float((careful @ (values - mean) ** 2).mean()))
        below, above = (float(careful @ np.maximum(s * values[:, 0], 0)) for s in (-1, 1))
        both = math.sqrt(below * above)
        fit = _Fit(mean, sd, (below + both, above + both), posterior.mean(axis=1))
        if likelihood - before < _GAIN:
            break
        before = likelihood
    return fit, likelihood


def _posterior(data: Differences, fit: _Fit, *, tailed: bool) -> tuple[Floats, Floats]:
    """Return the log probability of each kind [k, n] given the label, and the log density [n]."""
    least = data.unit / math.sqrt(12)  # the standard deviation of rounding
    sd = max(fit.sd, least)
    if not tailed:
        kinds = [_log_normal(data.values - fit.mean, sd)]
    elif data.values.shape[1] == 1:
        below, above = (max(side, least) for side in fit.sides)
        own = data.values[:, 0]
        kinds = [np.where(own < 0, own / below, -own / above) - math.log(below + above)]
    else:
        squares = ((data.values - fit.mean) ** 2).sum(axis=1) / sd**2
        kinds = [math.log(3.75 / (math.pi * sd**2) ** 2) - 3.5 * np.log1p(squares)]
    kinds.append(np.full(len(data.values), data.log_random))
    for forms in data.mixups.values():
        each = _log_normal(forms - fit.mean, max(sd, 2 * data.unit))
        kinds.append(np.logaddexp.reduce(each, axis=1) - math.log(forms.shape[1]))
    with np.errstate(divide="ignore"):
        joint = np.stack(kinds) + np.log(fit.shares)[:, None]
    rows = np.logaddexp.reduce(joint, axis=0)
    return joint - rows, rows


def _log_normal(errors: Floats, sd: float) -> Floats:
    """Return the log density [...] of independent normal errors [..., e]."""
    return -0.5 * ((errors / sd) ** 2 + math.log(2 * math.pi * sd**2)).sum(axis=-1)
