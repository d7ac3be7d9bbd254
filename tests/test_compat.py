"""Each private name that mm_numeric.compat uses still exists and does what its docstring says."""

import inspect
import warnings
from importlib.metadata import version
from types import SimpleNamespace

import peft
import pytest
import torch
import transformers
from ports import free_port
from torch import nn
from transformers import (
    AttentionInterface,
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    MistralConfig,
    PreTrainedModel,
    Trainer,
    TrainingArguments,
    masking_utils,
)

from mm_numeric import compat


def gone(library, name, function):
    """Return the message of a test that found a private name missing."""
    return f"{library} {version(library)} no longer has {name}; see mm_numeric.compat.{function}."


def small_gpt2():
    config = GPT2Config(n_layer=1, n_embd=8, n_head=1, vocab_size=16, n_positions=8)
    return GPT2LMHeadModel(config)


@pytest.fixture
def no_process_group(monkeypatch):
    """DeepSpeed settings that hold without a launcher; no test after it finds a process group."""
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(free_port()))
    yield
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("method", compat.TRAINER_METHODS)
def test_trainer_methods(method):
    own = getattr(Trainer, method, None)
    assert own is not None, gone("transformers", f"Trainer.{method}", "TRAINER_METHODS")
    found = tuple(inspect.signature(own).parameters)[1:]
    assert found == compat.TRAINER_METHODS[method], (
        f"Trainer.{method} of transformers {transformers.__version__} has other parameters; see "
        "mm_numeric.compat.TRAINER_METHODS."
    )


def test_packed_samples():
    name = "find_packed_sequence_indices"
    usual = getattr(masking_utils, name, None)
    assert usual is not None, gone("transformers", f"masking_utils.{name}", "packed_samples")
    config = MistralConfig(sliding_window=3, attn_implementation="sdpa")
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 0], [0, 0, 1, 2, 3, 4, 5]])

    def masks(positions):
        inputs = config, torch.zeros(*positions.shape, 8), None, None, positions
        whole = masking_utils.create_causal_mask(*inputs)
        return [whole, masking_utils.create_sliding_window_causal_mask(*inputs)]

    wanted, alone = masks(positions), torch.arange(2)[None]
    assert masks(alone) == [None, None]
    with compat.packed_samples():
        for found, mask in zip(masks(positions), wanted, strict=True):
            assert torch.equal(found, mask)
        assert all(mask is not None for mask in masks(alone))  # transformers calls ours
        masking_utils.find_packed_sequence_indices(positions.to("meta"))  # has no values to look at
    assert masking_utils.find_packed_sequence_indices is usual


@pytest.mark.parametrize("method", compat.MODEL_METHODS)
def test_model_methods(method):
    own = getattr(PreTrainedModel, method, None)
    assert own is not None, gone("transformers", f"PreTrainedModel.{method}", "MODEL_METHODS")
    assert tuple(inspect.signature(own).parameters)[1:] == compat.MODEL_METHODS[method]


def adapted():
    lora = peft.LoraConfig(
        r=2,
        target_modules=["c_attn"],
        fan_in_fan_out=True,
        trainable_token_indices={"transformer.wte": [1, 2]},
    )
    return peft.get_peft_model(small_gpt2(), lora)


def test_default_generation_settings():
    name = "_get_default_generation_params"
    config = transformers.GenerationConfig
    assert hasattr(config, name), gone("transformers", name, "default_generation_settings")
    found = compat.default_generation_settings()
    greedy = {"do_sample": False, "num_beams": 1, "repetition_penalty": 1.0, "use_cache": True}
    assert found | greedy == found


def test_next_model_kwargs():
    """The cache, mask and positions that a decoding loop goes on with: of one token more."""
    method = "GenerationMixin._update_model_kwargs_for_generation"
    assert hasattr(GPT2LMHeadModel, method.rpartition(".")[2]), gone(
        "transformers", method, "next_model_kwargs"
    )
    model, ids = small_gpt2().eval(), torch.tensor([[1, 2, 3]])
    given = {"attention_mask": torch.ones_like(ids), "use_cache": True}
    with torch.no_grad():
        outputs = model(input_ids=ids, **given)
        kwargs = compat.next_model_kwargs(model, outputs, given)
        longer = torch.tensor([[1, 2, 3, 4]])
        inputs = model.prepare_inputs_for_generation(longer, next_sequence_length=1, **kwargs)
        found = model(**inputs).logits[:, -1]
        wanted = model(input_ids=longer).logits[:, -1]
    assert inputs["input_ids"].tolist() == [[4]]
    torch.testing.assert_close(found, wanted)


