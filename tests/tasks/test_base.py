"""The contract of tasks/base.py, kept by every shipped task and by one in a user's module."""

import json
import sys
from dataclasses import asdict, fields, replace
from pathlib import Path

import pytest
import thermometer
import yaml
from clock_reports import compare_folder, written
from result_files import section, write_lines
from rows_of_tasks import ROWS, written_rows
from synthetic_rows import GENERATOR_OF, rows_for
from tiny_models import CACHE

from mm_numeric.answers import Unreadable
from mm_numeric.cli import main as cli
from mm_numeric.config.data import DataSource
from mm_numeric.config.reader import config_from_dict
from mm_numeric.data.examples import load_examples
from mm_numeric.evaluation.check_data.check import check_data
from mm_numeric.evaluation.check_data.text import report_text
from mm_numeric.evaluation.metrics.base import Scorer
from mm_numeric.evaluation.score import score
from mm_numeric.evaluation.score_text import results_table
from mm_numeric.geometry.coordinates import Coordinates
from mm_numeric.geometry.frames import Frame, Resize
from mm_numeric.registry import REPORT_SECTIONS, TASKS, choose, scorer_of
from mm_numeric.settings import read_dataclass
from mm_numeric.tasks.base import BaseTask, Task, task_class
from mm_numeric.training.callbacks.evaluation import evaluation_metrics

EVERY = [*TASKS, thermometer.NAME]
CHAPTERS = {
    "clock": ("clock",), "detection": ("shapes",), "grounding": ("shapes",),
    "text_detection": ("shapes",), "text_spotting": ("shapes",),
    "click": ("points",), "pointing": ("points",), "temporal_spans": ("spans",),
    "clockbench": (), "mathvista": (), "multirc": (),
    thermometer.NAME: ("numbers", f"{thermometer.MODULE}:sections"),
}  # fmt: skip


@pytest.fixture(autouse=True)
def module_of_a_user(tmp_path, monkeypatch):
    thermometer.install(tmp_path, monkeypatch)
    yield
    sys.modules.pop(thermometer.MODULE, None)


def task_of(name):
    return task_class(name, "test")()


def source_of(name, folder, count=4):
    if name in GENERATOR_OF:
        return rows_for(name, count, 3)
    if name == thermometer.NAME:
        return {"synthetic": {"name": thermometer.BARS, "rows": count, "seed": 3}}
    return {"path": str(written_rows(name if name in ROWS else "mathematics", folder, count))}


def raw_config(name, folder, **changes):
    source = source_of(name, folder)
    return {
        "task": name,
        "data": {"train": source, "test": source, "cache": str(CACHE)},
        "model": {"name": "tiny", "dtype": "float32"},
        "trainer": {"output_dir": str(folder / "run")},
        "predict": {"max_new_tokens": 400},
        **changes,
    }


def examples_of(name, folder):
    source = read_dataclass(DataSource, source_of(name, folder), "test")
    return load_examples(task_of(name), source, CACHE, training=True)


def frame_of(example):
    size = example.size_px or (64, 60)
    return Frame(*size, Resize(kind="none").view(*size), Coordinates(decimals=3))


def predictions_of(name, folder):
    task, lines = task_of(name), []
    for example in examples_of(name, folder):
        frame = frame_of(example)
        reads_by = {option: task.options()[option] for option in task.reads_by}
        lines.append(
            {
                "id": example.id,
                "task": name,
                "task_options": reads_by,
                "text": task.format(example.answer, frame).text,
                "target": task.record(example.answer),
                "frame": frame.to_dict(),
                **({"buckets": dict(example.buckets)} if example.buckets else {}),
            }
        )
    file = folder / "predictions.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return file


def test_the_base_class_has_every_member_and_one_option():
    members = {name for name in {**vars(Task), **Task.__annotations__} if name[0] != "_"}
    assert members == {name for name in dir(BaseTask) if name[0] != "_"}
    assert [field.name for field in fields(BaseTask)] == ["scorer"]


@pytest.mark.parametrize("name", EVERY)
def test_members_are_of_their_types(name):
    task = task_of(name)
    assert isinstance(task, BaseTask)
    assert type(task.version) is int
    assert task.version >= 1
    assert task.options() == asdict(task)
    assert set(task.reads_by) <= set(task.options())
    yaml.safe_dump(json.loads(json.dumps(task.options())))


@pytest.mark.parametrize("name", EVERY)
def test_report_sections_are_functions(name):
    names = task_class(name, "test").report_sections
    assert names == CHAPTERS.get(name, ("numbers",))
    assert all(callable(choose(n, REPORT_SECTIONS, "report section", "test")) for n in names)


