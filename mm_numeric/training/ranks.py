"""Exchange objects between ranks on the CPU."""

from datetime import timedelta
from typing import Any

import torch
from transformers import TrainingArguments

from mm_numeric.training.errors import EveryRankError


class Ranks:
    """Tells every rank what one of them has found.

    Each rank comes to ``exchange`` equally often: a fault of one is then heard by all at the next
    one, whatever that was for.
    """

    def __init__(self, args: TrainingArguments) -> None:
        """Open a group beside that of the gradients, which may wait for the device."""
        self._group: Any = None
        if args.world_size > 1:
            timeout = timedelta(seconds=args.ddp_timeout)
            self._group = torch.distributed.new_group(backend="gloo", timeout=timeout)

    def exchange(self, found: Any = None) -> list[Any]:
        """Return what was found on any rank, on all of them; None is nothing.

        Raises:
            EveryRankError: If what was found is a sentence.
        """
        all_found = [found]
        if self._group is not None:
            one = torch.distributed
            flag = torch.tensor(int(found is not None))
            one.all_reduce(flag, op=one.ReduceOp.MAX, group=self._group)
            if not flag:
                return []
            all_found *= one.get_world_size(self._group)
            one.all_gather_object(all_found, found, group=self._group)
        for each in all_found:
            if isinstance(each, str):
                raise EveryRankError(each)
        return [each for each in all_found if each is not None]
