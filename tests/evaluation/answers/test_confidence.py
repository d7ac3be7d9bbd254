"""Confidences of decoded answers are kept, validated, and compared with the scorer's success."""

import json

import numpy as np
import pytest
from result_files import section, write_lines

from mm_numeric.cli import main as cli
from mm_numeric.evaluation.metrics import calibration
from mm_numeric.evaluation.metrics.calibration import thresholds
from mm_numeric.evaluation.metrics.coco_ap import Rules
from mm_numeric.evaluation.score import score
from mm_numeric.evaluation.score_text import results_table

CLOCKS = [("7:05", "7:05", 0.9), ("7:12", "7:05", 0.6), ("?", "7:05", 0.4), ("1:04", "1:00", 0.4)]
"""Text, target and confidence; the second and the third are wrong."""


def decode(confidence, rule="median", **more):
    return {"rule": rule, "for": "circular_minutes", "confidence": confidence, **more}


def clock_rows(rule="median"):
    return [
        {"id": f"{i}", "task": "clock", "text": text, "target": target, "decode": decode(c, rule)}
        for i, (text, target, c) in enumerate(CLOCKS)
    ]


def write(folder, rows, name="predictions.jsonl"):
    return write_lines(folder / name, rows)


def list_rows(rule="greedy"):
    """Two images: a correct object and one of another label, and an object that is found twice."""
    size = {"width_px": 100, "height_px": 100}
    frame = {
        **size, "view": {**size, "scale_x": 1, "scale_y": 1}, "coordinates": {"format": "json"},
    }  # fmt: skip
    answers = [[((0, 0, 40, 20), "a"), ((50, 50, 90, 80), "b")], [((0, 0, 40, 20), "b")] * 2]
    targets = [[((0, 0, 40, 20), "a"), ((50, 50, 90, 80), "a")], [((0, 0, 40, 18), "b")]]
    shared = {"task": "detection", "frame": frame}
    return [
        {
            **shared,
            "id": f"{i}",
            "text": json.dumps([{"bbox_2d": box, "label": label} for box, label in answers[i]]),
            "target": [{"box": box, "label": label} for box, label in targets[i]],
            "decode": decode(0.5, rule),
            "scores": [[0.9, 0.65], [0.7, 0.6]][i],
            "token_scores": [[0.3, 0.6], [0.2, 0.5]][i],
        }
        for i in range(2)
    ]


def test_results_have_the_calibration_of_the_answers(tmp_path):
    scores = score(write(tmp_path, clock_rows()))
    confidence, right = np.array([0.9, 0.6, 0.4, 0.4]), np.array([1.0, 0.0, 0.0, 1.0])
    results = section(tmp_path)
    assert results["calibration"] == {
        "rule": "median",
        "correct": "within 5 minutes",
        "rows": 4,
        "count": 4,
        "mean_confidence": pytest.approx(0.575),
        "right": 0.5,
        "gap": calibration.gap([(confidence, right, scores.groups)])._asdict(),
        "reliability": [list(own) for own in calibration.reliability(confidence, right)],
        "ece": calibration.expected_calibration_error(confidence, right),
        "auroc": calibration.auroc(confidence, right),
        "aurc": calibration.aurc(confidence, right),
        "thresholds": thresholds(confidence, right),
    }
    found = results["calibration"]["thresholds"]
    assert found["coverage"][0] == {"wanted": 1, "threshold": 0.4, "coverage": 1, "right": 0.5}
    assert found["right"][0] == {"wanted": 0.9, "threshold": 0.9, "coverage": 0.25, "right": 1}
    assert results["calibration"]["gap"]["value"] == pytest.approx(0.075)
    nothing = thresholds(np.array([0.5]), np.array([0.0]))["right"][0]
    assert nothing == {"wanted": 0.9, "threshold": None, "coverage": 0, "right": None}
    rows = [json.loads(line) for line in (tmp_path / "scores.jsonl").read_text().splitlines()]
    assert [row["confidence"] for row in rows] == confidence.tolist()
    assert rows[0]["decode"] == clock_rows()[0]["decode"]
    text = results_table(scores)
    assert (
        "confidence of 4 answers, decoded by median (correct: within 5 minutes): mean 0.575, "
        "correct 0.500, gap +0.075 (" in text
    )
    assert "ECE 0.225, AUROC 0.625, AURC 0.375\n" in text + "\n"


