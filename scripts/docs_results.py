"""Write the tables of docs/ that show published results, from docs/results/*/summary.json.

`python scripts/docs_tables.py` writes each between ``<!-- generated: NAME ARGUMENTS -->`` and
``<!-- end -->``, where NAME is one of ``TABLES``.

    values EXPERIMENT CELL ...         means of each metric, objective and cell, for each rule
    planned EXPERIMENT [clear]         the differences that its config planned before it ran, or
                                       those that are clear, for or against
    ensembles EXPERIMENT ...           the runs of all seeds together, next to the single runs
    pair OBJECTIVE OBJECTIVE           differences under the same rule, in all cells
    clear                              all differences to CE or to greedy decoding that are clear
    claims, claims list                the sentences of ``CLAIMS``, as a table; those with a
                                       ``metric``, with intervals, as a list
    score FILE [LINES]                 what `mm-numeric score FILE` prints, or its first lines
"""

import contextlib
import io
import json
import math
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np

from mm_numeric.cli.main import main
from mm_numeric.config.decoding import GREEDY
from mm_numeric.evaluation.metrics.intervals import (
    ENOUGH_SEEDS,
    holm,
    seed_interval,
    smallest_effect,
)
from mm_numeric.evaluation.report.results import SIGNIFICANT

RESULTS = Path(__file__).parents[1] / "docs" / "results"
_CLOCKS = ("within_5_minutes", "within_1_minute", "mean_deviation_minutes")
METRICS = {
    "clock": _CLOCKS,
    "grounding": ("accuracy_at_0.5", "accuracy_at_0.75", "mean_iou"),
    "detection": ("f1_at_0.5", "f1_at_0.75", "ap"),
    "arithmetic": ("accuracy_interpolation", "mae_interpolation"),
    "approximate_numbers": ("within_tolerance", "mae", "median_absolute_error"),
    "products": ("accuracy", "mae", "log_mae"),
}
"""The metrics of each task, or of a single experiment, that the tables show, the main one first."""

PAIR_EXPERIMENTS = ("clock_noise", "clock_rows", "grounding_noise", "arithmetic_decoding")
"""Experiments in the tables ``pair``, whose cells are a family: all that have five seeds and no
hypotheses, which would have their own families."""

FAMILIES = {
    "table": "objectives against CE, greedy",
    "decoding": "rules against greedy",
}
"""The families of summary.json in the table ``clear``. The third, ``from_reference``, changes the
objective and the rule at once, so it shows the effect of neither."""

GREEDY_ALONE = frozenset({"prices_smollm2"})
"""Experiments in which the rules other than greedy decoded only a few percent of the answers;
hypotheses about these rules count as not tested."""


@dataclass(frozen=True)
class Experiment:
    """The published results of an experiment."""

    name: str

    @cached_property
    def summary(self) -> dict[str, Any]:
        """Return the content of summary.json."""
        return json.loads((RESULTS / self.name / "summary.json").read_text(encoding="utf-8"))

    @property
    def planned(self) -> list[dict[str, Any]]:
        """Return the hypotheses that were stated before the experiment ran, with their results."""
        return list(self.summary.get("hypotheses", []))

    @property
    def ensembles(self) -> dict[str, Any]:
        """Return the metrics of ensembles by row and rule."""
        return dict(self.summary.get("ensembles", {}))

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """Return the metrics that the tables show."""
        known = {metric["name"]: metric for metric in self.summary["metrics"]}
        return [known[name] for name in METRICS.get(self.name, METRICS[self.summary["task"]])]

    @property
    def rules(self) -> list[str]:
        """Return the decoding rules, ``greedy`` first, without ``raft``."""
        return [rule for rule in next(iter(self.summary["decoding"].values())) if rule != "raft"]

    @property
    def decoded(self) -> str:
        """Return the rule of the task: ``median`` for times and numbers, ``mbr`` for boxes."""
        return "mbr" if "mbr" in self.rules else "median"

    @cached_property
    def rows(self) -> dict[tuple[str, str], str]:
        """Map (objective, cell) to the name of a row; a cell is a value of the other grid axis."""
        found = {}
        for name in self.summary["objectives"]:
            axes = dict(self.summary["axes"].get(name, {"objective": name}))
            objective = str(axes.pop("objective"))
            cells = [own if isinstance(own, str) else f"{own:,}" for own in axes.values()]
            found[objective, " ".join(cells)] = name
        return found

    @property
    def cells(self) -> list[str]:
        """Return the cells in their order."""
        return list(dict.fromkeys(cell for _, cell in self.rows))

    @property
    def objectives(self) -> list[str]:
        """Return the objectives in their order."""
        return list(dict.fromkeys(objective for objective, _ in self.rows))

    def found(self, objective: str, cell: str, rule: str, metric: str) -> dict[str, Any]:
        """Return the mean of a metric, with the value of each seed."""
        return self.summary["decoding"][self.rows[objective, cell]][rule][metric]


