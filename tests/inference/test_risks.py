"""Costs of answers, against the scorers on one row at a time and against shapely."""

import sys

import numpy as np
import pytest

from mm_numeric.answers import (
    Box,
    Choice,
    ClockReading,
    ClockTime,
    Instance,
    Instances,
    Number,
    Polygon,
    Text,
)
from mm_numeric.evaluation.metrics.boxes import BOXES
from mm_numeric.evaluation.metrics.clock import TIMES
from mm_numeric.evaluation.metrics.detection import LABELLED_DETECTION
from mm_numeric.evaluation.metrics.number_errors import score_numbers
from mm_numeric.inference.decision_rules import Candidate, decide
from mm_numeric.inference.risks import find_risk, first_equal, risk_of
from mm_numeric.registry import RISK_OF_ANSWER, RISKS, SCORERS, TASKS, split_threshold
from mm_numeric.tasks.base import task_class

CORNERS = np.array([(0, 0), (12, 8), (40, 3), (45, 45)])


def costs(name, candidates, truths):
    found = find_risk(name, "test").costs(candidates, truths)
    assert found.shape == (len(candidates), len(truths))
    assert found.dtype == np.float64
    return found


def by_scorer(scorer, column, candidates, truths):
    """Score each candidate with each truth, in a file of one row."""
    return [[scorer.columns([c], [t])[column].item() for t in truths] for c in candidates]


def metric_by_scorer(scorer, name, candidates, truths):
    (metric,) = [metric for metric in scorer.metrics if metric.name == name]
    return [[float(metric.value(scorer.columns([c], [t]))) for t in truths] for c in candidates]


def some_boxes(draw, count):
    corner, side = draw.integers(0, 30, (count, 2)), draw.integers(-2, 30, (count, 2))
    return [Box(*map(float, row)) for row in np.hstack([corner, corner + side])]


def some_lists(draw, count, *, polygons):
    """Draw lists of 0 to 6 boxes or quadrilaterals with labels, close to four corners."""
    lists = []
    for _ in range(count):
        items = []
        for x, y in CORNERS[draw.integers(0, 4, draw.integers(0, 7))] + draw.integers(-1, 2, 2):
            width, height = draw.integers(13, 16, 2)
            shape = Box(float(x), float(y), float(x + width), float(y + height))
            if polygons and draw.random() < 0.7:
                corners = [(0, 0), (width, draw.integers(0, 3)), (width, height), (0, height)]
                if draw.random() < 0.2:
                    draw.shuffle(corners)  # some cross themselves
                shape = Polygon(tuple((float(x + a), float(y + b)) for a, b in corners))
            items.append(Instance(shape, str(draw.choice(["", "a"]))))
        lists.append(Instances(tuple(items)))
    return lists


def test_times_cost_what_the_scorer_measures():
    draw = np.random.default_rng(0)
    times = [ClockTime.from_minutes(int(m)) for m in draw.integers(0, 720, 12)] + [
        ClockTime(12, 0), ClockTime(11, 59), ClockTime(12, 5), ClockTime(6, 0),
    ]  # fmt: skip
    a, b = times, times[:9]
    assert costs("circular_minutes", a, b).tolist() == by_scorer(TIMES, "deviation_minutes", a, b)
    for name in ("within_1_minute", "within_5_minutes"):
        assert (1 - costs(name, a, b)).tolist() == by_scorer(TIMES, name, a, b)
    assert costs("within_2.5_minutes", a, b).mean() >= costs("within_5_minutes", a, b).mean()


def test_numbers_cost_what_the_scorer_measures():
    numbers = [Number(t) for t in ("0", "-3", "3.5", "3.50", "2/7", "1e3", "1e999", "-0.25")]
    rows = [[score_numbers([c], [t]) for t in numbers] for c in numbers]
    for name in ("absolute", "relative"):
        column = [[own[f"{name}_error"].item() for own in row] for row in rows]
        assert costs(name, numbers, numbers) == pytest.approx(np.array(column))
    exact = [[1 - own["exact"].item() for own in row] for row in rows]
    assert costs("exact", numbers, numbers).tolist() == exact


@pytest.mark.parametrize("t", [0.5, 0.75, 0.9])
def test_boxes_cost_what_the_scorer_measures(t):
    draw = np.random.default_rng(1)
    a, b = some_boxes(draw, 25), some_boxes(draw, 15)
    a += b[:5]
    name = f"accuracy_at_{t}"
    assert (1 - costs(name, a, b)).tolist() == by_scorer(BOXES, name, a, b)
    assert 1 - costs("iou", a, b) == pytest.approx(np.array(by_scorer(BOXES, "iou", a, b)))


@pytest.mark.parametrize("polygons", [False, True])
@pytest.mark.parametrize("t", [0.5, 0.75])
def test_lists_cost_what_the_scorer_measures(t, polygons):
    draw = np.random.default_rng(3)
    a, b = some_lists(draw, 14, polygons=polygons), some_lists(draw, 10, polygons=polygons)
    expected = np.array(metric_by_scorer(LABELLED_DETECTION, f"f1_at_{t}", a, b))
    empty = np.array([[not x.items and not y.items for y in b] for x in a])
    assert 1 - costs(f"f1_at_{t}", a, b) == pytest.approx(np.where(empty, 1.0, expected))
    assert (expected > 0).mean() > 0.1
    assert (expected == 0).any()
    if t == 0.5:
        iou = np.nan_to_num(metric_by_scorer(LABELLED_DETECTION, "mean_iou_of_pairs", a, b))
        quality = np.where(empty, 1.0, expected * iou)
        assert 1 - costs("panoptic_quality", a, b) == pytest.approx(quality)


