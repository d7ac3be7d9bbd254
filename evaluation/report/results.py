"""The results of a comparison: its metrics, and the files of each run, for a report."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from mm_numeric.evaluation.guesses import Guess, best_guess
from mm_numeric.evaluation.metrics.intervals import ENOUGH_SEEDS, family_text
from mm_numeric.evaluation.report.charts import DASHES, SeriesStyle, choose_styles
from mm_numeric.evaluation.report.page import Content, Section
from mm_numeric.evaluation.report.summary_file import COMPARE_AGAIN, read_lines, read_summary
from mm_numeric.evaluation.table import Cell, Quantity, Table, p_value
from mm_numeric.io.files import stored_content
from mm_numeric.runs.folder import LOG, RESULTS, SCORES, TEACHER
from mm_numeric.runs.results_file import TASK, read_sections

T = TypeVar("T")

SIGNIFICANT = 0.05
SCORED = ("id", "image", "target", "text", "parsed", "reason")

ScoredRow = Mapping[str, Any]
"""A line of scores.jsonl: one test row with the model's answer and its scores."""

Runs = dict[tuple[str, int], list[dict[str, Any]]]
"""Maps (objective, seed) to the parsed lines of one JSON Lines file of this run."""

Scores = Mapping[tuple[str, int], Sequence[ScoredRow]]
"""Maps (objective, seed) to the lines of scores.jsonl of this run."""

Styles = Mapping[str, SeriesStyle]
"""Maps each objective to its style in charts, in the order of the report."""

Pooled = Mapping[SeriesStyle, Sequence[ScoredRow]]
"""Maps the style of each objective to the scored rows of all seeds."""


