"""The doctor: every fault is found, none is invented, and the ceiling is the scorer's figure."""

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from browser import drawn_in_a_browser
from check_data_runs import config_of, kinds
from PIL import Image
from rectangles import boxes, write_rectangles
from result_files import write_lines
from rows_of_tasks import written_rows
from synthetic_rows import rows_for
from tiny_models import CACHE, tiny_checkpoint

from mm_numeric.answers import Box, Example, Instance, Mark, Polygon, Written
from mm_numeric.cli import main as cli
from mm_numeric.config.reader import read_config
from mm_numeric.data.collator import make_collator
from mm_numeric.data.training_set import TrainingRows
from mm_numeric.evaluation.check_data.check import check_data
from mm_numeric.evaluation.check_data.html_page import write_check_page
from mm_numeric.evaluation.check_data.text import _coordinates_text, facts, report_text
from mm_numeric.evaluation.metrics.boxes import iou
from mm_numeric.evaluation.score import score
from mm_numeric.families.qwen2_vl import Qwen2VL
from mm_numeric.geometry.coordinates import COORDINATES
from mm_numeric.geometry.frames import Frame, Resize
from mm_numeric.models.loading import load_family
from mm_numeric.tasks.base import BaseTask
from mm_numeric.tasks.detection import Detection

SHARED = Path(__file__).parents[4] / "shared" / "data"


def test_good_data_is_ready(tmp_path):
    report = check_data(config_of(tmp_path, write_rectangles(tmp_path / "rows")))
    assert report.ready
    text = report_text(report)
    assert text.endswith("\nready")
    assert "questions         8 read, 8 usable" in text
    assert "8 of 8 found, 80 wide and 60 high" in text
    assert "image tokens      6" in text
    assert "one step is       0.08 pixels" in text
    assert "note: Every test question is a training question, so that" in text
    (numbers,) = {sum(len(n.positions) for n in t.numbers) for t in report.sources[0].examples[:1]}
    assert numbers == len(re.findall("[0-9]", report.sources[0].examples[0].written.text))


FAULTY = [
    ('{"id": "1", "image": "0.png", "phrase": "a", "box": [5, 4, 21, 16]}', None),
    ('{"id": "2", "image": "0.png"', "not JSON"),
    ("[1, 2]", "expected an object"),
    ('{"id": "3", "phrase": "a", "box": [5, 4, 21, 16]}', "no image; each row needs"),
    ('{"id": "4", "image": "-.png", "phrase": "a", "box": [5, 4, 21, 16]}', "there is no image"),
    ('{"id": "5", "image": "0.png", "box": [5, 4, 21, 16]}', "no phrase; each row needs"),
    ('{"id": "6", "image": "0.png", "phrase": "a"}', "no box; each row needs"),
    ('{"id": "7", "image": "0.png", "phrase": "a", "box": [5, 4, 99, 16]}', "outside the image"),
    ('{"id": "8", "image": "0.png", "phrase": "a", "box": [50, 4, 21, 16]}', "is reversed"),
    ('{"id": "9", "image": "0.png", "phrase": "a", "box": [5, 4, 5, 16]}', "has no area"),
    ('{"id": "10", "image": "0.png", "phrase": "a", "bbox": [5, 4, 21, 16]}', "may be x1, y1, x2"),
    ('{"id": "1", "image": "0.png", "phrase": "a", "box": [5, 4, 21, 16]}', "is already used in"),
    ('{"id": "11", "image": "bad.png", "phrase": "a", "box": [5, 4, 21, 16]}', "cannot be read"),
    ('{"id": "12", "image": "turned.jpg", "phrase": "a", "box": [5, 4, 21, 16], "width": 80, '
     '"height": 60}', "after its EXIF rotation"),
    ('{"id": "13", "image": "long.png", "phrase": "a", "box": [0, 4, 2, 16]}', "aspect ratio"),
]  # fmt: skip


@pytest.fixture
def faulty(tmp_path):
    """A file with one of each fault, and one good row."""
    folder = tmp_path / "rows"
    write_rectangles(folder)
    (folder / "bad.png").write_bytes((folder / "0.png").read_bytes()[:90])
    Image.new("RGB", (3, 900)).save(folder / "long.png")
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter
    Image.new("RGB", (80, 60)).save(folder / "turned.jpg", exif=exif)
    rows = folder / "faulty.jsonl"
    rows.write_text("".join(line + "\n" for line, _ in FAULTY), encoding="utf-8")
    return rows


