"""Metrics of guesses: answers that depend on neither the image nor the text of the question.

A model that is no better than the best guess does not use its input.

random answer                  each row gets the correct answer to another row
constant answer                all rows get the same answer
constant answer per question   all rows with the same question get the same answer

A constant answer is the correct answer to some row. For each metric, the answer with the best value
on one half of the rows is chosen, and scored on the other half. Guesses are texts. The task parses
them like the texts of a model, in the coordinate frame of the row that they answer.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from mm_numeric.answers import Unreadable
from mm_numeric.evaluation.metrics.base import Metric, RowColumns, Scorer, metrics_by_category

RANDOM, CONSTANT, PER_QUESTION = (
    "random answer",
    "constant answer",
    "constant answer per question",
)

MOST_ROWS = 500
"""Guesses are scored on at most this many rows of a test set."""

_TRIED = 16  # candidates for the constant answer: the most frequent correct answers
_TRIED_ON = 50  # rows on which the candidates are compared
_SHIFTS = 2  # random answers per row
_ROWS_PER_QUESTION = 8  # with fewer rows, the frequent answers to a question are not known

Guesses = dict[str, dict[str, float | None]]
"""Kind of guess -> name of a metric -> value of the metric; None if the value is undefined."""

_Question = Callable[[int], Any]


class Guess(NamedTuple):
    """The guess with the best value of a metric."""

    kind: str
    value: float


def best_guess(guesses: Guesses, metric: str, *, higher_is_better: bool) -> Guess | None:
    """Return the guess with the best value of a metric; None if no guess has a value."""
    known = [
        Guess(kind, value)
        for kind, own in guesses.items()
        if (value := own.get(metric)) is not None
    ]
    best = max if higher_is_better else min
    return best(known, key=lambda guess: guess.value) if known else None


@dataclass(frozen=True, kw_only=True, eq=False)
class GuessedRows:
    """The rows of a test set without the answers of a model. Index i of each list is row i."""

    scorer: Scorer
    task: Any
    """The task, which writes and parses answers."""

    targets: Sequence[Any]
    frames: Sequence[Any]
    sizes_px: Sequence[Any] = ()
    prompts: Sequence[str | None] = ()
    categories: Sequence[str] = ()
    parsed: dict[Any, Any] = field(default_factory=dict, repr=False)
    """Cache: (text, frame) -> parsed answer."""

    def spread(self, *others: "GuessedRows") -> "GuessedRows":
        """Join these rows and ``others``; of more than 500 rows, keep 500 evenly spaced ones."""
        lists: dict[str, Any] = {}
        for name in ("targets", "frames", "sizes_px", "prompts", "categories"):
            lists[name] = [item for part in (self, *others) for item in getattr(part, name)]
        count = len(lists["targets"])
        if count > MOST_ROWS:
            rows = np.linspace(0, count - 1, MOST_ROWS).astype(int).tolist()
            lists = {name: [own[i] for i in rows] if own else own for name, own in lists.items()}
        return replace(self, **lists)

    def correct_answer(self, row: int) -> str | None:
        """Return a row's correct answer as text; None if it cannot be formatted and parsed."""
        try:
            text = str(self.task.format(self.targets[row], self.frames[row]).text)
        except ValueError:
            return None
        return None if isinstance(self._parse(text, row), Unreadable) else text

    def _parse(self, text: str, row: int) -> Any:
        key = text, self.frames[row]
        if key not in self.parsed:
            self.parsed[key] = self.task.read(*key)
        return self.parsed[key]

    def judge(self, rows: Sequence[int], answers: Sequence[str]) -> RowColumns:
        """Compare ``answers`` (texts from ``correct_answer``) with the targets of ``rows``."""
        return self.scorer.judge(
            [self._parse(answer, row) for answer, row in zip(answers, rows, strict=True)],
            [self.targets[row] for row in rows],
            [self.sizes_px[row] for row in rows] if self.sizes_px else None,
            list(answers),
        )