@dataclass(frozen=True, kw_only=True)
class ReportedMetric:
    """A metric of summary.json. If its unit is ``%``, the file stores its values as 0 to 1."""

    name: str
    label: str
    unit: str = ""
    higher_is_better: bool = True

    @property
    def scale(self) -> float:
        """Return the factor from stored to displayed values: 100 for a percentage, else 1."""
        return 100.0 if self.unit == "%" else 1.0

    @property
    def direction(self) -> str:
        """Return ``↑`` if higher values are better, else ``↓``."""
        return "↑" if self.higher_is_better else "↓"

    def value(self, value: float) -> Quantity:
        """Convert a stored value of this metric to a number with a unit: 0.715 becomes 71.5 %."""
        return self.estimate({"value": value})

    def estimate(self, cell: Mapping[str, Any]) -> Quantity:
        """Convert a mean and, if there is one, its confidence interval to a ``Quantity``."""
        return self._quantity(cell, self.unit)

    def change(self, difference: Mapping[str, Any]) -> Quantity:
        """Return a difference to the baseline objective with its sign, interval and unit."""
        return self._quantity(difference, "points" if self.unit == "%" else self.unit, sign=True)

    def _quantity(self, cell: Mapping[str, Any], unit: str, *, sign: bool = False) -> Quantity:
        known = [end for end in ("low", "high") if cell.get(end) is not None]
        ends = {end: self.scale * cell[end] for end in known}
        value, decimals = self.scale * cell["value"], 1 if self.unit else 3
        return Quantity(value=value, unit=unit, decimals=decimals, sign=sign, **ends)

    def cell(self, cell: Mapping[str, Any] | None, *, best: bool = False) -> Cell:
        """Return a table cell: mean, interval, and difference to the baseline objective."""
        if cell is None:
            return Cell()
        difference = cell.get("difference")
        return Cell(
            content=self.estimate(cell),
            change=self.change(difference) if difference else None,
            trend=self.trend(difference) if difference else "",
            best=best,
            css="best" if best else "plain",
        )

    def trend(self, difference: Mapping[str, Any] | None) -> Literal["better", "worse", "unclear"]:
        """Return whether a difference to the baseline objective is better, worse or unclear.

        It is unclear unless the p-value after Holm's correction is at most 0.05. Only the first
        metric of a comparison with enough seeds has such a p-value.
        """
        p = difference.get("p_holm") if difference else None
        if not difference or p is None or p > SIGNIFICANT:
            return "unclear"
        return "better" if (difference["value"] > 0) == self.higher_is_better else "worse"

    def beats(self, cell: Mapping[str, Any], guess: float) -> bool:
        """Return True if a mean is clearly better than a guess.

        The whole interval must be better. With two to four seeds, intervals are wide: then it is
        enough that each seed gains at least a tenth of the distance between the guess and a perfect
        score (1, or 0 for an error).
        """
        sign = 1 if self.higher_is_better else -1
        if sign * (cell.get("low" if sign > 0 else "high", cell["value"]) - guess) > 0:
            return True
        least = guess + 0.1 * ((1.0 if sign > 0 else 0.0) - guess)
        seeds = cell["seeds"]
        return 1 < len(seeds) < ENOUGH_SEEDS and all(sign * (s - least) >= 0 for s in seeds)

    def difference_text(self, difference: Mapping[str, Any] | None) -> str:
        """Format a difference with its interval and evidence; ``-`` without a difference."""
        if not difference:
            return "-"
        change, evidence = self.change(difference), self.evidence(difference)
        return f"{change} ({'; '.join(filter(None, (change.interval or 'no interval', evidence)))})"

    def findable(self, difference: Mapping[str, Any]) -> str:
        """Format the smallest true difference that 80 % of such comparisons find; "" if unknown."""
        value = difference.get("findable")  # missing in summaries that older versions wrote
        unit = "points" if self.unit == "%" else self.unit
        return "" if value is None else str(self._quantity({"value": value}, unit))

    def known_findable(self, difference: Mapping[str, Any]) -> float | None:
        """Return the smallest difference that can be found; None without corrected p-values."""
        return None if difference.get("p_holm") is None else difference.get("findable")

    def evidence(self, difference: Mapping[str, Any]) -> str:
        """Format the corrected p-value, followed by the smallest difference that can be found.

        With too few seeds for p-values, format the difference of each seed.
        """
        p, seeds = difference.get("p_holm"), difference["seeds"]
        if p is not None:
            findable = self.findable(difference)
            return f"corrected {p_value(p)}" + f", findable {findable}" * bool(findable)
        if not 1 < len(seeds) < ENOUGH_SEEDS:
            return ""
        return f"seeds {', '.join(str(self.change({'value': seed})) for seed in seeds)}"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The results of comparing several objectives, read from ``summary.json``."""

    folder: Path
    summary: dict[str, Any]
    metrics: Sequence[ReportedMetric]
    styles: Styles

    @property
    def has_p_values(self) -> bool:
        """Return True if corrected p-values show whether an objective is better."""
        return bool(family_text(self.summary, "table"))

    @property
    def drawn_ends(self) -> str:
        """Name, for captions, the line that charts draw for a mean: interval or range."""
        few = 1 < len(self.summary["seeds"]) < ENOUGH_SEEDS
        return "range over seeds" if few else "interval"

    def highlights(self, metric: ReportedMetric) -> bool:
        """Return True if tables highlight the best mean: for the first metric, with p-values."""
        return metric == self.metrics[0] and self.has_p_values

    def colours(self, family: str) -> str:
        """Return a sentence that explains the colours in the table of a family of p-values."""
        corrected = family_text(self.summary, family)
        if not corrected:
            return (
                f"Without corrected p-values ({ENOUGH_SEEDS} seeds or more), nothing is coloured."
            )
        label = self.metrics[0].label
        return (
            f"For {label}, Δ is coloured if its p-value is at most {SIGNIFICANT} after Holm's "
            f"correction over {corrected}, and the best mean is highlighted; the control, warm "
            f"starts and other metrics are not coloured."
        )

    def cell(self, objective: str, metric: ReportedMetric) -> dict[str, Any] | None:
        """Return an objective's result in one metric; None if the metric has no value.

        The result has the keys value (mean over seeds), low and high (interval), seeds (a value per
        seed), and difference (to the reference of the objective, with an interval).
        """
        cells: dict[str, dict[str, Any] | None] = self.summary["table"][objective]
        return cells.get(metric.name)

    def reference(self, objective: str) -> str:
        """Return the objective that an objective is compared with; "" if there is none."""
        return self.summary["references"].get(objective) or ""

    def against(self, objective: str) -> str:
        """Return a note that names the reference of an objective, unless it is the baseline."""
        reference = self.reference(objective)
        return f"against {reference}" if reference not in ("", self.summary["baseline"]) else ""

    @property
    def compared_with(self) -> str:
        """Name the objective to which a table shows differences, for the caption."""
        baseline = str(self.summary["baseline"])
        if {*self.summary["references"].values()} - {baseline, None}:
            return f"the objective named in the first column, or {baseline}"
        return baseline

    def guess(self, metric: ReportedMetric) -> Guess | None:
        """Return the guess with the best value of a metric; None without guesses."""
        better = metric.higher_is_better
        return best_guess(self.summary["guesses"], metric.name, higher_is_better=better)

    def ranked(self) -> list[str]:
        """Return the objectives sorted by the first metric, best first; the control is last."""
        metric = self.metrics[0]

        def key(name: str) -> tuple[bool, bool, float]:
            cell = self.cell(name, metric)
            mean = cell["value"] if cell else 0.0
            worse = -mean if metric.higher_is_better else mean
            return name == self.summary["control"], cell is None, worse

        return sorted(self.styles, key=key)


def best_of(cells: Mapping[T, Mapping[str, Any] | None], metric: ReportedMetric) -> set[T]:
    """Return the keys of the cells with the best mean; no keys if all means are equal."""
    means = {key: cell["value"] for key, cell in cells.items() if cell}
    if len({*means.values()}) < 2:
        return set()
    top = (max if metric.higher_is_better else min)(means.values())
    return {key for key, mean in means.items() if mean == top}


def chart_ends(cell: Mapping[str, Any]) -> tuple[float, float]:
    """Return the ends of the line that charts draw for a mean: its interval, or the seeds' range.

    The range is drawn for two to four seeds, because their intervals are too wide for a chart. If a
    mean has no interval, both ends are the mean.
    """
    if 1 < len(cell["seeds"]) < ENOUGH_SEEDS:
        return min(cell["seeds"]), max(cell["seeds"])
    return cell.get("low", cell["value"]), cell.get("high", cell["value"])


def read_comparison(folder: Path) -> Comparison:
    """Read the results of a comparison from ``summary.json`` in its output folder."""
    summary = read_summary(folder)
    metrics = [ReportedMetric(**metric) for metric in summary["metrics"]]
    styles = _row_styles(summary)
    return Comparison(folder=folder, summary=summary, metrics=metrics, styles=styles)


def numeric_axes(settings: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the settings that have several different values, if all values are numbers."""
    found: dict[str, list[Any]] = {}
    for own in settings:
        for axis, value in own.items():
            found.setdefault(axis, []).append(value)
    return [
        axis
        for axis, values in found.items()
        if len({str(value) for value in values}) > 1
        and all(type(value) in (int, float) for value in values)
    ]


