"""Every config that ships does its job, on the tiny twin of its family."""

import pytest
from rows_of_tasks import written_rows
from synthetic_rows import GENERATOR_OF, data_for, rows_for
from tiny_models import CACHE

from mm_numeric.config.data import EvaluateConfig
from mm_numeric.config.reader import CONFIGS, read_config
from mm_numeric.evaluation.score import score
from mm_numeric.inference.generate import predict
from mm_numeric.training.run import train

SHIPPED = sorted(path.stem for path in CONFIGS.glob("*.yaml"))
SMALL = (
    "model.name=tiny",
    "model.dtype=float32",
    f"data.cache={CACHE}",
    "trainer.deepspeed=null",
    "trainer.max_steps=1",
    "trainer.save_strategy='no'",
    "trainer.logging_steps=1",
    "trainer.dataloader_num_workers=0",
    "trainer.per_device_train_batch_size=2",
    "trainer.gradient_accumulation_steps=1",
    "predict.max_new_tokens=8",  # tiny models have few positions
)


@pytest.mark.slow
@pytest.mark.parametrize("name", SHIPPED)
def test_a_config_trains_and_answers(name, tmp_path):
    small = [*SMALL, f"trainer.output_dir={tmp_path / 'run'}"]
    config = read_config(name, small)
    if config.data.train.synthetic is not None:
        small += ["data.train.synthetic.rows=4", "data.test.synthetic.rows=2"]
    elif config.task_name in GENERATOR_OF:
        drawn = {"shape": config.task.shape} if config.task_name == "detection" else {}
        small += data_for(config.task_name, 4, 2, **drawn)
    else:
        train_rows, test_rows = (written_rows(config.task_name, tmp_path, n) for n in (4, 2))
        small += [f"data.train={{path: {train_rows}}}", f"data.test={{path: {test_rows}}}"]
    if config.evaluate != EvaluateConfig():
        data = rows_for(config.task_name, 2, 3)
        small.append(f"evaluate={{every_steps: 1, data: {data}}}")
    config = read_config(name, small)
    train(config)
    predictions = tmp_path / "predictions.jsonl"
    assert predict(config.output_dir, None, predictions) == 2
    assert len(score(predictions, write=False).rows) == 2
    log = (config.output_dir / "log.jsonl").read_text(encoding="utf-8")
    assert all(f'"{term.name}"' in log for term in config.objective.spec.terms)
