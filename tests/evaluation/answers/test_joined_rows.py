"""Answers of any tool are joined with prepared rows, and score what our own predictions score."""

import json
import random

import pytest
from PIL import Image
from result_files import section, values, write_lines
from rows_of_tasks import ROWS, written_rows
from tiny_models import TINY, small_config
from tiny_qwens import box_config, real_sizes

from mm_numeric.answers import Box, Instance
from mm_numeric.cli import main as cli
from mm_numeric.config.data import DataSource
from mm_numeric.data.examples import load_examples
from mm_numeric.evaluation.answers.source import PreparedRows
from mm_numeric.evaluation.score import score
from mm_numeric.families.llava import Llava
from mm_numeric.families.qwen2_5_vl import Qwen2_5VL
from mm_numeric.geometry.frame_presets import AreaLimits, FrameRule
from mm_numeric.inference.generate import Generated, predict, prediction
from mm_numeric.tasks.base import task_class
from mm_numeric.training.run import train

SIZES = [(640, 480), (333, 500), (57, 1000), (1285, 727)]


def clock_rows(folder, count=4):
    """Write rows of clocks with integer ids, without their images."""
    rows = [{"id": i + 1, "image": f"{i}.png", "time": f"{i + 1}:30"} for i in range(count)]
    return write_lines(folder / "rows.jsonl", rows)


def box_rows(folder, count=12, *, sized=True, images=True):
    """Write rows with a box each, and images of several sizes."""
    rows = []
    for i in range(count):
        width, height = SIZES[i % len(SIZES)]
        box = [width * 0.1, height * 0.2, width * 0.7, height * 0.6 + i]
        rows.append({"id": i, "image": f"{i}.png", "phrase": f"block {i}", "box": box})
        if sized:
            rows[-1].update(width=width, height=height)
        if images:
            Image.new("RGB", (width, height), (20, 40, 60)).save(folder / f"{i}.png")
    return write_lines(folder / "rows.jsonl", rows)


def llava(folder):
    """Return a tiny LLaVA that resizes images to 336 pixels, as published."""
    Llava.make_tiny(folder / "llava", seed=0)
    family = Llava.load(str(folder / "llava"), TINY)
    family.image_processor.size = {"height": 336, "width": 336}
    return Llava(family.tokenizer, family.image_processor, TINY)


def predicted(config, family, path):
    """Return the lines that predict writes if the model writes boxes that are slightly wrong."""
    rng, lines = random.Random(0), []
    source = DataSource(path=str(path))
    for i, example in enumerate(load_examples(config.task, source, path.parent, training=False)):
        width, height = SIZES[i % len(SIZES)]
        frame, box = family.frame(width, height), example.answer
        numbers = [n + rng.uniform(-9, 9) for n in (box.x1, box.y1, box.x2, box.y2)]
        x1, y1, x2, y2 = (max(n, 0) for n in numbers)
        moved = Box(min(x1, width), min(y1, height), min(x2, width), min(y2, height))
        text = frame.write([Instance(moved)]).text if i % 5 else "I see no block."
        ids = family.tokenizer(text)["input_ids"]
        line = prediction(config, family, example, Generated(text, frame, ids, [0.5] * len(ids)))
        lines.append(json.loads(json.dumps(line)))
    return lines


