"""predict.max_new_tokens is what the training answers need, unless a config sets it."""

import json

import pytest
from PIL import Image
from tiny_models import small_config

from mm_numeric.config.data import DataSource
from mm_numeric.data.answer_lengths import longest_answer, new_tokens_for, with_new_tokens
from mm_numeric.data.examples import load_examples
from mm_numeric.data.framing import compute_frame
from mm_numeric.inference.generate import predict
from mm_numeric.models.loading import load_family, model_source
from mm_numeric.training.run import train


def rows(folder, sizes, *, declared):
    """Write a row per number of objects; return the file."""
    lines = []
    for i, count in enumerate(sizes):
        Image.new("RGB", (400, 90 + i)).save(folder / f"{i}.png")
        boxes = [{"box": [3 * n, 1, 300 + n % 90, 80], "label": "cup"} for n in range(count)]
        size = {"width": 400, "height": 90 + i} if declared else {}
        lines.append({"id": str(i), "image": f"{i}.png", "instances": boxes, **size})
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


@pytest.mark.slow
@pytest.mark.parametrize("declared", [True, False])
def test_the_longest_answer_equals_a_loop_over_all(tmp_path, declared):
    path = rows(tmp_path, [0, 3, 12, 12, 5], declared=declared)
    config = small_config(tmp_path, "task=detection", "model.family=qwen2_5_vl")
    family = load_family(config, model_source(config, tmp_path))
    found = load_examples(config.task, DataSource(path=str(path)), tmp_path, training=True)
    expected = 0
    for i, example in enumerate(found):
        frame = compute_frame(family, example, (400, 90 + i))
        tokens = family.answer(config.task.format(example.answer, frame).text).ids
        expected = max(expected, len(tokens))
    assert longest_answer(config.task, family, found) == expected > 100
    measured = with_new_tokens(config, family, found).predict.max_new_tokens
    assert measured == new_tokens_for(expected)
    assert 1.25 * expected <= measured < 1.25 * expected + 1
    fixed = small_config(tmp_path, "task=detection", "predict.max_new_tokens=7")
    assert with_new_tokens(fixed, family, found) is fixed
    assert longest_answer(config.task, family, []) == 0


@pytest.mark.slow
def test_a_run_predicts_with_what_its_training_answers_need(tmp_path):
    """A time has up to 6 tokens with its end; config.yaml stays as it was."""
    config = small_config(tmp_path)
    assert config.predict.max_new_tokens is None
    train(config)
    facts = json.loads((config.output_dir / "run.json").read_text(encoding="utf-8"))
    assert facts["max_new_tokens"] == new_tokens_for(6)
    assert "max_new_tokens: null" in (config.output_dir / "config.yaml").read_text("utf-8")
    out = tmp_path / "predictions.jsonl"
    predict(config.output_dir, None, out)
    made = json.loads(out.with_name(f"{out.name}.made_by.json").read_text(encoding="utf-8"))
    assert made["max_new_tokens"] == new_tokens_for(6)


def test_streamed_answers_are_not_measured(tmp_path):
    config = small_config(tmp_path)
    assert with_new_tokens(config, None, []) is config
    with pytest.raises(ValueError, match=r"predict\.max_new_tokens is not set, and no training"):
        _ = config.predict.new_tokens
