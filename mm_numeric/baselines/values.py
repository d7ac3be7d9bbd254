"""Value ids (token ids that store a number), normalisation of numbers, and conversion to text.

Baselines pass numbers through code that expects token ids, such as padding and labels. They encode
a number as a *value id*: an integer of at least 2 ** 40, far above all token ids, whose low 32 bits
are the number as float32.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

FIRST_VALUE = 1 << 40
"""The smallest value id."""

_BITS = 1 << 32
_LARGEST = 1e9  # largest scaled value, whose square and embedding are finite in float32
_LARGEST_POWER = 300.0  # largest power of ten; 10.0 ** 309 overflows
_DIGITS = 7  # significant decimal digits of float32


def value_id(value: float) -> int:
    """Encode a number, clamped to +-1e9, as a value id."""
    return int(value_ids(torch.tensor(value)))


def is_value(token: int) -> bool:
    """Return True if an integer is a value id, False if it is a token id."""
    return token >= FIRST_VALUE


def value_of(token: int) -> float:
    """Decode a value id to the number."""
    return float(read_values(torch.tensor(token))[1])


def value_ids(values: Tensor) -> Tensor:
    """Encode each number in a tensor, clamped to +-1e9, as a value id."""
    kept = values.float().clamp(-_LARGEST, _LARGEST)
    return (kept.view(torch.int32).long() % _BITS) + FIRST_VALUE


def read_values(ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return a mask of the ids that are value ids, and their numbers (1.0 for token ids)."""
    carries = ids >= FIRST_VALUE
    bits = (ids - FIRST_VALUE).masked_fill(~carries, 0)
    signed = torch.where(bits >= _BITS // 2, bits - _BITS, bits)
    values = signed.to(torch.int32).view(torch.float32)
    return carries, values.masked_fill(~carries, 1.0)


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Normalises numbers for the model: a number x becomes ``(f(x) - shift) / unit``."""

    shift: float = 0.0
    unit: float = 1.0
    log: bool = False
    """If True, f(x) = sign(x) log10(1 + |x|); otherwise f(x) = x."""

    decimals: int = 0
    """Largest number of decimals when a number is converted to text; trailing zeros are removed."""

    @classmethod
    def of(cls, numbers: Sequence[Any], *, normalise: bool, log: bool, decimals: int) -> "Scale":
        """Create a normalisation. With ``normalise``, it maps ``numbers`` to mean 0 and std 1."""
        values = [to_log(float(n)) if log else float(n) for n in numbers]
        if not normalise:
            return cls(log=log, decimals=decimals)
        mean = math.fsum(values) / len(values)
        deviation = math.sqrt(math.fsum((y - mean) ** 2 for y in values) / len(values))
        return cls(shift=mean, unit=deviation or 1.0, log=log, decimals=decimals)

    def scaled(self, number: float) -> float:
        """Normalise a number for the model."""
        return ((to_log(number) if self.log else number) - self.shift) / self.unit

    def number(self, scaled: float) -> float:
        """Convert a normalised value back to the number; the inverse of ``scaled``."""
        value = scaled * self.unit + self.shift
        return from_log(value) if self.log else value

    def text(self, scaled: float) -> str:
        """Convert a normalised value to the text of the number: ``-3.25``, ``7``, ``nan``.

        Decimals beyond 7 significant digits (float32) are rounded: 6.9999997 becomes 7.
        """
        number = self.number(scaled)
        power = math.floor(math.log10(abs(number))) if number and math.isfinite(number) else 0
        decimals = min(self.decimals, max(0, _DIGITS - 1 - power))
        written = f"{number:.{decimals}f}"
        if "." in written:
            written = written.rstrip("0").rstrip(".")
        return "0" if written == "-0" else written


def to_log(number: float) -> float:
    """Return the signed logarithm of a number x: sign(x) log10(1 + |x|)."""
    return math.copysign(math.log1p(abs(number)) / math.log(10), number)


def from_log(logarithm: float) -> float:
    """Return the number that has a given signed logarithm, clamped to +-1e300."""
    if math.isnan(logarithm):
        return logarithm
    power = min(abs(logarithm), _LARGEST_POWER)
    return math.copysign(math.expm1(power * math.log(10)), logarithm)
