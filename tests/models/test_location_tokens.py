"""Location tokens in models that were trained without them: rows, training, adapters, exports."""

import functools
import json
import re
import runpy
import sys
from pathlib import Path

import pytest
import torch
from adapted_runs import a_batch, adapted_config, logits, run_of
from hypothesis import given, settings
from hypothesis import strategies as st
from run_files import cut_off
from tiny_models import tiny_folder
from transformers import AutoTokenizer, Qwen2VLForConditionalGeneration

from mm_numeric.answers import Box, Instance, Polygon
from mm_numeric.config.reader import config_from_dict
from mm_numeric.data.collator import TrainingCollator
from mm_numeric.data.examples import load_examples
from mm_numeric.geometry.frames import Frame
from mm_numeric.geometry.grammar import list_regex
from mm_numeric.inference.generate import predict
from mm_numeric.losses.numeric_loss import NumericLoss
from mm_numeric.losses.presets import PRESETS
from mm_numeric.models.export import export
from mm_numeric.models.loading import load_family, load_model
from mm_numeric.models.location_tokens import smooth_code
from mm_numeric.training.run import train

pytestmark = pytest.mark.slow

TOKENS = 100
EACH = pytest.mark.parametrize("name", ["qwen2_vl", "chat", "llava"])
"""A family of its own, a chat model, and one whose output head has a weight of its own."""


def config_of(folder, name="qwen2_vl", modules=None, model=None, task=None, **trainer):
    """Return a run that teaches a tiny model to write boxes with location tokens."""
    raw = adapted_config(folder, name, modules, task=task, logging_steps=1, **trainer).to_dict()
    raw["model"] |= {"coordinates": {"tokens": TOKENS}, **(model or {})}
    raw |= {"modules": modules, "lora": None, "predict": {"max_new_tokens": 8}}
    return config_from_dict(raw, where="test", title="test")


@functools.cache
def loaded(name):
    """Return a config, its family and its model, before training."""
    config = config_of(Path(tiny_folder(name)), name)
    family = load_family(config, config.model.name)
    return config, family, load_model(config, family, config.model.name)


@EACH
def test_new_tokens_follow_the_old_ones_and_begin_between_the_digits(name):
    config, family, model = loaded(name)
    before = load_family(config_of(Path("x"), name, model={"coordinates": None}), tiny_folder(name))
    old = len(before.tokenizer)
    names = [f"<loc{number:04d}>" for number in range(TOKENS)]
    assert family.location_tokens() == names
    ids = family.tokenizer.convert_tokens_to_ids(names)
    assert ids == list(range(old, old + TOKENS))
    digits = family.tokenizer.convert_tokens_to_ids(list("0123456789"))
    plain = before.load_model(tiny_folder(name), config.model)
    heads = model.get_output_embeddings(), plain.get_output_embeddings()
    for own, its in ((model.get_input_embeddings(), plain.get_input_embeddings()), heads):
        new, was = own.weight.detach(), its.weight.detach()
        assert torch.equal(new[:old], was[:old])
        assert len(new) % 64 == 0
        assert not new[old + TOKENS :].any()
        mean, spread = was[digits].mean(0), was[digits].std(0)
        code = (new[ids] - mean) / spread
        torch.testing.assert_close(code, smooth_code(TOKENS, new.shape[1]), rtol=1e-3, atol=1e-3)
    assert model.config.get_text_config().vocab_size == len(new)


def test_rows_of_near_numbers_are_similar():
    code = smooth_code(1000, 64)
    assert code.shape == (1000, 64)
    torch.testing.assert_close(code.square().mean(1), torch.ones(1000))
    assert smooth_code(3, 7).shape == (3, 7)
    similar = [torch.cosine_similarity(code[:-by], code[by:]).min() for by in (1, 10, 100)]
    assert similar[0] > 0.8 > similar[1] > similar[2]


@st.composite
def instances(draw):
    """Draw the size of an image, and labelled boxes, polygons and points in it."""
    size = draw(st.tuples(st.integers(56, 400), st.integers(56, 400)))
    point = st.tuples(*(st.floats(0, edge, width=32) for edge in size))
    box = st.builds(lambda a, b: Box(*a, *b), point, point)
    polygon = st.one_of(st.tuples(point), st.lists(point, min_size=3, max_size=5).map(tuple))
    shape = st.one_of(box, st.builds(Polygon, polygon))
    label = st.sampled_from(["", "red circle", "STOP", "2 cats"])
    return size, draw(st.lists(st.builds(Instance, shape, label), min_size=1, max_size=3))


