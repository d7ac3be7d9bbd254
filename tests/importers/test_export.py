"""Data sets for other tools: read back, and compared with what these tools compute."""

import json
import re

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from importing import json_file, make_image, outcome

from mm_numeric.answers import Box, Instance, Instances
from mm_numeric.api import prepare
from mm_numeric.cli.main import main
from mm_numeric.geometry.frame_presets import FAMILY_RESIZES, AreaLimits, FrameRule
from mm_numeric.importers.export import Target
from mm_numeric.importers.export_texts import _with_placeholders
from mm_numeric.importers.llava import LlavaImporter
from mm_numeric.tasks.detection import Detection
from mm_numeric.tasks.text_detection import TextDetection

W, H = 640, 480
CAR, HELMET = [48.5, 90, 322.25, 350.125], [400.1, 7.3, 640, 201.7]
QUAD = [10, 20, 300, 40, 280, 200.5, 15, 190]
LABELLED = [{"box": CAR, "label": "red car"}, {"box": HELMET, "label": 'a "b"'}]
WORDS = [{"polygon": QUAD}, {"box": CAR}]


def export(folder, tool, *rows, task="detection", family=None, name="rows", **target):
    """Prepare rows for a tool; return its folder."""
    make_image(folder / "images" / "1.jpg", (W, H))
    default = {"id": "7", "image": "1.jpg"}
    raw = json_file(folder / "raw.jsonl", [{**default, **row} for row in rows])
    frame = FrameRule.of_family(family) if family else None
    to = Target(tool=tool, frame=frame, images=str(folder / "images"), **target)
    own = {"images": folder / "images", "task": task}
    prepare("rows", raw, folder / f"{name}.jsonl", force=True, to=to, **own)
    return folder / f"{name}.{tool}"


def lines(file):
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def answer(row):
    messages = row.get("messages") or row["prompt"] + row["completion"]
    return messages[-1]["content"]


def assert_near(numbers, original, frame):
    """Numbers moved by at most one step of the coordinates: half a step, or a whole one at an edge.

    An edge is a step away from the last number of Qwen2.5-VL, and of formats that round down.
    """
    for i, (number, exact) in enumerate(zip(numbers, original, strict=True)):
        assert abs(number - exact) <= frame.step_px[i % 2] + 1e-6


@pytest.mark.parametrize("family", FAMILY_RESIZES)
@pytest.mark.parametrize("tool", ["llamafactory", "trl", "ms-swift"])
def test_texts_are_read_back(tmp_path, tool, family):
    rows = [{"box": CAR, "label": "red car"}, {"box": HELMET, "label": "cat"}]
    folder = export(tmp_path, tool, {"instances": rows}, family=family)
    (row,) = lines(folder / "train.jsonl")
    assert row["images"] == [str(tmp_path / "images" / "1.jpg")]
    frame = FrameRule.of_family(family).frame(W, H)
    assert ("objects" in row) == (tool == "ms-swift" and family.startswith("qwen"))
    if "objects" in row:
        seen = frame.view.width_px, frame.view.height_px
        text = as_ms_swift((answer(row), row["objects"]), (W, H), seen, VERSIONS[family])
        shapes = {item.label: item.shape.points for item in frame.read(text).items}
        found = {label: [n for point in points for n in point] for label, points in shapes.items()}
    else:
        resize = FAMILY_RESIZES[family]
        sizes = {"factor": resize.factor, "side": resize.side}
        sizes |= {"min_pixels": resize.min_pixels, "max_pixels": resize.max_pixels}
        sizes = {name: value for name, value in sizes.items() if value}
        images = tmp_path / "images"
        options = {"coordinates": family, "resize": resize.kind, "per": "answer", "images": images}
        done = outcome(LlavaImporter(**options, **sizes), folder / "train.jsonl")
        found = {item["label"]: item["box"] for item in done.row["instances"]}
    for row in rows:
        assert_near(found[row["label"]], row["box"], frame)


