"""Rewards equal literal formulas, pay for a family's own format, and cannot be exploited."""

import json
import math
import pickle
import time

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from mm_numeric.answers import Box, ClockTime, Instance, Instances, Number, TimeSpans
from mm_numeric.geometry.coordinates import COORDINATES
from mm_numeric.geometry.frame_presets import FAMILY_RESIZES, FrameRule
from mm_numeric.geometry.frames import Frame, Resize
from mm_numeric.registry import REWARDS
from mm_numeric.rewards import reward, reward_columns
from mm_numeric.tasks.clock import Clock
from mm_numeric.tasks.detection import Detection
from mm_numeric.tasks.grounding import Grounding
from mm_numeric.tasks.multirc import MultiRC
from mm_numeric.tasks.number_questions import Numbers

WIDTH, HEIGHT = 640, 480
PIXELS = Frame(
    WIDTH, HEIGHT, Resize(kind="none").view(WIDTH, HEIGHT), COORDINATES["pixels_original"]
)
QWEN = FrameRule.of_family("qwen2_vl").frame(WIDTH, HEIGHT)
BOX, LIST = Grounding(), Detection()
TRUE = Box(100, 50, 200, 150)
CATS = Instances((Instance(TRUE, "cat"), Instance(Box(400, 300, 500, 400), "dog")))


def boxes():
    edges = (st.lists(st.integers(0, n), min_size=2, max_size=2) for n in (WIDTH, HEIGHT))
    return st.builds(lambda x, y: Box(*map(float, (min(x), min(y), max(x), max(y)))), *edges)


def literal_iou(a, b):
    width = max(0.0, min(a.x2, b.x2) - max(a.x1, b.x1))
    height = max(0.0, min(a.y2, b.y2) - max(a.y1, b.y1))
    areas = [(box.x2 - box.x1) * (box.y2 - box.y1) for box in (a, b)]
    union = sum(areas) - width * height
    return width * height / union if union else 0.0


def literal_pairs(found, true):
    """Return the IoUs of pairs of equal labels, greedily by decreasing IoU, from 0.5."""
    ranked = [
        (-literal_iou(a.shape, b.shape), j, i)
        for i, a in enumerate(found)
        for j, b in enumerate(true)
        if a.label == b.label
    ]
    used_found, used_true, ious = set(), set(), []
    for negative, j, i in sorted(ranked):
        if -negative >= 0.5 and i not in used_found and j not in used_true:
            used_found.add(i)
            used_true.add(j)
            ious.append(-negative)
    return ious


@pytest.mark.slow
@examples(60)
@given(boxes(), boxes())
def test_rewards_of_a_box_equal_the_formulas(answer, target):
    text = BOX.format(answer, PIXELS).text
    iou = literal_iou(answer, target)
    assert reward("iou", task=BOX).score(text, target, PIXELS).value == pytest.approx(iou)
    for t in (0.3, 0.5):
        if abs(iou - t) > 1e-9:
            scored = reward(f"acc@{t}", task=BOX).score(text, target, PIXELS)
            assert scored == (float(iou >= t), None)
    width, height = target.x2 - target.x1, target.y2 - target.y1
    if width and height:
        dx = (answer.x1 + answer.x2 - target.x1 - target.x2) / width
        dy = (answer.y1 + answer.y2 - target.y1 - target.y2) / height
        scored = reward("point_gaussian", task=BOX).score(text, target, PIXELS)
        assert scored.value == pytest.approx(math.exp(-(dx**2 + dy**2) / 2))


@examples(60)
@given(*2 * [st.lists(st.tuples(boxes(), st.sampled_from(["cat", "dog"])), max_size=4)])
def test_rewards_of_a_list_equal_the_formulas(found, true):
    found, true = (Instances(tuple(Instance(*item) for item in side)) for side in (found, true))
    text, ious = LIST.format(found, PIXELS).text, literal_pairs(found.items, true.items)
    total = len(found.items) + len(true.items)
    expected = {"f1": 2 * len(ious) / total, "iou": 2 * sum(ious) / total} if total else {}
    for name in ("f1", "iou"):
        scored = reward(name, task=LIST).score(text, true, PIXELS)
        assert scored.value == pytest.approx(expected.get(name, 1.0))


