"""Clicks of published models: read as their official parsers do, and written as they are asked for.

The parsers are those of likaixin2000/ScreenSpot-Pro-GUI-Grounding (models/qwen2_5vl.py), its fork
ZeonLap (models/aguvis.py), bytedance/UI-TARS (codes/ui_tars/action_parser.py), allenai/molmo2
(olmo/preprocessing/point_formatter.py) and IDEA-Research/Rex-Omni (rex_omni/parser.py).
"""

import ast
import gc
import json
import random
import re
import time
from dataclasses import replace

import pytest
import yaml
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from result_files import section

from mm_numeric.answers import Box, Instance, Instances, Polygon, Unreadable
from mm_numeric.cli import main as cli
from mm_numeric.config.reader import read_coordinates
from mm_numeric.geometry.click_formats import ClickFormat, find_points
from mm_numeric.geometry.conventions import CLICKS
from mm_numeric.geometry.coordinates import COORDINATE_FORMATS, COORDINATES
from mm_numeric.geometry.frame_presets import FrameRule
from mm_numeric.geometry.frames import Frame, Resize
from mm_numeric.tasks.detection import Detection
from mm_numeric.tasks.pointing import Click, Pointing

CLICK_FORMATS = [name for name, text in COORDINATE_FORMATS.items() if isinstance(text, ClickFormat)]


def tool_call(name, arguments):
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def left_click(x, y):
    return tool_call("left_click", f'{{"coordinate": [{x}, {y}]}}')


def code(x, y, more=""):
    return f"pyautogui.click(x={x}, y={y}){more}"


# Answers to ScreenSpot-Pro of Qwen2.5-VL (woodhalloween/ScreenSpot-Pro-GUI-Grounding, results/
# qwen25vl.json, qwen25vlsft.json, qwen25vldevice.json) and of Aguvis (ZeonLap, the same repository,
# results/aguvis.json), with the size of the image, the box, and the point and verdict in the file.
QHD, WIDE, TALL = (2560, 1440), (3840, 1080), (2160, 1440)
KEY = tool_call("key", '[{"text": "\\\\ue012"}]')
TYPE = tool_call("type", '{"text": "Feedback"}')
UNNAMED = tool_call("computer_use", '{"coordinate": [457, 68]}')
NAMED = tool_call("computer_use", '{"coordinate": [145, 70], "action": "click"}')
QWEN = [
    (QHD, left_click(450, 102), (337, 68, 538, 93), (452.119309, 102.857143), "wrong"),
    (QHD, left_click(406, 523), (298, 516, 547, 543), (407.912088, 527.394958), "correct"),
    (QHD, KEY, (1289, 329, 1311, 354), None, "wrong_format"),
    (QHD, TYPE, (889, 52, 917, 75), None, "wrong_format"),
    (QHD, left_click(120, 327), (0, 321, 268, 348), (120.565149, 329.747899), "correct"),
    (QHD, left_click(1216, 579), (1135, 572, 1282, 598), (1221.726845, 583.865546), "correct"),
    (WIDE, left_click(30, 104), (4, 94, 59, 119), (30.031283, 102.857143), "correct"),
    (WIDE, UNNAMED, (340, 57, 537, 80), (457.476538, 67.252747), "correct"),
    (WIDE, NAMED, (257, 144, 410, 165), (145.151199, 69.230769), "wrong"),
    (WIDE, left_click(102, 764), (117, 741, 135, 762), (102.106361, 755.604396), "wrong"),
]
WRITE = "\npyautogui.write(message='WF')"
AGUVIS = [
    (TALL, code(0.4476, 0.5215, WRITE), (926, 745, 1038, 764), (966.816, 750.96), "correct"),
    (TALL, code(0.503, 0.4015), (1008, 563, 1169, 579), (1086.48, 578.16), "correct"),
    (TALL, code(0.5475, 0.4975), (1143, 703, 1267, 716), (1182.6, 716.4), "wrong"),
    (QHD, code(0.5481, 0.188), (1297, 267, 1511, 289), (1403.136, 270.72), "correct"),
    (QHD, code(0.2165, 0.1583), (474, 190, 527, 250), (554.24, 227.952), "wrong"),
]