def test_one_of_each_fault_is_found_once_with_its_place(tmp_path, faulty):
    report = check_data(config_of(tmp_path, faulty, tmp_path / "rows" / "rows.jsonl"))
    source = report.sources[0]
    assert source.questions == len(FAULTY)
    assert [t.example.id for t in source.examples] == ["1"]
    for number, (_, message) in enumerate(FAULTY, start=1):
        places = tuple(f"{faulty}, line {number}{mark}" for mark in (":", ","))
        sentences = [s for problem in source.problems.values() for s in problem.messages]
        found = [s for s in sentences if s.startswith(places)]
        assert len(found) == (message is not None), (number, found)
        assert message is None or message in found[0]
    assert len(source.problems) == len(FAULTY) - 1  # each is of its own kind
    assert not report.sources[1].problems


def test_the_same_fault_is_one_thing_to_fix(tmp_path):
    folder = tmp_path / "rows"
    write_rectangles(folder)
    rows = [
        {"id": str(i), "image": f"{i}.png", "phrase": "a", "box": [5 + i, 4, 200 + i, 16]}
        for i in range(6)
    ]
    file = write_lines(folder / "rows.jsonl", rows)
    report = check_data(config_of(tmp_path, file), limit=5)
    assert list(kinds(report).values()) == [5]
    text = report_text(report)
    assert "fix 1 (train): 5 x the point (#, #) is outside the image of # x # pixels" in text
    assert "    ... and 2 more" in text
    assert text.endswith("not ready: 2 things to fix")


def test_a_limit_is_of_each_source(tmp_path):
    """The first source has more rows than the limit, and the second one has a fault."""
    good, other = write_rectangles(tmp_path / "good"), tmp_path / "good" / "other.jsonl"
    row = {"id": "own", "image": "0.png", "phrase": "a", "box": [5, 4, 200, 16]}
    first = good.read_text(encoding="utf-8").splitlines()[0]  # its id is that of the other file
    other.write_text(f"{json.dumps(row)}\n{first}\n", encoding="utf-8")
    data = {"train": [{"path": str(good)}, {"path": str(other)}], "test": {"path": str(good)}}
    report = check_data(config_of(tmp_path, good, data=data), limit=2)
    assert [source.questions for source in report.sources] == [4, 2]
    assert len(kinds(report)) == 2
    assert "is outside the image" in report_text(report)
    assert "is already used in" in report_text(report)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("qwen2_5_vl", "pixels of the resized image, from 0 to width - 1 and height - 1; x before"),
        ("pixels_original", "pixels of the original image, from 0 to width and height; x before y"),
        ("paligemma", "0 to 1023 across the resized image; y before x; format loc"),
        ("unit_3", "0 to 1.000 across the resized image; x before y; format brackets"),
    ],
)
def test_the_range_of_coordinates_is_described(name, text):
    assert _coordinates_text(COORDINATES[name]).startswith(text)


@pytest.mark.parametrize("coordinates", ["unit_2", "qwen2_vl", "relative_999", "pixels_resized"])
def test_the_ceiling_is_the_score_of_the_right_answers(tmp_path, coordinates):
    rows = write_rectangles(tmp_path / "rows")
    model = {"name": "tiny", "dtype": "float32", "coordinates": coordinates}
    report = check_data(config_of(tmp_path, rows, model=model))
    lines = [
        json.dumps(
            {
                "id": t.example.id,
                "task": "grounding",
                "text": t.written.text,
                "target": report.config.task.record(t.example.answer),
                "frame": t.frame.to_dict(),
            }
        )
        for t in report.sources[0].examples
    ]
    file = tmp_path / "predictions.jsonl"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    metrics = {name: found["value"] for name, found in score(file).metrics().items()}
    assert report.sources[0].ceiling == metrics
    assert 0.8 < metrics["mean_iou"] < 1


@pytest.mark.slow
def test_two_decimals_cost_small_boxes_dearly(tmp_path):
    folder = tmp_path / "rows"
    folder.mkdir()
    boxes = [[13 * i, 9 * i, 13 * i + 17, 9 * i + 15] for i in range(40)]
    rows = [
        {"id": str(i), "image": "a.png", "phrase": "a", "box": box} for i, box in enumerate(boxes)
    ]
    file = write_lines(folder / "rows.jsonl", rows)
    ceilings = {}
    for coordinates in ("unit_2", "unit_3"):
        model = {"name": "tiny", "dtype": "float32", "coordinates": coordinates}
        report = check_data(config_of(tmp_path, file, model=model), size_px=(640, 480))
        ceilings[coordinates] = report.sources[0].ceiling
    assert ceilings["unit_2"]["accuracy_at_0.9"] < 0.4
    assert ceilings["unit_3"]["accuracy_at_0.9"] > 0.95