def test_confidences_before_a_calibration_are_kept_and_compared(tmp_path):
    rows = clock_rows()
    for row, raw in zip(rows, (0.99, 0.9, None, 0.8), strict=True):
        row["decode"] |= {"confidence_raw": raw, "covered": 0.42, "drawn": 0.5}
    scores = score(write(tmp_path, rows))
    assert scores.confidences.raw.tolist() == [0.99, 0.9, 0, 0.8]
    found = section(tmp_path)["calibration"]["raw"]
    assert found["gap"]["value"] == pytest.approx((0.99 + 0.9 + 0.8 - 2) / 4)
    assert "; before calibration: gap +0.173 (" in results_table(scores)
    lists = list_rows("mbr")
    lists[0]["decode"]["scores_raw"] = [0.5, 0.25]
    found = score(write(tmp_path, lists), write=False).confidences
    assert found.raw.tolist() == [0.5, 0.25, 0.7, 0.6]
    assert found.index.tolist() == [0, 0, 1, 1]
    lists[0]["decode"]["scores_raw"] = [0.5]
    with pytest.raises(ValueError, match=r'"decode.scores_raw" is \[0.5\], and the text holds 2'):
        score(write(tmp_path, lists), write=False)


def test_a_file_whose_answers_were_hardly_explored_is_warned_of(tmp_path, capsys):
    rows = clock_rows()
    for row, covered in zip(rows, (0.99, 0.7, 0.2, 0.99), strict=True):
        row["decode"]["covered"] = covered
    file = str(write(tmp_path, rows))
    assert cli.main(["score", file]) == 0
    warning = capsys.readouterr().err
    assert "have a probability of 0.845 (median of decode.covered + decode.drawn)" in warning
    assert "predict.branches (--branches) and predict.mass (--mass)" in warning
    rows[1]["decode"]["covered"] = 0.95
    write(tmp_path, rows)
    assert cli.main(["score", file]) == 0
    assert "covered" not in capsys.readouterr().err


def test_a_median_of_a_small_part_of_the_distribution_is_an_error(tmp_path, capsys):
    rows = clock_rows()
    for row in rows:
        row["decode"]["covered"] = 0.02
    file = str(write(tmp_path, rows))
    assert cli.main(["score", file]) == 2
    error = capsys.readouterr().err
    assert "the median was computed from 0.020 of the probability" in error
    assert "predict again, which draws it" in error
    for row in rows:  # what was not explored was drawn: few texts can be parsed
        row["decode"]["drawn"] = 0.1
    write(tmp_path, rows)
    assert cli.main(["score", file]) == 0
    seen = capsys.readouterr()
    assert "have a probability of 0.120" in seen.err
    assert "explored exactly 0.020 (tenth percentile 0.020), drawn 0.100" in seen.out
    assert section(tmp_path)["covered"] == {"median": 0.02, "tenth_percentile": 0.02}
    assert section(tmp_path)["drawn"]["median"] == pytest.approx(0.1)
    write(tmp_path, [
        {**row, "decode": {**row["decode"], "rule": "mbr", "drawn": None}} for row in rows
    ])  # fmt: skip
    assert cli.main(["score", file]) == 0


def test_a_file_of_a_rule_is_scored_into_files_of_that_rule(tmp_path):
    score(write(tmp_path, clock_rows("mbr"), "predictions.mbr.jsonl"))
    assert {p.name for p in tmp_path.iterdir() if not p.name.startswith(".")} == {
        "predictions.mbr.jsonl", "results.mbr.json", "scores.mbr.jsonl"
    }  # fmt: skip