@cache
def experiment(name: str) -> Experiment:
    """Return the published results of an experiment, which are read once."""
    return Experiment(name)


def values(name: str, *cells: str) -> str:
    """Return the means of each metric under each rule in ``cells``, by default in all cells.

    There is a table for each metric, or a single one if there is one cell.
    """
    own = experiment(name)
    cells = cells or tuple(own.cells)
    rules = " / ".join(f"`{rule}`" if rule == "mbr" else rule for rule in own.rules)
    if len(cells) == 1:
        chosen = _chosen_settings(own)
        rows = [["objective", *chosen, *(f"{_label(metric)}, {rules}" for metric in own.metrics)]]
        for objective in own.objectives:
            texts = [settings[objective] for settings in chosen.values()]
            texts += [_by_rule(own, objective, cells[0], metric) for metric in own.metrics]
            rows.append([f"`{objective}`", *texts])
        return _table(rows)
    blocks = []
    for metric in own.metrics:
        rows = [["objective", *cells]]
        for objective in own.objectives:
            texts = [_by_rule(own, objective, cell, metric) for cell in cells]
            rows.append([f"`{objective}`", *texts])
        blocks.append(f"{_label(metric)}, {rules}:\n\n{_table(rows)}")
    return "\n\n".join(blocks)


def planned(name: str, which: str = "") -> str:
    """Return the differences that were planned, each family with its correction by Holm."""
    own = experiment(name)
    known = {metric["name"]: metric for metric in own.summary["metrics"]}
    rows = [["family", "answers", "against", "metric", "difference"]]
    for each in own.planned:
        pair = (_code(", ".join(answers)) for answers in _sides(each))
        metric, found = known[each["metric"]], each["difference"]
        if not which or found["p_holm"] <= SIGNIFICANT:
            change = _change(found["value"], found["p_holm"], metric)
            change = change if is_tested(own, _sides(each)) else "not tested"
            rows.append([each["family"], *pair, _label(metric), change])
    return _table(rows)


def ensembles(*names: str) -> str:
    """Return the metrics of ensembles, and their differences to the mean of their single runs.

    The p-values of each metric are corrected over the ensembles of its experiment.
    """
    rows = [["answers", "metric", "single runs, greedy", "single runs", "together", "difference"]]
    for own in map(experiment, names):
        found = own.ensembles
        keys = [(row, rule) for row, rules in found.items() for rule in rules]
        for metric in own.metrics:
            cells = {key: found[key[0]][key[1]][metric["name"]] for key in keys}
            p = holm({key: cell["difference"]["p"] for key, cell in cells.items()})
            for (row, rule), cell in cells.items():
                single = own.summary["decoding"][row]
                means = (single[each][metric["name"]]["value"] for each in (GREEDY, rule))
                rows.append([
                    _code(f"{row}, {rule}"), _label(metric),
                    *(_value(mean, metric) for mean in (*means, cell["value"])),
                    _change(cell["difference"]["value"], p[row, rule], metric),
                ])  # fmt: skip
    return _table(rows)


def _by_rule(own: Experiment, objective: str, cell: str, metric: Mapping[str, Any]) -> str:
    row, name = own.rows[objective, cell], metric["name"]
    if row not in own.summary["decoding"]:  # a baseline, which has no distribution
        return _value(own.summary["table"][row][name]["value"], metric)
    found = (own.found(objective, cell, rule, name) for rule in own.rules)
    return " / ".join(_value(mean["value"], metric) for mean in found)


def _chosen_settings(own: Experiment) -> dict[str, dict[str, str]]:
    """Return for each setting that was tuned its chosen value for each objective."""
    tuning = own.summary["tuning"] or {"settings": (), "trials": ()}
    chosen = {t["objective"]: t["settings"] for t in tuning["trials"] if t["chosen"]}
    return {
        path.rpartition(".")[2].replace("_", " "): {
            name: f"{settings[path]:.3g}" if path in settings else "-"
            for name, settings in chosen.items()
        }
        for path in tuning["settings"]
    }


