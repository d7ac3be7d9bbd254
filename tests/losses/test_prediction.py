"""Numeric predictions from logits, without labels."""

import pytest
import torch
from tokens import SIZE, TOKENIZER, VOCABULARY, ToyTokenizer

from mm_numeric import predict_numbers
from mm_numeric.numbers.vocabulary import NumberVocabulary


def test_expected_digits_by_hand():
    ids = TOKENIZER.vocabulary
    logits = torch.full((1, 3, SIZE), -1e9, dtype=torch.float64)
    logits[0, 0, ids["6"]] = logits[0, 0, ids["7"]] = 2.0
    logits[0, 1, [ids["9"], ids["x"]]] = 0.0
    logits[0, 2, ids["a"]] = 1.0
    values, mass = predict_numbers(logits, VOCABULARY)
    assert values[0, :2].tolist() == pytest.approx([6.5, 9])
    assert mass.tolist()[0] == pytest.approx([1, 0.5, 0])


def test_the_most_likely_group_decides():
    ids = {token: i for i, token in enumerate([*"0123456789x", "700", "800"])}
    vocabulary = NumberVocabulary.from_tokenizer(ToyTokenizer(ids))
    logits = torch.full((2, len(ids)), -1e9)
    logits[0, [ids["700"], ids["800"], ids["3"]]] = torch.tensor([1.0, 1.0, 1.5])
    logits[1, [ids["700"], ids["3"], ids["5"]]] = torch.tensor([1.0, 1.0, 1.0])
    values, mass = predict_numbers(logits, vocabulary)
    assert values.tolist() == pytest.approx([750, 4])
    assert mass.tolist() == pytest.approx([1, 1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_equals_ntloss_on_single_digits(dtype):
    ntloss = pytest.importorskip("ntloss")
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    letters = {c: i for i, c in enumerate(sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()))}
    model = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=letters, merges=[]))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=model)
    generator = torch.Generator().manual_seed(0)
    logits = (3 * torch.randn(2, 5, len(tokenizer), generator=generator)).to(dtype)
    theirs = ntloss.NTLossDotProduct(tokenizer).predict_numbers(logits.float())
    ours = predict_numbers(logits, NumberVocabulary.from_tokenizer(tokenizer))
    for found, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def test_logits_of_another_model_are_rejected():
    with pytest.raises(ValueError, match="the logits have 5 tokens, fewer than the number"):
        predict_numbers(torch.zeros(1, 5), VOCABULARY)
