"""FoNE: Fourier features of digits, digits from hidden states, and numbers that do not fit."""

import dataclasses
import json
import math
from fractions import Fraction

import pytest
import torch
from baseline_runs import (
    FAMILIES,
    answers_of,
    baseline_config,
    family_of,
    fitted,
    loss_of,
)
from hypothesis import given
from hypothesis import strategies as st
from sums import Sums, collator_of, sums_config
from tiny_models import TINY, examples_of, tiny_folder

from mm_numeric.baselines.fone import fourier_features
from mm_numeric.baselines.number_head import NumberOutput
from mm_numeric.baselines.values import FIRST_VALUE, is_value
from mm_numeric.config.data import DataSource, EvaluateConfig
from mm_numeric.data import examples
from mm_numeric.training.run import train
from mm_numeric.training.trainer import NumericTrainer

each_family = pytest.mark.parametrize("kind", FAMILIES)


@given(st.integers(0, 10**18 - 1))
def test_the_digits_come_back_from_the_features(number):
    """Each pair has the angle of x mod T: its highest digit, once the lower ones are known."""
    features = fourier_features(torch.tensor([number]), 18)[0].tolist()
    found = 0
    for i in range(18):
        turn = math.atan2(features[2 * i + 1], features[2 * i]) / (2 * math.pi)
        found += round(10 * (turn - found / 10 ** (i + 1))) % 10 * 10**i
    assert found == number


def test_the_features_are_those_of_the_paper():
    """Example 3.5: 4.17 is phi(4.17, 0.1), phi(4.17, 1), phi(4.17, 10)."""
    wanted = [
        function(2 * math.pi * 4.17 / period)
        for period in (0.1, 1, 10)
        for function in (math.cos, math.sin)
    ]
    found = fourier_features(torch.tensor([417]), 3)[0]
    torch.testing.assert_close(found, torch.tensor(wanted), atol=1e-6, rtol=1e-5)


@each_family
def test_the_features_are_added_to_the_embedding_of_num(kind, tmp_path):
    family = fitted(kind, "fone", tmp_path)
    assert family.fitted == {"integer_digits": 3, "decimals": 3}  # of 128 and 0.125
    model = family.load_model(tiny_folder(kind), TINY).eval()
    ids = torch.tensor([family.answer("a 64 b -3.5").ids])
    stored = ids >= FIRST_VALUE
    table = model.get_input_embeddings().weight
    found = model.embedded(ids)
    torch.testing.assert_close(found[~stored], table[ids[~stored]])
    for embedding, number in zip(found[stored], (64, 3.5), strict=True):
        wanted = table[family.first_id].tolist()
        for i in range(6):
            wanted[2 * i] += math.cos(2 * math.pi * number / 10 ** (i - 2))
            wanted[2 * i + 1] += math.sin(2 * math.pi * number / 10 ** (i - 2))
        torch.testing.assert_close(embedding, torch.tensor(wanted), atol=1e-5, rtol=1e-5)


def logits_of(state):
    """Return ten logits for each of the six digits of a hidden state, the last digit first."""
    return [
        [a * math.cos(math.pi * j / 5) + b * math.sin(math.pi * j / 5) for j in range(10)]
        for a, b in zip(state[:12:2], state[1:12:2], strict=True)
    ]


@each_family
def test_generation_reads_the_digits_from_the_hidden_state(kind, tmp_path):
    family = fitted(kind, "fone", tmp_path)
    model = family.load_model(tiny_folder(kind), TINY).eval()
    ids = torch.tensor([family.question("abc", 0)])
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    states = []
    model.lm_head.register_forward_pre_hook(lambda _, args: states.append(args[0][0, -1]))
    with torch.no_grad():
        answers_of(family, model, inputs, 1)
        model.lm_head.weight[family.first_id] = 100 * states[0]  # [NUM] is now the likeliest
        [found] = answers_of(family, model, inputs, 1)
    state = states[0] * (model.config.d_model**0.5 if kind == "t5" else 1)  # T5 scales it
    digits = [max(range(10), key=logits.__getitem__) for logits in logits_of(state.tolist())]
    assert len(set(digits)) > 2
    number = sum(Fraction(digit) * Fraction(10) ** (i - 3) for i, digit in enumerate(digits))
    assert family.text(found) == f"{float(number):g}"


@each_family
def test_the_loss_is_the_cross_entropy_of_tokens_and_digits(kind, tmp_path):
    family = fitted(kind, "fone", tmp_path, weight=0.5)
    batch = collator_of(family)(examples_of(sums_config(tmp_path, kind)))
    labels, rows = batch["labels"], batch["spans"].supervised
    shape = batch["supervised"].shape
    torch.manual_seed(0)
    logits = torch.randn(*shape, family.first_id + 1, requires_grad=True)
    states = torch.randn(*shape, 12)
    numbers = torch.tensor([[logits_of(state) for state in row] for row in states.tolist()])
    numbers.requires_grad_()
    output = NumberOutput(logits=logits, numbers=numbers)
    result = loss_of(family, output, labels, batch["spans"])
    cross_entropy, digits, count = 0.0, 0.0, 0
    for label, row in zip(labels.tolist(), rows.tolist(), strict=True):
        probs = logits.flatten(0, 1)[row].double().softmax(-1)
        cross_entropy -= float(probs[family.first_id if is_value(label) else label].detach().log())
        if is_value(label):
            text = f"{float(family.written(label)):07.3f}".replace(".", "")
            for i, digit in enumerate(reversed(text)):
                probs = numbers.flatten(0, 1)[row, i].double().softmax(-1)
                digits -= float(probs[int(digit)].detach().log()) / 6
            count += 1
    assert count == 9
    wanted = cross_entropy / len(labels) + 0.5 * digits / count
    assert result.loss.item() == pytest.approx(wanted, rel=1e-5)
    assert float(result.sums["fone"].total) == pytest.approx(digits, rel=1e-5)
    result.loss.backward()
    assert int((numbers.grad != 0).flatten(2).any(-1).sum()) == 9


