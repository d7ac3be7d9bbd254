"""The estimated memory of a training step, next to what autograd saves and to plain arithmetic."""

import copy
import re
from dataclasses import replace

import pytest
import torch
from check_data_runs import config_of
from peft import LoraConfig, get_peft_model
from PIL import Image
from rectangles import write_rectangles
from result_files import write_lines
from synthetic_rows import rows_for
from tiny_models import small_config
from transformers import (
    Florence2VisionConfig,
    Gemma3nVisionConfig,
    PaliGemmaConfig,
    Qwen2_5_VLConfig,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2VLVisionConfig,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3VLConfig,
)

from mm_numeric.config.modules import ModulesConfig, ModuleSettings
from mm_numeric.config.reader import config_from_dict, read_config
from mm_numeric.data.lengths import new_tokens_for
from mm_numeric.evaluation.check_data.check import check_data
from mm_numeric.evaluation.check_data.memory import (
    GIB,
    RowLength,
    copied_bytes,
    empty_model,
    estimate_memory,
    layer_bytes,
    vision_stages,
)
from mm_numeric.evaluation.check_data.text import report_text
from mm_numeric.families.causal_lm import CausalLM
from mm_numeric.families.paligemma import PaliGemma
from mm_numeric.families.qwen2_5_vl import Qwen2_5VL
from mm_numeric.families.qwen3_vl import Qwen3VL
from mm_numeric.models.parameter_groups import ModelModules

FAMILIES_BY_NAME = {"paligemma": PaliGemma, "qwen2_5_vl": Qwen2_5VL, "qwen3_vl": Qwen3VL}
TOKENS = 192
SIZES = {"vocab_size": 64, "intermediate_size": 768, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 64}  # fmt: skip


PRECISIONS = [
    (torch.bfloat16, False), (torch.bfloat16, True), (torch.float32, True), (torch.float32, False)
]  # fmt: skip
"""Dtypes of weights, and whether autocast computes in bfloat16."""
KINDS = [(Qwen2ForCausalLM, Qwen2Config, 128), (Qwen3ForCausalLM, Qwen3Config, 256)]
"""Models in turn, with their widths: each sees every setting and most of their pairs."""


def saved_bytes(model, mixed):
    """Return the bytes of all tensors that autograd saves in a forward pass, each memory once.

    With ``mixed``, autocast computes in bfloat16.
    """
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    sizes, kept = {}, []

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept.append(tensor)
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
    with hooks, torch.autocast("cpu", torch.bfloat16, enabled=mixed):
        model(torch.arange(TOKENS)[None] % 64, logits_to_keep=1)
    return sum(sizes.values())


def per_layer(kind, config_class, precision, *, hidden, lora, checkpointed):
    """Return the bytes that each further layer saves, and the models without adapters."""
    dtype, mixed = precision
    saved, bare = [], []
    for layers in (1, 3):
        torch.manual_seed(0)
        config = config_class(**SIZES, hidden_size=hidden, num_hidden_layers=layers)
        config._attn_implementation = "sdpa"
        model = kind(config).to(dtype).train()
        bare.append(copy.deepcopy(model))
        if lora:
            model = get_peft_model(model, LoraConfig(r=4, target_modules=r".*_proj"))
            model.enable_input_require_grads()
        if checkpointed:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        saved.append(saved_bytes(model, mixed))
    return (saved[1] - saved[0]) / 2, bare


