"""Doors: how an objective gets into a trainer or a loop that is not ours.

Axes    b samples, t positions, n supervised rows, v vocabulary

``loss_func``           for transformers.Trainer: cross-entropy is over the whole optimiser step, a
                        numeric mean over one micro-batch
``NumericLossMixin``    for any subclass of Trainer: every mean is over the whole optimiser step
``step_counts``, ``end_step``   the same in a loop, with accelerate or without
"""

import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mm_numeric.losses.normalization import Counts
from mm_numeric.losses.number_metrics import named_metrics
from mm_numeric.losses.objective import Objective
from mm_numeric.losses.term import LossSum
from mm_numeric.numbers.spans import IGNORE_INDEX
from mm_numeric.training.chunked_head import LEAN_FROM, TrainedHead
from mm_numeric.training.integrations import _added, _aligned, _count, _over_ranks, _total

BALANCE_FILE = "objective_balance.json"  # in a checkpoint

if TYPE_CHECKING:  # what the mixin stands in front of; a loop needs no transformers
    from transformers import Trainer as _Trainer
else:
    _Trainer = object


class NumericLossMixin(_Trainer):
    """Stands in front of a Trainer and trains it with an objective.

    ``class NumericSFTTrainer(NumericLossMixin, SFTTrainer)`` takes all that SFTTrainer takes, and
    ``objective=``. Every mean is over the whole optimiser step, all ranks and micro-batches. A
    batch holds ``labels`` [b, t], with -100 where nothing is trained: padded, packed, padding-free
    and completion-only ones are the same to it. Labels are shifted unless the model is an
    encoder-decoder. The head runs at the supervised rows alone, where the model knows how
    (``logits_to_keep``) and nobody asked for its outputs. Of a micro-batch with ``lean_from`` or
    more logits none are made (``Objective.from_hidden``), if the model's logits are what its head
    returns and no more (``lean_head.py``; tried once, before the first step); never under FSDP and
    torch.compile.

    The numbers are found in the labels when the step's batches are read. A collator may find them
    earlier and add them as ``spans`` (``objective.spans`` of shifted labels); ``TrainingCollator``
    does, and gives ``labels`` [n] with the mask ``supervised`` [b, t] and the same as an index in
    its spans, for a model that gives logits of every row.

    Each raw part is logged as ``parts/NAME``: its mean over all that was trained on since the last
    log; beside them ``numbers/accuracy`` and ``numbers/error/ROLE`` (``losses.figures``). What
    ``SFTTrainer.compute_loss`` logs beside its loss (``entropy``, ``mean_token_accuracy``,
    ``num_tokens``) is not: it comes out of the forward pass that ours takes the place of.
    ``include_num_input_tokens_seen`` counts tokens. Outside of a training step (``evaluate``) the
    loss is the mean over one batch of one rank; ``Seq2SeqTrainer`` with ``predict_with_generate``
    reports the model's own.
    """

    # An objective divides by the counts of the whole step.
    loss_is_scaled_for_ga = True
    lean_from = LEAN_FROM

    def __init__(self, *args: Any, objective: Objective, **kwargs: Any) -> None:
        """Take what the trainer behind takes, and the objective.

        Raises:
            ValueError: If a setting asks for another loss, or cannot be combined with this one.
        """
        if not isinstance(objective, Objective):
            raise ValueError(
                f"objective must be an Objective, not {objective!r:.60}: "
                "mm_numeric.objective(name, vocabulary) makes one."
            )
        super().__init__(*args, **kwargs)
        self.objective = objective
        self._refuse_other_losses()
        self._is_encoder_decoder = getattr(self.model.config, "is_encoder_decoder", False)
        base = self.model.get_base_model() if hasattr(self.model, "get_base_model") else self.model
        self._head_takes_rows = "logits_to_keep" in inspect.signature(base.forward).parameters
        self._head: TrainedHead | None = None
        self._head_is_called_as_it_is = self.args.torch_compile or self.is_fsdp_enabled
        self._counts: Counts | None = None
        self._step_sums: dict[str, LossSum] = {}
        self._seen: dict[str, LossSum] = {}
        self._figures: Tensor | None = None

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train; what the objective saw in another training is forgotten."""
        self.objective.balance.reset()
        self._head = None  # a model may have been loaded since
        return super().train(*args, **kwargs)

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> tuple[list[Any], Any]:
        """Read the micro-batches of one optimiser step, find their numbers and count them."""
        batches, num_items = super().get_batch_samples(*args, **kwargs)
        counted = []
        for batch in batches:
            labels = self._aligned(batch)
            batch["spans"], counts = _count(self.objective, labels, batch.get("spans"))
            counted.append(counts)
        self._counts = _total(counted, self.accelerator) if counted else None
        self._step_sums = {}
        return batches, num_items

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: Mapping[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Return the loss of one micro-batch: its share of the optimiser step."""
        batch = dict(inputs)
        labels, spans = self._aligned(batch), batch.pop("spans", None)
        del batch["labels"]
        batch.pop("origin", None)
        supervised = batch.pop("supervised", None)
        if labels.dim() == 2 and self._head_takes_rows and not return_outputs:
            spans = self.objective.spans(labels) if spans is None else spans
            supervised = labels != IGNORE_INDEX
            # An index and not the mask: a mask makes the host wait for its sum.
            rows = supervised if spans.supervised is None else spans.supervised
            labels = labels.flatten()[rows.flatten()]
        if supervised is not None and self._head_takes_rows:
            batch["logits_to_keep"] = supervised
        if self._is_encoder_decoder and "decoder_input_ids" not in batch:
            prepare = self.accelerator.unwrap_model(model).prepare_decoder_input_ids_from_labels
            batch["decoder_input_ids"] = prepare(labels)
        router = self.model.config.get_text_config()
        has_router_loss = getattr(router, "output_router_logits", False)
        if has_router_loss:
            batch["output_router_logits"] = True  # wrappers with images do not read it themselves
        counts = self._counts if model.training else None
        as_it_is = self._head_is_called_as_it_is or self.objective.takes_outputs
        if counts is None or return_outputs or as_it_is:
            outputs = model(**batch)
            figures = counts is not None
            result = self.objective.of_outputs(
                outputs, labels, spans, counts=counts, figures=figures
            )
        else:
            if self._head is None:
                self._head = TrainedHead(model, batch, self.accelerator.unwrap_model(model))
            outputs, result = self._head(
                model, batch, self.objective, labels, spans, counts, self.lean_from
            )
        loss = result.loss
        if result.figures is not None:
            before = self._figures
            self._figures = result.figures if before is None else before + result.figures
        if counts is not None:
            self._step_sums = _added(self._step_sums, result.sums)
            # Data parallelism averages gradients over ranks; the counts are over all of them.
            loss = loss * self.accelerator.num_processes
        if has_router_loss:  # a mean over one micro-batch, in transformers and TRL too
            steps = 1 if counts is None else self.current_gradient_accumulation_steps
            loss = loss + router.router_aux_loss_coef * outputs.aux_loss / steps
        return (loss, outputs) if return_outputs else loss

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        """Train on one micro-batch; behind the last of an optimiser step, close the step."""
        loss: Tensor = super().training_step(*args, **kwargs)
        if self.accelerator.sync_gradients and self._counts is not None:
            self._end_step()
        return loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add the raw parts to what is logged, and what is said of numbers if there were any."""
        if "loss" in logs and self._seen:
            means = torch.stack([part.mean for part in self._seen.values()]).tolist()
            logs.update({f"parts/{n}": m for n, m in zip(self._seen, means, strict=True)})
            self._seen = {}
        if "loss" in logs and self._figures is not None:
            figures = named_metrics(self.accelerator.reduce(self._figures, reduction="sum").cpu())
            logs.update({f"numbers/{n}": s.mean.item() for n, s in figures.items() if s.items})
            self._figures = None
        super().log(logs, start_time)

    def _end_step(self) -> None:
        """Close an optimiser step, once: ``sums`` is over its micro-batches, alike on all ranks."""
        sums = _over_ranks(self._step_sums, self.accelerator)
        self.objective.end_step(sums)
        self._step_sums, self._seen = sums, _added(self._seen, sums)
        self._counts = None

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        """Save, with what a run goes on from, what the objective knows of earlier steps."""
        super()._save_optimizer_and_scheduler(output_dir)
        if self.args.should_save and self.objective.spec.balance == "running":
            state = json.dumps(self.objective.balance.state_dict())
            Path(output_dir, BALANCE_FILE).write_text(state + "\n", encoding="utf-8")

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Load it again.

        Raises:
            ValueError: If the checkpoint is of a run without it.
        """
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None or self.objective.spec.balance != "running":
            return
        file = Path(checkpoint, BALANCE_FILE)
        if not file.is_file():
            raise ValueError(
                f"{file}: not found, so the checkpoint was not written under balance: running, "
                "which goes by earlier steps; resume with the balance that it was written under."
            )
        self.objective.balance.load_state_dict(json.loads(file.read_text(encoding="utf-8")))

    def _aligned(self, batch: Mapping[str, Any]) -> Tensor:
        """Return the label of each row; [n] labels, which come with ``supervised``, are so."""
        shift = not self._is_encoder_decoder and "supervised" not in batch
        return _aligned(batch.get("labels"), shift)

    def _refuse_other_losses(self) -> None:
        """Refuse settings that ask for another loss, or cannot be combined with this one."""
        args, loss_type = self.args, getattr(self.args, "loss_type", None)
        packed = getattr(args, "packing", False) or getattr(self, "padding_free", False)
        others = {
            "compute_loss_func": self.compute_loss_func is not None,
            f"label_smoothing_factor={args.label_smoothing_factor}": args.label_smoothing_factor,
            "use_liger_kernel=True": args.use_liger_kernel,
            f"loss_type={loss_type!r}": loss_type not in (None, "nll"),
        }
        for setting, found in others.items():
            if found:
                raise ValueError(f"{setting} asks for a loss beside the objective: leave it out.")
        if not args.average_tokens_across_devices:
            raise ValueError(
                "average_tokens_across_devices=False cannot be used: an objective counts over all "
                "ranks; leave it out."
            )
        if args.n_gpu > 1:
            raise ValueError(
                f"one process sees {args.n_gpu} GPUs, and an objective needs a process for each: "
                "start it with torchrun or accelerate launch, or set CUDA_VISIBLE_DEVICES."
            )
        if self.get_cp_size() * self.get_sp_size() > 1:
            raise ValueError(
                "context and sequence parallelism cut a sequence, and the numbers in it, into "
                "pieces for several ranks: set cp_size and sp_size to 1."
            )
        if packed and self.objective.spec.reduction == "samples":
            raise ValueError(
                "the objective averages over samples (reduction: samples), and packing puts "
                "several into one row: take reduction='items', or leave packing and padding_free "
                "out."
            )
