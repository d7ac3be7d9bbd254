"""Exchange objects between ranks on the CPU."""

from datetime import timedelta
from typing import Any

import torch
from transformers import TrainingArguments

from mm_numeric.training.errors import EveryRankError


class Ranks:
    """Exchanges objects and error messages between all ranks.

    All ranks must call ``exchange`` the same number of times. If one rank passes an error message,
    all ranks raise the error.
    """

    def __init__(self, args: TrainingArguments) -> None:
        # On the CPU, because the process group of the gradients may wait for the device.
        self._group: Any = None
        if args.world_size > 1:
            timeout = timedelta(seconds=args.ddp_timeout)
            self._group = torch.distributed.new_group(backend="gloo", timeout=timeout)

    def exchange(self, found: Any = None) -> list[Any]:
        """Send an object to all ranks, and return the list of objects that the ranks have sent.

        Args:
            found: Object to send, None to send nothing, or an error message (str).

        Raises:
            EveryRankError: If a rank sends an error message; if several do, the lowest rank's.
        """
        all_found = [found]
        if self._group is not None:
            distributed = torch.distributed
            flag = torch.tensor(int(found is not None))
            distributed.all_reduce(flag, op=distributed.ReduceOp.MAX, group=self._group)
            if not flag:
                return []
            all_found *= distributed.get_world_size(self._group)
            distributed.all_gather_object(all_found, found, group=self._group)
        for each in all_found:
            if isinstance(each, str):
                raise EveryRankError(each)
        return [each for each in all_found if each is not None]