@dataclass(frozen=True)
class Difference:
    """A difference of a family, and its value and corrected p-value in each metric."""

    experiment: Experiment
    better: str
    other: str
    family: str
    changes: Sequence[tuple[float, float] | None]

    @property
    def is_clear(self) -> bool:
        """Return True if a metric has a corrected p-value of at most 0.05."""
        return any(own is not None and own[1] <= SIGNIFICANT for own in self.changes)

    def texts(self) -> list[str]:
        """Return the difference in each metric with its p-value, in bold if it is clear."""
        metrics = self.experiment.metrics
        pairs = zip(self.changes, metrics, strict=True)
        texts = ["" if own is None else _change(*own, metric) for own, metric in pairs]
        return [*texts, *[""] * (len(_COLUMNS) - len(texts))]


_COLUMNS = (
    "within 5 min, Acc@0.5, F1@0.5, accuracy, within 10 % (points)",
    "within 1 min, Acc@0.75, F1@0.75 (points), MAE",
    "mean deviation (min), mean IoU, AP (points), median error, log-MAE",
)
"""Column titles: the first, second and third metric of clocks, boxes, lists, sums and prices."""


@cache
def pair_differences(first: str, second: str, *, decoded: bool) -> list[Difference]:
    """Return the differences of two objectives under the same rule, one for each cell.

    The p-value of a cell is that of Student's t over the paired seeds, corrected by Holm over the
    cells. It does not account for the variation between test rows, because these experiments have
    no published answers to resample.
    """
    cells = [(own, cell) for own in map(experiment, PAIR_EXPERIMENTS) for cell in own.cells]
    columns: list[dict[tuple[str, str], tuple[float, float]]] = []
    for place in range(len(_COLUMNS)):
        changes = {}
        for own, cell in cells:
            if place < len(own.metrics):
                rule, name = own.decoded if decoded else GREEDY, own.metrics[place]["name"]
                seeds = [own.found(o, cell, rule, name)["seeds"] for o in (first, second)]
                changes[own.name, cell] = np.subtract(*map(np.array, seeds))
        corrected = holm({key: _p_of_seeds(change) for key, change in changes.items()})
        columns.append({key: (float(own.mean()), corrected[key]) for key, own in changes.items()})
    rule = "decoded" if decoded else GREEDY
    family = f"{first} minus {second}, {rule}, {len(cells)} cells"
    return [
        Difference(
            own,
            own.rows[first, cell],
            own.rows[second, cell],
            family,
            [column.get((own.name, cell)) for column in columns[: len(own.metrics)]],
        )
        for own, cell in cells
    ]


def _p_of_seeds(change: Any) -> float:
    p = seed_interval(change, np.zeros((len(change), 2))).p
    return 1.0 if np.isnan(p) else p


def pair(first: str, second: str) -> str:
    """Return the differences of two objectives, greedy and decoded by the rule of the task."""
    columns = [f"{label}, {rule}" for rule in (GREEDY, "decoded") for label in _COLUMNS]
    rows = [["experiment", "cell", *columns]]
    both = (pair_differences(first, second, decoded=decoded) for decoded in (False, True))
    for greedy, decoded in zip(*both, strict=True):
        cell = greedy.better.removeprefix(first).strip("_").replace("_", " ")
        name = f"`{greedy.experiment.name}`"
        rows.append([name, cell, *greedy.texts(), *decoded.texts()])
    return _table(rows)


def is_tested(own: Experiment, sides: Iterable[Sequence[str]]) -> bool:
    """Return True if the decoding rules of both sides, each (row, rule), were tested."""
    return own.name not in GREEDY_ALONE or all(rule == GREEDY for _, rule in sides)


@cache
def differences(name: str) -> list[Difference]:
    """Return the differences of the families of an experiment with five seeds.

    The p-values of each metric are corrected over the family, as ``compare`` corrects the first.
    Experiments with ensembles are left out: they have the runs of another experiment, and would
    repeat its families.
    """
    own, found = experiment(name), list[Difference]()
    summary = own.summary
    if len(summary["seeds"]) < ENOUGH_SEEDS or own.ensembles:
        return []
    for family, meaning in FAMILIES.items():
        members: dict[tuple[str, str], Mapping[str, Any]] = {}
        for row in summary["objectives"]:
            if family == "table" and summary["references"][row]:
                members[row, summary["references"][row]] = summary["table"][row]
            elif family == "decoding" and name not in GREEDY_ALONE:
                rules = summary["decoding"].get(row, {})
                chosen = [rule for rule in own.rules[1:] if rule in rules]
                members |= {(f"{row}, {rule}", row): rules[rule] for rule in chosen}
        columns: list[dict[tuple[str, str], tuple[float, float]]] = []
        for metric in own.metrics:
            cells = {key: cell[metric["name"]]["difference"] for key, cell in members.items()}
            known = {key: cell for key, cell in cells.items() if cell["p"] is not None}
            corrected = holm({key: cell["p"] for key, cell in known.items()})
            columns.append({key: (known[key]["value"], corrected[key]) for key in known})
        for key in members:
            changes = [column.get(key) for column in columns]
            found.append(Difference(own, *key, f"{meaning}, {len(members)}", changes))
    return found