@pytest.mark.parametrize(
    ("published", "words"),
    [
        (QWEN, ["--frame", "pixels_resized", "--max-pixels", "12845056"]),
        (AGUVIS, ["--frame", "unit_3"]),
    ],
    ids=["qwen2_5_vl", "aguvis"],
)
def test_published_answers_have_their_published_verdicts(tmp_path, published, words):
    for name, line in {
        "rows.jsonl": lambda size, text, box: {"image": "a.png", "phrase": "OK", "box": box,
                                               "width": size[0], "height": size[1]},
        "answers.jsonl": lambda size, text, box: {"text": text},
    }.items():  # fmt: skip
        lines = [json.dumps({"id": str(i), **line(*p[:3])}) for i, p in enumerate(published)]
        (tmp_path / name).write_text("\n".join(lines), encoding="utf-8")
    words = ["--rows", str(tmp_path / "rows.jsonl"), "--task", "click", *words]
    assert cli.main(["score", str(tmp_path / "answers.jsonl"), *words]) == 0
    verdicts = [verdict for *_, verdict in published]
    metrics = section(tmp_path)["metrics"]
    assert metrics["accuracy"]["value"] == verdicts.count("correct") / len(verdicts)
    assert metrics["unreadable"]["value"] == verdicts.count("wrong_format") / len(verdicts)
    scored = (tmp_path / "answers.jsonl.scores.jsonl").read_text(encoding="utf-8").splitlines()
    for (*_, point, _), row in zip(published, map(json.loads, scored), strict=True):
        found = row["parsed"] and row["parsed"][0]["point"]
        assert found == (point and pytest.approx(point, abs=1e-6))


SIZE = (1000, 500)


def frame_of(coordinates, size=SIZE, resize=None):
    resize = resize or Resize(kind="none")
    return Frame(*size, resize.view(*size), coordinates)


PIXELS = frame_of(COORDINATES["pixels_original"])


def clicked(text, frame=PIXELS):
    """Return the point of the first click in a text, or the reason why there is none."""
    found = Click().read(text, frame)
    return found.reason if isinstance(found, Unreadable) else found.items[0].shape.points[0]


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "computer_use", "arguments": {"action": "left_click", "coordinate": [500, 250]}}',
        '{"name": "mobile_use", "arguments": {"coordinate": [500, 250], "action": "click"}}',
        '{"action": "left_click", "coordinate": [500, 250]}',
        '{"action": "type", "text": "a } \\" {", "coordinate": [500.0, 250.0]}',
        '{"name": "computer_use", "arguments": {"coordinate": [490, 240, 510, 260]}}',
        json.dumps({"arguments": json.dumps({"action": "click", "coordinate": [500, 250]})}),
        "<answer>[{'action': 'click', 'point': [500, 250], 'input_text': 'no'}]</answer>",
        '<think>Not {"coordinate": [1, 2]}.</think>{"coordinate": [500, 250]}',
        "pyautogui.click(x=500, y=250)",
        "pyautogui.click(y=250, x=500, clicks=2, interval=0.25)",
        "pyautogui.click(500, 250, 2)",
        "pyautogui.click((500, 250))",
        "pyautogui.rightClick(500, y=250)",
        "pyautogui.doubleClick(x = 500.0,y = 250.0)",
        "import pyautogui\npyautogui.moveTo(500, 250, duration=1)",
        "mobile.long_press(x=500, y=250)",
        "click_at(x=500, y=250)",
        "Click(500, 250)",
        "Thought: It is at (1, 2).\nAction: click(start_box='(500,250)')",
        "Action: left_double(start_box='<|box_start|>(500,250)<|box_end|>')",
        "Action: click(start_box='(490,240,510,260)')",
        "Action: right_single(point='<point>500 250</point>')",
        "Action: drag(start_point='<point>500 250</point>', end_point='<point>1 2</point>')",
        "CLICK(box=[[490,240,510,260]], element_info='x=1 (2)')",
        "CLICK <point>[[500, 250]]</point>",
        "<point>500 250</point>",
        '<point x="500.0" y="250.0" alt="OK">OK</point>',
        "<points x1='500' y1='250' x2='1' y2='2' alt='OK'>OK</points>",
        "<|object_ref_start|>OK<|object_ref_end|><|box_start|><500><250>,<1><2><|box_end|>",
    ],
)
def test_each_form_of_a_click_is_read(text):
    assert clicked(text) == (500, 250)


