r"""The Yi-VL model family.

Image         like LLaVA-1.5, but 448 x 448 pixels
Prompt        Yi-VL's own: a system prompt in English and Chinese, then
              ``### Human: <unk>\n...\n### Assistant:``
Answer        a space, the text, then ``<|endoftext|>``
Coordinates   relative to the padded square, from 0 to 999: ``(x1,y1),(x2,y2)``

The published Yi-VL models end an answer with ``\n###``, which is several tokens. Models trained
with this library end an answer with one token, ``<|endoftext|>``. When an answer is decoded,
``###`` and all text after it are removed.

Yi-VL is LLaVA with another projector. Its model class is in ``yi_vl_model``, because transformers
has none. ``llava_layout`` loads the published 01-ai/Yi-VL-6B, whose parameters have other names.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

from mm_numeric.config.schema import ModelConfig
from mm_numeric.families.llava import Llava
from mm_numeric.families.llava_templates import YI_VL
from mm_numeric.families.yi_vl_model import YiVLForConditionalGeneration

TURN = "###"


class YiVL(Llava):
    """Yi-VL models: 01-ai/Yi-VL-6B and 01-ai/Yi-VL-34B."""

    name = "Yi-VL"
    model_class: ClassVar[Any] = YiVLForConditionalGeneration
    default_coordinates = "yi_vl"
    turn = TURN
    projector_type = "mlp2x_gelu_Norm"
    projector: ClassVar = {"0": "linear_1", "1": "norm_1", "3": "linear_2", "4": "norm_2"}

    def text(self, ids: Sequence[int]) -> str:
        """Decode the tokens before the end token, and remove ``###`` and all text after it."""
        written, turn, _ = super().text(ids).partition(TURN)
        return written.rstrip() if turn else written

    @classmethod
    def template(cls, own: str | None, source: str, model: ModelConfig) -> str:
        """Return Yi-VL's chat template, also if its tokenizer has that of the language model."""
        return YI_VL
