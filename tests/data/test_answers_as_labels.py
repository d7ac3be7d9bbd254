"""data.train.answers: a model's answers are trained on in place of the labels."""

import json
import math
from fractions import Fraction
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import CACHE, small_config, tiny_family

from mm_numeric.answers import Box, ClockTime
from mm_numeric.config.data import DataConfig, DataSource, EvaluateConfig
from mm_numeric.data.answers_as_labels import DecodedAnswers
from mm_numeric.data.collator import make_collator
from mm_numeric.data.examples import load_examples
from mm_numeric.data.streaming import ExampleStream
from mm_numeric.data.training_set import TrainingRows
from mm_numeric.synthetic.clock_faces import Clocks
from mm_numeric.synthetic.scenes import Objects
from mm_numeric.tasks.clock import Clock
from mm_numeric.tasks.detection import Detection

TASK = Clock(prompt="What time is it?")
NOISY = Clocks(rows=6, seed=5, noise_minutes=90.0)
ROWS = load_examples(TASK, DataSource(synthetic=NOISY), CACHE, training=True)
FEW = Clocks(rows=1)


def lines(count=6, **changes):
    """Return answers to the rows: the hour is 1, the minute the number of the row."""
    return [
        {
            "id": row.id,
            "task": "clock",
            "prompt": row.prompt,
            "text": f"1:{i:02d}",
            "target": str(row.answer),
            "decode": {"confidence": i / 10},
            **changes,
        }
        for i, row in enumerate(ROWS[:count])
    ]


def write(folder, rows):
    file = folder / "answers.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


def load(folder, rows, **settings):
    source = DataSource(synthetic=NOISY, answers=str(write(folder, rows)), **settings)
    return load_examples(TASK, source, CACHE, training=True)


def test_answers_replace_the_labels_and_their_noise(tmp_path):
    found = load(tmp_path, lines())
    assert [example.answer for example in found] == [ClockTime(1, i) for i in range(6)]
    assert [e.image for e in found] == [e.image for e in ROWS]
    # Answers alone, of any engine: nothing else is compared.
    assert load(tmp_path, [{k: r[k] for k in ("id", "text")} for r in lines()]) == found


def test_a_stream_has_the_same_examples(tmp_path):
    rows = [r | ({"text": "?"} if i == 2 else {}) for i, r in enumerate(lines(5))]
    answers = str(write(tmp_path, rows))
    source = DataSource(synthetic=NOISY, answers=answers, keep_answers="parseable")
    test = DataSource(synthetic=FEW)
    data = DataConfig(train=source, test=test, cache=str(CACHE), stream=True)
    stream = ExampleStream(TASK, data, seed=None)
    stream.check()
    found = load_examples(TASK, source, CACHE, training=True)
    assert list(islice(stream.examples(), 4)) == found


def test_rows_without_an_answer_are_left_out_if_the_config_says_so(tmp_path, logged):
    rows = lines(5)
    rows[2]["text"] = "no idea"
    found = load(tmp_path, rows, keep_answers="parseable")
    assert [example.answer.minute for example in found] == [0, 1, 3, 4]
    assert "4 of 6 rows are trained on their answers in" in logged.getvalue()
    with pytest.raises(ValueError, match=r"answers\.jsonl has no answer to keep for any of its 6"):
        load(tmp_path, [row | {"id": "x"} for row in rows[:1]], keep_answers="parseable")


@pytest.mark.parametrize("weight", ["null", 2])
def test_a_source_without_an_answer_is_left_out_of_a_mixture(tmp_path, logged, weight):
    answers = f"answers: {write(tmp_path, lines(4))}, keep_answers: parseable, weight: {weight}"
    noisy = "name: clocks, rows: 6, noise_minutes: 90"
    sources = [f"{{synthetic: {{{noisy}, seed: {seed}}}, {answers}}}" for seed in (4, 5)]
    limit = ("data.max_tokens=4000", "data.too_long=drop")
    config = small_config(tmp_path, f"data.train=[{', '.join(sources)}]", *limit)
    collator = make_collator(config, tiny_family())
    rows = TrainingRows(config).for_trainer(collator)
    assert [row.id for row in rows] == [row.id for row in ROWS[:4]]
    assert "has no answer to keep for any of its 6 rows; its source is left out." in (
        logged.getvalue()
    )


