"""Estimate the errors of labels from the differences between two labellings, by EM.

Axes    n rows, e values of a label (1 for a time or a number, 4 edges of a box), r resamples,
        k kinds of labels: careful, random, and one for each mix-up
Model   Rows are independent. With a fixed probability for each kind, a label is
        - careful: the correct value plus an error. Errors of the e values have their own means (the
          biases) and one standard deviation (the noise). Their distribution is normal or, if this
          is more likely, has more exact labels and longer tails: an asymmetric Laplace distribution
          with its peak at 0, whose limit are exponential errors to one side, such as times that are
          noted late; for boxes Student's t. Noise and biases are moments of the careful labels: the
          distribution only decides which labels are careful.
        - random: uniform over all values, whatever is correct.
        - a mix-up: the value that the mix-up makes of the correct one, with an error like those of
          careful labels and a standard deviation of at least two units of the labels.
        The second labelling is correct. With ``same_care``, it has errors of the same distribution
        instead: differences then have twice the variance, and biases cancel.
Fit     EM (Dempster, Laird and Rubin 1977). The estimators of the asymmetric Laplace distribution
        are those of Kotz, Kozubowski and Podgorski (2001, section 3.5).
95 %    Noise and biases: bootstrap-t over images, for noise of the logarithm; the probabilities of
        the kinds stay those of the fit. Shares: Wilson's interval (1927). It begins at 0 unless
        the fit without the kind is significantly less likely.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

RANDOM = "random labels"
_RESAMPLES, _STEPS, _GAIN = 1000, 500, 1e-6
_FREEDOM = 3.0  # of Student's t
_FIRST_SHARE = 0.03  # of each kind but careful labels, at the first step
_Z = 1.959964  # quantile of the normal distribution for 95 %


@dataclass(frozen=True, kw_only=True)
class Differences:
    """The differences between two labellings of the same rows."""

    values: Floats
    """[n, e] label minus second label."""

    mixups: Mapping[str, Floats] = field(default_factory=dict)
    """Mix-up -> [n, o, e]: label minus the value that each of o forms of the mix-up would give."""

    log_random: float | None = None
    """Logarithm of the density of a random label; None if labels cannot be random."""

    unit: float
    """The smallest step between labels; labels are rounded to it."""

    groups: NDArray[np.int64]
    """[n] number of the image of each row; images are resampled as a whole."""


class Estimate(NamedTuple):
    """An estimated value with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class LabelErrors:
    """Estimated errors of labels."""

    noise: Estimate
    """Standard deviation of the errors of careful labels about their bias."""

    biases: tuple[Estimate, ...]
    """Mean error of careful labels: of a value, or of boxes (larger on each side, right, down)."""

    shares: Mapping[str, Estimate]
    """Share of the labels that are random, and for each mix-up."""

    has_peak: bool
    """True if the errors have their peak at 0, also if most of them have one direction."""


class _Fit(NamedTuple):
    mean: Floats  # [e]
    sd: float
    sides: tuple[float, float]  # mean sizes of the errors below and above the peak
    shares: Floats  # [k]


def estimate_errors(data: Differences, *, same_care: bool = False, seed: int = 0) -> LabelErrors:
    """Estimate noise, biases and shares from differences, with 95 % intervals."""
    names = [*[RANDOM] * (data.log_random is not None), *data.mixups]
    fits = {tailed: _fit(data, tailed=tailed) for tailed in (False, True)}
    tailed = fits[True][1] > fits[False][1]
    fit, likelihood = fits[tailed]
    posterior = np.exp(_posterior(data, fit, tailed=tailed)[0])
    weights = _resampled(data.groups, seed) * posterior[0]
    squares = ((data.values - fit.mean) ** 2).mean(axis=1)
    is_seen = fit.sd > data.unit / math.sqrt(12)  # more than rounding
    noise = _interval(squares, weights, of_logarithm=is_seen)
    scale = 0.5 if same_care else 1.0
    noise = Estimate(*(math.sqrt(max(0.0, scale * value)) for value in noise))
    shares = {}
    for kind, name in enumerate(names, start=1):
        needed = likelihood - _fit(data, tailed=tailed, without=kind)[1] > _Z**2 / 2
        share, count = float(fit.shares[kind]), float(len(data.values))
        if needed:  # labels that may be of several kinds count less
            count = float(((posterior[kind] - share) ** 2).sum()) / (share * max(1 - share, 1e-12))
        own = share_of(share * count, count, of_two=same_care)
        shares[name] = own if needed else own._replace(low=0.0)
    return LabelErrors(
        noise=noise if is_seen else noise._replace(low=0.0),
        biases=tuple(_interval(own, weights) for own in _sides(data.values).T),
        shares=shares,
        has_peak=tailed and data.values.shape[1] == 1,
    )


def _resampled(groups: NDArray[np.int64], seed: int) -> Floats:
    """Return how often each row is drawn [1 + r, n]: once, and in each bootstrap sample."""
    count = int(groups.max()) + 1
    drawn = np.random.default_rng(seed).multinomial(count, [1 / count] * count, _RESAMPLES)
    return np.concatenate([np.ones((1, count)), drawn])[:, groups]