@pytest.mark.parametrize("name", ["qwen2_5_vl", "llava"])
@pytest.mark.parametrize("sized", [True, False])
def test_the_score_is_that_of_our_own_predictions(tmp_path, name, sized):
    """Answers with an id and a text alone, in any order, give the same figures and intervals."""
    config = small_config(tmp_path, "task={name: grounding}")
    family = real_sizes(Qwen2_5VL) if name == "qwen2_5_vl" else llava(tmp_path)
    path = box_rows(tmp_path, sized=sized)
    lines = predicted(config, family, path)
    ours = score(write_lines(tmp_path / "predictions.jsonl", lines), out=tmp_path / "ours")
    bare = [{"id": int(line["id"]), "text": line["text"]} for line in reversed(lines)]
    answers = write_lines(tmp_path / "answers.jsonl", bare)
    words = ["--rows", str(path), "--task", "grounding", "--family", name]
    assert cli.main(["score", str(answers), *words, "--out", str(tmp_path / "theirs")]) == 0
    read = [section(tmp_path / who) for who in ("ours", "theirs")]
    for key in ("task", "rows", "metrics", "failures", "buckets", "rules"):
        assert read[0][key] == read[1][key], key
    assert 0.3 < ours.metrics()["mean_iou"]["value"] < 0.8
    names = "ours/scores.jsonl", "theirs/answers.jsonl.scores.jsonl"
    scored = [(tmp_path / name).read_text() for name in names]
    assert scored[0] == scored[1]
    assert read[1]["frame"] == FrameRule.of_family(name).to_dict()


def test_another_frame_gives_another_score(tmp_path):
    """The frame is not guessed: coordinates of Qwen2.5-VL differ from pixels of the original."""
    config = small_config(tmp_path, "task={name: grounding}")
    path = box_rows(tmp_path, images=False)
    box_rows(tmp_path)
    lines = predicted(config, real_sizes(Qwen2_5VL), path)
    answers = write_lines(tmp_path / "a.jsonl", [{k: r[k] for k in ("id", "text")} for r in lines])
    found = {
        name: score(
            answers, task_name="grounding", rows=PreparedRows(path=path, frame=rule), write=False
        )
        for name, rule in {
            "right": FrameRule.of_family("qwen2_5_vl"),
            "limits": FrameRule.of_family("qwen2_5_vl", AreaLimits(max_pixels=200_704)),
            "original": FrameRule.named("pixels_original"),
        }.items()
    }
    ious = {name: scores.metrics()["mean_iou"]["value"] for name, scores in found.items()}
    assert ious["right"] > ious["original"] > ious["limits"]


def test_the_images_that_llama_factory_shrinks_are_pointed_out(tmp_path, capsys):
    """Its default of image_max_pixels is 768 * 768; the fourth image has 1285 x 727 pixels."""
    warned = []
    for count, more in ((3, []), (4, []), (4, ["--image-max-pixels", "589824"])):
        path = box_rows(tmp_path, count)
        answers = write_lines(tmp_path / "answers.jsonl", [{"predict": "[]"}] * count)
        words = ["score", str(answers), "--rows", str(path), "--task", "grounding", *more]
        assert cli.main([*words, "--family", "qwen2_5_vl"]) == 0
        warned.append("add --image-max-pixels 589824" in capsys.readouterr().err)
        assert cli.main([*words, "--family", "qwen3_vl"]) == 0  # relative: any size is the same
        assert "--image-max-pixels" not in capsys.readouterr().err
    assert warned == [False, True, False]
    frame = section(tmp_path)["frame"]
    assert frame["image_max_pixels"] == 589824


@pytest.mark.slow
def test_a_real_run_scores_the_same_in_its_saved_frame(tmp_path):
    config = box_config(tmp_path, "qwen2_5_vl", "predict.max_new_tokens=24")
    train(config)
    run, rows = tmp_path / "run", tmp_path / "rows.jsonl"
    predict(run, None, run / "predictions.jsonl")
    ours = score(run / "predictions.jsonl")
    lines = [json.loads(line) for line in (run / "predictions.jsonl").read_text().splitlines()]
    bare = [{"id": line["id"], "response": line["text"]} for line in lines]
    answers = write_lines(tmp_path / "answers.jsonl", bare)
    words = ["--rows", str(rows), "--task", "grounding", "--frame", str(run)]
    words += ["--option", f"prompt={config.task.prompt}"]  # that of the family, not of the task
    assert cli.main(["score", str(answers), *words, "--out", str(tmp_path / "out")]) == 0
    scored = [json.loads(line) for line in (tmp_path / "out" / "answers.jsonl.scores.jsonl").open()]
    assert scored == ours.rows
    assert values(section(tmp_path / "out")) == ours.metrics()


