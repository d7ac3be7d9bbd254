"""The PaliGemma model family (PaliGemma 1 and 2).

Image         resized to a square of 224, 448 or 896 pixels a side (depends on the checkpoint),
              without keeping the aspect ratio; one token per patch
Prompt        one ``<image>`` per patch, then ``<bos>``, the question, a line break
Answer        the text, then ``<eos>``
Coordinates   relative to the image, from 0 to 1023, y first, one token each: ``<loc0012>...``

Attention must be bidirectional over the question and causal over the answer. transformers (5.23)
needs ``token_type_ids`` (0 in the question, 1 in the answer) for this. Without them, eager
attention is causal everywhere. sdpa attention is then bidirectional everywhere if the batch has no
padding, so that the model sees the answer that it is trained to predict.
"""

from typing import Any, ClassVar

from torch import Tensor
from transformers import (
    PaliGemmaForConditionalGeneration,
    PaliGemmaProcessor,
    SiglipImageProcessorPil,
)

from mm_numeric.config.schema import ModelConfig
from mm_numeric.families.family import Family

IMAGE_TOKEN = "<image>"


class PaliGemma(Family):
    """PaliGemma models of all sizes, such as google/paligemma-3b-pt-224."""

    name = "PaliGemma"
    model_class: ClassVar[Any] = PaliGemmaForConditionalGeneration
    image_processor_class = SiglipImageProcessorPil
    processor_class = PaliGemmaProcessor
    default_coordinates = "paligemma"
    image_prefix = IMAGE_TOKEN

    def __init__(self, tokenizer: Any, image_processor: Any, model: ModelConfig) -> None:
        super().__init__(tokenizer, image_processor, model)
        self.image_id = self.token_id(IMAGE_TOKEN)
        self.token_id("<bos>")
        self.pad_id = self.token_id("<pad>")
        self.stop_ids = [self.token_id("<eos>")]
        self.squash_to_square()

    def tokenize_question(self, text: str, with_image: bool) -> list[int]:
        """Return a question's token ids, with one placeholder token in place of the image."""
        ids: list[int] = self.tokenizer(f"<bos>{text}\n", add_special_tokens=False)["input_ids"]
        self.check_image_tokens(text, ids, 0)
        return [self.image_id] * with_image + ids

    def model_inputs(
        self, input_ids: Tensor, attention_mask: Tensor, answered: Tensor, images: dict[str, Tensor]
    ) -> dict[str, Any]:
        """Return the arguments of ``forward``; ``token_type_ids`` is 1 for answer tokens."""
        inputs = super().model_inputs(input_ids, attention_mask, answered, images)
        return {**inputs, "token_type_ids": answered.long()}

    def num_image_features(self, images: dict[str, Tensor], config: Any) -> int:
        """Return the total number of patches of a batch of images."""
        count, _, height, width = images["pixel_values"].shape
        patch = config.vision_config.patch_size
        return count * (height // patch) * (width // patch)

    def load_model(self, source: str, model: ModelConfig) -> Any:
        """Load a checkpoint from safetensors, and check that ``model.attention`` is supported."""
        if model.attention not in ("sdpa", "eager"):
            # transformers would run flash attention, in which answer tokens see later tokens.
            raise ValueError(
                f"model.attention: {model.attention} cannot compute the attention of {self.name} "
                "(bidirectional over the question, causal over the answer); set sdpa or eager."
            )
        text = self.load_config(source, model).get_text_config()
        if model.attention == "sdpa" and text.model_type == "gemma2":
            raise ValueError(
                f"model.attention: sdpa cannot soft-cap the logits of {source!r}, a PaliGemma 2; "
                "set model.attention to eager."
            )
        return super().load_model(source, model)
