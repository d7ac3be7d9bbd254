"""Qwen2.5-VL: as Qwen2-VL, but for how places are written.

Places    whole pixels of the image as it was resized, at most its size - 1, in JSON:
          ``[{"bbox_2d": [x1, y1, x2, y2], "label": "cat"}]``

So a box means another place as soon as the pixel limits change: ``frame.json`` beside the weights
keeps them, and a model is not read in another frame.
"""

from typing import Any, ClassVar

from transformers import Qwen2_5_VLForConditionalGeneration

from mm_numeric.families.qwen2_vl import Qwen2VL


class Qwen2_5VL(Qwen2VL):  # noqa: N801, as its authors write it
    """The family of Qwen/Qwen2.5-VL-3B-Instruct and its sizes."""

    name = "Qwen2.5-VL"
    model_class: ClassVar[Any] = Qwen2_5_VLForConditionalGeneration
    habit = "qwen2_5_vl"