TEXTS = ["1:30", "2:35", "nothing", "4:30"]
TOOLS = {
    "ms-swift": lambda i, text: {"response": text, "images": [{"path": f"/data/{i}.png"}]},
    "LLaMA-Factory": lambda i, text: {"prompt": "?", "predict": text, "label": f"{i + 1}:30</s>"},
    "lmms-eval or lm-eval": lambda i, text: {"doc_id": i, "filtered_resps": [text]},
    "VLMEvalKit": lambda i, text: {"index": i + 1, "prediction": text},
    "OpenAI batch": lambda i, text: {
        "custom_id": str(i + 1),
        "response": {"body": {"choices": [{"message": {"content": text}}]}},
    },
}


@pytest.mark.parametrize("tool", TOOLS)
def test_each_tool_is_scored_without_options(tmp_path, tool, capsys):
    path = clock_rows(tmp_path)
    lines = [TOOLS[tool](i, text) for i, text in enumerate(TEXTS)]
    if tool not in ("ms-swift", "LLaMA-Factory"):  # these two have no ids, so that order matters
        lines.reverse()
    answers = write_lines(tmp_path / "answers.jsonl", lines)
    assert cli.main(["score", str(answers), "--rows", str(path), "--task", "clock"]) == 0
    said = capsys.readouterr()
    assert f"read as a file of {tool} (" in said.err
    assert ("no id" in said.err) == (tool in ("ms-swift", "LLaMA-Factory"))
    results = section(tmp_path)
    assert results["rows"] == 4
    assert results["metrics"]["exact"]["value"] == 0.5
    assert results["metrics"]["mean_deviation_minutes"]["value"] == (5 + 360) / 4
    assert results["rows_from"] == str(path)


@pytest.mark.parametrize(
    ("ids", "says"),
    [([1, 2, 3, 4], "position (index)"), (["a", "b", "c", "d"], "position (index)"),
     ([0, 1, 2, 3], "id (index)"), ([0, 1, 2], "the id '3' is not in")],
)  # fmt: skip
def test_an_index_from_0_of_vlmevalkit_is_a_position_unless_it_is_an_id(
    tmp_path, capsys, ids, says
):
    rows = [{"id": own, "image": "0.png", "time": f"{i + 1}:30"} for i, own in enumerate(ids)]
    path = write_lines(tmp_path / "rows.jsonl", rows)
    lines = [{"index": i, "prediction": text} for i, text in enumerate(TEXTS)]
    answers = write_lines(tmp_path / "answers.jsonl", lines[::-1])
    code = cli.main(["score", str(answers), "--rows", str(path), "--task", "clock"])
    assert says in capsys.readouterr().err
    assert code == (2 if len(ids) < 4 else 0)
    if not code:
        assert section(tmp_path)["metrics"]["exact"]["value"] == 0.5


def test_predictions_may_have_whole_numbers_as_ids(tmp_path):
    rows = [{"id": i, "text": "7:05", "target": "7:05", "task": "clock"} for i in range(3)]
    scores = score(write_lines(tmp_path / "p.jsonl", rows), write=False)
    assert [row["id"] for row in scores.rows] == ["0", "1", "2"]
    rows[2]["id"] = "1"
    with pytest.raises(ValueError, match="line 3: the id '1' appears twice"):
        score(write_lines(tmp_path / "p.jsonl", rows), write=False)


def coco_file(folder):
    images = [{"id": i, "file_name": f"{i}.jpg", "width": 100, "height": 50} for i in (7, 8)]
    boxes = [
        {"id": k, "image_id": 7, "category_id": 1, "bbox": [10 * k, 0, 5, 20], "iscrowd": 0}
        for k in range(3)
    ]
    names = [{"id": 1, "name": "cat"}]
    found = {"images": images, "annotations": boxes, "categories": names}
    (folder / "coco.json").write_text(json.dumps(found))
    return folder / "coco.json"


