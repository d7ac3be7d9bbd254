"""Settings that save memory or time change no gradient, and unavailable ones are rejected."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from tiny_models import TINY, small_config, tiny_checkpoint, tiny_family

from mm_numeric.config.schema import ModelConfig
from mm_numeric.data.collator import make_collator
from mm_numeric.data.examples import load_examples
from mm_numeric.distributed.ranks import PARALLEL_RUNS
from mm_numeric.models.loading import load_family
from mm_numeric.training import setup
from mm_numeric.training.setup import default_workers, make_trainer, training_arguments


def made(folder, *overrides):
    """Return a trainer that was made from a config."""
    config = small_config(
        folder, "trainer.max_steps=1", "trainer.save_strategy='no'", "objective=ntil_soft",
        f"model.name={tiny_checkpoint()}", *overrides,
    )  # fmt: skip
    family = load_family(config, tiny_checkpoint())
    examples = load_examples(config.task, config.data.train, folder / "cache", training=True)
    args = training_arguments(config)
    return make_trainer(config, args, examples, make_collator(config, family), tiny_checkpoint())


def first_step(folder, *overrides):
    """Return the gradients of the first step, and how often a layer of each tower was called."""
    trainer = made(folder, *overrides)
    # A bottleneck that is zero hides the gradient of the other half of an adapter.
    torch.manual_seed(0)
    for name, parameter in trainer.model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    kept, calls = {}, {"visual": 0, "language_model": 0}
    for name, module in trainer.model.named_modules():
        for tower in calls:
            if name.endswith((f"{tower}.blocks.0.mlp", f"{tower}.layers.0.mlp")):

                def count(*_, tower=tower):
                    calls[tower] += trainer.model.training and torch.is_grad_enabled()

                module.register_forward_pre_hook(count)
    own = trainer._get_grad_norm

    def keep(*args, **kwargs):
        kept.update({n: p.grad.clone() for n, p in trainer.model.named_parameters()
                     if p.grad is not None})  # fmt: skip
        return own(*args, **kwargs)

    trainer._get_grad_norm = keep
    trainer.train()
    return kept, calls


@pytest.mark.slow
@pytest.mark.parametrize(
    "parts",
    [
        "{}",
        "{vision: frozen, projector: frozen, embeddings: frozen, head: frozen}",
        "{language: adapted}",
        "{vision: adapted, projector: trained, language: adapted}",
    ],
    ids=["all", "language", "lora", "lora_twice"],
)
def test_activation_checkpointing_changes_no_gradient(tmp_path, parts):
    parts = (f"modules={parts}", "lora={rank: 4, dropout: 0.0}")[: 1 + ("adapted" in parts)]
    plain, once = first_step(tmp_path / "a", *parts)
    recalculated, calls = first_step(
        tmp_path / "b", *parts, "trainer.activation_checkpointing=true"
    )
    assert once == {"visual": 1, "language_model": 1}
    is_frozen = ("vision" not in parts[0] and "adapted" in parts[0]) or "vision: frozen" in parts[0]
    # Once more in the backward pass, unless autograd needs nothing of a tower.
    assert calls == {"visual": 1 if is_frozen else 2, "language_model": 2}
    assert recalculated.keys() == plain.keys()
    assert plain
    for name, gradient in plain.items():
        torch.testing.assert_close(recalculated[name], gradient, rtol=1e-5, atol=1e-6, msg=name)


def test_flash_attention_that_is_not_there_is_one_sentence():
    with pytest.raises(
        ValueError,
        match=r"^model\.attention: flash_attention_2 needs .* flash-attn and a GPU .* to sdpa",
    ):
        tiny_family().load_model(tiny_checkpoint(), replace(TINY, attention="flash_attention_2"))
    with pytest.raises(ValueError, match=r"attention is one of eager, sdpa, .*, not 'sdpx'"):
        ModelConfig(name="tiny", attention="sdpx")


def test_the_optimiser_is_fused(tmp_path):
    """The default of transformers where torch has the kernel, also on a CPU."""
    assert training_arguments(small_config(tmp_path)).optim == "adamw_torch_fused"


@pytest.fixture
def alone(monkeypatch):
    """Forget that other tests have executed runs of a comparison in this process."""
    monkeypatch.delenv(PARALLEL_RUNS, raising=False)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("rows", "cores", "method", "variables", "workers"),
    [
        (1000, 8, None, {}, 4),
        (1000, 3, "fork", {}, 3),
        (1000, 8, None, {"LOCAL_WORLD_SIZE": "4"}, 2),
        (1000, 2, None, {"LOCAL_WORLD_SIZE": "4"}, 1),
        (999, 8, None, {}, 0),
        (1000, 8, "spawn", {}, 0),
        (1000, 8, None, {PARALLEL_RUNS: "1"}, 0),
    ],
)
def test_the_default_number_of_workers(monkeypatch, rows, cores, method, variables, workers):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(cores))
    monkeypatch.setattr(setup, "get_start_method", lambda: "fork")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    args = SimpleNamespace(dataloader_multiprocessing_context=method)
    examples = [SimpleNamespace(image="a.jpg")] * rows + [SimpleNamespace(image=None)] * 5
    assert default_workers(args, examples) == workers


@pytest.mark.usefixtures("alone")
def test_workers_make_the_same_batches_by_default(tmp_path, monkeypatch):
    monkeypatch.setattr(setup, "_LEAST_ROWS", 40)
    monkeypatch.setattr(setup, "num_cores", lambda: 2)
    trainers = made(tmp_path), made(tmp_path, "trainer.dataloader_num_workers=0")
    assert [trainer.args.dataloader_num_workers for trainer in trainers] == [2, 0]
    batches = []
    for trainer in trainers:
        torch.manual_seed(0)  # of the sampler
        batches.append(list(trainer.get_train_dataloader()))
    assert len(batches[0]) == 10
    torch.testing.assert_close(*map(tensors, batches), rtol=0, atol=0)


def tensors(batches):
    """Return the tensors of batches, those of number spans too."""
    return [{n: v for n, v in {**batch, **vars(batch["spans"])}.items() if torch.is_tensor(v)}
            for batch in batches]  # fmt: skip