def guess_metrics(rows: GuessedRows, *, train_rows: int = 0) -> Guesses:
    """Compute the metrics of each kind of guess; {} for fewer than two rows.

    A constant answer per question requires several questions, with at least eight rows per question
    on average. The first ``train_rows`` rows are training rows. If there are any, constant answers
    are chosen on the training rows alone.
    """
    answers = [rows.correct_answer(row) for row in range(len(rows.targets))]
    tested = range(train_rows, len(answers))
    known = [row for row in tested if answers[row] is not None]
    if len(known) < 2 or not rows.scorer.metrics:
        return {}
    parts: list[tuple[Sequence[int], Sequence[int]]] = [(range(train_rows), tested)]
    if not train_rows:
        parts = [(tested[::2], tested[1::2]), (tested[1::2], tested[::2])]
    order, columns = _random(rows, known, answers)
    found: Guesses = {RANDOM: {}}
    for metric in rows.scorer.metrics:
        found[RANDOM] |= _values(rows, metric, order, columns)
    kinds: dict[str, _Question] = {CONSTANT: lambda _: None}
    prompts = {rows.prompts[row] for row in tested} if rows.prompts else set()
    if 1 < len(prompts) <= len(tested) / _ROWS_PER_QUESTION:
        kinds[PER_QUESTION] = lambda row: rows.prompts[row]
    for kind, question in kinds.items():
        found[kind] = {}
        for metric, (order, columns) in _constant(rows, answers, parts, question):
            found[kind] |= _values(rows, metric, order, columns)
    return found


def _values(
    rows: GuessedRows, metric: Metric, order: Sequence[int], columns: RowColumns
) -> dict[str, float | None]:
    """Compute a metric on all rows and per category; value i of a column is row ``order[i]``."""
    chosen = rows.scorer.by_category or (rows.scorer.metrics[0].name,)
    scorer = replace(rows.scorer, metrics=(metric,), by_category=chosen)
    categories = [rows.categories[row] for row in order] if rows.categories else []
    found = {}
    for own, part in metrics_by_category(scorer, categories):
        kept = columns if part is None else {name: value[part] for name, value in columns.items()}
        value = float(own.value(kept))
        found[own.name] = None if np.isnan(value) else value
    return found


def _joined(parts: Sequence[RowColumns]) -> RowColumns:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _random(
    rows: GuessedRows, known: Sequence[int], answers: Sequence[str | None]
) -> tuple[list[int], RowColumns]:
    order = np.random.default_rng(0).permutation(known).tolist()
    shifts = range(1, min(len(order), _SHIFTS + 1))
    given = [str(answers[row]) for row in order]
    parts = [rows.judge(order, np.roll(given, shift).tolist()) for shift in shifts]
    return order * len(parts), _joined(parts)


def _constant(
    rows: GuessedRows,
    answers: Sequence[str | None],
    parts: Sequence[tuple[Sequence[int], Sequence[int]]],
    question: _Question,
) -> Iterator[tuple[Metric, tuple[list[int], RowColumns]]]:
    """Yield (metric, (rows, columns)): the scores when the rows get the metric's constant answer.

    Each of ``parts`` has the rows on which an answer is chosen, and the rows that get this answer.
    Rows for which ``question`` returns the same value get the same answer.
    """
    order: list[int] = []
    columns: dict[str, list[RowColumns]] = {metric.name: [] for metric in rows.scorer.metrics}
    for chosen_on, tested in parts:
        all_known = [row for row in chosen_on if answers[row] is not None]
        for asked in dict.fromkeys(map(question, tested)):
            own = [row for row in tested if question(row) == asked]
            known = [row for row in all_known if question(row) == asked]
            best = _best_answers(rows, answers, known or all_known)
            order += own
            judged = {text: rows.judge(own, [text] * len(own)) for text in {*best.values()}}
            for name, text in best.items():
                columns[name].append(judged[text])
    for metric in rows.scorer.metrics:
        yield metric, (order, _joined(columns[metric.name]))


def _best_answers(
    rows: GuessedRows, answers: Sequence[str | None], known: Sequence[int]
) -> dict[str, str]:
    """Return the best constant answer for each metric: the metric is best if all rows get it."""
    counts = Counter(text for row in known if (text := answers[row]) is not None)
    tried = [text for text, _ in counts.most_common(_TRIED)]
    steps = np.linspace(0, len(known) - 1, min(len(known), _TRIED_ON)).astype(int)
    compared = [known[step] for step in steps]
    columns = [rows.judge(compared, [answer] * len(compared)) for answer in tried]
    best = {}
    for metric in rows.scorer.metrics:
        sign = 1 if metric.higher_is_better else -1
        values = [sign * float(metric.value(own)) for own in columns]
        best[metric.name] = tried[int(np.argmax(np.nan_to_num(values, nan=-np.inf)))]
    return best