def _row_styles(summary: Mapping[str, Any]) -> dict[str, SeriesStyle]:
    """Choose the style of each row; rows that only differ in numbers have the same colour."""
    axes, rows = summary["axes"], summary["objectives"]
    numbers = numeric_axes(axes.values())
    kinds = {
        row: ", ".join(str(v) for name, v in axes.get(row, {}).items() if name not in numbers)
        or row
        for row in rows
    }
    control = kinds.get(summary["control"])
    shared = choose_styles(list(dict.fromkeys(kinds.values())), kinds[summary["baseline"]], control)
    found: dict[str, SeriesStyle] = {}
    for row, kind in kinds.items():
        place = sum(kinds[other] == kind for other in found)
        dash = DASHES[place % len(DASHES)] if place else shared[kind].dash
        found[row] = replace(shared[kind], name=row, dash=dash)
    return found


def read_runs(comparison: Comparison) -> tuple[Runs, Runs, dict[str, Counter[str]]]:
    """Read log.jsonl and scores.jsonl of each run, and count parse failures by reason.

    Returns the logs and the scored rows of each (objective, seed), and the counts of each
    objective. Objectives without scored answers are not in the counts.
    """
    logs: Runs = {}
    scores: Runs = {}
    failures: dict[str, Counter[str]] = {}
    for run in comparison.summary["runs"]:
        name, seed, folder = run["objective"], run["seed"], comparison.folder / run["folder"]
        if name not in comparison.styles:
            continue
        logs[name, seed] = _read_log(folder)
        scores[name, seed] = read_lines(folder / SCORES, SCORED)
        if scores[name, seed]:
            failures.setdefault(name, Counter()).update(unparseable(scores[name, seed]))
        elif (results := folder / RESULTS).is_file():
            counted = read_sections(results, COMPARE_AGAIN).get(TASK, {}).get("failures", {})
            with stored_content(results):
                found = {str(reason): int(n) for reason, n in counted.items()}
                failures.setdefault(name, Counter()).update(found)
    return logs, scores, failures


