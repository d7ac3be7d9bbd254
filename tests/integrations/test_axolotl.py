import importlib
import importlib.util
import sys
import types

import pytest
import yaml
from documents import blocks
from framework_runs import MODEL, ROWS, STEPS, expected, prepare, process, run

ADDED = yaml.safe_load(blocks("docs/frameworks.md", "yaml")[0])

is_installed = importlib.util.find_spec("axolotl") is not None
installed = pytest.mark.skipif(not is_installed, reason="axolotl is not installed")


@pytest.fixture(scope="module")
def plugin_module():
    """The module of the plugin, also where axolotl is not installed."""
    pytest.importorskip("pydantic")
    with pytest.MonkeyPatch.context() as patch:
        if not is_installed:
            for name in ("axolotl", "axolotl.integrations", "axolotl.integrations.base"):
                patch.setitem(sys.modules, name, types.ModuleType(name))
            sys.modules["axolotl.integrations.base"].BasePlugin = object
        yield importlib.import_module("mm_numeric.integrations.axolotl")
        sys.modules.pop("mm_numeric.integrations.axolotl")


@pytest.mark.parametrize("value", ["ntil", {"preset": "ntil", "balance": "fixed"}])
def test_the_key(plugin_module, value):
    assert plugin_module.NumericLossArgs(numeric_loss=value).numeric_loss == value
    module, name = plugin_module.NumericLossPlugin().get_input_args().rsplit(".", 1)
    assert (module, name) == ("mm_numeric.integrations.axolotl", "NumericLossArgs")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "the config with NumericLossPlugin has no numeric_loss"),
        ({"numeric_loss": "ntill"}, "'ntill'"),
        ({"numeric_loss": "ntil", "use_eaft": True}, "use_eaft: True requests another loss"),
        ({"numeric_loss": "ntil", "rl": "dpo"}, "rl: 'dpo' requests another loss"),
        ({"numeric_loss": "ntil", "context_parallel_size": 2}, "context_parallel_size: 2 splits"),
    ],
)
def test_settings_that_cannot_be_combined(plugin_module, settings, message):
    class Config(plugin_module.NumericLossArgs):
        use_eaft: bool | None = None
        rl: str | None = None
        context_parallel_size: int | None = None

    with pytest.raises(ValueError, match=message):
        Config(**settings)


def test_the_plugin_of_the_page(plugin_module):
    (plugin,) = ADDED["plugins"]
    assert plugin == f"{plugin_module.__name__}.{plugin_module.NumericLossPlugin.__name__}"


def test_another_plugin_with_a_trainer(plugin_module):
    with pytest.raises(ValueError, match="a plugin before NumericLossPlugin has chosen object"):
        plugin_module.NumericLossPlugin().post_trainer_create(None, object())


def write_config(folder, **changes):
    rows = {"path": ROWS, "ds_type": "json", "type": "chat_template", "field_messages": "messages"}
    config = {
        "base_model": MODEL,
        **ADDED,
        "datasets": [rows],
        "chat_template": "tokenizer_default",
        "dataset_prepared_path": "prepared",
        "sequence_len": 64,
        "output_dir": "out",
        "micro_batch_size": 4,
        "gradient_accumulation_steps": 1,
        "max_steps": STEPS,
        "num_epochs": STEPS,
        "learning_rate": 1e-3,
        "lr_scheduler": "constant",
        "optimizer": "adamw_torch",
        "logging_steps": 1,
        "save_strategy": "no",
        "val_set_size": 0,
        "bf16": False,
        "fp16": False,
        "use_cpu": True,
        "attn_implementation": "eager",
        "special_tokens": {"pad_token": "<pad>"},
        **changes,
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")


@installed
@pytest.mark.slow
def test_a_training_of_axolotl(tmp_path):
    prepare(tmp_path)
    write_config(tmp_path)
    first, last = run(tmp_path, "axolotl.cli.train", "config.yaml", AXOLOTL_DO_NOT_TRACK="1")
    for name, value in expected(tmp_path, "ntil").items():
        assert first[name] == pytest.approx(value, abs=1e-5)
    assert last["loss"] < first["loss"] - 0.3
    assert first["tokens/trainable"] > 0  # counted in the compute_loss of axolotl
    assert "ppl" not in first


@installed
@pytest.mark.slow
def test_an_error_of_axolotl_names_the_setting(tmp_path):
    prepare(tmp_path)
    write_config(tmp_path, use_eaft=True)
    done = process(tmp_path, "axolotl.cli.train", "config.yaml", AXOLOTL_DO_NOT_TRACK="1")
    assert done.returncode != 0
    assert "use_eaft: True requests another loss than numeric_loss" in done.stdout
