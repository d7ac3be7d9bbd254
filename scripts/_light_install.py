"""Run the README's first example, and the mixin in transformers' Trainer, with a tiny model.

scripts/check_wheel runs it in an environment that has mm-numeric without extras. It writes a
checkpoint, in place of the one on the Hugging Face hub, into the current folder.
"""

import re
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
    __version__,
)

from mm_numeric import NumericLossMixin

README = Path(__file__).parents[1] / "README.md"
EXAMPLE = re.search(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)[1]
STEPS = 20


class NumericTrainer(NumericLossMixin, Trainer):
    """Trainer, with an objective."""


def main() -> None:
    """Run both, and print the losses of the training."""
    tokens = Tokenizer(models.WordLevel({token: i for i, token in enumerate("0123456789:?")}, "?"))
    tokens.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokens, pad_token="?")
    sizes = {"n_layer": 1, "n_embd": 16, "n_head": 2, "vocab_size": len(tokenizer)}
    dropout = dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0)
    model = GPT2LMHeadModel(GPT2Config(**sizes, **dropout))
    folder = re.search(r'from_pretrained\("(.*?)"', EXAMPLE)[1]
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
    batch = tokenizer(["7:05", "12:30", "9:41", "23:59"], padding=True, return_tensors="pt")
    labels = batch.input_ids.masked_fill(batch.attention_mask == 0, -100)
    names = {"logits": model(batch.input_ids).logits, "labels": labels}
    exec(EXAMPLE, names)
    assert all(parameter.grad is not None for parameter in model.parameters())
    expected = names["result"]

    args = TrainingArguments(
        "out",
        per_device_train_batch_size=len(labels),
        max_steps=STEPS,
        logging_steps=1,
        learning_rate=0.01,
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
    )
    ids = batch.input_ids
    rows = [{"input_ids": i, "labels": own} for i, own in zip(ids, labels, strict=True)]
    model.zero_grad()
    trainer = NumericTrainer(
        model, args, train_dataset=rows, processing_class=tokenizer, objective="ntil"
    )
    trainer.train()
    log = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert len(log) == STEPS
    for name, value in expected.components.items():
        torch.testing.assert_close(log[0][f"loss/{name}"], value.item(), rtol=0, atol=1e-5)
    assert log[-1]["loss"] < log[0]["loss"] - 0.3
    losses = f"{log[0]['loss']:.3f} to {log[-1]['loss']:.3f}"
    print(f"transformers {__version__}: the README's example; the mixin from loss {losses}")


if __name__ == "__main__":
    main()
