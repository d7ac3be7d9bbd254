"""``normalise_places``: a long number does not own the gradient; and terms that keep a dtype."""

import math

import pytest
import torch
from objective_steps import NUMERIC, made, stepped
from term_losses import term_values
from tiny_integrations import COLLATE, NumericTrainerForTests, by_trainer
from tokens import SIZE, VOCABULARY, ToyTokenizer, labels_of

from mm_numeric import NumericLoss, collate_with_spans
from mm_numeric.losses.term import make_term
from mm_numeric.numbers.spans import NumberSpans
from mm_numeric.numbers.vocabulary import NumberVocabulary


def weight(places: str, growth: float, i: int) -> float:
    return {"exponential": growth**i, "linear": 1 + (growth - 1) * i, "powers": 10.0**i,
            "none": 1.0}[places]  # fmt: skip


@pytest.mark.parametrize("places", ["exponential", "linear", "powers", "none"])
@pytest.mark.parametrize("pieces", ["0123456789", [f"{i:02}" for i in range(100)]])
def test_the_weights_of_each_number_have_the_mean_1(places, pieces):
    """Also where tokens have one or two digits, which may be cut anywhere."""
    tokens = dict.fromkeys([*"9876543210", *pieces, " "])
    tokenizer = ToyTokenizer({token: i for i, token in enumerate(tokens)})
    vocabulary = NumberVocabulary.from_tokenizer(tokenizer)
    of_numbers = [["9", "07"], ["5"], ["12", "3", "45", "67"]] if len(pieces) > 10 else (
        [list("907"), list("5"), list("1234567")]
    )  # fmt: skip
    written = [token for number in of_numbers for token in (*number, " ")]
    labels = torch.tensor([[tokenizer.vocabulary[token] for token in written]])
    spans = NumberSpans.from_labels(labels, vocabulary)
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(len(written), len(tokenizer.vocabulary), generator=generator).double()
    term = make_term("emd_exp", {"places": places, "growth": 1.7, "normalise_places": True})
    found = term_values(term, logits, spans, vocabulary).tolist()
    expected = []
    at = iter(range(len(written)))
    for number in of_numbers:
        length = len("".join(number))
        mean = math.fsum(weight(places, 1.7, i) for i in range(length)) / length
        left = length
        for token in number:
            scores = logits[next(at)]
            ids = [i for t, i in tokenizer.vocabulary.items() if len(t) == len(token) and t != " "]
            others = {i: t for t, i in tokenizer.vocabulary.items()}
            probs = scores[ids].softmax(0).tolist()
            loss = 0.0
            for k, digit in enumerate(token):
                i = left - 1 - k
                miss = sum(p * abs(int(others[j][k]) - int(digit))
                           for p, j in zip(probs, ids, strict=True))  # fmt: skip
                loss += weight(places, 1.7, i) / mean * miss
            left -= len(token)
            expected.append(loss)
        next(at)
    assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("digits", "published", "normalised"), [(17, 0.28, 0.083), (40, 0.95, 0.175)]
)
def test_a_long_number_does_not_own_the_gradient(digits, published, normalised):
    labels = labels_of("123:" * 63 + "1" * digits)

    def share(**options):
        loss_of = made("emd_exp", ce_weight=0, balance="fixed", **options)
        _, gradient = stepped(loss_of, torch.zeros(*labels.shape, SIZE).double(), labels)
        sizes = gradient[0].abs().sum(dim=-1)
        return (sizes[-digits:].sum() / sizes.sum()).item()

    assert share() > published
    assert share(normalise_places=True) == pytest.approx(normalised, rel=0.3)


@pytest.mark.parametrize("name", ["emd_exp", "ntil", "ntil_soft"])
def test_a_long_number_is_warned_about_once(logged, name):
    long, short = labels_of("x1234567890"), labels_of("x123456789 5")
    loss_of = NumericLoss(name, vocabulary=VOCABULARY)
    loss_of.spans(short)
    assert not logged.getvalue()
    loss_of.spans(long)
    loss_of.spans(long)
    assert logged.getvalue().count("10 digits (1.23457e+09): the weights of emd_exp grow") == 1
    for other in (
        NumericLoss(name, vocabulary=VOCABULARY, normalise_places=True),
        NumericLoss("emd", vocabulary=VOCABULARY),
        NumericLoss("emd_exp", vocabulary=VOCABULARY, places="none"),
        NumericLoss("emd_exp", vocabulary=VOCABULARY, growth=1.0),
    ):
        other.spans(long)
    assert logged.getvalue().count("a label has") == 1


@pytest.mark.slow
@pytest.mark.parametrize("in_collator", [False, True])
def test_training_warns_of_a_long_number(tmp_path, logged, in_collator):
    from datasets import Dataset
    from tiny_integrations import NUMBERS, TOKENIZER

    ids = [TOKENIZER(f"a {text}").input_ids for text in ("12", "1234567890123.25")]
    data = Dataset.from_list([{"input_ids": row, "labels": row} for row in ids] * 8)
    loss_of = NumericLoss("ntil", vocabulary=NUMBERS)
    collator = collate_with_spans(COLLATE, loss_of) if in_collator else COLLATE
    by_trainer(tmp_path, NumericTrainerForTests, data, objective=loss_of, data_collator=collator)
    assert logged.getvalue().count("number of 15 digits (1.23457e+12)") == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", NUMERIC)
def test_the_loss_of_terms_alone_keeps_the_dtype(name, dtype):
    labels = labels_of("x12:5", "-3.5 ")
    logits = torch.zeros(*labels.shape, SIZE, dtype=dtype)
    for changes in ({}, {"ce_weight": 0, "balance": "fixed"}, {"ce_weight": 0}):
        loss = made(name, **changes)(logits, labels, shift=False).loss
        assert loss.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