def test_clocks_have_a_ceiling_in_minutes(tmp_path):
    config = config_of(
        tmp_path,
        "-",
        task="clock",
        data={
            "train": rows_for("clock", 4),
            "test": rows_for("clock", 2),
            "cache": str(tmp_path / "cache"),
        },
    )
    report = check_data(config)
    assert report.ready
    assert report.sources[0].ceiling["mean_deviation_minutes"] == 0
    assert report.sources[0].ceiling["exact"] == 1


def test_a_point_is_no_shape_without_area(tmp_path):
    data = {
        "train": rows_for("click", 4),
        "test": rows_for("click", 2),
        "cache": str(tmp_path / "cache"),
    }
    report = check_data(config_of(tmp_path, "-", task="click", data=data))
    assert report.ready
    assert not [note for note in report.notes if "no area" in note]


def test_rows_without_images_are_looked_at_too(tmp_path):
    config = read_config(
        "arithmetic_tiny",
        [
            "data.train.synthetic.rows=200",
            "data.test.synthetic.rows=20",
            "data.test.synthetic.seed=1",
            f"data.cache={tmp_path}",
            "trainer.save_steps=400",
        ],
    )
    report = check_data(config)
    assert report.ready, report.sources
    assert report.notes == ["10 test questions are in the training data too."]
    assert dict(facts(report, report.sources[1]))["question tokens"].endswith(")")
    assert report.sources[1].ceiling["accuracy"] == 1
    write_check_page(report, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<image" not in page
    assert "Dashed" not in page
    assert "loss digit" in page


def test_answers_longer_than_prediction_are_to_be_fixed(tmp_path):
    rows = write_rectangles(tmp_path / "rows")
    report = check_data(config_of(tmp_path, rows, predict={"max_new_tokens": 8}))
    assert kinds(report) == {}
    assert kinds(report, 1) == {"longer than predict.max_new_tokens": 8}
    assert "Set predict.max_new_tokens to at least" in report_text(report)


def test_what_is_longer_than_the_model_is_to_be_fixed(tmp_path):
    row = {"id": "1", "image": "a.png", "phrase": "a", "box": [1, 2, 900, 800]}
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({**row, "width": 4000, "height": 3000}) + "\n", encoding="utf-8")
    image = {"max_pixels": 4000 * 3000}
    config = config_of(tmp_path, file, model={"name": "tiny", "image_size": image})
    report = check_data(config)
    assert set(kinds(report)) == {"the image is missing", "longer than the model"}
    assert "and the model has 2048 positions" in report_text(report)


def test_images_that_are_not_here_may_be_said_to_be_of_a_size(tmp_path):
    row = {"id": "1", "image": "a.png", "phrase": "a", "box": [1, 2, 90, 80]}
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(row) + "\n", encoding="utf-8")
    config = config_of(tmp_path, file)
    assert check_data(config).sources[0].ceiling == {}
    report = check_data(config, size_px=(100, 90))
    assert report.sources[0].ceiling["mean_iou"] > 0.99
    assert kinds(report) == {"the image is missing": 1}


@dataclass(frozen=True, kw_only=True)
class Says(BaseTask):
    """A task whose answer is a text of the config's."""

    text: str
    mark: bool = False

    def examples(self, rows, *, training):
        for where, row in rows:
            yield Example(
                id=row["id"], image=Path(row["image"]), prompt="?", answer=Box(1, 2, 3, 4),
                where=where,
            )  # fmt: skip

    def format(self, answer, frame=None):
        marks = (Mark(0, len(self.text)),) if self.mark else ()
        return Written(self.text, marks)

    def parse(self, text, frame=None):
        return Box(1, 2, 3, 4)

    def record(self, answer):
        return list(answer.points)

    def recorded(self, value):
        return Box(*value[0], *value[1])


@dataclass(frozen=True, kw_only=True)
class Plain(Says):
    """A task that returns floats in place of answers."""

    method: str

    def examples(self, rows, *, training):
        for example in super().examples(rows, training=training):
            yield replace(example, answer=1.5) if self.method == "examples" else example

    def parse(self, text, frame=None):
        return 1.5


@pytest.mark.parametrize(("method", "more"), [("examples", ""), ("parse", ", or Unreadable")])
def test_a_float_as_an_answer_is_one_problem(tmp_path, method, more):
    task = {"name": f"{__name__}:Plain", "text": "1.5", "method": method}
    rows = write_rectangles(tmp_path / "rows", count=1)
    report = check_data(config_of(tmp_path, rows, task=task))
    assert report_text(report).count(
        f"the task Plain: {method} returned 1.5 (float); return an answer of "
        f"mm_numeric.answers, such as Number{more}."
    )


