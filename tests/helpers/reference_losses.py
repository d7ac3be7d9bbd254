"""What the losses are, one token at a time in float64: the tests hold the library to this.

Nothing here uses the library. Numbers are found by a scanner of its own, and sums are loops. The
published readings are written down as the published code defines them: runs of digits, a mean
within each sample, then a mean over samples.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

TINY = 1e-10  # of the published ratio


class Digit(NamedTuple):
    """One digit of a number."""

    position: int
    value: int
    place: int
    from_right: int


def read(characters: Sequence[str], *, runs: bool) -> list[list[Digit]]:
    """Find the numbers of one sequence of characters.

    Args:
        characters: One for each token; anything that is neither digit nor point separates.
        runs: Every run of digits is a number, a point is a separator.
    """
    digits = "0123456789"
    numbers, i = [], 0
    while i < len(characters):
        if characters[i] not in digits:
            i += 1
            continue
        whole, fraction = [], []
        while i < len(characters) and characters[i] in digits:
            whole.append(i)
            i += 1
        point = i + 1 < len(characters) and characters[i] == "." and characters[i + 1] in digits
        if point and not runs:
            i += 1
            while i < len(characters) and characters[i] in digits:
                fraction.append(i)
                i += 1
        at = whole + fraction
        numbers.append(
            [
                Digit(p, int(characters[p]), len(whole) - 1 - n, len(at) - 1 - n)
                for n, p in enumerate(at)
            ]
        )
    return numbers


def distance(scores: Tensor, wanted: int) -> Tensor:
    """Return the expected distance of the digit predicted to the digit wanted; scores [10]."""
    probs = scores.softmax(dim=0)
    total = scores.new_zeros(())
    for digit in range(10):
        total = total + probs[digit] * abs(digit - wanted)
    return total


def squashed(scores: Tensor, wanted: int, squash: float) -> Tensor:
    """Return the expected cost where the nearest wrong digit costs 1, the farthest ``squash``."""
    probs = scores.softmax(dim=0)
    total = scores.new_zeros(())
    for digit in range(10):
        if digit != wanted:
            total = total + probs[digit] * (1 + (abs(digit - wanted) - 1) * (squash - 1) / 8)
    return total


def expected_digit(scores: Tensor) -> Tensor:
    """Return the mean of the digit predicted; scores [10]."""
    probs = scores.softmax(dim=0)
    total = scores.new_zeros(())
    for digit in range(10):
        total = total + probs[digit] * digit
    return total


def miss(scores: Tensor, wanted: int) -> Tensor:
    """Return how far the expected digit is from the digit wanted, with its sign; scores [10]."""
    return expected_digit(scores) - wanted


def huber(error: Tensor, delta: float) -> Tensor:
    """Return the Huber loss: a square near 0, a line beyond ``delta``."""
    size = error.abs()
    return size**2 / 2 if size <= delta else delta * (size - delta / 2)


def spread(wanted: int, tau: float) -> list[float]:
    """Return a target that falls with the squared distance to the digit wanted."""
    heights = [math.exp(-((digit - wanted) ** 2) / tau) for digit in range(10)]
    return [height / sum(heights) for height in heights]


def area(scores: Tensor, wanted: int, sigma: float) -> Tensor:
    """Return the area between the cumulative distributions; scores [10]."""
    target = spread(wanted, 2 * sigma**2) if sigma else [float(d == wanted) for d in range(10)]
    probs = scores.softmax(dim=0)
    total = ahead = scores.new_zeros(())
    for digit in range(9):
        ahead = ahead + probs[digit] - target[digit]
        total = total + ahead.abs()
    return total


def divergence(row: Tensor, scores: Tensor, wanted: int, tau: float) -> Tensor:
    """Return KL(q || P), with P over the whole vocabulary; row [v], scores [10]."""
    total = scores.new_zeros(())
    for digit, prob in enumerate(spread(wanted, tau)):
        total = total + prob * (math.log(prob) - scores[digit] + row.exp().sum().log())
    return total


def blurred_entropy(row: Tensor, scores: Tensor, wanted: int, sigma: float) -> Tensor:
    """Return the cross-entropy of a Gaussian target, over the whole vocabulary; row [v]."""
    total = scores.new_zeros(())
    for digit, prob in enumerate(spread(wanted, 2 * sigma**2)):
        total = total + prob * (row.exp().sum().log() - scores[digit])
    return total


def yes_or_no(scores: Tensor, digit: Digit, places: bool) -> Tensor:
    """Return the mean over ten digits of p BCE, times the published weight of the place."""
    probs = scores.softmax(dim=0)
    total = scores.new_zeros(())
    for j in range(10):
        yes = scores[j].sigmoid()
        total = total - probs[j] * (yes if j == digit.value else 1 - yes).log() / 10
    if not places:
        return total
    # Units 2, tens 4, hundreds 6; tenths 1.02 ** -2, hundredths 1.02 ** -3.
    return total * (2 * (digit.place + 1) if digit.place >= 0 else 1.02 ** (digit.place - 1))


def ranked_probability(scores: Tensor, wanted: int) -> Tensor:
    """Return the squared distance of the cumulative distributions; scores [10]."""
    probs = scores.softmax(dim=0)
    total = below = scores.new_zeros(())
    for digit in range(10):
        below = below + probs[digit]
        total = total + (below - (1 if wanted <= digit else 0)) ** 2
    return total


def discrepancy(scores: Tensor, wanted: int, bandwidth: float) -> Tensor:
    """Return r'Kr + a r'(D-K)r, pair by pair: r'(D-K)r is half the sum of K (r_i - r_j)^2."""
    kernel = [[math.exp(-(((i - j) / bandwidth) ** 2) / 2) for j in range(10)] for i in range(10)]
    mean_degree = sum(map(sum, kernel)) / 10
    residual = scores.softmax(dim=0) - scores.new_tensor([i == wanted for i in range(10)])
    # All pairs at once: a hundred additions for each digit are slow to differentiate.
    products = residual[:, None] * residual
    differences = (residual[:, None] - residual) ** 2
    return (scores.new_tensor(kernel) * (products + differences / 2 / (2 * mean_degree))).sum()