def as_ms_swift(row, size, seen, version):
    """What ms-swift 4.6.0 trains on: normalize_bbox, replace_bbox and replace_ref."""
    boxes, refs = iter(row[1]["bbox"]), iter(row[1]["ref"])
    edges = seen if version == "v2_5" else (1000, 1000)

    def written(match):
        if match[0] == "<ref-object>":
            ref = next(refs)
            return f"<|object_ref_start|>{ref}<|object_ref_end|>" if version == "v2" else ref
        box = list(next(boxes))
        for i, (x, y) in enumerate(zip(box[::2], box[1::2], strict=True)):
            box[2 * i] = round(x / size[0] * edges[0])
            box[2 * i + 1] = round(y / size[1] * edges[1])
        points = ",".join(f"({x},{y})" for x, y in zip(box[::2], box[1::2], strict=True))
        return f"<|box_start|>{points}<|box_end|>" if version == "v2" else str(box)

    return re.sub("<bbox>|<ref-object>", written, row[0])


SHARES = st.lists(st.tuples(*[st.floats(0, 1)] * 4), max_size=4)
VERSIONS = {"qwen2_vl": "v2", "qwen2_5_vl": "v2_5", "qwen3_vl": "v3"}


@given(st.sampled_from(sorted(VERSIONS)), st.integers(28, 4000), st.integers(28, 3000), SHARES)
@examples(200)
def test_ms_swift_writes_the_text_of_the_family(family, width, height, shares):
    if max(width, height) > 200 * min(width, height):
        return
    frame = FrameRule.of_family(family).frame(width, height)
    edges = (width, height) * 2
    boxes = [Box(*(u * edge for u, edge in zip(four, edges, strict=True))) for four in shares]
    labels = ["", "red car", 'a "b\\', "é"]
    items = tuple(Instance(box, label) for box, label in zip(boxes, labels, strict=False))
    text = Detection(order="rows").format(Instances(items), frame).text
    row = _with_placeholders(text, frame)
    assert row[0].count("<bbox>") == len(boxes) == len(row[1]["bbox"])
    seen = frame.view.width_px, frame.view.height_px
    assert as_ms_swift(row, (width, height), seen, VERSIONS[family]) == text
    for box, numbers in zip(boxes, row[1]["bbox"], strict=True):
        assert_near(numbers, [n for point in box.points for n in point], frame)


@given(st.integers(28, 4000), st.integers(28, 3000), SHARES, st.integers(100, 5000))
@examples(100)
def test_ms_swift_on_smaller_images(width, height, shares, tokens):
    """``MAX_PIXELS`` of the training is smaller than that of the rows."""
    if max(width, height) > 100 * min(width, height):
        return
    frame = FrameRule.of_family("qwen2_5_vl").frame(width, height)
    limits = AreaLimits(max_pixels=784 * tokens)
    smaller = FrameRule.of_family("qwen2_5_vl", limits).frame(width, height)
    edges = (width, height) * 2
    boxes = [Box(*(u * edge for u, edge in zip(four, edges, strict=True))) for four in shares]
    row = _with_placeholders(frame.write(map(Instance, boxes)).text, frame)
    seen = smaller.view.width_px, smaller.view.height_px
    found = re.findall(r"-?\d+(?=[,\]])", as_ms_swift(row, (width, height), seen, "v2_5"))
    wanted = re.findall(r"-?\d+(?=[,\]])", smaller.write(map(Instance, boxes)).text)
    for number, own in zip(found, wanted, strict=True):
        assert abs(int(number) - int(own)) <= 1