def test_cache_argument():
    """The model uses what is passed under this name: the next token sees the prompt."""
    model, ids = small_gpt2().eval(), torch.tensor([[1, 2, 3, 4]])
    name = compat.cache_argument()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")  # transformers 5.24 warns of the older name
        prompt = model(input_ids=ids[:, :3], use_cache=True)
        found = model(input_ids=ids[:, 3:], **{name: prompt[name]}).logits[:, -1]
        wanted = model(input_ids=ids).logits[:, -1]
    torch.testing.assert_close(found, wanted)


def test_attention_of():
    model = small_gpt2()
    for name in ("eager", "sdpa"):
        model.set_attn_implementation(name)
        assert compat.attention_of(model.config) == name, gone(
            "transformers", "PreTrainedConfig._attn_implementation", "attention_of"
        )


def test_attention_function():
    model, calls = small_gpt2(), []

    def attend(module, query, key, value, *_, **options):
        calls.append(module.layer_idx)
        return value.transpose(1, 2), None

    names = set(AttentionInterface())
    with torch.no_grad(), compat.attention_function(model.config, attend):
        model(input_ids=torch.tensor([[1, 2]]))
    assert calls == [*range(model.config.n_layer)], gone(
        "transformers", "PreTrainedConfig._attn_implementation", "attention_function"
    )
    # The function, and a cache that it refers to, are not kept.
    assert set(AttentionInterface()) == names
    assert compat.attention_of(model.config) in names


def test_config_without_source(tmp_path):
    small_gpt2().save_pretrained(tmp_path)
    config = GPT2LMHeadModel.from_pretrained(tmp_path).config
    assert str(tmp_path) in map(str, config.to_dict().values())
    found = compat.config_without_source(config)
    assert str(tmp_path) not in map(str, found.values()), gone(
        "transformers", "_name_or_path of a config", "config_without_source"
    )
    assert found["n_embd"] == 8


def test_save_without_push(tmp_path, monkeypatch):
    """``save_model`` uploads unless it is called as Trainer calls it."""
    args = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to="none")
    trainer, pushed = Trainer(small_gpt2(), args), []
    args.push_to_hub = True
    monkeypatch.setattr(trainer, "push_to_hub", lambda **kwargs: pushed.append(kwargs))
    compat.save_without_push(trainer, tmp_path / "best")
    assert pushed == [], gone("transformers", "_internal_call of save_model", "save_without_push")
    assert (tmp_path / "best" / "model.safetensors").is_file()
    trainer.save_model(str(tmp_path / "other"))
    assert len(pushed) == 1


def test_adapted_model():
    names = [name for name, _ in adapted().named_parameters()]
    assert all(name.startswith(compat.ADAPTED_MODEL) for name in names), gone(
        "peft", f"the prefix {compat.ADAPTED_MODEL!r}", "ADAPTED_MODEL"
    )


@pytest.mark.slow
def test_unwrapped_name():
    plain = {name for name, _ in small_gpt2().named_parameters()}
    own = {n for n, _ in adapted().named_parameters() if not compat.is_adapter(n)}
    assert {compat.unwrapped_name(name) for name in own} == plain, gone(
        "peft", "base_layer in the names of adapted layers", "unwrapped_name"
    )
    compiled = {compat.unwrapped_name(n) for n, _ in torch.compile(small_gpt2()).named_parameters()}
    assert compiled == plain, gone("torch", "_orig_mod in compiled names", "unwrapped_name")
    from torch.distributed.fsdp import _common_utils

    assert _common_utils.FSDP_WRAPPED_MODULE == "_fsdp_wrapped_module", gone(
        "torch", "_fsdp_wrapped_module", "unwrapped_name"
    )
    assert compat.unwrapped_name("a._fsdp_wrapped_module.b.weight") == "a.b.weight"


def test_is_adapter():
    found = {n for n, _ in adapted().named_parameters() if compat.is_adapter(n)}
    trained = {n for n, p in adapted().named_parameters() if p.requires_grad}
    assert found == trained != set(), gone(
        "peft", ".lora_ and .trainable_tokens_delta. in adapter names", "is_adapter"
    )


def test_original_layer():
    layer = adapted().get_submodule("base_model.model.transformer.h.0.attn.c_attn")
    found = compat.original_layer(layer)
    assert type(found) is transformers.pytorch_utils.Conv1D, gone(
        "peft", "base_layer of an adapted layer", "original_layer"
    )
    assert compat.original_layer(found) is found
    layer = adapted().get_submodule("base_model.model.transformer.wte")
    assert type(compat.original_layer(layer)) is torch.nn.Embedding, gone(
        "peft", "token_adapter of a layer with trainable tokens", "original_layer"
    )


def test_clear_forward_hooks():
    layer = nn.Linear(1, 1)
    assert hasattr(layer, "_forward_hooks"), gone("torch", "_forward_hooks", "clear_forward_hooks")
    layer.register_forward_hook(lambda module, inputs, found: found + 1)
    before = layer(torch.zeros(1))
    compat.clear_forward_hooks(layer)
    assert before == layer(torch.zeros(1)) + 1


