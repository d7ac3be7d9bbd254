"""All uses of private names of transformers, accelerate, DeepSpeed and PEFT, as small functions.

Each docstring says why the private name is needed and, in parentheses, with which versions of the
library it was tested. If a library changes a name, ``tests/test_compat.py`` fails with the name of
the function. ``tests/test_private_names.py`` fails if another module uses a private name. Libraries
are imported inside the functions, so that importing this module is fast.
"""

import functools
import inspect
import re
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

TRAINER_METHODS: Mapping[str, tuple[str, ...]] = {
    "_get_grad_norm": ("model", "grad_norm"),
    "_get_num_items_in_batch": ("batch_samples", "device"),
    "_get_train_sampler": ("train_dataset",),
    "_load_from_checkpoint": ("resume_from_checkpoint", "model"),
    "_load_optimizer_and_scheduler": ("checkpoint",),
    "_prepare_for_training": ("max_steps", "train_dataloader", "resume_from_checkpoint"),
    "_save": ("output_dir", "state_dict"),
    "_save_checkpoint": ("model", "trial"),
    "_save_optimizer_and_scheduler": ("output_dir",),
}
"""Private methods of ``transformers.Trainer`` (5.15 to 5.24) that ``NumericTrainer`` or
``NumericLossMixin`` overrides, and the parameters of each. Trainer has no public hooks for the
gradient norm of a step, the number of labels in a step, the order of rows, and the content and the
loading of a checkpoint."""

MODEL_METHODS: Mapping[str, tuple[str, ...]] = {"_init_weights": ("module",)}
"""Private method of ``transformers.PreTrainedModel`` (5.15 to 5.24) that baselines override, and
its parameter. Overriding it is the documented way to initialise the weights of new modules."""

ADAPTED_MODEL = "base_model.model."
"""Prefix that PEFT (0.21) adds to the parameter names of the model that it wraps."""

_WRAPPERS = re.compile(
    rf"^{re.escape(ADAPTED_MODEL)}|(_orig_mod|_fsdp_wrapped_module|base_layer|token_adapter)\."
)


_SHARDS = "torch.distributed.checkpoint"
SHARD_METADATA_GLOBALS = frozenset(
    {
        ("pathlib", "PosixPath"),
        ("pathlib._local", "PosixPath"),  # in Python 3.13 only
        ("torch", "Size"),
        ("torch.serialization", "_get_layout"),
        (f"{_SHARDS}.filesystem", "_StorageInfo"),
        (f"{_SHARDS}.metadata", "BytesStorageMetadata"),
        (f"{_SHARDS}.metadata", "ChunkStorageMetadata"),
        (f"{_SHARDS}.metadata", "Metadata"),
        (f"{_SHARDS}.metadata", "MetadataIndex"),
        (f"{_SHARDS}.metadata", "StorageMeta"),
        (f"{_SHARDS}.metadata", "TensorProperties"),
        (f"{_SHARDS}.metadata", "TensorStorageMetadata"),
        (f"{_SHARDS}.metadata", "_MEM_FORMAT_ENCODING"),
    }
)
"""(module, name) of each class and function in the ``.metadata`` file of a sharded checkpoint of
torch (2.13), besides dtypes. torch loads this file with ``pickle.load``."""


