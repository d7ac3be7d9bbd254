"""Every private name of transformers, accelerate, DeepSpeed and PEFT that this library uses.

Each has a function with the reason and the tested version; ``tests/test_compat.py`` names the
function when a library changes. Libraries are imported inside the functions, so that importing this
module loads none of them.
"""

import re
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

TRAINER_METHODS: Mapping[str, tuple[str, ...]] = {
    "_get_grad_norm": ("model", "grad_norm"),
    "_get_train_sampler": ("train_dataset",),
    "_load_from_checkpoint": ("resume_from_checkpoint", "model"),
    "_load_optimizer_and_scheduler": ("checkpoint",),
    "_save": ("output_dir", "state_dict"),
    "_save_checkpoint": ("model", "trial"),
    "_save_optimizer_and_scheduler": ("output_dir",),
}
"""The private methods of ``transformers.Trainer`` (5.23) that ``NumericTrainer`` and
``NumericLossMixin`` override, with their parameters. Trainer has no public hook at these points:
the gradient norm of a step, the order of rows, and what a checkpoint holds."""

MODEL_METHODS: Mapping[str, tuple[str, ...]] = {"_init_weights": ("module",)}
"""The private methods of ``transformers.PreTrainedModel`` (5.23) that baselines override. It is the
documented way to initialise the weights of new modules, but its name is private."""

ADAPTED_MODEL = "base_model.model."
"""What PEFT (0.21) puts before the parameter names of the model that it wraps."""

_WRAPPERS = re.compile(
    rf"^{re.escape(ADAPTED_MODEL)}|(_orig_mod|_fsdp_wrapped_module|base_layer)\."
)


# -- names and hooks of modules -------------------------------------------------------------------


def unwrapped_name(name: str) -> str:
    """Return the name that a parameter has in the model itself.

    torch.compile and FSDP1 (torch 2.13) and PEFT (0.21) insert module names of their own.
    """
    return _WRAPPERS.sub("", name)


def is_adapter(name: str) -> bool:
    """Return True if a parameter, by its name, belongs to a LoRA or DoRA adapter (PEFT 0.21)."""
    return ".lora_" in name


def original_layer(layer: Any) -> Any:
    """Return the layer that an adapter wraps, or the layer itself (``base_layer``, PEFT 0.21)."""
    return getattr(layer, "base_layer", layer)


def clear_forward_hooks(module: Any) -> None:
    """Remove all forward hooks of a module.

    torch (2.13) removes a hook only through the handle of its registration, which is not kept here.
    """
    module._forward_hooks.clear()


# -- transformers and datasets --------------------------------------------------------------------


def keep_checkpoint_names(model: Any) -> None:
    """Make ``save_pretrained`` use the parameter names of the checkpoint that was loaded.

    transformers (5.23) records the renaming rules used in loading (``_weight_conversions``) and
    reverses them in saving. Under ZeRO-3 it records all rules, and saves under unknown names.
    """
    rules = getattr(model, "_weight_conversions", None)
    if rules is not None:
        model._weight_conversions = [rule for rule in rules if rule.was_used()]


def length_grouped_indices(lengths: Sequence[int], batch_size: int, generator: Any) -> list[int]:
    """Return a random order of rows in which each batch has rows of similar length.

    The public ``LengthGroupedSampler`` of transformers (5.23) has no epoch, so a resumed run could
    not repeat its order.
    """
    from transformers.trainer_pt_utils import get_length_grouped_indices

    return get_length_grouped_indices(lengths, batch_size, generator=generator)


def tokenizer_settings(source: str, revision: str) -> dict[str, Any]:
    """Return the content of a checkpoint's ``tokenizer_config.json`` ({} if it has none).

    transformers (5.23) has no public way to read it without making the tokenizer.
    """
    from transformers.models.auto.tokenization_auto import get_tokenizer_config

    return get_tokenizer_config(source, revision=revision)


def concrete_classes(auto_class: Any) -> Mapping[Any, Any] | None:
    """Return the config class to model class mapping of an Auto class; None for any other class.

    transformers (5.23) keeps it in ``_model_mapping``. A baseline subclasses the mapped class.
    """
    return getattr(auto_class, "_model_mapping", None)


def deepspeed_settings(args: Any) -> Any:
    """Return the DeepSpeed settings of ``trainer.deepspeed``; None if the config has none.

    ``TrainingArguments`` (5.23) sets ``hf_deepspeed_config`` only if ``deepspeed`` is set.
    """
    return getattr(args, "hf_deepspeed_config", None)


