"""Decoded answers, against loops over all candidates."""

import math
from collections import Counter

import numpy as np
import pytest
import shapely
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from mm_numeric.answers import (
    Box,
    Choice,
    ClockReading,
    ClockTime,
    Instance,
    Instances,
    Measurement,
    Number,
    Text,
)
from mm_numeric.config.decoding import DECODE_RULES
from mm_numeric.evaluation.metrics.detection import LABELLED_DETECTION
from mm_numeric.inference.decision_rules import Candidate, decide, merge_equal
from mm_numeric.inference.risks import EXACT, Risk, find_risk, risk_of
from mm_numeric.tasks.gsm8k import GSM8K

RANDOM = examples(100)
WEIGHT = st.floats(0.001, 0.08)
TIMES = st.lists(st.tuples(st.integers(0, 719), WEIGHT), min_size=1, max_size=12)
NUMBERS = st.lists(st.tuples(st.integers(-30, 30), WEIGHT), min_size=1, max_size=12)


def times(*pairs):
    return [Candidate(t := ClockTime.from_minutes(m), str(t), p) for m, p in pairs]


def numbers(*pairs):
    return [Candidate(Number(str(t)), str(t), p) for t, p in pairs]


def boxes(*pairs):
    return [Candidate(Box(*corners), str(corners), p) for corners, p in pairs]


def run(rule, candidates, risk="exact", greedy=None):
    return decide(rule, candidates, find_risk(risk, "test"), greedy=greedy)


@given(pairs=TIMES)
@RANDOM
def test_no_minute_beats_the_median_of_a_clock(pairs):
    def cost(minute):
        return sum(p * min(abs(m - minute), 720 - abs(m - minute)) for m, p in pairs)

    for rule in ("median", "mbr"):
        found = run(rule, times(*pairs), "circular_minutes")
        assert cost(found.answer.minutes) == pytest.approx(min(map(cost, range(720))), abs=1e-6)
        assert found.text == str(found.answer)
        assert found.covered == pytest.approx(sum(p for _, p in pairs))


@given(pairs=NUMBERS)
@RANDOM
def test_the_mode_is_the_answer_with_the_most_samples_whatever_the_risk(pairs):
    """Self-consistency: texts of one value, such as 7 and 7.0, count together."""
    total = Counter()
    for value, weight in pairs:
        total[value] += weight
    found = run("mode", numbers(*pairs), "absolute").answer
    assert total[found.value] == pytest.approx(max(total.values()))
    halves = [(f"{value}{end}", weight / 2) for value, weight in pairs for end in ("", ".0")]
    assert run("mode", numbers(*halves)).answer.value == found.value


@given(pairs=NUMBERS)
@RANDOM
def test_no_candidate_costs_less_than_the_mbr_answer(pairs):
    for risk, power in (("absolute", 1), ("exact", 0)):

        def cost(y, power=power):
            return sum(p * (abs(x - y) if power else x != y) for x, p in pairs)

        found = run("mbr", numbers(*pairs), risk)
        assert cost(found.answer.value) <= min(cost(x) for x, _ in pairs) + 1e-9
    found = run("median", numbers(*pairs), "absolute")
    assert found.answer in [Number(str(x)) for x, _ in pairs]


@given(pairs=NUMBERS)
@RANDOM
def test_confidence_and_interval_are_those_of_the_distribution(pairs):
    found = run("mbr", numbers(*pairs), "absolute")
    total = sum(p for _, p in pairs)
    same = sum(p for x, p in pairs if x == found.answer.value)
    assert found.confidence == pytest.approx(same)
    probs, rights = found.support
    assert probs @ rights == pytest.approx(same)
    assert probs.sum() == pytest.approx(found.covered) == pytest.approx(total)
    low, high = found.interval
    assert type(low) is type(high) is int
    assert sum(p for x, p in pairs if low <= x <= high) / total >= 0.9 - 1e-8


def test_a_clock_around_twelve():
    candidates = times((715, 0.25), (716, 0.2), (4, 0.3), (5, 0.15), (360, 0.05))
    mean = run("mean", candidates, "circular_minutes")
    assert str(mean.answer) in ("11:58", "11:59", "12:00")
    assert mean.text is None
    assert mean.interval == ("11:55", "12:05")
    median = run("median", candidates, "circular_minutes")
    assert (
        str(median.answer) == median.text == str(run("mbr", candidates, "circular_minutes").answer)
    )
    assert median.answer.minutes in (716, 4)
    assert run("mbr", candidates, "within_5_minutes").confidence > 0.4
    assert median.covered == pytest.approx(0.95)
    assert median.object_confidences is None