def next_model_kwargs(model: Any, outputs: Any, model_kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of ``model.prepare_inputs_for_generation`` after a forward pass.

    A custom decoding loop, ``generate(custom_generate=...)``, needs the cache, masks and positions
    that the loops of transformers (5.15 to 5.24) update with this private method.
    """
    return model._update_model_kwargs_for_generation(
        outputs, model_kwargs, is_encoder_decoder=model.config.is_encoder_decoder
    )


def default_generation_settings() -> dict[str, Any]:
    """Return the default generation settings of transformers.

    They apply to settings that neither the checkpoint nor the caller sets. In
    ``GenerationConfig()`` (5.15 to 5.24), they are None.
    """
    from transformers import GenerationConfig

    return GenerationConfig._get_default_generation_params()


@functools.cache
def cache_argument() -> str:
    """Return the name of the KV cache argument of a model's forward pass.

    transformers calls it ``past_key_values`` (5.15 to 5.23) or ``cache`` (5.24).
    """
    from transformers import GenerationMixin

    parameters = inspect.signature(GenerationMixin.prepare_inputs_for_generation).parameters
    return "cache" if "cache" in parameters else "past_key_values"


# -- configs of models ----------------------------------------------------------------------------


def attention_of(config: Any) -> str:
    """Return the attention implementation of a model's config, such as ``sdpa``.

    transformers (5.15 to 5.24) has a public way to set it, but none to read it.
    """
    return str(config._attn_implementation)


@contextmanager
def attention_function(config: Any, function: Callable[..., Any]) -> Iterator[None]:
    """Replace a model's attention function inside the context.

    transformers (5.15 to 5.24) checks public names against its own functions. It has no public way
    to remove a function from ``AttentionInterface``; its objects would stay in memory.
    """
    from transformers import AttentionInterface

    name, usual = "mm_numeric_branches", config._attn_implementation
    AttentionInterface.register(name, function)
    config._attn_implementation = name
    try:
        yield
    finally:
        config._attn_implementation = usual
        del AttentionInterface._global_mapping[name]


def takes_attention_functions(model: Any) -> bool:
    """Return True if a model can use attention functions of ``AttentionInterface``.

    transformers (5.15 to 5.24) has only a private attribute for this.
    """
    return bool(model._supports_attention_backend)


def config_without_source(config: Any) -> dict[str, Any]:
    """Return the settings of a config, without the name or folder that it was loaded from.

    ``to_dict`` of transformers (5.15 to 5.24) has the source under a private name.
    """
    return {name: value for name, value in config.to_dict().items() if name != "_name_or_path"}


# -- names and hooks of modules -------------------------------------------------------------------


def unwrapped_name(name: str) -> str:
    """Return a parameter's original name, without names that wrappers insert (``_orig_mod``).

    The wrappers are torch.compile and FSDP1 (torch 2.13), and PEFT (0.21).
    """
    return _WRAPPERS.sub("", name)


def is_adapter(name: str) -> bool:
    """Return True if a parameter belongs to LoRA, DoRA or trainable tokens (PEFT 0.21)."""
    return ".lora_" in name or ".trainable_tokens_delta." in name


def original_layer(layer: Any) -> Any:
    """Return the layer that an adapter wraps (``base_layer`` in PEFT 0.21), or the layer itself."""
    adapter = getattr(layer, "token_adapter", layer)
    return getattr(adapter, "base_layer", adapter)


def clear_forward_hooks(module: Any) -> None:
    """Remove all forward hooks of a module.

    The public API of torch (2.13) can remove a hook only with the handle from its registration.
    """
    module._forward_hooks.clear()


def remove_input_gradient_hooks(embeddings: Any) -> None:
    """Remove the hooks that make the output of embeddings require gradients.

    ``enable_input_require_grads`` of transformers (4.57 to 5.24) adds them. Trainer, PEFT and TRL
    each call it, and ``disable_input_require_grads`` removes only the hooks of the last call.
    """
    for key, hook in list(embeddings._forward_hooks.items()):
        if getattr(hook, "__name__", "") == "make_inputs_require_grads":
            del embeddings._forward_hooks[key]


# -- transformers and datasets --------------------------------------------------------------------


@contextmanager
def packed_samples() -> Iterator[None]:
    """Build the attention masks of packed rows without waiting for the GPU, inside the context.

    ``find_packed_sequence_indices`` of transformers (5.6 to 5.24) waits for the GPU to check if any
    row has several samples, and returns None if no row has. No public option skips this check.
    Inside the context, it always returns the sample of each token, as in 4.57. Do not use it for
    rows of a single sample: their attention is faster without a mask.
    """
    from transformers import masking_utils

    usual = masking_utils.find_packed_sequence_indices
    masking_utils.find_packed_sequence_indices = _sample_indices
    try:
        yield
    finally:
        masking_utils.find_packed_sequence_indices = usual


def _sample_indices(position_ids: Any) -> Any:
    """Return the sample of each token [b, t], from 0; positions start again with each sample."""
    return (position_ids.diff(prepend=position_ids[:, :1] - 1) != 1).cumsum(-1)


def keep_checkpoint_names(model: Any) -> None:
    """Make ``save_pretrained`` use the parameter names of the checkpoint that was loaded.

    transformers (5.15 to 5.24) renames parameters when it loads a checkpoint, stores the rules in
    ``_weight_conversions``, and reverses them when it saves. Under ZeRO-3 it also stores rules
    that were not applied; these would change the names in saved files, and are removed here.
    """
    rules = getattr(model, "_weight_conversions", None)
    if rules is not None:
        model._weight_conversions = [rule for rule in rules if rule.was_used()]


def length_grouped_indices(lengths: Sequence[int], batch_size: int, generator: Any) -> list[int]:
    """Return a random order of samples in which each batch has samples of similar length.

    The public ``LengthGroupedSampler`` of transformers (5.15 to 5.24) cannot be used: it does not
    know the epoch, so the order would be different after a resume.
    """
    from transformers.trainer_pt_utils import get_length_grouped_indices

    return get_length_grouped_indices(lengths, batch_size, generator=generator)


def tokenizer_settings(source: str, revision: str) -> dict[str, Any]:
    """Return the content of a checkpoint's ``tokenizer_config.json`` ({} without this file).

    transformers (5.15 to 5.24) has no public function to read it without creating the tokenizer.
    """
    from transformers.models.auto.tokenization_auto import get_tokenizer_config

    return get_tokenizer_config(source, revision=revision)


def fixed_image_settings(processor: Any) -> Mapping[str, Any]:
    """Return the settings with which a processor overrides those of its image processor."""
    kind = type(processor)  # 5.23 has an attribute, earlier versions a class in the same module
    defaults = vars(sys.modules[kind.__module__]).get(f"{kind.__name__}Kwargs")
    earlier = getattr(defaults, "_defaults", {}).get("images_kwargs", {})
    return {**earlier, **getattr(kind, "images_kwargs", {})}


def num_image_tokens(processor: Any, width: int, height: int) -> int | None:
    """Return how many tokens a processor writes for an image of this size; None if unknown.

    transformers (5.15 to 5.24) added this private method for vLLM. It needs no pixels. Some
    processors lack it, and some do not count the tokens around the image.
    """
    count = getattr(processor, "_get_num_multimodal_tokens", None)
    return None if count is None else int(count([(height, width)])["num_image_tokens"][0])


class VideoSettings(dict[str, Any]):
    """Settings that replace a processor's video processor. The processor saves them unchanged."""

    _auto_class = None
    model_input_names: tuple[str, ...] = ()

    def __getattr__(self, name: str) -> Any:
        """Return a setting. Some processors read settings as attributes."""
        if name not in self:
            raise AttributeError(f"the video processor has no setting {name}")
        return self[name]


@contextmanager
def video_settings_alone() -> Iterator[None]:
    """Let ``AutoProcessor`` load only the settings of a video processor inside the context.

    The processors of transformers (5.15 to 5.24) check the types of their components, and all video
    processors need torchvision, which does not exist for every build of torch.
    """
    from transformers import ProcessorMixin
    from transformers.models.auto.video_processing_auto import (
        AutoVideoProcessor,
        get_video_processor_config,
    )

    def load(source: str, **options: Any) -> VideoSettings:
        return VideoSettings(get_video_processor_config(source, **options))

    def check(processor: Any, name: str, part: Any) -> Any:
        return type(part) if isinstance(part, VideoSettings) else original(processor, name, part)

    original, from_pretrained = (
        ProcessorMixin.check_argument_for_proper_class,
        AutoVideoProcessor.__dict__["from_pretrained"],
    )
    ProcessorMixin.check_argument_for_proper_class = check
    AutoVideoProcessor.from_pretrained = staticmethod(load)
    try:
        yield
    finally:
        ProcessorMixin.check_argument_for_proper_class = original
        AutoVideoProcessor.from_pretrained = from_pretrained


def concrete_classes(auto_class: Any) -> Mapping[Any, Any] | None:
    """Return the mapping from config classes to model classes of an Auto class (``AutoModel``).

    A baseline uses it to find the model class to subclass. transformers (5.15 to 5.24) stores the
    mapping as ``_model_mapping``. Returns None if ``auto_class`` is an ordinary class.
    """
    return getattr(auto_class, "_model_mapping", None)


def deepspeed_settings(args: Any) -> Any:
    """Return the parsed DeepSpeed settings of ``args`` (TrainingArguments); None without DeepSpeed.

    transformers (5.15 to 5.24) stores them privately, and only if ``args.deepspeed`` is set.
    """
    return getattr(args, "hf_deepspeed_config", None)


@contextmanager
def without_deepspeed_settings(args: Any) -> Iterator[None]:
    """Hide the DeepSpeed settings from ``from_pretrained`` inside the context.

    transformers (5.15 to 5.24) shards new models while global ZeRO-3 settings exist. accelerate
    (1.15) stores the settings of ``accelerate launch`` in ``DeepSpeedPlugin.dschf``.
    """
    from transformers.integrations import deepspeed

    deepspeed.unset_hf_deepspeed_config()
    try:
        yield
    finally:
        deepspeed.set_hf_deepspeed_config(deepspeed_settings(args) or args.deepspeed_plugin.dschf)


def save_without_push(trainer: Any, folder: Path) -> None:
    """Save the weights of a trainer in a folder that ``push_to_hub`` does not upload.

    ``Trainer.save_model`` of transformers (5.15 to 5.24) has a private argument for it.
    """
    trainer.save_model(str(folder), _internal_call=True)


@contextmanager
def postponed_rotation() -> Iterator[Callable[[], None]]:
    """Postpone the deletion of older checkpoints by ``Trainer._save_checkpoint``.

    The context returns a function that deletes them. transformers (5.15 to 5.24) calls
    ``rotate_checkpoints`` as soon as rank 0 has saved, when other ranks may still be saving.
    """
    from transformers import trainer

    rotate = trainer.rotate_checkpoints
    calls: list[dict[str, Any]] = []

    def delete_older() -> None:
        for arguments in calls:
            rotate(**arguments)

    trainer.rotate_checkpoints = lambda **arguments: calls.append(arguments)
    try:
        yield delete_older
    finally:
        trainer.rotate_checkpoints = rotate


def decoded_columns(features: Mapping[str, Any]) -> list[str]:
    """Return the names of dataset columns with images, audio or video, also inside lists.

    datasets (5.2) decodes these columns when a row is read, and has no public function that lists
    them. Columns of its type ``Json`` are decoded, too, but not returned.
    """
    from datasets import Json

    def holds_media(kind: Any) -> bool:
        if isinstance(kind, Mapping):
            return any(map(holds_media, kind.values()))
        if hasattr(kind, "feature"):  # a list
            return holds_media(kind.feature)
        return hasattr(kind, "decode_example") and not isinstance(kind, Json)

    return [name for name, kind in features.items() if holds_media(kind)]


# -- accelerate -----------------------------------------------------------------------------------


def base_dataloader(loader: Any) -> Any:
    """Return the torch DataLoader that accelerate (1.15) wraps, or the loader itself.

    The torch DataLoader starts the workers, so ``worker_init_fn`` must be set on it.
    """
    return getattr(loader, "base_dataloader", loader)


def stop_workers(loader: Any) -> None:
    """Stop the workers of a torch DataLoader (2.13); garbage collection would wait 5 s for each."""
    loader._iterator = None


# -- DeepSpeed ------------------------------------------------------------------------------------


def is_partitioned(parameter: Any) -> bool:
    """Return True if ZeRO-3 has sharded a parameter over the ranks (DeepSpeed 0.19)."""
    return hasattr(parameter, "ds_id")


def numel(parameter: Any) -> int:
    """Return the number of elements of a parameter over all ranks.

    A parameter that ZeRO-3 has sharded is empty; DeepSpeed (0.19) stores its size as ``ds_numel``.
    """
    return int(getattr(parameter, "ds_numel", parameter.numel()))


def dim(parameter: Any) -> int:
    """Return the number of dimensions of a parameter, also of one that ZeRO-3 has partitioned."""
    return len(getattr(parameter, "ds_shape", parameter.shape))


def unpacked_numel(parameter: Any) -> int:
    """Return the number of elements that a parameter had before 4-bit quantisation.

    bitsandbytes (optional) packs two elements into each byte of a ``Params4bit``.
    """
    count = numel(parameter)
    if type(parameter).__name__ == "Params4bit":
        return count * 2 * parameter.element_size()  # the packed storage may have a wider dtype
    return count


def local_values(parameter: Any) -> Any:
    """Return the values of a parameter that are stored on this rank: under ZeRO-3, its shard.

    DeepSpeed (0.19) stores the shard as ``ds_tensor``; the sharded parameter itself is empty.
    """
    return getattr(parameter, "ds_tensor", parameter)


def deepspeed_state_classes() -> list[Any]:
    """Return the classes that DeepSpeed (0.19) pickles in optimiser states, besides tensors.

    ``torch.load`` is allowed to create them. This is safe, because they only hold values.
    """
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address

    return [DynamicLossScaler, LossScaler, ZeroStageEnum, fragment_address]


def write_universal_checkpoint(source: Path, target: Path) -> None:
    """Convert a ZeRO checkpoint into one that any number of ranks can load.

    This calls the private ``main`` of the script ``deepspeed.checkpoint.ds_to_universal`` (0.19).
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
