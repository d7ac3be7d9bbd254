r"""Yi-VL.

Image     as LLaVA-1.5 sees it, 448 pixels
Prompt    Yi-VL's own: a system prompt in English and Chinese, then
          ``### Human: <image_placeholder>\n...\n### Assistant:``
Answer    the text, then the tokenizer's own end of text (``<|endoftext|>``)
Places    0 to 999 of the padded square, ``(x1,y1),(x2,y2)``

Yi-VL itself was trained to end an answer with ``\n###``, more than one token. A model that is
trained here ends it with one; what another writes from ``###`` on is cut off.

transformers has no class for it. It is LLaVA with another projector, which the class below has;
01-ai/Yi-VL-6B is in the layout of the LLaVA code: see ``mm_numeric.families.llava_layout``.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from mm_numeric.families.llava import Llava
from mm_numeric.families.yi_vl_model import SYSTEM_PROMPT, YiVLForConditionalGeneration

TURN = "###"


class YiVL(Llava):
    """The family of 01-ai/Yi-VL-6B and 01-ai/Yi-VL-34B."""

    name = "Yi-VL"
    model_class: ClassVar[Any] = YiVLForConditionalGeneration
    habit = "yi_vl"
    image_placeholder = "<image_placeholder>"
    projector_type = "mlp2x_gelu_Norm"
    projector: ClassVar = {"0": "linear_1", "1": "norm_1", "3": "linear_2", "4": "norm_2"}

    @classmethod
    def make_tiny(cls, folder: Path, seed: int) -> None:
        """Make a model of half a million parameters; see ``mm_numeric.families.tiny_llava``."""
        from mm_numeric.families.tiny_llava import make_tiny_yi_vl

        make_tiny_yi_vl(folder, seed)

    def prompt_text(self, text: str, with_image: bool) -> str:
        """Return a question in Yi-VL's own words, whatever chat template the tokenizer has."""
        image = f"{self.image_placeholder}\n" if with_image else ""
        return f"{SYSTEM_PROMPT}\n\n{TURN} Human: {image}{text}\n{TURN} Assistant:"

    def text(self, ids: Sequence[int]) -> str:
        """Return what was generated up to its end, or to where the next turn begins."""
        written, turn, _ = super().text(ids).partition(TURN)
        return written.rstrip() if turn else written
