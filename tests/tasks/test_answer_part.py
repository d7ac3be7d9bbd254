"""The part of a generated text that is the answer: after thoughts, in tags, boxes and markers."""

import ast
import json
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from import_graph import ROOT
from result_files import section, write_lines

from mm_numeric.answers import ClockTime, Instances, Number, Text, Unreadable
from mm_numeric.cli.main import main
from mm_numeric.evaluation.score import score
from mm_numeric.evaluation.score_text import results_table
from mm_numeric.geometry.coordinates import COORDINATES
from mm_numeric.geometry.frames import Frame, Resize
from mm_numeric.inference.decode import candidates_of_texts
from mm_numeric.rewards import reward
from mm_numeric.tasks.answer_part import NO_END, answer_part, number_part
from mm_numeric.tasks.clock import Clock
from mm_numeric.tasks.clockbench import ClockBench
from mm_numeric.tasks.detection import Detection
from mm_numeric.tasks.grounding import Grounding
from mm_numeric.tasks.gsm8k import GSM8K
from mm_numeric.tasks.mathvista import MathVista
from mm_numeric.tasks.measurement import ReadInstrument
from mm_numeric.tasks.number_questions import Numbers
from mm_numeric.tasks.pointing import Click, Pointing
from mm_numeric.tasks.temporal_spans import FindSpans

SIZE = 640, 480
RESIZE = Resize(kind="squash", side=320).view(*SIZE)
FRAME = Frame(*SIZE, RESIZE, COORDINATES["pixels_original"])
JSON_FRAME = Frame(*SIZE, RESIZE, COORDINATES["qwen3_vl"])
THOUGHTS = "<think>The man is at [400, 10, 500, 60] or (400, 10), 3.5 - 4.5 s, 10:10.</think>\n"
FORMS = [
    ("<think>", "</think>"),
    ("", "</think>"),
    ("◁think▷", "◁/think▷"),
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("<reasoning>", "</reasoning>"),
    ("<seed:think>", "</seed:think>"),
    ("[THINK]", "[/THINK]"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"),
]


@pytest.mark.parametrize(("begin", "end"), FORMS)
def test_thoughts_are_no_answer(begin, end):
    assert Numbers().read(f"{begin}3 or 4{end}12") == Number("12")
    assert Numbers().read(f"{begin}3{end}4{begin}5{end}12") == Number("12")
    if begin:
        assert Numbers().read(f"{begin}3 or 4") == Unreadable(NO_END)
        assert Numbers().read(f"{begin}3{end}4{begin}5") == Unreadable(NO_END)


@pytest.mark.parametrize(
    ("task", "answer"),
    [
        (Grounding(), "[10, 20, 110, 220]"),
        (Click(), "[30, 40]"),
        (Pointing(), "[30, 40]"),
        (Detection(), '[{"bbox_2d": [10, 20, 110, 220], "label": "cat"}]'),
        (FindSpans(), "24.3 - 30.4 seconds"),
        (Clock(), "7:05"),
        (ReadInstrument(), "36.6 °C"),
        (Numbers(), "12"),
    ],
)
@pytest.mark.parametrize(
    "form", ["{}", "<answer>{}</answer>", "<Answer>\n{}", "12 <answer>{}</answer> of 9"]
)
def test_the_answer_after_thoughts_and_in_tags_is_that_of_its_text(task, answer, form):
    frame = JSON_FRAME if isinstance(task, Detection) else FRAME
    alone = task.read(answer, frame)
    assert not isinstance(alone, Unreadable)
    text = THOUGHTS + form.format(answer)
    found = task.read(text, frame)
    assert found == alone
    if isinstance(found, Instances):  # spans are of the whole text, of which tokens are known
        shift = text.index(answer)
        assert found.spans == tuple((a + shift, b + shift) for a, b in alone.spans)
    assert [c.answer for c in candidates_of_texts(task, frame, {text: 1.0})] == [alone]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (r"There are \boxed{10} numbers with exactly 6 matchsticks.", "10"),
        (r"\boxed{12} $\mathrm{~cm}^{2}$", "12"),
        (r"\boxed{\frac{13}{2}}", "13/2"),
        (r"\boxed{-\dfrac{1}{2}}", "-1/2"),
        (r"\boxed{6\frac12}", "13/2"),
        (r"\boxed{12 \text{ cm}^2}", "12"),
        (r"\boxed{1{,}234}", "1234"),
        (r"\boxed{1.5 \times 10^{3}}", "1500"),
        (r"\boxed{3}, no, \boxed{50\%} of 9", "50"),
        (r"\boxed{\text{twelve}}, that is 12", "12"),
        (r"\boxed{12", "12"),
        ("<answer>7</answer> out of 9", "7"),
        ("<|begin_of_box|>7<|end_of_box|> out of 9", "7"),
        ("<answer>7</answer> or <answer>8</answer> of 9", "8"),
        ("```python\nx = 5\n```\nThe answer is 12", "12"),
        ("The answer is 12.\n```python\nx = 5\n```", "12"),
        ("```python\nx = 5\n```", "5"),
        ('Here it is:\n```json\n{"answer": 12}\n```\nwithout the 3 cups.', "12"),
        ("The answer is\n```\n12\n```\nof 20.", "12"),
        ("Answer: 12\n\nThere are 3 rows of 4.", "12"),
        (r"\boxed{3} is wrong. **Answer:** 12", "12"),
        ("Answer: 3 + 4 = 7", "7"),
        ("Answer: 1. There are 3 rows.\n2. Each has 4, so 12.", "12"),
        ("#### 12\nThere are 3 rows.", "12"),
        ("#### 1. Rows\nThere are 3 rows, so 12", "12"),
    ],
)
def test_the_number_in_a_marked_part_is_the_answer(text, number):
    found = Numbers().read(text)
    assert found == Number(number), found
    assert Numbers().read(f"<think>3</think>{text}") == found


