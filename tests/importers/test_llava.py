"""Conversations of LLaVA and ShareGPT: boxes in answers, in a frame that is declared."""

import pytest
from importing import examples, json_file, make_image, outcome

from mm_numeric.answers import Box, Instance
from mm_numeric.geometry.coordinates import COORDINATES
from mm_numeric.geometry.frames import Frame, Resize
from mm_numeric.importers.llava import LlavaImporter

LLAVA = {"coordinates": "llava", "resize": "letterbox", "size": "640x480"}
ASKED = "Please provide the bounding box coordinate of the region this sentence describes: {}."


def talk(*texts, image="1.jpg", **more):
    speakers = ("human", "gpt") * len(texts)
    turns = [{"from": s, "value": t} for s, t in zip(speakers, texts, strict=False)]
    return {"id": "7", "image": image, "conversations": turns, **more}


def llava(tmp_path, *rows, ending=".json", **options):
    path = json_file(tmp_path / f"talk{ending}", list(rows))
    return outcome(LlavaImporter(**{**LLAVA, **options}), path)


def test_boxes_of_the_padded_square(tmp_path):
    row = talk("<image>\nWhere is the man?", "[0.125, 0.250, 0.5, 0.75]", "And?", "He is old.")
    done = llava(tmp_path, row)
    assert done.row == {
        "id": "talk.1.1",
        "image": "1.jpg",
        "width": 640,
        "height": 480,
        "phrase": "Where is the man?",
        "box": [80, 80, 320, 400],  # 80 pixels were padded above
    }
    assert done.left_out == {"answers without a box": 1}
    assert not done.bad


def test_boxes_of_the_image_as_it_is(tmp_path):
    for resize in ("none", "squash"):
        done = llava(tmp_path, talk("a", "[0.125, 0.25, 0.5, 0.75]"), resize=resize)
        assert done.row["box"] == [80, 120, 320, 360]


@pytest.mark.parametrize(
    ("coordinates", "options"),
    [
        ("qwen2_5_vl", {"resize": "smart", "factor": 28, "min_pixels": 3136, "max_pixels": 200704}),
        (
            "qwen2_5_vl",
            {"resize": "smart", "factor": 32, "min_pixels": 500000, "max_pixels": 900000},
        ),
        ("pixels_resized", {"resize": "letterbox", "side": 336}),
        ("pixels_original", {"resize": None}),
        *((name, {"resize": "squash"}) for name in ("paligemma", "qwen2_vl", "qwen3_vl", "gemma3")),
        *((name, {"resize": "letterbox"}) for name in ("llava", "yi_vl", "unit_2", "relative_999")),
    ],
)
def test_what_a_frame_writes_comes_back(tmp_path, coordinates, options):
    numbers = {"side": 448, **{k: v for k, v in options.items() if k != "resize"}}
    resize = Resize(kind=options["resize"] or "none", **numbers)
    frame = Frame(640, 480, resize.view(640, 480), COORDINATES[coordinates])
    box = Box(50, 100, 320, 350)
    answer = frame.write([Instance(box, "car")]).text
    row = talk("<image>car?", answer)
    done = llava(tmp_path, row, coordinates=coordinates, per="answer", **options)
    expected = frame.quantised(box)
    (instance,) = done.row["instances"]
    assert instance["box"] == pytest.approx([expected.x1, expected.y1, expected.x2, expected.y2])
    assert instance["label"] == "car"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"resize": None}, "refer to the resized image; set --resize"),
        ({"coordinates": "lava"}, "no coordinate format 'lava'. Did you mean 'llava'?"),
        ({"coordinates": "pixels_original"}, "to the original image; remove --resize letterbox"),
        ({"coordinates": "pixels_resized"}, "are pixels of the square; set its --side"),
        ({"resize": "smart", "factor": 28}, "needs --factor, --min-pixels and --max-pixels"),
        ({"resize": "smart", "factor": -28}, "--factor must be at least 1, not -28"),
        ({"question": "Where is it?"}, "--question needs {phrase} once"),
        ({"size": "640"}, "--size 640: write width and height in pixels, such as 640x480"),
    ],
)
def test_a_frame_is_declared(options, why):
    with pytest.raises(ValueError, match=r".") as error:
        LlavaImporter(**{**LLAVA, **options})
    assert why in str(error.value)


def test_a_phrase_is_cut_out_of_its_question(tmp_path):
    row = talk(ASKED.format("the man"), "[0.1, 0.3, 0.5, 0.6]", "Where else?", "[0, 0.2, 0.1, 0.3]")
    assert [r["phrase"] for r in llava(tmp_path, row).rows] == [
        ASKED.format("the man"),
        "Where else?",
    ]
    done = llava(tmp_path, row, question=ASKED.replace("{}", "{phrase}"))
    assert done.row["phrase"] == "the man"
    assert done.kinds == ["question"]
    assert "'Where else?' does not match the template --question" in done.why


def test_several_boxes(tmp_path):
    row = talk("All dogs?", "a dog [0.1, 0.3, 0.5, 0.6], a puppy [0.2, 0.3, 0.5, 0.6]")
    assert "2 boxes for one phrase; use --per answer" in llava(tmp_path, row).why
    done = llava(tmp_path, row, per="answer")
    assert done.row["question"] == "All dogs?"
    assert [i["label"] for i in done.row["instances"]] == ["a dog", "a puppy"]


