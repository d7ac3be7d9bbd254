import importlib
import importlib.util
import json
import sys
import types

import pytest
import torch
from documents import blocks
from framework_runs import MODEL, ROWS, STEPS, expected, prepare, run
from tiny_llama import TOKENIZER

from mm_numeric import NumericLoss
from mm_numeric.losses.presets import read_spec
from mm_numeric.training.integrations import added_sums

PLUGIN = blocks("docs/frameworks.md", "python")[0]

is_installed = importlib.util.find_spec("swift") is not None
installed = pytest.mark.skipif(not is_installed, reason="ms-swift is not installed")


class Base:
    """What ms-swift's BaseLoss does."""

    def __init__(self, args, trainer):
        self.args, self.trainer, self.is_megatron = args, trainer, False


@pytest.fixture(scope="module")
def swift():
    """The module of the loss, also where ms-swift is not installed."""
    with pytest.MonkeyPatch.context() as patch:
        if not is_installed:
            for name in ("swift", "swift.loss"):
                patch.setitem(sys.modules, name, types.ModuleType(name))
            sys.modules["swift.loss"].BaseLoss = Base
            sys.modules["swift.loss"].loss_map = {"cross_entropy": Base}
        yield importlib.import_module("mm_numeric.integrations.ms_swift")
        sys.modules.pop("mm_numeric.integrations.ms_swift")


class Metric:
    """The mean of all values that it gets, as MeanMetric of ms-swift 4.6.0."""

    total, count = 0.0, 0

    def update(self, state):
        self.total += state.sum().item()
        self.count += state.shape[0] if state.ndim else 1

    @property
    def value(self):
        return self.total / self.count


class Log(dict):
    """Metrics by name, made on first use."""

    def __missing__(self, name):
        return self.setdefault(name, Metric())


def trainer(**changes):
    template = types.SimpleNamespace(
        tokenizer=TOKENIZER,
        task_type="causal_lm",
        sequence_parallel_size=1,
        is_encoder_decoder=False,
    )
    vars(template).update(changes)
    return types.SimpleNamespace(
        template=template,
        model=types.SimpleNamespace(training=True),
        custom_metrics={"train": Log(), "eval": Log()},
    )


def loss(swift, args=None, **changes):
    swift.register("ntil")
    made = trainer(**changes)
    return swift.loss_map["numeric"](types.SimpleNamespace(**(args or {})), made), made


def test_the_loss_is_ours_times_its_share_of_the_tokens(swift):
    labels = torch.tensor([TOKENIZER("a 12 or 7", add_special_tokens=False).input_ids])
    logits = torch.randn(*labels.shape, len(TOKENIZER))
    result = NumericLoss("ntil", TOKENIZER)(logits, labels, shift=True)
    compute, made = loss(swift)
    outputs = types.SimpleNamespace(logits=logits)
    torch.testing.assert_close(compute(outputs, labels, trainer=made), result.loss)
    share = (labels.numel() - 1) / 20
    found = compute(outputs, labels, num_items_in_batch=torch.tensor(20), trainer=made)
    torch.testing.assert_close(found, result.loss * share)
    logged = made.custom_metrics["train"]
    assert logged.keys() == {f"loss/{name}" for name in result.components}
    assert logged["loss/emd_exp"].value == pytest.approx(result.components["emd_exp"].item())


def test_an_evaluation_logs_means_over_tokens_and_not_over_batches(swift):
    compute, made = loss(swift)
    made.model.training = False
    sums, loss_of = {}, NumericLoss("ntil", TOKENIZER)
    for text in ("a 12 or 7, 40 and 1234", "x 5", "no"):
        labels = torch.tensor([TOKENIZER(text, add_special_tokens=False).input_ids])
        logits = torch.randn(*labels.shape, len(TOKENIZER))
        compute(types.SimpleNamespace(logits=logits), labels, trainer=made)
        sums = added_sums(sums, loss_of(logits, labels, shift=True).sums)
    for name, part in sums.items():
        logged = made.custom_metrics["eval"][f"loss/{name}"]
        assert logged.value == pytest.approx(part.mean.item(), rel=1e-5)


