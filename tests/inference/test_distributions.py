"""Distributions of numbers from any model of transformers, next to brute force over all numbers."""

import math

import pytest
import torch
from tiny_models import tiny_byt5, tiny_causal_lm
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

import mm_numeric
from mm_numeric.families.tiny import tiny_qwen2_tokenizer
from mm_numeric.inference.distributions import number_distribution, read_number


def only_numbers(model, tokenizer, texts):
    """Make the model answer with the texts alone: all other tokens get a probability of 1e-9."""
    ids = {i for text in texts for i in tokenizer(text, add_special_tokens=False)["input_ids"]}
    bias = torch.full((model.get_output_embeddings().weight.shape[0],), -60.0)
    bias[[*ids, tokenizer.eos_token_id]] = 0.0
    head = model.get_output_embeddings()
    head.bias = torch.nn.Parameter(bias.to(head.weight))
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    return model.eval()


def probability_of(model, tokenizer, prompt, text):
    """The probability of a text and its end, from one forward pass over all of it."""
    answer = [*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
    if model.config.is_encoder_decoder:
        start = model.config.decoder_start_token_id
        with torch.no_grad():
            logits = model(input_ids=prompt, decoder_input_ids=torch.tensor([[start, *answer]]))
        rows = logits.logits[0].double().log_softmax(-1)
    else:
        ids = torch.cat([prompt, torch.tensor([answer])], dim=1)
        with torch.no_grad():
            rows = model(input_ids=ids).logits[0].double().log_softmax(-1)[prompt.shape[1] - 1 :]
    return math.exp(sum(float(rows[i, token]) for i, token in enumerate(answer)))


def qwen2():
    tokenizer = tiny_qwen2_tokenizer()
    return tiny_causal_lm(), tokenizer


def byt5():
    return tiny_byt5(), ByT5Tokenizer()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "numbers"),
    [
        (qwen2, [str(n) for n in range(50)]),
        (qwen2, [f"{n}.{d}" for n in range(5) for d in range(5)]),
        (byt5, [f"{sign}{n}" for sign in ("", "-") for n in range(10)]),
    ],
    ids=["integers", "decimals", "signed"],
)
def test_a_distribution_is_that_of_brute_force(make, numbers):
    model, tokenizer = make()
    assert isinstance(tokenizer, PreTrainedTokenizerFast | ByT5Tokenizer)
    model = only_numbers(model, tokenizer, numbers)
    prompt = tokenizer("How many?", return_tensors="pt", add_special_tokens=False)
    longest = max(len(tokenizer(n, add_special_tokens=False)["input_ids"]) for n in numbers)
    (found,) = number_distribution(
        model, prompt, tokenizer, mass=1.0, branches=2000, max_new_tokens=longest + 1
    )
    probs = {n: probability_of(model, tokenizer, prompt["input_ids"], n) for n in numbers}
    others = [text for text in written(numbers, longest) if text not in probs]
    of_value = {}
    for text, prob in probs.items():
        of_value[float(text)] = of_value.get(float(text), 0.0) + prob
    ours = dict(zip(found.values.tolist(), found.probabilities * found.covered, strict=True))
    for value, prob in of_value.items():
        # Texts such as 007 may add to it; they are none of the numbers.
        same = [text for text in others if float(text) == value]
        prob += sum(probability_of(model, tokenizer, prompt["input_ids"], t) for t in same)
        assert ours[value] == pytest.approx(prob, rel=1e-6)


def written(numbers, longest):
    """All texts of up to ``longest`` of their characters that are numbers."""
    letters, texts = sorted(set("".join(numbers))), [""]
    found = []
    for _ in range(longest):
        texts = [text + letter for text in texts for letter in letters]
        found += [text for text in texts if read_number(text) is not None]
    return found


def test_a_batch_gives_each_prompt_its_own():
    tokenizer = tiny_qwen2_tokenizer()
    model = only_numbers(tiny_causal_lm(), tokenizer, [str(n) for n in range(10)])
    tokenizer.padding_side = "left"
    prompts = ["How many?", "And how many of these?"]
    inputs = tokenizer(prompts, return_tensors="pt", padding=True, add_special_tokens=False)
    together = number_distribution(model, inputs, tokenizer, mass=0.95, max_new_tokens=3)
    for prompt, found in zip(prompts, together, strict=True):
        alone = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)
        (wanted,) = number_distribution(model, alone, tokenizer, mass=0.95, max_new_tokens=3)
        assert found.values.tolist() == wanted.values.tolist()
        assert found.probabilities == pytest.approx(wanted.probabilities)
        assert found.covered == pytest.approx(wanted.covered)


def test_a_time_is_a_number_on_a_circle():
    tokenizer = tiny_qwen2_tokenizer()
    model = only_numbers(tiny_causal_lm(), tokenizer, [str(n) for n in range(10)])
    inputs = tokenizer("When?", return_tensors="pt", add_special_tokens=False)

    def minutes(text):
        return 60.0 * int(text) if text.isdigit() else None

    (found,) = mm_numeric.number_distribution(
        model, inputs, tokenizer, answer=minutes, max_new_tokens=2, mass=1.0, branches=400
    )
    assert set(found.values % 60) == {0.0}
    assert found.median(circle=720.0) in found.values % 720


def test_no_number_and_no_end_token():
    tokenizer = tiny_qwen2_tokenizer()
    model = only_numbers(tiny_causal_lm(), tokenizer, ["a", "b"])
    inputs = tokenizer("When?", return_tensors="pt", add_special_tokens=False)
    assert number_distribution(model, inputs, tokenizer, max_new_tokens=2) == [None]
    model.generation_config.eos_token_id = tokenizer.eos_token = None
    with pytest.raises(ValueError, match="end token"):
        number_distribution(model, inputs, tokenizer)
