"""Model families: how each writes a prompt, sees a picture and ends an answer.

Adding a family is one file and one line in ``FAMILIES``. This file loads no torch.
"""

from collections.abc import Mapping

FAMILIES: Mapping[str, str] = {
    "paligemma": "mm_numeric.families.paligemma:PaliGemma",
    "qwen2_vl": "mm_numeric.families.qwen2_vl:Qwen2VL",
    "llava": "mm_numeric.families.llava:Llava",
    "yi_vl": "mm_numeric.families.yi_vl:YiVL",
}
"""Name of each family to where its class is."""