@pytest.mark.parametrize(("digits", "count"), [(9, 0), (10, 2)])
def test_long_numbers_are_counted(tmp_path, digits, count):
    """One in the training data and one in the test data."""
    rows = tmp_path / "rows.jsonl"
    lines = [{"id": f"{n}", "question": f"{n}?", "answer": int("1" * n)} for n in (2, digits)]
    rows.write_text("".join(json.dumps(line) + "\n" for line in lines))
    model = {"family": "causal_lm", "name": "tiny", "dtype": "float32"}
    report = check_data(config_of(tmp_path, rows, task="numbers", model=model))
    assert sum(source.long_numbers for source in report.sources) == count
    told = f"{count} numbers of answers have more than 9 digits" in report_text(report)
    assert told == bool(count)


@pytest.mark.parametrize(
    ("text", "kind"), [("7<|im_end|>8", "answers that stop early"), ("12 and 7", None)]
)
def test_an_answer_that_would_end_early_is_to_be_fixed(tmp_path, text, kind):
    rows = write_rectangles(tmp_path / "rows", count=1)
    task = {"name": f"{__name__}:Says", "text": text}
    report = check_data(config_of(tmp_path, rows, task=task))
    assert set(kinds(report)) == ({kind} if kind else set())
    if kind is None:
        assert "6 digits of answers are in no marked number" in report_text(report)


@dataclass(frozen=True, kw_only=True)
class ByExactCorner(Detection):
    """A task of a user's, which sorts boxes before they are rounded."""

    misread: bool = False

    def format(self, answer, frame=None):
        items = sorted(answer.items, key=lambda item: (item.shape.y1, item.shape.x1))
        return frame.write(items)

    def parse(self, text, frame=None):
        found = frame.read(text)
        items = (replace(item, label="cup") for item in found.items)
        return replace(found, items=tuple(items)) if self.misread else found


@pytest.mark.parametrize("misread", [False, True])
def test_the_order_of_equal_objects_is_no_fault(tmp_path, misread):
    boxes = [[50, 10.41, 60, 20], [5, 10.44, 15, 20], [30, 30, 40, 40]]
    instances = [{"box": box, "label": "cup"} for box in boxes]
    instances[2]["label"] = "cap" if misread else "cup"
    row = {"id": "1", "image": "a.png", "width": 80, "height": 60, "instances": instances}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    Image.new("RGB", (80, 60)).save(tmp_path / "a.png")
    model = {"name": "tiny", "coordinates": "relative_1000"}
    task = {"name": f"{__name__}:ByExactCorner", "misread": misread}
    rows = tmp_path / "rows.jsonl"
    report = check_data(config_of(tmp_path, rows, task=task, model=model, predict={}))
    assert report.ready == (not misread)
    if misread:  # the texts are shown from where they differ
        text = report_text(report)
        assert "is parsed as 'cup [62, 174, 188, 333]; cup [625, " in text


@pytest.mark.slow
def test_the_page_draws_the_labels_and_marks_what_is_in_the_loss(tmp_path):
    rows = write_rectangles(tmp_path / "rows")
    report = check_data(config_of(tmp_path, rows))
    page = tmp_path / "page.html"
    write_check_page(report, page, samples=3)
    text = page.read_text(encoding="utf-8")
    drawn = re.findall(r'class="labels" d="M([^"]*)Z"', text)
    assert len(drawn) == 3
    first = report.sources[0].examples[0]
    corners = [tuple(map(float, p.split())) for p in drawn[0].split("L")]
    box = Box(*corners[0], *corners[2])
    assert iou(box, first.example.answer) > 0.98
    assert box != first.example.answer  # drawn from the labels, not from the row
    token = report.family.tokenizer.convert_ids_to_tokens
    in_loss = re.findall(r'<span class="loss( digit)?"[^>]*>([^<]*)<', text)
    names = [token(i) for t in (0, 2, 5) for i in report.sources[0].examples[t].answer.ids]
    assert [name for _, name in in_loss] == [
        n.replace("<", "&lt;").replace(">", "&gt;") for n in names
    ]
    assert all(name.isdigit() == bool(digit) for digit, name in in_loss)
    assert "&lt;|image_pad|&gt; × 6" in text
    assert drawn_in_a_browser(text, tmp_path) == [3, 3]