@pytest.mark.parametrize(
    ("args", "template", "message"),
    [
        ({"enable_dft_loss": True}, {}, "enable_dft_loss requests another loss"),
        ({"use_liger_kernel": True}, {}, "use_liger_kernel requests another loss"),
        ({"label_smoothing_factor": 0.1}, {}, "label_smoothing_factor=0.1"),
        ({}, {"task_type": "seq_cls"}, "task_type seq_cls"),
        ({}, {"sequence_parallel_size": 2}, "set sequence_parallel_size to 1"),
    ],
)
def test_settings_that_cannot_be_combined(swift, args, template, message):
    with pytest.raises(ValueError, match=message):
        loss(swift, args, **template)


def test_weights_of_tokens_are_an_error(swift):
    compute, _ = loss(swift)
    with pytest.raises(ValueError, match="loss_scale weights the tokens"):
        compute(None, None, loss_scale=torch.ones(1, 3))


def test_the_plugin_of_the_page(swift):
    exec(PLUGIN, {})
    assert swift.loss_map["numeric"].args[0] == read_spec("ntil", "test")


def test_what_cannot_be_registered(swift):
    with pytest.raises(ValueError, match="balance: running"):
        swift.register({"preset": "ntil", "balance": "running"})
    with pytest.raises(ValueError, match="has a loss with the name 'cross_entropy'"):
        swift.register("ntil", "cross_entropy")
    swift.register("emd")
    swift.register("ntil")  # replaces it


def write_images(folder):
    """Save a tiny LLaVA, and eight rows that ask for a box."""
    from PIL import Image
    from tiny_families import make_tiny_llava

    make_tiny_llava(folder / MODEL, 0)
    processor = {"processor_class": "LlavaProcessor", "image_token": "<image>", "patch_size": 14}
    processor |= {"num_additional_image_tokens": 1, "vision_feature_select_strategy": "default"}
    (folder / MODEL / "processor_config.json").write_text(json.dumps(processor), encoding="utf-8")
    lines = []
    for i in range(8):
        Image.new("RGB", (64, 48), (i * 30, 10, 10)).save(folder / f"{i}.png")
        messages = [
            {"role": "user", "content": "<image>Find the <ref-object>"},
            {"role": "assistant", "content": "<bbox>"},
        ]
        objects = {"ref": ["sheep"], "bbox": [[9 + i, 16, 13 + i, 21]]}
        row = {"messages": messages, "images": [f"{i}.png"], "objects": objects}
        lines.append(json.dumps(row) + "\n")
    (folder / ROWS).write_text("".join(lines), encoding="utf-8")


def train(folder, **changes):
    """Train for 20 steps; return the first and the last entry of the log."""
    (folder / "numeric_loss.py").write_text(PLUGIN, encoding="utf-8")
    settings = {
        "model": MODEL,
        "use_hf": True,
        "dataset": ROWS,
        "external_plugins": "numeric_loss.py",
        "loss_type": "numeric",
        "tuner_type": "full",
        "torch_dtype": "float32",
        "max_length": 256,
        "output_dir": "out",
        "gradient_accumulation_steps": 1,
        "max_steps": STEPS,
        "learning_rate": 1e-3,
        "logging_steps": 1,
        "report_to": "none",
        "use_cpu": True,
        "split_dataset_ratio": 0,
        "gradient_checkpointing": False,
        "save_strategy": "no",
        "dataset_num_proc": 1,
        "dataloader_num_workers": 0,
        **changes,
    }
    arguments = [part for name, value in settings.items() for part in (f"--{name}", str(value))]
    return run(folder, "swift.cli.sft", *arguments)


@installed
@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [1, 4])
def test_a_training_of_ms_swift(tmp_path, batch_size):
    """With one row, ms-swift computes logits only at the labels."""
    prepare(tmp_path)
    settings = {"model_type": "llama", "template": "dummy"}
    first, last = train(tmp_path, per_device_train_batch_size=batch_size, **settings)
    for name, value in expected(tmp_path, "ntil").items():
        assert first.get(name, 0.0) == pytest.approx(value, abs=1e-5)
    assert last["loss"] < first["loss"]


@installed
@pytest.mark.slow
def test_a_training_of_a_vlm(tmp_path):
    write_images(tmp_path)
    settings = {"model_type": "llava1_5_hf", "template": "llava1_5_hf"}
    first, last = train(tmp_path, per_device_train_batch_size=2, **settings)
    for name, value in expected(tmp_path, "ntil", "AutoModelForImageTextToText").items():
        assert first[name] == pytest.approx(value, abs=1e-5)
    assert last["loss"] < first["loss"] - 1
