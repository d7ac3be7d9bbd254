"""The losses of an evaluation are means over all tokens and numbers, as in a loop over rows."""

import json
import math
import re
from functools import cache

import evaluated_rows
import pytest
import torch
from evaluated_rows import CASES, EVALUATED, OBJECTIVE, OUR_CASES, evaluated
from processes import Job
from sized_rows import loaded, sized_rows
from tiny_integrations import (
    NUMBERS,
    STEPS,
    TOKENIZER,
    NumericSFTTrainer,
    NumericTrainerForTests,
    by_sft_trainer,
    by_trainer,
    rows,
)
from tiny_models import tiny_causal_lm
from transformers import EarlyStoppingCallback

from mm_numeric import NumericLoss
from mm_numeric.data.collator import BATCH_KEYS

pytestmark = pytest.mark.slow

DIGITS = {TOKENIZER.convert_tokens_to_ids(str(digit)): digit for digit in range(10)}


@cache
def by_loop(rows_read: tuple[int, ...]) -> dict[str, float]:
    """Return the means over rows, one at a time and in float64; each digit run is a number."""
    model = tiny_causal_lm().eval()
    ce, distance, correct, errors = [], [], [], []
    ids = list(DIGITS)
    for i in rows_read:
        row, labels = rows()[i], rows()[i]["labels"]
        with torch.no_grad():
            scores = model(torch.tensor([row["input_ids"]])).logits[0].double()
        for position, label in enumerate([*labels[1:], None]):
            if label in DIGITS:
                probs = scores[position, ids].softmax(0).tolist()
                distance.append(sum(p * abs(d - DIGITS[label]) for d, p in enumerate(probs)))
                correct.append(scores[position].argmax().item() == label)
            if label not in (None, -100):
                ce.append(-scores[position].log_softmax(0)[label].item())
        text = TOKENIZER.decode([label for label in labels if label != -100])
        places = []
        for number in re.findall(r"\d+(?:\.\d+)?", text):
            whole = len(number.partition(".")[0])
            places.append([whole - 1 - k for k in range(len(number.replace(".", "")))])
        misses = iter(
            sum(p * d for d, p in enumerate(scores[at, ids].softmax(0).tolist())) - DIGITS[label]
            for at, label in enumerate(labels[1:])
            if label in DIGITS
        )
        errors += [abs(sum(next(misses) * 10.0**k for k in own)) for own in places]
    return {
        "loss/ce": math.fsum(ce) / len(ce),
        "loss/emd": math.fsum(distance) / len(distance),
        "numbers/accuracy": sum(correct) / len(correct),
        "numbers/error/free": math.fsum(errors) / len(errors),
        "loss": 1.3 * math.fsum(ce) / len(ce),  # as published for emd
    }


@cache
def ours() -> dict[str, float]:
    """Return the means over the rows of ``our_trainer``, one at a time and in float64."""
    collator, model = loaded("qwen2_vl")
    loss_of = NumericLoss(OBJECTIVE, vocabulary=collator.vocabulary)
    totals: dict[str, float] = {}
    items: dict[str, int] = {}
    model.eval()
    for row in sized_rows():
        batch = collator([row])
        inputs = {name: value for name, value in batch.items() if name not in BATCH_KEYS}
        with torch.no_grad():
            logits = model(**inputs).logits[batch["supervised"]].double()
        for name, part in loss_of(logits, batch["labels"], batch["spans"]).sums.items():
            totals[name] = totals.get(name, 0.0) + part.total.item()
            items[name] = items.get(name, 0) + part.items.item()
    mean = {f"loss/{name}": totals[name] / items[name] for name in totals}
    loss = mean["loss/ce"] + 0.3 * (mean["loss/emd"] + mean["loss/own_terms:BoxOverlap"])
    return {**mean, "loss": loss}


def assert_exact(found: dict[str, float], prefix: str, rows_read, wanted=None) -> None:
    for name, value in (wanted or by_loop(tuple(rows_read))).items():
        assert found[f"{prefix}_{name}"] == pytest.approx(value, rel=1e-5), name


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("size", [1, 3, 8])
def test_the_batch_size_changes_nothing(tmp_path, case, size):
    assert_exact(evaluated(tmp_path, case, size), "eval", EVALUATED)


@pytest.mark.parametrize("case", OUR_CASES)
@pytest.mark.parametrize("size", [1, 3])
def test_the_batch_size_of_our_trainer_changes_nothing(tmp_path, case, size):
    assert_exact(evaluated(tmp_path, case, size), "eval", EVALUATED, ours())