def test_sizes(tmp_path):
    row = talk("a", "[0.1, 0.3, 0.5, 0.6]")
    make_image(tmp_path / "images" / "1.jpg", (300, 400))
    there = {"images": tmp_path / "images"}
    assert llava(tmp_path, row, **there).row["box"] == [-10, 120, 150, 240]
    assert llava(tmp_path, {**row, "width": 400, "height": 400}).row["box"] == [40, 120, 200, 240]
    wrong = {**row, "width": 400, "height": 300}
    assert "its declared size is 400 x 300" in llava(tmp_path, wrong, **there).why
    assert "its size is unknown; give --images" in llava(tmp_path, row, size=None).why
    assert "no image" in llava(tmp_path, talk("a", "[0, 0.2, 1, 1]", image="2.jpg"), **there).why


@pytest.mark.parametrize(
    ("row", "kind", "why"),
    [
        (talk("a", "[0.1, 0.3, 0.5]"), "box", "a box needs 4 numbers, not 3"),
        (talk("a", "[0.1, 0.3, 0.5, 0.6, 0.1, 0.3, 0.5]"), "box", "not 7"),
        (talk("a", "[0.1, 0.3, 0.5, 0.6] [0.1]"), "box", "not 1"),
        (talk("a", "[0.1, nan, 0.5, 0.6]"), "box", "incomplete box"),
        (talk("a", "[0.1, 1e-5, 0.5, 0.6]"), "box", "incomplete box"),
        (talk("a", "[0.1, 0.3, 0.5, 0.6"), "box", "truncated within a box"),
        (talk("a", "[0.5, 0.3, 0.1, 0.6]"), "box", "is reversed"),
        (talk("a", "[0.1, 0.3, 0.1, 0.6]"), "box", "has no area"),
        (
            talk("a", "[64, 100, 320, 350]"),
            "range",
            "64 is not within 0 to 1, as --coordinates llava",
        ),
        (talk("a", "[0.1, 0.3, 0.5, 1.2]"), "range", "1.2 is not within 0 to 1"),
        (talk("a", "[-0.1, 0.3, 0.1, 0.6]"), "range", "-0.1 is not within 0 to 1"),
        (talk("a", "[0.1, 0.3, 0.5, 0.6]", image=None), "image", "a box, but 0 images"),
        (talk("a", "[0.1, 0.3, 0.5, 0.6]", image=["1", "2"]), "image", "a box, but 2 images"),
        (talk("a", "[0.1, 0.3, 0.5, 0.6]", image=[7]), "text", "an image must be a non-empty text"),
        (talk("a", "[0.1, 0.3, 0.5, 0.6]", width=7), "image", "width 7 and height None are no"),
        (talk("<image>", "[0.1, 0.3, 0.5, 0.6]"), "question", "a box without a question"),
        (talk("a", None), "text", "message 1 must be a non-empty text, not None"),
        ({"image": "1.jpg"}, "messages", 'no list "conversations" or "messages"'),
        ({"conversations": [7]}, "messages", "message 0 is not an object: 7"),
        (
            {"conversations": [{"from": "me", "value": "a"}]},
            "messages",
            "message 0 has the role 'me'",
        ),
        (7, "json", "expected an object"),
    ],
)
def test_a_bad_conversation(tmp_path, row, kind, why):
    done = llava(tmp_path, row, talk("a", "[0.1, 0.3, 0.5, 0.6]"))
    assert done.kinds == [kind]
    assert why in done.why
    assert "row 1" in done.bad[0].where
    assert done.row["id"] == "talk.2.1"


def test_whole_numbers_are_whole(tmp_path):
    row = talk("a", "[0.1, 0.3, 0.5, 0.6]")
    done = llava(tmp_path, row, coordinates="relative_1000", resize="none")
    assert "0.1 is not an integer, as --coordinates relative_1000 requires" in done.why


def test_parentheses_are_counted_by_points(tmp_path):
    options = {"coordinates": "yi_vl"}
    assert llava(tmp_path, talk("a", "man (100,300),(500,600)"), **options).rows
    bad = llava(tmp_path, talk("a", "man (100,300),(500,x600) (1,200),(2,300)"), **options)
    assert bad.kinds == ["box"]


def test_a_line_that_is_not_json(tmp_path):
    path = json_file(tmp_path / "talk.jsonl", [talk("a", "[0.1, 0.3, 0.5, 0.6]")] * 2)
    path.write_text(path.read_text().replace("\n", '\n{"id"\n'), encoding="utf-8")
    done = outcome(LlavaImporter(**LLAVA), path)
    assert done.bad[0].where == f"{path}, line 2"
    assert done.why.startswith("not JSON (")
    assert [row["id"] for row in done.rows] == ["talk.1.1", "talk.3.1"]


def test_messages_with_roles(tmp_path):
    turns = [
        {"role": "system", "content": "Be good."},
        {"role": "user", "content": "the man"},
        {"role": "assistant", "content": "[0.1, 0.3, 0.5, 0.6]"},
    ]
    done = llava(tmp_path, {"messages": turns, "images": ["a.jpg"]}, ending=".jsonl")
    assert (done.row["phrase"], done.row["image"]) == ("the man", "a.jpg")


def test_the_task_reads_it(tmp_path):
    path = json_file(tmp_path / "talk.json", [talk("a", "[0.1, 0.3, 0.5, 0.6]")])
    (example,) = examples(LlavaImporter(**LLAVA), [path], tmp_path)
    assert example.prompt == "Locate: a"
    assert example.answer == Box(64, 112, 320, 304)


def test_boxes_of_another_format_name_the_option_that_reads_them(tmp_path):
    text = "<|object_ref_start|>man<|object_ref_end|><|box_start|>(493,169),(539,297)<|box_end|>"
    done = llava(tmp_path, talk("Where?", text, "And here?", "<box>[[1, 2, 3, 4]]</box>"))
    assert "use --coordinates qwen2_vl." in done.bad[0].why
    done = llava(tmp_path, talk("Where?", "<bbox>", objects={"ref": [], "bbox": [[1, 2, 3, 4]]}))
    assert "the boxes are in objects" in done.bad[0].why
