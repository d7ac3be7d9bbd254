r"""Yi-VL.

Image         like LLaVA-1.5, at 448 pixels
Prompt        Yi-VL's own: a system prompt in English and Chinese, then
              ``### Human: <image_placeholder>\n...\n### Assistant:``
Answer        the text, then the tokenizer's end of text (``<|endoftext|>``)
Coordinates   0 to 999 of the padded square, ``(x1,y1),(x2,y2)``

The published Yi-VL ends an answer with ``\n###``, which is more than one token. A model trained
here ends it with one token; in the output of other models the text from ``###`` on is removed.

transformers has no class for Yi-VL: it is LLaVA with another projector (see ``yi_vl_model``).
01-ai/Yi-VL-6B has the layout of the LLaVA code: see ``mm_numeric.families.llava_layout``.
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
    default_coordinates = "yi_vl"
    image_placeholder = "<image_placeholder>"
    projector_type = "mlp2x_gelu_Norm"
    projector: ClassVar = {"0": "linear_1", "1": "norm_1", "3": "linear_2", "4": "norm_2"}

    def prompt_text(self, text: str, with_image: bool) -> str:
        """Return the prompt of a question in Yi-VL's format; a chat template is not used."""
        image = f"{self.image_placeholder}\n" if with_image else ""
        return f"{SYSTEM_PROMPT}\n\n{TURN} Human: {image}{text}\n{TURN} Assistant:"

    def text(self, ids: Sequence[int]) -> str:
        """Decode generated tokens up to the end token, or to the beginning of the next turn."""
        written, turn, _ = super().text(ids).partition(TURN)
        return written.rstrip() if turn else written

    @classmethod
    def make_tiny(cls, folder: Path, seed: int) -> None:
        """Save a model with half a million parameters."""
        from mm_numeric.families.tiny_llava import make_tiny_yi_vl

        make_tiny_yi_vl(folder, seed)
