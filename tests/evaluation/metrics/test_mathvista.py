"""Each variant of MathVista's score equals its protocol, written here once more as slow loops."""

import json
import random
import re
import time
from contextlib import suppress
from functools import cache

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from result_files import section

from mm_numeric.answers import JudgedText, ShortAnswer, Text
from mm_numeric.evaluation.metrics.mathvista import (
    JUDGED_MATHVISTA,
    MATHVISTA,
    edit_distance,
    extract,
    normalised,
)
from mm_numeric.evaluation.score import score
from mm_numeric.tasks.mathvista import MathVista

SHAPES = ("circle", "square", "triangle", "square pyramid")


def choice(text="square", choices=SHAPES, **labels):
    return ShortAnswer(
        text=text, question_type="multi_choice", answer_type="text", choices=choices, labels=labels
    )


def free(text, answer_type="integer", precision=None):
    return ShortAnswer(
        text=text, question_type="free_form", answer_type=answer_type, precision=precision
    )


ONE, TWO, LIST = free("1.2", "float", 1), free("0.25", "float", 2), free("[2, 8]", "list")
FIVE = free("5")


@cache
def slow_distance(one, other):
    """Try every last step: exchange, put in, take out."""
    if not one or not other:
        return len(one) + len(other)
    exchanged = slow_distance(one[:-1], other[:-1]) + (one[-1] != other[-1])
    return min(exchanged, slow_distance(one[:-1], other) + 1, slow_distance(one, other[:-1]) + 1)


def slow_normalised(extraction, asked, rule):
    """Do what calculate_score.py's normalize_extracted_answer does, one question at a time."""
    if asked.question_type == "multi_choice":
        extraction = extraction.strip()
        letters = re.findall(r"\(([a-zA-Z])\)", extraction)
        if letters:
            extraction = letters[0].upper()
        for i, text in enumerate(asked.choices):
            if extraction == "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[i]:
                return text
        best = asked.choices[0]
        for text in asked.choices:
            if slow_distance(extraction, text) < slow_distance(extraction, best):
                best = text
        return best
    try:
        if asked.answer_type == "integer":
            return str(int(extraction)) if rule == "rules_2023" else str(int(float(extraction)))
        if asked.answer_type == "float":
            return str(round(float(extraction), int(asked.precision)))
    except Exception:  # as there
        return None
    return str(extraction)


def judged(text, asked):
    """Return the columns of one row; None stands for an answer of nothing."""
    columns = MATHVISTA.judge([None if text is None else Text(text)], [asked])
    return {name: values[0] for name, values in columns.items()}


def rights(text, asked):
    columns = judged(text, asked)
    return "".join(str(int(columns[n])) for n in ("strict", "rules", "rules_2023"))


