"""Write the conclusion of a comparison as sentences, and its planned hypotheses as tables.

If no objective is clearly better than guessing, the first sentence says so. Otherwise, the first
sentences report the planned hypotheses and the best pair of objective and decoding rule. The next
sentences report clear differences, what to do next, and how good guessing and the control are.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mm_numeric.config.decoding import GREEDY
from mm_numeric.evaluation.guesses import Guess
from mm_numeric.evaluation.metrics.intervals import ENOUGH_SEEDS, family_text
from mm_numeric.evaluation.report.page import Section, note
from mm_numeric.evaluation.report.results import SIGNIFICANT, Comparison, ReportedMetric
from mm_numeric.evaluation.table import Table, p_value

_MOST_SEEDS = 30  # largest number of seeds that is recommended
_MOST_NAMES = 6  # names per sentence


@dataclass(frozen=True, kw_only=True)
class _Pair:
    """A pair of an objective and a decoding rule, with its result in the first metric."""

    name: str
    rule: str
    cell: dict[str, Any]
    difference: dict[str, Any] | None
    """The difference to greedy decoding of ``reference``; None without a reference."""

    reference: str
    """The objective that the pair is compared with; "" if the pair is a reference itself."""

    @property
    def text(self) -> str:
        return _answers(self.name, self.rule)


def verdict(comparison: Comparison) -> list[str]:
    """Return the sentences that this module describes; the first sentence is the conclusion.

    With ``compare.hypotheses``, the conclusion begins with the results of these hypotheses. Without
    corrected p-values, as with few seeds, no objective is called better than another.
    """
    summary, metric = comparison.summary, comparison.metrics[0]
    base = comparison.cell(summary["baseline"], metric)
    if base is None:
        return [
            f"{summary['baseline']} has no {metric.label}, so there is nothing to compare with."
        ]
    pairs = _pairs(comparison)
    rivals = [pair for pair in pairs if pair.reference]
    guess = comparison.guess(metric)
    is_above = guess is None or any(metric.beats(pair.cell, guess.value) for pair in pairs)
    if guess is not None and not is_above:
        lines = [_guessing(pairs, metric, guess), *_planned(comparison)]
    elif not rivals:
        value = metric.estimate(base)
        result = f"{value} {metric.label} ({value.interval or 'no interval'})"
        lines = [f"{summary['baseline']}: {result}, with no objective to compare it to."]
    elif comparison.has_p_values or family_text(summary, "from_reference"):
        lines = [*_planned(comparison), _conclusion(comparison, rivals)]
    else:
        lines = [*_planned(comparison), _observation(comparison, pairs)]
    if rivals:
        lines += _clear(comparison, rivals)
        lines += _next(comparison, rivals) if is_above else []
    if guess is not None:
        lines.append(_guess(comparison, guess))
    if rivals:
        lines.append(_control(comparison))
    found = (summary["facts"].get(name) for name in ("headline", "varied"))
    return lines + [f"{fact[0].upper()}{fact[1:]}." for fact in found if fact]


def _pairs(comparison: Comparison) -> list[_Pair]:
    """Return all pairs (objective, rule) with a value, best first; the control is left out."""
    metric, control = comparison.metrics[0], comparison.summary["control"]
    found = []
    for name in comparison.ranked():
        reference = comparison.reference(name)
        rules = comparison.summary["decoding"].get(name, {})
        cells = {rule: own.get(metric.name) for rule, own in rules.items() if rule != GREEDY}
        for rule, cell in {GREEDY: comparison.cell(name, metric), **cells}.items():
            if not cell or name == control:
                continue
            is_greedy = rule == GREEDY
            found.append(
                _Pair(
                    name=name,
                    rule=rule,
                    cell=cell,
                    difference=cell["difference" if is_greedy else "from_reference"],
                    reference=reference if is_greedy else reference or name,
                )
            )
    sign = -1 if metric.higher_is_better else 1
    return sorted(found, key=lambda pair: sign * pair.cell["value"])


def _guessing(pairs: Sequence[_Pair], metric: ReportedMetric, guess: Guess) -> str:
    names = dict.fromkeys(pair.name for pair in pairs)
    who = f"None of the {len(names)} objectives is" if len(names) > 1 else f"{pairs[0].name} is not"
    return (
        f"{who} clearly better than guessing: {metric.label} {_reach(pairs, metric)}, and guessing "
        f"has {metric.value(guess.value)}. Train for more steps or on more rows."
    )


def _reach(pairs: Sequence[_Pair], metric: ReportedMetric) -> str:
    low, high = (end(pair.cell["value"] for pair in pairs) for end in (min, max))
    first, last = str(metric.value(low)), str(metric.value(high))
    if first == last:
        return first
    both = metric.estimate({"value": low, "low": low, "high": high})
    return both.interval + last.removeprefix(both.interval.rpartition(" ")[2])


def _guess(comparison: Comparison, guess: Guess) -> str:
    metric = comparison.metrics[0]
    line = (
        f"Guessing has {metric.value(guess.value)} {metric.label}: the best {guess.kind}, computed "
        "without the image and the question"
    )
    poor = [
        name
        for name in comparison.ranked()
        if (cell := comparison.cell(name, metric)) and not metric.beats(cell, guess.value)
    ]
    if poor:
        more = f" and {len(poor) - _MOST_NAMES} more" if len(poor) > _MOST_NAMES else ""
        names = ", ".join(poor[:_MOST_NAMES])
        line += f"; not clearly better, decoded greedily: {names}{more}"
    return f"{line}."


def _answers(name: str, rule: str) -> str:
    return name if rule == GREEDY else f"{name} decoded by {rule}"


def _planned(comparison: Comparison) -> Iterator[str]:
    planned = comparison.summary["hypotheses"]
    if not planned:
        return
    named = {metric.name: metric for metric in comparison.metrics}
    metrics = [named[own["metric"]] for own in planned]
    trends = [m.trend(own["difference"]) for m, own in zip(metrics, planned, strict=True)]
    confirmed = [
        f"{_answers(*own['better'])} over {_answers(*own['other'])} ({metric.label})"
        for own, metric, trend in zip(planned, metrics, trends, strict=True)
        if trend == "better"
    ]
    count = f"{len(confirmed) or 'None'} of {len(planned)} planned gains"
    line = f"{count} {'is' if len(confirmed) < 2 else 'are'} confirmed"
    if confirmed:
        more = len(confirmed) - _MOST_NAMES
        line += f": {', '.join(confirmed[:_MOST_NAMES])}{f' and {more} more' if more > 0 else ''}"
    if opposite := trends.count("worse"):
        line += f"; for {opposite}, the opposite is clear"
    yield f"{line}."


def _observation(comparison: Comparison, pairs: Sequence[_Pair]) -> str:
    """Name the best mean, without a conclusion, because there are no corrected p-values."""
    metric, count = comparison.metrics[0], len(comparison.summary["seeds"])
    best = pairs[0]
    if best.reference:
        of_seeds = f" of {count} seeds" if 1 < count < ENOUGH_SEEDS else ""
        base = _reference_value(comparison, best)
        change = _difference(best.difference, metric)
        return (
            f"{best.text} has the best mean{of_seeds}: {metric.estimate(best.cell)} "
            f"{metric.label} against {base} of {best.reference}{_greedily(best)}, {change}."
        )
    second = next(pair for pair in pairs if pair.reference)
    return (
        f"Nothing has a better mean than {best.text}, {metric.estimate(best.cell)} "
        f"{metric.label}; the next is {second.text}, {metric.estimate(second.cell)}: "
        f"{_difference(second.difference, metric)}."
    )


def _greedily(pair: _Pair) -> str:
    """Return `` decoded greedily``, said of the reference, if the pair's rule is not greedy."""
    return "" if pair.rule == GREEDY else " decoded greedily"


