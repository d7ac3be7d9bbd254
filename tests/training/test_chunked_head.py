"""Training with chunks of logits gives the loss and gradients of training with all logits."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from tiny_integrations import COLLATE, NUMBERS, TOKENIZER, NumericTrainerForTests, by_trainer, rows
from tiny_models import tiny_byt5, tiny_causal_lm
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    BartConfig,
    BartForConditionalGeneration,
    ByT5Tokenizer,
    CohereConfig,
    DataCollatorForSeq2Seq,
    Gemma2Config,
    GraniteConfig,
    PhiConfig,
    Qwen2Config,
    Qwen2ForCausalLM,
    Trainer,
)
from transformers.modeling_outputs import CausalLMOutput

from mm_numeric import NumericLoss
from mm_numeric.training.output_head import ChunkedHead, output_head, plain_linear, probe

ONE_STEP = {"max_steps": 1, "learning_rate": 0.0, "gradient_accumulation_steps": 2,
            "per_device_train_batch_size": 4}  # fmt: skip
ONE_PIECE = "The loss is not computed in chunks: "
SMALL = {
    "vocab_size": len(TOKENIZER),
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "pad_token_id": TOKENIZER.pad_token_id,
}


def causal_lm(config_class, **changes):
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config_class(**SMALL, **changes)).double()


def first_step(folder, model, chunked_from, preset="ntil_soft", **options):
    """Return loss and gradients of one optimiser step, and the trainer."""
    trainer_class = type("Lean", (NumericTrainerForTests,), {"chunked_from": chunked_from})
    kept, changes = {}, {**ONE_STEP, **options.pop("changes", {})}
    loss_of = options.pop("objective", None) or NumericLoss(preset, vocabulary=NUMBERS)

    class Keep(trainer_class):
        def _get_grad_norm(self, model, grad_norm=None):
            kept.update({n: p.grad.clone() for n, p in model.named_parameters() if p.requires_grad})
            return super()._get_grad_norm(model, grad_norm=grad_norm)

    trainer = by_trainer(folder, Keep, model=model, objective=loss_of, changes=changes, **options)
    return trainer.state.log_history[0], kept, trainer


def compare(folder, make_model, tolerance=1e-6, changes_of_chunked=None, **options):
    """Train with all logits and with chunks; return the trainer with chunks."""
    plain, wanted, _ = first_step(folder, make_model(), chunked_from=1 << 60, **options)
    if changes_of_chunked:
        options["changes"] = changes_of_chunked
    chunked, found, trainer = first_step(folder, make_model(), chunked_from=0, **options)
    parts = [name for name in plain if name == "loss" or name.startswith("loss/")]
    assert [chunked[name] for name in parts] == pytest.approx([plain[name] for name in parts])
    found = {n.removeprefix("_orig_mod."): g for n, g in found.items()}  # of torch.compile
    assert found.keys() == wanted.keys()
    assert any(gradient.any() for gradient in wanted.values())
    for name, gradient in wanted.items():
        apart = (found[name] - gradient).norm() / gradient.norm().clamp(min=1e-3)
        assert apart <= tolerance, name
    return trainer


def lines_of(logged):
    """Return the lines of the log about logits and chunks."""
    lines = logged.getvalue().splitlines()
    return [line for line in lines if line.startswith((ONE_PIECE, "Logits are"))]


@pytest.fixture
def chunked_steps(monkeypatch):
    """How many micro-batches went without logits."""
    steps = []
    from mm_numeric.losses.numeric_loss import NumericLoss

    own = NumericLoss.from_hidden
    monkeypatch.setattr(
        NumericLoss, "from_hidden", lambda *args, **kwargs: steps.append(1) or own(*args, **kwargs)
    )
    return steps


@pytest.mark.parametrize(
    ("make_model", "preset"),
    [
        (tiny_causal_lm, "ce"),
        (tiny_causal_lm, "ntil"),
        (lambda: tiny_causal_lm(tie_word_embeddings=True), "ntil_soft"),
        (lambda: causal_lm(PhiConfig), "ntil_soft"),  # a head with a bias
        (lambda: causal_lm(GraniteConfig, logits_scaling=1.0), "ntil"),
        (lambda: causal_lm(Gemma2Config, head_dim=16, final_logit_softcapping=None), "ntil"),
    ],
    ids=["untied", "untied_ntil", "tied", "bias", "scale_of_one", "no_cap"],
)
def test_loss_and_gradients_are_the_same(tmp_path, chunked_steps, make_model, preset):
    compare(tmp_path, make_model, preset=preset)
    assert len(chunked_steps) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "make_model",
    [
        lambda: causal_lm(GraniteConfig, logits_scaling=2.0),
        lambda: causal_lm(Gemma2Config, head_dim=16, final_logit_softcapping=30.0),
        lambda: causal_lm(CohereConfig, logit_scale=0.0625),
    ],
    ids=["scaled", "capped", "cohere"],
)
def test_a_model_that_makes_something_of_its_logits_keeps_them(
    tmp_path, chunked_steps, logged, make_model
):
    assert plain_linear(output_head(make_model())) is not None
    compare(tmp_path, make_model, tolerance=0)
    assert not chunked_steps
    assert lines_of(logged) == 2 * [f"{ONE_PIECE}the model changes the logits of its output head."]


@pytest.mark.slow
@pytest.mark.parametrize(("where", "chunked"), [("q_proj", True), ("lm_head", False)])
def test_adapters(tmp_path, chunked_steps, logged, where, chunked):
    def make_model():
        torch.manual_seed(1)
        adapted = LoraConfig(r=2, target_modules=[where], init_lora_weights=False)
        return get_peft_model(tiny_causal_lm(), adapted)

    compare(tmp_path, make_model)
    assert len(chunked_steps) == 2 * chunked
    line = f"{ONE_PIECE}the output head has an adapter, or is no plain linear layer."
    assert lines_of(logged) == ([] if chunked else 2 * [line])  # of two trainings


def test_a_trainer_says_once_that_it_uses_no_chunks(tmp_path, logged):
    """Also if it is trained and evaluated again."""
    model = get_peft_model(tiny_causal_lm(), LoraConfig(r=2, target_modules=["lm_head"]))
    loss_of, changes = NumericLoss("ntil", vocabulary=NUMBERS), {"max_steps": 1}
    data = rows().select(range(8))
    trainer = by_trainer(
        tmp_path, NumericTrainerForTests, model=model, objective=loss_of, changes=changes,
        eval_dataset=data,
    )  # fmt: skip
    trainer.evaluate()
    trainer.train()
    assert len(lines_of(logged)) == 1


def test_fsdp_is_a_reason_against_chunks():
    model = tiny_causal_lm()
    batch = {"input_ids": torch.ones(1, 3, dtype=torch.long)}
    found = ChunkedHead(model, batch, model, 3, is_sharded=True)
    assert (found.all_positions, found.one_piece) == (
        "",
        "FSDP shards the weight of the output head",
    )
    assert ChunkedHead(model, batch, model, 3).one_piece == ""


def test_a_head_that_peft_keeps_twice_is_not_stood_in_for():
    saved = LoraConfig(r=2, target_modules=["q_proj"], modules_to_save=["lm_head"])
    assert plain_linear(output_head(get_peft_model(tiny_causal_lm(), saved))) is None


def test_a_head_that_is_called_in_another_way_is_not_stood_in_for():
    model = tiny_causal_lm()
    head = model.get_output_embeddings()
    assert plain_linear(output_head(model)) is head
    head.forward = lambda hidden: nn.Linear.forward(head, hidden)  # as accelerate's device_map does
    assert plain_linear(output_head(model)) is None


def test_a_hook_that_changes_logits_keeps_them(tmp_path, chunked_steps):
    def make_model():
        model = tiny_causal_lm()
        model.lm_head.register_forward_hook(lambda module, inputs, logits: logits * 0.5)
        return model

    compare(tmp_path, make_model, tolerance=0)
    assert not chunked_steps


def test_a_model_that_flattens_positions_computes_all_logits(tmp_path, chunked_steps, logged):
    """As code from a hub may do: [b, t, v] is restored after the head."""

    class Flat(Qwen2ForCausalLM):
        def forward(self, input_ids, attention_mask=None, labels=None):
            hidden = self.model(input_ids, attention_mask=attention_mask)[0]
            logits = self.lm_head(hidden.flatten(0, 1)).view(*input_ids.shape, -1)
            return CausalLMOutput(logits=logits)

    plain = causal_lm(Qwen2Config)
    flat = Flat(plain.config).double()
    flat.load_state_dict(plain.state_dict())
    found, _, _ = first_step(tmp_path, flat, chunked_from=0)
    assert not chunked_steps
    (line,) = lines_of(logged)
    assert line.startswith("Logits are computed at all positions: the model does not return")
    assert found["loss"] == first_step(tmp_path, plain, chunked_from=1 << 60)[0]["loss"]


def tiny_bart():
    torch.manual_seed(0)
    sizes = {"d_model": 32, "vocab_size": 384, "encoder_layers": 1, "decoder_layers": 1,
             "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "encoder_attention_heads": 2,
             "decoder_attention_heads": 2, "dropout": 0.0}  # fmt: skip
    return BartForConditionalGeneration(BartConfig(**sizes)).double()


@pytest.mark.slow
@pytest.mark.parametrize("make_model", [tiny_byt5, tiny_bart])  # BART adds a bias to its logits
def test_an_encoder_decoder(tmp_path, chunked_steps, make_model):
    tokenizer = ByT5Tokenizer()
    texts = [("3 + 4 = ", "7"), ("x ", "12.5"), ("What time ", "7:05"), ("none ", "no")] * 4
    data = [
        {"input_ids": tokenizer(ask).input_ids, "labels": tokenizer(answer).input_ids}
        for ask, answer in texts
    ]
    loss_of = NumericLoss("ntil_soft", tokenizer)
    compare(
        tmp_path, make_model, objective=loss_of, data=data,
        data_collator=DataCollatorForSeq2Seq(tokenizer),
    )  # fmt: skip
    assert len(chunked_steps) == 2


@pytest.mark.slow
@pytest.mark.parametrize("tied", [False, True])
def test_under_bf16(tmp_path, chunked_steps, tied):
    """The product of the head is rounded to bf16 either way; gradients to a bf16's precision."""
    compare(
        tmp_path, lambda: tiny_causal_lm(tie_word_embeddings=tied).float(), tolerance=2e-2,
        preset="ce", changes={"bf16": True},
    )  # fmt: skip
    assert len(chunked_steps) == 2


