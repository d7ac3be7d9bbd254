"""What a line of the log says of numbers, gradients and speed: what loops over its batches say.

Two ranks and ZeRO are in test_ranks.py.
"""

import math
import re
import time

import pytest
import torch
from number_scanner import read
from rectangles import write_rectangles
from sums import sums_config
from tiny_models import small_config
from transformers import TrainerCallback

from mm_numeric.data.collator import make_collator
from mm_numeric.data.examples import load_examples
from mm_numeric.models.loading import load_family, model_source
from mm_numeric.training.callbacks.throughput import peak_gib
from mm_numeric.training.gradient_norms import ClippedSteps
from mm_numeric.training.run import make_trainer, training_arguments
from mm_numeric.training.unread import read as read_values

pytestmark = pytest.mark.slow

ROLES = {
    "qwen2_vl": ["hour", "minute"],
    "paligemma": ["y", "x", "y", "x"],
    "causal_lm": ["free"] * 2,
    "t5": ["free"] * 2,
}
WINDOW = 2  # steps of two micro-batches


class Spy(TrainerCallback):
    """Keeps what every other callback is shown."""

    def __init__(self, parts):
        """Begin with nothing."""
        self.parts, self.lines, self.norms = parts, [], []

    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in logs:
            self.lines.append(dict(logs))

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        squares = {}
        for name, parameter in model.named_parameters():
            part = next(p for p, pattern in self.parts.items() if re.match(pattern, name))
            square = 0.0 if parameter.grad is None else parameter.grad.double().square().sum()
            squares[part] = squares.get(part, 0.0) + float(square)
        self.norms.append({part: math.sqrt(square) for part, square in squares.items()})


def trained(folder, name, **changes):
    """Train for two windows with weights that stay; return trainer, batches and spy."""
    settings = {
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "max_steps": 2 * WINDOW,
        "logging_steps": WINDOW,
        "learning_rate": 0.0,
        "max_grad_norm": 0.0,
        "save_strategy": "no",
        "train_sampling_strategy": "sequential",
        **changes,
    }
    folder.mkdir(exist_ok=True)
    if name in ("causal_lm", "t5"):
        config = sums_config(folder, name, **settings)
    else:
        pairs = [f"trainer.{key}={value!r}" for key, value in settings.items()]
        if name == "paligemma":
            rows = write_rectangles(folder / "rows")
            source = f"{{path: {rows}}}"
            pairs += ["task={name: grounding}", f"data={{train: {source}, test: {source}}}"]
        config = small_config(folder, f"model.family={name}", *pairs)
    source = model_source(config, folder)
    family = load_family(config, source)
    examples = load_examples(config.task, config.data.train, folder / "cache", training=True)
    trainer = make_trainer(
        config, training_arguments(config), examples, make_collator(config, family), source
    )
    seen, spy = [], Spy(family.module_patterns)
    collate = trainer.data_collator

    def collated(rows):
        seen.append(collate(rows))
        return seen[-1]

    trainer.data_collator = collated
    trainer.add_callback(spy)
    trainer.train()
    return trainer, seen, spy


def figures_of(model, tokenizer, batches, name):
    """Read the numbers of batches from their labels, and what the model says of them, in a loop."""
    pieces = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    digits = [pieces.index(digit) for digit in "0123456789"]
    bins = [i for i, piece in enumerate(pieces) if re.fullmatch(r"<loc\d{4}>", piece)]
    right, tokens, errors = 0, 0, {}
    for batch in batches:
        names = ("labels", "supervised", "spans", "origin")
        inputs = {key: value for key, value in batch.items() if key not in names}
        if "image_inputs" in inputs:
            inputs.update(inputs.pop("image_inputs").arguments())
        with torch.no_grad():
            every = model(**inputs).logits
        labels = iter(batch["labels"].tolist())
        for logits, supervised in zip(every, batch["supervised"], strict=True):
            scores = logits[supervised].double()
            ids = [next(labels) for _ in scores]
            numbers = []
            if bins:
                at = [i for i, label in enumerate(ids) if label in bins]
                numbers = [[(i, 1.0, bins.index(ids[i]), bins)] for i in at]
            else:
                characters = [p if len(p) == 1 else "_" for p in (pieces[label] for label in ids)]
                for number in read(characters, runs=False):
                    numbers.append([(d.position, 10.0**d.place, d.value, digits) for d in number])
            for role, number in zip(ROLES[name], numbers, strict=False):
                error = 0.0
                for position, worth, value, classes in number:
                    probs = scores[position][classes].softmax(0).tolist()
                    error += worth * (sum(i * p for i, p in enumerate(probs)) - value)
                    right += scores[position].argmax().item() == ids[position]
                    tokens += 1
                errors.setdefault(role, []).append(abs(error))
            assert len(numbers) <= len(ROLES[name])
    return right / tokens, {role: sum(e) / len(e) for role, e in errors.items()}


