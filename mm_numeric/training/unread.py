"""Values for the log that stay on the device until all of them are read at once."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Unread(NamedTuple):
    """Tensors on any device, and a function that turns their values into log entries."""

    values: Sequence[Tensor]
    entries: Callable[..., dict[str, float]]
    """Returns the log entries; it gets for each tensor one argument, a list of floats."""


def read(unread: Sequence[Unread]) -> dict[str, float]:
    """Return the log entries of all values; the host waits only once for the device."""
    tensors = [tensor.detach().flatten().double() for own in unread for tensor in own.values]
    there = [tensor for tensor in tensors if tensor.device.type != "cpu"]
    copied = iter(torch.cat(there).cpu().split([len(t) for t in there]) if there else ())
    lists = iter([(t if t.device.type == "cpu" else next(copied)).tolist() for t in tensors])
    found: dict[str, float] = {}
    for values, entries in unread:
        found |= entries(*(next(lists) for _ in values))
    return found