def test_the_task_and_its_options_come_from_what_prepare_wrote(tmp_path, capsys):
    rows = tmp_path / "rows.jsonl"
    assert cli.main(["prepare", "coco", str(coco_file(tmp_path)), "--out", str(rows)]) == 0
    ids = [json.loads(line)["id"] for line in rows.read_text().splitlines()]
    shapes = [{"bbox_2d": [10 * k, 0, 10 * k + 5, 20], "label": "cat"} for k in range(2)]
    lines = [
        {"id": ids[0], "text": json.dumps(shapes), "scores": [0.9, 0.8]},
        {"id": ids[1], "text": "[]"},
    ]
    answers = write_lines(tmp_path / "answers.jsonl", lines)
    (tmp_path / "frame.json").write_text(
        json.dumps({"resize": {"kind": "none"}, "coordinates": {"format": "json"}})
    )
    words = ["score", str(answers), "--rows", str(rows), "--frame", str(tmp_path)]
    assert cli.main(words) == 0
    assert "task detection" in capsys.readouterr().out
    results = section(tmp_path)
    assert results["task"] == "detection"
    assert results["metrics"]["recall_at_0.5"]["value"] == pytest.approx(2 / 3)
    assert cli.main([*words, "--protocol", "coco_ap"]) == 0
    assert "AP by the rules of COCO" in capsys.readouterr().out


def test_an_option_of_the_task_can_be_given(tmp_path):
    answers = [{"text": "Never", "label": 0}, {"text": "In 1990", "label": 1}]
    row = {"id": "q", "passage": "It was 1990.", "question": "When?", "answers": answers}
    path = write_lines(tmp_path / "rows.jsonl", [row])
    lines = [{"id": "q.0", "text": "No."}, {"id": "q.1", "text": "no"}]
    texts = write_lines(tmp_path / "answers.jsonl", lines)
    words = ["score", str(texts), "--rows", str(path), "--task", "multirc"]
    assert cli.main([*words, "--option", "answer=yes_no"]) == 0
    scored = [json.loads(line) for line in (tmp_path / "answers.jsonl.scores.jsonl").open()]
    assert [row["parsed"]["chosen"] for row in scored] == ["no", "no"]
    assert cli.main(words) == 2  # without the option, the row is one question


def clocks_scored(folder, lines, **options):
    answers = write_lines(folder / "answers.jsonl", lines)
    rows = PreparedRows(path=options.pop("path", None) or clock_rows(folder), **options)
    return score(answers, task_name="clock", rows=rows, write=False)


ANSWERS = [{"id": i + 1, "text": text} for i, text in enumerate(TEXTS)]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            [*ANSWERS, {"id": 9, "text": ""}, {"id": 10, "text": ""}],
            r"answers\.jsonl, line 5: the id '9' is not in .*rows\.jsonl \(ids such as '1'\), and "
            r"so for 2 of 6 answers; give the rows that were answered, or name the field",
        ),
        (
            ANSWERS[:1],
            r"rows\.jsonl, line 2: no answer to '2' in .*answers\.jsonl, and so for 3 of 4 quest",
        ),
        (
            [*ANSWERS, ANSWERS[1], ANSWERS[3]],
            r"answers\.jsonl, line 5: a second answer to the question '2'; 2 of 6 answers are to",
        ),
        (
            [{"doc_id": i, "resps": [["1:30"]]} for i in range(2, 6)],
            r"line 3: the position 4 is not in .*rows\.jsonl .* and so for 2 of 4 answers",
        ),
        (
            [{"predict": "1:30"}] * 3,
            r"answers\.jsonl: 3 answers without an id, but .*rows\.jsonl has 4 questions; give",
        ),
        (
            [{"response": "1:30", "images": ["/data/0.png"]}] * 4,
            r"line 2: the image is that of the question '1', but the question at the same position "
            r"in .*rows\.jsonl is '2', and so for up to 3 of 4 answers; give the rows in the order",
        ),
    ],
)
def test_a_join_that_is_not_one_to_one_is_one_sentence_with_counts(tmp_path, lines, message):
    with pytest.raises(ValueError, match=message):
        clocks_scored(tmp_path, lines)