@pytest.mark.parametrize(
    "text",
    [
        "pyautogui.moveTo(1, 2)\npyautogui.click(500, 250)\npyautogui.click(3, 4)",
        "pyautogui.moveTo(500, 250)\npyautogui.click()\npyautogui.click(3, 4)",
        "scroll(start_box='(1,2)', direction='down')\n\nclick(start_box='(500,250)')",
        '{"action": "mouse_move", "coordinate": [500, 250]} {"action": "left_click"}',
        '{"action": "scroll", "coordinate": [1, 2]} {"action": "left_click", "coordinate": '
        "[500, 250]}",
        '{"action": "left_click_drag", "coordinate": [1, 2]} click(500, 250)',
    ],
)
def test_of_several_actions_the_first_click_counts(text):
    assert clicked(text) == (500, 250)


@pytest.mark.parametrize(
    "text",
    [
        tool_call("computer_use", '{"action": "wait", "time": 5}'),
        tool_call("computer_use", '{"action": "left_click", "coordinate": 500}'),
        "pyautogui.click()",
        "pyautogui.click(x=width, y=250)",
        "pyautogui.click(width * 0.5, height * 0.5)",
        "pyautogui.write('250')",
        "autoclick(1, 2)",
        '<point x="500">',
        "<500>",
    ],
)
def test_an_action_without_a_point_is_no_click(text):
    assert clicked(text) == "no coordinates"


@pytest.mark.parametrize(
    ("preset", "point"),
    [
        ("qwen2_5_vl", (500, 250)),  # the images are not resized here
        ("qwen3_vl", (500, 125)),
        ("pixels_original", (500, 250)),
        ("gemma3", (500, 125)),  # x is first in an action, also where points begin with y
        ("relative_999", (500_000 / 999, 125_000 / 999)),
    ],
)
def test_numbers_have_the_range_of_the_frame(preset, point):
    for text in (left_click(500, 250), "pyautogui.click(x=500, y=250)", "<500><250>"):
        assert clicked(text, frame_of(COORDINATES[preset])) == pytest.approx(point)


def test_percent_is_of_the_image():
    text = '<point x="17.0" y="66.5" alt="OK">OK</point>'
    assert clicked(text, frame_of(COORDINATES["percent"])) == pytest.approx((170, 332.5))
    assert Pointing().parse(
        '<points x1="10" y1="20" x2="30.5" y2="40" alt="a">a</points>',
        frame_of(COORDINATES["percent"]),
    ) == Instances(
        (Instance(Polygon(((100, 100),))), Instance(Polygon(((305, 200),)))),
        spans=((8, 23), (24, 41)),
    )


def of_qwen(text):
    """models/qwen2_5vl.py: ground_only_positive."""
    try:
        action = json.loads(text.split("<tool_call>\n")[1].split("\n</tool_call>")[0])
        coordinates = action["arguments"]["coordinate"]
        if len(coordinates) == 2:
            return [tuple(coordinates)]
        x1, y1, x2, y2 = coordinates
        return [((x1 + x2) / 2, (y1 + y2) / 2)]
    except (IndexError, KeyError, TypeError, ValueError):
        return []


