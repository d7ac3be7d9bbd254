"""Values in the JSON files of a checkpoint that no model has: each is one sentence with its key."""

import json
import shutil

import pytest
from finished_runs import TASK, make_micro_model

from mm_numeric.config.reader import read_config
from mm_numeric.families.qwen2_vl import Qwen2VL
from mm_numeric.models.checkpoint_values import CheckpointValueError, check_values
from mm_numeric.models.loading import load_family, load_model

CONFIG, PROCESSOR, TOKENIZER = "config.json", "preprocessor_config.json", "tokenizer_config.json"
BILLION = 10**9
HEADS = "text_config.num_attention_heads"
LAYERS = "text_config.num_hidden_layers"
KV_HEADS = "text_config.num_key_value_heads"
ROPE = "text_config.rope_parameters"


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """A folder with a tiny GPT-2 and a tiny Qwen2-VL."""
    folder = tmp_path_factory.mktemp("checkpoints")
    make_micro_model(folder / "causal_lm")
    Qwen2VL.make_tiny(folder / "qwen2_vl", seed=0)
    rows = {"path": str(folder / "rows.jsonl")}
    config = {
        "task": TASK,
        "data": {"train": rows, "test": rows},
        "model": {"family": "causal_lm"},
        "objective": "ce",
        "trainer": {"output_dir": str(folder / "run"), "use_cpu": True},
    }
    (folder / "config.yaml").write_text(json.dumps(config))
    return folder


def load(checkpoints, folder, family):
    """Load the family and the model of a checkpoint."""
    name = checkpoints / "config.yaml" if family == "causal_lm" else "clock_tiny"
    config = read_config(str(name), [f"model.name={folder}", f"model.family={family}"])
    load_model(config, load_family(config, str(folder)), str(folder))


@pytest.mark.parametrize(
    ("family", "name", "key", "values"),
    [
        ("causal_lm", CONFIG, "vocab_size", (-5, 0, "x", None, BILLION, 10**12)),
        ("causal_lm", CONFIG, "n_head", (0, -1, 3, "x", BILLION)),
        ("causal_lm", CONFIG, "n_layer", (0, -1, "x", 1.5, None, BILLION)),
        ("causal_lm", CONFIG, "n_embd", (0, -1, 15, "x", BILLION)),
        ("causal_lm", CONFIG, "n_positions", (0, -1, "x", None, BILLION)),
        ("causal_lm", CONFIG, "dtype", ("x", 7, [], "int8")),
        ("causal_lm", CONFIG, "model_type", ("x", 7)),
        ("causal_lm", CONFIG, "activation_function", ("x", 7)),
        ("causal_lm", CONFIG, "layer_norm_epsilon", ("x", [])),
        ("causal_lm", CONFIG, "attn_pdrop", (7, "x")),
        ("causal_lm", CONFIG, "n_inner", (-1,)),
        ("causal_lm", CONFIG, "eos_token_id", ("x",)),
        ("causal_lm", CONFIG, "use_cache", (7,)),
        ("causal_lm", CONFIG, "quantization_config", (7,)),
        ("causal_lm", CONFIG, "auto_map", (7,)),
        ("causal_lm", CONFIG, "layer_types", (7,)),
        ("causal_lm", CONFIG, "id2label", (7,)),
        ("causal_lm", TOKENIZER, "tokenizer_class", (7,)),
        ("causal_lm", TOKENIZER, "model_max_length", ("x",)),
        ("causal_lm", TOKENIZER, "padding_side", ("x",)),
        ("causal_lm", TOKENIZER, "added_tokens_decoder", (7,)),
        ("qwen2_vl", CONFIG, "vision_config", (7,)),
        ("qwen2_vl", CONFIG, "image_token_id", ("x",)),
        ("qwen2_vl", CONFIG, HEADS, (0,)),
        ("qwen2_vl", CONFIG, KV_HEADS, (0,)),
        ("qwen2_vl", CONFIG, LAYERS, (BILLION,)),
        ("qwen2_vl", CONFIG, ROPE, (7,)),
        ("qwen2_vl", CONFIG, f"{ROPE}.rope_type", ("x",)),
        ("qwen2_vl", CONFIG, f"{ROPE}.rope_theta", ("x",)),
        ("qwen2_vl", CONFIG, "vision_config.depth", (-1, BILLION)),
        ("qwen2_vl", CONFIG, "vision_config.patch_size", (0, 10**6)),
        ("qwen2_vl", PROCESSOR, "patch_size", (0, "x")),
        ("qwen2_vl", PROCESSOR, "min_pixels", (-1, "x")),
        ("qwen2_vl", PROCESSOR, "resample", (77,)),
        ("qwen2_vl", PROCESSOR, "image_mean", (7,)),
        ("qwen2_vl", PROCESSOR, "image_std", ([0, 0, 0],)),
    ],
)
def test_an_impossible_value_is_one_sentence(checkpoints, tmp_path, family, name, key, values):
    file = tmp_path / family / name
    shutil.copytree(checkpoints / family, file.parent)
    original = json.loads(file.read_text())
    for value in values:
        changed = json.loads(file.read_text()) | original
        at = changed
        for part in key.split(".")[:-1]:
            at = at[part]
        at[key.rpartition(".")[2]] = value
        file.write_text(json.dumps(changed))
        with pytest.raises(ValueError, match=r"^[^\n]*\.$") as error:
            load(checkpoints, file.parent, family)
        assert name in str(error.value), value
        assert key.rpartition(".")[2] in str(error.value), value


def test_a_model_of_other_sizes_is_not_made_before_it_is_rejected(checkpoints, tmp_path):
    """Qwen2-VL's default sizes are those of a model with 72 billion weights."""
    shutil.copytree(checkpoints / "qwen2_vl", tmp_path / "qwen2_vl")
    file = tmp_path / "qwen2_vl" / CONFIG
    config = json.loads(file.read_text())
    file.write_text(json.dumps({**config, "text_config": {}}))
    with pytest.raises(ValueError, match=r"far more weights than the [\d,]+ in \d+ tensors"):
        load(checkpoints, file.parent, "qwen2_vl")


def test_possible_values_are_read(checkpoints):
    for family in ("causal_lm", "qwen2_vl"):
        load(checkpoints, checkpoints / family, family)


def test_values_that_other_tools_write_are_possible(tmp_path):
    """A group of all weights of quantized models, classes by tokenizer, layers one by one."""
    possible = {
        "quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": -1},
        "auto_map": ["tokenization.Slow", None],
        "text_config": {"layer_sizes": [{"hidden_size": 8}, {"hidden_size": 16}]},
        "num_dense_layers": 0,
    }
    (tmp_path / CONFIG).write_text(json.dumps(possible))
    check_values(tmp_path)
    possible["text_config"]["hidden_size"] = -1
    (tmp_path / CONFIG).write_text(json.dumps(possible))
    with pytest.raises(CheckpointValueError, match=r"text_config\.hidden_size: -1 is not a whole"):
        check_values(tmp_path)
