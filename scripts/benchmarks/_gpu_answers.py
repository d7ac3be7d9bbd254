"""Section answers: greedy answers, medians and MBR of Qwen2.5-VL-7B, from prompts of 1,000 tokens.

The weights are random. A hook replaces the logits by those of a known distribution of times, so
that the rules explore as many answers as with a trained model. The logits after a token depend on
this token alone: hours are 7 to 9, tens of minutes 0 to 2, and minutes 3 to 6.
"""

import statistics
import time
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from _gpu_jobs import Job, Record
from _gpu_model import make_model, qwen2_5_vl
from _gpu_training import make_family

from mm_numeric.answers import ClockTime, Example
from mm_numeric.config.decoding import GREEDY
from mm_numeric.config.reader import read_config
from mm_numeric.families.family import Family
from mm_numeric.inference.decode import Explorer
from mm_numeric.inference.generate import generate, prediction

RULES = (GREEDY, "median", "mbr")
HOURS = {"7": 0.1, "8": 0.7, "9": 0.2}
TENS = {"0": 0.1, "1": 0.6, "2": 0.3}
MINUTES = {"3": 0.3, "4": 0.4, "5": 0.2, "6": 0.1}
END = {"<|im_end|>": 0.9997, "0": 0.0003}
COLON = {":": 1.0}
NEXT = {**dict.fromkeys(HOURS, COLON), ":": TENS, **dict.fromkeys(TENS, MINUTES),
        **dict.fromkeys(MINUTES, END)}  # fmt: skip
"""Probabilities of the token after each token of an answer; ``HOURS`` follow the prompt."""

TEMPLATE = 8  # tokens that the chat template adds to a prompt
REPEATS = 2


class KnownAnswers:
    """Forward hook that sets the logits, and counts the positions that the model reads."""

    def __init__(self, family: Family, vocabulary: int, device: str) -> None:
        """Create a table of logits with a row for each token of ``NEXT``."""
        self.read = 0
        self.row_of = torch.zeros(vocabulary, dtype=torch.long, device=device)
        self.logits = torch.full((1 + len(NEXT), vocabulary), -100.0, device=device)
        for row, (token, probs) in enumerate([("", HOURS), *NEXT.items()]):
            if token:
                self.row_of[family.token_id(token)] = row
            for other, prob in probs.items():
                self.logits[row, family.token_id(other)] = torch.tensor(prob).log()

    def __call__(self, model: Any, args: Any, inputs: dict[str, Any], outputs: Any) -> Any:
        """Replace the logits of a forward pass."""
        self.read += inputs["input_ids"].numel()
        kept = inputs["input_ids"][:, -outputs.logits.shape[1] :]
        outputs.logits = self.logits[self.row_of[kept]]
        return outputs


def jobs(device: str, toy: bool) -> list[Job]:
    """Return the job of all rules; the model is created once."""
    rows, words = (4, 40) if toy else (64, 1000 - TEMPLATE)
    size = "tiny Qwen2.5-VL" if toy else "Qwen2.5-VL-7B"
    return [
        Job(
            title=f"{size}, {rows} answers to prompts of {words + TEMPLATE:,} tokens",
            names=RULES,
            function=measure,
            options={"rows": rows, "words": words, "device": device, "toy": toy},
            seconds=60,
            shared_process=True,
        )
    ]


@cache
def _loaded(device: str, toy: bool) -> tuple[Any, Family, KnownAnswers]:
    """Return the model with its hook, and the family."""
    family, config = make_family(), qwen2_5_vl(toy)
    model = make_model(config, device).eval()
    known = KnownAnswers(family, config.text_config.vocab_size, device)
    model.register_forward_hook(known, with_kwargs=True)
    return model, family, known


def measure(name: str, *, rows: int, words: int, device: str, toy: bool) -> Record:
    """Return the time of an answer with parsing and choice, and the positions read for it."""
    model, family, known = _loaded(device, toy)
    config = read_config("clock_tiny", ["predict.max_new_tokens=8"])
    settings = replace(config.predict, decode=name, samples=32 if name == "mbr" else None)
    config = replace(config, predict=settings)
    examples = [
        Example(id=str(i), image=None, prompt=" the" * words, answer=ClockTime(8, 14), where=str(i))
        for i in range(rows)
    ]

    def run() -> list[str]:
        explore = None if name == GREEDY else Explorer(config.predict, family, config.task)
        answers = generate(model, family, examples, 8, explore=explore)
        return [prediction(config, family, example, answer, name)["text"]
                for example, answer in zip(examples, answers, strict=True)]  # fmt: skip

    run()
    known.read, seconds = 0, []
    for _ in range(REPEATS):
        start = time.perf_counter()
        texts = run()  # ends with texts on the CPU, so that no work is left on the device
        seconds.append((time.perf_counter() - start) / rows)
    return {
        "seconds_per_answer": seconds,
        "positions": known.read / REPEATS / rows,
        "peak_bytes": torch.cuda.max_memory_allocated() if device == "cuda" else None,
        "answer": statistics.mode(texts),
    }