def of_aguvis(text):
    """models/aguvis.py: parse_pyautogui, which returns [0, 0] for none."""
    pattern = r"pyautogui\.click\((?:x=)?(\d+\.\d+)(?:,\s*y=|,\s*)(\d+\.\d+)\)"
    found = re.search(pattern, text)
    return [tuple(map(float, found.groups()))] if found else []


def of_ui_tars(text):
    """codes/ui_tars/action_parser.py: parse_action_to_structure_output, without scaling."""
    text = re.sub(r"<point>(\d+)\s+(\d+)</point>", r"(\1,\2)", text.strip())
    text = re.sub(r"<\|box_start\|>|<\|box_end\|>", "", text)
    for name in ("start_point=", "point="):
        text = text.replace(name, "start_box=")
    found = []
    for action in text.split("Action: ")[-1].split(")\n\n"):
        call = ast.parse(action.strip().removesuffix(")") + ")", mode="eval").body
        for keyword in call.keywords:
            if keyword.arg == "start_box":
                numbers = keyword.value.value.replace("(", "").replace(")", "").split(",")
                x1, y1, x2, y2 = map(float, numbers * 2 if len(numbers) == 2 else numbers)
                found.append(((x1 + x2) / 2, (y1 + y2) / 2))
    return found[:1]


def of_molmo(text):
    """LegacyPointFormatting.extract_points, in percent."""
    pattern = r'x\d*="\s*([0-9]+(?:\.[0-9]+)?)"\s+y\d*="\s*([0-9]+(?:\.[0-9]+)?)"'
    return [tuple(map(float, pair)) for pair in re.findall(pattern, text)]


def of_molmo2(text):
    """UnifiedPointFormatter.extract_points, from 0 to 1000."""
    found = []
    for coordinates in re.findall(r'<(?:points|tracks).*? coords="([0-9\t:;, .]+)"/?>', text):
        for _, numbers in re.findall(r"(?:^|\t|:|,|;)([0-9\.]+) ([0-9\. ]+)", coordinates):
            for _, x, y in re.findall(r"([0-9]+) ([0-9]{3,4}) ([0-9]{3,4})", numbers):
                found.append((float(x), float(y)))
    return found


def of_rex_omni(text):
    """parse_standard_prediction for points and boxes (their centres), from 0 to 999."""
    pattern = (
        r"<\|object_ref_start\|>\s*([^<]+?)\s*<\|object_ref_end\|>\s*"
        r"<\|box_start\|>(.*?)<\|box_end\|>"
    )
    found = []
    for _, coordinates in re.findall(pattern, text):
        for one in coordinates.split(","):
            numbers = [int(number) for number in re.findall(r"<(\d+)>", one.strip())]
            if len(numbers) in (2, 4):
                found.append(
                    (sum(numbers[::2]) * 2 / len(numbers), sum(numbers[1::2]) * 2 / len(numbers))
                )
    return found  # fmt: skip