def test_the_last_answer_to_each_question_can_be_kept(tmp_path):
    answers = write_lines(tmp_path / "answers.jsonl", [*ANSWERS, {"id": 3, "text": "3:30"}])
    words = ["score", str(answers), "--rows", str(clock_rows(tmp_path)), "--task", "clock"]
    assert cli.main(words) == 2
    assert cli.main([*words, "--keep", "last"]) == 0
    results = section(tmp_path)
    assert (results["rows"], results["metrics"]["exact"]["value"]) == (4, 0.75)


def test_rows_that_cannot_be_scored_are_one_sentence(tmp_path):
    path = clock_rows(tmp_path)
    path.write_text(path.read_text() * 2)
    with pytest.raises(ValueError, match=r"line 5: the id '1' is already used in .*line 1; give"):
        clocks_scored(tmp_path, ANSWERS, path=path)
    with pytest.raises(ValueError, match=r"none\.jsonl: there is no such file"):
        clocks_scored(tmp_path, ANSWERS, path=tmp_path / "none.jsonl")
    path.write_text("")
    with pytest.raises(ValueError, match=r"rows\.jsonl: no rows with a question"):
        clocks_scored(tmp_path, ANSWERS, path=path)
    row = {"id": "1", "passage": "It was 1990.", "question": "When?", "answers": [{"text": "Now"}]}
    rows = PreparedRows(path=write_lines(path, [row]))
    answers = write_lines(tmp_path / "answers.jsonl", ANSWERS[:1])
    with pytest.raises(ValueError, match=r"line 1: no correct answer .*, and so for 1 of 1 quest"):
        score(answers, task_name="multirc", rows=rows, write=False)


def test_a_task_that_is_not_known_is_one_sentence(tmp_path):
    answers = write_lines(tmp_path / "answers.jsonl", ANSWERS)
    rows = PreparedRows(path=clock_rows(tmp_path))
    with pytest.raises(ValueError, match=r"rows\.jsonl: the rows do not contain the task; name it"):
        score(answers, rows=rows, write=False)
    rows = PreparedRows(path=rows.path, options={"dial": 1})
    with pytest.raises(ValueError, match="--option: there is no setting 'dial'"):
        score(answers, task_name="clock", rows=rows, write=False)


def test_rows_without_an_image_size_are_counted(tmp_path):
    path = box_rows(tmp_path, 4, sized=False, images=False)
    answers = write_lines(
        tmp_path / "a.jsonl", [{"id": i, "text": "[0, 0, 9, 9]"} for i in range(4)]
    )
    rows = PreparedRows(path=path, frame=FrameRule.named("pixels_original"))
    with pytest.raises(
        ValueError,
        match=r"rows\.jsonl, line 1: no image size \(there is no image .*0\.png or .*\), and so "
        r"for 4 of 4 questions; add width and height to the rows, or name the folder",
    ):
        score(answers, task_name="grounding", rows=rows, write=False)
    (tmp_path / "elsewhere").mkdir()
    box_rows(tmp_path / "elsewhere", 4)
    rows = PreparedRows(path=path, frame=rows.frame, images=str(tmp_path / "elsewhere"))
    assert len(score(answers, task_name="grounding", rows=rows, write=False).rows) == 4


def test_coordinates_without_a_frame_are_one_sentence(tmp_path):
    rows = PreparedRows(path=box_rows(tmp_path, 1, images=False))
    answers = write_lines(tmp_path / "a.jsonl", [{"id": 0, "text": "[0, 0, 9, 9]"}])
    with pytest.raises(ValueError, match="which depend on the model; name it with --family"):
        score(answers, task_name="grounding", rows=rows, write=False)