@pytest.mark.parametrize("name", ROLES)
def test_a_line_is_of_all_that_was_trained_on_since_the_last(tmp_path, name):
    trainer, seen, spy = trained(tmp_path, name)
    model, tokenizer = trainer.model.eval(), trainer.modules.family.tokenizer
    assert len(spy.lines) == 2
    for at, line in enumerate(spy.lines):
        batches = seen[2 * WINDOW * at : 2 * WINDOW * (at + 1)]
        accuracy, errors = figures_of(model, tokenizer, batches, name)
        assert line["numbers/accuracy"] == pytest.approx(accuracy)
        found = {k.removeprefix("numbers/error/"): v for k, v in line.items() if "/error/" in k}
        assert found == pytest.approx(errors, rel=1e-4)
        norms = {k: v for k, v in line.items() if k.startswith("gradient_norm/")}
        wanted = spy.norms[WINDOW * (at + 1) - 1]
        assert norms == pytest.approx({f"gradient_norm/{k}": v for k, v in wanted.items()}, 1e-5)
        assert math.hypot(*norms.values()) == pytest.approx(line["grad_norm"], rel=1e-5)
        before = spy.lines[at - 1]["speed/seconds"] if at else 0.0
        seconds = line["speed/seconds"] - before
        tokens = sum(int(batch["attention_mask"].sum()) for batch in batches)
        if name == "t5":
            tokens += sum(len(batch["labels"]) for batch in batches)
        samples = sum(len(batch["supervised"]) for batch in batches)
        assert line["speed/tokens_per_second"] * seconds == pytest.approx(tokens, rel=1e-3)
        assert line["speed/samples_per_second"] * seconds == pytest.approx(samples, rel=1e-3)
        assert 0 < line["memory/peak_gib"] <= peak_gib(torch.device("cpu"))
        assert all(type(value) in (int, float) for value in line.values())  # what reports draw


def test_the_norms_are_those_before_clipping_and_of_logged_steps_alone(tmp_path):
    _, _, free = trained(tmp_path / "a", "causal_lm")
    trainer, _, clipped = trained(tmp_path / "b", "causal_lm", max_grad_norm=0.01)
    for one, other in zip(free.lines, clipped.lines, strict=True):
        names = [name for name in one if name.startswith("gradient_norm/")]
        assert len(names) >= 2
        assert {n: one[n] for n in names} == {n: other[n] for n in names}
        assert other["clipping/share_of_steps"] == 1.0
        assert "clipping/share_of_steps" not in one
    assert math.hypot(*clipped.norms[-1].values()) == pytest.approx(0.01, rel=1e-3)
    assert trainer.norms.unread(2 * WINDOW)
    assert not trainer.norms.unread(2 * WINDOW - 1)
    _, _, spy = trained(tmp_path / "c", "causal_lm", logging_strategy="epoch")
    assert spy.lines
    assert not [name for line in spy.lines for name in line if name.startswith("gradient_norm")]


def test_the_share_of_clipped_steps_is_of_those_since_the_last_log():
    clipped = ClippedSteps(1.0)
    for norm in (0.5, torch.tensor(1.5), torch.tensor(1.0), float("inf"), None):
        clipped.add(norm)
    assert read_values(clipped.unread()) == {"clipping/share_of_steps": 0.5}
    assert clipped.unread() == []
    clipped.add(torch.tensor(0.2))
    assert read_values(clipped.unread()) == {"clipping/share_of_steps": 0.0}


def test_a_window_without_numbers_says_nothing_of_them(tmp_path, monkeypatch):
    monkeypatch.setattr("sums.SUMS", {"a": "one", "b": "two and more"})
    _, _, spy = trained(tmp_path, "causal_lm")
    assert spy.lines[-1]["loss/ce"] > 0
    assert not [name for line in spy.lines for name in line if name.startswith("numbers")]


def test_what_is_apart_does_not_slow_the_run_down(tmp_path):
    trainer, seen, _ = trained(tmp_path, "causal_lm")
    trainer.throughput.begin()
    trainer.throughput.count(seen[0]["origin"].tokens, 2)
    with trainer.throughput.paused():
        time.sleep(0.3)
    said = read_values([trainer.throughput.unread()])
    tokens = int(seen[0]["attention_mask"].sum())
    assert said["speed/seconds"] > 0.3
    assert tokens / said["speed/tokens_per_second"] < 0.15
