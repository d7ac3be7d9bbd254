"""Print how well decoding finds the median and the mean of answers with a known distribution.

    python scripts/known_distributions.py
    python scripts/known_distributions.py --branches 16 --seeds 8

A model whose next tokens have exactly the probabilities of a given distribution answers with
numbers of 1 to 7 digits, with decimals and signs, next to powers of ten; with times; with points
and boxes. Answers are explored as by ``predict --decode median``: likely prefixes exactly, and a
sample of the prefixes that do not fit into the branches. Each line has

    truth      the true median and mean; for points and boxes, of the first coordinate
    greedy     the greedy answer
    covered    probability of the answers that were explored exactly
    drawn      probability of the answers that were sampled
    median     mean absolute error of the median, over seeds, in % of the spread of the distribution
    mean       mean absolute error of the mean, likewise
    random     error of the median of as many independent draws as there are branches
    read       number of positions that the model reads after the prompt
"""

import argparse
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import DynamicCache, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from mm_numeric.answers import HALF_DAY_MINUTES, ClockTime
from mm_numeric.inference.candidates import PLAIN_SETTINGS, Explored, PrefixTree
from mm_numeric.inference.number_distribution import NumberDistribution, distance

CHARACTERS = "0123456789.:-,()"
END, START = len(CHARACTERS), len(CHARACTERS) + 1
_IMPOSSIBLE = -1e4


class KnownConfig(PretrainedConfig):
    """The configuration of a model with a known distribution."""

    model_type = "known_distribution"


class KnownModel(PreTrainedModel, GenerationMixin):
    """A model with known probabilities of the next token, one token for each character.

    Its KV cache stores the tokens themselves. ``next_token`` returns the probabilities after a text
    by character; the empty one ends the answer. ``read`` counts the positions after the prompt.
    """

    config_class = KnownConfig

    def __init__(self, next_token: Callable[[str], Mapping[str, float]]) -> None:
        """Create the model, which has no weights to learn."""
        super().__init__(KnownConfig(vocab_size=len(CHARACTERS) + 2, num_hidden_layers=1))
        self.unused = torch.nn.Parameter(torch.zeros(1))
        self.next_token, self.known, self.read = next_token, dict[str, torch.Tensor](), 0

    def forward(
        self, input_ids: torch.Tensor, past_key_values: Any = None, **_: Any
    ) -> CausalLMOutputWithPast:
        """Return the logits after each row of tokens."""
        cache = DynamicCache() if past_key_values is None else past_key_values
        self.read += int((input_ids < START).sum())
        new = input_ids[:, None, :, None].double()
        keys, _ = cache.update(new, new, 0)
        rows = []
        for tokens in keys[:, 0, :, 0].long().tolist():
            text = "".join(CHARACTERS[token] for token in tokens if token < END)
            if text not in self.known:
                logits = torch.full((len(CHARACTERS) + 2,), _IMPOSSIBLE, dtype=torch.float64)
                for character, prob in self.next_token(text).items():
                    at = CHARACTERS.index(character) if character else END
                    logits[at] = math.log(prob) if prob > 0 else _IMPOSSIBLE
                self.known[text] = logits
            rows.append(self.known[text])
        return CausalLMOutputWithPast(logits=torch.stack(rows)[:, None], past_key_values=cache)


def explore(model: KnownModel, tree: PrefixTree, prompts: int = 1, steps: int = 20) -> list[Any]:
    """Explore the answers of a model to a batch of equal prompts."""
    ids = torch.full((prompts, 1), START)
    model.generation_config.eos_token_id = model.generation_config.pad_token_id = END
    return model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        custom_generate=tree,
        max_new_tokens=steps,
        **PLAIN_SETTINGS,
    )


def text_of(tokens: Sequence[int]) -> str:
    """Return the text of an answer."""
    return "".join(CHARACTERS[token] for token in tokens)


def of_texts(texts: Sequence[str], probs: Sequence[float]) -> Callable[[str], Mapping[str, float]]:
    """Return the function of a ``KnownModel`` that answers with these texts and probabilities."""
    mass: defaultdict[str, float] = defaultdict(float)
    after: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for text, prob in zip(texts, probs, strict=True):
        after[text][""] = prob
        for length in range(len(text) + 1):
            mass[text[:length]] += prob
            if length:
                after[text[: length - 1]][text[length - 1]] = 0.0
    return lambda text: {
        own: (prob if own == "" else mass[text + own]) / mass[text]
        for own, prob in after[text].items()
    }