def reweighed(row: Tensor, scores: Tensor, loss: Tensor, worst: float) -> Tensor:
    """Return a loss where text costs 1.01 times the worst digit; row [v]."""
    mass = scores.exp().sum() / row.exp().sum()
    return mass * loss + (1 - mass) * 1.01 * worst


def digit_loss(
    term: str, options: Mapping[str, float], row: Tensor, scores: Tensor, digit: Digit
) -> Tensor:
    """Return the losses of a term for one digit; row [v], scores [10]."""
    if term == "emd_exp":
        return distance(scores, digit.value) * place_weight(digit.from_right, options)
    if term == "ntl_was" and "squash" in options:
        loss, worst = squashed(scores, digit.value, options["squash"]), options["squash"]
    elif term in ("emd", "ntl_was"):
        loss, worst = distance(scores, digit.value), 9.0
    elif term == "ntl_mse":
        loss, worst = miss(scores, digit.value) ** 2, 81.0
    elif term == "ntl_mae":
        loss, worst = miss(scores, digit.value).abs(), 9.0
    elif term == "ntl_huber":
        delta = options.get("delta", 1.0)
        loss, worst = huber(miss(scores, digit.value), delta), delta * (9 - delta / 2)
    elif term == "ntl_was_cdf":
        return area(scores, digit.value, options.get("sigma", 0.0))
    elif term == "gce":
        return blurred_entropy(row, scores, digit.value, options.get("sigma", 1.0))
    elif term == "del":
        return yes_or_no(scores, digit, options.get("place_weights", True))
    elif term == "dist2":
        return divergence(row, scores, digit.value, options.get("tau", 1.0))
    elif term == "raft":
        predicted = sum(scores[d].exp() * d for d in range(10)) / row.exp().sum()
        return (predicted - digit.value) ** 2
    elif term == "rps":
        return ranked_probability(scores, digit.value)
    elif term == "smmd":
        return discrepancy(scores, digit.value, options.get("bandwidth", 2.0))
    else:
        raise KeyError(term)
    return reweighed(row, scores, loss, worst) if options.get("reweigh") else loss


