"""Extra tokens for the beginnings of all answers: one forward pass equals one for each answer."""

import json
import math
from dataclasses import replace

import pytest
import torch
from sized_rows import loaded
from tiny_families import make_tiny_paligemma
from tiny_models import TINY, clocks, examples_of, small_config, tiny_folder
from train_runs import cut_off, weights

from mm_numeric.answers import ClockTime, Number
from mm_numeric.data.collator import BATCH_KEYS, TrainingCollator
from mm_numeric.losses.answer_tree import AnswerProbabilities
from mm_numeric.models.loading import load_family
from mm_numeric.training import task_answers
from mm_numeric.training.answer_nodes import answer_nodes_error, with_nodes
from mm_numeric.training.image_positions import with_image_positions
from mm_numeric.training.output_head import output_head
from mm_numeric.training.run import train
from mm_numeric.training.task_answers import make_answer_tree
from mm_numeric.training.trainer import NumericTrainer

pytestmark = pytest.mark.slow

FAMILIES = ["qwen2_5_vl", "qwen3_vl", "internvl", "idefics3", "glm4v"]


def inputs_of(batch):
    """Return the arguments of the model."""
    inputs = {name: value for name, value in batch.items() if name not in BATCH_KEYS}
    if "image_inputs" in inputs:
        inputs.update(inputs.pop("image_inputs").arguments())
    return inputs


def alone(model, collate, examples, tree, answer):
    """Return the log probability of an answer in each row, from a batch with it as the label."""
    batch = collate([replace(example, answer=answer) for example in examples])
    with torch.no_grad():
        logits = model(**inputs_of(batch)).logits[batch["supervised"]]
    rows = len(examples)
    found, labels = logits.unflatten(0, (rows, -1)), batch["labels"].unflatten(0, (rows, -1))
    total = torch.zeros(rows, dtype=torch.float64)
    for row in range(rows):
        ids = labels[row].tolist()
        for step, token in enumerate(ids):
            after = sorted({a[step] for a in tree.answers if list(a[:step]) == ids[:step]})
            total[row] += found[row, step, after].log_softmax(0)[after.index(token)]
    return total


def check(model, collator, examples, tree, answers, *, has_bool_mask):
    """Compare the probabilities, cross-entropy and its gradient with those of plain batches.

    ``answers`` are the places of some answers in the tree, and the answers.
    """
    model = model.double().eval()
    collate = with_image_positions(model, collator.family, collator)
    batch = collate(examples)
    inputs, spans, supervised = inputs_of(batch), batch["spans"], batch["supervised"]
    nodes = with_nodes(inputs, tree, spans, supervised, has_bool_mask=has_bool_mask)
    n, losses, gradients = len(batch["labels"]), [], []
    logits = model(**nodes.inputs).logits.flatten(0, 1)[nodes.positions]
    found = AnswerProbabilities.of(tree, logits[n:][:, tree.ids], spans).probs.log()
    for at, answer in answers.items():
        wanted = alone(model, collate, examples, tree, answer)
        torch.testing.assert_close(found[:, at], wanted, rtol=0, atol=1e-5)
    for own in (model(**inputs).logits.flatten(0, 1)[spans.supervised], logits[:n]):
        model.zero_grad()
        losses.append(torch.nn.functional.cross_entropy(own, batch["labels"]))
        losses[-1].backward()
        gradients.append([p.grad for p in model.parameters() if p.grad is not None])
    torch.testing.assert_close(*losses, rtol=1e-6, atol=0)
    largest = max(gradient.abs().max() for gradient in gradients[0])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6 * largest.item())
    arguments = model, output_head(model), inputs, nodes, tree, spans, supervised
    assert answer_nodes_error(*arguments, low_precision=False) is None


@pytest.mark.parametrize(
    ("name", "attention"),
    [
        ("qwen2_vl", "sdpa"),
        pytest.param("qwen2_vl", "eager", marks=pytest.mark.slow),
        *(pytest.param(name, "sdpa", marks=pytest.mark.slow) for name in FAMILIES),
    ],
)
def test_times_are_as_probable_as_alone(tmp_path, name, attention):
    """And cross-entropy and its gradient are those without the extra tokens."""
    collator, model = loaded(name, attention)
    task, examples = clocks(2)
    tree = make_answer_tree(small_config(tmp_path, "objective=expected_risk"), collator.family)
    collator = replace(collator, task=task, answer_tree=tree)
    answers = {minutes: ClockTime.from_minutes(minutes) for minutes in (0, 423, 719)}
    check(model, collator, examples, tree, answers, has_bool_mask=attention == "sdpa")


