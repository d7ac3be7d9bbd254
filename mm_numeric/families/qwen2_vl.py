"""The Qwen2-VL model family.

Image         resized to multiples of 28 pixels; one token per 28 x 28 pixels (2 x 2 patches). The
              minimum and maximum number of pixels are set in ``model.image_size``; the defaults are
              in the checkpoint's image processor
Prompt        the checkpoint's chat template
Answer        the text, then ``<|im_end|>``
Coordinates   relative to the image, from 0 to 1000: ``<|box_start|>(x1,y1),(x2,y2)<|box_end|>``

The PIL version of the image processor is used, because the default one requires torchvision.
"""

from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor
from transformers import (
    ProcessorMixin,
    Qwen2VLForConditionalGeneration,
    Qwen2VLImageProcessorPil,
    Qwen2VLProcessor,
)
from transformers.models.auto.video_processing_auto import get_video_processor_config
from transformers.vision_utils import get_vision_attention_seqlens, get_vision_position_ids

from mm_numeric.compat import VideoSettings, video_settings_alone
from mm_numeric.config.schema import ModelConfig
from mm_numeric.families.chat_template import default_template, image_count
from mm_numeric.families.family import Family
from mm_numeric.families.model_files import processor_template
from mm_numeric.geometry.frames import Resize

IMAGE_TOKEN = "<|image_pad|>"
END_TOKEN = "<|im_end|>"
TEXT_END_TOKEN = "<|endoftext|>"


class Qwen2VL(Family):
    """Qwen2-VL models of all sizes, such as Qwen/Qwen2-VL-2B-Instruct."""

    name = "Qwen2-VL"
    model_class: ClassVar[Any] = Qwen2VLForConditionalGeneration
    processor_class: ClassVar[Any] = Qwen2VLProcessor
    default_coordinates = "qwen2_vl"
    takes_several_images = True
    image_settings = ("min_pixels", "max_pixels")
    image_inputs = ("pixel_values", "image_grid_thw")
    module_patterns: ClassVar = {
        **Family.module_patterns,
        "vision": r"model\.visual\.(?!merger\.)",
        "projector": r"model\.visual\.merger\.",
    }

    def __init__(self, tokenizer: Any, image_processor: Any, model: ModelConfig) -> None:
        super().__init__(tokenizer, image_processor, model)
        self.image_id = self.token_id(IMAGE_TOKEN)
        end_id, text_end_id = self.token_id(END_TOKEN), tokenizer.get_vocab().get(TEXT_END_TOKEN)
        self.stop_ids = [end_id] if text_end_id is None else [end_id, text_end_id]
        self.pad_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else end_id
        self.resize = Resize(
            kind="smart",
            factor=image_processor.patch_size * image_processor.merge_size,
            min_pixels=image_processor.size["shortest_edge"],
            max_pixels=image_processor.size["longest_edge"],
        )
        self._check_limits()
        self.chat_prompt("?", False)  # a missing chat template is an error before the weights load

    def tokenize_question(self, text: str, with_image: bool) -> list[int]:
        """Return a question's token ids, with one placeholder token in place of each image."""
        prompt = self.chat_prompt(text, with_image)
        ids: list[int] = self.tokenizer(prompt, add_special_tokens=False)["input_ids"]
        self.check_image_tokens(text, ids, with_image * image_count(text))
        return ids

    def model_inputs(
        self, input_ids: Tensor, attention_mask: Tensor, answered: Tensor, images: dict[str, Tensor]
    ) -> dict[str, Any]:
        """Return the model's arguments, including ``mm_token_type_ids`` (1 at image tokens)."""
        inputs = super().model_inputs(input_ids, attention_mask, answered, images)
        return {**inputs, "mm_token_type_ids": (input_ids == self.image_id).int()}

    def vision_inputs(self, sizes: Tensor, config: Any) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the positions of patches and, for flash attention, where each image ends."""
        copied = {"image_position_ids": get_vision_position_ids(sizes, config.spatial_merge_size)}
        ends, longest = get_vision_attention_seqlens(sizes, config)
        if longest is None:  # not flash attention: the model computes the ends from the sizes
            return copied, {}
        return {**copied, "image_cu_seqlens": ends}, {"image_max_seqlen": longest}

    def image_tokens(self, width: int, height: int) -> int:
        """Return the number of image tokens (merged patches) for an image of this size."""
        view = self.resize.view(width, height)
        return view.width_px * view.height_px // self.resize.factor**2

    def num_image_features(self, images: dict[str, Tensor], config: Any) -> int:
        """Return the number of image features (one per image token) of a batch."""
        patches = int(images["image_grid_thw"].prod(dim=1).sum())
        return patches // config.vision_config.spatial_merge_size**2

    def _check_limits(self) -> None:
        """Raise if ``max_pixels`` is below ``min_pixels`` or below the size of one image token."""
        least, most, factor = self.resize.min_pixels, self.resize.max_pixels, self.resize.factor
        if most < factor**2:
            raise ValueError(
                f"model.image_size.max_pixels: {most} is less than the smallest image of "
                f"{self.name}, {factor**2} pixels; set at least that."
            )
        if least > most:
            raise ValueError(
                f"model.image_size: min_pixels {least} is more than max_pixels {most} (the "
                "checkpoint's value where the config has none); set both, the smaller first."
            )

    @classmethod
    def load_tokenizer(cls, source: str, model: ModelConfig) -> Any:
        """Load the tokenizer. If it has no chat template, set the processor's template."""
        tokenizer = super().load_tokenizer(source, model)
        if not default_template(tokenizer.chat_template):
            tokenizer.chat_template = processor_template(source, model.revision)
        return tokenizer

    @classmethod
    def load_image_processor(cls, source: str, model: ModelConfig) -> Any:
        """Load the image processor, and set the pixel limits given in ``model.image_size``."""
        processor = Qwen2VLImageProcessorPil.from_pretrained(source, revision=model.revision)
        size = {
            "shortest_edge": model.image_size.get("min_pixels", processor.size["shortest_edge"]),
            "longest_edge": model.image_size.get("max_pixels", processor.size["longest_edge"]),
        }
        return Qwen2VLImageProcessorPil.from_dict({**processor.to_dict(), "size": size})

    def make_processor(self, source: str, model: ModelConfig) -> ProcessorMixin:
        """Return the processor, with the settings of the checkpoint's video processor.

        The video processor itself is not loaded, because it needs torchvision.
        """
        video = VideoSettings(get_video_processor_config(source, revision=model.revision))
        parts = self.image_processor, self.tokenizer, video
        with video_settings_alone():
            return self.processor_class(*parts, chat_template=self.tokenizer.chat_template)

    @classmethod
    def make_tiny(cls, folder: Path, seed: int) -> None:
        """Save a randomly initialised model with a million parameters."""
        from mm_numeric.families.tiny import make_tiny_qwen

        make_tiny_qwen(cls.model_class, folder, seed)