def test_points_of_ms_swift(tmp_path):
    row = {"phrase": "cars", "points": [[320, 120], [16, 40]]}
    folder = export(tmp_path, "ms-swift", row, task="pointing", family="qwen2_5_vl")
    (row,) = lines(folder / "train.jsonl")
    assert answer(row) == '[{"point_2d": <bbox>}, {"point_2d": <bbox>}]'
    assert row["messages"][0]["content"] == "<image>Point at: cars"
    frame = FrameRule.of_family("qwen2_5_vl").frame(W, H)
    points = row["objects"]["bbox"]
    assert_near([n for point in points for n in point], [16, 40, 320, 120], frame)


@pytest.mark.parametrize("family", FAMILY_RESIZES)
@pytest.mark.parametrize("tool", ["llamafactory", "ms-swift"])
def test_polygons_stay_text(tmp_path, tool, family):
    words = [{"polygon": QUAD}]
    options = {"task": "text_detection", "family": family}
    folder = export(tmp_path, tool, {"instances": words}, **options)
    (row,) = lines(folder / "train.jsonl")
    frame = FrameRule.of_family(family).frame(W, H)
    (item,) = TextDetection().parse(answer(row), frame).items
    assert_near([n for point in item.shape.points for n in point], QUAD, frame)


def test_a_mixed_answer_of_ms_swift(tmp_path):
    options = {"task": "text_detection", "family": "qwen3_vl"}
    folder = export(tmp_path, "ms-swift", {"instances": WORDS}, **options)
    (row,) = lines(folder / "train.jsonl")
    assert '"poly_2d": [16, 42' in answer(row)
    assert '{"bbox_2d": <bbox>}' in answer(row)
    assert len(row["objects"]["bbox"]) == 1


def test_words_keep_their_texts(tmp_path):
    words = {"instances": [{"box": [16, 40, 320, 120], "text": 'A "B"'}]}
    options = {"task": "text_spotting", "family": "qwen3_vl"}
    (row,) = lines(export(tmp_path, "ms-swift", words, **options) / "train.jsonl")
    assert answer(row) == '[{"bbox_2d": <bbox>, "text_content": "A \\"B\\""}]'
    assert row["objects"]["ref"] == []


def test_the_questions(tmp_path):
    row = {"question": "2 + 2?", "answer": 4}
    folder = export(tmp_path, "llamafactory", {**row, "image": None}, task="numbers")
    (found,) = lines(folder / "train.jsonl")
    user, assistant = found["messages"]
    assert "2 + 2?" in user["content"]
    assert "<image>" not in user["content"]
    assert (assistant["content"], found["images"], found["id"]) == ("4", [], "7")
    info = json.loads((folder / "dataset_info.json").read_text(encoding="utf-8"))
    assert info["rows"]["file_name"] == "train.jsonl"


def test_several_images_are_where_the_prompt_names_them(tmp_path):
    make_image(tmp_path / "images" / "2.jpg", (W, H))
    spans = {"frames": ["1.jpg", "2.jpg"], "fps": 1, "query": "x", "spans": [[0, 1]], "duration": 2}
    one = {"task": "temporal_spans", "image": None}
    rows = {"llamafactory": "<image>", "trl": {"type": "image"}}
    for tool, mark in rows.items():
        folder = export(tmp_path, tool, {**one, **spans, "image": None}, task="temporal_spans")
        (found,) = lines(folder / "train.jsonl")
        content = (found.get("messages") or found["prompt"])[0]["content"]
        assert content.count(mark) == len(found["images"]) == 2


def test_llamafactory_shrinks_images_first(tmp_path):
    make_image(tmp_path / "images" / "big.jpg", (2000, 1000))
    row = {"image": "big.jpg", "instances": [{"box": [200, 100, 1000, 500], "label": "car"}]}
    folder = export(tmp_path, "llamafactory", row, family="qwen2_5_vl")
    rule = FrameRule.of_family("qwen2_5_vl", AreaLimits(image_max_pixels=768 * 768))
    (item,) = rule.frame(2000, 1000).read(answer(lines(folder / "train.jsonl")[0])).items
    assert (item.shape.x1, item.shape.y2) == pytest.approx((200, 500), abs=2)
    assert rule.frame(2000, 1000).view.width_px == 1092  # of 2000


