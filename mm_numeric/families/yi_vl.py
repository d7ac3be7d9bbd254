r"""The Yi-VL model family.

Image         like LLaVA-1.5, but 448 x 448 pixels
Prompt        Yi-VL's own: a system prompt in English and Chinese, then
              ``### Human: <unk>\n...\n### Assistant:``
Answer        a space, the text, then ``<|endoftext|>``
Coordinates   relative to the padded square, from 0 to 999: ``(x1,y1),(x2,y2)``

The published Yi-VL models end an answer with ``\n###``, which is several tokens. Models trained
with this library end an answer with one token, ``<|endoftext|>``. When an answer is decoded,
``###`` and all text after it are removed.

Yi-VL is LLaVA with another projector. This module defines the model, as transformers does not.
``llava_layout`` loads the published 01-ai/Yi-VL-6B, whose parameters have other names.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

from torch import Tensor, nn
from transformers import LlavaConfig, LlavaForConditionalGeneration
from transformers.activations import ACT2FN

from mm_numeric.config.schema import ModelConfig
from mm_numeric.families.llava import Llava, turns_template

TURN = "###"

SYSTEM_PROMPT = (
    "This is a chat between an inquisitive human and an AI assistant. Assume the role of the AI "
    "assistant. Read all the images carefully, and respond to the human's questions with "
    "informative, helpful, detailed and polite answers. "
    "这是一个好奇的人类和一个人工智能助手之间的对话。假设你扮演这个AI助手的角色。"
    "仔细阅读所有的图像，并对人类的问题做出信息丰富、有帮助、详细的和礼貌的回答。"
)

TEMPLATE = turns_template(
    f"{SYSTEM_PROMPT}\n\n",
    {"user": "### Human: ", "assistant": "### Assistant: "},
    {"user": "\n", "assistant": "\n"},
)
"""Prompts of Yi-VL (``mm_default`` in its code)."""


class YiVLProjector(nn.Module):
    """Projector of Yi-VL: maps image features to the language model's size by a two-layer MLP."""

    def __init__(self, config: LlavaConfig) -> None:
        super().__init__()
        width = config.text_config.hidden_size
        self.linear_1 = nn.Linear(config.vision_config.hidden_size, width)
        self.norm_1 = nn.LayerNorm(width)
        self.act = ACT2FN[config.projector_hidden_act]
        self.linear_2 = nn.Linear(width, width)
        self.norm_2 = nn.LayerNorm(width)

    def forward(self, image_features: Tensor) -> Tensor:
        """Map [images, patches, vision hidden size] to [images, patches, language hidden size]."""
        hidden = self.act(self.norm_1(self.linear_1(image_features)))
        return self.norm_2(self.linear_2(hidden))


class YiVLForConditionalGeneration(LlavaForConditionalGeneration):  # type: ignore[misc]
    """LLaVA with Yi-VL's projector. It supports ``save_pretrained`` and ``from_pretrained``."""

    def __init__(self, config: LlavaConfig) -> None:
        super().__init__(config)
        self.model.multi_modal_projector = YiVLProjector(config)
        self.post_init()  # initialises the new projector


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
        """Return Yi-VL's chat template, even if the tokenizer has one of the language model."""
        return TEMPLATE