@pytest.mark.parametrize(
    ("text", "asked", "right"),  # strict, rules, rules_2023
    [
        # multiple choice: letter, letter with text, text, chatty
        ("B", choice(), "111"),
        ("b", choice(), "111"),
        ("(B)", choice(), "111"),
        ("(b)", choice(), "111"),
        ("B.", choice(), "111"),
        ("(B) square", choice(), "111"),
        ("B) square", choice(), "111"),
        ("square", choice(), "111"),
        ("Square.", choice(), "111"),
        ("The answer is B.", choice(), "111"),
        ("The answer is (B), since it has four equal sides and (A) has none.", choice(), "111"),
        ('The answer is "square".', choice(), "111"),
        ("**Answer:** B", choice(), "111"),
        ("Four corners.\nAnswer: the option (B)", choice(), "111"),
        ("\\boxed{B}", choice(), "111"),
        ("[B]", choice(), "111"),
        ("Option B", choice(), "111"),
        ("B: square", choice(), "111"),
        ("所以选B。", choice(), "111"),
        ("The correct answer is (B) 8/11.", choice("8/11", ("3/11", "8/11", "6/11")), "111"),
        ("It has four equal sides, so (B) it is.", choice(), "111"),
        ("(A) is round and (C) has three.\nSo (B)", choice(), "111"),
        ("A circle is round, so B", choice(), "111"),
        ("What is shown here is a square, as I see it.", choice(), "111"),
        ("It is a square pyramid.", choice("square pyramid"), "111"),
        ("C", choice(), "000"),
        ("(C) square", choice(), "000"),
        ("triangle", choice(), "000"),
        ("It is a square pyramid.", choice(), "000"),
        # no such letter: the nearest text, which is no answer
        ("E", choice("circle"), "011"),
        ("squire", choice(), "011"),
        ("A or B", choice("circle"), "011"),
        ("not B", choice("circle"), "011"),
        # letters and numbers as choices
        ("E", choice("E", tuple("ABCDE")), "111"),
        ("Look at a row: next comes E", choice("E", tuple("ABCDE")), "111"),
        ("97", choice("97", ("97", "102", "107")), "111"),
        ("Angle H is 102, not 97.", choice("97", ("97", "102", "107")), "000"),
        ("B", choice("B", ("B", "A")), "000"),  # a letter comes before a text, as there
        ("f(x) = 2", choice("f(x) = 2", ("f(x) = 2", "3")), "100"),  # there (x) is the letter X
        # whole numbers: official cuts off the digits after the point, 2023 accepts none
        ("5", FIVE, "111"),
        (" 5\n", FIVE, "111"),
        ("5.0", FIVE, "110"),
        ("5.9", FIVE, "010"),
        ("-5", FIVE, "000"),
        ("-5", free("-5"), "111"),
        ("\N{MINUS SIGN}5", free("-5"), "111"),
        ("There are 7 and 2 leave, so 5 are left.", FIVE, "111"),
        ("The answer is 5. I saw 3 of them.", FIVE, "111"),
        ("Answer: 7 - 2 = 5", FIVE, "111"),
        ("The missing number of the row is 14.", free("14"), "111"),
        ("$1,000", free("1000"), "111"),
        ("It costs $1,000.", free("1000"), "111"),
        ("five", FIVE, "000"),
        ("10/2", FIVE, "000"),
        ("It is 1/5", FIVE, "000"),
        ("inf", FIVE, "000"),
        pytest.param("9" * 5000, FIVE, "000", id="many digits"),
        # floats: rounded to one decimal and to two
        ("1.2", ONE, "111"),
        ("1.24", ONE, "111"),
        ("1.25", ONE, "111"),  # to even, as Python rounds
        ("1.26", ONE, "000"),
        ("1.2 m", ONE, "111"),
        ("It is 1.2, so six of five are there.", ONE, "111"),
        ("d = 0.012 km, so the answer is 1.2", ONE, "111"),
        ("12e-1", ONE, "111"),
        ("1", ONE, "000"),
        ("nan", ONE, "000"),
        ("0.25", TWO, "111"),
        (".25", TWO, "111"),
        ("0.254", TWO, "111"),
        ("0.3", TWO, "000"),
        ("1/4", TWO, "000"),
        # lists: their text
        ("[2, 8]", LIST, "111"),
        ("[2,8]", LIST, "111"),
        ("Between [1] and the end: [2, 8].", LIST, "111"),
        ("[8, 2]", LIST, "000"),
        ("2, 8", LIST, "000"),
        # empty
        (None, FIVE, "000"),
        (None, ONE, "000"),
        (None, LIST, "000"),
        (None, choice("circle"), "011"),  # "" is nearest to the shortest choice
        (None, choice(), "000"),  # of those that are as short, the first
        (" \n", choice("circle"), "011"),
    ],
)
def test_what_is_right(text, asked, right):
    assert rights(text, asked) == right
    found = extract(text or "", asked)
    for rule in ("rules", "rules_2023"):
        assert judged(text, asked)[rule] == (slow_normalised(found.text, asked, rule) == asked.text)


TEXTS = st.one_of(
    st.text(max_size=12),
    st.text("ABCDabcd() .circlesquare", max_size=14),
    st.text("0123456789.,-+e/$[] _", max_size=10),
    st.floats(width=32).map(str),
    st.integers(-1000, 1000).map(str),
)
YEARS = ("1990 and 1995", "1995 and 2000", "2000 and 2005")
PUBLISHED = [
    ("2000 and 2005", choice("2000 and 2005", YEARS), 1, 1),
    ("2000 and 2005", free("2005"), 0, 1),
    ("9, 3", free("3"), 0, 1),
    ("[9, 7]", free("7"), 0, 1),
    ("9, 3", free("[9, 3]", "list"), 0, 0),
    ("[9, 7]", free("[9, 7]", "list"), 1, 1),
    ("[9,7]", free("[9, 7]", "list"), 0, 1),
    ("B, C", choice("triangle"), 0, 1),
    ("B, C", choice("circle"), 1, 0),
    ("(B) square", choice(), 1, 1),
    (" B\n", choice(), 1, 1),
    ("", choice("circle"), 1, 1),
    ("", FIVE, 0, 0),
    ("5.9", FIVE, 1, 1),
    ("1,234", free("1234"), 0, 1),
    ("$1.20", ONE, 0, 1),
]
"""Extraction of GPT-4, target, whether MathVista's script counts it as correct, and whether the
rules would if they extracted the answer from the extraction again."""


