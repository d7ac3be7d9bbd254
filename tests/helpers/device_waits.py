"""A check that no operation waits for the device."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten


WAITS = {  # on a GPU the host has to wait for these, to know a value or the size of the result
    aten._local_scalar_dense,
    aten.is_nonzero,
    aten.equal,
    aten.nonzero,
    aten.masked_select,
    aten.bincount,
    aten._unique2,
    aten.unique_consecutive,
    aten.repeat_interleave,
}


class Waits(TorchDispatchMode):
    """Counts what would make the host wait for a GPU."""

    def __init__(self):
        """Start at none."""
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        """Note the operator, and run it."""
        indices = args[1] if op.overloadpacket in (aten.index, aten.index_put_) else ()
        by_mask = any(i is not None and i.dtype == torch.bool for i in indices)
        if op.overloadpacket in WAITS or by_mask:
            self.found.append(str(op))
        return op(*args, **(kwargs or {}))
