"""The Florence-2 model family, an encoder-decoder model.

Image         resized to a square, usually of 768 pixels a side, without keeping the aspect ratio
Prompt        input of the encoder: the image tokens, ``<s>``, the question, ``</s>``. The processor
              replaces the name of a task, such as ``<CAPTION_TO_PHRASE_GROUNDING>``, by the
              sentence that the model was trained with
Answer        labels of the decoder: ``<s>``, the text, ``</s>``. The decoder's input is the same
              sequence shifted right, after ``decoder_start_token_id``
Coordinates   relative to the image, from 0 to 999, rounded down, one token each: ``<loc_12>...``

Use the checkpoints of florence-community, such as florence-community/Florence-2-base. Microsoft's
own checkpoints do not work, because their weights have other names.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor
from transformers import (
    CLIPImageProcessorPil,
    Florence2ForConditionalGeneration,
    Florence2Processor,
)

from mm_numeric.config.schema import ModelConfig
from mm_numeric.families.family import Family


class Florence2(Family):
    """Florence-2 models, such as florence-community/Florence-2-base."""

    name = "Florence-2"
    model_class: ClassVar[Any] = Florence2ForConditionalGeneration
    image_processor_class = CLIPImageProcessorPil
    default_coordinates = "florence2"
    encoder_decoder = True
    module_patterns: ClassVar[Mapping[str, str]] = {
        "vision": r"model\.vision_tower\.",
        "projector": r"model\.multi_modal_projector\.",
        "embeddings": r"model\.language_model\.(shared|(encoder|decoder)\.embed_tokens)\.",
        "language": r"model\.language_model\.(encoder|decoder)\.(?!embed_tokens\.)",
        "head": r"lm_head\.",
    }
    lora_targets = (
        r"model\.language_model\.(encoder|decoder)\.layers\.\d+\."
        r"((self_attn|encoder_attn)\.\w+_proj|fc[12])"
    )

    def __init__(self, tokenizer: Any, image_processor: Any, model: ModelConfig) -> None:
        super().__init__(tokenizer, image_processor, model)
        self.image_id = self.token_id("<image>")
        self.pad_id = self.token_id("<pad>")
        self.stop_ids = [self.token_id("</s>")]
        self.lead = "<s>"
        self.squash_to_square()

    def tokenize_question(self, text: str, with_image: bool) -> list[int]:
        """Return a question's token ids, with one placeholder token in place of the image."""
        processor: Any = self.processor
        _, (prompt,), *_ = processor.prepare_inputs_layout(images=[], text=[text])
        ids: list[int] = self.tokenizer(prompt, add_special_tokens=False)["input_ids"]
        self.check_image_tokens(text, ids, 1)
        return ids if with_image else ids[1:]

    def num_image_features(self, images: dict[str, Tensor], config: Any) -> int:
        """Return the number of image features: one for each patch, and one mean per image."""
        count, _, *edges = images["pixel_values"].shape
        features = count
        for edge in edges:
            for stride in config.vision_config.patch_stride:
                edge = -(-edge // stride)
            features *= edge
        return features + count

    def make_processor(self, source: str, model: ModelConfig) -> Florence2Processor:
        """Return a Florence2Processor, which writes the prompt of a question."""
        settings, _ = Florence2Processor.get_processor_dict(source, revision=model.revision)
        own = ("num_additional_image_tokens", "post_processor_config")
        options = {name: settings[name] for name in own if name in settings}
        return Florence2Processor(self.image_processor, self.tokenizer, **options)