@pytest.mark.parametrize(("extraction", "asked", "right", "again"), PUBLISHED)
def test_a_published_extraction_is_normalised_and_not_extracted_again(
    extraction, asked, right, again
):
    answer = JudgedText("a response that names no answer", extraction)
    columns = JUDGED_MATHVISTA.judge([answer], [asked])
    assert columns["official"].tolist() == [right]
    assert right == (slow_normalised(extraction, asked, "rules") == asked.text)
    assert judged(extraction, asked)["rules"] == again
    assert JUDGED_MATHVISTA.extraction(answer, asked) == extraction


@given(extraction=st.deferred(lambda: TEXTS), asked=st.deferred(lambda: ASKED))
@examples(400)
def test_any_extraction_is_scored_as_the_published_script_does(extraction, asked):
    columns = JUDGED_MATHVISTA.judge([JudgedText("B", extraction)], [asked])
    for name, rule in (("official", "rules"), ("official_2023", "rules_2023")):
        wanted = slow_normalised(extraction, asked, rule) == asked.text
        assert columns[name].tolist() == [wanted]
    assert columns["strict"] <= columns["official"]
    assert columns["rules"] == judged("B", asked)["rules"]


def test_the_agreement_of_rules_and_judge_is_a_metric():
    rows = [("The answer is B.", "B", choice()), ("so 3", "4", FIVE), ("no idea", "", FIVE)]
    answers = [JudgedText(text, extraction) for text, extraction, _ in rows]
    columns = JUDGED_MATHVISTA.judge(answers, [asked for *_, asked in rows])
    assert columns["rules_agree"].tolist() == [1, 0, 1]
    assert {metric.name for metric in JUDGED_MATHVISTA.metrics} > {"rules", "rules_2023"}
    for metric in JUDGED_MATHVISTA.metrics:
        assert 0 <= metric.value(columns) <= 1, metric.name


ASKED = st.sampled_from([choice(), choice("B", tuple("ABCDE")), FIVE, ONE, TWO, LIST])


@pytest.mark.slow
@given(text=TEXTS, asked=ASKED)
@examples(600)
def test_any_text_is_normalised_as_the_published_script_does(text, asked):
    for rule in ("rules", "rules_2023"):
        wanted = slow_normalised(text, asked, rule)
        assert normalised(text, asked, rule_2023=rule == "rules_2023") == wanted


@pytest.mark.slow
@given(text=TEXTS, asked=ASKED)
@examples(600)
def test_any_text_is_judged_as_the_published_script_does(text, asked):
    columns, found = judged(text, asked), extract(text, asked)
    for rule in ("rules", "rules_2023"):
        assert columns[rule] == (slow_normalised(found.text, asked, rule) == asked.text)
    assert columns["strict"] <= columns["rules"]
    assert columns["strict"] + columns["unreadable"] <= 1
    assert columns["nearest_credit"] <= columns["rules"] - columns["strict"]


@given(text=st.text(max_size=30), asked=ASKED)
@examples(300)
def test_what_the_published_rules_read_is_extracted(text, asked):
    """The branches of extract_answer that ask nobody."""
    if asked.question_type == "multi_choice" and text in asked.choices:
        assert extract(text, asked).text == text
    for kind, read in (("integer", int), ("float", float)):
        if asked.answer_type == kind:
            with suppress(ValueError):
                assert extract(text, asked).text == str(read(text))
    assert extract(f'The answer is "{asked.text}".', asked).text == asked.text


@given(one=st.text("abc", max_size=7), other=st.text("abc", max_size=7))
@examples(300)
def test_edit_distance(one, other):
    assert edit_distance(one, other) == slow_distance(one, other)


def many(count=200):
    rng = random.Random(0)
    kinds = [
        lambda: choice(rng.choice(SHAPES), skills=("geometry", "logic")[: rng.randint(0, 2)]),
        lambda: choice(rng.choice(["yes", "no"]), ("yes", "no"), task=("vqa",)),
        lambda: free(str(rng.randint(0, 20))),
        lambda: free(f"{rng.uniform(0, 3):.1f}", "float", 1),
        lambda: free(f"[{rng.randint(0, 5)}, 1]", "list"),
    ]
    return [rng.choice(kinds)() for _ in range(count)]