def test_a_share_keeps_the_most_confident_answers(tmp_path):
    rows = lines(5)
    rows[4] |= {"text": "?", "decode": {"confidence": None}}
    found = load(tmp_path, rows, keep_answers=0.4)
    assert [example.answer.minute for example in found] == [2, 3]


@pytest.mark.slow
@given(
    st.lists(st.none() | st.integers(0, 4).map(lambda n: n / 4), min_size=1, max_size=12),
    st.floats(0.01, 1),
)
def test_a_share_keeps_the_answers_that_a_slow_selection_keeps(tmp_path_factory, values, share):
    folder = tmp_path_factory.mktemp("answers")
    rows = [{"id": str(i), "text": "", "decode": {"confidence": v}} for i, v in enumerate(values)]
    source = DataSource(synthetic=FEW, answers=str(write(folder, rows)), keep_answers=share)
    left, kept = [(-1.0 if v is None else v, -i) for i, v in enumerate(values)], set()
    while len(kept) < math.ceil(Fraction(str(share)) * len(values)):
        best = max(left)
        left.remove(best)
        kept.add(str(-best[1]))
    assert DecodedAnswers.of(source).confident == kept


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r[:5], r"line 6: .*answers\.jsonl has no answer to the row '5-000005'; answer"),
        (lambda r: [*r, r[1]], r"answers\.jsonl, line 7: a second answer to the row '5-000001'"),
        (lambda r: [r[0] | {"text": "late"}, *r[1:]],
         r"^[^:]*answers\.jsonl, line 1: the answer 'late' is unparseable \(no time as H:MM\)"),
        (lambda r: [row | {"task": "grounding"} for row in r],
         r"line 1: an answer of the task 'grounding', and not of .*clock:Clock\.$"),
        (lambda r: [row | {"prompt": "?"} for row in r],
         r"line 1: an answer to another row '5-000000', whose prompt is '\?' and not 'What time"),
        (lambda r: [r[0], r[1] | {"target": "13:00"}, *r[2:]],
         r"line 2: an answer to another row '5-000001', whose target is '13:00' and not '"),
        (lambda r: [{"text": "1:00"}], r"answers\.jsonl, line 1: no 'id'; an answer needs an id"),
        (lambda r: [{"id": "1"}], r"answers\.jsonl, line 1: no 'text'; an answer needs an id"),
        (lambda r: [r[0] | {"frame": {"x": 1}}, *r[1:]], r"answers\.jsonl, line 1: .*\.$"),
    ],
)  # fmt: skip
def test_answers_that_do_not_fit_are_one_sentence(tmp_path, change, message):
    with pytest.raises(ValueError, match=message) as caught:
        load(tmp_path, change(lines()))
    assert str(caught.value).count("\n") == 0


@pytest.mark.parametrize(("share", "count", "kept"), [(0.55, 100, 55), (0.07, 100, 7), (1, 3, 3)])
def test_a_share_is_not_rounded_up_for_a_rounding_error(tmp_path, share, count, kept):
    rows = [{"id": str(i), "text": "", "decode": {"confidence": 0.5}} for i in range(count)]
    source = DataSource(synthetic=FEW, answers=str(write(tmp_path, rows)), keep_answers=share)
    assert DecodedAnswers.of(source).confident == {str(i) for i in range(kept)}