def test_remove_input_gradient_hooks():
    model = small_gpt2().requires_grad_(False)
    table, ids = model.get_input_embeddings(), torch.zeros(1, 1, dtype=torch.long)
    table.register_forward_hook(lambda module, inputs, found: found + 1)
    for _ in range(2):
        model.enable_input_require_grads()
    before = table(ids)
    assert before.requires_grad
    compat.remove_input_gradient_hooks(table)
    after = table(ids)
    assert not after.requires_grad, gone(
        "transformers", "make_inputs_require_grads", "remove_input_gradient_hooks"
    )
    assert torch.equal(after, before)  # other hooks are kept


def test_keep_checkpoint_names(tmp_path):
    small_gpt2().save_pretrained(tmp_path)
    model = GPT2LMHeadModel.from_pretrained(tmp_path)
    assert hasattr(model, "_weight_conversions"), gone(
        "transformers", "_weight_conversions of a loaded model", "keep_checkpoint_names"
    )
    from transformers.core_model_loading import WeightRenaming

    assert callable(getattr(WeightRenaming, "was_used", None)), gone(
        "transformers", "WeightRenaming.was_used", "keep_checkpoint_names"
    )
    used, unused = SimpleNamespace(was_used=lambda: True), SimpleNamespace(was_used=lambda: False)
    model._weight_conversions = [unused, used]
    compat.keep_checkpoint_names(model)
    assert model._weight_conversions == [used]
    compat.keep_checkpoint_names(nn.Linear(1, 1))  # not loaded by transformers


def test_length_grouped_indices():
    try:
        found = [
            compat.length_grouped_indices(range(100), 10, torch.Generator().manual_seed(seed))
            for seed in (0, 0, 1)
        ]
    except (ImportError, TypeError) as error:
        raise AssertionError(
            gone("transformers", "get_length_grouped_indices", "length_grouped_indices")
        ) from error
    assert found[0] == found[1] != found[2]
    assert sorted(found[0]) == list(range(100))
    assert found[0][0] == 99  # the longest row is in the first batch


def test_tokenizer_settings(tmp_path):
    (tmp_path / "tokenizer_config.json").write_text('{"add_bos_token": false}')
    try:
        found = compat.tokenizer_settings(str(tmp_path), "main")
    except ImportError as error:
        message = gone("transformers", "get_tokenizer_config", "tokenizer_settings")
        raise AssertionError(message) from error
    assert found["add_bos_token"] is False


def test_concrete_classes():
    found = compat.concrete_classes(AutoModelForCausalLM)
    assert found is not None, gone("transformers", "_model_mapping", "concrete_classes")
    assert found[GPT2Config] is GPT2LMHeadModel
    assert compat.concrete_classes(GPT2LMHeadModel) is None


def test_postponed_rotation(tmp_path):
    from transformers import trainer

    assert hasattr(trainer, "rotate_checkpoints"), gone(
        "transformers", "trainer.rotate_checkpoints", "postponed_rotation"
    )
    assert "rotate_checkpoints(" in inspect.getsource(Trainer._save_checkpoint)
    folders = [tmp_path / f"checkpoint-{step}" for step in (1, 2)]
    for folder in folders:
        folder.mkdir()
    with compat.postponed_rotation() as delete_older:
        trainer.rotate_checkpoints(output_dir=str(tmp_path), save_total_limit=1)
        assert all(folder.is_dir() for folder in folders)
        delete_older()
    assert [folder.is_dir() for folder in folders] == [False, True]


def test_deepspeed_state_classes():
    """Each holds values alone: none has a method of its own that loading a pickle would call."""
    for kind in compat.deepspeed_state_classes():
        assert kind.__module__.startswith("deepspeed."), kind
        assert "__setstate__" not in vars(kind), kind


def test_decoded_columns():
    datasets = pytest.importorskip("datasets")
    image, text = datasets.Image(), datasets.Value("string")
    columns = {"image": image, "text": text, "pages": datasets.List({"page": image, "text": text})}
    try:
        others = {"boxes": datasets.List(datasets.Json()), "words": datasets.List({"word": text})}
        found = compat.decoded_columns(datasets.Features(columns | others))
    except (AttributeError, ImportError) as error:
        raise AssertionError(gone("datasets", "Json", "decoded_columns")) from error
    assert found == ["image", "pages"]


def zero3(tmp_path):
    settings = {"zero_optimization": {"stage": 3}, "train_micro_batch_size_per_gpu": 1}
    return TrainingArguments(output_dir=str(tmp_path), deepspeed=settings, use_cpu=True)


