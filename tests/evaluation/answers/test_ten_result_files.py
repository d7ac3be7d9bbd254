"""Result files in the forms that other tools write are scored as they are, by one command."""

import json

import pytest
from PIL import Image
from result_files import section, write_lines

from mm_numeric.cli.main import main
from mm_numeric.evaluation.answers.detections import read_coco_results, read_coco_truth
from mm_numeric.io.files import read_rows

TIMES = ["7:05", "12:58", "3:00", "6:30"]
SAID = ["It is 7:05.", "12:58", "3:10", "?"]
"""The answers to questions with ``TIMES``: two of four are right."""

MATHVISTA = [
    {"question_type": "multi_choice", "answer_type": "text", "choices": ["red", "blue"],
     "answer": "blue", "precision": None},
    {"question_type": "free_form", "answer_type": "integer", "choices": None, "answer": "5",
     "precision": None},
    {"question_type": "free_form", "answer_type": "float", "choices": None, "answer": "1.2",
     "precision": 1},
]  # fmt: skip


def written(path, content):
    path.write_text(json.dumps(content, indent=2), encoding="utf-8")
    return path


def scored(path, *options):
    """Score a file by the command; return the section of results.json."""
    assert main(["score", str(path), *options]) == 0
    return section(path.parent, name=f"{path.name}.results.json")


def mathvista(folder):
    """Return the file of generate_response.py and calculate_score.py of MathVista."""
    texts = ["(B) blue", "The answer is 5.", "about 1.3"]
    rows = {
        str(i): {"pid": str(i), "question": "?", "image": f"images/{i}.jpg", "unit": None, **row,
                 "metadata": {"split": "testmini"}, "query": "Hint: ...", "response": text,
                 "extraction": text.split()[-1].strip("."), "prediction": "x", "true_false": False}
        for i, (row, text) in enumerate(zip(MATHVISTA, texts, strict=True), start=1)
    }  # fmt: skip
    return written(folder / "output_bard.json", rows), "--task=mathvista", "--target=answer"


def vlmevalkit(folder):
    """Return a table with the truth and the predictions, as .tsv."""
    lines = ["index\tquestion\tanswer\tprediction"]
    lines += [
        f'{i}\tWhat time is it?\t"{time}"\t"{said}"'
        for i, (time, said) in enumerate(zip(TIMES, SAID, strict=True))
    ]
    path = folder / "model_clocks.tsv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path, "--task=clock", "--target=answer"


def lmms_eval(folder):
    rows = [
        {"doc_id": i, "target": time, "input": "?", "filtered_resps": [said], "doc_hash": "0"}
        for i, (time, said) in enumerate(zip(TIMES, SAID, strict=True))
    ]
    path = write_lines(folder / "20260101_samples_clocks.jsonl", rows)
    return path, "--task=clock", "--target=target"


def lmms_eval_of_2024(folder):
    """Return the older file of lmms-eval: one object with the answers in ``logs``."""
    rows = [
        {"doc_id": i, "doc": {"question": "?"}, "target": time, "resps": [[said]]}
        for i, (time, said) in enumerate(zip(TIMES, SAID, strict=True))
    ]
    content = {"args": {"model": "m"}, "model_configs": {}, "logs": rows, "time": "0101"}
    return written(folder / "clocks.json", content), "--task=clock", "--target=target"


def llama_factory(folder):
    rows = [
        {"prompt": "user\n?", "predict": said, "label": time}
        for time, said in zip(TIMES, SAID, strict=True)
    ]
    path = write_lines(folder / "generated_predictions.jsonl", rows)
    return path, "--task=clock", "--target=label"


def ms_swift(folder):
    rows = [
        {"response": said, "labels": time, "logprobs": None, "images": [{"path": f"/d/{i}.jpg"}],
         "messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": said}]}
        for i, (time, said) in enumerate(zip(TIMES, SAID, strict=True))
    ]  # fmt: skip
    return write_lines(folder / "20260101.jsonl", rows), "--task=clock", "--target=labels"


def lm_eval(folder):
    """Return samples of gsm8k: each question once for each filter, with the same raw responses."""
    texts = ["2 + 3 = 5\n#### 5", "So it is 8.\n#### 8", "#### 12", "I give up."]
    rows = [
        {"doc_id": i, "doc": {"question": "?", "answer": f"So it is {n}.\n#### {n}"},
         "target": f"So it is {n}.\n#### {n}", "resps": [[text]], "filtered_resps": [text[-2:]],
         "filter": name, "exact_match": 0.0}
        for name in ("strict-match", "flexible-extract")
        for i, (n, text) in enumerate(zip((5, 8, 13, 4), texts, strict=True))
    ]  # fmt: skip
    return write_lines(folder / "samples_gsm8k.jsonl", rows), "--task=gsm8k", "--target=target"