ANSWERS = {"instances": LABELLED}
GROUNDED = {"phrase": "car", "box": CAR}


@pytest.mark.parametrize(
    ("tool", "row", "options", "message"),
    [
        ("swift", ANSWERS, {}, "--to: there is no tool 'swift'. Did you mean 'ms-swift'"),
        ("trl", ANSWERS, {}, "answers of the task 'detection' are coordinates"),
        (
            "ms-swift",
            {"instances": [{"box": CAR, "label": "<bbox>"}]},
            {"family": "qwen3_vl"},
            "rows.jsonl, line 1: its text has <bbox>, which ms-swift 4.6.0 replaces",
        ),
        ("trl", ANSWERS, {"family": "chat"}, "there is no model family with images 'chat'"),
        ("trl", ANSWERS, {"options": {"shap": "box"}, "family": "llava"}, "no setting 'shap'"),
        ("trl", {"instances": [{"box": CAR}]}, {}, "the rows are for several tasks; name one"),
    ],
)
def test_what_cannot_be_written(tmp_path, tool, row, options, message):
    with pytest.raises(ValueError, match=message):
        export(tmp_path, tool, row, **options)
    assert not list(tmp_path.glob("rows.*/"))


def test_images_that_cannot_be_written(tmp_path):
    make_image(tmp_path / "images" / "turned.jpg", (H, W), turned=True)
    row = {**GROUNDED, "image": "turned.jpg"}
    options = {"task": "grounding", "family": "qwen2_vl"}
    for tool in ("ms-swift", "llamafactory"):
        with pytest.raises(ValueError, match=r"line 1: .*rotated by its EXIF orientation, which"):
            export(tmp_path, tool, row, **options)
    export(tmp_path, "trl", row, **options)
    make_image(tmp_path / "images" / "tiny.jpg", (40, 20))
    row = {"phrase": "car", "box": [1, 1, 9, 9], "image": "tiny.jpg"}
    with pytest.raises(
        ValueError, match=r"40 x 20 pixels is one that LLaMA-Factory 0\.9\.5 enlarges"
    ):
        export(tmp_path, "llamafactory", row, task="grounding", family="qwen2_5_vl")


def test_a_folder_is_replaced_only_with_force(tmp_path):
    folder = export(tmp_path, "trl", ANSWERS, family="qwen3_vl")
    assert export(tmp_path, "trl", ANSWERS, family="qwen3_vl") == folder
    with pytest.raises(ValueError, match=r"rows.trl exists; name another --out"):
        Target(tool="trl").check(tmp_path / "rows.jsonl", force=False)


def test_files_that_were_added_to_a_folder_are_not_deleted(tmp_path):
    added = export(tmp_path, "trl", ANSWERS, family="qwen3_vl") / "runs/best.pt"
    added.parent.mkdir()
    added.write_bytes(b"own")
    with pytest.raises(ValueError, match=r"rows.trl/.* is not of `prepare`, and --force would"):
        export(tmp_path, "trl", ANSWERS, family="qwen3_vl")
    assert added.read_bytes() == b"own"


