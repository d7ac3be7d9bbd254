"""digits.json equals a loop over the test rows, one digit at a time."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from baseline_runs import baseline_config
from tiny_models import clocks, small_config, tiny_family
from tokens import ToyTokenizer

from mm_numeric.answers import ClockTime
from mm_numeric.data.collator import TrainingCollator, prompt_batch
from mm_numeric.data.examples import load_examples
from mm_numeric.inference.digit_distribution import (
    _batches,
    digit_differences,
    write_digit_distribution,
)
from mm_numeric.models.loading import load_family, load_model
from mm_numeric.numbers.vocabulary import NumberVocabulary
from mm_numeric.tasks.clock import Clock
from mm_numeric.training.run import train

pytestmark = pytest.mark.slow

UNSPOKEN = ClockTime(4, 44)


def slow(run, config):
    """Do it digit by digit, in float64, by the text of the answer and a prompt of its own."""
    family = load_family(config, str(run / "model"))
    model = load_model(config, family, str(run / "model")).double().eval()
    digits = [family.tokenizer.convert_tokens_to_ids(d) for d in "0123456789"]
    found = {d: [] for d in range(-9, 10)}
    for example in load_examples(
        config.task, config.data.test, Path(config.data.cache), training=False
    ):
        inputs, (frame,) = prompt_batch(family, [example])
        answer = family.answer(config.task.format(example.answer, frame).text).ids
        for place, token in enumerate(answer):
            if token not in digits:
                continue
            ids = torch.cat([inputs["input_ids"], torch.tensor([answer[:place]]).long()], dim=1)
            more = {"attention_mask": torch.ones_like(ids)}
            if "mm_token_type_ids" in inputs:
                kinds = inputs["mm_token_type_ids"]
                more["mm_token_type_ids"] = torch.cat([kinds, kinds.new_zeros(1, place)], dim=1)
            with torch.no_grad():
                logits = model(**{**inputs, **more, "input_ids": ids}).logits[0, -1]
            for digit, prob in enumerate(logits[digits].softmax(0).tolist()):
                found[digit - digits.index(token)].append(prob)
    return found


def test_the_file_equals_the_loop(tmp_path):
    config = small_config(tmp_path, "data.test.render=5")
    train(config)
    run = config.output_dir
    write_digit_distribution(run)
    found = json.loads((run / "digits.json").read_text())
    expected = slow(run, config)
    assert found["differences"] == list(expected)
    assert found["tokens"] == [len(probs) for probs in expected.values()]
    assert sum(found["tokens"]) % 10 == 0
    assert found["rows_skipped"] == 0
    for mean, probs in zip(found["means"], expected.values(), strict=True):
        assert mean == (pytest.approx(sum(probs) / len(probs), rel=1e-4) if probs else None)


def test_each_digit_competes_with_those_of_its_digit_group():
    """With digits that have a space in front, and tokens of two digits, which are left out."""
    pieces = [*"3180", "▁", "42", *"9752", "07", *"46", "a", "▁5", "▁2", "▁9", "▁42"]
    vocabulary = NumberVocabulary.from_tokenizer(ToyTokenizer({p: i for i, p in enumerate(pieces)}))
    torch.manual_seed(0)
    target = torch.arange(len(vocabulary.tokens)).repeat(2)
    scores = torch.randn(len(target), len(vocabulary.tokens))
    total, counts = digit_differences(scores, target, vocabulary)
    expected, number = [0.0] * 19, [0] * 19
    for row, label in zip(scores.double(), target.tolist(), strict=True):
        right = vocabulary.tokens[label]
        if len(right.digits) != 1:
            continue
        there = [
            i
            for i, token in enumerate(vocabulary.tokens)
            if token.digit_group == right.digit_group and len(token.digits) == 1
        ]
        for i, prob in zip(there, row[there].softmax(0).tolist(), strict=True):
            at = int(vocabulary.tokens[i].digits) - int(right.digits) + 9
            expected[at] += prob
            number[at] += 1
    assert sum(number) == 2 * (10 * 10 + 3 * 3)
    assert total.tolist() == pytest.approx(expected)
    assert counts.tolist() == number


@dataclass(frozen=True)
class Shy(Clock):
    """Clocks, but for a time that it does not write."""

    def format(self, answer, frame):
        if answer == UNSPOKEN:
            raise ValueError("not that")
        return super().format(answer, frame)


def test_rows_that_cannot_be_trained_on_are_left_out():
    _, examples = clocks(5)
    spoken = [replace(e, answer=ClockTime(7, 5)) for e in examples]
    spoken[3] = replace(spoken[3], answer=UNSPOKEN)
    collator = TrainingCollator(tiny_family(), Shy(), tiny_family().vocabulary())
    found = [batch["origin"].ids for batch in _batches(collator, spoken, 2)]
    assert found == [
        (examples[0].id, examples[1].id), (examples[2].id,), (examples[4].id,)
    ]  # fmt: skip


@pytest.mark.parametrize("family", ["causal_lm", "t5"])
@pytest.mark.parametrize("baseline", ["regression_head", "xval"])
def test_numbers_of_a_head_are_no_digits(tmp_path, family, baseline):
    config = baseline_config(tmp_path, family, baseline, max_steps=1)
    train(config)
    write_digit_distribution(config.output_dir)
    found = json.loads((config.output_dir / "digits.json").read_text())
    assert set(found["means"]) == {None}
    assert found["rows_skipped"] == 0