def planned_differences(name: str) -> list[Difference]:
    """Return the planned differences of an experiment, with the metrics that were planned."""
    own, sizes = experiment(name), Counter[str]()
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for each in own.planned:
        sizes[each["family"]] += 1
        if not is_tested(own, _sides(each)):
            continue
        pair = [row if rule == GREEDY else f"{row}, {rule}" for row, rule in _sides(each)]
        found.setdefault((pair[0], pair[1]), {})[each["metric"]] = each
    planned = []
    for (better, other), by_metric in found.items():
        families = (f"{each['family']}, {sizes[each['family']]}" for each in by_metric.values())
        known = {name: each["difference"] for name, each in by_metric.items()}
        ordered = (known.get(metric["name"]) for metric in own.metrics)
        changes = [own and (own["value"], own["p_holm"]) for own in ordered]
        text = f"planned: {', '.join(families)}"
        planned.append(Difference(own, better, other, text, changes))
    return planned


def _sides(hypothesis: Mapping[str, Any]) -> list[list[str]]:
    """Return the row and the rule of the answers that should be better, and of the others."""
    return [hypothesis["better"], hypothesis["other"]]


def clear() -> str:
    """Return a table of all differences that are clear in a metric after the correction.

    They include planned differences, for or against the hypothesis.
    """
    return _differences_table(
        found
        for path in sorted(RESULTS.glob("*/summary.json"))
        for name in [path.parent.name]
        for found in (*differences(name), *planned_differences(name))
        if found.is_clear
    )


def _differences_table(rows: Iterable[Difference]) -> str:
    header = ["experiment", "answers", "against", "family", *_COLUMNS]
    texts = (
        [f"`{own.experiment.name}`", _code(own.better), _code(own.other), own.family, *own.texts()]
        for own in rows
    )
    return _table([header, *texts])


def _code(answers: str) -> str:
    row, comma, rule = answers.partition(",")
    return f"`{row}`{comma}{rule}"


@dataclass(frozen=True)
class Claim:
    """A sentence, and the difference that shows it: planned, or else of a family.

    ``better`` and ``other`` are names of rows, with the decoding rule unless it is greedy. A claim
    with a ``metric`` is in the README; then the difference in it was planned.
    """

    sentence: str
    experiment: str
    better: str
    other: str
    metric: str = ""
    is_clear: bool = True

    def difference(self) -> Difference:
        """Return the difference; raise ValueError if it is missing, or not as clear as claimed."""
        planned = experiment(self.experiment).planned
        for own in (planned_differences if planned else differences)(self.experiment):
            pair = own.better, own.other
            if pair == (self.better, self.other) and own.is_clear == self.is_clear:
                return own
        raise ValueError(f"{self.sentence!r} is shown by no clear difference.")


CLAIMS = (
    Claim(
        "With label errors of about 5 minutes in both directions, the median of a CE model reads "
        "more clocks within 1 minute than its greedy answers",
        "clock_evidence", "ce_gaussian_5, median", "ce_gaussian_5", "within_1_minute",
    ),
    Claim(
        "With labels that are late by 5 minutes on average, the median reads fewer clocks within "
        "1 minute, contrary to the hypothesis",
        "clock_evidence", "ce_exponential_5, median", "ce_exponential_5", "within_1_minute",
    ),
    Claim(
        "On sums, the median of a pretrained model trained with CE has smaller errors than its "
        "greedy answers",
        "arithmetic_smollm2", "ce, median", "ce", "mae_interpolation",
    ),
    Claim(
        "On these sums, no loss is clearly better than CE, both decoded greedily; the largest "
        "difference is NTIL's",
        "arithmetic_smollm2", "ntil", "ce", "mae_interpolation", is_clear=False,
    ),
    Claim(
        "On products of factors with one or two digits, a tiny model trained with EMD from the "
        "first step has smaller errors than one trained with CE, both decoded greedily",
        "products", "emd", "ce", "log_mae",
    ),
    Claim(
        "The same holds for NTL-WAS",
        "products", "ntl_was", "ce",
    ),
    Claim(
        "It also holds for NTIL",
        "products", "ntil", "ce",
    ),
    Claim(
        "It holds for EMD, too, if both are decoded by the median",
        "products", "emd, median", "ce, median",
    ),
    Claim(
        "On these products, the median of a model trained with CE has smaller errors than its "
        "greedy answers",
        "products", "ce, median", "ce",
    ),
    Claim(
        "On the sums, the median of a model trained with NTIL has smaller errors than its greedy "
        "answers",
        "arithmetic_smollm2", "ntil, median", "ntil",
    ),
    Claim(
        "With label noise of 5 minutes, a CE model distilled from its own medians reads more "
        "clocks within 1 minute than a CE model with as many steps, both decoded greedily",
        "clock_distilled", "distilled", "more_steps",
    ),
    Claim(
        "With noisy boxes, a CE model distilled from its own `mbr` answers finds more objects at "
        "IoU 0.75 than a CE model, both decoded greedily",
        "grounding_evidence", "distilled", "ce",
    ),
    Claim(
        "With exact boxes, a tiny model that writes location tokens finds more objects than one "
        "that writes digits, both trained with CE and decoded greedily",
        "location_tokens", "tokens_exact", "ce_exact",
    ),
    Claim(
        "The same holds with noisy boxes",
        "location_tokens", "tokens_noise_4", "ce_noise_4",
    ),
    Claim(
        "With labels without noise, distillation lowers the accuracy on sums",
        "arithmetic_decoding", "distilled", "ce",
    ),
)  # fmt: skip
"""All claims of the README and docs/ about published results."""