def test_the_confidence_of_a_clock_is_the_mass_within_five_minutes():
    found = run("greedy", times((0, 0.2), (5, 0.2), (6, 0.1)), greedy=times((0, 0))[0])
    assert (str(found.answer), found.text) == ("12:00", "12:00")
    assert found.confidence == pytest.approx(0.4)
    assert found.covered == pytest.approx(0.5)


def test_what_was_not_explored_is_not_believed():
    found = run("median", times((300, 0.02)), "circular_minutes")
    assert (found.confidence, found.covered) == (0.02, 0.02)


def test_between_two_boxes_is_no_box():
    two = [((0, 0, 10, 10), 0.3), ((0, 2, 10, 12), 0.15), ((80, 80, 99, 99), 0.35),
           ((50, 90, 60, 95), 0.2)]  # fmt: skip
    for rule in ("mean", "median"):
        between = run(rule, boxes(*two), "iou")
        assert between.text is None
        assert 0 < between.answer.y1 < 80.5
        assert between.confidence < 0.1
    found = run("mbr", boxes(*two), "iou")
    assert found.answer == Box(0, 0, 10, 10)
    assert found.confidence > 0.35
    assert found.interval is None
    assert run("mbr", boxes(*two), "exact").answer == Box(80, 80, 99, 99)


def test_the_median_of_boxes_is_that_of_each_coordinate():
    draw = np.random.default_rng(0)
    corner, side = draw.random((9, 2)), draw.random((9, 2))
    rows = np.hstack([corner, corner + side])
    candidates = boxes(*((tuple(row), 1 / 9) for row in rows.tolist()))
    median, mean = (run(rule, candidates).answer for rule in ("median", "mean"))
    assert [median.x1, median.y1, median.x2, median.y2] == np.median(rows, axis=0).tolist()
    assert [mean.x1, mean.y1, mean.x2, mean.y2] == pytest.approx(rows.mean(axis=0))


def test_the_medoid_of_boxes_equals_a_double_loop_with_shapely():
    draw = np.random.default_rng(1)
    for _ in range(15):
        corner, side = draw.integers(0, 20, (16, 2)), draw.integers(1, 30, (16, 2))
        rows, probs = np.hstack([corner, corner + side]).tolist(), draw.dirichlet(np.ones(16))
        shapes = [shapely.box(*row) for row in rows]
        gains = [
            sum(p * a.intersection(b).area / a.union(b).area
                for b, p in zip(shapes, probs, strict=True)) for a in shapes
        ]  # fmt: skip
        found = run("mbr", boxes(*((tuple(r), p) for r, p in zip(rows, probs, strict=True))), "iou")
        assert found.answer == Box(*rows[int(np.argmax(gains))])
        chosen = shapes[int(np.argmax(gains))]
        right = sum(
            p * (chosen.intersection(b).area / chosen.union(b).area >= 0.5)
            for b, p in zip(shapes, probs, strict=True)
        )
        assert found.confidence == pytest.approx(right, abs=1e-9)


def test_solutions_are_numbers_and_the_most_frequent_one_wins():
    task = GSM8K()
    texts = ["1 + 1 = 2\n#### 2", "one\n#### 3", "two\n#### 3", "so\n#### 90"]
    found = [
        Candidate(task.parse(text), text, p)
        for text, p in zip(texts, (0.3, 0.2, 0.2, 0.3), strict=True)
    ]
    risk = risk_of(task, found[0].answer, "test")
    assert decide("mbr", found, risk).text in texts[1:3]
    assert decide("mbr", found, risk).confidence == pytest.approx(0.4)
    assert decide("median", found, risk).answer.value == 3.0
    assert decide("mean", found, risk).answer.value == pytest.approx(29)


