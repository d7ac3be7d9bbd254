"""Ranks: the processes that a launcher such as torchrun has started together.

torch and accelerate are imported inside the functions, so that importing this module is fast.
"""

import gc
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

_Found = TypeVar("_Found")

_LONGEST_WAIT = timedelta(weeks=1)  # a launcher stops all ranks if one is killed


PARALLEL_RUNS = "MM_NUMERIC_PARALLEL_RUNS"
"""Environment variable of processes that execute runs of one comparison at the same time."""


class EveryRankError(ValueError):
    """An error that all ranks raise together. The command line prints it on rank 0 only."""


def num_ranks() -> int:
    """Return the number of ranks that the launcher started."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def num_cores() -> int:
    """Return the number of CPU cores of this rank: its share of those of the machine."""
    has_affinity = hasattr(os, "sched_getaffinity")  # on Linux
    cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    return max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def is_lost_rank(error: BaseException) -> bool:
    """Return True if the text of an error shows that another rank was killed or is unreachable."""
    causes = "/gloo/", "Connection closed by peer", "NCCL error", "NCCL watchdog", "remote process"
    text = str(error)
    return num_ranks() > 1 and isinstance(error, RuntimeError) and any(c in text for c in causes)


class Ranks:
    """Exchanges objects and error messages between all ranks, on the CPU.

    All ranks must call the same methods in the same order.
    """

    def __init__(self, timeout: timedelta = _LONGEST_WAIT) -> None:
        """Use the process group that this process has joined; without a group, there is one rank.

        ``timeout`` is the longest time that a rank waits for the other ranks.
        """
        import torch.distributed

        self.rank, self.count = 0, 1
        self._group: Any = None
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            self.rank = torch.distributed.get_rank()
            self.count = torch.distributed.get_world_size()
        if self.count > 1:
            # gloo runs on the CPU; the process group for gradients may make the host wait.
            self._group = torch.distributed.new_group(backend="gloo", timeout=timeout)

    @classmethod
    def of_launcher(cls) -> "Ranks":
        """Create ``Ranks``; if a launcher started several ranks, first join their process group."""
        if num_ranks() > 1:
            from accelerate import PartialState

            PartialState()
        return cls()

    def exchange(self, found: Any = None) -> list[Any]:
        """Send an object to all ranks, and return the list of objects that the ranks have sent.

        None sends nothing. A str is an error message: all ranks then raise EveryRankError with the
        first message, in the order of the ranks.
        """
        import torch

        all_found = [found]
        if self._group is not None:
            distributed = torch.distributed
            flag = torch.tensor(int(found is not None))
            distributed.all_reduce(flag, op=distributed.ReduceOp.MAX, group=self._group)
            if not flag:
                return []
            all_found *= self.count
            distributed.all_gather_object(all_found, found, group=self._group)
        for each in all_found:
            if isinstance(each, str):
                raise EveryRankError(each)
        return [each for each in all_found if each is not None]

    def gather(self, function: Callable[[], _Found]) -> list[_Found]:
        """Call a function on every rank, and return the results of all ranks.

        If the function raises ValueError on a rank, all ranks raise it after all have finished.
        """
        if self.count == 1:
            return [function()]
        found: Any
        try:
            found = (function(),)
        except ValueError as error:
            found = str(error)
        return [result for (result,) in self.exchange(found)]

    def on_rank_0(self, function: Callable[[], _Found]) -> _Found:
        """Call a function on rank 0 only, and return its result on all ranks."""
        found: list[Any] = self.gather(lambda: function() if self.rank == 0 else None)
        return found[0]

    def rank_0_first(self, function: Callable[[], _Found]) -> _Found:
        """Call a function on rank 0, where it may fill a cache, and then on all other ranks."""
        kept: list[_Found] = []
        self.on_rank_0(lambda: kept.append(function()))
        return kept[0] if kept else function()


def leave_process_group() -> None:
    """Destroy the process group of torch.distributed, if there is one, before Python exits.

    Otherwise, threads of the group may abort the process while Python exits, and the launcher
    reports a failed job (PyTorch #179291). Models are freed first, because DDP could otherwise
    deadlock.
    """
    import torch

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        gc.collect()
        torch.distributed.destroy_process_group()
