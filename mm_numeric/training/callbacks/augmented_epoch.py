"""Tell the workers of the data loader which epoch they augment rows for."""

from typing import Any

from transformers import TrainerCallback

from mm_numeric.data.augment import Augmenter


class AugmentedEpoch(TrainerCallback):
    """Sets the epoch of an augmenter, in memory that persistent workers share.

    A resumed run continues in the epoch in which it was interrupted.
    """

    def __init__(self, augment: Augmenter) -> None:
        self.augment = augment

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Set the epoch before the data loader starts its workers for it."""
        self.augment.epoch.fill_(int(state.epoch or 0))
