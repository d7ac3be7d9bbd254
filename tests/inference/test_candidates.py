"""Explored answers: probabilities as the model says, of every family, and none left out."""

import numpy as np
import pytest
import torch
import transformers
from each_family import marked
from PIL import Image
from tiny_models import TINY, tiny_folder

from mm_numeric.answers import ClockTime, Example
from mm_numeric.data.collator import prompt_batch
from mm_numeric.inference import branch_cache
from mm_numeric.inference.candidates import PLAIN_SETTINGS, Exploration, PrefixTree, Samples, draw
from mm_numeric.inference.constrain import Constrainer, Constraint
from mm_numeric.inference.generate import generate_tokens
from mm_numeric.registry import FAMILIES, choose
from mm_numeric.tasks.clock import Clock

STEPS = 3
TWINS = ("qwen2_5_vl", "yi_vl")
"""Families whose cache and inputs are those of ``qwen2_vl`` and ``llava``."""


@pytest.fixture(scope="module", params=marked(name for name in FAMILIES if name not in TWINS))
def loaded(request, tmp_path_factory):
    """A tiny random model of a family, and three questions; two are of different length."""
    folder = tmp_path_factory.mktemp(request.param)
    cls = choose(request.param, FAMILIES, "family", "test")
    family = cls.load(tiny_folder(request.param), TINY)
    model = family.load_model(tiny_folder(request.param), TINY)
    examples = []
    for i, prompt in enumerate(("What time is it?", "When?", "And now, which time?")):
        path = None
        if family.takes_images:
            path = folder / f"{i}.png"
            Image.new("RGB", (60, 60), (70 * i, 200, 30)).save(path)
        examples.append(Example(id=str(i), image=path, prompt=prompt, answer=None, where="test"))
    return model.eval(), family, examples


def explore(loaded, exploration, examples=None, steps=STEPS):
    model, family, everything = loaded
    inputs, _ = prompt_batch(family, everything if examples is None else examples)
    return generate_tokens(model, family, inputs, steps, custom_generate=exploration)


def next_token(loaded, example, tokens):
    """The probabilities of the next token when the model reads everything at once, float64."""
    model, family, _ = loaded
    inputs, _ = prompt_batch(family, [example])
    given = torch.tensor([tokens], dtype=torch.long)
    if family.encoder_decoder:
        start = torch.tensor([[family.decoder_start_id]])
        inputs["decoder_input_ids"] = torch.cat([start, given], dim=1)
    else:
        ids = torch.cat([inputs.pop("input_ids"), given], dim=1)
        answered = torch.zeros_like(ids, dtype=torch.bool)
        answered[:, ids.shape[1] - len(tokens) :] = len(tokens) > 0
        images = {k: v for k, v in inputs.items() if k in ("pixel_values", "image_grid_thw")}
        more = torch.zeros_like(given)
        aligned = {
            name: torch.cat([values, more], dim=1)
            for name, values in inputs.items()
            if name.endswith(("token_type_ids", "position_mask"))
        }
        whole = family.model_inputs(ids, torch.ones_like(ids), answered, images)
        inputs = {**aligned, **whole}
    with torch.no_grad():
        return model(**inputs).logits[0, -1].double().softmax(-1).numpy()


def probability(loaded, example, answer, end_tokens):
    found = 1.0
    for i, token in enumerate(answer):
        found *= next_token(loaded, example, answer[:i])[token]
    ends = next_token(loaded, example, answer)
    return found * sum(ends[stop] for stop in end_tokens)


def stops(family):
    """The tokens at which the text ends."""
    return {*family.stop_ids, family.pad_id}


@pytest.fixture(scope="module")
def everything(loaded):
    """All answers of at most one token to two questions, the vocabulary size and the end tokens.

    Most tokens end an answer, because each of the others is a branch of its own.
    """
    _, family, examples = loaded
    vocabulary = len(next_token(loaded, examples[0], []))
    end_tokens = {*stops(family), *range(40, vocabulary)}
    tree = PrefixTree(end_tokens, mass=1.0, width=vocabulary)
    return explore(loaded, tree, examples[:2], steps=2), vocabulary, end_tokens


