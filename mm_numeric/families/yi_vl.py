r"""Yi-VL.

Picture   as LLaVA-1.5 sees it, 448 pixels
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

from torch import Tensor, nn
from transformers import LlavaConfig, LlavaForConditionalGeneration
from transformers.activations import ACT2FN

from mm_numeric.families.llava import Llava

SYSTEM_PROMPT = (
    "This is a chat between an inquisitive human and an AI assistant. Assume the role of the AI "
    "assistant. Read all the images carefully, and respond to the human's questions with "
    "informative, helpful, detailed and polite answers. "
    "这是一个好奇的人类和一个人工智能助手之间的对话。假设你扮演这个AI助手的角色。"
    "仔细阅读所有的图像，并对人类的问题做出信息丰富、有帮助、详细的和礼貌的回答。"
)
TURN = "###"


class YiVLProjector(nn.Module):
    """Yi-VL's ``mlp2x_gelu_Norm``: two linear layers, each with a LayerNorm behind it."""

    def __init__(self, config: LlavaConfig) -> None:
        """Make the layers for the widths of vision tower and language model."""
        super().__init__()
        width = config.text_config.hidden_size
        self.linear_1 = nn.Linear(config.vision_config.hidden_size, width)
        self.norm_1 = nn.LayerNorm(width)
        self.act = ACT2FN[config.projector_hidden_act]
        self.linear_2 = nn.Linear(width, width)
        self.norm_2 = nn.LayerNorm(width)

    def forward(self, image_features: Tensor) -> Tensor:
        """Project features [pictures, patches, vision width] to the language model's width."""
        hidden = self.act(self.norm_1(self.linear_1(image_features)))
        projected: Tensor = self.norm_2(self.linear_2(hidden))
        return projected


class YiVLForConditionalGeneration(LlavaForConditionalGeneration):  # type: ignore[misc]
    """LLaVA with Yi-VL's projector; saved and loaded like any class of transformers."""

    def __init__(self, config: LlavaConfig) -> None:
        """Make the model of a configuration."""
        super().__init__(config)
        self.model.multi_modal_projector = YiVLProjector(config)
        self.post_init()  # fills what is new


class YiVL(Llava):
    """The family of 01-ai/Yi-VL-6B and 01-ai/Yi-VL-34B."""

    name = "Yi-VL"
    model_class: ClassVar[Any] = YiVLForConditionalGeneration
    habit = "yi_vl"
    picture_mark = "<image_placeholder>"
    projector_type = "mlp2x_gelu_Norm"
    projector: ClassVar = {"0": "linear_1", "1": "norm_1", "3": "linear_2", "4": "norm_2"}

    @classmethod
    def make_tiny(cls, folder: Path, seed: int) -> None:
        """Make a model of half a million parameters; see ``mm_numeric.families.tiny_llava``."""
        from mm_numeric.families.tiny_llava import make_tiny_yi_vl

        make_tiny_yi_vl(folder, seed)

    def prompt_text(self, text: str, with_picture: bool) -> str:
        """Return a question in Yi-VL's own words, whatever chat template the tokenizer has."""
        picture = f"{self.picture_mark}\n" if with_picture else ""
        return f"{SYSTEM_PROMPT}\n\n{TURN} Human: {picture}{text}\n{TURN} Assistant:"

    def text(self, ids: Sequence[int]) -> str:
        """Return what was generated up to its end, or to where the next turn begins."""
        written, turn, _ = super().text(ids).partition(TURN)
        return written.rstrip() if turn else written