def test_the_command_says_ready_or_what_to_fix(tmp_path, capsys, faulty):
    rows = tmp_path / "rows" / "rows.jsonl"
    config = tmp_path / "mine.yaml"
    config.write_text(
        f"task: grounding\ndata: {{train: {{path: {rows}}}, test: {{path: {rows}}}}}\n"
        f"model: {{name: tiny}}\ntrainer: {{output_dir: {tmp_path / 'run'}}}\n"
        "predict: {max_new_tokens: 64}\n",
        encoding="utf-8",
    )
    assert cli.main(["check-data", str(config)]) == 0
    *_, page, last = capsys.readouterr().out.splitlines()
    assert last == "ready"
    assert Path(page.removeprefix("page: ")).is_file()
    assert not (tmp_path / "run").exists()
    with pytest.raises(SystemExit) as end:
        cli.main(["check-data", str(config), f"data.train.path={faulty}"])
    assert end.value.code == 1
    assert capsys.readouterr().out.endswith(f"not ready: {len(FAULTY) - 1} things to fix\n")
    for size in ("640", "640x0", "-1x5", f"1x{'9' * 400}"):
        with pytest.raises(SystemExit):
            cli.main(["check-data", str(config), f"--size={size}"])
        assert f"{size:.40} is not a size such as 640x480" in capsys.readouterr().err
    assert cli.main(["check-data", str(config), "--page", str(tmp_path)]) == 2
    assert "is a folder; name a file in it" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(not SHARED.is_dir(), reason="no shared data")
def test_icdar2015_is_ready(tmp_path):
    rows = SHARED / "icdar2015" / "textdet_test.json"
    model = {"name": "tiny", "image_size": {"max_pixels": 1280 * 28 * 28}}
    content = json.loads(rows.read_text(encoding="utf-8"))
    few = tmp_path / "few.json"  # not all a second time, as test data
    few.write_text(json.dumps({**content, "data_list": content["data_list"][:1]}), "utf-8")
    data = {"train": {"path": str(rows)}, "test": {"path": str(few), "images": str(rows.parent)}}
    limit = {"max_new_tokens": 800}
    config = config_of(tmp_path, rows, task="text_detection", model=model, data=data, predict=limit)
    report = check_data(config)
    assert report.ready, report_text(report)
    assert len(report.sources[0].examples) == 10
    assert report.sources[0].ceiling["mean_iou_of_pairs"] > 0.97
    written = sum(len(t.written.marks) for t in report.sources[0].examples)
    instances = [i for row in content["data_list"] for i in row["instances"]]
    assert written == 8 * sum(not i["ignore"] for i in instances)


@pytest.mark.slow
@pytest.mark.skipif(not SHARED.is_dir(), reason="no shared data")
def test_refcocog_lacks_its_images_and_nothing_else(tmp_path):
    lines = (SHARED / "refcocog" / "refcocog_umd_val.jsonl").open(encoding="utf-8").readlines()
    rows, few = tmp_path / "rows.jsonl", tmp_path / "few.jsonl"
    rows.write_text("".join(lines[:60]), encoding="utf-8")
    few.write_text("".join(lines[:2]), encoding="utf-8")  # not all a second time, as test data
    report = check_data(config_of(tmp_path, rows, few), size_px=(640, 640))
    questions = len(report.sources[0].examples)
    assert questions > 100
    assert kinds(report) == {"the image is missing": questions}
    assert report.sources[0].ceiling["mean_iou"] > 0.98


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "task", "ceiling"),
    [
        ("qwen2_vl", "mathvista", "strict 100.00 %, by rules 100.00 %"),
        ("causal_lm", "gsm8k", "accuracy 100.00 %"),
        ("t5", "{name: gsm8k, plain: true}", "accuracy 100.00 %"),
        ("causal_lm", "multirc", "F1 of words 100.00 %"),
        ("t5", "{name: multirc, answer: yes_no}", "F1a 100.00 %"),
    ],
)
def test_good_rows_are_ready(tmp_path, family, task, ceiling):
    config = [f"task={task}", f"model={{family: {family}, name: tiny, dtype: float32}}"]
    name = read_config("gsm8k_qwen2_5_7b", config).task_name
    train, test = (written_rows(name, tmp_path, count) for count in (8, 4))
    config += [
        f"data={{train: {{path: {train}}}, test: {{path: {test}}}, cache: {CACHE}}}",
        f"trainer={{output_dir: {tmp_path / 'run'}, max_steps: 1}}",
    ]
    text = report_text(check_data(read_config("gsm8k_qwen2_5_7b", config)))
    assert text.splitlines()[-1] == "ready", text
    assert ceiling in text
    assert "in no marked number" not in text  # objective.numbers is all


def report_of(folder, coordinates, label="", task="detection", **changes):
    """Return the report of four images with a labelled box each, in a list of one box."""
    rows = write_rectangles(folder / "rows", 4)
    lines = [
        {
            "id": str(i),
            "image": f"{i}.png",
            "phrase": "box",
            "box": box,
            "instances": [{"box": box, "label": label}],
        }
        for i, box in enumerate(boxes(4))
    ]
    write_lines(rows, lines)
    model = {"name": "tiny", "dtype": "float32", "coordinates": coordinates}
    return check_data(config_of(folder, rows, task=task, model=model, **changes))