def test_empty_answers_earn_nothing_strictly_and_something_officially():
    targets = many()
    columns = MATHVISTA.judge([None] * len(targets), targets)
    shortest = [min(t.choices, key=len) == t.text if t.choices else False for t in targets]
    assert columns["strict"].sum() == 0
    assert columns["rules"].tolist() == shortest
    assert columns["nearest_credit"].tolist() == shortest
    assert 0 < sum(shortest) < len(targets)
    assert columns["unreadable"].all()


def test_the_order_of_options_decides_nothing_strictly():
    """The strict score of a text follows its choice, wherever that stands."""
    rng = random.Random(1)
    for _ in range(50):
        shuffled = tuple(rng.sample(SHAPES, len(SHAPES)))
        for text in ("square", "I think it is the square here", "The answer is square."):
            assert rights(text, choice(choices=shuffled)) == "111"
        letter = chr(ord("A") + shuffled.index("square"))
        assert rights(f"Therefore ({letter})", choice(choices=shuffled)) == "111"


@pytest.mark.parametrize(
    ("text", "asked", "reason"),
    [
        ("", FIVE, "empty answer"),
        ("I cannot see it.", FIVE, "no number"),
        ("half: 1/2", TWO, "a fraction"),
        ("2 and 8", LIST, "no list"),
        ("Hard to say.", choice(), "no option named"),
        ("A circle or a triangle", choice(), "several options named"),
        ("(A) and (B)", choice(), "several options named"),
        ("E", choice(), "no option named"),
    ],
)
def test_what_is_no_answer_has_its_reason(text, asked, reason):
    assert MATHVISTA.reason(Text(text), asked) == reason
    assert isinstance(MATHVISTA.extraction(Text(text), asked), str)
    assert judged(text, asked)["unreadable"] == 1


@pytest.mark.parametrize("asked", [choice(), FIVE, LIST], ids=["choice", "integer", "list"])
@pytest.mark.parametrize(
    "unit", ["A ", "answer is ", "answer ", " ", "1,", "1/", "(A) ", "[1, ", "square ", "A and "]
)
def test_time_is_linear_in_the_text(asked, unit):
    def seconds(count):
        started = time.process_time()
        extract(unit * count, asked)
        return time.process_time() - started

    def is_linear():  # 8 times the text; 64 times the time would be squared
        return seconds(16_000) < max(40 * seconds(2_000), 0.5)

    assert any(is_linear() for _ in range(3))


def test_lmms_evals_float_precision_is_a_whole_number_here():
    """round(x, 1.0) raises, so that a harness that passes it loses every float item."""
    with pytest.raises(TypeError):
        round(1.23, 1.0)
    record = {**MathVista().record(ONE), "precision": 1.0}
    assert normalised("1.23", MathVista().recorded(record)) == "1.2"


def test_a_file_is_scored_by_category(tmp_path):
    rows = [
        ("B", choice(skills=("geometry", "logic"), task=("vqa",))),
        ("", choice("circle", skills=("geometry",), task=("vqa",))),
        ("no idea", choice("circle", skills=("logic",), task=("word problem",))),
        ("5.0", FIVE),
    ]
    lines = [
        {"id": str(i), "text": text, "target": MathVista().record(target), "task": "mathvista"}
        for i, (text, target) in enumerate(rows)
    ]
    path = tmp_path / "predictions.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    scores = score(path)
    results = section(tmp_path)
    assert {n: m["value"] for n, m in results["metrics"].items()} == {
        "strict": 0.5,
        "rules": 1.0,  # both texts that say nothing are nearest to circle
        "rules_2023": 0.75,
        "nearest_credit": 0.5,
        "unreadable": 0.5,
    }
    assert results["failures"] == {"empty answer": 1, "no option named": 1}
    assert [row["parsed"] for row in scores.rows] == ["B", None, None, "5.0"]
    tables = scores.buckets()
    assert {label: t["rows"] for label, t in tables["skills"].items()} == {
        "geometry": 2,
        "logic": 2,
    }
    assert tables["skills"]["logic"]["metrics"]["strict"] == {"value": 0.5}
    assert {label: t["rows"] for label, t in tables["answer_type"].items()} == {
        "integer": 1,
        "text": 3,
    }
    assert tables["task"]["vqa"]["metrics"]["strict"] == {"value": 0.5}
    free_form = tables["question_type"]["free_form"]
    assert free_form["rows"] == 1
    assert {name: own["value"] for name, own in free_form["metrics"].items()} == {
        "strict": 1.0,
        "rules": 1.0,
        "rules_2023": 0.0,
        "nearest_credit": 0.0,
        "unreadable": 0.0,
    }