@pytest.mark.slow
@pytest.mark.parametrize("lora", [True, False])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_activations_are_those_that_autograd_saves(tmp_path, precision, lora):
    """So are the copies of weights, except that checkpointing leaves those of trained weights to
    autocast, which keeps them where autograd does not see them."""
    (dtype, mixed), number = precision, PRECISIONS.index(precision)
    how, checkpointed = "adapted" if lora else "trained", (number + lora) % 2 == 0
    config = small_config(
        tmp_path, f"trainer.activation_checkpointing={checkpointed}", f"trainer.bf16={mixed}"
    )
    modules = ModelModules(CausalLM, ModulesConfig(language=ModuleSettings(how=how)), 0.0, "mine")
    kind, config_class, hidden = KINDS[(number // 2 + lora) % 2]
    saved, (one, three) = per_layer(
        kind, config_class, precision, hidden=hidden, lora=lora, checkpointed=checkpointed
    )
    estimates = [
        layer_bytes(model.config, config, TOKENS, TOKENS, dtype.itemsize, how)
        + (0 if checkpointed else copied_bytes(model, modules, config, dtype.itemsize))
        for model in (one, three)
    ]
    found = (estimates[1] - estimates[0]) / 2
    assert saved <= found <= 1.5 * saved, (saved, found)


def test_copies_under_checkpointing_are_of_one_frozen_layer_and_of_all_trained_ones(tmp_path):
    config = small_config(tmp_path, "trainer.activation_checkpointing=true", "trainer.bf16=true")
    stack = Qwen2Config(**SIZES, hidden_size=128, num_hidden_layers=3, tie_word_embeddings=False)
    model = Qwen2ForCausalLM(stack)
    layer = 2 * 128 * 256 + 2 * 128 * 128 + 3 * 128 * 768
    head = 64 * 128
    for how, layers in (("adapted", 1), ("trained", 3)):
        settings = ModulesConfig(language=ModuleSettings(how=how))
        modules = ModelModules(CausalLM, settings, 0.0, "mine")
        assert copied_bytes(model, modules, config, 4) == 2 * (layers * layer + head)
        assert copied_bytes(model, modules, config, 2) == 0


QWEN_3B = {
    "text_config": {
        "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 11008,
        "num_hidden_layers": 36, "num_attention_heads": 16, "num_key_value_heads": 2,
    },
    "vision_config": {
        "depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16,
        "out_hidden_size": 2048,
    },
    "tie_word_embeddings": True,
    "dtype": "bfloat16",
}  # fmt: skip
"""Sizes of Qwen2.5-VL-3B-Instruct, whose card counts 3.75 B parameters."""


def config_with(tmp_path, **sections):
    raw = {
        "task": "detection",
        "data": {"train": rows_for("detection", 1), "test": rows_for("detection", 1)},
        "model": {"name": "tiny", "family": "qwen2_5_vl"},
        "trainer": {"output_dir": str(tmp_path), "bf16": True, "per_device_train_batch_size": 2},
    }
    return config_from_dict({**raw, **sections}, where="a", title="a")


def test_the_parts_are_plain_arithmetic(tmp_path):
    settings, family = Qwen2_5_VLConfig(**QWEN_3B), Qwen2_5VL
    model = empty_model(family, settings)
    count = sum(p.numel() for p in model.parameters())
    assert count == 3_754_622_976
    assert {p.device.type for p in model.parameters()} == {"meta"}
    lengths = [RowLength(question=1400, answer=600, image=1280)] * 9
    lora = config_with(tmp_path, modules={"language": "adapted"}, lora={"rank": 16, "alpha": 32})
    found = estimate_memory(lora, family, settings, lengths)
    assert found.weights - 2 * count == 4 * found.optimiser / 8 == found.gradients
    per_layer = 2048 * 2 * 2 + 2 * (2048 + 256) + 3 * (2048 + 11008)  # q and o, k and v, the MLP
    assert found.gradients == 4 * 16 * 36 * per_layer
    assert (found.rows, found.tokens) == (2, 2000)
    assert found.logits == 2 * 2**27  # in chunks
    for trainer, size in (({"bf16": True}, 10), ({}, 2 * 2)):
        one = config_with(tmp_path, trainer={"output_dir": str(tmp_path), **trainer})
        few = estimate_memory(one, family, settings, [RowLength(question=9, answer=60, image=4)])
        assert few.logits == size * 60 * 151936
    layer = 30 * 2048 + 8 * 256 + 8 * 11008
    assert found.activations == 4000 * 36 * layer
    whole = estimate_memory(config_with(tmp_path), family, settings, lengths)
    assert (whole.weights, whole.gradients, whole.optimiser) == (2 * count, 2 * count, 4 * count)
    assert whole.activations > 2 * 4000 * 36 * (14 * 2048 + 4 * 256 + 4 * 11008)  # and the tower's
    assert found.total < 40 * GIB < whole.total + 30 * GIB


QWEN3_4B = {
    "text_config": {
        "vocab_size": 151936, "hidden_size": 2560, "intermediate_size": 9728,
        "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8,
        "head_dim": 128,
    },
    "vision_config": {"depth": 24, "hidden_size": 1024, "intermediate_size": 4096, "num_heads": 16,
                      "out_hidden_size": 2560, "deepstack_visual_indexes": [5, 11, 17]},
    "tie_word_embeddings": True, "dtype": "bfloat16",
}  # fmt: skip
PALIGEMMA2_3B = {
    "text_config": {
        "model_type": "gemma2", "vocab_size": 257216, "hidden_size": 2304,
        "intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 8,
        "num_key_value_heads": 4, "head_dim": 256,
    },
    "vision_config": {
        "model_type": "siglip_vision_model", "hidden_size": 1152, "intermediate_size": 4304,
        "num_hidden_layers": 27, "num_attention_heads": 16, "image_size": 448, "patch_size": 14,
    },
    "dtype": "bfloat16",
}  # fmt: skip


def test_a_vision_tower_may_have_several_stacks_or_unknown_sizes(tmp_path):
    """Florence-2's has four, of which the first has most tokens; Qwen2-VL's has its own width."""
    found = vision_stages(Florence2VisionConfig())
    assert [(s.hidden_size, s.num_hidden_layers, factor) for s, factor in found] == [
        (1024, 2, 1), (512, 18, 4), (256, 2, 16), (128, 2, 64)
    ]  # fmt: skip
    rows = write_rectangles(tmp_path / "rows")
    model = {"family": "florence2", "name": "tiny", "dtype": "float32"}
    report = check_data(config_of(tmp_path, rows, model=model))
    assert report.ready
    assert report.memory.activations > 0
    assert not report.memory.has_unknown_vision
    config = config_with(tmp_path)
    wide, narrow = Qwen2VLVisionConfig(hidden_size=3584), Qwen2VLVisionConfig(hidden_size=8)
    assert len({layer_bytes(own, config, 64, 64, 2, "trained") for own in (wide, narrow)}) == 1
    assert vision_stages(Gemma3nVisionConfig()) is None
    text = replace(report.memory, has_unknown_vision=True).text()
    assert text.endswith("; without the activations of the vision tower, whose sizes are not known")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "cls", "sizes", "billions", "length"),
    [
        ("detection_qwen2_5_vl_lora", Qwen2_5_VLConfig, QWEN_3B, 3.75, (1430, 3200, 1280)),
        ("detection_qwen3_vl_lora", Qwen3VLConfig, QWEN3_4B, 4.44, (1430, 3200, 1280)),
        ("detection_paligemma2", PaliGemmaConfig, PALIGEMMA2_3B, 3.03, (1084, 700, 1024)),
    ],
)
def test_the_shipped_configs_need_one_gpu_of_24_gb(name, cls, sizes, billions, length):
    """With four rows of 100 boxes each; 4 GiB are left for CUDA and for fragmentation."""
    config, settings = read_config(name), cls(**sizes)
    family = FAMILIES_BY_NAME[config.model.family]
    assert config.task_name == "detection"
    count = sum(p.numel() for p in empty_model(family, settings).parameters())
    assert count == pytest.approx(billions * 1e9, rel=0.01)
    found = estimate_memory(config, family, settings, [RowLength(*length)] * 4)
    assert found.rows == 4
    assert 10 * GIB < found.total < 20 * GIB, found.text()