def test_average_precision_of_a_rule_is_stored_next_to_that_of_greedy(tmp_path):
    score(write(tmp_path, list_rows()))
    greedy = (tmp_path / "results.json").read_text("utf-8")
    score(write(tmp_path, list_rows("mbr"), "predictions.mbr.jsonl"), protocol="coco_ap")
    assert (tmp_path / "results.json").read_text("utf-8") == greedy
    found = section(tmp_path, "coco_ap", name="results.mbr.json")
    assert found["metrics"]["ap_50"]["value"] is not None
    other = write(tmp_path, list_rows("mbr"), "other.jsonl")
    score(other, protocol="coco_ap", out=tmp_path / "other")
    names = {path.name for path in (tmp_path / "other").iterdir() if path.name[0] != "."}
    assert names == {"other.jsonl.results.json", "other.jsonl.scores.coco_ap.jsonl"}


def test_unparseable_answers_are_wrong_with_the_confidence_zero(tmp_path):
    rows = clock_rows()
    rows[2]["decode"]["confidence"] = None
    found = score(write(tmp_path, rows), write=False).confidences
    assert found.confidence.tolist() == [0.9, 0.6, 0, 0.4]
    assert found.right.tolist() == [1, 0, 0, 1]
    results = found.results()
    assert results["rows"] == 4
    assert results["thresholds"]["right"][0]["coverage"] == 0.25
    every = {"wanted": 1, "threshold": 0, "coverage": 1, "right": 0.5}
    assert results["thresholds"]["coverage"][0] == every
    for row in rows:
        row |= {"text": "?", "decode": decode(None)}
    found = score(write(tmp_path, rows), write=False).confidences
    assert found.right.tolist() == found.confidence.tolist() == [0] * 4


def test_answers_without_the_field_confidence_have_no_calibration(tmp_path):
    rows = clock_rows()
    for row in rows:
        del row["decode"]["confidence"]
    assert score(write(tmp_path, rows), write=False).confidences is None
    for row in rows:
        del row["decode"]
    scores = score(write(tmp_path, rows))
    assert "calibration" not in section(tmp_path)
    assert "decode" not in scores.rows[0]
    assert "confidence" not in scores.rows[0]
    assert "ECE" not in results_table(scores)


@pytest.mark.parametrize(
    ("task", "rows", "right", "label"),
    [
        ("numbers", [("12", "12"), ("12.0", "12"), ("13", "12")], [1, 1, 0], "equal in value"),
        ("multirc", [("The cat.", "cat"), ("dog", "cat")], [1, 0], "equal after SQuAD's normal"),
    ],
)
def test_every_answer_type_has_its_success(tmp_path, task, rows, right, label):
    lines = [
        {"id": f"{i}", "task": task, "text": text, "target": target, "decode": decode(0.5)}
        for i, (text, target) in enumerate(rows)
    ]
    found = score(write(tmp_path, lines), write=False).confidences
    assert found.right.tolist() == right
    assert found.correct.startswith(label)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"decode": {"rule": 3}}, r"line 2: decode\.rule is 3; write the name of a rule, such"),
        ({"decode": decode(1.5)}, r"line 2: decode\.confidence has 1\.5; a confidence of a decod"),
        ({"decode": decode(True)}, r"line 2: decode\.confidence has True"),
        ({"decode": decode(0.5, "mbr")}, "line 2: a row decoded by mbr among rows decoded by "
         "median; score the answers of each rule in a file"),
        ({"decode": None}, 'line 2: a row without "decode" among rows decoded by median'),
    ],
)  # fmt: skip
def test_invalid_confidences_are_one_sentence(tmp_path, change, message):
    rows = clock_rows()
    rows[1] |= change
    with pytest.raises(ValueError, match=message):
        score(write(tmp_path, rows), write=False)


def test_points_at_objects_without_a_region_are_neither_correct_nor_wrong(tmp_path):
    size = {"width_px": 100, "height_px": 100}
    frame = {**size, "view": {**size, "scale_x": 1, "scale_y": 1}, "coordinates": {}}
    targets = [{"point": [50, 50]}, {"box": [40, 40, 60, 60]}, {"box": [0, 0, 9, 9]}]
    rows = [
        {"id": f"{i}", "task": "pointing", "text": "[50, 50]", "target": [target], "frame": frame,
         "decode": decode(0.9 - 0.1 * i, "mbr")}
        for i, target in enumerate(targets)
    ]  # fmt: skip
    found = score(write(tmp_path, rows), write=False).confidences
    assert found.rows == 2
    assert found.right.tolist() == [1, 0]
    assert found.confidence.tolist() == pytest.approx([0.8, 0.7])
    assert score(write(tmp_path, rows[:1]), write=False).confidences is None