def lists(draw, count):
    shared = draw.integers(0, 60, (4, 2))
    found = []
    for _ in range(count):
        corners = shared[draw.integers(0, 4, draw.integers(1, 6))] + draw.integers(-2, 3, 2)
        items = [Instance(Box(x, y, x + 10, y + 10), str(draw.choice(["a", "b"])))
                 for x, y in corners.astype(float).tolist()]  # fmt: skip
        found.append(Instances(tuple(items)))
    return found


def test_the_medoid_of_lists_equals_the_scorer_on_one_row_files():
    draw = np.random.default_rng(2)
    (metric,) = [m for m in LABELLED_DETECTION.metrics if m.name == "f1_at_0.5"]
    for _ in range(6):
        answers, probs = lists(draw, 8), draw.dirichlet(np.ones(8))

        def expected(own, answers=answers, probs=probs):
            rows = [LABELLED_DETECTION.columns([own], [truth]) for truth in answers]
            return sum(p * metric.value(row) for p, row in zip(probs, rows, strict=True))

        gains = [expected(own) for own in answers]
        candidates = [Candidate(a, str(i), p)
                      for i, (a, p) in enumerate(zip(answers, probs, strict=True))]  # fmt: skip
        found = run("mbr", candidates, "f1_at_0.5")
        assert gains[int(found.text)] == pytest.approx(max(gains), abs=1e-12)
        assert found.confidence == pytest.approx(max(gains))
        assert len(found.object_confidences) == len(found.answer.items)


@pytest.mark.parametrize("listed", [False, True])
def test_of_equally_good_candidates_the_middle_one_is_chosen(listed):
    """All samples are within the threshold of each other, so that it decides nothing."""
    boxes = [Box(x, 0, x + 20, 20) for x in (4, 0, 1, 2, 3)]
    answers = [Instances((Instance(box),)) for box in boxes] if listed else boxes
    candidates = [Candidate(a, str(i), 0.2) for i, a in enumerate(answers)]
    assert run("mbr", candidates, "f1_at_0.5" if listed else "accuracy_at_0.5").answer == answers[3]


def test_the_finer_risk_does_not_outweigh_a_small_difference():
    """At 12:00 the answer is most probably within 5 minutes; from 3:00 it is nearer on average."""
    candidates = times((0, 0.40001), (180, 0.4), (240, 0.19999))
    assert str(run("mbr", candidates, "within_5_minutes").answer) == "12:00"
    assert str(run("mbr", candidates, "circular_minutes").answer) == "3:00"


def test_the_confidence_of_an_object_is_the_share_of_lists_that_have_it():
    left, right, far = Box(0, 0, 10, 10), Box(20, 0, 30, 10), Box(50, 50, 60, 60)
    near = Box(0, 0, 10, 9)

    def answer(*items):
        return Instances(tuple(Instance(shape, label) for shape, label in items))

    candidates = [
        Candidate(answer((left, "a"), (right, "b"), (left, "a")), "one", 0.5),
        Candidate(answer((near, "a"), (right, "c")), "two", 0.25),
        Candidate(answer((far, "a")), "three", 0.05),
    ]
    found = run("greedy", candidates, greedy=candidates[0])
    # The second of two equal boxes matches nothing in a list with one such box.
    assert found.object_confidences == pytest.approx([0.75, 0.5, 0.5])
    assert found.covered == pytest.approx(0.8)
    assert run("greedy", candidates, greedy=Candidate(answer(), "[]", 0)).object_confidences == ()


def drawn(answers, unparseable=0):
    """Return candidates of texts that were drawn once each, and the number of texts."""
    count = len(answers) + unparseable
    return [Candidate(own, str(i), 1 / count) for i, own in enumerate(answers)], count