def plain_list(folder):
    rows = [
        {"id": i, "text": said, "truth": {"time": time}}
        for i, (time, said) in enumerate(zip(TIMES, SAID, strict=True))
    ]
    return written(folder / "answers.json", rows), "--task=clock", "--target=truth.time"


def metrics_and_details(folder):
    rows = [
        {"qid": f"q{i}", "output": said, "gold": time}
        for i, (time, said) in enumerate(zip(TIMES, SAID, strict=True))
    ]
    content = {"metrics": {"acc": 0.5}, "details": rows}
    path = written(folder / "eval.json", content)
    return path, "--task=clock", "--target=gold", "--text=output", "--id=qid"


@pytest.mark.parametrize(
    ("tool", "metric", "value"),
    [
        (mathvista, "official", 2 / 3),
        (vlmevalkit, "exact", 0.5),
        (lmms_eval, "exact", 0.5),
        (lmms_eval_of_2024, "exact", 0.5),
        (llama_factory, "exact", 0.5),
        (ms_swift, "exact", 0.5),
        (lm_eval, "accuracy", 0.5),
        (plain_list, "exact", 0.5),
        (metrics_and_details, "exact", 0.5),
    ],
)
def test_a_file_with_its_truth_is_scored_as_it_is(tmp_path, tool, metric, value):
    path, *options = tool(tmp_path)
    found = scored(path, *options)
    assert found["metrics"][metric]["value"] == pytest.approx(value)
    assert found["rows"] == found["rows_due"] == (3 if tool is mathvista else 4)


def test_boxes_of_vlm_r1_are_in_pixels_of_the_image(tmp_path):
    """The size of an image is that of its file. A truth in numbers is in pixels of the image."""
    Image.new("RGB", (640, 480)).save(tmp_path / "a.jpg")
    rows = [
        {"image": "a.jpg", "question": "the man", "ground_truth": [64, 48, 320, 240],
         "model_output": f"<answer>{said}</answer>", "extracted_answer": None, "correct": 0}
        for said in ("[100, 100, 500, 500]", "[0, 0, 50, 50]")
    ]  # fmt: skip
    path = written(tmp_path / "rec_results.json", {"accuracy": 50.0, "results": rows})
    options = ["--task=grounding", "--target=ground_truth"]
    found = scored(path, *options, "--frame=relative_1000")
    assert found["metrics"]["accuracy_at_0.5"]["value"] == 0.5
    assert found["metrics"]["mean_iou"]["value"] == pytest.approx(0.5)
    assert found["groups"] == 1


def test_a_text_as_truth_is_read_like_the_answers(tmp_path):
    rows = [{"predict": "[100, 100, 500, 500]", "label": "[100, 100, 500, 500]", "width": 640,
             "height": 480}]  # fmt: skip
    path = write_lines(tmp_path / "generated_predictions.jsonl", rows)
    found = scored(path, "--task=grounding", "--target=label", "--frame=relative_1000")
    assert found["metrics"]["mean_iou"]["value"] == 1


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ({"a": [{"x": 1}], "b": [{"x": 1}]}, ["--target=t"], "several lists of objects (a, b); na"),
        ({"a": [{"text": "1:00"}], "b": [{"x": 1}]}, ["--target=t", "--list=a"], "no correct answ"),
        ({"a": [{"text": "1:00"}], "b": []}, ["--target=t", "--list=c"], "'c' is no list of obje"),
        ([{"text": "1:00", "t": "noon"}], ["--target=t"], "t 'noon' is no correct answer of the"),
        ([{"id": 1, "text": "1:00", "t": "1:00"}] * 2, ["--target=t"], "a second answer to the qu"),
        ([{"text": "1:00"}], [], "or the field of the correct answers with --target; for COCO"),
        ([{"text": "1:00"}], ["--id=id"], "--id requires --rows, the file of the rows that were"),
        ([], ["--target=t", "--rows=r"], "--rows and --target name the correct answers; keep one"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(tmp_path, capsys, rows, options, message):
    path = written(tmp_path / "answers.json", rows)
    assert main(["score", str(path), "--task=clock", *options]) == 2
    assert message in capsys.readouterr().err


def test_a_box_without_an_image_size_names_the_remedy(tmp_path, capsys):
    path = write_lines(tmp_path / "a.jsonl", [{"predict": "[1, 2, 3, 4]", "label": "[1, 2, 3, 4]"}])
    options = ["--task=grounding", "--target=label", "--frame=relative_1000"]
    assert main(["score", str(path), *options]) == 2
    said = "no image size (no image in images.0, image, image_path), and so for 1 of 1"
    assert said in capsys.readouterr().err


def test_an_object_by_id_has_its_keys_as_ids(tmp_path):
    path = written(tmp_path / "a.json", {"x": {"text": "1"}, "y": {"text": "2", "id": "own"}})
    assert [row["id"] for _, row in read_rows(path)] == ["x", "own"]


TRUTH = {
    "images": [
        {"id": 7, "file_name": "val/000000000042.jpg", "width": 99, "height": 99},
        {"id": 8, "file_name": "val/IMG_7.jpg", "width": 99, "height": 99},
    ],
    "categories": [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}],
    "annotations": [
        {"id": 1, "image_id": 7, "category_id": 1, "bbox": [0, 0, 10, 10], "area": 100},
        {"id": 2, "image_id": 8, "category_id": 2, "bbox": [5, 5, 20, 20], "area": 400},
    ],
}