def test_an_image_that_the_family_cannot_resize_is_one_sentence(tmp_path):
    row = {"id": 0, "image": "a.png", "phrase": "a", "box": [0, 0, 1, 1], "width": 999, "height": 2}
    path = write_lines(tmp_path / "rows.jsonl", [row])
    answers = write_lines(tmp_path / "a.jsonl", [{"id": 0, "text": "[0, 0, 9, 9]"}])
    rows = PreparedRows(path=path, frame=FrameRule.of_family("qwen2_vl"))
    with pytest.raises(ValueError, match=r"rows\.jsonl, line 1: .*aspect ratio above 200; remove"):
        score(answers, task_name="grounding", rows=rows, write=False)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--family", "llava"], "--family requires --rows, the file of the rows"),
        (["--max-pixels", "9"], "--max-pixels requires --rows"),
        (["--rows", "r.jsonl", "--max-pixels", "9"], "--image-max-pixels require --family"),
        (["--rows", "r.jsonl", "--truth", "t.zip"], "a.jsonl: --truth is for detections"),
        (["--rows", "r.jsonl", "--option", "list"], "list: write an override as name.of.setting"),
    ],
)
def test_options_that_do_not_fit_together_are_one_sentence(words, message, capsys):
    assert cli.main(["score", "a.jsonl", *words]) == 2
    assert message in capsys.readouterr().err


def test_rows_and_truth_both_name_the_targets(capsys):
    assert cli.main(["score", "a.json", "--rows", "r.jsonl", "--truth", "t.json"]) == 2
    message = "--rows and --truth name the correct answers; keep one of them."
    assert message in capsys.readouterr().err


def test_texts_that_a_spreadsheet_truncated_are_reported(tmp_path, monkeypatch, capsys):
    from mm_numeric.evaluation.answers import files as answer_files

    rows = [("row 2", {"id": "1", "text": "1" * 32_767}), ("row 3", {"id": "2", "text": "1:30"})]
    monkeypatch.setattr(answer_files, "read_sheet", lambda path: iter(rows))
    path = clock_rows(tmp_path, 2)
    assert (
        cli.main(["score", str(tmp_path / "a.xlsx"), "--rows", str(path), "--task", "clock"]) == 0
    )
    assert (
        "truncated answers: 1; a cell of .xlsx holds at most 32767 characters"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize("name", ROWS)
def test_tasks_without_coordinates_score_the_same(tmp_path, name):
    path, task = written_rows(name, tmp_path, 8), task_class(name, "test")()
    examples = load_examples(task, DataSource(path=str(path)), tmp_path, training=False)
    lines = [
        {
            "id": example.id,
            "image": example.image and str(example.image.resolve()),
            "text": task.format(example.answer).text if i % 3 else f"I think {i}.",
            "target": task.record(example.answer),
            "prompt": example.prompt,
            "buckets": dict(example.buckets),
            "task_options": {option: task.options()[option] for option in task.reads_by},
        }
        for i, example in enumerate(examples)
    ]
    ours = score(write_lines(tmp_path / "predictions.jsonl", lines), task_name=name, write=False)
    answers = [{"id": line["id"], "text": line["text"]} for line in lines]
    theirs = score(
        write_lines(tmp_path / "answers.jsonl", answers),
        task_name=name,
        rows=PreparedRows(path=path),
        write=False,
    )
    assert theirs.rows == ours.rows
    assert theirs.metrics() == ours.metrics()
    assert theirs.buckets() == ours.buckets()


def test_a_message_about_the_task_names_the_option_of_score(tmp_path, capsys):
    row = {"id": "1", "image": "a.png", "instances": [{"box": [1, 2, 3, 4], "label": "mouse"}]}
    rows = write_lines(tmp_path / "rows.jsonl", [row])
    answers = write_lines(tmp_path / "answers.jsonl", [{"id": "1", "text": "[]"}])
    words = ["score", str(answers), "--rows", str(rows), "--task", "detection", "--option"]
    assert cli.main([*words, "classes=[cup]"]) == 2
    said = capsys.readouterr().err
    assert "set task.other_labels to drop. `score` sets task.NAME with --option NAME=VALUE." in said
