"""Terms of the ntloss package, equal to it to 1e-6 wherever both are defined."""

import pytest
import torch
from torch.nn import functional

from mm_numeric.losses.numeric_loss import NumericLoss
from mm_numeric.losses.spec import TermSpec
from mm_numeric.numbers.vocabulary import NumberVocabulary

ntloss = pytest.importorskip("ntloss")


@pytest.fixture(scope="module")
def byte_tokenizer():
    """Return a byte-level tokenizer of transformers, made here: 256 bytes, no merges."""
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet(), reverse=True)
    model = tokenizers.Tokenizer(
        tokenizers.models.BPE(vocab={c: i for i, c in enumerate(letters)}, merges=[])
    )
    model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=model)


def random_batch(tokenizer, vocabulary, texts, seed):
    """Return logits [b, t, v] and labels [b, t], the first three of which are not trained on."""
    rows = [tokenizer.encode(text) for text in texts]
    width = max(map(len, rows)) + 1
    labels = torch.tensor([row + [-100] * (width - len(row)) for row in rows])
    labels[0, :3] = -100
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(*labels.shape, len(tokenizer), generator=generator)
    logits[..., [token.id for token in vocabulary.tokens]] += 4 * torch.rand(
        *labels.shape, 1, generator=generator
    )
    return logits, labels


def assert_equal(ours, name, theirs, logits, labels):
    """Hold a term, and cross-entropy with 0.3 of it, to theirs; with gradients."""
    a, b = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    result, other = ours(a, labels, shift=False), theirs(b, labels)
    torch.testing.assert_close(
        result.components[name], other, rtol=1e-6, atol=1e-6, check_dtype=False
    )
    total = functional.cross_entropy(b.flatten(0, 1), labels.flatten()) + 0.3 * other
    result.loss.backward()
    total.backward()
    torch.testing.assert_close(result.loss, total, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(a.grad, b.grad, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("reweigh", [False, True])
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    ("name", "options", "their_class", "their_options"),
    [
        ("ntl_was", {}, "NTLoss", {}),
        ("ntl_was", {"squash": 3.0}, "NTLoss", {"squash_factor": 3.0}),
        ("ntl_was", {"squash": 20.0}, "NTLoss", {"squash_factor": 20.0}),
        ("ntl_mse", {}, "NTLossDotProduct", {"loss_function": functional.mse_loss}),
        ("ntl_mae", {}, "NTLossDotProduct", {"loss_function": functional.l1_loss}),
        ("ntl_huber", {}, "NTLossDotProduct", {"loss_function": functional.huber_loss}),
    ],
)
def test_equals_ntloss(byte_tokenizer, name, options, their_class, their_options, reweigh, seed):
    vocabulary = NumberVocabulary.from_tokenizer(byte_tokenizer)
    texts = ("at 3.25 or", "no digits!", "1:07, -12")
    logits, labels = random_batch(byte_tokenizer, vocabulary, texts, seed)
    term = TermSpec(name=name, options={**options, "reweigh": reweigh})
    theirs = getattr(ntloss, their_class)(byte_tokenizer, reweigh=reweigh, **their_options)
    assert_equal(
        NumericLoss(name, vocabulary=vocabulary, terms=(term,)), name, theirs, logits, labels
    )


def test_weights_of_tokens_are_those_of_ntloss(byte_tokenizer):
    vocabulary = NumberVocabulary.from_tokenizer(byte_tokenizer)
    logits, labels = random_batch(byte_tokenizer, vocabulary, ("at 3.25", "1:07, 1"), seed=0)
    weights = torch.rand(labels.shape, generator=torch.Generator().manual_seed(1))
    loss_of = NumericLoss("ntl_was", byte_tokenizer, reweigh=True)
    mean = loss_of(logits, labels, shift=False, weights=weights).components["ntl_was"]
    theirs = ntloss.NTLoss(byte_tokenizer)
    torch.testing.assert_close(mean, theirs(logits, labels, loss_weights=weights))


@pytest.mark.parametrize("reweigh", [False, True])
@pytest.mark.parametrize("float_level", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_nl_ntl_equals_ntloss(byte_tokenizer, float_level, reweigh, seed):
    """Their float_level reads 12.34 as one number, as we do; without it, it is our digit_runs."""
    vocabulary = NumberVocabulary.from_tokenizer(byte_tokenizer)
    texts = ("at 3.25 or", "no digits!", "1:07, -12 0", "9876543.21, 5", "007.50 0.05 0.0")
    logits, labels = random_batch(byte_tokenizer, vocabulary, texts, seed)
    terms = (TermSpec(name="nl_ntl", options={"reweigh": reweigh}),)
    theirs = ntloss.NumberLevelLoss(byte_tokenizer, reweigh=reweigh, float_level=float_level)
    ours = NumericLoss("nl_ntl", vocabulary=vocabulary, terms=terms, digit_runs=not float_level)
    assert ours(logits, labels, shift=False).sums["nl_ntl"].items == (10 if float_level else 15)
    assert_equal(ours, "nl_ntl", theirs, logits, labels)