@pytest.mark.parametrize("coordinates", ["qwen2_5_vl", "qwen3_vl", "gemma3"])
def test_the_2_of_bbox_2d_is_not_an_unmarked_digit(tmp_path, coordinates):
    report = report_of(tmp_path, coordinates, task="grounding")
    assert '_2d": [' in report.sources[0].examples[0].written.text
    assert [source.unmarked_digits for source in report.sources] == [0, 0]
    assert "in no marked number" not in report_text(report)


def test_the_digits_of_a_label_are_no_unmarked_numbers(tmp_path):
    report = report_of(tmp_path, "qwen3_vl", label="route 66")
    assert "route 66" in report.sources[0].examples[0].written.text
    assert "in no marked number" not in report_text(report)


def test_all_numbers_leave_the_digits_of_the_format_out(tmp_path):
    objective = {"preset": "emd", "numbers": "all"}
    report = report_of(tmp_path, "qwen3_vl", label="route 66", objective=objective)
    example = report.sources[0].examples[0]
    coordinates = json.loads(example.written.text)[0]["bbox_2d"]
    assert [number.value for number in example.numbers] == [*coordinates, 66]


def test_the_format_digits_of_polygons_and_boxes_are_found():
    frame = Frame(640, 480, Resize(kind="none").view(640, 480), COORDINATES["qwen3_vl"])
    quad = Polygon(((1.0, 1.0), (9.0, 1.0), (9.0, 9.0)))
    written = frame.write([Instance(Box(1, 2, 3, 4), "a 2"), Instance(quad)])
    found = [written.text[i - 1 : i + 2] for i in sorted(written.format_digits)]
    assert found == ["_2d", "_2d"]


class Padded(Qwen2VL):
    """Qwen2-VL, told that it sees padded squares, as LLaVA does."""

    def frame(self, width, height):
        view = Resize(kind="letterbox", side=336).view(width, height)
        return Frame(width, height, view, self.coordinates)


def write_rows(folder, rows, name="rows.jsonl"):
    folder.mkdir(exist_ok=True)
    return write_lines(folder / name, rows)


@pytest.mark.parametrize("task", ["grounding", "text_detection"])
def test_an_edge_that_rounding_moves_into_the_padding_is_no_fault(tmp_path, task):
    box = [10, 0, 200, 480]
    row = {"id": "1", "image": "a.png", "phrase": "a", "box": box, "instances": [{"box": box}]}
    file = write_rows(tmp_path, [row])
    Image.new("RGB", (640, 480)).save(tmp_path / "a.png")
    model = {"name": "tiny", "family": f"{__name__}:Padded", "coordinates": "unit_2"}
    report = check_data(config_of(tmp_path, file, model=model, task=task))
    (trained,) = report.sources[0].examples
    found = trained.parsed if task == "grounding" else trained.parsed.items[0].shape
    assert found.y1 == 0  # 0.12 of 640 pixels, of which 80 are padding, would be -3.2
    assert report.ready, report_text(report)


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["jpg", "png", "tif"])
def test_the_size_in_a_header_is_that_of_the_upright_image(tmp_path, ending):
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter
    Image.new("RGB", (80, 60)).save(tmp_path / f"a.{ending}", exif=exif)
    row = {"id": "1", "image": f"a.{ending}", "phrase": "a", "box": [5, 4, 21, 70]}
    config = config_of(tmp_path, write_rows(tmp_path, [row]))
    for images in (0, 1):
        report = check_data(config, images=images)
        assert report.ready, report_text(report)
        assert [t.size_px for t in report.sources[0].examples] == [(60, 80)]


def test_an_image_that_is_too_large_to_be_decoded_is_one_fault(tmp_path):
    config = config_of(tmp_path, write_rectangles(tmp_path / "rows", count=3))
    config = replace(config, data=replace(config.data, largest_image=100))
    report = check_data(config, images=1)
    assert [*kinds(report).values()] == [3]
    assert "it has more than 100 pixels; resize it, or raise data.largest" in report_text(report)