@EACH
@settings(max_examples=25, deadline=None)
@given(drawn=instances())
def test_answers_are_read_to_half_a_step(name, drawn):
    """One token for each coordinate, whose number is its value; the text is that of the tokens."""
    size, items = drawn
    _, family, _ = loaded(name)
    frame = family.frame(*size)
    written = frame.write(items)
    answer = family.answer(written.text)
    assert family.text(answer.ids) == written.text
    if all(len(item.shape.points) > 1 for item in items):
        assert re.fullmatch(list_regex(frame, polygons=True, labels=True), written.text)
    found = family.numbers(written.text, written.marks, answer, _vocabulary(name))
    levels = [level for item in items for point in frame._levels(item.shape) for level in point]
    assert [number.value for number in found] == levels
    assert [len(number.positions) for number in found] == [1] * len(levels)
    read = frame.read(written.text)
    assert [item.label for item in read.items] == [item.label for item in items]
    for own, its in zip(read.items, items, strict=True):
        assert type(own.shape) is type(its.shape)
        for ours, theirs in zip(own.shape.points, its.shape.points, strict=True):
            for a, b, step in zip(ours, theirs, frame.step_px, strict=True):
                assert abs(a - b) <= step / 2 + 1e-6


@functools.cache
def _vocabulary(name):
    return loaded(name)[1].vocabulary()


def test_emd_and_crps_are_those_of_one_softmax():
    config, family, model = loaded("qwen2_vl")
    examples = load_examples(config.task, config.data.train, Path("x"), training=True)
    batch = TrainingCollator(family, config.task, family.vocabulary())(examples)
    scores = logits(config, family, model)[batch["supervised"]]
    ids = family.tokenizer.convert_tokens_to_ids(family.location_tokens())
    emd, crps, count = 0.0, 0.0, 0
    for row, label in zip(scores.double(), batch["labels"].tolist(), strict=True):
        if label not in ids:
            continue
        own, cumulative = ids.index(label), 0.0
        for j, prob in enumerate(row[ids].softmax(0).tolist()):
            emd += prob * abs(j - own)
            cumulative += prob
            crps += (cumulative - (own <= j)) ** 2
        count += 1
    assert count == 4 * len(examples)
    for preset, total in (("ntl_was", emd), ("rps", crps)):
        objective = NumericLoss(PRESETS[preset], vocabulary=family.vocabulary())
        found = objective(scores, batch["labels"], batch["spans"], shift=False).sums[preset]
        unit = 9 / (TOKENS - 1)  # of `scale: range`
        assert found.items == count
        assert found.total.item() == pytest.approx(total * unit, rel=1e-4)


def losses(config):
    """Return the logged losses of a run."""
    lines = (config.output_dir / "log.jsonl").read_text(encoding="utf-8").splitlines()
    return [row["loss"] for row in map(json.loads, lines) if "loss" in row]


def changed_rows(before, after):
    """Return the rows of a table that differ."""
    return (before != after).any(dim=1).nonzero().flatten().tolist()


@pytest.mark.parametrize("name", ["chat", "llava"])
def test_the_first_stage_trains_the_rows_of_location_tokens_alone(tmp_path, name):
    config = config_of(tmp_path, name, {"embeddings": "location_tokens"}, max_steps=8)
    train(config)
    first, *_, last = losses(config)
    assert last < first
    family, model = run_of(config)
    trained = logits(config, family, model)
    export(config.output_dir, tmp_path / "exported")
    again = load_family(config, str(tmp_path / "exported"))
    whole = load_model(config, again, str(tmp_path / "exported")).eval()
    torch.testing.assert_close(logits(config, again, whole), trained, rtol=1e-4, atol=1e-4)
    before, after = dict(loaded(name)[2].named_parameters()), dict(whole.named_parameters())
    assert before.keys() == after.keys()
    ids = family.tokenizer.convert_tokens_to_ids(family.location_tokens())
    tables = {n for n in before if not torch.equal(before[n], after[n])}
    assert len(tables) == (2 if name == "llava" else 1)  # embeddings, and a head of its own
    for table in tables:
        rows_changed = changed_rows(before[table], after[table])
        assert set(rows_changed) <= set(ids)
        assert len(rows_changed) >= 20  # each coordinate of eight boxes
    second = config_of(
        tmp_path / "2", name, model={"name": str(tmp_path / "exported")}, max_steps=2
    )
    train(second)  # the second stage: every module, from the rows of the first
    assert losses(second)[0] == pytest.approx(last, abs=abs(first - last))


