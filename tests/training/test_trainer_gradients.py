"""One step of each trainer has the gradient of a float64 loop over single rows.

scripts/test_versions runs this file with other versions of transformers and TRL, so that its
model and tokenizer (tests/helpers/tiny_llama.py) are made from what all of them have.
"""

import inspect
import multiprocessing
import os
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from ports import free_port
from processes import Job
from tiny_llama import TOKENIZER, model
from torch.utils.data import SequentialSampler
from transformers import LlamaForCausalLM, Trainer, TrainingArguments
from trl import SFTConfig, SFTTrainer

from mm_numeric import NumericLoss, NumericLossMixin, collate_with_spans, loss_func

pytestmark = pytest.mark.slow

PAIRS = [("a 12 b", "1234 or 99"), ("how", "30"), ("what time", "none"), ("x", "it is 7")]
WEIGHT = 0.3


def adapted():
    """Return the model with LoRA, whose B is not zero."""
    torch.manual_seed(1)
    lora = LoraConfig(r=2, target_modules=["q_proj", "down_proj"], init_lora_weights=False)
    return get_peft_model(model(), lora).double()


def encode(text):
    return TOKENIZER(text, add_special_tokens=False).input_ids


def rows(prompts=False):
    """Return the ids of each row, and True for those that are trained."""
    found = []
    for prompt, answer in PAIRS:
        before = encode(f"<user>{prompt}<assistant>") if prompts == "chat" else encode(prompt)
        after = [*encode(answer), 1]
        found.append((before + after, [not prompts] * len(before) + [True] * len(after)))
    return found


def expected(made, data):
    """Return the gradient of CE + WEIGHT * NTL-WAS, computed row by row and token by token.

    NTL-WAS (arXiv 2411.02083) is the mean over digits of the sum of p_i * |i - y|.
    """
    digits = torch.tensor(encode("0123456789"))
    losses, distances = [], []
    for ids, trained in data:
        logits = made(torch.tensor([ids]), use_cache=False).logits[0]
        for i in range(1, len(ids)):
            if not trained[i]:
                continue
            losses.append(-logits[i - 1].log_softmax(0)[ids[i]])
            if ids[i] in digits:
                probs = logits[i - 1][digits].softmax(0)
                error = (torch.arange(10) - digits.tolist().index(ids[i])).abs()
                distances.append((probs * error).sum())
    loss = torch.stack(losses).mean() + WEIGHT * torch.stack(distances).mean()
    loss.backward()
    return {n: p.grad for n, p in made.named_parameters() if p.grad is not None}


class InOrder:
    """Trains on the rows in their order."""

    def _get_train_sampler(self, *_):
        return SequentialSampler(self.train_dataset)


class OwnTrainer(InOrder, NumericLossMixin, Trainer):
    """The mixin on transformers' trainer."""


class OwnSFTTrainer(InOrder, NumericLossMixin, SFTTrainer):
    """The mixin on TRL's trainer."""


def settings(folder, **changes):
    """Return arguments of one step of plain gradient descent, which shows the gradient."""
    return {
        "output_dir": str(folder),
        "max_steps": 1,
        "per_device_train_batch_size": len(PAIRS),
        "learning_rate": 1.0,
        "lr_scheduler_type": "constant",
        "optim": "sgd",
        "max_grad_norm": 0.0,
        "save_strategy": "no",
        "logging_steps": 1,
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "bf16": False,
        "gradient_checkpointing": False,
        **changes,
    }


def trained(trainer):
    """Train one step; return the gradients, which are what the weights have lost."""
    before = {n: p.detach().clone() for n, p in trainer.model.named_parameters()}
    trainer.train()
    after = dict(trainer.model.named_parameters())
    return {n: before[n] - after[n].detach() for n in before if after[n].requires_grad}


def check(found, wanted):
    assert found.keys() == wanted.keys()
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-6, atol=1e-8, msg=name)


def sft(folder, data, made, **changes):
    config = SFTConfig(**settings(folder, **{"max_length": 64, **changes}))
    return OwnSFTTrainer(
        made,
        config,
        train_dataset=Dataset.from_list(data),
        processing_class=TOKENIZER,
        objective="ntl_was",
    )


TEXTS = [{"text": prompt + answer} for prompt, answer in PAIRS]
COMPLETIONS = [{"prompt": prompt, "completion": answer} for prompt, answer in PAIRS]
CHATS = [
    {"messages": [{"role": "user", "content": p}, {"role": "assistant", "content": a}]}
    for p, a in PAIRS
]
PACKED = {"packing": True, "packing_strategy": "bfd", "per_device_train_batch_size": 1}
ACCUMULATED = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": len(PAIRS)}