def test_two_empty_lists_agree_and_an_empty_one_matches_nothing():
    empty, one = Instances(()), Instances((Instance(Box(0, 0, 2, 2)),))
    assert costs("f1_at_0.5", [empty, one], [empty, one]).tolist() == [[0, 1], [1, 0]]
    assert costs("f1_at_0.5", [empty], [empty]).tolist() == [[0]]


@pytest.mark.parametrize("t", [0.1, 0.3, 0.5, 0.9])
def test_a_quantile_costs_the_pinball_loss(t):
    draw = np.random.default_rng(4)
    values = draw.integers(-9, 9, 12)
    numbers = [Number(str(value)) for value in values]
    times = [ClockTime.from_minutes(int(value)) for value in values]  # around 12:00
    expected = [[t * (y - x) if y >= x else (1 - t) * (x - y) for y in values] for x in values]
    for answers in (numbers, times):
        assert costs(f"quantile_{t}", answers, answers) == pytest.approx(np.array(expected))
    if t == 0.5:
        assert 2 * costs("quantile_0.5", times, times) == pytest.approx(
            costs("circular_minutes", times, times)
        )


def test_labels_that_are_late_make_the_median_late_and_a_low_quantile_less():
    """The exact distribution of 3:00 plus an exponential of mean 10 minutes, in whole minutes."""
    ends = np.exp(-np.maximum(0, np.arange(-1, 400) + 0.5) / 10)
    candidates = [
        Candidate(ClockTime.from_minutes(180 + late), str(late), prob)
        for late, prob in enumerate((ends[:-1] - ends[1:]).tolist())
    ]
    late = {
        name: decide(rule, candidates, find_risk(risk, "test")).answer.minutes - 180
        for name, rule, risk in [
            ("greedy", "mbr", "exact"), ("median", "median", "exact"),
            ("mean", "mean", "exact"), ("quantile_0.3", "mbr", "quantile_0.3"),
        ]
    }  # fmt: skip
    assert late == {"greedy": 1, "median": 7, "mean": 10, "quantile_0.3": 4}


def test_other_answers_are_right_or_wrong():
    answers = [Choice("yes"), Choice("no"), Text("yes"), Choice("yes", question="4")]
    assert costs("exact", answers, answers)[0].tolist() == [0, 1, 1, 0]
    readings = [ClockReading({"hours": h}) for h in (1, 2, 1)]
    assert costs("exact", readings, readings[:1]).tolist() == [[0], [1], [0]]
    assert first_equal([]).tolist() == []


def test_names_are_those_of_the_metrics():
    assert split_threshold("accuracy_at_0.5") == ("accuracy_at_T", 0.5)
    assert split_threshold("within_1_minute") == split_threshold("within_1_minutes")
    assert split_threshold("my_module_2:RISK") == ("my_module_2:RISK", None)
    assert split_threshold("absolute") == ("absolute", None)
    for name in ("within_1_minute", "within_5_minutes", "accuracy_at_0.75", "f1_at_0.5", "iou"):
        assert find_risk(name, "test").name == name
    scorers = (BOXES, TIMES, LABELLED_DETECTION)
    names = [metric.name for scorer in scorers for metric in scorer.metrics]
    assert sum(split_threshold(name)[0] in RISKS for name in names) == 9


@pytest.mark.parametrize("answer", SCORERS)
def test_every_answer_type_has_a_risk(answer):
    name = RISK_OF_ANSWER.get(answer, "exact")
    assert issubclass(answer, find_risk(name, "test").answers)


@pytest.mark.parametrize("name", TASKS)
def test_the_risk_of_a_task_exists(name):
    task = task_class(name, "test")()
    assert task.risk is None or find_risk(task.risk, name)


def test_a_risk_is_named_by_the_config_or_the_task_or_the_type(monkeypatch, tmp_path):
    (tmp_path / "my_risks.py").write_text(
        "import numpy as np\nfrom mm_numeric.inference.risks import Risk\n"
        "MINE = Risk('mine', (object,), lambda a, b: np.zeros((len(a), len(b))))\n",
        encoding="utf-8",
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    clock, time = task_class("clock", "test")(), ClockTime(7, 5)
    assert risk_of(clock, time, "test").name == "circular_minutes"
    assert risk_of(clock, Text("7:05"), "test").name == "exact"
    assert risk_of(clock, time, "test", "within_5_minutes").name == "within_5_minutes"
    assert risk_of(clock, time, "test", "my_risks:MINE").name == "mine"
    monkeypatch.setattr(type(clock), "risk", "within_1_minute")
    assert risk_of(clock, time, "test").name == "within_1_minute"
    sys.modules.pop("my_risks", None)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("iou", "the risk 'iou' does not fit answers of type ClockTime; choose from "
         "circular_minutes, exact, quantile_T, within_T_minutes"),
        ("quantile_1", "quantile_1: a quantile is above 0 and below 1, not 1"),
        ("accuracy_at_2", "accuracy_at_2: an IoU threshold is above 0 and at most 1, not 2"),
        ("acc_at_0.5", "there is no risk 'acc_at_T'. Did you mean 'accuracy_at_T'?"),
        ("within_T_minutes", "'within_T_minutes' is not a Risk; write a number for T"),
        ("absolute_3", "there is no risk 'absolute_T'. Did you mean 'absolute'?"),
        ("mm_numeric.answers:Box", "'mm_numeric.answers:Box' is not a Risk; it is a type"),
        ("nobody:RISK", "'nobody:RISK' cannot be imported"),
    ],
)  # fmt: skip
def test_a_wrong_name_is_one_sentence(name, message):
    clock = task_class("clock", "test")()
    with pytest.raises(ValueError, match=r"^a\.yaml, decode: ") as error:
        risk_of(clock, ClockTime(7, 5), "a.yaml, decode", name)
    assert message in str(error.value)