def unparseable(rows: Sequence[ScoredRow]) -> Counter[str]:
    """Count the answers that could not be parsed, by reason."""
    return Counter(str(row["reason"] or "unreadable") for row in rows if row["parsed"] is None)


def _read_log(run: Path) -> list[dict[str, Any]]:
    """Read the log of a run; a distilled run continues the step numbers of its teacher's log."""
    before, lines = (read_lines(folder / LOG) for folder in (run / TEACHER, run))
    last = max((line.get("step") or 0 for line in before), default=0)
    with stored_content(run / LOG):
        lines = [
            {**line, "step": line["step"] + last} if "step" in line else line for line in lines
        ]
    return before + lines


def read_starts(comparison: Comparison) -> Runs:
    """Read the log of each run's warm start: the earlier training that the run continues."""
    starts: Runs = {}
    for run in comparison.summary["runs"]:
        if run["objective"] in comparison.styles and run["warm_start"]:
            log = comparison.folder / run["warm_start"] / LOG
            starts[run["objective"], run["seed"]] = read_lines(log)
    return starts


def failures_section(
    failures: Mapping[Cell, Mapping[str, int]], runs: str, *texts: Content
) -> Section:
    """Return the section on parse failures: a table of reasons, followed by ``texts``.

    ``failures`` has one entry per column of the table: header -> reason -> number of answers.
    ``runs`` is appended to the text of the section, such as ``, over all seeds``.
    """
    reasons = [r for r, _ in sum(map(Counter, failures.values()), Counter[str]()).most_common()]
    if not failures:
        text = "No scored answers were found, so parse failures are not known."
    elif not reasons:
        text = "Every answer could be parsed."
    else:
        text = f"Answers that could not be parsed{runs}. They score as the worst answer."
    rows = [
        [Cell(content=reason, limit=80), *(f"{own.get(reason, 0):,}" for own in failures.values())]
        for reason in reasons
    ]
    table = Table.of(["reason", *failures], rows, title="Unparseable answers by reason")
    return Section.of("failures", "Parse failures", text, *([table] if rows else []), *texts)


def pooled_rows(styles: Styles, scores: Scores) -> Pooled:
    """Concatenate the scored rows of all seeds for each objective; omit objectives without rows."""
    pooled: dict[SeriesStyle, list[ScoredRow]] = {style: [] for style in styles.values()}
    for (name, _), rows in scores.items():
        pooled[styles[name]] += rows
    return {style: rows for style, rows in pooled.items() if rows}


def seeds_text(scores: Scores) -> str:
    """Return the sentence `` All seeds together.`` if there are several seeds, else ""."""
    return " All seeds together." if len({seed for _, seed in scores}) > 1 else ""
