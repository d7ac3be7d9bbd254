"""The hypotheses that a comparison states before it runs: ``compare.hypotheses``.

Each hypothesis states that one row (under one decoding rule) has better answers, by one metric,
than another row or rule. Holm's method corrects the p-values of a family. Does not import torch.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mm_numeric.config.compare import HypothesisGroup
from mm_numeric.io.files import read_json, write_json
from mm_numeric.registry import unknown
from mm_numeric.runs.folder import RESULTS, STATED, WARM_START


class Row(NamedTuple):
    """Properties of a comparison row that hypotheses use: its grid values and decoding rules."""

    axes: Mapping[str, Any]
    rules: Sequence[str]


class Hypothesis(NamedTuple):
    """The answers ``better`` have a better ``metric`` than ``other``; both are (row, rule)."""

    family: str
    metric: str
    better: tuple[str, str]
    other: tuple[str, str]


def make_hypotheses(
    groups: Sequence[HypothesisGroup], rows: Mapping[str, Row], where: str
) -> list[Hypothesis]:
    """Return the hypotheses of ``compare.hypotheses``, one for each objective, rule and grid row.

    An objective of a grid has a row for each combination of the other axes. Each of these rows is
    compared with the row of the other objective that has the same values on these axes. Raises
    ValueError if there is no such row or rule, or if a hypothesis is listed twice.
    """
    found = dict[Hypothesis, None]()
    for index, group in enumerate(groups):
        place = f"{where}.hypotheses.{index}"
        for own in _of_group(group, rows, place):
            if own in found:
                raise ValueError(f"{place}: {describe(own)} is listed twice; remove one.")
            found[own] = None
    return list(found)


def describe(own: Hypothesis) -> str:
    """Return a hypothesis as a text: ``emd, median against ce, median in exact``."""
    better, other = (", ".join(answers) for answers in (own.better, own.other))
    return f"{better} against {other} in {own.metric}"


def _of_group(group: HypothesisGroup, rows: Mapping[str, Row], where: str) -> Iterator[Hypothesis]:
    for objective in group.objectives:
        named = [name for name, row in rows.items() if row.axes.get("objective") == objective]
        if objective not in rows and not named:
            raise unknown(objective, list(rows), "row", f"{where}.objectives")
        for name in [objective] if objective in rows else named:
            against = name if group.against is None else _counterpart(group.against, name, rows)
            if against is None:
                raise unknown(group.against or "", list(rows), "row", f"{where}.against")
            for rule in group.rules:
                answers = (name, rule), (against, group.against_rule or rule)
                for row, own in answers:
                    if own not in rows[row].rules:
                        raise unknown(own, rows[row].rules, "rule", f"{where}, {row}")
                if answers[0] == answers[1]:
                    raise ValueError(
                        f"{where}: {name}, {rule} is compared with itself; set against or "
                        "against_rule."
                    )
                yield Hypothesis(group.family, group.metric, *answers)


def _counterpart(objective: str, name: str, rows: Mapping[str, Row]) -> str | None:
    """Return the row of ``objective`` with the grid values of row ``name``; None if missing."""
    if objective in rows:
        return objective
    wanted = {**rows[name].axes, "objective": objective}
    return next((other for other, row in rows.items() if row.axes == wanted), None)


def record_hypotheses(folder: Path, stated: Sequence[Hypothesis]) -> None:
    """Record how many runs were finished when each hypothesis was first stated."""
    known = recorded_hypotheses(folder)
    runs = {path.parent for path in folder.glob(f"seed*/*/{RESULTS}")}
    finished = sum(not run.name.startswith(WARM_START) for run in runs)
    new = {own: finished for own in stated if own not in known}
    if new:
        write_json(folder / STATED, [[*own, count] for own, count in (known | new).items()])


def recorded_hypotheses(folder: Path) -> dict[Hypothesis, int]:
    """Return the number of finished runs when each hypothesis was first stated."""
    stored = read_json(folder / STATED) if (folder / STATED).is_file() else []
    return {
        Hypothesis(family, metric, tuple(better), tuple(other)): count
        for family, metric, better, other, count in stored
    }


def tested_hypotheses(
    differences: Mapping[Hypothesis, dict[str, Any]], folder: Path
) -> list[dict[str, Any]]:
    """Return hypotheses and their differences in the form of summary.json.

    ``runs_before`` is the number of finished runs when a hypothesis was first stated; None if the
    folder does not record it.
    """
    recorded = recorded_hypotheses(folder)
    return [
        {**own._asdict(), "runs_before": recorded.get(own), "difference": difference}
        for own, difference in differences.items()
    ]


def withdrawn_fact(stated: Iterable[Hypothesis], folder: Path) -> dict[str, str]:
    """List recorded hypotheses that are not ``stated`` any more; {} if there are none."""
    found = [describe(own) for own in recorded_hypotheses(folder) if own not in set(stated)]
    return {"withdrawn hypotheses": "; ".join(found)} if found else {}
