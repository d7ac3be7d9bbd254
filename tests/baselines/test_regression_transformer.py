"""Regression Transformer: digits with places, the paper's encodings, and malformed numbers."""

import pytest
import torch
from baseline_runs import FAMILIES, TOKENIZERS, family_of, fitted
from sums import Sums, sums_config
from tiny_models import TINY, examples_of, tiny_folder

from mm_numeric.answers import Unreadable
from mm_numeric.baselines.regression_transformer import number_encoding
from mm_numeric.data.collator import TrainingCollator
from mm_numeric.losses.numeric_loss import NumericLoss
from mm_numeric.tasks.number_questions import Numbers

pytestmark = pytest.mark.slow

each_kind = pytest.mark.parametrize("kind", [*FAMILIES, *TOKENIZERS])


def named(family, ids):
    """Return tokens as the paper writes them."""
    lowest = family.settings.lowest_place
    return [
        f"_{(i - family.first_id) % 10}_{(i - family.first_id) // 10 + lowest}_"
        if i >= family.first_id else family.tokenizer.convert_ids_to_tokens(i)
        for i in ids
    ]  # fmt: skip


@each_kind
def test_a_token_is_a_digit_and_its_place(kind):
    family = family_of(kind, "regression_transformer")
    tokens = named(family, family.answer("-123.4 and 05").ids)
    digits = [token for token in tokens if token.startswith("_") and token.endswith("_")]
    assert digits == ["_1_2_", "_2_1_", "_3_0_", "_4_-1_", "_0_1_", "_5_0_"]
    assert family.answer("-123.4").offsets[-4:] != family.answer("-123.4").offsets[-5:-1]
    question = named(family, family.question("What is 31 + 7?", 0))
    assert [t for t in question if t.startswith("_")] == ["_3_1_", "_1_0_", "_7_0_"]


def test_the_encoding_is_that_of_the_paper():
    """NE(v, p, j) = (-1)^j v 10^p / (j + 1), section 4.2."""
    for digit, place in ((0, 3), (7, 0), (5, 2), (3, -2)):
        wanted = [(-1) ** j * digit * 10.0**place / (j + 1) for j in range(12)]
        found = number_encoding(torch.tensor(digit), torch.tensor(place), 12)
        torch.testing.assert_close(found, torch.tensor(wanted))


@pytest.mark.parametrize("kind", FAMILIES)
def test_encodings_are_added_to_the_embeddings_of_digits_and_nothing_else(kind, tmp_path):
    """Encodings are added in every embedding module: T5 has one for questions, one for answers."""
    family = fitted(kind, "regression_transformer", tmp_path, largest=200.0)
    model = family.load_model(tiny_folder(kind), TINY).eval()
    ids = torch.tensor([family.answer("a 123.4").ids])
    weight = model.get_input_embeddings().weight
    embeddings = [m for m in model.modules() if isinstance(m, torch.nn.Embedding)]
    tables = [module for module in embeddings if module.weight is weight]
    assert tables
    for table in tables:
        added = table(ids)[0] - table.weight[ids[0]]
        values = [0.0] * (len(ids[0]) - 6) + [100, 20, 3, 0, 0.4, 0]
        first = torch.tensor(values) * 10 / 200
        torch.testing.assert_close(added[:, 0], first, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(added[:, 1], -first / 2, atol=1e-5, rtol=1e-4)
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert not any("encoding" in name for name in trained)


def test_the_largest_number_trained_on_begins_with_10(tmp_path):
    family = fitted("causal_lm", "regression_transformer", tmp_path)
    assert family.fitted == {"largest": 128.0}


def token(family, digit, place):
    return family.first_id + 10 * (place - family.settings.lowest_place) + digit


@pytest.mark.parametrize(
    "digits",
    [
        [(1, 2), (2, 2)],
        [(1, 2), (2, 0)],
        [(1, 2), (2, 1)],
        [(3, -1)],
        [(1, 0), (2, 1)],
        [(1, 1), (2, 0), None, (3, -2)],
        [(1, 0), None, (3, 0)],
    ],
)
@pytest.mark.parametrize("kind", FAMILIES)
def test_a_malformed_number_cannot_be_read(kind, digits):
    family = family_of(kind, "regression_transformer")
    point = family.tokenizer.convert_tokens_to_ids(".")
    ids = [point if d is None else token(family, *d) for d in digits]
    text = family.text([*ids, family.stop_ids[0], token(family, 1, 0)])
    assert text.startswith("[malformed number: ")
    assert Numbers().parse(text) == Unreadable("no number")
    assert family.text([token(family, 1, 1), token(family, 2, 0), family.stop_ids[0]]) == "12"


def test_a_digit_without_a_token_for_its_place_is_rejected_in_answers_alone():
    family = family_of("causal_lm", {"name": "regression_transformer", "highest_place": 2})
    with pytest.raises(ValueError, match="'1234' has a digit at place 3, outside lowest_place -6 "
                                         "to highest_place 2"):  # fmt: skip
        family.answer("1234")
    assert named(family, family.question("1234", 0))[:4] == ["1", "_2_2_", "_3_1_", "_4_0_"]


def test_digits_of_one_place_compete_with_each_other(tmp_path):
    family = family_of("causal_lm", "regression_transformer")
    vocabulary = family.vocabulary()
    assert len(vocabulary) == 160
    digit_groups = {t.digit_group for t in vocabulary.tokens}
    assert len(digit_groups) == 16
    collate = TrainingCollator(family, Sums(), vocabulary)
    batch = collate(examples_of(sums_config(tmp_path, "causal_lm")))
    assert batch["spans"].value.tolist()[:3] == [7, 42, -7]
    sure = torch.full((len(batch["labels"]), family.first_id + 160), -30.0)
    sure[torch.arange(len(sure)), batch["labels"]] = 30.0
    off = sure.clone()
    row = batch["spans"].position[0]
    off[row] = -30.0
    off[row, batch["labels"][row] + 2] = 30.0  # a 9 for the 7
    was = NumericLoss("ntl_was", vocabulary=vocabulary)
    parts = [was(z, batch["labels"], batch["spans"]).sums["ntl_was"].total for z in (sure, off)]
    assert [round(float(part), 3) for part in parts] == [0, 2]