def _best(rivals: Sequence[_Pair], metric: ReportedMetric) -> _Pair:
    """Return the best pair that is clearly better than its reference, or else the best pair."""
    better = (pair for pair in rivals if metric.trend(pair.difference) == "better")
    return next(better, rivals[0])


def _conclusion(comparison: Comparison, rivals: Sequence[_Pair]) -> str:
    """Name the best pair that is better than its reference, or state that there is none."""
    metric = comparison.metrics[0]
    best = _best(rivals, metric)
    values = (
        f"{metric.estimate(best.cell)} {metric.label} against "
        f"{_reference_value(comparison, best)}, {_difference(best.difference, metric)}"
    )
    if metric.trend(best.difference) == "better":
        planned = comparison.summary["hypotheses"]
        found = (metric.name, [best.name, best.rule], [best.reference, GREEDY])
        stated = any((own["metric"], own["better"], own["other"]) == found for own in planned)
        lead = "Not planned: " if planned and not stated else ""
        return f"{lead}{best.text} beats {best.reference}{_greedily(best)}: {values}."
    what = "objective or decoding rule" if comparison.summary["decoding"] else "objective"
    return (
        f"No {what} is clearly better than {_references(rivals)}; of the others, "
        f"{best.text} has the best mean: {values}."
    )


