"""An evaluation by each trainer, with each kind of batch; ``main`` is what two ranks run."""

import json
import os
from pathlib import Path

from sized_rows import loaded, sized_rows
from tiny_integrations import (
    COLLATE,
    NUMBERS,
    TOKENIZER,
    NumericSFTTrainer,
    NumericTrainerForTests,
    rows,
    settings,
)
from tiny_models import tiny_causal_lm
from transformers import TrainingArguments
from trl import SFTConfig

from mm_numeric import NumericLoss, collate_with_spans
from mm_numeric.distributed.ranks import leave_process_group
from mm_numeric.training.padding_free import make_padding_free
from mm_numeric.training.trainer import NumericTrainer

EVALUATED = (0, 1, 2, 4, 6, 7, 5)
OUR_CASES = ("qwen2_vl", "qwen2_vl_padding_free")
OBJECTIVE = {"terms": [{"name": "emd"}, {"name": "own_terms:BoxOverlap"}]}
CASES = ("padded", "spans", "logits", "sft", "sft_logits", "padding_free", "packed")


def our_trainer(folder: Path, case: str, size: int) -> NumericTrainer:
    """Return the trainer of runs, which evaluates ``sized_rows`` in batches of ``size``."""
    collator, model = loaded("qwen2_vl")
    loss_of = NumericLoss(OBJECTIVE, vocabulary=collator.vocabulary)
    own = {"per_device_eval_batch_size": size, "remove_unused_columns": False}
    return NumericTrainer(
        model,
        TrainingArguments(**settings(folder, **own)),
        train_dataset=sized_rows(),
        eval_dataset=sized_rows(),
        data_collator=make_padding_free(model, collator, "sdpa") if "free" in case else collator,
        objective=loss_of,
    )


def trainer(folder: Path, case: str, size: int, cls=None):
    """Return a trainer that evaluates ``EVALUATED`` in batches of ``size``."""
    loss_of = NumericLoss("emd", vocabulary=NUMBERS)
    own = {"per_device_eval_batch_size": size}
    of_logits = {"compute_metrics": lambda _: {}} if case.endswith("logits") else {}
    data = rows().select(EVALUATED)
    if case in ("padded", "spans", "logits"):
        collator = collate_with_spans(COLLATE, loss_of) if case == "spans" else COLLATE
        return (cls or NumericTrainerForTests)(
            tiny_causal_lm(),
            TrainingArguments(**settings(folder, **own)),
            eval_dataset=data,
            data_collator=collator,
            objective=loss_of,
            **of_logits,
        )
    if case == "padding_free":
        own |= {"padding_free": True, "max_length": None}
    if case == "packed":
        own |= {"packing": True, "max_length": 24}
    return NumericSFTTrainer(
        tiny_causal_lm(),
        SFTConfig(**settings(folder, bf16=False, **own)),
        train_dataset=data,
        eval_dataset=data,
        processing_class=TOKENIZER,
        objective=loss_of,
        **of_logits,
    )


def evaluated(folder: Path, case: str, size: int) -> dict[str, float]:
    """Return the metrics of an evaluation."""
    make = our_trainer if case in OUR_CASES else trainer
    return make(folder, case, size).evaluate()


def main(arguments: list[str]) -> None:
    """Evaluate in all trainers on all ranks, and write the metrics."""
    folder, size = Path(arguments[0]), int(arguments[1])
    loaded("qwen2_vl")
    found = {case: evaluated(folder, case, size) for case in (*CASES, *OUR_CASES)}
    if int(os.environ["RANK"]) == 0:
        (folder / "metrics.json").write_text(json.dumps(found))
    leave_process_group()
