"""Model families: how each writes a prompt, sees a picture and ends an answer.

Adding a family is one file and one line in ``FAMILIES``. This file loads no torch.
"""

from collections.abc import Mapping

FAMILIES: Mapping[str, str] = {
    "paligemma": "mm_numeric.families.paligemma:PaliGemma",
    "llava": "mm_numeric.families.llava:Llava",
    "yi_vl": "mm_numeric.families.yi_vl:YiVL",
    "qwen2_vl": "mm_numeric.families.qwen2_vl:Qwen2VL",
    "qwen2_5_vl": "mm_numeric.families.qwen2_5_vl:Qwen2_5VL",
    "qwen3_vl": "mm_numeric.families.qwen3_vl:Qwen3VL",
    "causal_lm": "mm_numeric.families.causal_lm:CausalLM",
    "t5": "mm_numeric.families.t5:T5",
}
"""Name of each family to where its class is."""