class Known(NamedTuple):
    """Answers with a known distribution."""

    name: str
    next_token: Callable[[str], Mapping[str, float]]
    read: Callable[[str], float]
    """Returns the number in a text; for points and boxes, the first coordinate."""

    median: float
    mean: float
    spread: float
    """Standard deviation; on a circle, the scale of the distribution."""

    draw: Callable[[np.random.Generator, int], Any]
    circle: float | None = None
    last: tuple[Callable[[str], float], float, float] | None = None
    """For points and boxes: function that reads the last coordinate, its median and its mean."""


def known_numbers(
    name: str,
    values: Any,
    probs: Any,
    write: Callable[[Any], str],
    *,
    read: Callable[[str], float] = float,
    circle: float | None = None,
    spread: float | None = None,
) -> Known:
    """Return a distribution of numbers or times, with the exact median and mean."""
    texts = [write(value) for value in values]
    numbers = np.array([read(text) for text in texts])
    exact = NumberDistribution.of(numbers, probs)
    return Known(
        name,
        of_texts(texts, probs),
        read,
        exact.median(circle),
        exact.mean(circle),
        spread or math.sqrt(float(probs @ (numbers - exact.mean()) ** 2)),
        lambda rng, count: rng.choice(numbers, count, p=probs),
        circle,
    )


def log_normal(centre: float, spread: float = 0.12) -> tuple[Any, Any]:
    """Return integers around ``centre``, such as prices, and their probabilities."""
    values = np.arange(max(1, int(centre * 0.55)), int(centre * 1.7) + 2)
    weights = np.exp(-0.5 * (np.log(values / centre) / spread) ** 2) / values
    return values, weights / weights.sum()


def normal(centre: float, spread: float, step: float = 1.0) -> tuple[Any, Any]:
    """Return multiples of ``step`` around ``centre`` and their probabilities."""
    values = np.arange(round((centre - 5 * spread) / step), round((centre + 5 * spread) / step) + 1)
    weights = np.exp(-0.5 * ((values * step - centre) / spread) ** 2)
    return values * step, weights / weights.sum()


def known_coordinates(name: str, centres: Sequence[float], spread: float, rho: float) -> Known:
    """Return a point or box whose coordinates are normal, each correlated with the one before."""
    grid = np.arange(100, 1000)
    tables: dict[tuple[int, int], Any] = {}

    def table(k: int, before: int) -> Any:
        if (k, before) not in tables:
            centre, width = centres[k], spread
            if k:
                centre += rho * (before - centres[k - 1])
                width *= math.sqrt(1 - rho**2)
            weights = np.exp(-0.5 * ((grid - centre) / width) ** 2)
            tables[k, before] = weights / weights.sum()
        return tables[k, before]

    def next_token(text: str) -> Mapping[str, float]:
        k, digits = divmod(len(text), 4)  # such as 512,
        if text.endswith(")"):
            return {"": 1.0}
        if digits == 3:
            return {")" if k + 1 == len(centres) else ",": 1.0}
        own, probs = text[4 * k :], table(k, int(text[4 * k - 4 : 4 * k - 1]) if k else 0)
        found = {}
        for digit in "0123456789"[digits == 0 :]:
            low = int((own + digit).ljust(3, "0"))
            found[digit] = float(probs[low - 100 : low - 100 + 10 ** (2 - digits)].sum())
        total = sum(found.values())
        return {digit: prob / total for digit, prob in found.items()}

    first = NumberDistribution.of(grid, table(0, 0))
    return Known(
        name,
        next_token,
        lambda text: float(text[:3]),
        first.median(),
        first.mean(),
        spread,
        lambda rng, count: rng.choice(grid, count, p=table(0, 0)),
        last=(lambda text: float(text[-4:-1]), round(centres[-1]), centres[-1]),
    )


def _minutes(text: str) -> float:
    hour, minute = text.split(":")
    return int(hour) % 12 * 60 + int(minute)


def known_times(centre: int, spread: float) -> Known:
    """Return times around ``centre`` minutes, normal on the dial."""
    minutes = np.arange(HALF_DAY_MINUTES)
    probs = np.exp(-0.5 * (distance(minutes, centre, HALF_DAY_MINUTES) / spread) ** 2)
    return known_numbers(
        f"times around {ClockTime.from_minutes(centre)}, spread {spread:g} min",
        minutes,
        probs / probs.sum(),
        lambda minute: str(ClockTime.from_minutes(int(minute))),
        read=_minutes,
        circle=HALF_DAY_MINUTES,
        spread=spread,
    )


CENTRES = (5, 42, 500, 950, 1000, 5000, 9500, 10_500, 99_000, 100_000, 900_000, 1_000_000)


