"""Compute on the CPU, with the batch, the inputs that Qwen models derive from image sizes.

A model with M-RoPE computes the position of each token from the sizes of the images, row by row,
and its vision tower divides the patches into images. On a GPU the host waits for each of these
values: more than eight times a row, and three times a layer of the vision tower. transformers (5.15
to 5.24) also accepts them as arguments, which have the names of its ``vision_utils`` with the
prefix ``image_``.
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
    """Arguments of a model that are derived from the sizes of images, as a batch entry.

    ``on_host`` stays on the CPU, because the model reads its values.
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
    """Adds the positions of tokens and patches to the batches of another collator.

    A batch gets ``position_ids`` [3, b, t] unless it has positions. If the family knows the inputs
    of its vision tower, ``image_inputs`` replaces the sizes of the images.
    """

    collate: Callable[[Sequence[Example]], dict[str, Any]]
    rope_index: Callable[..., tuple[Tensor, Any]]
    """``get_rope_index`` of the model, from ``rope_index_of``."""

    family: Family
    vision_config: Any

    def __call__(self, examples: Sequence[Example]) -> dict[str, Any]:
        """Return a batch; an empty list of examples becomes an empty dict."""
        batch = self.collate(examples)
        if _SIZES not in batch:  # without images, the positions are token numbers
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
    """Return a collator that also computes the positions of images, if the model has M-RoPE."""
    rope_index = rope_index_of(model)
    if rope_index is None:
        return collate
    return ImagePositions(collate, rope_index, family, getattr(model.config, "vision_config", None))


def rope_index_of(model: Any) -> Any:
    """Return ``get_rope_index`` of a model with M-RoPE, bound to an object without weights.

    The weights must not be sent to the workers of the data loader with the collator.
    """
    owner = next((m for m in model.modules() if hasattr(m, "get_rope_index")), None)
    if owner is None:
        return None
    empty: Any = object.__new__(type(owner))
    nn.Module.__init__(empty)
    # Some models read more than their config, such as the spatial_merge_size of Qwen2.5-Omni.
    vars(empty).update((k, value) for k, value in vars(owner).items() if not k.startswith("_"))
    return empty.get_rope_index


def rope_positions(
    rope_index: Callable[..., tuple[Tensor, Any]], batch: Mapping[str, Any]
) -> Tensor:
    """Return the positions in time, height and width of the tokens of a padded batch, [3, b, t]."""
    known = inspect.signature(rope_index).parameters
    return rope_index(**{name: value for name, value in batch.items() if name in known})[0]
