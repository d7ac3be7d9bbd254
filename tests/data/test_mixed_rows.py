"""Rows with an image and rows without stand in one training set, under one objective."""

import pytest
import torch
from rows_of_tasks import written_rows
from tiny_models import CACHE

from mm_numeric.config.reader import read_config
from mm_numeric.data.collator import TrainingCollator
from mm_numeric.data.examples import load_examples
from mm_numeric.evaluation.score import score
from mm_numeric.inference.generate import predict
from mm_numeric.models.loading import load_family, load_model, model_source
from mm_numeric.registry import FAMILIES
from mm_numeric.training.run import train

pytestmark = pytest.mark.slow

VISION = [name for name in FAMILIES if name not in ("causal_lm", "t5")]


def mixed(folder, family, *more):
    """Return a config over six problems, every other one with an image."""
    rows = written_rows("gsm8k", folder, 6, images=range(0, 6, 2))
    return read_config(
        "gsm8k_qwen2_5_7b",
        [
            f"model={{family: {family}, name: tiny, dtype: float32}}",
            f"data={{train: {{path: {rows}}}, test: {{path: {rows}}}, cache: {CACHE}}}",
            f"trainer={{output_dir: {folder / 'run'}, max_steps: 2, logging_steps: 1}}",
            "trainer.per_device_train_batch_size=6",
            "evaluate=null",
            *more,
        ],
    )


@pytest.mark.parametrize("family", VISION)
def test_a_mixed_batch_costs_each_row_what_it_costs_alone(tmp_path, family):
    config = mixed(tmp_path, family)
    source = model_source(config, tmp_path / "tiny")
    examples = load_examples(config.task, config.data.train, CACHE, training=True)
    assert [example.image is None for example in examples] == [False, True] * 3
    family = load_family(config, source)
    model = load_model(config, family, source).eval()
    collate = TrainingCollator(family, config.task, family.vocabulary(), every_number=True)

    def logits(batch):
        inputs = {k: v for k, v in batch.items() if k not in ("labels", "spans", "origin")}
        supervised = inputs.pop("supervised")
        with torch.no_grad():
            return model(**inputs).logits[supervised]

    together = collate(examples)
    apart = [collate([example]) for example in examples]
    torch.testing.assert_close(
        logits(together), torch.cat([logits(batch) for batch in apart]), atol=1e-4, rtol=1e-4
    )
    values = torch.cat([batch["spans"].value for batch in apart])
    assert together["spans"].value.tolist() == values.tolist()


@pytest.mark.slow
def test_a_mixed_set_is_trained_on_and_answered(tmp_path):
    config = mixed(tmp_path, "qwen2_vl")
    train(config)
    log = (config.output_dir / "log.jsonl").read_text(encoding="utf-8")
    assert '"relative"' in log
    predictions = tmp_path / "predictions.jsonl"
    assert predict(config.output_dir, None, predictions, max_new_tokens=4) == 6
    rows = score(predictions, write=False).rows
    assert [row["image"] is None for row in rows] == [False, True] * 3