def _reference_value(comparison: Comparison, pair: _Pair) -> str:
    metric = comparison.metrics[0]
    base = comparison.cell(pair.reference, metric)
    return str(metric.estimate(base)) if base else "without a value"


def _clear(comparison: Comparison, rivals: Sequence[_Pair]) -> Iterator[str]:
    metric, count = comparison.metrics[0], len(comparison.summary["seeds"])
    greedy = [pair for pair in rivals if pair.rule == GREEDY]
    for rule in dict.fromkeys(pair.rule for pair in rivals if pair.rule != GREEDY):
        changes = [pair.cell["difference"] for pair in rivals if pair.rule == rule]
        yield _clear_rule(comparison, rule, list(filter(None, changes)))
    if comparison.has_p_values and greedy:
        trends = [metric.trend(pair.difference) for pair in greedy]
        better = trends.count("better")
        base = _references(greedy, "its reference" if better == 1 else "their references")
        yield (
            f"{better} of {len(greedy)} objectives {'is' if better == 1 else 'are'} better than "
            f"{base} and {trends.count('worse')} worse, at p ≤ {SIGNIFICANT} after "
            f"Holm's correction over {family_text(comparison.summary, 'table')}. The best of "
            "several is chosen after seeing the results, so its gain is slightly overestimated."
        )
    elif count < ENOUGH_SEEDS and greedy:
        seeds = f"{count} seeds are" if count > 1 else "One seed is"
        yield f"{seeds} too few to state which objective is better; that takes {ENOUGH_SEEDS}."
    elif greedy:
        yield (
            "There are no p-values, which show whether an objective is better: the test rows are "
            "one group, or all the same."
        )


def _clear_rule(comparison: Comparison, rule: str, changes: Sequence[dict[str, Any]]) -> str:
    """State in how many runs, or for how many objectives, a rule is better than greedy decoding."""
    metric = comparison.metrics[0]
    sign = 1 if metric.higher_is_better else -1
    if family_text(comparison.summary, "decoding"):
        trends = [metric.trend(own) for own in changes]
        return (
            f"Decoding by {rule} is better than {GREEDY} decoding for {trends.count('better')} of "
            f"{len(trends)} objectives and worse for {trends.count('worse')}, after Holm's "
            "correction."
        )
    seeds = [value for own in changes for value in own["seeds"]]
    better = sum(sign * value > 0 for value in seeds)
    ends = (str(metric.change({"value": end(seeds, default=0)})) for end in (min, max))
    return (
        f"Decoding by {rule} is better than {GREEDY} decoding in {better} of {len(seeds)} runs "
        f"({' to '.join(ends)})."
    )


def _next(comparison: Comparison, rivals: Sequence[_Pair]) -> Iterator[str]:
    summary, metric = comparison.summary, comparison.metrics[0]
    count = len(summary["seeds"])
    best = _best(rivals, metric)
    if count < ENOUGH_SEEDS:
        seeds = [*summary["seeds"]]
        seeds += [seed for seed in range(ENOUGH_SEEDS + count) if seed not in seeds]
        listed = ",".join(map(str, seeds[:ENOUGH_SEEDS]))
        yield f'Next: compare {ENOUGH_SEEDS} seeds; add "compare.seeds=[{listed}]" to the command.'
    elif comparison.has_p_values and metric.trend(best.difference) == "unclear":
        yield _more_seeds(best, count)
    if not summary["decoding"]:
        yield (
            "Next: compare decoding rules, which needs no other training; add "
            f'"compare.decode=[{GREEDY},median]" if answers are numbers.'
        )