@pytest.mark.parametrize(
    ("data", "changes", "prompts"),
    [
        pytest.param(TEXTS, {}, False, id="plain"),
        pytest.param(COMPLETIONS, {}, "text", id="completion-only"),
        pytest.param(CHATS, {"assistant_only_loss": True}, "chat", id="assistant-only"),
        pytest.param(
            COMPLETIONS, {"padding_free": True, "max_length": None}, "text", id="padding-free"
        ),
        pytest.param(TEXTS, PACKED, False, id="packed"),
        pytest.param(COMPLETIONS, ACCUMULATED, "text", id="accumulation"),
    ],
)
@pytest.mark.parametrize("made", [model, adapted], ids=["all weights", "LoRA"])
def test_sft_trainer(tmp_path, data, changes, prompts, made):
    check(trained(sft(tmp_path, data, made(), **changes)), expected(made(), rows(prompts)))


def collate(batch):
    """Pad rows of ids and labels to their longest."""
    width = max(len(row["input_ids"]) for row in batch)
    fill = {"input_ids": 0, "labels": -100, "attention_mask": 0}
    return {
        name: torch.tensor([row[name] + [value] * (width - len(row[name])) for row in batch])
        for name, value in fill.items()
    }


def tokenised():
    """Return the rows of transformers' Trainer."""
    found = []
    for ids, mask in rows("text"):
        labels = [i if is_trained else -100 for i, is_trained in zip(ids, mask, strict=True)]
        found.append({"input_ids": ids, "attention_mask": [1] * len(ids), "labels": labels})
    return Dataset.from_list(found)


@pytest.mark.parametrize("in_worker", [False, True])
@pytest.mark.parametrize("changes", [{}, ACCUMULATED], ids=["one batch", "accumulation"])
def test_trainer(tmp_path, changes, in_worker):
    loss_of = NumericLoss("ntl_was", TOKENIZER)
    trainer = OwnTrainer(
        model(),
        TrainingArguments(**settings(tmp_path, **changes)),
        train_dataset=tokenised(),
        data_collator=collate_with_spans(collate, loss_of) if in_worker else collate,
        objective=loss_of,
    )
    check(trained(trainer), expected(model(), rows("text")))


def test_loss_func(tmp_path):
    loss_of = NumericLoss("ntl_was", TOKENIZER)
    own = type("Ordered", (InOrder, Trainer), {})
    trainer = own(
        model(),
        TrainingArguments(**settings(tmp_path)),
        train_dataset=tokenised(),
        data_collator=collate,
        compute_loss_func=loss_func(loss_of, shift=True),
    )
    check(trained(trainer), expected(model(), rows("text")))


def test_a_model_with_a_forward_of_its_own(tmp_path):
    """As in code from a hub: no ``logits_to_keep``, and no keyword arguments."""

    class Own(LlamaForCausalLM):
        def forward(self, input_ids, attention_mask=None):
            return super().forward(input_ids, attention_mask=attention_mask, use_cache=False)

    made = Own(model().config).double()
    made.load_state_dict(model().state_dict())
    assert "logits_to_keep" not in inspect.signature(made.forward).parameters
    trainer = OwnTrainer(
        made,
        TrainingArguments(**settings(tmp_path, remove_unused_columns=False)),
        train_dataset=tokenised(),
        data_collator=collate,
        objective=NumericLoss("ntl_was", TOKENIZER),
    )
    check(trained(trainer), expected(model(), rows("text")))


def test_two_ranks(tmp_path):
    """Their micro-batches have different numbers of digits; the gradient is that of one batch."""
    job = Job(fork_ranks, [str(tmp_path), str(free_port())], tmp_path / "output.txt")
    assert job.wait() == [0], job.text()
    check(torch.load(tmp_path / "0.pt"), expected(model(), rows("text")))


def fork_ranks(words):
    """Train on two ranks that are forked from this process, which has imported TRL for both."""
    ranks = [multiprocessing.Process(target=train_rank, args=(rank, *words)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    return int(any(rank.exitcode for rank in ranks))


def train_rank(rank, folder, port):
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ |= {"LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    batch = len(PAIRS) // 2
    found = trained(sft(folder, COMPLETIONS, model(), per_device_train_batch_size=batch))
    torch.save(found, Path(folder, f"{rank}.pt"))
    torch.distributed.destroy_process_group()