def test_deepspeed_settings(tmp_path, no_process_group):
    pytest.importorskip("deepspeed")
    args = zero3(tmp_path)
    found = compat.deepspeed_settings(args)
    assert found is not None, gone(
        "transformers", "TrainingArguments.hf_deepspeed_config", "deepspeed_settings"
    )
    assert found.get_value("zero_optimization.stage") == 3
    assert compat.deepspeed_settings(TrainingArguments(output_dir=str(tmp_path))) is None


def test_without_deepspeed_settings(tmp_path, no_process_group):
    pytest.importorskip("deepspeed")
    from transformers.integrations import is_deepspeed_zero3_enabled

    args = zero3(tmp_path)
    assert is_deepspeed_zero3_enabled()
    with compat.without_deepspeed_settings(args):
        assert not is_deepspeed_zero3_enabled(), gone(
            "transformers", "unset_hf_deepspeed_config", "without_deepspeed_settings"
        )
    assert is_deepspeed_zero3_enabled()
    args.deepspeed_plugin.set_deepspeed_weakref()
    assert hasattr(args.deepspeed_plugin, "dschf"), gone(
        "accelerate", "DeepSpeedPlugin.dschf", "without_deepspeed_settings"
    )
    from transformers.integrations.deepspeed import unset_hf_deepspeed_config

    unset_hf_deepspeed_config()


def test_base_dataloader():
    from accelerate.data_loader import prepare_data_loader

    own = torch.utils.data.DataLoader(range(4))
    found = compat.base_dataloader(prepare_data_loader(own, num_processes=1, process_index=0))
    assert type(found) is torch.utils.data.DataLoader, gone(
        "accelerate", "base_dataloader of a prepared loader", "base_dataloader"
    )
    assert compat.base_dataloader(own) is own


def source_of(name):
    """Return the source text of a module of DeepSpeed without importing it."""
    from importlib.util import find_spec

    pytest.importorskip("deepspeed")
    with open(find_spec(name).origin, encoding="utf-8") as file:
        return file.read()


@pytest.mark.parametrize(
    ("function", "attribute", "value", "before", "after"),
    [
        ("is_partitioned", "ds_id", 0, False, True),
        ("numel", "ds_numel", 120, 6, 120),
        ("dim", "ds_shape", torch.Size([4, 5, 6]), 2, 3),
        ("local_values", "ds_tensor", "shard", nn.Parameter(torch.zeros(2, 3)), "shard"),
    ],
)
def test_attributes_of_a_partitioned_parameter(function, attribute, value, before, after):
    text = source_of("deepspeed.runtime.zero.partition_parameters")
    assert f"param.{attribute} =" in text, gone(
        "deepspeed", f"{attribute} of a parameter under ZeRO-3", function
    )
    parameter = before if isinstance(before, nn.Parameter) else nn.Parameter(torch.zeros(2, 3))
    found = getattr(compat, function)(parameter)
    assert found is before if isinstance(before, nn.Parameter) else found == before
    setattr(parameter, attribute, value)
    assert getattr(compat, function)(parameter) == after


def test_unpacked_numel():
    class Params4bit(torch.nn.Parameter):
        pass

    packed = Params4bit(torch.zeros(3, dtype=torch.uint8), requires_grad=False)
    assert compat.unpacked_numel(packed) == 6
    wider = Params4bit(torch.zeros(3, dtype=torch.bfloat16), requires_grad=False)
    assert compat.unpacked_numel(wider) == 12
    assert compat.unpacked_numel(nn.Parameter(torch.zeros(3))) == 3


def test_write_universal_checkpoint(tmp_path, monkeypatch):
    pytest.importorskip("deepspeed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from deepspeed.checkpoint import ds_to_universal
    own = inspect.getsource(ds_to_universal)
    seen = []
    message = gone("deepspeed", "ds_to_universal.main", "write_universal_checkpoint")
    assert "def main(args)" in own, message
    monkeypatch.setattr(ds_to_universal, "main", seen.append)
    compat.write_universal_checkpoint(tmp_path / "a", tmp_path / "b")
    used = {name for name in vars(seen[0]) if f"args.{name}" in own}
    assert used == vars(seen[0]).keys(), message


def test_num_image_tokens():
    name = "_get_num_multimodal_tokens"
    assert hasattr(transformers.Gemma3Processor, name), gone(
        "transformers", f"Gemma3Processor.{name}", "num_image_tokens"
    )
    assert compat.num_image_tokens(object(), 8, 8) is None


def test_video_settings_alone():
    name = "check_argument_for_proper_class"
    mixin = transformers.ProcessorMixin
    original = vars(mixin).get(name)
    assert original is not None, gone("transformers", f"ProcessorMixin.{name}", "video_settings")
    with compat.video_settings_alone():
        found = getattr(mixin, name)(None, "video_processor", compat.VideoSettings())
        assert found is compat.VideoSettings
    assert vars(mixin)[name] is original