def test_rewards_of_times_and_numbers_equal_the_formulas():
    clock = reward("time", task="clock")
    assert clock.score("11:59", ClockTime(12, 0)).value == pytest.approx(1 - 1 / 360)
    assert clock.score("6:00", ClockTime(12, 0)).value == 0
    assert reward("correct", task=Clock()).score("6:00", ClockTime(6, 0)).value == 1
    number = reward("relative_error", task="numbers")
    for text, target, value in (("9", "12", 0.75), ("-12", "12", 0), ("0", "0", 1), ("1", "0", 0)):
        assert number.score(text, Number(target)).value == pytest.approx(value)
    assert number.score("", Number("0")) == (0, "empty answer")


@pytest.mark.parametrize("family", FAMILY_RESIZES)
@pytest.mark.parametrize("size", [(640, 480), (33, 900)])
def test_a_familys_own_format_is_paid(family, size):
    frame = FrameRule.of_family(family).frame(*size)
    true = Instances((Instance(Box(3, 5, 30, 300), 'a "b"'), Instance(Box(10, 100, 20, 400), "c")))
    for task, target in ((BOX, true.items[0].shape), (LIST, true), (LIST, Instances(()))):
        text = task.format(target, frame).text
        for name in ("iou", "format"):
            value, reason = reward(name, task=task).score(text, target, frame)
            assert value > 0.9, (name, text)
            assert reason is None


def test_json_as_qwen2_5_vl_writes_it_is_in_the_format():
    frame = FrameRule.of_family("qwen2_5_vl").frame(644, 476)
    text = '```json\n[\n\t{"bbox_2d": [10, 20, 30, 40], "label": "a: b,  c"}\n]\n```'
    for task in (BOX, LIST):
        target = Box(10, 20, 30, 40)
        target = target if task is BOX else Instances((Instance(target, "a: b,  c"),))
        assert reward("format", task=task).score(text, target, frame) == (1, None)
        assert reward("iou", task=task).score(text, target, frame) == (1, None)
        for bad in (f"Here: {text}", text.replace("[10", "[10.5"), text * 2):
            assert reward("format", task=task).score(bad, target, frame).value == 0


@pytest.mark.parametrize("space", ["\n", " ", "\t \n"])
def test_many_spaces_in_a_code_block_take_linear_time(space):
    frame = FrameRule.of_family("qwen2_5_vl").frame(644, 476)
    text = "```json" + space * 3_000 + '[{"bbox_2d": [10, 20, 30, 40], "label": "a"}]'
    format_, start = reward("format", task=BOX), time.process_time()
    assert format_.score(text, Box(10, 20, 30, 40), frame).value == 0  # the block is not closed
    assert format_.score(f"{text}{space * 3_000}```", Box(10, 20, 30, 40), frame).value == 1
    assert time.process_time() - start < 5


def one(box):
    return BOX.format(Box(*box), PIXELS).text


@pytest.mark.parametrize(
    ("name", "text", "most"),
    [
        ("iou", one((0, 0, WIDTH, HEIGHT)), 0.04),  # the whole image
        ("acc@0.5", one((0, 0, WIDTH, HEIGHT)), 0),
        ("iou", one((100, 50, 100, 50)), 0),  # degenerate: a point, a line
        ("iou", one((100, 50, 200, 50)), 0),
        ("iou", one((200, 150, 100, 50)), 0),  # reversed
        ("iou", f"[{'9' * 400}, 0, 1, 2]", 0),
        ("iou", "[nan, nan, nan, nan]", 0),
        ("iou", one((0, 0, 9, 9)) + "; " + one((100, 50, 200, 150)), 0),  # a second attempt
        ("iou", "; ".join(one((x, 0, x + 100, 100)) for x in range(0, 500, 10)), 0),
        ("format", f"The object is at {one((100, 50, 200, 150))}.", 0),  # text around
        ("format", one((100, 50, 200, 150)) * 2, 0),
        ("format", one((100, 50, 200, 150))[:-1], 0),
        ("point_gaussian", one((0, 0, WIDTH, HEIGHT)), 0.002),
    ],
    ids=range(13),
)
def test_one_box_cannot_be_exploited(name, text, most):
    assert reward(name, task=BOX).score(text, TRUE, PIXELS).value <= most
    assert reward(name, task=BOX).score(one((100, 50, 200, 150)), TRUE, PIXELS).value == 1


def test_text_around_an_answer_does_not_change_its_value():
    text = f"I think that it is {one((110, 50, 200, 150))}, or so."
    assert reward("iou", task=BOX).score(text, TRUE, PIXELS).value == pytest.approx(0.9)


