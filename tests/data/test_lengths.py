"""Rows that are too long for a limit or for the model, and rows grouped by length."""

import bisect
import copy
import dataclasses
import json
import pickle
import shutil
from functools import partial

import numpy as np
import pytest
import torch
from check_data_runs import config_of, kinds
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from mixed_rows import Counts, write_mixed
from rectangles import large, write_rectangles
from sums import sums_config
from tiny_models import small_config, tiny_family
from transformers import (
    AutoConfig,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlavaConfig,
    MptConfig,
    T5Config,
)

from mm_numeric.answers import Box
from mm_numeric.compat import length_grouped_indices
from mm_numeric.config.data import DataSource
from mm_numeric.config.schema import ModelConfig
from mm_numeric.data.collator import TrainingCollator, make_collator
from mm_numeric.data.examples import load_examples
from mm_numeric.data.image_cache import ImageCache
from mm_numeric.data.lengths import (
    EpochSampler,
    LengthLimit,
    TooLongError,
    fits_in_any_case,
    max_positions,
    most_image_tokens,
)
from mm_numeric.data.training_set import TrainingRows
from mm_numeric.evaluation.check_data.check import check_data
from mm_numeric.evaluation.check_data.text import report_text
from mm_numeric.families.qwen2_vl import Qwen2VL
from mm_numeric.inference.generate import predict
from mm_numeric.models.loading import load_family
from mm_numeric.registry import FAMILIES, choose
from mm_numeric.tasks.grounding import Grounding
from mm_numeric.training.run import train

LLAMA_3_1 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
             "original_max_position_embeddings": 8192}  # fmt: skip


def with_limit(collator, most, too_long):
    return dataclasses.replace(collator, length_limit=LengthLimit(most, too_long))


@pytest.mark.parametrize("limits_are_close", [False, True])
def test_the_length_of_a_row_is_that_of_what_the_model_is_given(tmp_path, limits_are_close):
    """Also where an image as it is seen would be resized once more: see the tests of the cache."""
    examples, collator = large(tmp_path, *((211, 130) if limits_are_close else ()))
    if limits_are_close:
        collator = dataclasses.replace(collator, family=tiny_family())
    for example, length in zip(examples, collator.lengths(examples), strict=True):
        assert collator([example])["input_ids"].shape == (1, length)


def test_a_row_that_is_too_long_is_rejected_with_its_length(tmp_path):
    examples, collator = large(tmp_path)
    (length, _) = collator.lengths(examples)
    message = rf"line 1: the row '0' has {length} tokens, \d+ of them for its image, and "
    with pytest.raises(TooLongError, match=message):
        with_limit(collator, length - 1, "stop")(examples)
    assert len(with_limit(collator, length, "stop")(examples[:1])["input_ids"]) == 1


@pytest.mark.parametrize("fewer", [1, 10, 50])
def test_an_image_is_made_smaller_until_its_row_fits(tmp_path, fewer):
    """Its answer is whole, and says the same place of the original image."""
    examples, plain = large(tmp_path)
    most = plain.lengths(examples)[0] - fewer
    collator = with_limit(plain, most, "resize")
    batch, whole = collator(examples[:1]), plain(examples[:1])
    assert most - 30 < batch["input_ids"].shape[1] <= most
    assert torch.equal(batch["labels"], whole["labels"])  # Qwen2-VL's are parts of the image
    image, frame = collator.load_image(examples[0])
    assert image.size == (frame.view.width_px, frame.view.height_px)
    assert (frame.width_px, frame.height_px) == (400, 300)
    read = Grounding().parse(Grounding().format(examples[0].answer, frame).text, frame)
    assert isinstance(read, Box)
    pairs = zip(dataclasses.astuple(read), dataclasses.astuple(examples[0].answer), strict=True)
    for found, wanted in pairs:
        assert abs(found - wanted) <= 400 / 1000


def test_an_image_that_cannot_be_made_smaller_is_rejected(tmp_path):
    examples, collator = large(tmp_path)
    with pytest.raises(TooLongError, match="its image cannot be made small enough"):
        with_limit(collator, 12, "resize")(examples)