def test_tokens_can_be_counted_before_the_fit(tmp_path):
    family = family_of("causal_lm", "fone")
    counted = family.question("1234.5+64=", 0)
    assert len(family.answer("1234.5 64").ids) == 4
    longer = fitted("causal_lm", "fone", tmp_path, integer_digits=4)
    assert len(longer.question("1234.5+64=", 0)) == len(counted)
    family.fit(Sums(), examples_of(sums_config(tmp_path, "causal_lm")))
    assert family.question("4.5+64=", 0) == longer.question("4.5+64=", 0)
    with pytest.raises(ValueError, match=r"the number 1234\.5 needs more than 3 digits"):
        family.question("1234.5+64=", 0)  # is tokenised anew


def test_a_number_that_does_not_fit_is_rejected(tmp_path):
    family = fitted("causal_lm", "fone", tmp_path)
    family.answer("999.999 012.5000")
    for number in (
        "1000",
        "0.1235",
        "123456789012345678901234567890.5",
        "0.1250000000000000000001",
    ):
        with pytest.raises(ValueError, match="more than 3 digits before the point or 3 after it"):
            family.answer(f"it is -{number}")
        with pytest.raises(ValueError, match="set integer_digits and decimals"):
            family.prompts([f"{number}+1="], [None])
    longer = fitted("causal_lm", "fone", tmp_path, integer_digits=4)
    assert longer.text(longer.answer("1000 0.125").ids) == "1000 0.125"
    whole = fitted("causal_lm", "fone", tmp_path, decimals=0)
    assert whole.text(whole.answer("100 0 7.0 007").ids) == "100 0 7 7"


def rows_file(path, question):
    path.write_text(json.dumps({"id": "a", "question": question, "answer": "7"}) + "\n")
    return DataSource(path=str(path))


@pytest.mark.slow
def test_questions_are_checked_before_the_first_step(tmp_path, monkeypatch):
    """Those of data.test and evaluate.data, each read once."""
    read = []
    own = examples.source_rows
    monkeypatch.setattr(
        examples, "source_rows", lambda task, source, cache: read.append(source.name)
        or own(task, source, cache),
    )  # fmt: skip
    monkeypatch.setattr(NumericTrainer, "train", lambda *args, **kwargs: pytest.fail("a step"))
    config = baseline_config(tmp_path, "causal_lm", "fone", max_steps=1)
    short = rows_file(tmp_path / "short.jsonl", "3+4=")
    long = rows_file(tmp_path / "long.jsonl", "1234+1=")
    for test, evaluate, rejects, sources in (
        (long, None, True, [long]),
        (long, EvaluateConfig(every_steps=1), True, [long]),
        (short, EvaluateConfig(every_steps=1, data=long), True, [long, short]),
        (long, EvaluateConfig(every_steps=1, data=short), True, [short, long]),
        (short, EvaluateConfig(every_steps=1), False, [short]),
        (short, None, False, [short]),
    ):
        data = dataclasses.replace(config.data, test=test)
        changed = dataclasses.replace(config, data=data, evaluate=evaluate)
        read.clear()
        if rejects:
            why = r"long.jsonl.*: the number 1234 needs.*integer_digits and decimals.* before train"
            with pytest.raises(ValueError, match=why):
                train(changed)
        else:
            with pytest.raises(pytest.fail.Exception, match="a step"):
                train(changed)
        assert read[1:] == [source.name for source in sources]
    data = dataclasses.replace(config.data, test=long)
    other = dataclasses.replace(config.model, baseline="regression_head")
    other = dataclasses.replace(config, data=data, model=other)
    read.clear()
    with pytest.raises(pytest.fail.Exception, match="a step"):
        train(other)
    assert read[1:] == [long.name]  # without a limit of numbers


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"integer_digits": 0}, "integer_digits must be at least 1, not 0"),
        ({"decimals": -1}, "decimals must be at least 0, not -1"),
        ({"weight": 0}, "weight must be > 0 and finite, not 0"),
        ({"integer_digits": 16}, "16 digits before the point and 3 after it are too long for fone"),
    ],
)
def test_invalid_settings(settings, why, tmp_path):
    with pytest.raises(ValueError, match=why):
        fitted("causal_lm", "fone", tmp_path, **settings)


def test_a_model_that_is_too_narrow_is_rejected(tmp_path):
    family = fitted("causal_lm", "fone", tmp_path)
    folder = tmp_path / "narrow"
    model = family.load_model(tiny_folder("causal_lm"), TINY)
    model.config.n_embd = 8
    model.config.save_pretrained(folder)
    with pytest.raises(ValueError, match=r"fone needs a hidden size of 12 .* is 8; use a"):
        family.load_model(str(folder), TINY)
