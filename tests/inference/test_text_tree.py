"""The tree of texts against the distribution that it is built from."""

import math
import random
from collections import Counter

import pytest
from text_server import END, following

from mm_numeric.inference.text_tree import TextTree, is_short


def added(tree, texts, text, *, shows_end=False, most=20, cut=None):
    """Add an answer of a model whose distribution is that of ``texts``, one character a token."""
    written = [*text, *[END] * shows_end]
    tokens, likeliest = [], []
    for i, token in enumerate(written):
        probs = following(texts, text[:i])
        top = sorted(probs, key=probs.get, reverse=True)[:most]
        shown = [own for own in top if own != END or shows_end]
        likeliest.append({own.encode(): math.log(probs[own]) for own in shown})
        tokens.append((math.log(probs[token]), token.encode()))
    length = len(tokens) if cut is None else cut
    tree.add(
        text[:length], tokens[:length], likeliest[:length], is_complete=cut is None
    )  # fmt: skip


def has_longer(text, seen):
    return any(own.startswith(text) and own != text for own in seen)


def of_kind(kind, rng):
    if kind == "times":
        return f"{rng.randint(9, 11)}:{rng.randrange(60):02d}"
    if kind == "numbers":
        return str(rng.choice([4, 42, 421, 43, 7, 70, -4]))
    return f"{rng.choice([3, 5])}{rng.randrange(10)}"


@pytest.mark.parametrize("shows_end", [False, True])
@pytest.mark.parametrize("kind", ["numbers", "times", "numbers of two digits"])
def test_every_probability_is_exact(kind, shows_end):
    """Times, numbers of equal length, and numbers of which some are the beginning of others.

    A server that does not show the end token leaves open whether a number goes on, until a longer
    one has been seen.
    """
    rng = random.Random(0)
    for _ in range(20):
        texts = [of_kind(kind, rng) for _ in range(40)]
        exact = {text: n / 40 for text, n in Counter(texts).items()}
        tree, seen = TextTree(), []
        for text in rng.sample(texts, 12):
            added(tree, texts, text, shows_end=shows_end)
            seen.append(text)
            found = tree.probabilities()
            assert sum(found.values()) <= 1 + 1e-12
            if kind == "numbers":
                for own in seen:
                    longer = 0.0
                    if not (shows_end or has_longer(own, seen)):
                        longer = sum(
                            p for other, p in exact.items()
                            if other.startswith(own) and other != own
                        )  # fmt: skip
                    assert found[own] == pytest.approx(exact[own] + longer, abs=1e-12)
                continue
            known = {text: p for text, p in exact.items() if text[:-1] in {s[:-1] for s in seen}}
            assert found == pytest.approx(known, abs=1e-12)


def test_a_number_in_the_place_of_another_is_taken_to_end_until_a_longer_one_is_seen():
    texts = ["35"] * 4 + ["36"] * 2 + ["371"] * 2 + ["8", "9"]
    tree = TextTree()
    added(tree, texts, "35", shows_end=True)
    assert tree.probabilities() == pytest.approx({"35": 0.4, "36": 0.2, "37": 0.2})
    added(tree, texts, "371", shows_end=True)
    assert tree.probabilities() == pytest.approx({"35": 0.4, "36": 0.2, "371": 0.2})
    added(tree, texts, "8", shows_end=True)  # 9 may be the beginning of 90
    assert tree.probabilities() == pytest.approx({"35": 0.4, "36": 0.2, "371": 0.2, "8": 0.1})


def test_a_truncated_answer_is_no_answer():
    tree, texts = TextTree(), ["421", "42"]
    tree.add("42", [], [], is_complete=True)  # an answer whose tokens the server does not return
    added(tree, texts, "421", cut=2, shows_end=True)
    assert tree.probabilities() == {}
    added(tree, texts, "421", shows_end=True)
    assert tree.probabilities() == {"421": pytest.approx(0.5), "42": pytest.approx(0.5)}


def test_tokens_that_the_server_does_not_list_are_uncovered():
    texts = ["7:00"] * 5 + [f"7:0{i}" for i in range(1, 6)]
    tree = TextTree()
    added(tree, texts, "7:00", most=3)
    assert tree.probabilities() == {
        "7:00": pytest.approx(0.5), "7:01": pytest.approx(0.1), "7:02": pytest.approx(0.1)
    }  # fmt: skip


@pytest.mark.parametrize("text", ["7", "-3.5", " 12:05\n", "1,234"])
def test_a_short_answer_is_one_number_or_one_time(text):
    assert is_short(text)
    assert not is_short(f"about {text}")
    assert not is_short(f"{text} {text}")