@pytest.mark.slow
def test_under_torch_compile_logits_are_kept(tmp_path, chunked_steps, logged):
    once = {"gradient_accumulation_steps": 1}  # a batch of another shape is compiled again
    compiled = {**once, "torch_compile": True, "torch_compile_backend": "eager"}
    compare(tmp_path, lambda: causal_lm(Qwen2Config), changes=once, changes_of_chunked=compiled)
    assert not chunked_steps
    assert lines_of(logged) == ["Logits are computed at all positions: torch.compile."]


def test_few_logits_are_kept(tmp_path, chunked_steps):
    """There are n * v of them: as many as ``chunked_from`` are too many."""
    batch = COLLATE([rows()[i] for i in range(4)])
    logits = (batch["labels"] != -100).sum().item() * len(TOKENIZER)
    changes = {"gradient_accumulation_steps": 1}
    for chunked_from, steps in ((logits + 1, 0), (logits, 1)):
        first_step(tmp_path, tiny_causal_lm(), chunked_from, changes=changes)
        assert len(chunked_steps) == steps


def test_terms_alone_need_few_logits(tmp_path, chunked_steps):
    loss_of = NumericLoss("emd", vocabulary=NUMBERS, ce_weight=0.0, balance="fixed")
    first_step(tmp_path, tiny_causal_lm(), 0, objective=loss_of)
    assert not chunked_steps


@pytest.mark.slow
@pytest.mark.parametrize("tied", [False, True])
def test_weights_and_random_numbers_are_those_of_a_trainer_without_us(tmp_path, tied):
    """The trial with made-up logits has no dropout, and a tied head its own backward."""

    def trained(cls, **options):
        model = tiny_causal_lm(attention_dropout=0.3, tie_word_embeddings=tied)
        changes = {"max_steps": 2, "optim": "sgd"}
        return by_trainer(tmp_path, cls, model=model, changes=changes, **options)

    own = trained(Trainer)
    ours = trained(NumericTrainerForTests, objective=NumericLoss("ce", vocabulary=NUMBERS))
    for name, value in own.model.named_parameters():
        torch.testing.assert_close(ours.model.get_parameter(name), value, rtol=0, atol=1e-6)


def test_too_little_memory_ends_the_trial_run_of_a_head(monkeypatch):
    def forward(*_, **__):
        raise torch.OutOfMemoryError("out of memory")

    model = tiny_causal_lm()
    monkeypatch.setattr(model.model, "forward", forward)
    with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
        probe(model, output_head(model), {"input_ids": torch.ones(1, 2, dtype=torch.long)}, 2)