def number_config(folder, *overrides):
    """Return a config that trains a tiny causal language model on numbers from 0 to 120."""
    rows = folder / "rows.jsonl"
    folder.mkdir(exist_ok=True)
    answers = [7, 29, 100, 39, 120, 0, 64, 8]
    rows.write_text(
        "".join(
            f'{{"id": "{i}", "question": "{"so" * i} many?", "answer": {answer}}}\n'
            for i, answer in enumerate(answers)
        )
    )
    source = f"{{path: {rows}}}"
    return small_config(
        folder,
        "task={name: numbers}",
        f"data={{train: {source}, test: {source}}}",
        "model={family: causal_lm, name: tiny, dtype: float32}",
        "objective={preset: expected_risk, answer_range: [0, 120]}",
        "evaluate=null",
        *overrides,
    )


def test_numbers_are_as_probable_as_alone(tmp_path):
    config = number_config(tmp_path)
    family = load_family(config, tiny_folder("causal_lm"))
    tree = make_answer_tree(config, family)
    collator = TrainingCollator(family, config.task, family.vocabulary(), answer_tree=tree)
    model = family.load_model(tiny_folder("causal_lm"), TINY)
    rows = examples_of(config)[:3]
    answers = {n: Number(str(n)) for n in (0, 12, 120)}
    check(model, collator, rows, tree, answers, has_bool_mask=True)


# Runs


def log_of(config):
    lines = (config.output_dir / "log.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_micro_batches_give_the_losses_of_one_batch(tmp_path):
    logs = []
    for name, size, parts in (("a", 4, 1), ("b", 2, 2)):
        config = number_config(
            tmp_path / name,
            f"trainer.per_device_train_batch_size={size}",
            f"trainer.gradient_accumulation_steps={parts}",
            "trainer.save_strategy='no'",
            "trainer.max_steps=4",
        )
        train(config)
        logs.append(log_of(config))
        facts = json.loads((config.output_dir / "run.json").read_text())
        assert facts["extra_tokens_per_row"] == 9 + 3
    for one, other in zip(*logs, strict=True):
        assert one["components"].keys() == {"ce", "expected_risk"}
        for part, loss in one["components"].items():
            assert other["components"][part] == pytest.approx(loss, rel=1e-3)


def test_a_resumed_run_ends_with_the_same_weights(tmp_path):
    config = number_config(tmp_path, "trainer.save_total_limit=3", "trainer.max_steps=4")
    train(config)
    whole = weights(config.output_dir)
    cut_off(config.output_dir, 2)
    train(config, resume=True)
    resumed = weights(config.output_dir)
    assert all(torch.equal(resumed[name], weight) for name, weight in whole.items())


def test_the_loss_falls_also_in_chunks(tmp_path, monkeypatch):
    monkeypatch.setattr(NumericTrainer, "chunked_from", 1)
    settings = ("trainer.max_steps=12", "trainer.save_strategy='no'", "trainer.learning_rate=0.01")
    config = number_config(tmp_path / "a", *settings)
    train(config)
    monkeypatch.setattr(NumericTrainer, "chunked_from", math.inf)
    other = number_config(tmp_path / "b", *settings)
    train(other)
    found, wanted = log_of(config), log_of(other)
    assert found[0]["components"] == pytest.approx(wanted[0]["components"], rel=1e-4)
    assert found[-1]["components"]["expected_risk"] < found[0]["components"]["expected_risk"] / 2


# Errors


@pytest.mark.parametrize(
    ("overrides", "error"),
    [
        (["data.padding_free=true"], "data.padding_free does not allow; use a decoder"),
        (["model.family=t5"], "model.family T5 does not allow; use a decoder"),
        (
            ["objective=expected_risk"],
            "the answers of task.name are no times; set objective.answer_range",
        ),
        (
            ["objective={preset: expected_risk, answer_range: [0, 100]}"],
            "'120' is not one of the 101 answers of objective.answer_range",
        ),
        (["objective={preset: expected_risk, answer_range: [9, 0]}"], r"not \[9, 0\]"),
    ],
)
def test_settings_that_allow_no_extra_tokens(tmp_path, overrides, error):
    with pytest.raises(ValueError, match=error):
        train(number_config(tmp_path, *overrides))


def test_too_many_answers(tmp_path, monkeypatch):
    monkeypatch.setattr(task_answers, "MOST_EXTRA_TOKENS", 11)
    error = "answer_range needs 12 of them for each row; at most 11 are possible: choose a smaller"
    with pytest.raises(ValueError, match=error):
        train(number_config(tmp_path))


def test_a_model_that_does_not_keep_the_tokens_apart(tmp_path):
    """Each token of a prompt of PaliGemma sees the whole prompt, for which there is no mask."""
    make_tiny_paligemma(tmp_path / "model", 0)
    config = small_config(
        tmp_path,
        f"model={{family: paligemma, name: {tmp_path / 'model'}, dtype: float32}}",
        "objective=expected_risk",
    )
    with pytest.raises(ValueError, match="its attention does not keep them apart"):
        train(config)