def _more_seeds(best: _Pair, count: int) -> str:
    """State how many seeds would make the best difference clear, or that it needs too many."""
    change = best.difference or {}
    half = (change.get("high", math.inf) - change.get("low", -math.inf)) / 2
    wanted = math.inf
    if change.get("value") and math.isfinite(half):
        wanted = count * (half / change["value"]) ** 2
    if wanted > _MOST_SEEDS:
        return (
            f"Next: the difference of {best.text} is small for its interval, so more seeds would "
            "hardly make it clear; compare on more test rows, or choose by cost."
        )
    seeds = max(math.ceil(wanted), count + 1)
    return (
        f"Next: about {seeds} seeds would make a difference as large as that of {best.text} clear, "
        "if it is real."
    )


def _references(rivals: Sequence[_Pair], several: str = "its reference") -> str:
    found = list(dict.fromkeys(pair.reference for pair in rivals))
    return found[0] if len(found) == 1 else several


def _difference(difference: dict[str, Any] | None, metric: ReportedMetric) -> str:
    if not difference:
        return "without a paired difference"
    return f"a paired difference of {metric.difference_text(difference)}"


def _control(comparison: Comparison) -> str:
    control, metric = comparison.summary["control"], comparison.metrics[0]
    cell = comparison.cell(control, metric) if control in comparison.styles else None
    if cell is None:
        return "There is no control, which would show how much two runs of one objective differ."
    if not cell["difference"]:
        return f"The control {control} has no paired difference."
    difference, p = cell["difference"], None
    line = f"The control {control} has {_difference(difference, metric)}"
    if len(comparison.summary["seeds"]) >= ENOUGH_SEEDS:
        p = difference.get("p")
    if p is not None:
        line += f", {p_value(p)}, not corrected"
        if p <= SIGNIFICANT and (difference["value"] > 0) == metric.higher_is_better:
            line += ": a gain of this size is not an effect of the objective"
    fact = comparison.summary["facts"].get("control")
    return f"{line}. {fact}." if fact else f"{line}."


def hypotheses_section(comparison: Comparison) -> Section:
    """Return the section with a table for each family of ``compare.hypotheses``."""
    tables = hypotheses_tables(comparison)
    if not tables:
        text = (
            "The config states no hypotheses (compare.hypotheses), so no result here was planned: "
            "a clear difference is one that was found among many."
        )
        return Section.of("hypotheses", "Planned results", note(text))
    text = (
        "Each row is a hypothesis of the config: the first answers are better than the second. "
        f"It is confirmed if its p-value is at most {SIGNIFICANT} after Holm's correction over its "
        f"table, which takes {ENOUGH_SEEDS} seeds. Findable is the smallest difference that 80 % "
        "of such comparisons confirm: one that is not clear may be as large. Results that are in "
        "no table were not planned."
    )
    return Section.of("hypotheses", "Planned results", note(text), *tables)


def hypotheses_tables(comparison: Comparison) -> list[Table]:
    """Return a table for each family of hypotheses."""
    families: dict[str, list[dict[str, Any]]] = {}
    for own in comparison.summary["hypotheses"]:
        families.setdefault(own["family"], []).append(own)
    tables = []
    for name, members in families.items():
        rows = [_hypothesis_row(comparison, own) for own in members]
        header = [
            "hypothesis",
            "metric",
            "difference",
            "findable",
            "corrected p",
            "result",
            "stated",
        ]
        title = f"Family {name}: {len(members)} hypotheses"
        tables.append(Table.of(header, rows, title=title, align="left"))
    return tables


def _hypothesis_row(comparison: Comparison, own: Mapping[str, Any]) -> list[str]:
    metric = next(m for m in comparison.metrics if m.name == own["metric"])
    before, difference = own["runs_before"], own["difference"]
    stated = "not recorded" if before is None else f"after {before:,} finished runs"
    change = p = findable = "-"
    if difference and difference["value"] is not None:
        quantity = metric.change(difference)
        change = f"{quantity} ({quantity.interval})" if quantity.interval else str(quantity)
        findable = metric.findable(difference) or "-"
    if difference and difference.get("p_holm") is not None:
        p = p_value(difference["p_holm"]).removeprefix("p ")
    return [
        f"{_answers(*own['better'])} against {_answers(*own['other'])}",
        metric.label,
        change,
        findable,
        p,
        _result(metric, difference),
        "before the first run" if before == 0 else stated,
    ]


def _result(metric: ReportedMetric, difference: Mapping[str, Any] | None) -> str:
    names = {"better": "confirmed", "worse": "the opposite is clear", "unclear": "not clear"}
    return names[metric.trend(difference)]