@pytest.mark.slow
def test_rows_are_dropped_with_a_count(tmp_path, logged):
    """Of the list before it is trained on; of a stream when they are read."""
    rows = write_mixed(tmp_path / "rows", "tptt")
    examples = load_examples(Counts(), DataSource(path=str(rows)), tmp_path, training=True)
    family = tiny_family()
    text, shown, *_ = TrainingCollator(family, Counts(), family.vocabulary()).lengths(examples)
    assert text < shown
    overrides = (
        "task={name: 'mixed_rows:Counts'}", f"data.test={{path: {rows}}}",
        f"data.max_tokens={shown - 1}",
        "trainer.save_strategy='no'", "trainer.max_steps=3",
    )  # fmt: skip
    with pytest.raises(ValueError, match=r"line 2: the row '1' has \d+ tokens") as caught:
        train(small_config(tmp_path / "stop", *overrides, f"data.train={{path: {rows}}}"))
    assert "\n" not in str(caught.value)
    overrides += ("data.too_long=drop",)
    listed = small_config(tmp_path / "list", *overrides, f"data.train={{path: {rows}}}")
    train(listed)
    (line,) = [text for text in logged.getvalue().splitlines() if "1 rows dropped: " in text]
    assert line.endswith(f" of them for its image, and data.max_tokens is {shown - 1}.")
    facts = json.loads((listed.output_dir / "run.json").read_text())
    assert (facts["rows"], facts["rows_too_long"], facts["rows_skipped"]) == (3, 1, 0)
    stream = small_config(
        tmp_path / "stream", *overrides, f"data.train={{path: {rows}}}", "data.stream=true"
    )
    train(stream)
    facts = json.loads((stream.output_dir / "run.json").read_text())
    assert (facts["rows"], facts["rows_sha256"], facts["rows_skipped"]) == (None, None, 1)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["causal_lm", "t5"])
def test_a_batch_whose_rows_are_all_dropped_is_a_step(tmp_path, family):
    """Also where there is no image that could stand in."""
    config = sums_config(tmp_path, family, max_steps=8, per_device_train_batch_size=1)
    long = dataclasses.replace(config.data, stream=True, max_tokens=8, too_long="drop")
    train(dataclasses.replace(config, data=long))
    facts = json.loads((config.output_dir / "run.json").read_text())
    assert (facts["steps"], facts["rows"]) == (8, None)
    assert 0 < facts["rows_skipped"] < 8


@pytest.mark.parametrize("too_long", ["stop", "drop", "resize"])
def test_check_data_says_what_becomes_of_long_rows(tmp_path, too_long):
    """Of what is trained on alone; of rows that are resized the tokens that are left count."""
    rows = write_rectangles(tmp_path / "rows", 2, 400, 300)
    model = {"name": "tiny", "dtype": "float32", "image_size": {"max_pixels": 400 * 300}}
    config = config_of(tmp_path, rows, model=model)
    config = dataclasses.replace(
        config, data=dataclasses.replace(config.data, max_tokens=100, too_long=too_long)
    )
    report = check_data(config)
    train, test = report.sources
    assert len(test.examples) == 2
    assert report.ready == (too_long != "stop")
    assert len(train.too_long) == (2 if too_long == "drop" else 0)
    assert any("2 rows have more than 100 tokens" in n for n in report.notes) == bool(
        train.too_long
    )
    tokens = [t.question_tokens + t.answer_tokens for t in train.examples]
    assert len(tokens) == (2 if too_long == "resize" else 0)
    assert all(70 < count <= 100 for count in tokens)


def test_rows_of_a_step_are_of_one_length_and_each_is_there_once():
    lengths = [int(n) for n in np.random.default_rng(0).integers(1, 200, 64)]
    epochs = [0, 0, 1]
    order = EpochSampler(
        partial(length_grouped_indices, lengths, 4), seed=1, epoch=lambda: epochs.pop(0)
    )
    first, same, other = list(order), list(order), list(order)
    assert sorted(first) == sorted(other) == list(range(64))
    assert first == same != other
    spread = np.mean([np.ptp([lengths[i] for i in first[k : k + 4]]) for k in range(4, 64, 4)])
    assert spread < 60 < np.mean([np.ptp(lengths[k : k + 4]) for k in range(0, 64, 4)])


@pytest.mark.slow
def test_a_run_with_grouped_rows_goes_on_in_the_same_order(tmp_path):
    rows = write_mixed(tmp_path / "rows", "tptttptt")
    seen = []
    for name in ("whole", "cut"):
        config = small_config(
            tmp_path / name, "task={name: 'mixed_rows:Counts'}",
            f"data={{train: {{path: {rows}}}, test: {{path: {rows}}}}}", "trainer.max_steps=5",
            "trainer.train_sampling_strategy=group_by_length", "trainer.logging_steps=1",
            "trainer.save_steps=3", "trainer.save_total_limit=null", "evaluate=null",
        )  # fmt: skip
        train(config)
        if name == "cut":
            for leftover in ("model", "checkpoint-5"):
                shutil.rmtree(config.output_dir / leftover)
            (config.output_dir / "run.json").unlink()
            train(config, resume=True)
        seen.append([json.loads(line)["loss"] for line in (config.output_dir / "log.jsonl").open()])
    assert seen[0] == seen[1]
    assert len(seen[0]) == 5