def place_weight(from_right: int, options: Mapping[str, float]) -> float:
    """Return the weight of a digit with ``from_right`` digits to its right."""
    growth = options.get("growth", 1.2)
    weights = {
        "exponential": growth**from_right,
        "linear": 1 + (growth - 1) * from_right,
        "powers": 10.0**from_right,
        "none": 1.0,
    }
    return weights[options.get("places", "exponential")]


def weighted_entropies(
    rows: Tensor, scores: Sequence[Tensor], number: Sequence[Digit], options: Mapping[str, float]
) -> list[Tensor]:
    """Return cross-entropy of each digit, weighted by place, the mean weight 1; rows [t, v]."""
    weights = [place_weight(digit.from_right, options) for digit in number]
    mean = sum(weights) / len(weights)
    return [
        weight / mean * (rows[digit.position].exp().sum().log() - s[digit.value])
        for weight, s, digit in zip(weights, scores, number, strict=True)
    ]


def straight_through(scores: Tensor, temperature: float = 0.1) -> Tensor:
    """Return the most likely digit, with the gradient of the expected one; scores [10]."""
    expected = expected_digit(scores / temperature)
    best = max(range(10), key=lambda digit: scores[digit].item())
    return best + (expected - expected.detach())


def nearest_completion(text: str, decimals: int, prefix: str) -> float:
    """Return the distance of a label from the nearest number whose digits begin with a prefix.

    The numbers have as many decimals as the label, and no leading zeros if it has none. The
    distance is in units of the last digit, and infinite if no number begins so.

    Args:
        text: The digits of the label, without its point.
        decimals: How many of them are decimals.
        prefix: Digits, of which the last ones may be those of another token than the label's.
    """
    whole, label = len(text) - decimals, int(text)
    fixed = (whole > 1 and text[0] == "0") or len(prefix) > whole
    best = math.inf
    for length in [whole] if fixed else range(len(prefix), whole + 3):
        if not fixed and length > 1 and prefix[0] == "0":
            continue
        free = length + decimals - len(prefix)
        low, high = int(prefix + "0" * free), int(prefix + "9" * free)
        best = min(best, max(low - label, label - high, 0))
    return best


def path_risks(
    scores: Sequence[Tensor], number: Sequence[Digit], options: Mapping[str, float]
) -> list[Tensor]:
    """Return the expected cost of each digit above that of the best digit; scores [10] each."""
    text = "".join(str(digit.value) for digit in number)
    decimals, cap, found = sum(digit.place < 0 for digit in number), options.get("cap", 10.0), []
    for at, row in enumerate(scores):
        costs = [min(cap, nearest_completion(text, decimals, f"{text[:at]}{d}")) for d in range(10)]
        pairs = zip(row.softmax(dim=0), costs, strict=True)
        found.append(sum(p * (cost - min(costs)) for p, cost in pairs))
    return found


def size(number: Sequence[Digit], digits: Sequence[Tensor]) -> Tensor:
    """Return the number that some digits make."""
    total = digits[0].new_zeros(())
    for one, digit in zip(number, digits, strict=True):
        total = total + digit * 10.0**one.place
    return total


def relative(predicted: Tensor, wanted: Tensor) -> Tensor:
    """Return ``|X - Y| / (max + 1)``, 0 where they are the same."""
    if predicted == wanted:
        return 0 * predicted
    return (predicted - wanted).abs() / (max(predicted, wanted) + 1)