@pytest.mark.parametrize("name", ["qwen2_vl", "llava"])
def test_adapters_keep_and_resume_the_rows(tmp_path, name):
    config = config_of(
        tmp_path, name, {"language": "adapted"}, save_strategy="steps", save_steps=1, max_steps=2
    )
    assert config.modules.of("embeddings").how == "location_tokens"
    train(config)
    saved = json.loads((config.output_dir / "model/adapter_config.json").read_text())
    assert len(saved["trainable_token_indices"]) == (2 if name == "llava" else 1)
    family, model = run_of(config)
    trained = logits(config, family, model)
    export(config.output_dir, tmp_path / "exported")
    again = load_family(config, str(tmp_path / "exported"))
    whole = load_model(config, again, str(tmp_path / "exported")).eval()
    torch.testing.assert_close(logits(config, again, whole), trained, rtol=1e-4, atol=1e-4)
    cut_off(config.output_dir, 1)
    train(config, resume=True)
    assert torch.equal(logits(config, *run_of(config)), trained)
    changes = {"embeddings": "frozen", "language": "adapted"}
    other = config_of(
        tmp_path / "2", name, changes, model={"name": str(config.output_dir / "model")}
    )
    with pytest.raises(ValueError, match="holds adapters with other location tokens; continue"):
        train(other)


def plain_outputs(folder, inputs, monkeypatch):
    """Return what transformers alone computes from an exported model, and a decoded text."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "mm_numeric"]:
        monkeypatch.setitem(sys.modules, name, None)  # cannot be imported
    model = Qwen2VLForConditionalGeneration.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer("<loc0007><loc0099> a").input_ids
    with torch.no_grad():
        return model(**inputs).logits, tokenizer.decode(ids, skip_special_tokens=True)


def test_an_export_is_plain_transformers_and_is_predicted_and_scored(tmp_path, monkeypatch):
    config = config_of(tmp_path, max_steps=2)
    train(config)
    run = config.output_dir
    assert predict(run, None, run / "predictions.jsonl", constrain=True) == 8
    lines = (run / "predictions.jsonl").read_text(encoding="utf-8").splitlines()
    for row in map(json.loads, lines):
        assert row["reason"] is None
        assert row["frame"]["coordinates"]["tokens"] == TOKENS
        again = Frame.from_dict(row["frame"])
        assert config.task.record(config.task.parse(row["text"], again)) == row["parsed"]
    script = runpy.run_path(str(Path(__file__).parents[2] / "scripts/experiments/answer_tokens.py"))
    assert script["mean_tokens"](run) == 5  # four coordinates, and the end
    assert predict(run, None, run / "predictions.median.jsonl", decode="median") == 8
    export(run, tmp_path / "exported")
    family, model = run_of(config)
    ours = logits(config, family, model)
    inputs = a_batch(config, family)
    theirs, text = plain_outputs(tmp_path / "exported", inputs, monkeypatch)
    assert text == "<loc0007><loc0099> a"
    assert torch.equal(theirs, ours)


@pytest.mark.parametrize(
    ("model", "modules", "task", "message"),
    [
        ({"coordinates": {"tokens": 2}}, None, None, r"coordinates: tokens is 3 to 10000, not 2"),
        (
            {"coordinates": {"tokens": 9, "format": "json"}},
            None,
            None,
            r"tokens needs a format whose coordinates are tokens, loc, location, florence2",
        ),
        (
            {"coordinates": {"tokens": 9, "max_value": 20}},
            None,
            None,
            r"coordinates from 0 to 8 and requires max_value 8",
        ),
        ({}, None, "clock", r"the task 'clock' are no coordinates, so that location tokens would"),
        ({}, {"vision": "location_tokens"}, None, r"vision is location_tokens, and only embed"),
        ({}, {"head": "location_tokens"}, None, r"head is location_tokens, so embeddings must be"),
    ],
)
def test_bad_settings_are_one_sentence(tmp_path, model, modules, task, message):
    with pytest.raises(ValueError, match=message) as error:
        config_of(tmp_path, modules=modules, model=model, task=task)
    assert "\n" not in str(error.value)


def test_digits_have_no_rows_of_location_tokens(tmp_path):
    modules = {"embeddings": "location_tokens"}
    config = config_of(tmp_path, modules=modules, model={"coordinates": None})
    with pytest.raises(ValueError, match=r"modules\.embeddings: .* written with digits"):
        train(config)
