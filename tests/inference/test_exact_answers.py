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
from mm_numeric.inference.decision_rules import Candidate, decide
from mm_numeric.inference.generate import generate_tokens
from mm_numeric.inference.risks import ABSOLUTE, CIRCULAR_MINUTES
from mm_numeric.inference.token_automaton import TokenAutomaton


def time_of(text):
    hour, minute = text.split(":")
    return ClockTime(int(hour), int(minute))


KINDS = {
    "times": (
        "(?:[1-9]|1[0-2]):[0-5][0-9]",
        [f"{hour}:{minute:02d}" for hour in range(1, 13) for minute in range(60)],
        time_of,
    ),
    "integers": ("(?:0|[1-9][0-9]{0,2})", [str(n) for n in range(1000)], Number),
    "decimals": (r"[0-9]\.[0-9]{2}", [f"{n / 100:.2f}" for n in range(1000)], Number),
}
PROMPTS = ("When?", "How many of these are there?")


@pytest.fixture(scope="module", params=["untrained", "trained"])
def loaded(request):
    family = Qwen2VL.load(tiny_folder("qwen2_vl"), TINY)
    model = family.load_model(tiny_folder("qwen2_vl"), TINY)
    if request.param == "trained":
        learn(model, family, ["9:57", "9:58", "10:02", "417", "421", "423", "7.95", "8.05"])
    return model.eval(), family


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


@pytest.mark.parametrize("kind", KINDS)
def test_answers_are_those_of_brute_force(loaded, kind):
    (model, family), (regex, texts, parse) = loaded, KINDS[kind]
    automaton = TokenAutomaton(family)
    limit = Constraint(automaton, [automaton.start(regex)] * len(PROMPTS), 8)
    tree = PrefixTree({*family.stop_ids, family.pad_id}, limit, mass=1.0, width=len(texts))
    inputs, _ = prompt_batch(family, [example(prompt) for prompt in PROMPTS])
    explored = generate_tokens(model, family, inputs, 8, custom_generate=tree)
    answers = {text: parse(text) for text in texts}
    prompt, found = PROMPTS[0], explored[0]  # which is padded
    probs = brute_force(model, family, prompt, texts)
    ours = {family.text(ids): prob for ids, prob in found.probabilities.items()}
    for text, prob in probs.items():
        assert ours.get(text, 0.0) == pytest.approx(prob, rel=1e-4, abs=1e-6)
    assert sum(ours.values()) == pytest.approx(1)
    candidates = [Candidate(answers[text], text, prob) for text, prob in ours.items()]
    risk = CIRCULAR_MINUTES if kind == "times" else ABSOLUTE
    few = sorted(probs, key=probs.get)[-30:]
    costs = {
        text: sum(p * distance(answers[text], answers[t]) for t, p in probs.items())
        for text in {*few, *(decide(r, candidates, risk).text for r in ("median", "mbr"))}
    }
    for rule in ("median", "mbr"):
        assert costs[decide(rule, candidates, risk).text] <= min(costs.values()) + 1e-3