def listed(*items):
    return LIST.format(
        Instances(tuple(Instance(Box(*b), label) for b, label in items)), PIXELS
    ).text


RIGHT = [((100, 50, 200, 150), "cat"), ((400, 300, 500, 400), "dog")]


@pytest.mark.parametrize(
    ("text", "most"),
    [
        (listed(*RIGHT * 2), 2 * 2 / 6),  # duplicates
        (listed(*RIGHT * 10), 2 * 2 / 22),
        (listed(*((b, n) for b, _ in RIGHT for n in ("cat", "dog", "cow"))), 2 * 2 / 8),  # options
        (listed(((0, 0, WIDTH, HEIGHT), "cat"), ((0, 0, WIDTH, HEIGHT), "dog")), 0),
        (listed(*(((x, y, x + 100, y + 100), n) for x in range(0, 540, 20)
                  for y in range(0, 380, 20) for n in ("cat", "dog"))), 0.004),  # a grid
        (listed(*(((100, 50, 100, 50), n) for n in ("cat", "dog"))), 0),
        ("none", 0),
        ("", 0),
    ],
    ids=["twice", "ten_times", "options", "whole_image", "grid", "points", "none", "nothing"],
)  # fmt: skip
def test_a_list_cannot_be_exploited(text, most):
    for name in ("f1", "iou"):
        task_reward = reward(name, task="detection")
        assert task_reward.score(text, CATS, PIXELS).value <= most
        assert task_reward.score(listed(*RIGHT), CATS, PIXELS).value == 1


def test_negatives_are_paid_for_an_empty_list_only():
    for name in ("f1", "iou"):
        values = [
            reward(name, task=LIST).score(text, Instances(()), PIXELS)
            for text in ("none", listed(RIGHT[0]), "", "I see nothing")
        ]
        assert [own.value for own in values] == [1, 0, 0, 0]
        assert [own.reason is None for own in values] == [True, True, False, False]


@pytest.mark.slow
def test_an_endless_list_is_scored_in_linear_time():
    text, start = listed(*RIGHT) + "; " + "cat [1, 2, 30, 40]; " * 10_000, time.process_time()
    for name in ("f1", "iou", "format"):
        assert reward(name, task=LIST).score(text, CATS, PIXELS).value < 1e-3
    assert time.process_time() - start < 5


def test_naming_every_option_is_not_paid_more_than_one_option():
    yes_no = reward("correct", task=MultiRC(answer="yes_no"))
    choices = [yes_no.task.recorded({"chosen": c, "question": "0"}) for c in ("yes", "no")]
    hours = [ClockTime(hour, 0) for hour in range(1, 13)]
    digits = [Number(str(i)) for i in range(10)]
    for own, targets in (
        (yes_no, choices),
        (reward("correct", task=Clock()), hours),
        (reward("correct", task=Numbers()), digits),
    ):
        texts = [own.task.format(target).text for target in targets]
        for text in (" ".join(texts), " or ".join(texts), ", ".join(reversed(texts))):
            values = [own.score(text, target).value for target in targets]
            assert sum(values) <= 1  # as for any fixed answer
            form = reward("format", task=own.task)
            assert form.score(text, targets[0]).value == 0


SECONDS = st.lists(st.integers(0, 40), min_size=2, max_size=2).map(sorted)
SPAN = TimeSpans(((24.0, 30.0),))


@pytest.mark.slow
@examples(60)
@given(SECONDS, st.lists(SECONDS.filter(lambda s: s[0] < s[1]), min_size=1, max_size=3))
def test_rewards_of_spans_equal_the_formula(answer, true):
    target, (start, end) = TimeSpans(tuple(map(tuple, true))), answer
    ious = []
    for a, b in true:
        both, either = min(b, end) - max(a, start), max(b, end) - min(a, start)
        ious.append(max(both, 0) / either if either else 0.0)
    text = f"{start}.0 - {end}.0 seconds"
    for name in ("iou", "acc@0.7"):
        value = max(ious) if name == "iou" else float(max(ious) >= 0.7)
        scored = reward(name, task="temporal_spans").score(text, target)
        assert scored == (pytest.approx(value), None)