@pytest.mark.parametrize("name", EVERY)
def test_an_answer_survives_its_text_and_its_record(name, tmp_path):
    task, examples = task_of(name), examples_of(name, tmp_path)
    assert len(examples) >= 4
    for example in examples:
        frame = frame_of(example)
        written_answer = task.format(example.answer, frame)
        for mark in written_answer.marks:
            assert 0 <= mark.start < mark.end <= len(written_answer.text)
            assert any(c.isdigit() for c in written_answer.text[mark.start : mark.end])
        parsed = task.parse(written_answer.text, frame)
        assert not isinstance(parsed, Unreadable)
        recorded = task.recorded(json.loads(json.dumps(task.record(example.answer))))
        assert recorded == example.answer


@pytest.mark.parametrize("name", EVERY)
def test_answers_in_a_file_replace_the_labels(name, tmp_path):
    """Each row gets the answer to the row before it, which is read in that row's frame."""
    task, labels = task_of(name), examples_of(name, tmp_path)
    file = predictions_of(name, tmp_path)
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    for line, other in zip(lines, [lines[-1], *lines], strict=False):
        line["answer"] = {field: other[field] for field in ("text", "frame")}
    file.write_text("".join(json.dumps({**e, **e["answer"]}) + "\n" for e in lines))
    raw = {**source_of(name, tmp_path), "answers": str(file)}
    source = read_dataclass(DataSource, raw, "test")
    found = load_examples(task, source, CACHE, training=True)
    for before, example, label in zip([labels[-1], *labels], found, labels, strict=False):
        frame = frame_of(before)
        wanted = task.parse(task.format(before.answer, frame).text, frame)
        assert example == replace(label, answer=wanted)
        assert task.format(example.answer, frame) == task.format(before.answer, frame)
    assert len(found) == len(labels)


@pytest.mark.parametrize("name", EVERY)
def test_the_main_metric_is_of_all_rows_or_of_the_category_of_the_task(name, tmp_path):
    """The first category by name has the worst answers, and the main metric is not its own."""
    task, file = task_of(name), predictions_of(name, tmp_path)
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    main = task.main_category or "zebra"
    kinds = ["aardvark", main] * len(rows)
    for row, kind in zip(rows, kinds, strict=False):
        row["buckets"] = {"category": kind}
        row["text"] = "" if kind == "aardvark" else row["text"]
    write_lines(file, rows)
    scores = score(file, task_name=name)
    scorer = scores.scorer
    first, of_rows = scores.metrics_on_rows[0]
    headline = scorer.metrics[0]
    wanted = f"{headline.name}_{main}" if task.main_category else headline.name
    assert (first.name, of_rows is None) == (wanted, not task.main_category)
    value = scores.metrics()[first.name]["value"]
    if task.main_category:
        assert value == 1
    else:
        assert value == float(headline.value(scores.columns))
        assert value not in (0, 1)
    # Each report begins with the metric of the scores, which has the value of its own rows.
    assert next(iter(section(tmp_path)["metrics"])) == wanted
    examples = [
        replace(example, buckets=row["buckets"])
        for example, row in zip(examples_of(name, tmp_path), rows, strict=True)
    ]
    config = config_from_dict(raw_config(name, tmp_path), where="test", title="test")
    assert evaluation_metrics(config, examples)[0].name == wanted
    table = results_table(scores).splitlines()
    shown = next(line for line in table if line.startswith("  "))
    assert shown.split("  ")[1] == first.label
    guess = [line for line in table if line.startswith("guessing has")]
    assert all(line.startswith(f"guessing has {first.label} ") for line in guess)


@pytest.mark.parametrize("name", EVERY)
def test_right_answers_score_as_right(name, tmp_path):
    example = examples_of(name, tmp_path)[0]
    scorer = scorer_of(task_of(name), name, example.answer, "test")
    assert isinstance(scorer, Scorer)
    scores = score(predictions_of(name, tmp_path), task_name=name)
    assert {type(metric.higher_is_better) for metric in scores.scorer.metrics} == {bool}
    headline = scores.scorer.metrics[0]
    assert scores.metrics()[headline.name]["value"] == (1 if headline.unit == "%" else 0)
    results = section(tmp_path)
    assert (results["task"], results["task_version"]) == (name, task_of(name).version)
    assert scores.failures == {}


