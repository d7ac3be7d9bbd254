"""PaliGemma's mask on the real forward: a question in both directions, an answer in one.

In training and in generation, with padding on either side, for Gemma and for Gemma 2, whose sliding
windows are made shorter here than a question.
"""

import functools
from dataclasses import replace

import pytest
import torch
from tiny_families import make_tiny_paligemma
from tiny_models import ROOT, TINY

from mm_numeric.data.collator import TrainingCollator, prompt_batch
from mm_numeric.families.paligemma import PaliGemma

MODELS = [("gemma", "sdpa"), ("gemma", "eager"), ("gemma2", "eager")]
models = pytest.mark.parametrize(("text_model", "attention"), MODELS)


@functools.cache
def checkpoint(text_model):
    folder = ROOT / f"paligemma_{text_model}"
    only_gemma2 = {"sliding_window": 8, "query_pre_attn_scalar": 16}
    changes = only_gemma2 if text_model == "gemma2" else {}
    make_tiny_paligemma(folder, 0, model_type=text_model, **changes)
    return str(folder)


@functools.cache
def loaded(text_model, attention):
    settings = replace(TINY, attention=attention)
    family = PaliGemma.load(checkpoint(text_model), settings)
    return family, family.load_model(checkpoint(text_model), settings).eval()


@pytest.fixture(scope="module")
def asked(clock_examples):
    """A task and examples of it with questions of different lengths, one without its image."""
    task, examples = clock_examples
    longer = [replace(e, prompt=f"{i} {'it ' * i}?") for i, e in enumerate(examples[:4])]
    return task, [*longer[:2], replace(longer[2], image=None), longer[3]]


def training_batch(family, asked):
    task, examples = asked
    batch = TrainingCollator(family, task, family.vocabulary())(examples)
    return batch, [batch.pop(name) for name in ("labels", "supervised", "spans")]


@torch.no_grad()
def moved(model, batch, row, position):
    """Return which logits change with one token of the inputs, [b, t]."""
    ids = batch["input_ids"].clone()
    ids[row, position] += 1
    before = model(**batch).logits
    change = model(**{**batch, "input_ids": ids}).logits - before
    return change.abs().amax(-1) > 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("training", [False, True])
@models
def test_the_question_is_seen_in_both_directions_and_the_answer_in_one(
    text_model, attention, training, asked
):
    family, model = loaded(text_model, attention)
    model.train(training)
    batch, (_, supervised, _) = training_batch(family, asked)
    for row, length in enumerate(batch["attention_mask"].sum(1).tolist()):
        last_asked = int(supervised[row].nonzero()[0])
        seen = moved(model, batch, row, last_asked)
        assert seen[row, :length].all()
        assert not seen[torch.arange(4) != row].any()
        for position in range(last_asked + 1, length):
            seen = moved(model, batch, row, position)
            assert seen[row, position:length].all()
            assert not seen[row, :position].any()
        if length < batch["input_ids"].shape[1]:
            assert not moved(model, batch, row, length)[row, :length].any()
    model.eval()
    assert 0 in batch["attention_mask"]


@pytest.mark.slow
@pytest.mark.parametrize("rows", [(0, 1, 2, 3), (1,), (2,)])
@models
def test_generation_gives_the_logits_of_training(text_model, attention, rows, asked):
    """Step by step, padded on the left, with the answers forced: as all at once in training."""
    family, model = loaded(text_model, attention)
    task, examples = asked
    examples = [examples[row] for row in rows]
    batch, (labels, supervised, _) = training_batch(family, (task, examples))
    with torch.no_grad():
        taught = model(**batch, logits_to_keep=supervised).logits
    answers = [answer.tolist() for answer in labels.split(supervised.sum(1).tolist())]
    inputs, _ = prompt_batch(family, examples)
    start = inputs["input_ids"].shape[1]

    def forced(row, ids):
        return (answers[row][len(ids) - start :] or [family.pad_id])[:1]

    written = model.generate(
        **inputs,
        max_new_tokens=max(map(len, answers)),
        do_sample=False,
        eos_token_id=family.stop_ids,
        pad_token_id=family.pad_id,
        prefix_allowed_tokens_fn=forced,
        return_dict_in_generate=True,
        output_logits=True,
    )
    steps = torch.stack(written.logits, dim=1)
    said = torch.cat([steps[row, : len(answer)] for row, answer in enumerate(answers)])
    torch.testing.assert_close(said, taught, rtol=1e-4, atol=1e-4)
    assert (0 in inputs["attention_mask"]) == (len(rows) > 1)


def test_paligemma_2_is_rejected_with_sdpa():
    family, _ = loaded("gemma2", "eager")
    with pytest.raises(ValueError, match=r"model\.attention: .* PaliGemma 2.* to eager"):
        family.load_model(checkpoint("gemma2"), TINY)