def test_a_truncated_image_after_the_first_is_found_by_the_page(tmp_path):
    rows = [
        {"id": str(i), "image": f"{i}.jpg", "phrase": "a", "box": [5, 4, 21, 50]} for i in range(40)
    ]
    file = write_rows(tmp_path, rows)
    for i in range(40):
        Image.effect_noise((80, 60), 50).save(tmp_path / f"{i}.jpg")
    whole = (tmp_path / "5.jpg").read_bytes()  # not among the 16 that are put through the collator
    (tmp_path / "5.jpg").write_bytes(whole[: len(whole) // 2])
    report = check_data(config_of(tmp_path, file, write_rectangles(tmp_path / "test")), images=1)
    assert report.ready
    write_check_page(report, tmp_path / "page.html", samples=40)
    assert not report.ready
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Not ready: 1 thing to fix" in text
    assert text.count("<image ") == 39
    assert "rows.jsonl, line 6: the image" in report_text(report)


@pytest.mark.parametrize("images", [0, 200])
def test_every_image_of_a_row_is_checked(tmp_path, images):
    span = {"query": "a square", "spans": [[0.0, 1.0]], "fps": 1}
    rows = [{"id": str(i), "frames": [f"{i}.png", f"{i}b.png"], **span} for i in range(40)]
    file = write_rows(tmp_path, rows)
    for row in rows:
        for frame in row["frames"]:
            Image.effect_noise((56, 56), 50).save(tmp_path / frame)
    # Not among the 16 that are put through the collator.
    Image.new("RGB", (56, 84)).save(tmp_path / "5b.png")
    (tmp_path / "7b.png").write_text("no image")
    report = check_data(config_of(tmp_path, file, task="temporal_spans"), images=images)
    assert [*kinds(report).values()] == [1, 1]
    text = report_text(report)
    assert "line 6: the images of a row have one size, and these have 56 x 56 and 56 x 84" in text
    assert f"line 8: the image {tmp_path / '7b.png'} cannot be read" in text


@pytest.mark.parametrize("stream", [False, True])
def test_the_ids_of_a_stream_are_not_compared(tmp_path, stream):
    file = write_rectangles(tmp_path / "rows", count=3)
    sources = {"train": [{"path": str(file)}] * 2, "test": {"path": str(file)}, "stream": stream}
    trainer = {"output_dir": str(tmp_path / "run"), "max_steps": 1}
    report = check_data(config_of(tmp_path, file, data=sources, trainer=trainer))
    assert report.ready is stream
    assert [*kinds(report).values()] == ([] if stream else [3])


def test_texts_that_are_quoted_in_part_are_one_fault(tmp_path):
    good = {"id": "1", "image": "0.png", "phrase": "a", "box": [5, 4, 21, 16]}
    words = ("red", "green", "blue")
    rows = [f"a {w} car that is parked before the house" for w in words]
    rows += [
        {**good, "id": w, "box": f"the {w} car that is parked before the house"} for w in words
    ]
    write_rectangles(tmp_path / "rows")
    report = check_data(config_of(tmp_path, write_rows(tmp_path / "rows", [good, *rows])))
    assert [*kinds(report).values()] == [3, 3]
    titles = [line for line in report_text(report).split("\n") if line.startswith("fix")]
    assert titles[0] == "fix 1 (train): 3 x expected an object {...: ...}, found ..."
    assert titles[1] == "fix 2 (train): 3 x box: expected a list of numbers, found ..."


def test_a_question_that_cannot_be_written_is_named_with_its_row(tmp_path):
    write_rectangles(tmp_path / "rows")
    good = {"id": "1", "image": "0.png", "phrase": "a", "box": [5, 4, 21, 16]}
    odd = {**good, "id": "2", "phrase": "<|image_pad|>"}
    report = check_data(config_of(tmp_path, write_rows(tmp_path / "rows", [good, odd])))
    ((sentence,),) = [problem.messages for problem in report.sources[0].problems.values()]
    assert "rows.jsonl, line 2: " in sentence


def test_dropped_objects_and_a_class_in_no_row_are_reported(tmp_path, capsys):
    objects = [{"box": [1, 1, 30, 30], "label": name} for name in ("bolt", "nut", "nut")]
    file = write_rows(tmp_path, [{"id": "1", "image": "a.png", "instances": objects}])
    Image.new("RGB", (64, 48)).save(tmp_path / "a.png")
    task = {"name": "detection", "classes": ["bolt", "nuts"], "other_labels": "drop"}
    config = config_of(tmp_path, file, task=task)
    warning = "the class 'nuts' is in no row of the training data; did you mean 'nut'?"
    text = report_text(check_data(config))
    assert text.count("  objects           1 bolt, 0 nuts\n") == 2  # of training and of test data
    assert text.count("  dropped objects   2 nut; these classes are not asked for\n") == 2
    assert f"note: {warning}\n" in text
    capsys.readouterr()
    TrainingRows(config).for_trainer(make_collator(config, load_family(config, tiny_checkpoint())))
    assert capsys.readouterr().err.splitlines() == [
        "mm-numeric: objects: 1 bolt, 0 nuts",
        "mm-numeric: dropped objects: 2 nut; these classes are not asked for",
        f"mm-numeric: {warning}",
    ]


def test_a_forgotten_list_of_classes_is_named_with_the_labels_to_set(tmp_path):
    objects = [{"box": [1, 1, 30, 30], "label": name} for name in ("nut", "bolt", "nut")]
    file = write_rows(tmp_path, [{"id": "1", "image": "a.png", "instances": objects}])
    Image.new("RGB", (64, 48)).save(tmp_path / "a.png")
    task = {"name": "detection", "classes": ["circle", "square"], "other_labels": "drop"}
    report = check_data(config_of(tmp_path, file, task=task))
    told = (
        "all 3 objects are dropped, because their classes are not asked for: 2 nut, 1 bolt; set "
        "task.classes: [bolt, nut]."
    )
    for source in report.sources:
        assert source.problems["no object is kept"].messages == [f"{source.name} data: {told}"]
        assert "a low ceiling" not in source.problems
    assert report_text(report).count(told) == 2  # of training and of test data
    assert not report.ready


def test_a_class_whose_rows_are_too_long_is_reported_as_such(tmp_path, logged):
    airplane, apple = ({"box": [1, 1, 30, 30], "label": name} for name in ("airplane", "apple"))
    rows = [{"id": str(i), "image": "a.png", "instances": instances} for i, instances in
            enumerate(([airplane], [apple] * 40))]  # fmt: skip
    Image.new("RGB", (64, 48)).save(tmp_path / "a.png")
    task = {"name": "detection", "classes": ["airplane", "apple"]}
    config = config_of(tmp_path, write_rows(tmp_path, rows), task=task)
    config = replace(config, data=replace(config.data, max_tokens=200, too_long="drop"))
    warning = (
        "the class 'apple' is in no row that is trained on: the rows with its objects (40) are "
        "longer than data.max_tokens; raise it."
    )
    assert warning in check_data(config).notes
    TrainingRows(config).for_trainer(make_collator(config, load_family(config, tiny_checkpoint())))
    assert warning in logged.getvalue()


def test_an_empty_file_of_training_rows_is_one_thing_to_fix(tmp_path):
    empty = write_rows(tmp_path, [], "empty.jsonl")
    config = config_of(tmp_path, empty, write_rectangles(tmp_path / "rows"), predict={})
    text = report_text(check_data(config))
    assert "  questions         0 read, 0 usable\n" in text
    assert text.endswith(
        f"fix 1 (train): no rows\n    {empty}: no rows; give at least one.\n"
        "not ready: 1 thing to fix"
    )


def test_test_rows_without_an_answer_are_usable(tmp_path):
    answer = {"valid": True, "hours": 1, "minutes": 5}
    Image.new("RGB", (60, 60)).save(tmp_path / "a.png")
    rows = [{"id": "1", "image": "a.png", "answer": answer}, {"id": "2", "image": "a.png"}]
    train = write_rows(tmp_path, rows[:1])
    test = write_rows(tmp_path, rows, "test.jsonl")
    report = check_data(config_of(tmp_path, train, test, task="clockbench", predict={}))
    write_check_page(report, tmp_path / "page.html")
    text = report_text(report)
    assert "  questions         2 read, 2 usable, 1 of them without an answer to score\n" in text
    assert report.ready, text
    none = write_rows(tmp_path, rows[1:], "none.jsonl")
    report = check_data(config_of(tmp_path, train, none, task="clockbench"))
    write_check_page(report, tmp_path / "page.html")
    assert report_text(report).endswith("\nready")


def test_augmented_rows_are_drawn_next_to_the_row(tmp_path):
    rows = write_rectangles(tmp_path / "rows")
    config = config_of(tmp_path, rows)
    plain = check_data(config)
    operations = {"flip": 1.0, "crop": {"probability": 1.0, "least": 1.0}, "blur": 0.0}
    data = {"train": {"path": str(rows)}, "test": {"path": str(rows)}}
    augment = {"operations": operations}
    report = check_data(config_of(tmp_path, rows, data={**data, "augment": augment}))
    assert [source.ceiling for source in report.sources] == [
        source.ceiling for source in plain.sources
    ]
    note = (
        "data.augment changes 100 % of the first 8 training images in an epoch: flip 100 %, "
        "crop 100 %, blur 0 %. The ceilings are computed without augmentation."
    )
    assert note in report.notes
    write_check_page(report, tmp_path / "page.html", samples=1)
    page = (tmp_path / "page.html").read_text()
    assert page.count("flip, crop") == 4 * 3
    box = boxes()[0]
    dashed = re.findall(r'class="row" d="M([0-9.]+) [0-9.]+L([0-9.]+)', page)
    assert [float(x) for x in dashed[1]] == [box[0], box[2]]  # after the sample: the row
    assert [float(x) for x in dashed[2]] == [80 - box[2], 80 - box[0]]