@pytest.mark.parametrize(("kind", "risk"), [("boxes", "accuracy_at_0.5"), ("numbers", "absolute")])
def test_samples_are_judged_by_samples_that_did_not_choose(kind, risk):
    """Each of the random splits, with ``decide`` itself on the samples that choose."""
    draw = np.random.default_rng(3)
    if kind == "boxes":
        corner = draw.integers(0, 6, (9, 2))
        answers = [Box(*row) for row in np.hstack([corner, corner + 9]).astype(float).tolist()]
    else:
        answers = [Number(str(n)) for n in draw.integers(0, 4, 9)]
    candidates, count = drawn(answers, unparseable=3)
    found = decide("mbr", candidates, find_risk(risk, "test"), samples=count)
    merged = merge_equal(candidates)
    index = [next(i for i, m in enumerate(merged) if m.answer == own) for own in answers]
    order = np.random.default_rng(0).permuted(
        np.tile(sorted(index) + [len(merged)] * 3, (32, 1)), axis=1
    )
    shares = []
    for own in order.tolist():
        judge, choose = own[:3], own[3:]
        chosen, _ = drawn([merged[i].answer for i in sorted(choose) if i < len(merged)])
        alone = decide("mbr", chosen, find_risk(risk, "test"))
        truths = [merged[i].answer for i in judge if i < len(merged)]
        shares.append(sum(_agree(alone.answer, truth) for truth in truths) / len(judge))
    assert found.confidence == pytest.approx(np.mean(shares))
    assert found.answer == decide("mbr", candidates, find_risk(risk, "test")).answer
    assert found.support is None


def _agree(answer, truth):
    if isinstance(answer, Number):
        return answer.value == truth.value
    a, b = (shapely.box(own.x1, own.y1, own.x2, own.y2) for own in (answer, truth))
    return a.intersection(b).area / a.union(b).area >= 0.5


@pytest.mark.parametrize(("count", "risk"), [(8, "iou"), (8, "accuracy_at_0.5"), (32, "iou")])
def test_held_out_samples_remove_the_optimism_of_mbr(count, risk):
    """Boxes with noise of several sizes: the true probability is that of 400 other draws."""
    draw = np.random.default_rng(0)
    differences = {0: [], count: []}
    for _ in range(60):
        noise = draw.uniform(1, 14)
        places = np.array([[10, 10, 40, 40], [70, 10, 100, 40]])[: draw.integers(1, 3)]

        def some(number, noise=noise, places=places):
            rows = places[draw.integers(0, len(places), number)] + draw.normal(
                0, noise, (number, 4)
            )
            rows[:, 2:] = np.maximum(rows[:, 2:], rows[:, :2] + 2)
            return [Box(*row) for row in rows.round().tolist()]

        candidates, _ = drawn(some(count))
        for samples, found in differences.items():
            own = decide("mbr", candidates, find_risk(risk, "test"), samples=samples)
            true = 1 - find_risk("accuracy_at_0.5", "test").costs([own.answer], some(400)).mean()
            found.append(own.confidence - true)
    assert np.mean(differences[0]) > (0.1 if count == 8 else 0.035)
    assert abs(np.mean(differences[count])) < 0.035


def test_a_list_that_was_drawn_does_not_agree_with_itself():
    box = Box(0, 0, 10, 10)

    def answer(*labels):
        return Instances(tuple(Instance(box, label) for label in labels))

    candidates, count = drawn([answer("a", "b"), answer("a"), answer("a", "c")], unparseable=1)
    found = decide("mbr", candidates, find_risk("f1_at_0.5", "test"), samples=count)
    assert [item.label for item in found.answer.items] == ["a"]
    assert found.object_confidences == pytest.approx([2 / 3])  # of three other texts
    greedy = decide("greedy", candidates, EXACT, greedy=candidates[1], samples=count)
    assert greedy.object_confidences == pytest.approx([3 / 4])
    assert decide("mbr", numbers((7, 1.0)), EXACT, samples=1).confidence == 0


def test_equal_answers_count_as_one():
    candidates = [*numbers(("3", 0.2), ("4.0", 0.25), ("3.0", 0.15), ("9", 0)),
                  Candidate(Number("3"), "so it is 3", 0.1)]  # fmt: skip
    merged = merge_equal(candidates)
    assert [(c.text, round(c.probability, 9)) for c in merged] == [("3", 0.45), ("4.0", 0.25)]
    found = run("mbr", candidates)
    assert (found.text, found.answer.text) == ("3", "3")
    assert found.confidence == pytest.approx(0.45)
    units = [(("°C",), 0.4), (("°F",), 0.35), (("°C",), 0.25)]
    merged = merge_equal([Candidate(Measurement("37", units=u), "37", p) for u, p in units])
    assert [(c.answer.units, c.probability) for c in merged] == [(("°C",), 0.65), (("°F",), 0.35)]
    degrees = [(37, "°F", 0.1), (37, "°C", 0.6), (36, "°C", 0.3)]
    kinds = [Candidate(Measurement(str(n), units=(u,)), f"{n} {u}", p) for n, u, p in degrees]
    assert [run(rule, kinds).text for rule in ("mean", "median", "mbr")] == ["37 °C"] * 3
    readings = [Candidate(ClockReading({"hours": h}), str(h), 0.3) for h in (1, 2, 1)]
    assert run("mbr", readings).text == "1"