@contextmanager
def without_deepspeed_settings(args: Any) -> Iterator[None]:
    """Hide the DeepSpeed settings from ``from_pretrained`` inside the block.

    transformers (5.23) partitions every model that is made while ZeRO-3 settings are set globally.
    accelerate (1.15) keeps the settings of its own launcher in ``DeepSpeedPlugin.dschf``.
    """
    from transformers.integrations import deepspeed

    deepspeed.unset_hf_deepspeed_config()
    try:
        yield
    finally:
        deepspeed.set_hf_deepspeed_config(deepspeed_settings(args) or args.deepspeed_plugin.dschf)


def decoded_columns(features: Mapping[str, Any]) -> list[str]:
    """Return the columns of a ``datasets.Dataset`` whose values are decoded when a row is read.

    datasets (5.2) decodes images, audio and video by default and has no public list of them.
    """
    from datasets.features.features import require_decoding

    return [name for name, kind in features.items() if require_decoding(kind, True)]


# -- accelerate -----------------------------------------------------------------------------------


def base_dataloader(loader: Any) -> Any:
    """Return the torch DataLoader that accelerate (1.15) wraps, or the loader itself.

    Only that one starts the worker processes, so ``worker_init_fn`` has to be set on it.
    """
    return getattr(loader, "base_dataloader", loader)


# -- DeepSpeed ------------------------------------------------------------------------------------


def is_partitioned(parameter: Any) -> bool:
    """Return True if ZeRO-3 has partitioned a parameter over the ranks (DeepSpeed 0.19)."""
    return hasattr(parameter, "ds_id")


def numel(parameter: Any) -> int:
    """Return the number of elements of a parameter over all ranks.

    A parameter that ZeRO-3 has partitioned is empty; DeepSpeed (0.19) has its size in ``ds_numel``.
    """
    return int(getattr(parameter, "ds_numel", parameter.numel()))


def unpacked_numel(parameter: Any) -> int:
    """Return ``numel`` of a parameter before quantisation to 4 bits.

    ``Params4bit`` of bitsandbytes, an optional package, packs two elements into a byte.
    """
    count = numel(parameter)
    if type(parameter).__name__ == "Params4bit":
        return count * 2 * parameter.element_size()  # the packed storage may have a wider dtype
    return count


def local_values(parameter: Any) -> Any:
    """Return the values of a parameter that this rank holds: all, or its partition under ZeRO-3.

    DeepSpeed (0.19) has ``safe_get_local_fp32_param``, which needs an optimiser state.
    """
    return getattr(parameter, "ds_tensor", parameter)


def zero2_gradient(parameter: Any) -> Any:
    """Return the flat part of a gradient that this rank owns under ZeRO-1 and ZeRO-2, or None.

    ``deepspeed.utils.safe_get_full_grad`` (0.19) would send each whole gradient to every rank.
    """
    mapping = parameter._hp_mapping
    if mapping is None:
        return None
    gradient = mapping.get_lp_grad_fragment(parameter._index_in_param_group).flatten()
    if gradient.numel() == parameter.numel():  # the whole gradient, of which this rank owns a part
        address = mapping.lp_fragment_address
        gradient = gradient.narrow(0, address.start, address.numel)
    return gradient


@contextmanager
def before_deepspeed_step(engine: Any, action: Callable[[], None]) -> Iterator[None]:
    """Call ``action`` before the DeepSpeed engine takes a step inside the block.

    accelerate (1.15) calls ``engine.step()`` at the end of ``backward``, without a hook in between.
    """
    step = engine.step

    def step_after_action(*args: Any, **kwargs: Any) -> Any:
        action()
        return step(*args, **kwargs)

    engine.step = step_after_action
    try:
        yield
    finally:
        del engine.step


def deepspeed_loss_scale(engine: Any) -> float:
    """Return the factor by which DeepSpeed (0.19) has scaled the loss; 1 without fp16."""
    return float(engine.optimizer.loss_scale)


def write_universal_checkpoint(source: Path, target: Path) -> None:
    """Convert a ZeRO checkpoint into one that any number of ranks can load.

    The script ``deepspeed.checkpoint.ds_to_universal`` (0.19) is public; its ``main`` is not.
    """
    from deepspeed.checkpoint.ds_to_universal import main

    main(
        Namespace(
            input_folder=str(source),
            output_folder=str(target),
            num_extract_workers=1,
            num_merge_workers=1,
            keep_temp_folder=False,
            strict=True,
            inject_missing_state=True,
        )
    )