def test_a_corrected_command_needs_no_force(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    common = [source_file(tmp_path), "--images", "images", "--out", "train.jsonl"]
    assert run("rows", *common, "--to", "trl") == 2
    assert "name it with --family (such as qwen3_vl)" in capsys.readouterr().err
    assert run("rows", *common, "--to", "trl", "--family", "qwen3_vl") == 0


def test_another_task_than_that_of_the_rows(tmp_path):
    options = {"name": "text_detection", "prompt": "Words?"}
    folder = export(tmp_path, "trl", ANSWERS, options=options, family="qwen3_vl")
    (row,) = lines(folder / "train.jsonl")
    assert row["prompt"][0]["content"] == "Words?"
    assert "label" not in answer(row)


def run(*words):
    return main(["prepare", *map(str, words)])


def source_file(folder):
    """Write one row with its image."""
    make_image(folder / "images" / "1.jpg", (W, H))
    return json_file(folder / "source.jsonl", [{"id": "3", "image": "1.jpg", **ANSWERS}])


def test_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    common = [source_file(tmp_path), "--images", "images", "--out", "train.jsonl"]
    detection = ["--task", "detection"]
    assert run("rows", *common, "--to", "ms-swift", "--family", "qwen2_5_vl", *detection) == 0
    environment = "QWENVL_BBOX_FORMAT=new MIN_PIXELS=3136 MAX_PIXELS=12845056"
    used = f"ms-swift 4.6.0: {environment} swift sft --dataset train.ms-swift/train.jsonl"
    assert capsys.readouterr().out.splitlines()[-1] == used
    (row,) = lines(tmp_path / "train.ms-swift" / "train.jsonl")
    assert row["messages"][0]["content"].endswith('of these classes: a "b", red car.')
    assert (row["id"], row["images"]) == ("3", ["images/1.jpg"])

    options = ["--option", "prompt=Find {classes}!", "--force"]
    llava = ["--to", "llamafactory", "--family", "qwen2_5_vl"]
    assert run("rows", *common, *llava, *options) == 0
    used = "dataset_dir=train.llamafactory dataset=train media_dir=. image_max_pixels=589824"
    assert used in capsys.readouterr().out
    (row,) = lines(tmp_path / "train.llamafactory" / "train.jsonl")
    assert row["messages"][0]["content"] == '<image>Find a "b", red car!'

    framed = ["--force", "--to", "trl", "--frame", "relative_1000"]
    assert run("rows", *common, *framed) == 0
    assert 'load_dataset("json", data_files=' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--to", "swift"], "there is no choice 'swift'. Did you mean 'ms-swift'?"),
        (["--family", "qwen3_vl"], "--option are for rows of another tool; add --to."),
        (["--to", "trl", "--family", "florence"], "no model family with images 'florence'"),
        (["--to", "trl", "--max-pixels", "9"], "--image-max-pixels require --family"),
        (["--to", "trl", "--family", "llava", "--frame", "x"], "not allowed with argument"),
    ],
)
def test_words_of_the_command(tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    json_file(tmp_path / "rows.jsonl", [{"image": "1.jpg", "width": W, "height": H, **ANSWERS}])
    try:
        code = run("rows", "rows.jsonl", "--out", "out.jsonl", *words)
    except SystemExit as exit_:
        code = exit_.code
    assert code == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.glob("out*"))


def test_limits_of_the_input_are_not_those_of_the_model(tmp_path, monkeypatch):
    """``--max-pixels`` of the format ``llava`` is about the texts that are read."""
    monkeypatch.chdir(tmp_path)
    make_image(tmp_path / "1.jpg", (W, H))
    box = '"bbox_2d": [10, 20, 90, 99]'
    talk = [{"from": "human", "value": "car"}, {"from": "gpt", "value": box}]
    json_file(tmp_path / "talk.jsonl", [{"image": "1.jpg", "conversations": talk}])
    limits = ["--factor", 28, "--min-pixels", 3136, "--max-pixels", 78400]
    read = ["--coordinates", "qwen2_5_vl", "--resize", "smart", *limits, "--images", "."]
    words = ["llava", "talk.jsonl", "--out", "out.jsonl", *read, "--to", "trl"]
    assert run(*words, "--family", "qwen2_5_vl") == 0
    (row,) = lines(tmp_path / "out.trl" / "train.jsonl")
    (item,) = FrameRule.of_family("qwen2_5_vl").frame(W, H).read(answer(row)).items
    assert item.shape.x1 == pytest.approx(10 * W / 308, abs=1)  # 308: the width that was read
