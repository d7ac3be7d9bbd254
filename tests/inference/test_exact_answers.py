"""Explored distributions, and the answers chosen from them, next to all texts of a grammar.

The reference reads each text in one pass, as in training, and compares all answers in loops.
"""

import math

import pytest
import torch
from tiny_models import TINY, tiny_folder

from mm_numeric.answers import ClockTime, Example, Number
from mm_numeric.data.collator import prompt_batch
from mm_numeric.families.qwen2_vl import Qwen2VL
from mm_numeric.inference.candidates import PrefixTree
from mm_numeric.inference.constrain import Constraint
from mm_numeric.inference.decision_rules import Candidate, decide, merge_equal
from mm_numeric.inference.decode import Generated, averaged
from mm_numeric.inference.generate import generate_tokens
from mm_numeric.inference.risks import ABSOLUTE, CIRCULAR_MINUTES
from mm_numeric.inference.token_automaton import TokenAutomaton

pytestmark = pytest.mark.slow


def time_of(text):
    hour, minute = text.split(":")
    return ClockTime(int(hour), int(minute))


KINDS = {
    "times": (
        "(?:[1-9]|1[0-2]):[0-5][0-9]",
        [f"{hour}:{minute:02d}" for hour in range(1, 13) for minute in range(60)],
        time_of,
    ),
    "integers": (
        "(?:[0-9]|4[0-9]{1,2})",
        [str(n) for n in (*range(10), *range(40, 50), *range(400, 500))],
        Number,
    ),
    "decimals": (r"[78]\.[0-9]{2}", [f"{n / 100:.2f}" for n in range(700, 900)], Number),
}
PROMPTS = ("When?", "How many of these are there?")


@pytest.fixture(scope="module")
def models():
    """The same tiny model, untrained and trained, and its family."""
    family = Qwen2VL.load(tiny_folder("qwen2_vl"), TINY)
    untrained, trained = (family.load_model(tiny_folder("qwen2_vl"), TINY) for _ in range(2))
    learn(trained, family, ["9:57", "9:58", "10:02", "417", "421", "423", "7.95", "8.05"])
    return {"untrained": untrained.eval(), "trained": trained.eval()}, family


def learn(model, family, texts):
    """Train a model to answer each prompt with any of some texts."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(12):
        for prompt in PROMPTS:
            logits, tokens = read_all(model, family, prompt, texts)
            loss = torch.nn.functional.cross_entropy(
                logits.flatten(0, 1), tokens.flatten(), ignore_index=-100
            )
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()


def example(prompt):
    return Example(id=prompt, image=None, prompt=prompt, answer=None, where="test")


def read_all(model, family, prompt, texts):
    """Return the logits at the tokens of k texts, [k, s, v], and the tokens, padded with -100."""
    given = prompt_batch(family, [example(prompt)])[0]["input_ids"]
    answers = [family.answer(text).ids for text in texts]
    most = max(map(len, answers))
    tokens = torch.tensor([[*ids, *[-100] * (most - len(ids))] for ids in answers])
    ids = torch.cat([given.expand(len(texts), -1), tokens.clamp(min=0)], dim=1)
    logits = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
    return logits[:, given.shape[1] - 1 : -1], tokens


def brute_force(model, family, prompt, texts):
    """Return the probability of each text: that of each token is among those that may follow."""
    with torch.no_grad():
        logits, tokens = read_all(model, family, prompt, texts)
    sequences = [[t for t in ids if t >= 0] for ids in tokens.tolist()]
    allowed = {}
    for ids in sequences:
        for i, token in enumerate(ids):
            end = family.stop_ids if i + 1 == len(ids) else [token]
            allowed.setdefault(tuple(ids[:i]), set()).update(end)
    found = {}
    for text, ids, scores in zip(texts, sequences, logits.tolist(), strict=True):
        total = 1.0
        for i, token in enumerate(ids):
            weights = {t: math.exp(scores[i][t]) for t in allowed[tuple(ids[:i])]}
            end = family.stop_ids if i + 1 == len(ids) else [token]
            total *= sum(weights[t] for t in end) / sum(weights.values())
        found[text] = total
    return found


def distance(a, b):
    if isinstance(a, ClockTime):
        apart = abs(a.minutes - b.minutes)
        return min(apart, 720 - apart)
    return abs(a.value - b.value)


def enumerated(model, family, kind):
    """Return the text of each answer to the first prompt, which is padded, and its probability."""
    regex, texts, _ = KINDS[kind]
    automaton = TokenAutomaton(family)
    limit = Constraint(automaton, [automaton.start(regex)] * len(PROMPTS), 8)
    tree = PrefixTree({*family.stop_ids, family.pad_id}, limit, mass=1.0, width=len(texts))
    inputs, _ = prompt_batch(family, [example(prompt) for prompt in PROMPTS])
    found = generate_tokens(model, family, inputs, 8, custom_generate=tree)[0]
    return {family.text(ids): prob for ids, prob in found.probabilities.items()}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "names", ["untrained", "trained", pytest.param("untrained trained", marks=pytest.mark.full)]
)
def test_answers_are_those_of_brute_force(models, names, kind):
    """Of one model, and of the mean of two models."""
    (loaded, family), (_, texts, parse) = models, KINDS[kind]
    each = [brute_force(loaded[name], family, PROMPTS[0], texts) for name in names.split()]
    probs = {text: sum(own[text] for own in each) / len(each) for text in texts}
    answers = {text: parse(text) for text in texts}
    explored = [enumerated(loaded[name], family, kind).items() for name in names.split()]
    own = [[Candidate(answers[text], text, prob) for text, prob in items] for items in explored]
    candidates = averaged([Generated("", None, (), (), one) for one in own], "test").candidates
    found = {candidate.text: candidate.probability for candidate in merge_equal(candidates)}
    for text, prob in probs.items():
        assert found.get(text, 0.0) == pytest.approx(prob, rel=1e-4, abs=1e-6)
    assert sum(found.values()) == pytest.approx(1)
    risk = CIRCULAR_MINUTES if kind == "times" else ABSOLUTE
    few = sorted(probs, key=probs.get)[-30:]
    costs = {
        text: sum(p * distance(answers[text], answers[t]) for t, p in probs.items())
        for text in {*few, *(decide(r, candidates, risk).text for r in ("median", "mbr"))}
    }
    for rule in ("median", "mbr"):
        assert costs[decide(rule, candidates, risk).text] <= min(costs.values()) + 1e-3