@pytest.mark.parametrize("value", ["0.5", True, -0.1, math.nan])
def test_a_confidence_that_is_no_probability_is_one_sentence(tmp_path, value):
    rows = [row | {"decode": {"confidence": value}} for row in lines()]
    with pytest.raises(ValueError, match=r"line 1: decode\.confidence is .*; it is a probability"):
        load(tmp_path, rows, keep_answers=0.5)


def test_a_share_needs_confidences(tmp_path):
    rows = lines()
    del rows[3]["decode"]
    with pytest.raises(ValueError, match=r"line 4: the answer has no decode\.confidence, which"):
        load(tmp_path, rows, keep_answers=0.5)


def one_detection(folder, shapes, **settings):
    """Load a synthetic row of ``detection``, of 64 x 64 pixels, whose answer is the text given."""
    task, source = Detection(), DataSource(synthetic=Objects(rows=1, seed=5))
    (row,) = load_examples(task, source, CACHE, training=True)
    size = {"width_px": 64, "height_px": 64}
    view = {**size, "scale_x": 1, "scale_y": 1}
    coordinates = {"max_value": 1000, "format": settings.pop("format", "json")}
    frame = {**size, "view": view, "coordinates": coordinates}
    file = write(folder, [{"id": row.id, "text": shapes, "frame": frame}])
    answered = DataSource(synthetic=Objects(rows=1, seed=5), answers=str(file), **settings)
    return load_examples(task, answered, CACHE, training=True)


def test_a_truncated_list_is_unparseable(tmp_path):
    with pytest.raises(ValueError, match=r"is unparseable \(truncated list\); leave out"):
        one_detection(tmp_path, '[{"bbox_2d": [1, 2, 30, 40], "label": "a"}, {"bbox_2d": [5,')


def test_a_shape_that_reaches_out_of_the_image_ends_at_its_edge(tmp_path):
    (found,) = one_detection(tmp_path, '[{"bbox_2d": [250, 500, 1200, 1000], "label": "a"}]')
    assert [item.shape for item in found.answer.items] == [Box(16, 32, 64, 64)]


@pytest.mark.parametrize(
    ("text", "form", "reason"),
    [
        ('[{"bbox_2d": [1100, 2, 1200, 40]}]', "json", "the shape that begins at .* is outside"),
        (
            "<|object_ref_start|>a<|object_ref_end|><|box_start|>(1,2),(30,40)<|box_end|>"
            "<|object_ref_start|><|object_ref_end|><|box_start|>(5,6),(70,80)<|box_end|>",
            "qwen_vl",
            "a shape without a label",
        ),
    ],
)
def test_an_answer_that_cannot_be_written_is_unparseable(tmp_path, text, form, reason):
    with pytest.raises(ValueError, match=rf"line 1: the answer .* is unparseable \(.*{reason}"):
        one_detection(tmp_path, text, format=form)


@pytest.mark.parametrize("value", [0, 1.5, -0.2, True, "some", None])
def test_settings_that_do_not_fit_are_one_sentence(value):
    with pytest.raises(ValueError, match=r"^keep_answers is all, parseable or a share above 0"):
        DataSource(synthetic=FEW, answers="a.jsonl", keep_answers=value)


def test_answers_are_for_training_sources():
    answered = DataSource(synthetic=FEW, answers="a.jsonl")
    with pytest.raises(ValueError, match="keep_answers requires answers; set it, too"):
        DataSource(synthetic=FEW, keep_answers=0.5)
    with pytest.raises(ValueError, match="test sets answers, which only training sources have"):
        DataConfig(train=DataSource(synthetic=FEW), test=answered)
    with pytest.raises(ValueError, match="data sets answers, which only training sources have"):
        EvaluateConfig(every_steps=1, data=answered)


def test_a_config_names_the_file(tmp_path):
    changes = ("data.train.answers=a.jsonl", "data.train.keep_answers=0.5")
    source = small_config(tmp_path, *changes).data.train
    assert (source.answers, source.keep_answers) == ("a.jsonl", 0.5)
