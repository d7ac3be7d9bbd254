"""Compute on the CPU, in the data collator, the inputs that Qwen models derive from image sizes.

A model with M-RoPE computes the position of each token from the sizes of the images, row by row,
and its vision tower divides the patches into images. On a GPU, the host would wait for each of
these values: more than eight times per row, and three times per layer of the vision tower.
transformers (5.15 to 5.24) also accepts these values as arguments; their names are those in its
module ``vision_utils`` with the prefix ``image_``.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from mm_numeric.answers import Example
from mm_numeric.families.family import Family
from mm_numeric.numbers.spans import Packed

_SIZES, _TYPES = "image_grid_thw", "mm_token_type_ids"


@dataclass(frozen=True)
class ImageInputs:
    """Batch entry with the arguments of a model that are derived from image sizes.

    The tensors ``packed`` are copied to the device. ``on_host`` stays on the CPU, because the model
    reads its values there.
    """

    packed: Packed
    on_host: Mapping[str, Any]

    def arguments(self) -> dict[str, Any]:
        """Return the keyword arguments of the model."""
        return {**self.on_host, **self.packed.tensors()}

    def to(self, device: Any, non_blocking: bool = False) -> "ImageInputs":
        """Return a copy on a device."""
        return ImageInputs(self.packed.to(device, non_blocking), self.on_host)

    def pin_memory(self) -> "ImageInputs":
        """Return a copy in pinned memory. DataLoader calls this if ``pin_memory=True``."""
        return ImageInputs(self.packed.pin_memory(), self.on_host)


@dataclass(frozen=True)
class ImagePositions:
    """Collator that adds the positions of tokens and patches to the batches of ``collate``.

    A batch without ``position_ids`` gets ``position_ids`` [3, b, t]. If the family defines
    ``vision_inputs``, the entry ``image_inputs`` replaces the sizes of the images.
    """

    collate: Callable[[Sequence[Example]], dict[str, Any]]
    rope_index: Callable[..., tuple[Tensor, Any]]
    """Method ``get_rope_index`` of the model, as ``rope_index_of`` returns it."""

    family: Family
    vision_config: Any

    def __call__(self, examples: Sequence[Example]) -> dict[str, Any]:
        """Return a batch; an empty list of examples becomes an empty dict."""
        batch = self.collate(examples)
        if _SIZES not in batch:  # without images, positions are 0, 1, 2, ...
            return batch
        if "position_ids" not in batch:
            batch["position_ids"] = rope_positions(self.rope_index, batch)
        if "pixel_values" not in batch:  # the image features are cached
            return batch
        copied, on_host = self.family.vision_inputs(batch[_SIZES], self.vision_config)
        if copied:
            on_host = {_SIZES: batch.pop(_SIZES), **on_host}
            copied[_TYPES] = batch.pop(_TYPES)
            batch["image_inputs"] = ImageInputs(Packed(copied), on_host)
        return batch


def with_image_positions(model: Any, family: Family, collate: Any) -> Any:
    """Return ``collate``, or for a model with M-RoPE an ``ImagePositions`` around it."""
    rope_index = rope_index_of(model)
    if rope_index is None:
        return collate
    return ImagePositions(collate, rope_index, family, getattr(model.config, "vision_config", None))


def rope_index_of(model: Any) -> Any:
    """Return the method ``get_rope_index`` of a model; None if the model has no M-RoPE.

    It is bound to an object without weights, so that the collator does not carry the weights to the
    workers of the data loader.
    """
    owner = next((m for m in model.modules() if hasattr(m, "get_rope_index")), None)
    if owner is None:
        return None
    empty: Any = object.__new__(type(owner))
    nn.Module.__init__(empty)
    # The method may read other attributes than the config: spatial_merge_size in Qwen2.5-Omni.
    vars(empty).update((k, value) for k, value in vars(owner).items() if not k.startswith("_"))
    return empty.get_rope_index


def rope_positions(
    rope_index: Callable[..., tuple[Tensor, Any]], batch: Mapping[str, Any]
) -> Tensor:
    """Return the time, height and width positions of the tokens of a padded batch, [3, b, t]."""
    known = inspect.signature(rope_index).parameters
    return rope_index(**{name: value for name, value in batch.items() if name in known})[0]