def _interval(values: Floats, weights: Floats, *, of_logarithm: bool = False) -> Estimate:
    """Return the mean of values [n] with its interval; the first of the weights [1 + r, n] are 1.

    The interval is a bootstrap-t interval (Efron and Tibshirani 1993, section 12.5).
    """
    weights = weights / np.maximum(weights.sum(axis=1, keepdims=True), 1e-300)
    mean = weights @ values
    error = np.sqrt(np.maximum(weights @ values**2 - mean**2, 0))
    if error[0] == 0:
        return Estimate(*[float(mean[0])] * 3)
    if of_logarithm:
        mean, error = np.log(np.maximum(mean, 1e-300)), error / np.maximum(mean, 1e-300)
    ratios = (mean[1:] - mean[0]) / np.maximum(error[1:], 1e-12 * error[0])
    high, low = np.percentile(ratios, [2.5, 97.5])
    ends = (float(mean[0] - error[0] * ratio) for ratio in (0.0, low, high))
    return Estimate(*(math.exp(end) if of_logarithm else end for end in ends))


def share_of(found: float, count: float, *, of_two: bool = False) -> Estimate:
    """Return the share of ``found`` in ``count`` with Wilson's interval.

    With ``of_two``, either of two labellings may be the wrong one, and the share is that of one.
    """
    share, extra = found / count, _Z**2 / count
    middle, half = share + extra / 2, math.sqrt(extra * (share * (1 - share) + extra / 4))
    values = share, max(0.0, (middle - half) / (1 + extra)), (middle + half) / (1 + extra)
    return Estimate(*(1 - math.sqrt(1 - min(v, 1.0)) if of_two else v for v in values))


def _sides(values: Floats) -> Floats:
    """Return the errors [n, 1 or 3]: of values, or of boxes (larger on each side, right, down)."""
    if values.shape[1] == 1:
        return values
    left, top, right, bottom = values.T
    return np.stack([(right + bottom - left - top) / 4, (left + right) / 2, (top + bottom) / 2], 1)


def _fit(data: Differences, *, tailed: bool, without: int | None = None) -> tuple[_Fit, float]:
    """Return the fit and its log likelihood; ``without`` is the number of a kind to leave out.

    The better of two fits is returned, because many labels may be equal and others noisy: one
    starts from the median absolute error, the other from the 90th percentile.
    """
    middle = np.median(data.values, axis=0)
    half, most = np.percentile(abs(data.values - middle), [50, 90])
    shares = np.full(1 + (data.log_random is not None) + len(data.mixups), _FIRST_SHARE)
    shares[0] = 1
    if without is not None:
        shares[without] = 0
    fits = []
    for sd in (half / 0.6745, most / 1.645):  # quantiles of the normal distribution
        fit, likelihood = _Fit(middle, sd, (sd, sd), shares / shares.sum()), -math.inf
        for _ in range(_STEPS):
            log_kinds, log_rows = _posterior(data, fit, tailed=tailed)
            fit = _next_fit(data, np.exp(log_kinds))
            before, likelihood = likelihood, float(log_rows.sum())
            if likelihood - before < _GAIN:
                break
        fits.append((fit, likelihood))
    return max(fits, key=lambda own: own[1])


def _next_fit(data: Differences, posterior: Floats) -> _Fit:
    """Return the fit to the probabilities of each kind [k, n]."""
    careful = posterior[0] / max(posterior[0].sum(), 1e-300)
    mean = careful @ data.values
    sd = math.sqrt(float((careful @ (data.values - mean) ** 2).mean()))
    below, above = (float(careful @ np.maximum(s * data.values[:, 0], 0)) for s in (-1, 1))
    both = math.sqrt(below * above)
    return _Fit(mean, sd, (below + both, above + both), posterior.mean(axis=1))


def _posterior(data: Differences, fit: _Fit, *, tailed: bool) -> tuple[Floats, Floats]:
    """Return the log probability of each kind [k, n] given the label, and the log density [n]."""
    least = data.unit / math.sqrt(12)  # the standard deviation of rounding
    sd = max(fit.sd, least)
    if tailed and data.values.shape[1] == 1:
        below, above = (max(side, least) for side in fit.sides)
        own = data.values[:, 0]
        careful = np.where(own < 0, own / below, -own / above) - math.log(below + above)
    else:
        careful = _log_density(data.values - fit.mean, sd, tailed=tailed)
    kinds = [careful]
    if data.log_random is not None:
        kinds.append(np.full(len(careful), data.log_random))
    for forms in data.mixups.values():
        each = _log_density(forms - fit.mean, max(sd, 2 * data.unit), tailed=False)
        kinds.append(np.logaddexp.reduce(each, axis=1) - math.log(forms.shape[1]))
    with np.errstate(divide="ignore"):
        joint = np.stack(kinds) + np.log(fit.shares)[:, None]
    rows = np.logaddexp.reduce(joint, axis=0)
    return joint - rows, rows


def _log_density(errors: Floats, sd: float, *, tailed: bool) -> Floats:
    """Return the log density of errors [..., e]: normal, or Student's t."""
    count, squares = errors.shape[-1], (errors**2).sum(axis=-1)
    if not tailed:
        return -squares / (2 * sd**2) - count * math.log(sd * math.sqrt(2 * math.pi))
    freedom, both = _FREEDOM, (_FREEDOM + count) / 2
    scale = sd**2 * (freedom - 2)  # times the degrees of freedom
    constant = math.lgamma(both) - math.lgamma(freedom / 2) - count / 2 * math.log(math.pi * scale)
    return constant - both * np.log1p(squares / scale)
