"""Classes, confidences and duplicates of detected objects, against loops over made-up answers."""

import pytest
from shape_reports import compared, counted, table

from mm_numeric.evaluation.metrics.matching import match_rows
from mm_numeric.evaluation.metrics.repeats import columns_of
from mm_numeric.evaluation.report.shape_sections import precision_recall
from mm_numeric.geometry.row_shapes import read_instances

A, B, C = [0, 0, 10, 10], [20, 0, 30, 10], [40, 0, 50, 10]


def row(target, parsed, scores):
    """Return a scored row; shapes are pairs (box, label)."""
    target, parsed = ([{"box": b, "label": name} for b, name in own] for own in (target, parsed))
    columns = columns_of([read_instances({"instances": parsed}, "")])
    own = {name: float(values[0]) for name, values in columns.items()}
    own |= {"truncated": float(len(parsed) > 2), "end_known": 1.0}
    return counted({"id": "a", "image": None, "text": "", "reason": None, "target": target,
                    "parsed": parsed, "scores": scores, **own})  # fmt: skip


ROWS = [
    # a right cat, its duplicate, a dog that is called a cat, and a box without an object
    row([(A, "cat"), (B, "dog")], [(A, "cat"), (A, "cat"), (B, "cat"), (C, "dog")],
        [0.9, 0.2, 0.8, 0.1]),
    # a right dog, a missed cat; an equal box of another label is no duplicate
    row([(A, "dog"), (C, "cat")], [(A, "dog"), (A, "cat")], [0.7, 0.6]),
]  # fmt: skip


def test_precision_and_recall_are_those_of_a_loop_over_thresholds():
    matched = match_rows(ROWS)
    found = precision_recall(ROWS, matched)
    scores = [s for own in ROWS for s in own["scores"]]
    right = [r for own in matched for r in own.right]
    expected = []
    for threshold in sorted(scores, reverse=True):
        kept = [r for s, r in zip(scores, right, strict=True) if s >= threshold]
        expected.append((sum(kept) / 4, sum(kept) / len(kept)))
    assert found == pytest.approx(expected)
    assert found[-1][0] == 0.5
    equal = [{**own, "scores": [1.0] * len(own["scores"])} for own in ROWS]
    assert precision_recall(equal, matched) == []


def test_a_page_has_the_confusion_of_classes_and_the_curve(tmp_path):
    made_up = row([(A, "dog")], [(A, "dogdog")], [0.1])
    page, twin = compared(tmp_path, "detection", {("ce", 0): [*ROWS, made_up]})
    assert "Precision by recall, a curve for each objective." in page
    assert table(page, "objects")[1][1:] == ["7", "1", "14.3%", "0.33", "2", "33.3%"]
    matrix = twin.split("*Classes predicted by ce*")[1].split("\n## ")[0]
    lines = [line.strip("| ").replace("*", "").split(" | ") for line in matrix.splitlines()]
    assert lines[2:][:1] == [["true class", "cat", "dog", "(other classes)", "(no object)"]]
    assert lines[4:7] == [
        ["cat", "1", "0", "0", "1"],
        ["dog", "1", "1", "1", "0"],
        ["(no object)", "2", "1", "0"],
    ]


def test_the_texts_of_words_are_no_classes(tmp_path):
    """Words are paired by their outlines: whether a text is right, the scorer decides."""
    words = row([(A, "Hello"), (B, "World")], [(A, "HELLO"), (B, "W0rld")], [1.0, 1.0])
    words |= {"end_to_end_truths": 2.0}
    (matched,) = match_rows([words])
    assert matched.found == [True, True]
    page, _ = compared(tmp_path, "text_spotting", {("ce", 0): [words]})
    assert "Duplicates" in page
    assert "Rows are true classes" not in page
    assert "answered shape of the same label" not in page