def claims(form: str = "table") -> str:
    """Return the claims with their differences, as a table, or those of the README as a list."""
    found = [(claim.sentence, claim.difference()) for claim in CLAIMS]
    if form == "table":
        header = ["claim", "experiment", "family", *_COLUMNS]
        rows = ([text, f"`{o.experiment.name}`", o.family, *o.texts()] for text, o in found)
        return _table([header, *rows])
    return "\n".join(_listed(claim) for claim in CLAIMS if claim.metric)


def _listed(claim: Claim) -> str:
    """Return a planned difference with its interval and the smallest that could be found."""
    own, sides = experiment(claim.experiment), []
    for answers in (claim.better, claim.other):
        row, _, rule = answers.partition(", ")
        sides.append([row, rule or GREEDY])
    metric = next(each for each in own.summary["metrics"] if each["name"] == claim.metric)
    (stated,) = (h for h in own.planned if _sides(h) == sides and h["metric"] == claim.metric)
    size = sum(each["family"] == stated["family"] for each in own.planned)
    change, seeds = stated["difference"], np.array(stated["difference"]["seeds"])
    error = seeds.std(ddof=1) / math.sqrt(len(seeds))
    shown = [change["value"], change["low"], change["high"]]
    value, low, high = (_value(each, metric, sign="+") for each in shown)
    findable = _value(smallest_effect(error, len(seeds) - 1, size), metric)
    return (
        f"- {claim.sentence}: {metric['label']} {value}{' points' * (metric['unit'] == '%')} "
        f"({low} to {high}), {_p(change['p_holm'])}, findable {findable}."
    )


def _change(value: float, p: float, metric: Mapping[str, Any]) -> str:
    text = f"{_value(value, metric, sign='+')}, {_p(p)}"
    return f"**{text}**" if p <= SIGNIFICANT else text


def _p(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p {min(p, 1.0):.3f}"


def _value(value: float, metric: Mapping[str, Any], sign: str = "") -> str:
    is_share = metric["unit"] == "%"
    decimals = 1 if is_share else 5 if metric["name"] == "log_mae" else 2
    number = round(100 * value if is_share else value, decimals) + 0.0
    return f"{number:{sign if number else ''}.{decimals}f}"


def _label(metric: Mapping[str, Any]) -> str:
    label = metric["label"][:1].upper() + metric["label"][1:]
    return f"{label} ({metric['unit']})" if metric["unit"] else label


def _table(rows: Sequence[Sequence[str]]) -> str:
    header, *others = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([header, "|" + "---|" * len(rows[0]), *others])


def printed_scores(file: str, lines: str = "") -> str:
    """Return what `mm-numeric score` prints for a file of answers in the repository."""
    printed = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(printed):
        code = main(["score", str(RESULTS.parents[1] / file), "--out", folder])
    if code:
        raise ValueError(f"mm-numeric score {file} ends with the exit code {code}.")
    shown = printed.getvalue().splitlines()[: int(lines) if lines else None]
    return "\n".join(["```text", *shown, "```"])


TABLES: Mapping[str, Callable[..., str]] = {
    "score": printed_scores,
    "values": values,
    "planned": planned,
    "ensembles": ensembles,
    "pair": pair,
    "clear": clear,
    "claims": claims,
}
