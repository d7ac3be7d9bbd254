"""The model class of Yi-VL: LLaVA with another projector. It is not part of transformers."""

from torch import Tensor, nn
from transformers import LlavaConfig, LlavaForConditionalGeneration
from transformers.activations import ACT2FN

SYSTEM_PROMPT = (
    "This is a chat between an inquisitive human and an AI assistant. Assume the role of the AI "
    "assistant. Read all the images carefully, and respond to the human's questions with "
    "informative, helpful, detailed and polite answers. "
    "这是一个好奇的人类和一个人工智能助手之间的对话。假设你扮演这个AI助手的角色。"
    "仔细阅读所有的图像，并对人类的问题做出信息丰富、有帮助、详细的和礼貌的回答。"
)


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