def detections(*image_ids, first=1):
    """Return results that are all right, as Ultralytics, Detectron2 and MMDetection write them."""
    return [
        {"image_id": image, "category_id": first + i, "bbox": row["bbox"], "score": 0.9 - i / 8}
        for i, (image, row) in enumerate(zip(image_ids, TRUTH["annotations"], strict=True))
    ]


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        ((42, "IMG_7"), "image_id has names of image files, such as 42 for 7."),  # Ultralytics
        (("000000000042.jpg", "IMG_7.jpg"), "image_id has names of image files"),
        (("val/000000000042.jpg", "val/IMG_7"), "image_id has names of image files"),
        (("7", "8"), "image_id has ids of another type, such as '7' for 7."),
        ((7, 8), ""),  # Detectron2 and MMDetection
    ],
)
@pytest.mark.parametrize("protocol", ["labelled", "coco_ap"])
def test_images_of_detections_may_be_names_of_files(tmp_path, logged, ids, said, protocol):
    truth = written(tmp_path / "truth.json", TRUTH)
    path = written(tmp_path / "predictions.json", detections(*ids))
    assert main(["score", str(path), f"--truth={truth}", f"--out={tmp_path}",
                 f"--protocol={protocol}"]) == 0  # fmt: skip
    metric = "f1_at_0.9" if protocol == "labelled" else "ap"
    found = section(tmp_path, protocol, name="predictions.json.results.json")
    assert found["metrics"][metric]["value"] == pytest.approx(1)
    assert said in logged.getvalue()
    assert (" has " in logged.getvalue()) == bool(said)


def test_a_truth_whose_ids_have_two_types_is_read_with_a_line(tmp_path, logged):
    rows = [{**row, "image_id": str(row["image_id"])} for row in TRUTH["annotations"]]
    rows = [{**row, "category_id": str(row["category_id"])} for row in rows]
    path = written(tmp_path / "truth.json", {**TRUTH, "annotations": rows})
    found = read_coco_truth(path)
    assert [(row["image_id"], row["category_id"]) for row in found["annotations"]] == [
        (7, 1),
        (8, 2),
    ]
    assert "image_id has ids of another type, such as '7' for 7." in logged.getvalue()
    assert "category_id has ids of another type, such as '1' for 1." in logged.getvalue()


def test_categories_from_0_are_named_as_the_cause(tmp_path, logged):
    path = written(tmp_path / "predictions.json", {"results": detections(7, 8, first=0)})
    assert len(read_coco_results(path, TRUTH)) == 2
    said = (
        "categories that the truth does not have: 0; they begin at 0, and those of the truth at 1"
    )
    assert said in logged.getvalue()


def test_a_name_of_two_images_is_not_guessed(tmp_path):
    images = [{**image, "file_name": f"{i}/a.jpg"} for i, image in enumerate(TRUTH["images"])]
    path = written(tmp_path / "predictions.json", detections("a.jpg", "a.jpg"))
    with pytest.raises(ValueError, match=r"'a\.jpg' is not in the ground truth, neither as an id "):
        read_coco_results(path, {**TRUTH, "images": images})
