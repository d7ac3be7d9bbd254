"""The optimum of a training loss for known labels: a table of probabilities, without a network.

The table has one row of logits for each prefix of the labels. It is trained until the loss, whose
mean is over the distribution of the labels, has no gradient. An ``Answers`` holds what the table
then answers.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from objective_steps import made
from term_losses import marked_spans
from tokens import SPELLED, TOKENIZER

from mm_numeric.losses.normalization import Counts
from mm_numeric.losses.presets import PRESETS

END = "x"
TIME = "hour minute"
TIMES = {
    60 * (hour % 12) + minute: f"{hour}:{minute:02}"
    for hour in range(1, 13)
    for minute in range(60)
}
"""Maps the minutes after 12:00 to the text of each time."""


def minutes_of(text):
    hour, _, minute = text.partition(":")
    return int(hour) % 12 * 60 + int(minute)


@dataclass(frozen=True)
class Answers:
    """A table with the probability of each token after each prefix of the labels.

    Answers end with ``END``. A text that leaves the table has no further tokens.
    """

    table: dict[str, dict[str, float]]
    texts: frozenset[str]
    """The complete answers of the table: all labels."""

    @property
    def greedy(self):
        """Return the answer that the most likely tokens write."""
        text = ""
        while text in self.table:
            text += max(self.table[text], key=self.table[text].get)
        return text.removesuffix(END)

    @cached_property
    def probs(self):
        """Return the probability of each complete answer."""
        whole = {
            prefix: math.prod(self.table[prefix[:i]][c] for i, c in enumerate(prefix))
            for prefix in self.table
        }
        return {
            prefix: whole[prefix] * own[END]
            for prefix, own in self.table.items()
            if prefix in self.texts
        }

    @property
    def median(self):
        """Return the answer with the smallest expected distance from the answers of the table."""
        return min(self.probs, key=lambda text: expected_distance(self.probs, text))

    def share_within(self, text, largest):
        """Return the probability of the answers that are at most this far from a text."""
        return sum(p for other, p in self.probs.items() if distance(other, text) <= largest)


def distance(one, other):
    """Return the distance of two numbers, or the circular one of two times, in minutes."""
    if ":" not in one:
        return abs(float(one) - float(other))
    apart = abs(minutes_of(one) - minutes_of(other))
    return min(apart, 720 - apart)


def expected_distance(labels, text):
    """Return the mean distance of an answer from labels, ``{text: probability}``."""
    total = sum(labels.values())
    return sum(p * distance(label, text) for label, p in labels.items()) / total


def error_of(one, other):
    """Return the signed error of a time in minutes, -360 to 359: late is above 0."""
    return (minutes_of(one) - minutes_of(other) + 360) % 720 - 360


def times_with(shown, noise):
    """Return the labels ``{text: probability}`` of a time, for noise ``{minutes: weight}``."""
    total = sum(noise.values())
    found = {}
    for shift, weight in noise.items():
        text = TIMES[(shown + shift) % 720]
        found[text] = found.get(text, 0.0) + weight / total
    return found


def gaussian(deviation):
    """Return Gaussian noise, rounded to minutes."""
    return {
        d: math.erf((d + 0.5) / deviation / 2**0.5) - math.erf((d - 0.5) / deviation / 2**0.5)
        for d in range(-4 * int(deviation), 4 * int(deviation) + 1)
    }


def exponential(mean):
    """Return exponential noise, rounded to minutes: labels are late."""
    return {
        d: math.exp(-max(d - 0.5, 0) / mean) - math.exp(-(d + 0.5) / mean)
        for d in range(8 * int(mean))
    }


def label_table(labels):
    """Return the ``Answers`` that are distributed like the labels, ``{text: probability}``."""
    table = {}
    for text, share in labels.items():
        for i, character in enumerate(text + END):
            own = table.setdefault(text[:i], dict.fromkeys(SPELLED, 0.0))
            own[character] += share
    for own in table.values():
        total = sum(own.values())
        own.update({c: p / total for c, p in own.items()})
    return Answers(table, frozenset(labels))


def without_ratio(name):
    """Return the settings of a preset whose terms have a constant weight, so that it has a minimum.

    ``balance: ratio`` scales them by a ratio of losses that has no gradient.
    """
    return replace(PRESETS[name], balance="fixed")


def optimum(objective, labels, steps=100):
    """Return the ``Answers`` at the optimum of an objective (settings) for a label distribution.

    The losses of all tokens of an answer are summed, not averaged.

    Args:
        objective: An ``ObjectiveSpec``.
        labels: ``{text: probability}``, or a list of (text, probability): times (H:MM) or numbers.
        steps: Largest number of steps of L-BFGS.
    """
    pairs = list(labels.items()) if isinstance(labels, dict) else labels
    total = {}
    for text, p in pairs:
        total[text] = total.get(text, 0.0) + p
    start = label_table(total)
    prefixes = {prefix: i for i, prefix in enumerate(start.table)}
    texts = [text + END for text, _ in pairs]
    rows = torch.tensor([prefixes[text[:i]] for text in texts for i in range(len(text))])
    ids = torch.tensor([token for text in texts for token in TOKENIZER.ids(text)])
    weights = torch.tensor([p for text, p in pairs for _ in text + END]).double()
    is_time = any(":" in text for text in texts)
    spans = marked_spans(*((text, TIME if is_time else "free") for text in texts))
    probs = torch.tensor([[own[c] for c in SPELLED] for own in start.table.values()]).double()
    # All prefixes have gradients of about the same size in these units, also rare ones.
    of_prefix = torch.zeros(len(prefixes)).double().index_add(0, rows, weights)
    unit = of_prefix.rsqrt()[:, None]
    scaled = (probs.clamp(min=1e-4).log() / unit).requires_grad_()
    loss_of, counts = made(objective), Counts._make([torch.ones(())] * 6 + [None, False])
    optimiser = torch.optim.LBFGS(
        [scaled], max_iter=steps, tolerance_grad=1e-9, tolerance_change=0, history_size=20,
        line_search_fn="strong_wolfe",
    )  # fmt: skip

    def loss():
        optimiser.zero_grad()
        logits = (scaled * unit)[rows]
        found = loss_of(logits, ids, spans, weights=weights, counts=counts).loss
        found.backward()
        return found

    optimiser.step(loss)
    loss()
    assert scaled.grad.abs().max() < 1e-3, scaled.grad.abs().max()
    found = (scaled.detach() * unit).softmax(dim=1).tolist()
    table = {
        prefix: dict(zip(SPELLED, own, strict=True))
        for prefix, own in zip(prefixes, found, strict=True)
    }
    return Answers(table, start.texts)