@pytest.mark.slow
def test_probabilities_are_those_of_the_whole_text_and_all_are_found(loaded, everything):
    _, _, examples = loaded
    explored, vocabulary, end_tokens = everything
    for example, found in zip(examples[:2], explored, strict=True):
        first = next_token(loaded, example, [])
        ends = sum(first[stop] for stop in end_tokens)
        assert found.probabilities[()] == pytest.approx(ends, rel=1e-4)
        assert len(found.probabilities) == 1 + vocabulary - len(end_tokens)
        likely = sorted(found.probabilities, key=found.probabilities.get)[-3:]
        for answer in likely:
            wanted = probability(loaded, example, answer, end_tokens)
            assert found.probabilities[answer] == pytest.approx(wanted, rel=1e-4)


def test_greedy_answers_are_those_of_generate(loaded):
    model, family, examples = loaded
    inputs, _ = prompt_batch(family, examples)
    written = generate_tokens(model, family, inputs, STEPS)
    prompt = 1 if family.encoder_decoder else inputs["input_ids"].shape[1]
    for exploration in (
        PrefixTree(stops(family), mass=0.5, width=3),
        Samples(stops(family), count=2, ids=[example.id for example in examples]),
    ):
        for ids, found in zip(
            written[:, prompt:].tolist(), explore(loaded, exploration), strict=True
        ):
            assert found.greedy == tuple(family.before_end(ids))


@pytest.mark.slow
def test_a_tree_covers_the_mass_that_was_asked_for_with_the_most_likely_answers(loaded, everything):
    explored, vocabulary, end_tokens = everything
    tree = PrefixTree(end_tokens, mass=0.97, width=vocabulary)
    found_again = explore(loaded, tree, loaded[2][:2], steps=2)
    for whole, found in zip(explored, found_again, strict=True):
        lost = sum(p for a, p in whole.probabilities.items() if a not in found.probabilities)
        assert lost <= 0.03 + 1e-6
        assert len(found.probabilities) < len(whole.probabilities)
        for answer, prob in found.probabilities.items():
            assert prob == pytest.approx(whole.probabilities[answer], rel=1e-4)


def test_samples_are_drawn_with_their_probability_and_do_not_depend_on_the_batch(loaded):
    _, family, examples = loaded
    count, ids = 400, [example.id for example in examples]
    found = explore(loaded, Samples(stops(family), count=count, ids=ids), steps=1)
    alone = explore(
        loaded, Samples(stops(family), count=count, ids=ids[1:2]), examples[1:2], steps=1
    )
    assert alone[0].probabilities == found[1].probabilities
    two = explore(loaded, Samples(stops(family), count=count, ids=ids), steps=2)
    for example, once, twice in zip(examples, found, two, strict=True):
        ends = sum(next_token(loaded, example, [])[stop] for stop in stops(family))
        spread = 4 * np.sqrt(ends * (1 - ends) / count) + 1 / count
        assert once.probabilities.get((), 0.0) == pytest.approx(ends, abs=spread)
        assert twice.probabilities.get((), 0.0) == once.probabilities.get((), 0.0)
        assert all(round(p * count, 6).is_integer() for p in twice.probabilities.values())


def test_branches_that_share_the_cache_of_a_prompt_have_the_same_probabilities(loaded, monkeypatch):
    """The attention of all prompts together, of each alone, a copy of the cache per branch."""

    ends = range(0, 300, 2)  # enough that a model that has learnt nothing ends its answers

    def found():
        return explore(loaded, PrefixTree(ends, mass=0.99, width=9), steps=4)

    together = found()
    monkeypatch.setattr(branch_cache, "similar_counts", lambda n: [*np.flatnonzero(n)[:, None]])
    apart = found()
    monkeypatch.setattr(branch_cache, "_can_share", lambda *_: False)
    for copied, *others in zip(found(), together, apart, strict=True):
        assert len(copied.probabilities) > 1
        for other in others:
            assert other.probabilities == pytest.approx(copied.probabilities, rel=1e-4)
            assert other.greedy == copied.greedy


OTHERS = {"intermediate_size": 48, "vocab_size": 19, "num_hidden_layers": 2, "hidden_size": 32}
OTHERS |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0}
FULL = {"layer_types": ["full_attention"] * 2, "num_local_experts": 4, "eos_token_id": 1}