@pytest.mark.parametrize(
    ("text", "reading"),
    [
        ("The time is 10:09:30. The hour hand is slightly past 10.", "10:09:30"),
        ("It is 10:09:30, as the second hand is 30 degrees past the top.", "10:09:30"),
        ("时间是10:09:30。时针略过10。", "10:09:30"),
        ("10:09 (between 10 and 11)", "10:09"),
        ("At 10:09:30, the gauge read 5 bar.", "5 bar"),
        (r"\boxed{36.6^\circ\text{C}}, not 37", "36.6 °C"),
        (r"It shows \boxed{12} $\mathrm{cm}$, between 11 and 13.", "12 cm"),
    ],
)
def test_a_time_next_to_the_numbers_of_its_dial_is_a_reading(text, reading):
    found, wanted = ReadInstrument().read(text), ReadInstrument().read(reading)
    assert (found.text, found.is_time, found.units) == (wanted.text, wanted.is_time, wanted.units)
    assert found.is_time == (":" in reading)


@pytest.mark.parametrize("task", [GSM8K(), MathVista(), ClockBench()])
@pytest.mark.parametrize(
    "text",
    [
        "<think>The answer is 5.",
        "<think>#### 4</think> so 5",
        '{"valid": false} </think> {"valid": true}',
        r"<answer>\boxed{5}</answer> of 9",
    ],
)
def test_a_metric_of_a_published_script_reads_the_whole_text(task, text):
    assert task.answer_part(text) == (text, 0, (), None)
    assert task.read(text) == task.parse(text)


@dataclass(frozen=True, kw_only=True)
class Mine(Numbers):
    """A task of a user, who has written a parser only."""

    def parse(self, text, frame=None):
        return Text(text)


def test_the_parser_of_a_user_gets_the_answer_alone():
    assert Mine().read("<think>1</think><answer>2</answer>") == Text("2")


def test_no_caller_parses_a_text_that_is_not_cut():
    """``task.parse`` outside of the tasks themselves would forget the thoughts."""
    calls = []
    for room in ("mm_numeric", "evaluation", "scripts"):
        for path in (ROOT / room).rglob("*.py"):
            if (ROOT / room / "tasks") in path.parents:
                continue
            source = path.read_text(encoding="utf-8")
            for node in ast.walk(ast.parse(source)) if ".parse" in source else ():
                is_parse = isinstance(node, ast.Attribute) and node.attr == "parse"
                if is_parse and "task" in ast.unparse(node.value).lower():
                    calls.append(f"{path}:{node.lineno}")
    assert [call for call in calls if "fuzz.py" not in call] == []