@pytest.mark.parametrize("name", EVERY)
def test_a_config_is_checked_and_read_back(name, tmp_path, capsys):
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump(raw_config(name, tmp_path)), encoding="utf-8")
    assert cli.main(["check", str(file)]) == 0
    printed = yaml.safe_load(capsys.readouterr().out)
    config = config_from_dict(printed, where="mine.yaml", title="mine")
    assert printed["task"]["name"] == config.task_name == name
    assert config.task == task_of(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERY)
def test_check_data_finds_nothing_to_fix(name, tmp_path):
    report = check_data(config_from_dict(raw_config(name, tmp_path), where="test", title="test"))
    assert report_text(report).splitlines()[-1] == "ready", report_text(report)
    headline = report.sources[1].scorer.metrics[0]
    assert report.sources[1].ceiling[headline.name] == pytest.approx(
        1 if headline.unit == "%" else 0, abs=0.05
    )


def test_a_baseline_measures_the_answers_of_a_task_of_a_user(tmp_path):
    rows = [{"id": str(i), "degrees": str(i), "category": "cold"} for i in range(4)]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    model = {"name": "tiny", "family": "causal_lm", "dtype": "float32", "baseline": "xval"}
    changes = {"model": model, "data": {"train": {"path": str(file)}, "test": {"path": str(file)}}}
    config = config_from_dict(
        raw_config(thermometer.NAME, tmp_path, **changes), where="test", title="test"
    )
    report = check_data(config)
    assert report.ready, report_text(report)
    assert report.family.fitted


def test_a_report_has_the_chapters_of_a_task_of_a_user(tmp_path):
    folder = tmp_path / "compared"
    summary = compare_folder(folder) | {"task": thermometer.NAME}
    score(predictions_of(thermometer.NAME, tmp_path), task_name=thermometer.NAME)
    rows = (tmp_path / "scores.jsonl").read_text(encoding="utf-8")
    for file in folder.glob("*/run*/scores.jsonl"):
        file.write_text(rows, encoding="utf-8")
    page, twin = written(folder, summary, trust_remote_code=True)
    for text in ("16 readings of 2 objectives.", "Degrees", "Error sizes"):
        assert text in page
        assert text in twin


def test_a_report_is_written_without_the_module_of_its_task(tmp_path):
    summary = compare_folder(tmp_path / "compared") | {"task": "module_of_nobody:Thermometer"}
    with pytest.warns(UserWarning, match=r"module_of_nobody.* chapters of the task are left out"):
        page, _ = written(tmp_path / "compared", summary, trust_remote_code=True)
    assert "All metrics" in page


BASE = "from dataclasses import dataclass\nfrom mm_numeric.tasks.base import BaseTask\n"
REST = (
    "allows, answer_part, augmentations, count_classes, examples, format, grammar, grammar_after, "
    "is_enumerated, main_category, moved_answer, options, parse, read, reads_by, "
    "reads_whole_text, record, recorded, report_sections, risk, sampled_answers, scorer, "
    "text_frame, version"
)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("@dataclass\nclass Mine:\n    a: int = 1\n", f"the task 'mine:Mine' lacks {REST}; derive"),
        (
            "@dataclass(frozen=True)\nclass Mine(BaseTask):\n    def examples(self): ...\n",
            "lacks format, parse, record, recorded; derive it from mm_numeric.tasks.base:BaseTask",
        ),
        ("class Mine:\n    pass\n", "'mine:Mine' is not a dataclass"),
        ("def Mine():\n    pass\n", "'mine:Mine' is not a dataclass"),
        ("@dataclass\nclass Mine(BaseTask):\n    a: int = 1\n", "cannot be imported .*non-frozen"),
        (
            "from mm_numeric.tasks.clock import Clock\n@dataclass(frozen=True)\n"
            "class Mine(Clock):\n    options: int = 1\n",
            "has a field named 'options', which hides a method of every task; rename the field",
        ),
    ],
)
def test_what_is_missing_is_named_when_the_config_is_read(source, message, tmp_path, monkeypatch):
    Path(tmp_path / "mine.py").write_text(BASE + source, encoding="utf-8")
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    raw = raw_config("clock", tmp_path) | {"task": "mine:Mine"}
    with pytest.raises(ValueError, match=rf"^test, task\.name: .*{message}"):
        config_from_dict(raw, where="test", title="test")
    sys.modules.pop("mine", None)


def test_a_scorer_that_is_an_object_is_one_sentence():
    class Mine(task_class("clock", "here")):
        scorer = choose("mm_numeric.evaluation.metrics.clock:TIMES", {}, "scorer", "here")

    message = r"^here: the scorer of the task 'mine' is an object; set its import path, such as"
    with pytest.raises(ValueError, match=message):
        scorer_of(Mine(), "mine", None, "here")