def drawn_by(rng):
    """Return a random answer of each convention, and what its official parser reads."""
    x, y, x2, y2 = (rng.randint(100, 999) for _ in range(4))
    decimals = f"{x / 1000:.4f}", f"{y / 1000:.{rng.randint(1, 4)}f}"
    action = rng.choice(["left_click", "double_click", "mouse_move", "right_click"])
    point = rng.choice([f"[{x}, {y}]", f"[{x}.0, {y}.5]", f"[{x}, {y}, {x2}, {y2}]"])
    call = tool_call("computer_use", f'{{"action": "{action}", "coordinate": {point}}}')
    axes = rng.choice([("x=", "y="), ("", "")])
    code = f"pyautogui.click({axes[0]}{decimals[0]}, {axes[1]}{decimals[1]})"
    name = rng.choice(["click", "left_double", "right_single", "drag", "long_press"])
    argument = rng.choice(
        [
            f"start_box='({x},{y})'",
            f"start_box='<|box_start|>({x},{y})<|box_end|>'",
            f"start_box='({x},{y},{x2},{y2})'",
            f"point='<point>{x} {y}</point>'",
            f"start_point='<point>{x}  {y}</point>'",
        ]
    )
    molmo = rng.choice(
        [
            f'<point x="{x / 10}" y="{y / 10}" alt="OK">OK</point>',
            f'<points x1="{x / 10}" y1=" {y / 10}" x2="{x2 / 10}" y2="{y2}" alt="a">a</points>',
        ]
    )
    pair, box = f"<{x}><{y}>", f"<{x}><{y}><{x2}><{y2}>"
    rex = ", ".join(
        f"<|object_ref_start|>a<|object_ref_end|><|box_start|>{shape}<|box_end|>"
        for shape in rng.sample([pair, box, f"{pair},{pair}", f"{box}, {box}", "None"], 3)
    )
    texts = {
        of_qwen: rng.choice([call, f"I click.\n{call}", tool_call("computer_use", "{}")]),
        of_aguvis: rng.choice([code, f"{code}\n{code}", f"```python\n{code}\n```", "none"]),
        of_ui_tars: rng.choice(["", "Thought: I see it at (1,2).\n"])
        + f"Action: {name}({argument})"
        + rng.choice(["", "\n\nwait()", f"\n\nclick(start_box='({y},{x})')"]),
        of_molmo: molmo,
        of_molmo2: f'Counting the <points coords="1 1 {x} {y} 2 {x2} {y2}">a</points> shows 2.',
        of_rex_omni: rex,
    }
    return texts.items()


def points_of(text, preset):
    size = (999, 999) if preset == "rex_omni" else (5000, 5000)
    found = Pointing().parse(text, frame_of(COORDINATES[preset], size))
    return [] if isinstance(found, Unreadable) else [i.shape.points[0] for i in found.items]


def test_answers_are_read_as_by_the_official_parsers():
    rng, read = random.Random(0), 0
    for _ in range(120):
        for parser, text in drawn_by(rng):
            found, wanted = points_of(text, "pixels_original"), parser(text)
            if parser in (of_qwen, of_aguvis, of_ui_tars):  # they return the first action only
                found = found[:1]
                if "drag(" in text and "click(" in text:
                    continue  # of several actions, the first click counts here
            if parser is of_rex_omni:
                assert points_of(text, "rex_omni") == pytest.approx(wanted), text
            assert found == pytest.approx(wanted), text
            read += bool(found)
    assert read > 560


@pytest.mark.parametrize("text", ["", "red car"])
def test_rex_omni_says_that_there_is_nothing(text):
    label = f"<|object_ref_start|>{text}<|object_ref_end|>" if text else ""
    frame = frame_of(COORDINATES["rex_omni"])
    assert Detection().parse(f"{label}<|box_start|>None<|box_end|>", frame) == Instances(())
    boxes = frame.read(f"{label or 'car'}<|box_start|><1><2><3><4>, <5><6><7><8><|box_end|>").items
    assert [type(item.shape) for item in boxes] == [Box, Box]
    plain = frame.read("car<1><2><3><4>")  # an engine has removed the special tokens
    assert plain.items[0].shape == boxes[0].shape


RANGES = ["qwen2_5_vl", "qwen3_vl", "relative_999", "unit_3", "percent", "pixels_original"]
PARTS = st.floats(0, 1)


@pytest.mark.parametrize("name", CLICK_FORMATS)
@given(preset=st.sampled_from(RANGES), parts=st.lists(st.tuples(PARTS, PARTS), max_size=4))
@examples(12)
def test_what_is_written_is_read_and_allowed_by_the_grammar(name, preset, parts):
    resize = Resize(kind="smart", factor=28, min_pixels=56 * 56, max_pixels=1280 * 28 * 28)
    frame = frame_of(replace(COORDINATES[preset], format=name), (1234, 777), resize)
    other = frame_of(COORDINATES[preset], (1234, 777), resize)
    points = [Polygon(((x * 1234, y * 777),)) for x, y in parts]
    points.sort(key=lambda point: frame.quantised(point).points[0][::-1])
    for task, shapes in ((Click(), points[:1]), (Pointing(), points)):
        written = task.format(Instances(tuple(map(Instance, shapes))), frame)
        found = task.parse(written.text, frame)
        assert not found.cut
        assert [item.shape for item in found.items] == [frame.quantised(s) for s in shapes]
        assert re.fullmatch(task.grammar(frame), written.text)
        assert len(written.marks) == 2 * len(shapes)
        for mark in written.marks:
            assert re.fullmatch(r"[0-9.]+", written.text[mark.start : mark.end])
        if shapes:  # a preset with the same range reads the same points
            assert task.parse(written.text, other).items == found.items