def test_numbers_of_different_units_are_not_compared():
    kinds = [
        Candidate(Measurement(number, units=(unit,)), f"{number} {unit}", p)
        for number, unit, p in [("98.6", "°F", 0.3), ("36", "°C", 0.25), ("38", "°C", 0.25)]
    ]
    for rule, risk, text, interval in [
        ("mean", "absolute", None, (36, 38)),
        ("median", "absolute", "36 °C", (36, 38)),
        ("mbr", "absolute", "36 °C", (36, 38)),
        ("mbr", "exact", "98.6 °F", (98.6, 98.6)),
    ]:
        found = run(rule, kinds, risk)
        assert (found.text, found.interval) == (text, interval)
    assert str(run("mean", kinds, "absolute").answer.text) == "37"
    greedy = decide("greedy", kinds, find_risk("exact", "test"), greedy=kinds[0])
    assert greedy.interval == (98.6, 98.6)
    other = Candidate(Measurement("310", units=("K",)), "310 K", 0.1)
    assert decide("greedy", kinds, find_risk("exact", "test"), greedy=other).interval is None


def test_of_equally_good_answers_the_more_probable_then_the_first():
    assert run("mbr", numbers((1, 0.2), (3, 0.3), (2, 0.3)), "exact").text == "3"
    assert run("mbr", numbers((1, 0.5), (2, 0.5)), "absolute").text == "1"
    assert run("mbr", numbers((2, 0.5), (1, 0.5)), "absolute").text == "2"
    nothing = Risk("nothing", (object,), lambda a, b: np.zeros((len(a), len(b))))
    assert decide("mbr", numbers((1, 0.2), (3, 0.3)), nothing).text == "3"


@pytest.mark.parametrize(
    ("texts", "mean"),
    [
        (("3", "4"), "4"),  # 3.6
        (("3", "4.50"), "3.90"),
        (("-1", "1"), "0"),  # 0.2
        (("1", "-1"), "0"),  # -0.2, not -0
        (("2/7", "3/7"), "0.371429"),
        (("1e3", "2e3"), "1600"),
        (("1.5e-3", "2e-3"), "0.0018"),
        (("1e999", "1e999"), f"{1e150:.0f}"),
    ],
)
def test_a_mean_is_written_with_the_decimals_of_the_candidates(texts, mean):
    found = run("mean", numbers((texts[0], 0.4), (texts[1], 0.6)))
    assert found.answer.text == mean


@given(pairs=NUMBERS)
@RANDOM
def test_raft_is_the_sum_of_what_was_explored(pairs):
    expected = sum(value * p for value, p in pairs)
    found = run("raft", [Candidate(Number(f"{t}.00"), f"{t}.00", p) for t, p in pairs])
    assert abs(found.answer.value - expected) <= 0.00501


def test_a_median_keeps_its_text():
    candidates = [Candidate(Number("3.50"), "The answer is 3.50", 0.6), *numbers(("9", 0.1))]
    found = run("median", candidates)
    assert (found.text, found.answer.text) == ("The answer is 3.50", "3.50")
    assert found.interval == (3.5, 9)
    json_ends = run("median", numbers(("1e30", 1.0))).interval
    assert json_ends == (1e30, 1e30)


@pytest.mark.parametrize("rule", DECODE_RULES)
def test_nothing_readable_has_no_answer(rule):
    found = run(rule, [])
    assert (found.answer, found.text, found.covered) == (None, None, 0)
    assert found.interval is found.confidence is found.object_confidences is None
    assert run(rule, numbers((1, 0.0))).answer is None


def test_a_greedy_answer_without_candidates_has_no_confidence():
    found = run("greedy", [], greedy=numbers((7, 1))[0])
    assert (found.text, found.confidence, found.covered) == ("7", None, 0)
    unreadable = run("greedy", numbers((7, 0.5)))
    assert (unreadable.answer, unreadable.covered) == (None, 0.5)