@pytest.mark.parametrize(
    ("text", "most"),
    [
        ("0.0 - 90.0 seconds", 6 / 90),  # the whole video
        ("0.0 - 99999.0 seconds", 1e-4),
        ("30.0 - 24.0 seconds", 0),  # reversed
        ("27.0 - 27.0 seconds", 0),
        ("0.0 - 6.0, 24.0 - 30.0 seconds", 0),  # a second attempt
        (", ".join(f"{t}.0 - {t + 6}.0" for t in range(0, 90, 6)) + " seconds", 0),
        ('[{"start": 0, "end": 6}, {"start": 24, "end": 30}]', 0),
        ("24.0, 30.0", 0),  # no span
        ("24.0 - nan seconds", 0),
    ],
    ids=["video", "long", "reversed", "empty", "second", "endless", "json", "two_times", "nan"],
)
def test_a_span_cannot_be_exploited(text, most):
    right = "24.0 - 30.0 seconds"
    for name in ("iou", "acc@0.5"):
        own = reward(name, task="temporal_spans")
        assert own.score(text, SPAN).value <= most
        assert own.score(right, SPAN).value == own.score(f"It is {right}.", SPAN).value == 1
    form = reward("format", task="temporal_spans")
    assert form.score(right, SPAN) == (1, None)
    assert form.score(f"It is {right}.", SPAN).value == 0


def rows(*pairs, task=BOX, frame=QWEN):
    """Return the columns of a data set, and completions of it as texts."""
    columns = [reward_columns(task, target, frame) for target, _ in pairs]
    found = {name: [row[name] for row in columns] for name in ("target", "frame")}
    return json.loads(json.dumps(found)), [text for _, text in pairs]