def distributions(centres: Sequence[int] = CENTRES) -> Iterator[Known]:
    """Yield all known distributions; those of numbers are around ``centres``."""
    for centre in centres:
        yield known_numbers(f"numbers around {centre:,}", *log_normal(centre), write=str)
    yield known_numbers("two kinds: 1,900 or 21", np.arange(15, 2300), _two_kinds(), write=str)
    for mid, spread in ((99.5, 3.0), (9.99, 0.05)):
        table = normal(mid, spread, 0.01)
        yield known_numbers(f"two decimals around {mid}", *table, lambda v: f"{v:z.2f}")
    for centre, spread in ((-3, 40), (-995, 60)):
        table = normal(centre, spread)
        yield known_numbers(f"signed around {centre}", *table, lambda value: str(round(value)))
    for centre, width in ((718, 1.0), (595, 12.0), (718, 40.0), (180, 200.0)):
        yield known_times(centre, width)
    yield known_coordinates("points, spread 10", [250.3, 702.9], 10, 0)
    yield known_coordinates("boxes, spread 3", [250.3, 333.6, 561.2, 702.9], 3, 0)
    yield known_coordinates("boxes, spread 20, correlated", [250.3, 333.6, 561.2, 702.9], 20, 0.9)


def _two_kinds() -> Any:
    values = np.arange(15, 2300)
    weights = 0.4 * np.exp(-0.5 * ((values - 21) / 2) ** 2) / 2
    weights += 0.6 * np.exp(-0.5 * ((values - 1900) / 100) ** 2) / 100
    return weights / weights.sum()


class Found(NamedTuple):
    """The result of exploring a known distribution."""

    values: Any
    """[n] the numbers of the answers, which may repeat."""

    probs: Any
    covered: float
    drawn: float
    median: float
    mean: float
    greedy: str
    explored: Explored


def found_by(known: Known, explored: Explored) -> Found:
    """Return the median and the mean of explored answers."""
    texts = {text_of(tokens): prob for tokens, prob in explored.probabilities.items()}
    values, probs = np.array([known.read(text) for text in texts]), np.array([*texts.values()])
    drawn = sum(explored.probabilities[tokens] for tokens in explored.drawn)
    own = NumberDistribution.of(values, probs, covered=min(1.0, float(probs.sum())))
    return Found(
        values,
        probs,
        float(probs.sum()) - drawn,
        drawn,
        own.median(known.circle),
        own.mean(known.circle),
        text_of(explored.greedy),
        explored,
    )


def errors(known: Known, branches: int, seeds: int, mass: float = 0.99) -> dict[str, Any]:
    """Explore a distribution with several seeds; return mean errors in % of its spread."""
    model = KnownModel(known.next_token)
    ids = [str(seed) for seed in range(seeds)]
    tree = PrefixTree([END], mass=mass, width=branches, ids=ids)
    found = [found_by(known, own) for own in explore(model, tree, seeds)]
    rng = np.random.default_rng(0)

    def error(values: Sequence[float], truth: float) -> float:
        return float(distance(values, truth, known.circle).mean()) / known.spread * 100

    random = [
        NumberDistribution.of(known.draw(rng, branches), np.ones(branches), 1).median(known.circle)
        for _ in range(100)
    ]
    result = {
        "greedy": found[0].greedy,
        "covered": float(np.mean([own.covered for own in found])),
        "drawn": float(np.mean([own.drawn for own in found])),
        "median": error([own.median for own in found], known.median),
        "mean": error([own.mean for own in found], known.mean),
        "random": error(random, known.median),
        "read": model.read / seeds,
    }
    if known.last is not None:
        read, median, mean = known.last
        last = known._replace(read=read)
        others = [found_by(last, own.explored) for own in found]
        result["last median"] = error([own.median for own in others], median)
        result["last mean"] = error([own.mean for own in others], mean)
    return result


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--branches", type=int, default=64)
    parser.add_argument("--seeds", type=int, default=16, help="number of rows (default: 16)")
    arguments = parser.parse_args()
    print(
        "| answers | true median, mean | greedy | covered | drawn | median | mean | random | read |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for known in distributions():
        own = errors(known, arguments.branches, arguments.seeds)
        median, mean = f"{own['median']:.1f} %", f"{own['mean']:.1f} %"
        if "last median" in own:
            median += f", last {own['last median']:.1f} %"
            mean += f", last {own['last mean']:.1f} %"
        print(
            f"| {known.name} | {known.median:.6g}, {known.mean:.6g} | {own['greedy']} | "
            f"{own['covered']:.3f} | {own['drawn']:.3f} | {median} | {mean} | "
            f"{own['random']:.1f} % | {own['read']:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