@pytest.mark.slow
def test_workers_make_the_same_batches(tmp_path):
    """Of a list and of a stream, with an image that cannot be read among them."""
    rows = write_mixed(tmp_path / "rows", "tptp")
    (tmp_path / "rows" / "3.png").write_bytes(b"no image")
    logs = []
    for workers in (0, 2):
        for stream in ("false", "true"):
            config = small_config(
                tmp_path / f"{workers}{stream}", "task={name: 'mixed_rows:Counts'}",
                f"data={{train: {{path: {rows}}}, test: {{path: {rows}}}, stream: {stream}}}",
                "data.on_bad_image=skip", f"data.image_cache={tmp_path / 'cache'}",
                "trainer.max_steps=2", "trainer.save_strategy='no'", "trainer.logging_steps=1",
                f"trainer.dataloader_num_workers={workers}", "evaluate=null",
            )  # fmt: skip
            train(config)
            logs.append(
                [json.loads(line)["loss"] for line in (config.output_dir / "log.jsonl").open()]
            )
    assert logs[:2] == logs[2:]


def test_workers_can_be_started_anew(tmp_path):
    """As ``dataloader_multiprocessing_context: spawn`` does: what they need is sent to them."""
    examples, collator = large(tmp_path)
    collator = with_limit(collator, 100, "resize")
    collator = dataclasses.replace(collator, image_cache=ImageCache(tmp_path / "cache"))
    sent = pickle.loads(pickle.dumps((collator, examples)))
    assert torch.equal(sent[0](sent[1])["pixel_values"], collator(examples)["pixel_values"])


def scaled(positions, **rope):
    return LlamaConfig(max_position_embeddings=positions, rope_parameters=rope)


@pytest.mark.parametrize(
    ("config", "positions"),
    [
        (GPT2Config(), 1024),
        (MptConfig(max_seq_len=2048), 2048),
        (LlavaConfig(text_config=LlamaConfig(max_position_embeddings=4096)), 4096),
        (T5Config(n_positions=512), None),  # T5's positions are relative, despite this entry
        (LlamaConfig(max_position_embeddings=4096), 4096),
        # The documentation of Qwen2.5 extends 32,768 positions to 131,072 in this way.
        (scaled(32768, rope_type="yarn", factor=4.0, original_max_position_embeddings=32768),
         131072),
        (scaled(131072, rope_type="yarn", factor=4.0, original_max_position_embeddings=32768),
         131072),
        (scaled(4096, rope_type="linear", factor=4.0), 16384),  # Vicuna 1.5 with 16k
        (scaled(4096, rope_type="dynamic", factor=2.0), 8192),
        (scaled(131072, **LLAMA_3_1), 131072),
        (Gemma3TextConfig(max_position_embeddings=131072), 131072),
    ],
)  # fmt: skip
def test_the_positions_of_a_model_are_read_from_its_configuration(config, positions):
    assert max_positions(config) == positions


def with_positions(config, folder, positions):
    """Return a config whose tiny model is saved in a folder, with another number of positions."""
    source = folder / "small"
    choose(config.model.family, FAMILIES, "family", "test").make_tiny(source, seed=0)
    saved = AutoConfig.from_pretrained(source)
    saved.get_text_config().max_position_embeddings = positions
    saved.save_pretrained(source)
    if isinstance(saved, GPT2Config):  # its positions have weights
        GPT2LMHeadModel(saved).save_pretrained(source)
    model = dataclasses.replace(config.model, name=str(source))
    return dataclasses.replace(config, model=model)


@pytest.mark.parametrize("stream", [False, True])
def test_a_row_longer_than_the_model_stops_before_a_step_on_it(tmp_path, stream):
    config = with_positions(sums_config(tmp_path, "causal_lm", save_strategy="no"), tmp_path, 12)
    config = dataclasses.replace(
        config,
        data=dataclasses.replace(config.data, stream=stream),
        predict=dataclasses.replace(config.predict, max_new_tokens=4),
    )
    message = r"line \d: the row '\d' has \d+ tokens, and the model has 12 positions; remove the ro"
    with pytest.raises(ValueError, match=message):
        train(config)
    assert not (config.output_dir / "model").exists()