def test_two_ranks_count_each_row_once(tmp_path):
    """In batches of 3, accelerate reads 5 of 7 rows twice, and 2 of 4."""
    job = Job(evaluated_rows.main, [str(tmp_path), "3"], tmp_path / "log.txt", ranks=2)
    assert job.wait() == [0, 0], job.text()
    found = json.loads((tmp_path / "metrics.json").read_text())
    assert found.keys() == {*CASES, *OUR_CASES}
    for case, metrics in found.items():
        assert_exact(metrics, "eval", EVALUATED, ours() if case in OUR_CASES else None)


def test_several_data_sets_before_the_first_step(tmp_path):
    loss_of = NumericLoss("emd", vocabulary=NUMBERS)
    parts = {"a": (0, 1, 2), "b": (4, 5)}
    trainer = by_trainer(
        tmp_path,
        NumericTrainerForTests,
        objective=loss_of,
        eval_dataset={name: rows().select(part) for name, part in parts.items()},
        changes={"eval_strategy": "steps", "eval_steps": 5, "eval_on_start": True,
                 "per_device_eval_batch_size": 2},
    )  # fmt: skip
    first = {}
    for line in trainer.state.log_history:
        if line["step"] == 0:
            first |= line
    for name, part in parts.items():
        assert_exact(first, f"eval_{name}", part)
    found = trainer.predict(rows().select((0, 1, 2))).metrics
    assert found["test_loss/emd"] < first["eval_a_loss/emd"]


@pytest.mark.parametrize(
    ("integration", "metric"),
    [
        (by_trainer, "eval_loss/emd"),
        (by_trainer, "numbers/error/free"),
        (by_sft_trainer, "loss/ce"),
    ],
)
def test_a_component_chooses_the_checkpoint(tmp_path, logged, integration, metric):
    cls = NumericTrainerForTests if integration is by_trainer else NumericSFTTrainer
    trainer = integration(
        tmp_path,
        cls,
        objective=NumericLoss("emd", vocabulary=NUMBERS),
        eval_dataset=rows().select(EVALUATED),
        callbacks=[EarlyStoppingCallback(100)],
        changes={"metric_for_best_model": metric, "load_best_model_at_end": True,
                 "learning_rate": 0.3, "eval_strategy": "steps", "eval_steps": 1, "save_steps": 1,
                 "save_strategy": "steps"},
    )  # fmt: skip
    name = f"eval_{metric.removeprefix('eval_')}"
    values = {line["step"]: line[name] for line in trainer.state.log_history if name in line}
    best = min(values, key=values.get)
    assert len(values) == STEPS
    assert trainer.state.best_metric == values[best] < max(values.values())
    assert trainer.state.best_model_checkpoint.endswith(f"checkpoint-{best}")
    assert f"the smallest {metric} is best" in logged.getvalue()


def test_the_metric_of_the_best_checkpoint_exists(tmp_path):
    changes = {"metric_for_best_model": "eval_loss/edm", "eval_strategy": "steps", "eval_steps": 1}
    with pytest.raises(ValueError, match=r"metric_for_best_model: .*'edm'. Did you mean 'emd'\?"):
        by_trainer(
            tmp_path,
            NumericTrainerForTests,
            objective=NumericLoss("emd", vocabulary=NUMBERS),
            eval_dataset=rows(),
            changes=changes,
        )
    largest = {**changes, "metric_for_best_model": "numbers/accuracy"}
    trainer = by_trainer(tmp_path, NumericTrainerForTests, eval_dataset=rows(), changes=largest,
                         objective=NumericLoss("emd", vocabulary=NUMBERS))  # fmt: skip
    assert trainer.args.greater_is_better is True


def test_logits_of_all_positions_are_only_computed_where_they_are_asked_for(tmp_path):
    sizes = []

    class Watched(NumericTrainerForTests):
        chunked_from = 0

        def compute_loss(self, *args, **kwargs):
            loss, outputs = super().compute_loss(*args, **kwargs)
            sizes.append(outputs.logits.numel())
            return loss, outputs

    few = rows().select(EVALUATED)
    trainer = evaluated_rows.trainer(tmp_path, "padded", 8, cls=Watched)
    assert_exact(trainer.evaluate(), "eval", EVALUATED)
    found = trainer.predict(few)
    assert_exact(found.metrics, "test", EVALUATED)
    trainer.compute_metrics = lambda prediction: {"shape": len(prediction.predictions)}
    assert trainer.evaluate()["eval_shape"] == len(few)
    assert sizes[0] < len(TOKENIZER) < sizes[-1]
