"""Train on an objective with ms-swift (tested with 4.6.0).

Save two lines as ``numeric_loss.py``:

    from mm_numeric.integrations.ms_swift import register
    register("ntil")

and add ``--external_plugins numeric_loss.py --loss_type numeric`` to ``swift sft``.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from swift.loss import BaseLoss, loss_map
from torch import Tensor

from mm_numeric.losses.numeric_loss import NumericLoss
from mm_numeric.losses.presets import read_spec
from mm_numeric.losses.spec import ObjectiveSpec
from mm_numeric.numbers.spans import IGNORE_INDEX, aligned_labels
from mm_numeric.training.integrations import check_label_smoothing


def register(objective: str | Mapping[str, Any] | ObjectiveSpec, name: str = "numeric") -> None:
    """Add an objective to the losses of ms-swift; ``--loss_type NAME`` selects it."""
    spec = objective if isinstance(objective, ObjectiveSpec) else read_spec(objective, "register")
    if spec.balance == "running":
        raise ValueError(
            "register: balance: running is updated after each step, which a loss of ms-swift "
            "cannot detect; use another balance."
        )
    if name in loss_map and getattr(loss_map[name], "func", None) is not SwiftLoss:
        raise ValueError(f"register: ms-swift has a loss with the name {name!r}; choose another.")
    loss_map[name] = partial(SwiftLoss, spec)


class SwiftLoss(BaseLoss):
    """An objective as a loss of ms-swift, for text models and VLMs.

    Cross-entropy is the exact mean over the optimiser step. Each numeric loss is a mean over the
    numbers of one micro-batch, as in ``loss_func``.
    """

    def __init__(self, spec: ObjectiveSpec, args: Any, trainer: Any) -> None:
        super().__init__(args, trainer)
        self.check_settings()
        self.loss_of = NumericLoss(spec, trainer.template.tokenizer)

    def check_settings(self) -> None:
        """Raise ValueError if a setting of ms-swift cannot be combined with an objective."""
        template = self.trainer.template
        check_label_smoothing(self.args)
        for name in ("enable_dft_loss", "use_liger_kernel"):
            if getattr(self.args, name, False):
                raise ValueError(f"{name} requests another loss than the objective; remove it.")
        if self.is_megatron or template.task_type not in (None, "causal_lm"):
            raise ValueError(
                "an objective is a loss of `swift sft` with task_type causal_lm; this is "
                f"{type(self.trainer).__name__} with task_type {template.task_type}."
            )
        if template.sequence_parallel_size > 1:
            raise ValueError(
                "sequence parallelism splits sequences and the numbers in them over ranks: set "
                "sequence_parallel_size to 1."
            )

    def __call__(
        self,
        outputs: Any,
        labels: Tensor,
        *,
        num_items_in_batch: Tensor | int | None = None,
        loss_scale: Tensor | None = None,
        **_: Any,
    ) -> Tensor:
        """Return the loss of a micro-batch, and add its components to the log."""
        if loss_scale is not None:
            raise ValueError(
                "loss_scale weights the tokens of the cross-entropy, but not the numbers; remove "
                "it, or the setting that requests it."
            )
        # Losses of ms-swift shift labels themselves, except for encoder-decoder models.
        labels = aligned_labels(labels, not self.trainer.template.is_encoder_decoder)
        result = self.loss_of(outputs.logits, labels.to(outputs.logits.device), shift=False)
        log = self.trainer.custom_metrics["train" if self.trainer.model.training else "eval"]
        for name, component in result.sums.items():
            if component.items:
                # The log averages its values, so add the mean once for each token or number.
                log[f"loss/{name}"].update(component.mean.detach().expand(int(component.items)))
        if num_items_in_batch is None:
            return result.loss
        return result.loss * (labels != IGNORE_INDEX).sum() / num_items_in_batch
