"""xVal: scaled embeddings, the range of values, and round trips of numbers."""

import pytest
import torch
from baseline_runs import FAMILIES, TOKENIZERS, fitted, loss_of
from sums import Sums, sums_config
from tiny_models import TINY, examples_of, tiny_folder

from mm_numeric.answers import Unreadable
from mm_numeric.baselines.number_head import NumberOutput
from mm_numeric.baselines.values import is_value, read_values, value_id, value_of
from mm_numeric.data.collator import TrainingCollator
from mm_numeric.tasks.number_questions import Numbers

pytestmark = pytest.mark.slow

each_kind = pytest.mark.parametrize("kind", [*FAMILIES, *TOKENIZERS])


def values(family, ids):
    return [round(family.scale.number(value_of(i)), 4) for i in ids if is_value(i)]


@each_kind
def test_a_number_is_one_token_and_its_value(kind, tmp_path):
    family = fitted(kind, "xval", tmp_path)
    answer = family.answer("-7 and 12.5, 3-4")
    assert values(family, answer.ids) == [-7, 12.5, 3, 4]
    spans = [answer.offsets[i] for i, token in enumerate(answer.ids) if is_value(token)]
    found = [("-7 and 12.5, 3-4")[start:end].strip(" -") for start, end in spans]
    assert found == ["7", "12.5", "3", "4"]
    assert values(family, family.question("What is -31 + 7?", 0)) == [-31, 7]


def test_the_largest_number_trained_on_is_5(tmp_path):
    family = fitted("causal_lm", "xval", tmp_path)
    found = [value_of(token) for example in examples_of(sums_config(tmp_path, "causal_lm"))
             for token in [*family.question(example.prompt, 0), *family.answer(example.answer).ids]
             if is_value(token)]  # fmt: skip
    assert max(abs(value) for value in found) == family.scale.scaled(128) == 5.0
    assert family.scale.scaled(-256) == -10.0  # of a question that is not trained on


@pytest.mark.parametrize("kind", FAMILIES)
def test_the_embedding_is_multiplied_by_the_value(kind, tmp_path):
    """h = x * u for [NUM] and h = u elsewhere, section 2 of the paper."""
    family = fitted(kind, "xval", tmp_path)
    model = family.load_model(tiny_folder(kind), TINY).eval()
    ids = torch.tensor([family.answer("a 64 b -3.5").ids])
    carries, scaled = read_values(ids)
    assert scaled[carries].tolist() == pytest.approx([2.5, -3.5 * 5 / 128])
    table = model.get_input_embeddings().weight
    found = model.embedded(ids)
    torch.testing.assert_close(found[~carries], table[ids[~carries]])
    offset = 0 if model.baseline.offset is None else model.baseline.offset
    assert (model.baseline.offset is None) == (kind == "causal_lm")  # GPT-2 adds positions
    torch.testing.assert_close(
        found[carries], scaled[carries][:, None] * table[family.first_id] + offset
    )


@pytest.mark.parametrize("kind", FAMILIES)
def test_what_the_first_norm_leaves_depends_on_the_size_of_a_number(kind, tmp_path):
    family = fitted(kind, "xval", tmp_path)
    model = family.load_model(tiny_folder(kind), TINY).eval()
    seen = []
    layer = model.transformer.h[0].ln_1 if kind == "causal_lm" else (
        model.encoder.block[0].layer[0].layer_norm)  # fmt: skip
    layer.register_forward_hook(lambda _, args, found: seen.append(found[0, -1].clone()))
    for number in ("32", "64", "128"):
        ids = torch.tensor([family.answer(number).ids[:-1]])
        inputs = {"decoder_input_ids": ids} if kind == "t5" else {}
        with torch.no_grad():
            model(input_ids=ids, attention_mask=torch.ones_like(ids), **inputs)
    assert (seen[0] - seen[1]).norm() > 1e-2 * seen[0].norm()
    assert (seen[1] - seen[2]).norm() > 1e-2 * seen[0].norm()


@pytest.mark.parametrize("kind", FAMILIES)
def test_the_loss_is_cross_entropy_and_the_error_of_the_numbers(kind, tmp_path):
    family = fitted(kind, "xval", tmp_path, weight=0.5)
    vocabulary = family.vocabulary()
    collate = TrainingCollator(family, Sums(), vocabulary)
    batch = collate(examples_of(sums_config(tmp_path, kind)))
    labels, rows = batch["labels"], batch["spans"].supervised
    shape = batch["supervised"].shape
    torch.manual_seed(0)
    logits = torch.randn(*shape, family.first_id + 1, requires_grad=True)
    numbers = torch.randn(shape, requires_grad=True)
    output = NumberOutput(logits=logits, numbers=numbers)
    result = loss_of(family, output, labels, batch["spans"])
    cross_entropy, error, count = 0.0, 0.0, 0
    for label, row in zip(labels.tolist(), rows.tolist(), strict=True):
        probs = logits.flatten(0, 1)[row].log_softmax(-1)
        cross_entropy -= probs[family.first_id if is_value(label) else label]
        if is_value(label):
            error += (numbers.flatten()[row] - value_of(label)) ** 2
            count += 1
    assert count == 9
    wanted = cross_entropy / len(labels) + 0.5 * error / count
    torch.testing.assert_close(result.loss, wanted)
    result.loss.backward()
    assert int((numbers.grad != 0).sum()) == 9
    assert result.sums["mse"].items == 9
    assert result.sums["ce"].items == len(labels)


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_number_that_runs_into_another_cannot_be_read(kind, tmp_path):
    """98.78 and -1.6 without anything between them are not 98.78 and 1.6."""
    family = fitted(kind, "xval", tmp_path)
    end, digit = family.stop_ids[0], family.tokenizer.convert_tokens_to_ids("5")
    one, two = (value_id(family.scale.scaled(number)) for number in (98.78, -1.6))
    for ids in ([one, two], [one, one], [one, digit], [digit, one]):
        text = family.text([*ids, end, one])
        assert text == "[malformed number: it runs into another]"
        assert Numbers().parse(text) == Unreadable("no number")
    assert family.text([two, end, one]) == "-1.6"
    assert family.text([value_id(torch.nan), end]) == ""