@pytest.mark.parametrize(
    ("cls", "options", "can_share"),
    [
        pytest.param(transformers.LlamaConfig, {}, True, id="llama"),
        pytest.param(transformers.GptOssConfig, FULL, False, id="attention sinks"),
        pytest.param(transformers.DiffLlamaConfig, {}, False, id="an attention of its own"),
        pytest.param(transformers.DogeConfig, {}, False, id="a mask of its own"),
    ],
)
def test_the_probabilities_are_those_of_a_model_with_another_attention(
    cls, options, can_share, monkeypatch
):
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(cls(**OTHERS, **options)).eval()
    for parameter in model.parameters():
        parameter.data += 0.2 * torch.randn_like(parameter)
    prompts = torch.tensor([[0, 0, 5, 7, 9], [4, 3, 8, 2, 6]])
    shared, original = [], branch_cache._can_share
    monkeypatch.setattr(
        branch_cache, "_can_share", lambda *a: shared.append(original(*a)) or shared[-1]
    )
    found = model.generate(
        input_ids=prompts,
        attention_mask=(prompts > 0).long(),
        max_new_tokens=3,
        **PLAIN_SETTINGS,
        eos_token_id=[1],
        pad_token_id=0,
        custom_generate=PrefixTree(range(10), mass=1.0, width=99),
    )
    assert shared == [can_share]
    for prompt, each in zip(prompts, found, strict=True):
        own = prompt[prompt > 0]
        assert len(each.probabilities) > 19
        for answer, prob in [*each.probabilities.items()][::9]:
            ids = torch.cat([own, torch.tensor(answer, dtype=torch.int64)])
            with torch.no_grad():
                probs = model(ids[None]).logits[0, len(own) - 1 :].double().softmax(-1)
            spelled = probs[range(len(answer)), list(answer)].prod()
            assert prob == pytest.approx(float(spelled * probs[-1, :10].sum()), rel=1e-4)


def test_attention_to_a_long_prompt_does_not_overflow_float16():
    query, keys = torch.zeros(1, 4, dtype=torch.float16), torch.zeros(5000, 4, dtype=torch.float16)
    parts = [branch_cache._attend(query, keys[:n], 50 + keys[:n]) for n in (5000, 3)]
    assert branch_cache._merged(*parts).tolist() == [[50] * 4]


def test_answers_that_only_an_end_token_may_follow_need_no_pass(loaded, monkeypatch):
    _, family, examples = loaded
    constrainer, names, sizes = Constrainer(Clock(), family), [e.id for e in examples], []
    step = Exploration._step

    def counted(self, branches, *arguments):
        sizes.append(len(branches.row))
        return step(self, branches, *arguments)

    monkeypatch.setattr(Exploration, "_step", counted)

    def found():
        limit = constrainer.batch([None] * 3, 3, 20)
        yield from explore(loaded, PrefixTree(stops(family), limit, mass=0.9, width=8), steps=20)
        limit = constrainer.batch([None] * 3, 3, 20)
        yield from explore(loaded, Samples(stops(family), limit, count=9, ids=names), steps=20)

    short, short_passes = [*found()], sum(sizes)
    monkeypatch.setattr(Constraint, "complete", lambda self: np.zeros(len(self.states), bool))
    for ours, wanted in zip(short, found(), strict=True):
        assert ours.probabilities == pytest.approx(wanted.probabilities, rel=1e-5)
        assert ours.greedy == wanted.greedy
        assert ours.greedy_probabilities == pytest.approx(wanted.greedy_probabilities, rel=1e-4)
        assert isinstance(Clock().parse(family.text(ours.greedy)), ClockTime)
    assert short_passes < sum(sizes) - short_passes


def test_answers_that_are_complete_at_the_token_limit_are_found(loaded):
    _, family, examples = loaded
    constrainer, steps = Constrainer(Clock(), family), len(family.answer("12:58").ids) - 1
    for explore_with in (
        lambda limit: PrefixTree(stops(family), limit, mass=1.0, width=720),
        lambda limit: Samples(stops(family), limit, count=9, ids=[e.id for e in examples]),
    ):
        limit = constrainer.batch([None] * 3, 3, steps)
        for found in explore(loaded, explore_with(limit), steps=steps):
            assert sum(found.probabilities.values()) == pytest.approx(1)
            assert isinstance(Clock().parse(family.text(found.greedy)), ClockTime)


def test_a_random_number_close_to_one_draws_no_impossible_token():
    """In float32 it would be 1, and above the sum of all probabilities."""
    scores = torch.full((1, 8), -torch.inf)
    scores[0, :3] = torch.tensor([0.1, 0.7, 0.3])
    numbers = torch.tensor([[0.0, 0.5, 1 - 2**-26, 1 - 2**-53]], dtype=torch.float64)
    (tokens,) = draw(scores, numbers).tolist()
    assert tokens[0] == 0
    assert max(tokens) == 2
