"""Sums whose answers are one number, and runs of baselines on them."""

import dataclasses
import functools
import json

from real_tokenizers import load
from sums import SUMS, Sums, sums_config
from tiny_models import TINY, examples_of, tiny_folder

from mm_numeric.baselines.baseline import with_baseline
from mm_numeric.families.causal_lm import CausalLM
from mm_numeric.families.digits import with_digits
from mm_numeric.families.t5 import T5
from mm_numeric.inference.generate import generate_tokens
from mm_numeric.losses.numeric_loss import NumericLoss
from mm_numeric.losses.presets import PRESETS
from mm_numeric.tasks.number_questions import Numbers

FAMILIES = {"causal_lm": CausalLM, "t5": T5}
TOKENIZERS = {"gpt2": "causal_lm", "qwen2": "causal_lm", "t5-small": "t5"}
TASK = "mm_numeric.tasks.number_questions:Numbers"
ONE_NUMBER = {question: answer for question, answer in SUMS.items() if " " not in answer}


def baseline_config(folder, family, baseline, objective="ce", **trainer):
    """Return a config of sums whose answers are one number each."""
    config = sums_config(folder, family, objective=objective, **trainer)
    rows = folder / "rows.jsonl"
    lines = [
        {"id": str(i), "question": s, "answer": a} for i, (s, a) in enumerate(ONE_NUMBER.items())
    ]
    rows.write_text("".join(json.dumps(line) + "\n" for line in lines))
    model = dataclasses.replace(config.model, baseline=baseline)
    return dataclasses.replace(config, model=model, task=Numbers(), task_name=TASK)


@functools.cache
def single_digits(kind):
    """Return a real tokenizer with one token per digit."""
    return with_digits(load(kind), "single", "here")


def family_of(kind, baseline):
    """Return a family with a baseline: a tiny one, or one with a real tokenizer."""
    model = dataclasses.replace(TINY, baseline=baseline)
    if kind in FAMILIES:
        return with_baseline(FAMILIES[kind], baseline, "here").load(tiny_folder(kind), model)
    cls = with_baseline(FAMILIES[TOKENIZERS[kind]], baseline, "here")
    family = cls(single_digits(kind), None, model)
    family.decoder_start_id = 0
    return family


def fitted(kind, baseline, folder, **settings):
    """Return a family with a baseline that is fitted to the numbers of sums."""
    family = family_of(kind, {"name": baseline, **settings})
    family.fit(Sums(), examples_of(sums_config(folder, TOKENIZERS.get(kind, kind))))
    return family


def loss_of(family, outputs, labels, spans):
    """Return the loss that a baseline computes from the outputs of its model."""
    objective = NumericLoss(PRESETS["ce"], vocabulary=family.vocabulary())
    return family.loss(objective, outputs, labels, spans, None)


def answers_of(family, model, inputs, max_new_tokens):
    """Return the ids of the answers that the model generates."""
    found = generate_tokens(model, family, inputs, max_new_tokens)
    start = 1 if family.encoder_decoder else inputs["input_ids"].shape[1]
    return found[:, start:].tolist()
