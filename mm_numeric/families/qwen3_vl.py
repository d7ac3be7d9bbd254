"""Qwen3-VL: as Qwen2-VL, in patches of 16 pixels, so that sizes are multiples of 32.

Places    0 to 1000 of the image, as Qwen2-VL, in the JSON of Qwen2.5-VL, whose own boxes are
          pixels: rows written for the one are silently wrong for the other
Parts     layers of vision that go straight to layers of language (deepstack) pass a projector each

It is instructed without a system prompt, which the others have: the chat template decides.
"""

from typing import Any, ClassVar

from transformers import Qwen3VLForConditionalGeneration

from mm_numeric.families.qwen2_vl import Qwen2VL


class Qwen3VL(Qwen2VL):
    """The family of Qwen/Qwen3-VL-2B-Instruct and its sizes."""

    name = "Qwen3-VL"
    model_class: ClassVar[Any] = Qwen3VLForConditionalGeneration
    habit = "qwen3_vl"
    parts: ClassVar = {
        **Qwen2VL.parts,
        "vision": r"model\.visual\.(?!merger\.|deepstack_merger_list\.)",
        "projector": r"model\.visual\.(merger|deepstack_merger_list)\.",
    }