def byte_tokenizer():
    """Return a tokenizer of single bytes, with special tokens of Qwen2-VL."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = Tokenizer(models.BPE({each: i for i, each in enumerate(alphabet)}, []))
    tokens.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokens.decoder = decoders.ByteLevel()
    names = ("object_ref_start", "object_ref_end", "box_start", "box_end")
    special = [f"<|{name}|>" for name in names]
    return PreTrainedTokenizerFast(
        tokenizer_object=tokens, eos_token="<|im_end|>", additional_special_tokens=special
    )


def test_trl_calls_it_with_messages_ids_and_logs():
    tokenizer = byte_tokenizer()
    text = LIST.format(CATS, QWEN).text
    ids = [tokenizer(t).input_ids for t in (text + "<|im_end|>", "What time", text, text)]
    columns, _ = rows(*((CATS, "") for _ in ids), task=LIST)
    columns["target"][3] = None  # a row of another task
    stripped = [tokenizer.decode(i, skip_special_tokens=True) for i in ids]
    assert "<|box_start|>" not in stripped[0]
    messages = [[{"role": "assistant", "content": t}] for t in stripped]
    logged, extra = {}, {}
    own = reward("f1", task=LIST, tokenizer=tokenizer)
    values = own(
        prompts=["?"] * 4, completions=messages, completion_ids=ids, **columns, image=["a"] * 4,
        trainer_state=None, log_metric=logged.__setitem__, log_extra=extra.__setitem__,
    )  # fmt: skip
    assert values == [1, 0, 1, None]
    reason = "no coordinates"
    assert logged == {"unparseable/f1@0.5/all": 1 / 3, f"unparseable/f1@0.5/{reason}": 1 / 3}
    assert extra == {"reason_f1@0.5": [None, reason, None, None]}
    logged.clear()
    first = {name: values[:1] for name, values in columns.items()}
    own(prompts=["?"], completions=[text], completion_ids=ids[:1], **first,
        log_metric=logged.__setitem__)  # fmt: skip
    assert set(logged.values()) == {0.0}  # the reason is still logged: its mean is right
    assert len(logged) == 2
    assert own.__name__ == "f1@0.5"


def message(role, content, **fields):
    return {"role": role, "content": content, **fields}


CALL = [{"type": "function", "function": {"name": "add", "arguments": {"a": 99}}}]
ASKS = message("assistant", None, tool_calls=CALL)
PARTS = [{"type": "text", "text": "9"}, {"type": "text", "text": None}, {"text": "9"}, {}]


@pytest.mark.parametrize(
    ("completion", "value"),
    [
        ([ASKS, message("tool", "99")], None),
        ([message("assistant", "99"), ASKS, message("tool", "5")], None),
        ([message("assistant", "99", tool_calls=CALL), message("tool", "5"),
          message("assistant", "98")], 0),
        ([ASKS, message("tool", "5"), message("assistant", "99")], 1),
        ([message("assistant", "98"), message("user", "Sure?"), message("assistant", "99")], 1),
        ([message("assistant", PARTS)], 1),
        ([message("assistant", "99")], 1),
        ([{"content": "99"}], 1),
        ("99", 1),
        (None, None),
        ([], None),
        ([ASKS], None),
        ([{"role": "assistant"}], None),
        ([message("assistant", [{"type": "text", "text": None}])], None),
        ([message("assistant", ["9", "9"])], 1),
        ([message("assistant", [{"type": "text", "text": 99}])], None),
        ([message("assistant", 99)], None),
        ([None], None),
    ],
    ids=range(18),
)  # fmt: skip
def test_only_text_of_the_assistant_after_the_last_tool_result_is_paid(completion, value):
    tokenizer = byte_tokenizer()
    ids = [tokenizer("99<|im_end|>" if value == 1 else "99 5 98").input_ids]
    for own in (reward("correct", task="numbers", tokenizer=each) for each in (None, tokenizer)):
        reasons = {}
        columns = {"target": [reward_columns("numbers", 99)["target"]]}
        values = own([completion], ids, **columns, log_extra=reasons.__setitem__)
        assert values == [value or 0]
        assert reasons == {
            "reason_correct": ["no text of the assistant" if value is None else None]
        }
    assert own.compute_score("x", None, columns["target"][0]) == {"score": 0, "unparseable": 1}


def test_removed_location_tokens_need_the_tokenizer(logged):
    frame = FrameRule.of_family("paligemma").frame(WIDTH, HEIGHT)
    columns, texts = rows((TRUE, " cat"), (TRUE, ""), frame=frame)
    assert reward("iou", task=BOX)(completions=texts, **columns) == [0, 0]
    assert "pass tokenizer=" in logged.getvalue()


def test_verl_and_swift_call_it():
    own = pickle.loads(pickle.dumps(reward("iou", task="grounding")))  # verl's workers
    columns, texts = rows((TRUE, BOX.format(TRUE, QWEN).text), (TRUE, "?"))
    for text, target, frame, score in zip(texts, *columns.values(), (1, 0), strict=True):
        found = own.compute_score(
            data_source="refcoco", solution_str=text, ground_truth=target,
            extra_info={"frame": frame, "num_turns": None}, reward_router_address=None,
        )  # fmt: skip
        assert found == {"score": pytest.approx(score, abs=0.01), "unparseable": 1.0 - score}
    orms = {"iou": own.orm}
    values = orms["iou"](args=None)(texts, **columns, trainer_state=None, solution=["", ""])
    assert values == [pytest.approx(1, abs=0.01), 0]


@pytest.mark.parametrize("name", REWARDS)
def test_every_listed_reward_exists(name):
    assert reward(name, task="clock").rule.name.partition("@")[0] == name


def test_the_answer_follows_the_reasoning():
    own = reward("iou", task=BOX, frame=PIXELS.to_dict(), answer_after="</think>")
    reasoning = "<think>Is it [0, 0, 9, 9]? No.</think>"
    assert own.score(f"{reasoning} [100, 50, 200, 150]", TRUE).value == 1
    assert own.score("[100, 50, 200, 150]", TRUE) == (0, "no </think>")


def test_columns_of_a_plain_number_are_those_of_its_answer():
    assert reward_columns("numbers", 146) == reward_columns(Numbers(), Number("146"))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: reward("ious", task="clock"), "Did you mean 'iou'"),
        (lambda: reward("iou@0.5", task="clock"), "no threshold"),
        (lambda: reward("f1@0.6", task="clock"), "0.5, 0.75, 0.9, not 0.6"),
        (lambda: reward("acc@7", task="clock"), "at most 1, not 7"),
        (lambda: reward("iou", task="clocks"), "there is no task 'clocks'"),
        (lambda: reward("iou", task={"name": "grounding", "x": 1}), "x"),
        (lambda: reward("iou", task="clock").score("1:00", ClockTime(1, 0)), "does not fit"),
        (lambda: reward("correct", task=LIST).score("none", CATS, PIXELS), "another reward"),
        (lambda: reward("time", task="clock")(["1:00"]), "the column target"),
        (lambda: reward_columns("numbers", "twelve"), "'twelve'"),
        (lambda: Number(146), "made of its text, such as '3.50', not of 146"),
        (lambda: reward("time", task="clock").score_json("1:00", "1:00"), "reward_columns"),
    ],
)
def test_a_mistake_is_one_sentence(call, message):
    with pytest.raises(ValueError, match=message):
        call()