def magnitude(predicted: Tensor, wanted: Tensor) -> Tensor:
    """Return ``log((max + 1) / (min + 1))``."""
    if predicted == wanted:
        return 0 * predicted
    return ((max(predicted, wanted) + 1) / (min(predicted, wanted) + 1)).log()


def term_losses(
    term: str,
    options: Mapping[str, float],
    rows: Tensor,
    numbers: list[list[Digit]],
    ids: list[int],
) -> list[Tensor]:
    """Return the losses of a term for each digit (or each number) of one sample; rows [t, v]."""
    found = []
    for number in numbers:
        scores = [torch.stack([rows[d.position, i] for i in ids]) for d in number]
        if term == "digit_ce":
            found += weighted_entropies(rows, scores, number, options)
            continue
        if term == "pathrisk":
            found += path_risks(scores, number, options)
            continue
        if term.startswith(("relative", "magnitude", "nl_ntl")):
            digit = expected_digit if term.endswith(("soft", "ntl")) else straight_through
            predicted = size(number, [digit(s) for s in scores])
            wanted = size(number, [rows.new_tensor(float(digit.value)) for digit in number])
            if term == "nl_ntl":
                epsilon = options.get("epsilon", 2.0**-23)
                found.append((predicted - wanted).abs() / (predicted + wanted + epsilon))
                continue
            found.append(
                (relative if term.startswith("relative") else magnitude)(predicted, wanted)
            )
            continue
        for s, digit in zip(scores, number, strict=True):
            found.append(digit_loss(term, options, rows[digit.position], s, digit))
    return found


class Reference(NamedTuple):
    """What an objective must say."""

    loss: Tensor
    totals: dict[str, float]
    items: dict[str, int]


def objective(
    logits: Tensor,
    labels: Tensor,
    spelled: str,
    terms: Sequence[tuple[str, float, Mapping[str, float]]],
    *,
    weight: float = 0.3,
    ratio: bool = False,
    published: bool = False,
    ce_weight: float = 1.0,
    text_only: bool = False,
) -> Reference:
    """Return the loss of a batch, differentiable, and its raw parts.

    Args:
        logits: [b, t, v], float64.
        labels: [b, t], already shifted; negative where nothing is trained.
        spelled: The character of each token id.
        terms: Name, weight and options of each.
        weight: Of the terms together.
        ratio: Scale the terms to the size of cross-entropy.
        published: Runs of digits; mean per sample, then over samples.
        ce_weight: Of cross-entropy.
        text_only: Cross-entropy leaves number tokens out of its sum, and the terms ``digit_ce`` and
            ``gce`` are divided as it is: by the number of all supervised tokens.
    """
    ids = [spelled.index(str(digit)) for digit in range(10)]
    losses = []
    for rows, sample in zip(logits, labels.tolist(), strict=True):
        for row, label in zip(rows, sample, strict=True):
            if label >= 0:
                counted = not (text_only and label in ids)
                losses.append((row.exp().sum().log() - row[label]) * counted)
    nothing = 0 * logits.sum()
    ce_total = sum(losses, nothing)
    ce = ce_total / max(1, len(losses))
    totals, items, numeric = {"ce": ce_total.item()}, {"ce": len(losses)}, nothing
    for term, share, options in terms:
        per_sample = []
        for rows, sample in zip(logits, labels.tolist(), strict=True):
            characters = [spelled[label] if label >= 0 else " " for label in sample]
            numbers = read(characters, runs=published)
            per_sample.append(term_losses(term, options, rows, numbers, ids))
        if published:
            means = [sum(found, nothing) / max(1, len(found)) for found in per_sample]
            total, count = sum(means, nothing), len(per_sample)
        else:
            total = sum((loss for found in per_sample for loss in found), nothing)
            count = len(losses) if term in ("digit_ce", "gce") else sum(map(len, per_sample))
        totals[term], items[term] = total.item(), count
        numeric = numeric + share * total / max(1, count)
    factor = weight * (ce / (numeric + TINY)).detach() if ratio else weight
    return Reference(ce_weight * ce + factor * numeric, totals, items)
