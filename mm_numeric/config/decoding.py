"""Config section ``predict``, and the names of the rules that choose an answer."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mm_numeric.registry import RISKS, split_threshold, unknown
from mm_numeric.settings import check_at_least_1

GREEDY, MBR, MODE = "greedy", "mbr", "mode"

DECODE_RULES = (GREEDY, "mean", "median", MBR, MODE, "raft")
"""Rules that choose an answer. ``greedy`` takes the most likely token at each step. The other rules
use the distribution over the model's answers: its mean, its median, the answer with the least
expected risk (minimum Bayes risk), or its mode (the answer whose texts together are the most
probable). ``raft`` sums each number times its probability, without normalisation."""


def is_greedy_alone(rules: Iterable[str]) -> bool:
    """Return True if all rules are ``greedy``, so that no distribution over answers is needed."""
    return set(rules) <= {GREEDY}


def check_decode(chosen: Any) -> None:
    """Raise ValueError if ``chosen`` is neither a rule nor ``{for: RISK}``."""
    if not isinstance(chosen, Mapping):
        if chosen not in DECODE_RULES:
            raise unknown(str(chosen), DECODE_RULES, "rule", "decode")
        return
    if set(chosen) != {"for"} or not isinstance(chosen["for"], str):
        raise ValueError(
            f"decode is a rule or {{for: RISK}}, such as {{for: accuracy_at_0.5}}, not "
            f"{dict(chosen)!r}"
        )
    name, _ = split_threshold(chosen["for"])
    if name not in RISKS and ":" not in name:
        raise unknown(name, RISKS, "risk", "decode.for")


@dataclass(frozen=True, kw_only=True)
class PredictConfig:
    """Config section ``predict``: how answers are generated."""

    batch_size: int = 64
    """Rows per batch, at least 1."""

    max_new_tokens: int | None = None
    """Maximum length of an answer in tokens, at least 1; longer answers are truncated. null: 1.25
    times the length of the longest training answer, which ``train`` measures."""

    tensor_parallel: bool = False
    """True: the ranks that a launcher such as torchrun started share the weights of one model,
    which may not fit on one device. False: each rank has a model, and they share the rows."""

    constrain: bool = False
    """True: generate only answers that match the grammar of the task, so that all are parseable."""

    stop_duplicates: float | None = None
    """For lists of shapes: an IoU above 0 and at most 1. A shape is a duplicate if its IoU with an
    earlier shape of the same label is at least this, or if their coordinates are equal. Duplicates
    are left out, and the list ends before the third in succession. null: keep duplicates."""

    max_objects: int | None = None
    """For lists of shapes: end the list after this number of shapes, at least 1. null: no limit."""

    decode: Any = GREEDY
    """How the answer is chosen: one of ``DECODE_RULES``, or ``{for: RISK}`` for the answer with the
    least expected risk, where RISK is a name in ``mm_numeric.registry.RISKS`` such as
    ``accuracy_at_0.5``. ``mbr`` alone uses the risk of the task."""

    mass: float = 0.99
    """Answers are explored until their total probability reaches this value, above 0 and at most 1.
    If there are more prefixes than ``branches``, some of them are drawn at random."""

    branches: int = 64
    """Maximum number of different answer prefixes that are explored for one question, at least 1.
    The prefixes share the KV cache of the question; each token of a prefix adds to this cache."""

    samples: int | None = None
    """Number of answers to sample, in place of ``mass`` and ``branches``. null: the default of the
    task, which is 32 for lists of objects and worked solutions, and no sampling for one number,
    time, box or point. The KV cache grows with batch size x samples x tokens: use small batches for
    long answers."""

    seed: int = 0
    """Seed of sampled answers, at least 0; it is combined with the id of the row."""

    def __post_init__(self) -> None:
        check_at_least_1(self, "batch_size", "max_new_tokens", "branches")
        if self.samples is not None:
            check_at_least_1(self, "samples")
        if not 0 < self.mass <= 1:
            raise ValueError(f"mass is a probability above 0 and at most 1, not {self.mass!r}")
        check_decode(self.decode)
        check_at_least_1(self, "max_objects")
        if self.seed < 0:
            raise ValueError(f"seed is at least 0, not {self.seed!r}")
        if self.stop_duplicates is not None and not 0 < self.stop_duplicates <= 1:
            raise ValueError(
                f"stop_duplicates is an IoU above 0 and at most 1, not {self.stop_duplicates!r}"
            )

    @property
    def limits_lists(self) -> bool:
        """Return True if generated lists are shortened."""
        return self.stop_duplicates is not None or self.max_objects is not None

    @property
    def new_tokens(self) -> int:
        """Return ``max_new_tokens``; raise ValueError if it is neither set nor measured."""
        if self.max_new_tokens is None:
            raise ValueError(
                "predict.max_new_tokens is not set, and no training answers were measured, because "
                "they are streamed or there is no run; set it (--max-new-tokens)."
            )
        return self.max_new_tokens

    @property
    def rule(self) -> str:
        """Return the decoding rule, such as ``median``."""
        return MBR if isinstance(self.decode, Mapping) else str(self.decode)

    @property
    def risk(self) -> str | None:
        """Return RISK if ``decode`` is ``{for: RISK}``; None if it is a rule (risk of the task)."""
        return str(self.decode["for"]) if isinstance(self.decode, Mapping) else None
