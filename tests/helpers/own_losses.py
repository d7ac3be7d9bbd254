"""A model with a loss of its own. As a script, it is what each rank of two trains."""

import os
from pathlib import Path

from tiny_integrations import NUMBERS, NumericTrainerForTests, by_trainer
from tiny_models import tiny_causal_lm

from mm_numeric import NumericLoss
from mm_numeric.distributed.ranks import leave_process_group


class AddsLoss:
    """Adds ``factor`` times the mean square of the last hidden states to a loss of labels."""

    def squares(self, batch):
        """Return what is added for a batch."""
        asked = {n: v for n, v in batch.items() if n != "labels"}
        states = super().forward(**asked, output_hidden_states=True).hidden_states
        return self.factor * states[-1].square().mean()

    def forward(self, input_ids=None, attention_mask=None, labels=None, **kwargs):
        """Run the model."""
        more = {"output_hidden_states": True} if labels is not None else {}
        outputs = super().forward(
            input_ids=input_ids, attention_mask=attention_mask, labels=labels, **kwargs, **more
        )
        if labels is not None:
            squares = outputs.hidden_states[-1].square().mean()
            outputs.loss = outputs.loss + self.factor * squares
        return outputs


def adding(model, cls=AddsLoss, factor=0.1):
    """Change a model into one that adds a loss."""
    model.__class__ = type("Adding", (cls, type(model)), {})
    model.factor = factor
    return model


def main(arguments: list[str]) -> None:
    """Train a model that adds a loss on the second rank only; write the error."""
    _train(Path(arguments[0]))
    leave_process_group()  # after the model is freed: its reducer waits for it


def _train(folder: Path) -> None:
    rank = int(os.environ["RANK"])
    model = adding(tiny_causal_lm(), factor=0.1 * rank)
    objective = NumericLoss("ce", vocabulary=NUMBERS)
    try:
        changes = {"per_device_train_batch_size": 4}
        by_trainer(
            folder, NumericTrainerForTests, model=model, objective=objective, changes=changes
        )
    except ValueError as error:
        (folder / f"{rank}.txt").write_text(str(error))