def test_results_count_the_rules_and_the_texts_without_an_answer(tmp_path):
    texts = ["12", "<think>3</think>12", "<think>3</think><answer>12</answer> of 9", "<think>12"]
    rows = [{"id": str(i), "text": text, "target": "12"} for i, text in enumerate(texts)]
    file = write_lines(tmp_path / "a.jsonl", rows)
    scores = score(file, task_name="numbers")
    assert [row["exact"] for row in scores.rows] == [1, 1, 1, 0]
    assert scores.failures == {NO_END: 1}
    rules = {"after the thoughts": 2, "in <answer>": 1}
    assert section(tmp_path, name="a.jsonl.results.json")["rules"]["answer"] == rules
    line = "answers selected from a longer text: after the thoughts 2, in <answer> 1"
    assert line in results_table(scores)
    assert "answer" not in section_of_plain(tmp_path)["rules"]


def section_of_plain(folder: Path):
    file = write_lines(folder / "plain.jsonl", [{"id": "1", "text": "12", "target": "12"}])
    assert "selected from a longer text" not in results_table(score(file, task_name="numbers"))
    return section(folder, name="plain.jsonl.results.json")


def test_a_box_after_thoughts_is_right_in_a_file(tmp_path, capsys):
    text = "<think>The man is at [400, 10, 500, 60].</think>\n<answer>[10, 20, 110, 220]</answer>"
    row = {"id": "1", "text": text, "target": [10, 20, 110, 220], "frame": FRAME.to_dict()}
    file = write_lines(tmp_path / "a.jsonl", [row])
    main(["score", str(file), "--task", "grounding"])
    assert "Acc@0.5" in capsys.readouterr().out
    (line,) = (tmp_path / "a.jsonl.scores.jsonl").read_text().splitlines()
    assert json.loads(line)["iou"] == pytest.approx(1)


def test_a_reward_reads_as_the_metrics_do():
    text = "<think>It is 3.</think><answer>12</answer>"
    assert reward("correct", task="numbers").score(text, Number("12")).value == 1
    assert reward("format", task="numbers").score(text, Number("12")).value == 1
    assert reward("format", task="numbers").score(r"so \boxed{12}", Number("12")).value == 0
    must = reward("correct", task="numbers", answer_after="</think>")
    assert must.score("12", Number("12")) == (0, "no </think>")
    unfinished = reward("correct", task="numbers").score("<think>12", Number("12"))
    assert unfinished == (0, NO_END)


@pytest.mark.parametrize(
    "piece",
    ["<think>", "</think>", "<answer>", "</answer>", r"\boxed{", "Answer: ", "####", "```", "{",
     "1", "<|channel|>final", "Answer: 1.", r"\frac{", "12^{", "`", "Answer:\n"],
)  # fmt: skip
def test_a_repeated_piece_takes_linear_time(piece):
    text = piece * 5_000
    for task in (Numbers(), Clock(), ReadInstrument()):
        task.read(text)
        task.read(text + "1")
    assert answer_part(text).text is not None


PIECES = r"12 3.5 <think> </think> <answer> </answer> \boxed{ } { #### ``` json 10:09 cm \frac a é"


@given(st.lists(st.sampled_from([*PIECES.split(" "), "Answer: ", " ", "\n"]), max_size=12))
@examples(200)
def test_the_part_lies_in_the_text(pieces):
    text = "".join(pieces)
    for part in (answer_part(text), number_part(text)):
        written = text[part.start : part.start + len(part.text)]
        kept = [(a, b) for a, b in zip(part.text, written, strict=True) if a != " "]
        assert all(a == b for a, b in kept)
        assert part.rules or part.text == text or part.failure
    for task in (Numbers(), Clock(), ReadInstrument()):
        task.read(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("The gauge hand is at 12:30, and the reading is 42 psi", "42"),
        ("Seconds: 0:30; pressure 42 psi", "42"),
        (r"\boxed{1{,}234\frac{1}{2}} psi", "2469/2"),
    ],
)
def test_a_number_after_a_time_is_the_reading(text, value):
    found = ReadInstrument().read(text)
    assert (found.is_time, Fraction(found.text)) == (False, Fraction(value))


def test_a_marker_without_a_time_does_not_hide_the_time():
    assert Clock().read("The time is 3:15.\nAnswer: 3 hours 15 minutes") == ClockTime(3, 15)
