"""The Qwen3-VL model family, which differs from Qwen2-VL as follows.

Image         patches of 16 x 16 pixels, merged 2 x 2, so that image sizes are multiples of 32
Prompt        the chat template has no system prompt
Coordinates   relative to the image, from 0 to 1000, in the JSON format of Qwen2.5-VL. Qwen2.5-VL
              writes pixels, so training data written for Qwen2.5-VL is wrong for Qwen3-VL
Modules       some vision layers have a projector of their own (deepstack). These projectors are
              trained or frozen together with the main ``projector``
"""

from typing import Any, ClassVar

from torch import Tensor
from transformers import Qwen3VLForConditionalGeneration, Qwen3VLProcessor
from transformers.vision_utils import get_vision_interpolation_indices_and_weights

from mm_numeric.families.qwen2_vl import Qwen2VL


class Qwen3VL(Qwen2VL):
    """Qwen3-VL models of all sizes, such as Qwen/Qwen3-VL-2B-Instruct."""

    name = "Qwen3-VL"
    model_class: ClassVar[Any] = Qwen3VLForConditionalGeneration
    processor_class: ClassVar[Any] = Qwen3VLProcessor
    default_coordinates = "qwen3_vl"
    module_patterns: ClassVar = {
        **Qwen2VL.module_patterns,
        "vision": r"model\.visual\.(?!merger\.|deepstack_merger_list\.)",
        "projector": r"model\.visual\.(merger|deepstack_merger_list)\.",
    }

    def vision_inputs(self, sizes: Tensor, config: Any) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the vision inputs of Qwen2-VL, and how to interpolate position embeddings."""
        copied, on_host = super().vision_inputs(sizes, config)
        indices, weights = get_vision_interpolation_indices_and_weights(
            sizes,
            num_grid_per_side=int(config.num_position_embeddings**0.5),
            align_corners=True,
            spatial_merge_size=config.spatial_merge_size,
        )
        return {**copied, "image_interp_indices": indices, "image_interp_weights": weights}, on_host