@pytest.mark.parametrize("name", CLICK_FORMATS)
def test_a_truncated_action_is_counted_as_one(name):
    frame = frame_of(replace(COORDINATES["relative_1000"], format=name))
    text = Click().format(Instances((Instance(Polygon(((500, 250),))),)), frame).text
    assert Click().parse(text[: text.index("500") + 2], frame).reason == "cut off within a shape"


def test_formats_of_clicks_have_points_only_with_x_first():
    frame = frame_of(replace(COORDINATES["relative_1000"], format="computer_use"))
    nothing = Click().format(Instances(()), frame).text
    assert Click().parse(f"It is not there.\n{nothing}", frame) == Instances(())
    for shape, label in ((Box(1, 2, 3, 4), ""), (Polygon(((1, 2),)), "OK")):
        with pytest.raises(ValueError, match="points without labels, for the tasks click and poi"):
            frame.write([Instance(shape, label)])
    with pytest.raises(ValueError, match="'molmo' writes x before y; set order to xy"):
        replace(COORDINATES["gemma3"], format="molmo")


@pytest.mark.parametrize("convention", CLICKS, ids=[each.models for each in CLICKS])
def test_each_convention_is_listed_with_what_its_config_needs(convention, capsys):
    coordinates = read_coordinates(yaml.safe_load(convention.setting), "test")
    rule = FrameRule.of_family("qwen2_5_vl") if coordinates.max_value is None else None
    frame = rule.frame(640, 480) if rule else frame_of(coordinates, (640, 480))
    frame = replace(frame, coordinates=coordinates)
    text = Click().format(Instances((Instance(Polygon(((320, 120),))),)), frame).text
    assert clicked(text, frame) == pytest.approx((320, 120), abs=1)
    assert cli.main(["ls", "--coordinates"]) == 0
    printed = capsys.readouterr().out
    shown = text.replace("\n", "\\n")
    assert (
        f"{convention.models} (family {convention.family}, coordinates {convention.setting})\n"
        f"  text    {shown}\n  source  {convention.source}\n"
    ) in printed + "\n"


UNITS = [
    *('"name": "', "{", '{"', '{\\"', '{"\\', "'action': '", '"coordinate": [1, ', "click(", "a("),
    *("click(click((", "click(a=", "a ", "=", "x", 'x="1', 'x1="1" y1="1', "<point>1 ", "<point"),
    *('coords="', 'coords="1 ', "1", "<1>", "<1", "</think>", left_click(1, 2), "click(1, 2) "),
]


def test_the_time_is_linear_in_a_hostile_text():
    def seconds(text):
        started = time.process_time()
        find_points(text)
        return time.process_time() - started

    def is_linear(unit):  # 8 times the text; 64 times the time would be squared
        longest = seconds(unit * 4_000)
        return longest < 0.05 or longest < 30 * seconds(unit * 500)

    gc.disable()
    try:
        for unit in UNITS:
            assert any(is_linear(unit) for _ in range(3)), unit
    finally:
        gc.enable()


@given(st.lists(st.sampled_from([*UNITS, *'{}()[]"<>=,\\ ', "12", ".5", "-3", "é"]), max_size=30))
@examples(100)
def test_any_text_has_points_or_none(pieces):
    for point in find_points("".join(pieces)):
        assert len(point.numerals) >= 2
        assert not len(point.numerals) % 2
        assert all(map(float, point.numerals)) is not None
