"""Words and choices are scored as by the scripts of SQuAD and SuperGLUE; slow loops check them."""

import math
import random
import re
import string
from collections import Counter

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from intervals import estimate, interval

from mm_numeric.answers import Choice, Text
from mm_numeric.evaluation.metrics.text import CHOICES, TEXTS, word_f1


def slow_words(text):
    """Lower case, no punctuation, no articles, one space: in the order of evaluate-v1.1.py."""
    lower = "".join(c for c in text.lower() if c not in set(string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", lower).split())


def slow_f1(prediction, target):
    """Pair each word with one that is alike and not taken yet."""
    said, left = slow_words(prediction).split(), slow_words(target).split()
    count, wanted = len(said), len(left)
    same = 0
    for word in said:
        if word in left:
            left.remove(word)
            same += 1
    if same == 0:
        return 0
    precision, recall = same / count, same / wanted
    return 2 * precision * recall / (precision + recall)


SAID = st.text("ab theTHE.,|5-", max_size=20)


@given(prediction=SAID, target=SAID)
@examples(300)
def test_words_are_judged_as_squad_does(prediction, target):
    columns = TEXTS.judge([Text(prediction)], [Text(target)])
    assert columns["f1"][0] == pytest.approx(slow_f1(prediction, target))
    assert columns["exact"][0] == (slow_words(prediction) == slow_words(target))


def test_known_texts():
    assert word_f1("The north-east | 5 km", "north-east, 5 km") == 1
    assert word_f1("in 1999", "in 1998") == 0.5
    columns = TEXTS.judge([None, Text("")], [Text("a cat"), Text("a cat")])
    assert columns["f1"].tolist() == [0, 0]
    assert columns["unreadable"].tolist() == [1, 0]


def slow_multirc(answers, targets):
    """Return F1a and EM from lists of labels, question by question."""
    said = [a is not None and a.chosen == "yes" for a in answers]
    true = [t.chosen == "yes" for t in targets]
    found = sum(s and t for s, t in zip(said, true, strict=True))
    precision = found / sum(said) if any(said) else 0
    recall = found / sum(true) if any(true) else 0
    f1 = 2 * precision * recall / (precision + recall) if found else 0
    right, questions = 0, {t.question for t in targets}
    for question in questions:
        rows = [i for i, t in enumerate(targets) if t.question == question]
        right += all(answers[i] is not None and said[i] == true[i] for i in rows)
    return f1, right / len(questions)


@pytest.mark.parametrize("seed", range(20))
def test_choices_are_judged_as_superglue_does(seed):
    rng = random.Random(seed)
    targets = [
        Choice(rng.choice(["yes", "no"]), question=str(rng.randint(0, 5))) for _ in range(20)
    ]
    answers = [rng.choice([t, t, t, Choice("yes"), Choice("no"), None]) for t in targets]
    columns = CHOICES.judge(answers, targets)
    found = {metric.name: metric.value(columns) for metric in CHOICES.metrics}
    f1, exact = slow_multirc(answers, targets)
    assert found["f1_answers"] == pytest.approx(f1)
    assert found["exact_questions"] == pytest.approx(exact)
    assert found["unreadable"] == sum(a is None for a in answers) / 20


def slow_by_question(answers, targets):
    """Return P, R and F1m as ``per_question_metrics`` of CogComp's measures.py."""
    precisions, recalls = [], []
    for question in {t.question for t in targets}:
        rows = [i for i, t in enumerate(targets) if t.question == question]
        predicted = [int(answers[i] is not None and answers[i].chosen == "yes") for i in rows]
        correct = [int(targets[i].chosen == "yes") for i in rows]
        agreement = sum(a * b for a, b in zip(correct, predicted, strict=True))
        precisions.append(agreement / sum(predicted) if sum(predicted) > 0 else 1.0)
        recalls.append(agreement / sum(correct) if sum(correct) > 0 else 1.0)
    p, r = sum(precisions) / len(precisions), sum(recalls) / len(recalls)
    return p, r, 2 * p * r / (p + r) if p + r else 0


@pytest.mark.parametrize("seed", range(20))
def test_questions_are_judged_as_in_the_multirc_script(seed):
    rng = random.Random(seed)
    targets = [
        Choice(rng.choice(["yes", "no"]), question=str(rng.randint(0, 7))) for _ in range(20)
    ]
    answers = [rng.choice([t, t, Choice("yes"), Choice("no"), None]) for t in targets]
    columns = CHOICES.judge(answers, targets)
    found = {metric.name: metric.value(columns) for metric in CHOICES.metrics}
    names = ("precision_questions", "recall_questions", "f1_questions")
    assert [found[n] for n in names] == pytest.approx(slow_by_question(answers, targets))


def test_multirc_figures_are_those_that_the_script_printed():
    """Figures of CogComp's measures.py for 300 questions, some without a correct answer."""
    draw = random.Random(7)
    answers, targets = [], []
    for question in range(300):
        count = draw.randint(1, 8)
        right = [draw.random() < 0.4 for _ in range(count)]
        said = [r if draw.random() < 0.75 else not r for r in right]
        for own, labels in ((targets, right), (answers, said)):
            own += [Choice("yes" if label else "no", question=str(question)) for label in labels]
    columns = CHOICES.judge(answers, targets)
    found = {metric.name: metric.value(columns) for metric in CHOICES.metrics}
    assert found["precision_questions"] == pytest.approx(0.7523730158730157, abs=1e-12)
    assert found["recall_questions"] == pytest.approx(0.7890158730158726, abs=1e-12)
    assert found["f1_questions"] == pytest.approx(0.7702588960279251, abs=1e-12)
    assert found["exact_questions"] == pytest.approx(0.3433333333333333, abs=1e-12)
    assert found["f1_answers"] == pytest.approx(0.7187237615449201, abs=1e-12)


def test_the_interval_of_questions_does_not_depend_on_their_number_of_answers():
    """All answers to a question are right, or all are wrong."""
    exact, ends = CHOICES.metrics[1], []
    for count in (1, 25):
        said = [Choice("yes" if i % 2 else "no") for i in range(60) for _ in range(count)]
        true = [Choice("yes", question=str(i)) for i in range(60) for _ in range(count)]
        columns = CHOICES.judge(said, true)
        ends.append(interval(columns, exact.value, resamples=500))
        all_right = estimate(exact, CHOICES.judge(true, true))
        assert all_right == pytest.approx((1, 0.025 ** (1 / 60), 1))
    assert ends[0] == pytest.approx(ends[1], abs=0.03)
    assert ends[0] == pytest.approx((0.375, 0.625), abs=0.02)


def test_a_question_without_a_name_is_one_answer():
    columns = CHOICES.judge([Choice("yes"), None], [Choice("yes"), Choice("yes")])
    assert CHOICES.metrics[1].value(columns) == 0.5


def test_a_choice_is_among_its_options():
    with pytest.raises(ValueError, match="'maybe' is not one of no, yes"):
        Choice("maybe")


def slow_bleu(predictions, targets):
    """Return BLEU of texts whose tokens are words, 0 to 1, smoothed exponentially."""
    right, said, lengths = [0] * 4, [0] * 4, [0, 0]
    for prediction, target in zip(predictions, targets, strict=True):
        words, wanted = prediction.split(), target.split()
        lengths = [lengths[0] + len(words), lengths[1] + len(wanted)]
        for n in range(1, 5):
            left = [wanted[i : i + n] for i in range(len(wanted) - n + 1)]
            for i in range(len(words) - n + 1):
                said[n - 1] += 1
                if words[i : i + n] in left:
                    left.remove(words[i : i + n])
                    right[n - 1] += 1
    halved, logs = 1, 0.0
    for count, of in zip(right, said, strict=True):
        if of == 0 or right == [0] * 4:
            return 0.0
        halved = halved if count else halved * 2
        logs += math.log(count / of if count else 1 / (halved * of)) / 4
    return math.exp(min(0, 1 - lengths[1] / lengths[0])) * math.exp(logs)


def slow_rouge(prediction, target, order):
    """Return F1 of the words that are in both, in any order or in that of both."""
    words, wanted = prediction.split(), target.split()
    same = sum((Counter(words) & Counter(wanted)).values())
    if order:
        table = [[0] * (len(wanted) + 1) for _ in range(len(words) + 1)]
        for i, word in enumerate(words):
            for j, other in enumerate(wanted):
                longest = max(table[i][j + 1], table[i + 1][j])
                table[i + 1][j + 1] = table[i][j] + 1 if word == other else longest
        same = table[-1][-1]
    return 2 * same / (len(words) + len(wanted)) if same else 0.0


def test_bleu_is_that_of_all_rows_and_rouge_the_mean_of_each():
    rng = random.Random(5)
    for _ in range(20):
        said, wanted = (
            [" ".join(rng.choices("abcd", k=rng.randint(1, 9))) for _ in range(6)] for _ in range(2)
        )
        columns = TEXTS.judge([Text(text) for text in said], [Text(text) for text in wanted])
        found = {metric.name: metric.value(columns) for metric in TEXTS.metrics}
        assert found["bleu"] == pytest.approx(slow_bleu(said, wanted))
        for name, order in (("rouge1", False), ("rougeL", True)):
            each = [slow_rouge(p, t, order) for p, t in zip(said, wanted, strict=True)]
            assert found[name] == pytest.approx(sum(each) / len(each))
        drawn = {name: values[np.array([[0, 1, 1], [5, 4, 3]])] for name, values in columns.items()}
        bleu = next(metric for metric in TEXTS.metrics if metric.name == "bleu")
        assert bleu.value(drawn)[1] == pytest.approx(slow_bleu(said[:2:-1], wanted[:2:-1]))


def test_nothing_written_has_no_bleu():
    columns = TEXTS.judge([None, None], [Text("a cat"), Text("a dog")])
    found = {metric.name: metric.value(columns) for metric in TEXTS.metrics}
    assert (found["bleu"], found["rouge1"], found["rougeL"]) == (0, 0, 0)
