"""Qwen2.5-VL: Qwen2-VL with another coordinate format.

Coordinates   whole pixels of the resized image, at most its size - 1, in JSON:
              ``[{"bbox_2d": [x1, y1, x2, y2], "label": "cat"}]``

A box therefore means another region as soon as the pixel limits change. ``frame.json`` next to the
weights holds the limits, and a model cannot be loaded with other ones.
"""

from typing import Any, ClassVar

from transformers import Qwen2_5_VLForConditionalGeneration

from mm_numeric.families.qwen2_vl import Qwen2VL


class Qwen2_5VL(Qwen2VL):  # noqa: N801, the authors' spelling
    """The family of Qwen/Qwen2.5-VL-3B-Instruct in all sizes."""

    name = "Qwen2.5-VL"
    model_class: ClassVar[Any] = Qwen2_5_VLForConditionalGeneration
    default_coordinates = "qwen2_5_vl"