def test_an_image_row_longer_than_the_model_is_found_by_train_and_by_check_data(tmp_path):
    rows = write_rectangles(tmp_path / "rows", 2, 400, 300)
    model = {"name": "tiny", "dtype": "float32", "image_size": {"max_pixels": 400 * 300}}
    config = with_positions(config_of(tmp_path, rows, model=model), tmp_path, 100)
    family = load_family(config, config.model.name)
    with pytest.raises(TooLongError, match=r"100 positions; use smaller images \(model.image_size"):
        TrainingRows(config).for_trainer(make_collator(config, family))
    found = check_data(config)
    assert kinds(found) == {"longer than the model": 2}
    assert "and the model has 100 positions" in report_text(found)
    with pytest.raises(
        ValueError, match=r"test, data.max_tokens: it is 101, and the model has 100"
    ):
        make_collator(
            dataclasses.replace(config, data=dataclasses.replace(config.data, max_tokens=101)),
            family,
        )
    dropping = dataclasses.replace(config.data, max_tokens=100, too_long="resize")
    dropping = dataclasses.replace(config, data=dropping)
    assert len(TrainingRows(dropping).for_trainer(make_collator(dropping, family))) == 2


def test_new_tokens_beyond_the_positions_are_found_before_training(tmp_path):
    config = with_positions(sums_config(tmp_path, "causal_lm"), tmp_path, 64)
    most = dataclasses.replace(config.predict, max_new_tokens=64)
    with pytest.raises(ValueError, match=r"predict.max_new_tokens is 64, and the model has 64 pos"):
        train(dataclasses.replace(config, predict=most))
    assert not list(config.output_dir.glob("checkpoint*"))


@pytest.mark.slow
def test_predict_and_check_data_name_a_question_that_leaves_too_few_positions(tmp_path):
    config = sums_config(tmp_path, "causal_lm", max_steps=1, save_strategy="no")
    config = with_positions(config, tmp_path, 64)
    train(config)
    out = tmp_path / "predictions.jsonl"
    with pytest.raises(
        TooLongError, match=r"tokens 60 it needs more than the 64 positions.*most \d"
    ):
        predict(config.output_dir, None, out, max_new_tokens=60, trust_remote_code=True)
    assert (
        predict(
            config.output_dir, None, tmp_path / "b.jsonl", max_new_tokens=40, trust_remote_code=True
        )
        == 8
    )
    most = dataclasses.replace(config.predict, max_new_tokens=60)
    found = check_data(dataclasses.replace(config, predict=most))
    assert kinds(found, 0) == {}
    assert kinds(found, 1) == {"longer than the model with predict.max_new_tokens": 8}


def test_rows_that_fit_in_any_case_are_not_opened(tmp_path):
    """The images of this source cannot be read, and no row declares their size."""
    rows = write_rectangles(tmp_path / "rows", 2)
    for image in (tmp_path / "rows").glob("*.png"):
        image.write_bytes(b"")
    config = config_of(tmp_path, rows)
    family = copy.copy(tiny_family())
    family.max_positions = 2048
    assert len(TrainingRows(config).for_trainer(make_collator(config, family))) == 2
    family.max_positions = 60
    with pytest.raises(ValueError, match="cannot be read"):
        TrainingRows(config).for_trainer(make_collator(config, family))


@pytest.mark.slow
@given(st.integers(1, 3000), st.integers(1, 3000), st.sampled_from([56 * 56, 100 * 100, 10**6]))
@examples(200)
def test_no_image_has_more_tokens_than_the_bound(width, height, max_pixels):
    if max(width, height) > 200 * min(width, height):
        return
    family = copy.copy(tiny_family())
    family.resize = dataclasses.replace(family.resize, min_pixels=56 * 56, max_pixels=max_pixels)
    tokens = family.resize.view(width, height)
    count = tokens.width_px * tokens.height_px // family.resize.factor**2
    assert count <= most_image_tokens(family)


@pytest.mark.parametrize("coordinates", ["qwen2_vl", "qwen2_5_vl", "unit_3", "pixels_original"])
def test_a_row_that_fits_in_any_case_fits(tmp_path, coordinates):
    rows = write_rectangles(tmp_path / "rows", 4, 500, 400)
    model = {"name": "tiny", "dtype": "float32", "coordinates": coordinates}
    config = config_of(tmp_path, rows, model=model)
    (tmp_path / "tiny").mkdir()
    Qwen2VL.make_tiny(tmp_path / "tiny", seed=0)
    family = Qwen2VL.load(
        str(tmp_path / "tiny"), ModelConfig(name="tiny", dtype="float32", coordinates=coordinates)
    )
    frame = family.frame(500, 400)
    collate = TrainingCollator(family, config.task, family.vocabulary())
    for example in load_examples(config.task, config.data.train, tmp_path, training=True):

        def fits(positions, example=example):
            family.max_positions = positions
            return fits_in_any_case(family, config.task, example)

        fewest = bisect.bisect_left(range(10_000), True, key=fits)
        assert fits(fewest)
        assert fewest >= collate.count(example, frame).total
