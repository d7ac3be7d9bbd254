"""Language models by name: the loss, what LoRA adapts, and the experts of mixtures of experts."""

import json
from dataclasses import replace

import pytest
import torch
from sums import sums_config
from tiny_models import MIXTURES, TINY, TWINS, examples_of, twin_checkpoint
from torch import nn
from transformers import AutoModelForCausalLM

from mm_numeric.data.collator import BATCH_KEYS, make_collator
from mm_numeric.families.causal_lm import CausalLM
from mm_numeric.models.adapters import load_adapted, merged, save_adapted
from mm_numeric.models.loading import load_family
from mm_numeric.training.setup import make_trainer, training_arguments

TINY_EAGER = replace(TINY, attention="eager")  # gpt-oss has no other


def trainer_of(name: str, folder, **lora):
    """Return a trainer of adapters on a tiny model, and a batch of the sums."""
    sections = {"modules": {"language": "adapted"}, "lora": {"rank": 2, **lora}}
    config = replace(sums_config(folder, "causal_lm", sections=sections), model=TINY_EAGER)
    family = CausalLM.load(twin_checkpoint(name), TINY_EAGER)
    trainer = make_trainer(
        config,
        training_arguments(config),
        examples_of(config),
        make_collator(config, family),
        twin_checkpoint(name),
    )
    return trainer, trainer.data_collator(trainer.train_dataset)


@pytest.mark.slow
@pytest.mark.parametrize("name", TWINS)
def test_its_loss_is_the_model_s_and_lora_adapts_every_linear_layer_but_routers_and_the_head(
    tmp_path, name
):
    trainer, batch = trainer_of(name, tmp_path)
    model = AutoModelForCausalLM.from_pretrained(twin_checkpoint(name), dtype=torch.float32).eval()
    labels = torch.full(batch["supervised"].shape, -100)
    after = batch["supervised"].roll(1, dims=1)
    labels[after] = batch["input_ids"][after]
    inputs = {key: value for key, value in batch.items() if key not in BATCH_KEYS}
    with torch.no_grad():
        ours = trainer.compute_loss(trainer.model.eval(), batch)
        by_hand = model(**inputs, labels=labels).loss
    torch.testing.assert_close(ours, by_hand, rtol=1e-5, atol=1e-5)
    base = trainer.model.base_model
    linear = [n for n, layer in trainer.model.get_base_model().named_modules()
              if isinstance(layer, nn.Linear) and "lora_" not in n]  # fmt: skip
    left_out = {
        n for n in linear if n.removesuffix(".base_layer") not in base.targeted_module_names
    }
    assert {n.rpartition(".")[2] for n in left_out} - {"base_layer"} <= {
        "lm_head",
        "shared_expert_gate",
    }
    experts = trainer.model.peft_config["default"].target_parameters
    assert len(experts or ()) == (4 if name in MIXTURES else 0)
    trainer.compute_loss(trainer.model.train(), batch).backward()
    for own, parameter in trainer.model.named_parameters():
        assert (parameter.grad is not None) == parameter.requires_grad == (".lora_" in own), own


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt_oss", "qwen3_moe"])
def test_adapted_experts_are_saved_loaded_and_merged(tmp_path, name):
    trainer, batch = trainer_of(name, tmp_path)
    ids = batch["input_ids"]
    with torch.no_grad():
        before = trainer.model.eval()(ids).logits
        for parameter in trainer.model.parameters():
            if parameter.requires_grad:
                parameter.normal_(std=0.1)
        trained = trainer.model(ids).logits
        assert (trained - before).abs().max() > 1e-2
        (tmp_path / "model").mkdir()
        save_adapted(trainer.model, tmp_path / "model")
        loaded = load_adapted(
            CausalLM.load(twin_checkpoint(name), TINY_EAGER), str(tmp_path / "model"), TINY_EAGER
        ).eval()
        torch.testing.assert_close(loaded(ids).logits, trained)
        torch.testing.assert_close(merged(loaded)(ids).logits, trained, rtol=1e-4, atol=1e-4)


def test_experts_can_be_left_out_and_need_plain_lora(tmp_path):
    trainer, _ = trainer_of("qwen3_moe", tmp_path, experts=False, dropout=0.1)
    assert trainer.model.peft_config["default"].target_parameters == set()
    message = r"lora: PEFT cannot adapt experts, such as model\.layers\.0\.mlp\.experts\.\w+, with"
    with pytest.raises(ValueError, match=message):
        trainer_of("qwen3_moe", tmp_path, dora=True)


def test_an_attention_that_a_model_lacks_is_one_sentence():
    family = CausalLM.load(twin_checkpoint("gpt_oss"), TINY)
    message = (
        "model.attention: GptOssForCausalLM does not support sdpa; set model.attention to eager"
    )
    with pytest.raises(ValueError, match=message):
        family.load_model(twin_checkpoint("gpt_oss"), TINY)


def test_the_code_of_baichuan_2_is_not_executed_by_default(tmp_path):
    """Its configs name Python files of their own; transformers has no such model."""
    names = {"AutoConfig": "configuration_baichuan.BaichuanConfig",
             "AutoModelForCausalLM": "modeling_baichuan.BaichuanForCausalLM"}  # fmt: skip
    own = {"AutoTokenizer": ["tokenization_baichuan.BaichuanTokenizer", None]}
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "baichuan", "auto_map": names}), encoding="utf-8"
    )
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "BaichuanTokenizer", "auto_map": own}), encoding="utf-8"
    )
    for name in ("configuration", "modeling", "tokenization"):
        (tmp_path / f"{name}_baichuan.py").write_text("raise SystemExit('executed')")
    config = sums_config(tmp_path, "causal_lm")
    message = (
        r"needs Python code of its own to be loaded \(configuration_baichuan.BaichuanConfig in "
        r"config.json, .* in tokenizer_config.json\); if you trust whoever made it, set "
        r"model.trust_remote_code to true"
    )
    with pytest.raises(ValueError, match=message):
        load_family(config, str(tmp_path))