def test_a_greedy_answer_that_is_no_candidate_is_not_believed():
    found = run("greedy", numbers((7, 0.5)), greedy=numbers((8, 1))[0])
    assert (found.text, found.confidence) == ("8", 0)


def test_many_candidates_are_fast_enough_and_covered_is_at_most_one():
    candidates = numbers(*((i, 1 / 1111 + 1e-18) for i in range(1111)))
    found = run("mbr", candidates, "absolute")
    assert found.text == "555"
    assert math.isclose(found.covered, 1)
    assert found.covered <= 1


@pytest.mark.parametrize(
    ("rule", "candidates", "risk", "message"),
    [
        ("vote", numbers((1, 1)), "exact", "there is no rule 'vote'. Known: greedy, mbr, mean"),
        ("mean", [Candidate(Text("a"), "a", 1)], "exact", "mean is defined for numbers, clock "
         "times and boxes, not for answers of type Text; use greedy or mbr"),
        ("raft", times((1, 1)), "exact", "raft is defined for numbers, not for answers of type "
         "ClockTime; use another rule"),
        ("median", [*numbers((1, 0.5)), Candidate(Choice("no"), "no", 0.5)], "exact",
         "answers of type Choice; use"),
        ("mbr", numbers((1, 1)), "iou", "does not fit answers of type Number; choose from "
         "absolute, exact, quantile_T, relative"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_sentence(rule, candidates, risk, message):
    with pytest.raises(ValueError, match=r"^decode: ") as error:
        run(rule, candidates, risk)
    assert message in str(error.value)


def test_costs_of_a_wrong_shape_are_reported():
    wrong = Risk("wrong", (object,), lambda a, b: np.zeros(len(a)))
    with pytest.raises(ValueError, match=r"'wrong' returned costs of shape \[2\] for 2 candidates"):
        decide("mbr", numbers((1, 0.5), (2, 0.5)), wrong)


def objects(*pairs):
    return Instances(tuple(Instance(Box(x, x, x + 9, x + 9), label) for x, label in pairs))


def test_ties_go_to_the_greedy_answer():
    """If samples share no object, none is better than the greedy answer, drawn or not."""
    risk = find_risk("f1_at_0.5", "test")
    answers = [objects((40 * i, "a")) for i in range(5)]
    candidates, count = drawn(answers[:4], unparseable=2)
    other = Candidate(answers[4], "greedy", 0.0)
    found = decide("mbr", candidates, risk, greedy=other, samples=count)
    assert (found.answer, found.text) == (answers[4], "greedy")
    assert (found.confidence, found.covered) == (0, pytest.approx(4 / 6))
    assert decide("mbr", candidates, risk, greedy=candidates[2], samples=count).text == "2"
    assert decide("mbr", candidates, risk, samples=count).text == "0"
    twice, count = drawn([*answers[:4], answers[1]])
    assert decide("mbr", twice, risk, greedy=other, samples=count).answer == answers[1]
    # Probabilities of the model contain the greedy answer.
    equal = numbers(("1", 0.3), ("2", 0.3), ("3", 0.3))
    assert decide("mbr", equal, EXACT, greedy=equal[2]).text == "3"
    assert decide("mbr", equal, EXACT, greedy=numbers(("9", 0))[0]).text == "1"


def test_answers_that_the_task_does_not_allow_are_not_chosen():
    risk = find_risk("f1_at_0.5", "test")
    answers = [objects((0, "car")), objects((0, "car")), objects((0, "a")), objects((50, "a"))]
    candidates, count = drawn(answers)

    def allows(answer):
        return all(item.label == "a" for item in answer.items)

    assert decide("mbr", candidates, risk, samples=count).answer == answers[0]
    for rule in ("mbr", "mode"):
        found = decide(rule, candidates, risk, samples=count, allows=allows)
        assert found.answer == answers[2]
        assert 0 <= found.confidence < 1
    greedy = Candidate(objects((7, "car")), "greedy", 0.0)
    found = decide("mbr", candidates, risk, greedy=greedy, samples=count, allows=lambda _: False)
    assert found.text == "greedy"
    none = decide("mbr", candidates, risk, samples=count, allows=lambda _: False)
    assert (none.answer, none.text, none.confidence) == (None, None, None)
