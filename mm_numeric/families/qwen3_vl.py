"""Qwen3-VL: Qwen2-VL with patches of 16 pixels, so that image sizes are multiples of 32.

Coordinates   0 to 1000 of the image, like Qwen2-VL, in the JSON of Qwen2.5-VL. Boxes of Qwen2.5-VL
              are pixels in the same JSON, so rows written for one are silently wrong for the other
Modules       vision layers that feed language layers directly (deepstack) have their own projectors

The chat template has no system prompt, unlike those of Qwen2-VL and Qwen2.5-VL.
"""

from typing import Any, ClassVar

from transformers import Qwen3VLForConditionalGeneration

from mm_numeric.families.qwen2_vl import Qwen2VL


class Qwen3VL(Qwen2VL):
    """The family of Qwen/Qwen3-VL-2B-Instruct in all sizes."""

    name = "Qwen3-VL"
    model_class: ClassVar[Any] = Qwen3VLForConditionalGeneration
    default_coordinates = "qwen3_vl"
    module_patterns: ClassVar = {
        **Qwen2VL.module_patterns,
        "vision": r"model\.visual\.(?!merger\.|deepstack_merger_list\.)",
        "projector": r"model\.visual\.(merger|deepstack_merger_list)\.",
    }
