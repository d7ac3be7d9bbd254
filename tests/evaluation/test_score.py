"""Predictions from any engine are scored; what could not be read is counted, nothing is dropped."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from result_files import section, sections, values, write_lines
from tiny_models import small_config

from mm_numeric import registry
from mm_numeric.answers import Choice, ClockTime, EmbeddedImage, Example
from mm_numeric.cli.main import main
from mm_numeric.evaluation import score as score_module
from mm_numeric.evaluation.score import score
from mm_numeric.evaluation.score_text import in_unit, results_table
from mm_numeric.inference.generate import Generated, prediction
from mm_numeric.models.loading import load_family, model_source

ROWS = [
    {"id": "a", "text": "7:05", "target": "7:05"},
    {"id": "b", "text": "It is 7:08.", "target": "7:05"},
    {"id": "c", "text": "seven", "target": "7:05"},
    {"id": "d", "text": "", "target": "7:05"},
    {"id": "e", "text": "no idea\u2028\x85 \ud800 🕖", "target": "1:00"},
]

FRAME = {
    "width_px": 100,
    "height_px": 100,
    "view": {"width_px": 100, "height_px": 100, "scale_x": 1, "scale_y": 1},
    "coordinates": {"format": "json"},
}
"""Coordinates are pixels of an image of 100 x 100 pixels."""


def predictions(folder, rows, **more):
    """Write predictions as another engine would."""
    path = folder / "predictions.jsonl"
    lines = [json.dumps({**row, **more}) + "\n" for row in rows]
    path.write_text("".join(lines), encoding="utf-8")
    return path


def test_a_file_of_another_engine_is_scored(tmp_path):
    path = predictions(tmp_path, ROWS)
    scores = score(path, task_name="clock", out=tmp_path / "new" / "scores")
    results = section(tmp_path / "new" / "scores")
    assert results["task"] == "clock"
    assert results["task_version"] == 2
    stored = json.loads((tmp_path / "new" / "scores" / "results.json").read_text("utf-8"))
    assert (stored["version"], stored["predictions"]) == (1, str(path))
    assert results["rows"] == 5
    assert results["rules"]["deviation"]["variant"] == "circular, on a 12-hour dial"
    assert results["failures"] == {"no time as H:MM": 2, "empty answer": 1}
    assert results["metrics"]["exact"]["value"] == pytest.approx(0.2)
    assert results["metrics"]["within_5_minutes"]["value"] == pytest.approx(0.4)
    assert results["metrics"]["mean_deviation_minutes"]["value"] == pytest.approx(1083 / 5)
    assert results["metrics"]["mean_deviation_minutes_parsed_only"]["value"] == pytest.approx(1.5)
    assert results["metrics"]["unreadable"]["value"] == pytest.approx(0.6)
    for name, found in results["metrics"].items():
        assert found["low"] <= found["value"] <= found["high"], name
    assert values(results) == scores.metrics()


def test_every_row_is_written_with_its_values(tmp_path):
    path = predictions(tmp_path, ROWS, task="clock", image="x.png")
    scores = score(path)
    lines = (tmp_path / "scores.jsonl").read_text(encoding="utf-8").split("\n")
    rows = [json.loads(line) for line in lines[:-1]]
    assert lines[-1] == ""
    assert rows == score(path, write=False).rows == scores.rows
    assert [row["id"] for row in rows] == ["a", "b", "c", "d", "e"]
    assert [row["text"] for row in rows] == [row["text"] for row in ROWS]
    assert [row["parsed"] for row in rows] == ["7:05", "7:08", None, None, None]
    assert [row["deviation_minutes"] for row in rows] == [0, 3, 360, 360, 360]
    unread = "no time as H:MM"
    assert [row["reason"] for row in rows] == [None, None, unread, "empty answer", unread]
    assert rows[1]["target"] == "7:05"
    assert rows[1]["image"] == "x.png"
    assert rows[1]["within_5_minutes"] == 1.0


def test_what_is_nothing_is_null(tmp_path):
    score(predictions(tmp_path, ROWS[2:], task="clock"))
    text = (tmp_path / "results.json").read_text(encoding="utf-8")
    nothing = {"value": None, "low": None, "high": None}
    assert values(section(tmp_path))["mean_deviation_minutes_parsed_only"] == nothing
    assert "NaN" not in text


def test_reading_scores_writes_nothing(tmp_path):
    path = predictions(tmp_path, ROWS, task="clock")
    assert len(score(path, write=False).rows) == 5
    assert list(tmp_path.iterdir()) == [path]


def test_the_text_is_read_anew(tmp_path):
    row = {"id": "a", "text": "7:05", "target": "07:05", "parsed": "1:00", "reason": "because"}
    (found,) = score(predictions(tmp_path, [row]), task_name="clock", write=False).rows
    assert (found["parsed"], found["reason"], found["target"]) == ("7:05", None, "7:05")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], r"predictions\.jsonl: no predictions to score\."),
        ([ROWS[0], ROWS[0]], r"line 2: the id 'a' appears twice; remove one"),
        (
            [{"text": "", "target": "7:05"}],
            r'line 1: no "id" \(a text\) in the fields text, target',
        ),
        ([{"id": "a", "target": "7:05"}], r'line 1: no "text" \(a text\)'),
        ([{"image_id": 1, "category_id": 1}], "COCO results, name the file of the true boxes with"),
        ([{"id": "a", "text": "7:05"}], r'line 1: no "target"; a prediction needs'),
        ([{"id": "a", "text": "7:05", "target": None}], r'line 1: no "target"'),
        ([{"id": 1.5, "text": "7:05", "target": "7:05"}], r'line 1: no "id"'),
        (
            [ROWS[0], {"id": "b", "text": "7:05", "target": "25:00"}],
            r"line 2: the target '25:00' cannot be read: hour not 1 to 12\.",
        ),
        ([{"id": "a", "text": "", "target": ""}], r"the target '' cannot be read: empty answer\."),
    ],
)
def test_a_bad_prediction_is_one_sentence(tmp_path, rows, message):
    with pytest.raises(ValueError, match=message):
        score(predictions(tmp_path, rows), task_name="clock")
    assert not (tmp_path / "results.json").exists()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({}, r"line 1: the rows name no task; name it with --task\."),
        ({"task": ["clock"]}, r"the rows name no task"),
        ({"task": "clok"}, r"line 1: there is no task 'clok'\. Did you mean 'clock'\?"),
    ],
)
def test_a_task_that_is_not_named_or_not_there(tmp_path, more, message):
    path = predictions(tmp_path, ROWS, **more)
    with pytest.raises(ValueError, match=message):
        score(path)
    assert score(path, task_name="clock").task == "clock"


def test_a_broken_line_is_named(tmp_path):
    path = predictions(tmp_path, ROWS[:1], task="clock")
    with path.open("a", encoding="utf-8") as file:
        file.write('{"id": "b", "te')
    with pytest.raises(ValueError, match=r"predictions\.jsonl, line 2: not JSON"):
        score(path)


def test_the_answers_say_how_they_are_scored_or_their_task_does(tmp_path, monkeypatch):
    from mm_numeric.tasks.clock import Clock

    path = predictions(tmp_path, ROWS, task="clock")
    by_answers = score(path, write=False)
    monkeypatch.setattr(registry, "SCORERS", {})
    with pytest.raises(ValueError, match=r"the task 'clock' has no `scorer`; add one"):
        score(path, write=False)
    monkeypatch.setattr(Clock, "scorer", "mm_numeric.evaluation.metrics.clock:TIMES", raising=False)
    assert score(path, write=False).rows == by_answers.rows


def test_results_have_a_table_by_hour(tmp_path):
    rows = [
        {"id": "a", "text": "7:05", "target": "7:05"},
        {"id": "b", "text": "?", "target": "7:30"},
        {"id": "c", "text": "12:00", "target": "12:03"},
        {"id": "d", "text": "2:00", "target": "2:00"},
    ]
    file = write_lines(tmp_path / "p.jsonl", rows)
    score(file, task_name="clock")
    hours = section(tmp_path)["buckets"]["hour"]
    assert list(hours) == ["2", "7", "12"]
    seven, twelve = (hours[hour]["metrics"] for hour in ("7", "12"))
    assert hours["7"]["rows"] == 2
    assert (seven["exact"]["value"], seven["unreadable"]["value"]) == (0.5, 0.5)
    assert (twelve["exact"]["value"], twelve["mean_deviation_minutes"]["value"]) == (0, 3)


def test_a_scorer_whose_only_metric_has_no_value_has_a_table(tmp_path):
    rows = [{"id": "a", "text": "seven", "target": "7:05"}]
    scores = score(predictions(tmp_path, rows, task="clock"))
    (parsed_only,) = (m for m in scores.scorer.metrics if m.name.endswith("_parsed_only"))
    own = replace(scores, scorer=replace(scores.scorer, metrics=(parsed_only,)))
    assert results_table(own).splitlines()[1:3] == [
        "metrics without a value: mean deviation, parsed only",
        "answers that could not be parsed:",
    ]


def test_the_table_has_every_figure_and_every_failure(tmp_path):
    scores = score(predictions(tmp_path, ROWS, task="clock"))
    lines = results_table(scores).splitlines()
    assert lines[0] == "5 rows, task clock; 95 % bootstrap intervals over test rows"
    assert len(lines) == 1 + 18 + 1 + 1 + 2
    figures = [" ".join(line.split()) for line in lines]
    assert figures[1] == "within 5 min 40.00 % 0.00 % to 80.00 %"
    assert figures[4].startswith("mean deviation 216.60 min ")
    assert figures[6] == "mean deviation, parsed only 1.50 min 0.00 min to 3.00 min"
    assert lines[-3:] == [
        "answers that could not be parsed:",
        "  no time as H:MM                      2",
        "  empty answer                         1",
    ]


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.8125, "%", "81.25 %"),
        (3.46, "min", "3.46 min"),
        (None, "%", "-"),
        (0.0, "min", "0.00 min"),
        (0.9734, "", "0.973"),
        (-2.5e9, "", "-2.5e+09"),
    ],
)
def test_a_figure_is_written_with_its_unit(value, unit, text):
    assert in_unit(value, unit) == text


def test_a_single_row_has_the_interval_of_its_shares_alone(tmp_path):
    scores = score(predictions(tmp_path, ROWS[1:2], task="clock"))
    figures = [" ".join(line.split()) for line in results_table(scores).splitlines()]
    assert figures[1] == "within 5 min 100.00 % 2.50 % to 100.00 %"
    assert figures[4] == "mean deviation 3.00 min no interval: the rows do not differ"
    assert scores.metrics()["mean_deviation_minutes"] == {"value": 3.0, "low": None, "high": None}


def test_rows_of_a_single_image_have_the_interval_of_their_shares_alone(tmp_path):
    rows = [{**row, "image": "a.png"} for row in ROWS[:3]]
    lines = results_table(score(predictions(tmp_path, rows, task="clock"))).splitlines()
    assert lines[0].endswith(" over 1 group of test rows that share an image or a question")
    deviation = next(line for line in lines if "mean deviation" in line)
    assert deviation.endswith("no interval: the rows do not differ or are one group")


def test_metrics_without_a_value_are_listed_after_the_table(tmp_path):
    rows = [
        {"id": str(n), "text": "no idea", "target": target, "task": "numbers"}
        for n, target in enumerate(["-7", "1", "4", "30"])
    ]
    path = write_lines(tmp_path / "predictions.jsonl", rows)
    lines = results_table(score(path)).splitlines()
    assert not any("- to -" in line or "-1.000" in line for line in lines)
    assert not any(line.lstrip().startswith(("Pearson", "Spearman")) for line in lines)
    missing = next(line for line in lines if line.startswith("metrics without a value: "))
    assert {"Pearson", "Spearman", "MAE, parsed only"} <= set(missing.split(": ")[1].split("; "))
    assert lines[0].startswith("4 rows, task numbers; ")
    metrics = values(section(tmp_path))
    assert metrics["pearson"] == {"value": None, "low": None, "high": None}
    assert metrics["mae"]["value"] == 2 * (7 + 1 + 4 + 30) / 4


def test_shapes_may_be_judged_by_another_protocol(tmp_path):
    text = '[{"bbox_2d": [0, 0, 49, 20]}, {"bbox_2d": [50, 0, 100, 20]}]'
    row = {"id": "a", "text": text, "target": [{"box": [0, 0, 100, 20]}], "frame": FRAME}
    path = predictions(tmp_path, [row], task="text_detection")
    assert score(path).metrics()["hmean"]["value"] == 0
    credit = score(path, protocol="deteval_total_text").metrics()["deteval_precision"]["value"]
    assert credit == pytest.approx(0.8)
    results = section(tmp_path, "deteval_total_text")
    assert results["rules"]["deteval_*"]["fsc_k"] == 0.8
    with pytest.raises(ValueError, match="there is no protocol 'deteval'"):
        score(path, protocol="deteval")
    path = predictions(tmp_path, ROWS, task="clock")
    with pytest.raises(
        ValueError, match="'labelled' scores shapes in an image, but answers of the task"
    ):
        score(path, protocol="labelled")


def test_each_protocol_has_a_section_that_no_other_overwrites(tmp_path, capsys):
    """Also in any order, with one form of values, and with scores.jsonl of its own."""
    text = '[{"bbox_2d": [0, 0, 99, 20]}, {"bbox_2d": [50, 60, 100, 80]}]'
    row = {"text": text, "target": [{"box": [0, 0, 100, 20]}], "frame": FRAME}
    lines = [{**row, "id": str(i), "scores": [0.9 - i / 10, 0.2]} for i in range(3)]
    path = predictions(tmp_path, lines, task="text_detection")
    names = ["icdar2015", "coco_ap", None, "labelled", "coco_ap", None]
    for name in names:
        assert main(["score", str(path), *(["--protocol", name] if name else [])]) == 0
    found = sections(tmp_path)
    assert sorted(found) == ["coco_ap", "icdar2015", "labelled", "task"]
    for name, own in found.items():
        alone = predictions(tmp_path, lines, task="text_detection")
        words = [] if name == "task" else ["--protocol", name]
        assert main(["score", str(alone), "--out", str(tmp_path / name), *words]) == 0
        assert section(tmp_path / name) == own
        file = "scores.jsonl" if name == "task" else f"scores.{name}.jsonl"
        assert (tmp_path / file).read_bytes() == (tmp_path / name / file).read_bytes()
        keys = {"value", "low", "high", "label", "unit", "higher_is_better"}
        assert {frozenset(metric) for metric in own["metrics"].values()} == {frozenset(keys)}
    assert capsys.readouterr().err == ""
    score(predictions(tmp_path, lines[:2], task="text_detection"))
    assert list(sections(tmp_path)) == ["task"]
    assert (
        "the results of icdar2015, labelled, coco_ap are removed, because they"
        in capsys.readouterr().err
    )


def test_rows_of_one_image_are_drawn_together(tmp_path):
    times = [("7:05", "7:05"), ("1:02", "7:05"), ("3:00", "3:00"), ("6:00", "3:00")]
    read = [times[i % 4 // 2 * 2 + i % 10 // 5] for i in range(40)]  # right if i % 10 < 5
    rows = [{"id": str(i), "text": text, "target": target, "image": f"{i % 10}.png"}
            for i, (text, target) in enumerate(read)]  # fmt: skip
    apart = score(predictions(tmp_path, [{**row, "image": None} for row in rows], task="clock"))
    assert apart.group_count == 40
    scores = score(predictions(tmp_path, rows, task="clock"))
    assert scores.group_count == 10
    found, alone = (own.metrics()["exact"] for own in (scores, apart))
    assert found["value"] == alone["value"] == 0.5
    # All 4 rows of an image are right or all are wrong, so the deviation is twice as large.
    assert 1.7 < (found["high"] - found["low"]) / (alone["high"] - alone["low"]) < 2.3
    said = "95 % bootstrap intervals over 10 groups of test rows that share an image or a question"
    assert results_table(scores).splitlines()[0].endswith(said)
    results = section(tmp_path)
    assert (results["rows"], results["groups"]) == (40, 10)


def test_answers_to_one_question_are_drawn_together(tmp_path):
    rows = [{"id": f"{q}{i}", "text": "yes", "target": {"chosen": "yes", "question": q},
             "task_options": {"answer": "yes_no"}} for q in "abc" for i in range(2)]  # fmt: skip
    rows[0]["target"] = rows[1]["target"] = "no"  # a question without a name
    assert score(predictions(tmp_path, rows, task="multirc")).group_count == 4


def test_a_prediction_says_what_its_text_is_read_by(tmp_path):
    config = small_config(tmp_path, "task={name: multirc, answer: yes_no}")
    example = Example(id="1", image=None, prompt="", answer=Choice("yes"), where="")
    family = load_family(config, model_source(config, config.output_dir))
    rows = [prediction(config, family, example, Generated("yes", None, [], []))]
    assert rows[0]["task_options"] == {"answer": "yes_no"}
    assert score(predictions(tmp_path, rows, task="multirc"), write=False).task == "multirc"
    other = {**rows[0], "id": "2", "task_options": None}
    with pytest.raises(ValueError, match=r"line 2: task_options None among rows of \{'answer'"):
        score(predictions(tmp_path, [*rows, other], task="multirc"), write=False)
    wrong = {**rows[0], "task_options": {"answer": "boxes"}}
    with pytest.raises(ValueError, match="line 1, task: answer is one of"):
        score(predictions(tmp_path, [wrong], task="multirc"), write=False)


def test_rows_with_the_same_image_of_a_table_are_drawn_together(tmp_path):
    config = small_config(tmp_path, "task={name: clock}")
    family = load_family(config, model_source(config, config.output_dir))
    rows = []
    for i, content in enumerate((b"a", b"b", b"a")):
        image = EmbeddedImage(f"{i}.png", f"row {i}", lambda content=content: content)
        example = Example(id=str(i), image=image, prompt="", answer=ClockTime(7, 5), where="")
        rows.append(prediction(config, family, example, Generated("7:05", None, [], [])))
    assert [row["image"] for row in rows] == ["row 0", "row 1", "row 2"]
    assert rows[0]["group"] == rows[2]["group"] != rows[1]["group"]
    assert score(predictions(tmp_path, rows)).group_count == 2


def test_rows_of_several_images_are_drawn_together_if_all_are_the_same(tmp_path):
    config = small_config(tmp_path, "task={name: clock}")
    family = load_family(config, model_source(config, config.output_dir))
    rows = []
    for i, last in enumerate(("a.png", "b.png", "a.png")):
        images = {"image": Path("shown.png"), "more_images": (Path(last),)}
        example = Example(id=str(i), prompt="", answer=ClockTime(7, 5), where="", **images)
        rows.append(prediction(config, family, example, Generated("7:05", None, [], [])))
    assert score(predictions(tmp_path, rows)).group_count == 2


def test_rows_of_two_tasks_are_not_scored_as_one(tmp_path):
    file = tmp_path / "p.jsonl"
    row = {"id": "1", "text": "7:05", "target": "7:05", "task": "clock"}
    file.write_text("".join(json.dumps({**row, "id": t, "task": t}) + "\n" for t in ("clock", "x")))
    with pytest.raises(ValueError, match=r"line 2: the task 'x' among rows of 'clock'"):
        score(file)


@pytest.mark.parametrize("value", ["NaN", "Infinity", "1" + "0" * 400])
@pytest.mark.parametrize(
    ("task", "target"),
    [
        ("grounding", '{"box": [0, 0, 5, VALUE]}'),
        ("text_detection", '[{"polygon": [0, 0, 9, 0, 9, VALUE]}]'),
    ],
)
def test_a_true_shape_that_is_not_finite_is_one_sentence(tmp_path, task, target, value):
    size = {"width_px": 100, "height_px": 100}
    view = {**size, "scale_x": 1, "scale_y": 1}
    frame = {**size, "view": view, "coordinates": {"format": "brackets"}}
    row = {"task": task, "id": "1", "text": "[1, 2, 3, 4]", "target": "TARGET", "frame": frame}
    text = json.dumps(row).replace('"TARGET"', target.replace("VALUE", value))
    path = tmp_path / "predictions.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"line 1: .*(nan|inf|10{39}) is not a finite number"):
        score(path)


def test_parts_have_the_results_of_the_whole_file(tmp_path, monkeypatch):
    """Bit for bit: metrics, intervals, buckets, categories, failures and rows."""
    rows = [
        {**row, "id": f"{row['id']}{i}", "image": f"{i % 7}.png"} for i, row in enumerate(ROWS * 4)
    ]
    for i, row in enumerate(rows[:-3]):
        row["buckets"] = {"category": "extrapolation" if i % 3 else "interpolation"}
    path = predictions(tmp_path, rows, task="clock")
    score(path)
    whole = [(tmp_path / name).read_bytes() for name in ("results.json", "scores.jsonl")]
    for size in (1, 2, 5):
        monkeypatch.setattr(score_module, "PART_ROWS", size)
        scores = score(path)
        files = [(tmp_path / name).read_bytes() for name in ("results.json", "scores.jsonl")]
        assert files == whole
        assert scores.kept_rows == []
    assert score(path, write=False).rows == scores.rows


def test_an_error_in_a_later_part_keeps_the_files(tmp_path, monkeypatch):
    monkeypatch.setattr(score_module, "PART_ROWS", 2)
    path = predictions(tmp_path, ROWS, task="clock")
    score(path)
    before = [(tmp_path / name).read_bytes() for name in ("results.json", "scores.jsonl")]
    path.write_text(path.read_text("utf-8") + '{"id": "a", "text": "7:05", "target": "7:05"}\n')
    with pytest.raises(ValueError, match="line 6: the id 'a' appears twice"):
        score(path)
    assert [(tmp_path / name).read_bytes() for name in ("results.json", "scores.jsonl")] == before
    assert not list(tmp_path.glob("*.unfinished"))
