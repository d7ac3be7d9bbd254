"""The Kosmos-2 model family.

Image         resized to a square of 224 pixels a side, without keeping the aspect ratio; 64 tokens,
              which a mask distinguishes from text, because their ids are those of words
Prompt        ``<s><image>``, the tokens of the image, ``</image>``, the question. The question
              ``<grounding><phrase> a snowman</phrase>`` asks for the box of a phrase
Answer        the text, then ``</s>``
Coordinates   the cells of a grid of 32 x 32, one token for each corner of a box:
              ``<object><patch_index_0044><patch_index_0863></object>``

The positions of transformers (5.23) count padding on the left once a token is generated, so that an
answer would depend on the other prompts of its batch. Here they are computed from the mask.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import CLIPImageProcessorPil, Kosmos2ForConditionalGeneration, Kosmos2Processor

from mm_numeric.config.schema import ModelConfig
from mm_numeric.families.chat_template import Shown
from mm_numeric.families.family import Family, Prompts, Tokens

_FEATURES = Kosmos2Processor.num_image_tokens
_FIRST = 2  # position of the first feature, after <s> and <image>
_MASK = "image_embeds_position_mask"


class Kosmos2(Family):
    """Kosmos-2 models, such as microsoft/kosmos-2-patch14-224."""

    name = "Kosmos-2"
    model_class: ClassVar[Any] = Kosmos2ForConditionalGeneration
    image_processor_class = CLIPImageProcessorPil
    processor_class = Kosmos2Processor
    default_coordinates = "kosmos2"
    module_patterns: ClassVar[Mapping[str, str]] = {
        "vision": r"vision_model\.",
        "projector": r"image_to_text_projection\.",
        "embeddings": r"text_model\.model\.embed_tokens\.",
        "language": r"text_model\.model\.(?!embed_tokens\.)",
        "head": r"text_model\.lm_head\.",
    }
    lora_targets = r"text_model\.model\.layers\.\d+\.(self_attn\.\w+_proj|ffn\.fc[12])"

    def __init__(self, tokenizer: Any, image_processor: Any, model: ModelConfig) -> None:
        super().__init__(tokenizer, image_processor, model)
        self.image_id = self.token_id("<image>")
        self.pad_id = self.token_id("<pad>")
        self.stop_ids = [self.token_id("</s>")]
        self.first_feature_id = self.token_id("<unk>") + 1  # as in Kosmos2Processor
        self.squash_to_square(counts_tokens=False)
        self.tokens_per_image = 1 + _FEATURES  # <image>, too

    def tokenize_question(self, text: str, with_image: bool) -> list[int]:
        """Return a question's token ids, with one placeholder token in place of the image."""
        prompt = f"<s>{'<image></image> ' * with_image}{text.strip()}"
        ids: list[int] = self.tokenizer(prompt, add_special_tokens=False)["input_ids"]
        self.check_image_tokens(text, ids, int(with_image))
        return ids

    def question(self, text: str, image_tokens: int) -> list[int]:
        """Return a question's token ids; those of image features are the ids of the processor."""
        ids = super().question(text, image_tokens)
        if image_tokens > 1:  # one placeholder stands for all tokens of the image
            ids[_FIRST : _FIRST + _FEATURES] = (self.first_feature_id + i for i in range(_FEATURES))
        return ids

    def answer(self, text: str) -> Tokens:
        """Tokenise an answer and append the end token."""
        return self.with_known_tokens(text, super().answer(text))

    def prompts(
        self,
        texts: Sequence[str],
        images: Sequence[Shown],
        where: Sequence[str] | None = None,
    ) -> Prompts:
        """Tokenise questions and preprocess images, with a mask of the image features."""
        found, features = super().prompts(texts, images, where), slice(_FIRST, _FIRST + _FEATURES)
        masks = [[0] * len(ids) for ids in found.ids]
        for mask, image in zip(masks, images, strict=True):
            if image is not None:
                mask[features] = [1] * _FEATURES
        return replace(found, aligned={_MASK: masks})

    def model_inputs(
        self, input_ids: Tensor, attention_mask: Tensor, answered: Tensor, images: dict[str, Tensor]
    ) -> dict[str, Any]:
        """Return the arguments of ``forward``, which needs the features of images or images."""
        shown = images or {"image_embeds": torch.zeros(0, 1, 1)}  # of no image
        return super().model_inputs(input_ids, attention_mask, answered, shown)

    def num_image_features(self, images: dict[str, Tensor], config: Any) -> int:
        """Return the number of image tokens of a batch of images."""
        return (1 + int(config.latent_query_num)) * len(images["pixel_values"])

    def load_model(self, source: str, model: ModelConfig) -> Any:
        """Load a checkpoint from safetensors."""
        loaded = super().load_model(source, model)
        loaded.text_model.model.register_forward_pre_hook(_add_positions, with_kwargs=True)
        return loaded


def _add_positions(
    decoder: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Add the positions of tokens to the arguments of ``Kosmos2TextTransformer.forward``."""
    mask, ids = kwargs.get("attention_mask"), kwargs.get("input_ids")
    if mask is not None and ids is not None and kwargs.get("position_ids") is None:
        positions = mask.cumsum(1) * mask + decoder.embed_positions.padding_idx
        kwargs["position_ids"] = positions[:, -ids.shape[1] :]
    return args, kwargs
