"""TRL's GRPOTrainer for the model families: prompts, images and answers are those of a ``Family``.

GRPOTrainer (1.16) prepares images and prompts with a processor of transformers, which checkpoints
such as PaliGemma have, but which writes other prompts than the family was trained with.
``FamilyProcessor`` takes its place. Special tokens stay in the texts, because some families write
coordinates with them.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import BatchFeature, ProcessorMixin, Trainer
from trl.trainer.grpo_trainer import GRPOTrainer

from mm_numeric.data.collator import padded_inputs
from mm_numeric.families.family import Family
from mm_numeric.models.frozen_towers import stop_gradients_at_frozen_towers
from mm_numeric.training.callbacks.evaluation import FAILURES
from mm_numeric.training.trainer import RunTrainer


class FamilyProcessor(ProcessorMixin):
    """A processor, as GRPOTrainer calls it, with the prompts and images of a family."""

    def __init__(self, family: Family) -> None:
        """Wrap a family. Its tokenizer is copied, because GRPOTrainer sets the padding token."""
        self.family = family
        self.image_processor = family.image_processor
        self.tokenizer = copy.deepcopy(family.tokenizer)
        self.tokenizer.pad_token_id = family.pad_id
        self.image_token_id = getattr(family, "image_id", None)  # vLLM's server looks for it
        self.chat_template = None

    def apply_chat_template(
        self, conversation: Any, *, tokenize: bool = False, **kwargs: Any
    ) -> Any:
        """Return the question of one conversation; if ``tokenize``, the inputs of several."""
        if not tokenize:
            return _question(conversation)
        images = [[p["image"] for p in c[-1]["content"] if "image" in p] for c in conversation]
        inputs = self(images=images, text=[_question(c) for c in conversation])
        rows = zip(inputs["input_ids"], inputs["attention_mask"].bool(), strict=True)
        return {**inputs, "input_ids": [ids[mask].tolist() for ids, mask in rows]}

    def __call__(  # type: ignore[override]
        self, images: Sequence[Sequence[Any] | None], text: Sequence[str], **kwargs: Any
    ) -> BatchFeature:
        """Return the inputs of the model for questions and their images, padded on the left."""
        prompts = self.family.prompts(text, [own or None for own in images])
        return BatchFeature(padded_inputs(self.family, prompts, prompts.ids, left=True))

    def decode(self, token_ids: Sequence[int], **kwargs: Any) -> str:
        """Return the text before the end token, with special tokens."""
        return self.family.text(token_ids)

    def batch_decode(self, sequences: Sequence[Sequence[int]], **kwargs: Any) -> list[str]:
        """Return the texts before the end tokens, with special tokens."""
        return [self.family.text(ids) for ids in sequences]

    def save_pretrained(self, save_directory: Any, **kwargs: Any) -> None:  # type: ignore[override]
        """Save tokenizer, image processor and ``frame.json``, as other trainings do."""
        self.family.save(Path(save_directory))


def _question(conversation: Sequence[Any]) -> str:
    content = conversation[-1]["content"]
    return content if isinstance(content, str) else content[-1]["text"]


class RunGRPOTrainer(RunTrainer, GRPOTrainer):
    """GRPOTrainer whose prompts are those of a family; it saves and resumes as other runs do.

    Texts without images are tokenised by the family as well. ``generated_tokens`` is the number of
    tokens that all ranks have generated for training, also before the run was resumed.
    """

    def __init__(self, *, family: Family, **kwargs: Any) -> None:
        self.family = family
        processor = FamilyProcessor(family)
        own = processor if family.takes_images else processor.tokenizer
        super().__init__(processing_class=own, **kwargs)
        self._step_sums = {}
        self.generated_tokens = 0

    def facts(self) -> dict[str, Any]:
        """Return the number of tokens that all ranks have generated."""
        return {"generated_tokens": self.generated_tokens}

    def restore(self, step: Mapping[str, Any]) -> None:
        """Restore the number of generated tokens, too."""
        super().restore(step)
        self.generated_tokens = step["generated_tokens"]

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], Any]:
        """Read the prompts of one step. If a row is invalid, all ranks raise an error."""
        batches = self.read_batches(epoch_iterator, num_batches)
        self.finite.begin_step([[row["id"] for row in batch] for batch in batches])
        found: tuple[list[Any], Any] = super().get_batch_samples(iter(batches), num_batches, device)
        return found

    def compute_loss(self, model: Any, inputs: dict[str, Tensor], **kwargs: Any) -> Any:  # type: ignore[override]
        """Return the GRPO loss of a micro-batch, and count its tokens for the throughput."""
        masks = inputs["prompt_mask"], inputs["completion_mask"]
        self.throughput.count(masks[0].sum() + masks[1].sum(), len(masks[0]))
        stop_gradients_at_frozen_towers(self.model)  # each generation enables checkpointing again
        return super().compute_loss(model, inputs, **kwargs)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log the values of GRPOTrainer, and the number of generated tokens so far.

        An evaluation is logged alone: GRPOTrainer would add the rewards since the last training
        line to it, and they would be missing in the next one.
        """
        if FAILURES in logs:
            Trainer.log(self, logs, start_time)
            return
        if "loss" in logs:
            logs["generated_tokens"] = self.generated_tokens
        super().log(logs, start_time)

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Write no model card: run.json and config.yaml describe the run."""

    def _tokenize_prompts(self, prompts: list[Any]) -> Any:
        if self.family.takes_images:
            return super()._tokenize_prompts(prompts)
        return self.family.prompts(prompts, [None] * len(prompts)).ids, None, {}

    def _generate(self, prompts: list[Any]) -> Any:
        found = super()._generate(prompts)
        if self.model.training:
            count = torch.tensor(sum(map(len, found[1])), device=self.accelerator.device)
            self.generated_tokens += int(self.accelerator.reduce(count, reduction="sum"))
        return found

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: Tensor,
        attention_mask: Tensor,
        logits_to_keep: int,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Tell prompts from answers as the family does.

        GRPOTrainer marks answers like prompts in ``token_type_ids``. PaliGemma's attention would
        then be bidirectional over the answers, and each token would see its successors.
        """
        answered = attention_mask.bool()
        answered[:, :-logits_to_keep] = False
        inputs = self.family.model_inputs(input_ids, attention_mask, answered, {})
        types = {name: value for name, value in inputs.items() if name.endswith("token_type_ids")}
        return super()._get_per_token_logps_and_entropies(
            model, input_ids, attention_mask, logits_to_keep, *args, **{**kwargs, **types}
        )
