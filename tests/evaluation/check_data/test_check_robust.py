"""The doctor goes on: what is odd about one row or one image is said, and ends nothing."""

from dataclasses import replace

import pytest
from check_data_runs import config_of, kinds
from PIL import Image
from rectangles import write_rectangles
from result_files import write_lines
from tiny_models import tiny_checkpoint

from mm_numeric.data.collator import make_collator
from mm_numeric.data.training_set import TrainingRows
from mm_numeric.evaluation.check_data.check import check_data
from mm_numeric.evaluation.check_data.html_page import write_check_page
from mm_numeric.evaluation.check_data.text import report_text
from mm_numeric.families.qwen2_vl import Qwen2VL
from mm_numeric.geometry.frames import Frame, Resize
from mm_numeric.models.loading import load_family


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


def test_an_image_that_is_too_large_to_be_decoded_is_one_fault(tmp_path, monkeypatch):
    config = config_of(tmp_path, write_rectangles(tmp_path / "rows", count=3))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    report = check_data(config, images=1)
    assert [*kinds(report).values()] == [3]
    assert "could be decompression bomb" in report_text(report)


def test_a_cut_off_image_behind_the_first_is_a_fault_that_the_page_finds(tmp_path):
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
