"""Tables of a comparison: metrics of each objective and decoding rule, and their calibration.

A run has the key (name, rule): the name of its objective or warm start, and the rule that its
answers were decoded with. Each key has one run for each training seed, in the same order.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from mm_numeric.comparison.hypotheses import Hypothesis
from mm_numeric.config.decoding import GREEDY
from mm_numeric.evaluation.metrics import calibration
from mm_numeric.evaluation.metrics.base import Metric, MetricOnRows
from mm_numeric.evaluation.metrics.bootstrap import (
    FEWEST_RESAMPLES,
    MetricSample,
    joined,
    sample_metrics,
)
from mm_numeric.evaluation.metrics.calibration import Confidences, thresholds
from mm_numeric.evaluation.metrics.intervals import metric_interval, smallest_effect, standard_error
from mm_numeric.evaluation.score_text import in_unit
from mm_numeric.evaluation.scores import Scores
from mm_numeric.registry import unknown

_CURVE_POINTS = 100
_CALIBRATION = {
    "ece": calibration.expected_calibration_error,
    "auroc": calibration.auroc,
    "aurc": calibration.aurc,
}
SATURATED = 0.02
"""A metric in percent cannot show differences if it is below this share for all objectives, or
within this share of 100 % for all objectives."""

Runs = Mapping[tuple[str, str], Sequence[Scores]]
"""Maps (name of a run, decoding rule) to the scores of each seed."""

Entries = dict[str, dict[str, Any]]


class MetricTables(NamedTuple):
    """The metrics of all runs, with confidence intervals and differences."""

    table: Entries
    """``table[name][metric]`` for greedy decoding. The entry ``difference`` is the difference to
    the reference of the objective; None without a reference, and for warm starts."""

    decoding: dict[str, Entries]
    """``decoding[name][rule][metric]``. The entry ``difference`` is the difference to greedy
    decoding of the same run; None for greedy. Objectives also have ``from_reference``, the
    difference to greedy decoding of the reference (of the objective itself if it has none). Names
    whose only rule is greedy, such as a regression head, are left out."""

    hypotheses: dict[Hypothesis, dict[str, Any]]
    """The difference of each hypothesis of ``compare.hypotheses``."""

    metrics: list[Metric]
    """All metrics. The first one is the headline metric (``headline_first``). ``correct_p_values``
    corrects its p-values."""


def metric_tables(
    runs: Runs,
    references: Mapping[str, str | None],
    stated: Sequence[Hypothesis] = (),
    first_metric: str | None = None,
) -> MetricTables:
    """Compute the mean of each metric over seeds, its confidence interval, and differences.

    ``references`` maps each objective to the objective that it is compared with, or to None.
    ``stated`` are the hypotheses of ``compare.hypotheses``, and ``first_metric`` is
    ``compare.metric``.
    """
    names, rules = (list(dict.fromkeys(key[i] for key in runs)) for i in (0, 1))
    table: Entries = {name: {} for name in names}
    decoding: dict[str, Entries] = {}
    if len(rules) > 1:
        explored = [name for name in names if (name, rules[-1]) in runs]
        decoding = {name: {rule: {} for rule in rules} for name in explored}
    tested: dict[Hypothesis, dict[str, Any]] = {}
    sampled = _sampled(runs, runs[next(iter(references)), GREEDY])
    for (metric, _), samples in sampled:
        for own in stated:
            if own.metric == metric.name:
                tested[own] = _estimate(samples[own.better] - samples[own.other])
        for name in names:
            reference = references.get(name)
            against = None if reference is None else (reference, GREEDY)
            table[name][metric.name] = _entry(samples, (name, GREEDY), against)
            for rule in decoding.get(name, ()):
                greedy = None if rule == GREEDY else (name, GREEDY)
                entry = _entry(samples, (name, rule), greedy)
                if greedy and name in references:
                    change = samples[name, rule] - samples[against or greedy]
                    entry["from_reference"] = _estimate(change)
                decoding[name][rule][metric.name] = entry
    reported = [on_rows for on_rows, _ in sampled]
    metrics = [metric for metric, _ in reported]
    means = {m.name: [table[name][m.name]["value"] for name in references] for m in metrics}
    for own in stated:
        if own not in tested:
            raise unknown(own.metric, [metric.name for metric in metrics], "metric", own.family)
    ordered = {own: tested[own] for own in stated}
    return MetricTables(table, decoding, ordered, headline_first(reported, means, first_metric))


def test_sets(runs: Sequence[Scores]) -> list[list[int]]:
    """Group the seeds of ``runs`` by their test rows, which differ between folds."""
    sets: dict[bytes, list[int]] = {}
    for seed, own in enumerate(runs):
        sets.setdefault(own.groups.tobytes(), []).append(seed)
    return list(sets.values())


def _sampled(
    runs: Runs, first: Sequence[Scores]
) -> list[tuple[MetricOnRows, dict[tuple[str, str], MetricSample]]]:
    """Return each metric that all test sets have, with a sample for each key of ``runs``.

    Seeds with the same test rows share the resamples; those of different rows are independent.
    """
    sets, found = test_sets(first), list[dict[str, dict[tuple[str, str], MetricSample]]]()
    for number, seeds in enumerate(sets):
        reported, groups = first[seeds[0]].metrics_on_rows, first[seeds[0]].groups
        columns = {key: [own[seed].columns for seed in seeds] for key, own in runs.items()}
        # One seed has percentiles, several have variances, also if each has its own test rows.
        resamples = FEWEST_RESAMPLES if len(sets) > 1 else None
        samples = sample_metrics(reported, columns, groups, resamples=resamples, seed=number)
        found.append(dict(zip([own.metric.name for own in reported], samples, strict=True)))
    return [
        (own, {key: joined([part[name][key] for part in found], sets) for key in runs})
        for own in first[0].metrics_on_rows
        if all((name := own.metric.name) in part for part in found)
    ]


def ensemble_tables(runs: Runs, ensembles: Runs) -> dict[str, Entries]:
    """Return ``found[name][rule][metric]`` for ensembles, as in ``MetricTables.decoding``.

    The interval of an ensemble accounts for the variation between test rows only. Its
    ``difference`` is the difference to the mean of the single runs under the same decoding rule.
    """
    found: dict[str, Entries] = {}
    if not ensembles:
        return found
    first = next(iter(runs.values()))[0]
    columns = {("single", *key): [own.columns for own in runs[key]] for key in ensembles}
    # The answers of the ensemble are paired with the answers of each single run.
    columns |= {
        ("ensemble", *key): [ensembles[key][0].columns] * len(runs[key]) for key in ensembles
    }
    for (metric, _), samples in zip(
        first.metrics_on_rows,
        sample_metrics(first.metrics_on_rows, columns, first.groups),
        strict=True,
    ):
        for name, rule in ensembles:
            own, single = samples["ensemble", name, rule], samples["single", name, rule]
            entry = {**_estimate(own.first_run()), "difference": _estimate(own - single)}
            found.setdefault(name, {}).setdefault(rule, {})[metric.name] = entry
    return found


def headline_first(
    reported: Sequence[MetricOnRows],
    means: Mapping[str, Sequence[float | None]],
    wanted: str | None = None,
) -> list[Metric]:
    """Return the metrics in their order, except that the headline metric comes first.

    The headline metric is ``wanted``, if given; otherwise the main metric, which is reported first.
    If this cannot show differences, it is the next metric over the same rows that can, with a value
    for each objective. ``means`` maps the name of a metric to its mean for each objective.
    """
    headline, rows = reported[0]
    if wanted is not None:
        headline = next(metric for metric, _ in reported if metric.name == wanted)
    elif _is_saturated(headline, means[headline.name]):
        same_rows = (metric for metric, own in reported if own is rows)
        known = (metric for metric in same_rows if None not in means[metric.name])
        found = (metric for metric in known if not _is_saturated(metric, means[metric.name]))
        headline = next(found, headline)
    return [headline, *(metric for metric, _ in reported if metric != headline)]


def _is_saturated(metric: Metric, means: Sequence[float | None]) -> bool:
    """Return True if all means are so close to 0 or to 100 % that they can hardly differ."""
    known = [mean for mean in means if mean is not None]
    if not metric.is_share or len(known) < len(means):
        return False
    return max(known) < SATURATED or min(known) > 1 - SATURATED


def headline_fact(summary: Mapping[str, Any], runs: Runs) -> dict[str, str]:
    """Explain why the main metric of the task shows no differences; {} if it may show some."""
    scores = [own for name in summary["table"] for own in runs[name, GREEDY]]
    main, first = scores[0].metrics_on_rows[0][0], summary["metrics"][0]
    means = [entry[main.name]["value"] for entry in summary["table"].values()]
    if summary["metric"] or not _is_saturated(main, means):
        return {}
    is_low = max(means) < SATURATED
    end = f"below {100 * SATURATED:g} %" if is_low else f"above {100 * (1 - SATURATED):g} %"
    text = (
        f"{main.label} is {end} for every objective, so close to its limit that it cannot show "
        "differences"
    )
    if first["name"] != main.name:
        text += f"; the first metric is {first['label']} instead"
    reasons = sum((Counter(own.failures) for own in scores), Counter[str]())
    if is_low and reasons:
        share = reasons.total() / sum(own.count for own in scores)
        ((reason, count),) = reasons.most_common(1)
        text += (
            f"; {in_unit(share, '%')} of the answers could not be parsed, most of them "
            f"({count:,}) for the reason: {reason}"
        )
    return {"headline": text}


def calibration_table(runs: Runs) -> dict[str, Entries]:
    """Return ``calibration[name][rule]`` for runs whose answers have confidences for all seeds."""
    table: dict[str, Entries] = {}
    for (name, rule), seeds in runs.items():
        found = [scores.confidences for scores in seeds if scores.confidences is not None]
        if len(found) == len(seeds):
            table.setdefault(name, {})[rule] = calibration_entry(found)
    return table


def coverage_table(runs: Runs) -> dict[str, Entries]:
    """Return ``coverage[name][rule]``: how much of the distributions was explored and sampled."""
    table: dict[str, Entries] = {}
    for (name, rule), seeds in runs.items():
        found = [own.coverage for own in seeds if own.coverage is not None]
        if len(found) == len(seeds):
            covered, drawn = (np.concatenate(own) for own in list(zip(*found, strict=True))[:2])
            whole = calibration.Coverage(covered, drawn, all(own.is_completed for own in found))
            table.setdefault(name, {})[rule] = whole.results()
    return table


def calibration_entry(seeds: Sequence[Confidences]) -> dict[str, Any]:
    """Summarise the confidences of one objective and rule, over all seeds.

    ``ece``, ``auroc``, ``aurc`` and ``gap`` are means over the seeds that have a value; the rest is
    computed from the answers of all seeds. ``reliability`` has [low, high, count, mean confidence,
    share correct] for each bin, and ``risk_coverage`` up to 100 points [coverage, share wrong].
    """
    confidence = np.concatenate([found.confidence for found in seeds])
    right = np.concatenate([found.right for found in seeds])
    curve = np.stack(calibration.risk_coverage(confidence, right), axis=1)
    at = np.unique(np.linspace(0, len(curve) - 1, _CURVE_POINTS).round().astype(np.int64))
    return {
        "correct": seeds[0].correct,
        "per_object": seeds[0].per_object,
        "count": len(right),
        **{
            name: _mean([function(own.confidence, own.right) for own in seeds])
            for name, function in _CALIBRATION.items()
        },
        "gap": calibration.gap([(o.confidence, o.right, o.groups) for o in seeds])._asdict(),
        "reliability": [list(own) for own in calibration.reliability(confidence, right)],
        "risk_coverage": curve[at].tolist(),
        "thresholds": thresholds(confidence, right),
    }


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _entry(
    samples: Mapping[tuple[str, str], MetricSample],
    key: tuple[str, str],
    reference: tuple[str, str] | None,
) -> dict[str, Any]:
    """Return the mean of a metric, its interval, and the paired difference to ``reference``."""
    own = _estimate(samples[key])
    return {
        **{name: own[name] for name in ("value", "low", "high", "seeds")},
        "difference": reference and _estimate(samples[key] - samples[reference]),
    }


def _estimate(sample: MetricSample) -> dict[str, Any]:
    """Return the mean of a sample, its interval, p-value and standard error.

    ``findable`` is the smallest difference that such a comparison finds with a probability of 80 %.
    """
    low, high, p = metric_interval(sample)
    value, seeds = float(sample.values.mean()), sample.values.tolist()
    error, freedom = standard_error(sample.values, sample.draws)
    found = {
        "value": value, "low": low, "high": high, "p": p, "seeds": seeds, "error": error,
        "freedom": freedom, "findable": smallest_effect(error, freedom),
    }  # fmt: skip
    return {key: _json(value) for key, value in found.items()}


def _json(value: Any) -> Any:
    """Replace NaN by None in a number or nested list, because JSON has no NaN."""
    if isinstance(value, list):
        return [_json(item) for item in value]
    return None if np.isnan(value) else value
