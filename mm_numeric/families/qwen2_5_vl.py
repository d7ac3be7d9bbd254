"""The Qwen2.5-VL model family: Qwen2-VL with another coordinate format.

Coordinates   whole pixels of the resized image, from 0 to its size - 1, in JSON:
              ``[{"bbox_2d": [x1, y1, x2, y2], "label": "cat"}]``

Coordinates depend on the size of the resized image, and so on ``min_pixels`` and ``max_pixels``.
These limits are saved with the model in ``frame.json``. Loading the model with other limits is an
error.
"""

from typing import Any, ClassVar

from torch import Tensor
from transformers import Qwen2_5_VLForConditionalGeneration, Qwen2_5_VLProcessor
from transformers.utils.generic import get_max_seqlen
from transformers.vision_utils import get_vision_window_index

from mm_numeric.families.qwen2_vl import Qwen2VL


class Qwen2_5VL(Qwen2VL):  # noqa: N801, the authors' spelling
    """Qwen2.5-VL models of all sizes, such as Qwen/Qwen2.5-VL-3B-Instruct."""

    name = "Qwen2.5-VL"
    model_class: ClassVar[Any] = Qwen2_5_VLForConditionalGeneration
    processor_class: ClassVar[Any] = Qwen2_5_VLProcessor
    default_coordinates = "qwen2_5_vl"

    def vision_inputs(self, sizes: Tensor, config: Any) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the vision inputs of Qwen2-VL, and the attention windows of the vision tower."""
        copied, on_host = super().vision_inputs(sizes, config)
        copied["image_window_index"], ends = get_vision_window_index(
            sizes, config.spatial_merge_size, config.window_size, config.patch_size
        )
        longest = get_max_seqlen(ends, config)
        if longest is None:
            return copied, {**on_host, "image_cu_window_seqlens": ends}
        copied["image_cu_window_seqlens"] = ends
        return copied, {**on_host, "image_max_window_seqlen": longest}