def test_rows_may_be_decoded_for_different_risks(tmp_path):
    rows = clock_rows()
    for row, risk in zip(rows, ["absolute", None, "exact"], strict=False):
        row["decode"] = decode(0.5, "mbr") | {"for": risk}
    assert score(write(tmp_path, rows[:3]), write=False).confidences.rule == "mbr"


@pytest.mark.parametrize("other", ["7:05", ["7:05"], {"beams": 4}, 1])
def test_a_field_decode_of_another_tool_is_ignored(tmp_path, other):
    rows = [row | {"decode": other} for row in clock_rows()]
    scores = score(write(tmp_path, rows))
    assert scores.confidences is None
    assert "decode" not in scores.rows[0]
    assert (tmp_path / "results.json").is_file()


def test_each_object_of_a_list_is_correct_or_wrong(tmp_path):
    scores = score(write(tmp_path, list_rows("mbr")))
    found = scores.confidences
    assert found.confidence.tolist() == [0.9, 0.65, 0.7, 0.6]
    assert found.right.tolist() == [1, 0, 1, 0]
    assert found.results()["objects"] == 4
    assert found.results()["rows"] == 2
    assert found.line().startswith("confidence of 4 objects, decoded by mbr (correct: IoU of at ")
    assert scores.rows[0]["token_scores"] == [0.3, 0.6]


def test_objects_in_ignored_regions_and_unparseable_lists_have_no_confidence(tmp_path):
    rows = list_rows()
    rows[0]["target"][1] |= {"ignore": True, "label": ""}
    rows[1]["text"] = "nothing"
    found = score(write(tmp_path, rows), write=False).confidences
    assert found.confidence.tolist() == [0.9]
    assert found.right.tolist() == [1]


def test_average_precision_ranks_by_the_confidence_or_by_the_tokens(tmp_path, capsys):
    path = write(tmp_path, list_rows())
    by_confidence = score(path, protocol="coco_ap", out=tmp_path / "confidence")
    rules = Rules(rank_by="token_scores")
    by_tokens = score(path, protocol=rules, out=tmp_path / "tokens")
    assert by_confidence.ranking.metrics["ap_50"] > by_tokens.ranking.metrics["ap_50"]
    words = ["score", str(path), "--protocol", "coco_ap", "--rank-by", "token_scores"]
    assert cli.main([*words, "--out", str(tmp_path / "cli")]) == 0
    assert "AP 50" in capsys.readouterr().out
    for folder, text in (
        ("confidence", "of the rows (probability of being correct; decoded by greedy)"),
        ("tokens", "token_scores of the rows (mean probability of tokens)"),
        ("cli", "token_scores of the rows (mean probability of tokens)"),
    ):
        results = section(tmp_path / folder)
        assert results["rules"]["all"]["scores"] == text


def test_ranking_by_what_is_missing_is_one_sentence(tmp_path, capsys):
    rows = list_rows()
    del rows[1]["token_scores"]
    with pytest.raises(ValueError, match='a row has no "token_scores"; only greedy answers'):
        score(write(tmp_path, rows), protocol=Rules(rank_by="token_scores"))
    path = str(write(tmp_path, list_rows()))
    assert cli.main(["score", path, "--rank-by", "scores"]) == 2
    assert "--rank-by requires --protocol coco_ap." in capsys.readouterr().err
    words = ["score", "r.json", "--protocol", "coco_ap", "--truth", "t.json"]
    assert cli.main([*words, "--rank-by", "scores"]) == 2
    assert "--rank-by is for a .jsonl file of answers" in capsys.readouterr().err
    rows[0]["scores"] = [1.5, 0.5]
    with pytest.raises(ValueError, match=r"line 1: scores has 1\.5; a confidence"):
        score(write(tmp_path, rows), write=False)