def dense_rows(folder, *counts):
    """Write images of many boxes each, and return the file of their rows."""
    lines = []
    for i, count in enumerate(counts):
        Image.new("RGB", (400, 400), (i, 0, 0)).save(folder / f"{i}.png")
        boxes = [
            {"box": [x, y, x + 15, y + 12], "label": "cell"}
            for y in range(0, 380, 20)
            for x in range(0, 380, 20)
        ]
        lines.append({"id": str(i), "image": f"{i}.png", "instances": boxes[:count]})
    return write_lines(folder / "rows.jsonl", lines)


@pytest.mark.slow
def test_the_ceiling_of_a_dense_scene_has_what_truncation_loses(tmp_path):
    """120 boxes need 4,000 tokens of the tiny tokenizer; the first 400 hold a tenth of them."""
    rows = dense_rows(tmp_path, 120, 110)
    model = {"name": "tiny", "family": "qwen2_5_vl", "dtype": "float32"}

    def checked(**changes):
        return check_data(config_of(tmp_path, rows, task="detection", model=model, **changes))

    whole = checked(predict={})
    test = whole.sources[1]
    longest = max(e.answer_tokens for e in whole.sources[0].examples)
    assert whole.max_new_tokens == new_tokens_for(longest) > 2000
    assert test.ceiling["recall_at_0.5"] == 1
    assert "longer than predict.max_new_tokens" not in test.problems
    assert re.search(r"training needs  *[\d.]+ GiB by estimate \(weights ", report_text(whole))
    short = checked(predict={"max_new_tokens": 400})
    test = short.sources[1]
    parsed = [len(e.parsed_within(400).items) for e in test.examples]
    truths = sum(len(e.example.answer.items) for e in test.examples)
    assert test.ceiling["recall_at_0.5"] == pytest.approx(sum(parsed) / truths)
    assert 0.05 < test.ceiling["recall_at_0.5"] < 0.2
    assert test.ceiling["precision_at_0.5"] == 1
    assert len(test.problems["longer than predict.max_new_tokens"].messages) == 2


def test_dropped_rows_are_reported_with_their_objects(tmp_path):
    rows = str(dense_rows(tmp_path, 60, 20, 20))
    data = {"train": {"path": rows}, "test": {"path": rows}, "max_tokens": 1500, "too_long": "drop"}
    model = {"name": "tiny", "family": "qwen2_5_vl", "dtype": "float32"}
    report = check_data(config_of(tmp_path, rows, task="detection", model=model, data=data))
    note = "1 rows have more than 1500 tokens, and are dropped with 60 of 100 objects."
    assert note in report.notes
