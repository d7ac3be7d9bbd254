"""Qwen2-VL.

Image     smart-resize to multiples of patch size x merge size, between the pixel limits that the
          checkpoint's image processor holds or ``model.image_size`` sets; one token a merged patch
Prompt    the checkpoint's own chat template
Answer    the text, then ``<|im_end|>``
Places    0 to 1000 of the image, ``<|box_start|>(x1,y1),(x2,y2)<|box_end|>``

The tokenizer and the image processor are loaded one by one, and the image processor on its PIL
backend: Qwen2VLProcessor cannot be made without torchvision, which its video processor needs.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from PIL import Image
from torch import Tensor
from transformers import Qwen2VLForConditionalGeneration, Qwen2VLImageProcessorPil

from mm_numeric.config.schema import ModelConfig
from mm_numeric.families.family import Family
from mm_numeric.geometry.frames import Resize

IMAGE_TOKEN = "<|image_pad|>"
END_TOKEN = "<|im_end|>"
TEXT_END_TOKEN = "<|endoftext|>"


class Qwen2VL(Family):
    """The family of Qwen/Qwen2-VL-2B-Instruct and its sizes."""

    name = "Qwen2-VL"
    model_class: ClassVar[Any] = Qwen2VLForConditionalGeneration
    habit = "qwen2_vl"
    image_settings = ("min_pixels", "max_pixels")
    parts: ClassVar = {
        "vision": r"model\.visual\.(?!merger\.)",
        "projector": r"model\.visual\.merger\.",
        "embeddings": r"model\.language_model\.embed_tokens\.",
        "language": r"model\.language_model\.(?!embed_tokens\.)",
        "head": r"lm_head\.",
    }
    lora_targets = r"model\.language_model\.layers\.\d+\.(self_attn|mlp)\.\w+_proj"

    def __init__(self, tokenizer: Any, image_processor: Any, model: ModelConfig) -> None:
        """Wrap the tokenizer and the image processor of a checkpoint; neither is changed."""
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

    @classmethod
    def _load_image_processor(cls, source: str, model: ModelConfig) -> Any:
        processor = Qwen2VLImageProcessorPil.from_pretrained(source, revision=model.revision)
        size = {
            "shortest_edge": model.image_size.get("min_pixels", processor.size["shortest_edge"]),
            "longest_edge": model.image_size.get("max_pixels", processor.size["longest_edge"]),
        }
        return Qwen2VLImageProcessorPil.from_dict({**processor.to_dict(), "size": size})

    @classmethod
    def make_tiny(cls, folder: Path, seed: int) -> None:
        """Make a model of a million parameters from code."""
        from mm_numeric.families.tiny_qwen import make_tiny_qwen

        make_tiny_qwen(cls.model_class, folder, seed)

    def image_tokens(self, width: int, height: int) -> int:
        """Return the number of merged patches."""
        view = self.resize.view(width, height)
        return view.width_px * view.height_px // self.resize.factor**2

    def images(self, shown: Sequence[Image.Image]) -> dict[str, Tensor]:
        """Return the patches of images, and how many there are in each direction."""
        features = self.image_processor(images=list(shown), return_tensors="pt")
        return {name: features[name] for name in ("pixel_values", "image_grid_thw")}

    def features(self, images: dict[str, Tensor], config: Any) -> int:
        """Return the number of merged patches, of all images together."""
        patches = int(images["image_grid_thw"].prod(dim=1).sum())
        return patches // config.vision_config.spatial_merge_size**2

    def model_inputs(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        answered: Tensor,
        images: dict[str, Tensor],
    ) -> dict[str, Any]:
        """Return what the forward of these models takes for a padded batch."""
        return {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "mm_token_type_ids": (input_ids == self.image_id).int(),
            **images,
        }

    def _tokenised(self, text: str, with_image: bool) -> list[int]:
        """Return the tokens of a question, one placeholder standing for the image."""
        content = [{"type": "image"}] if with_image else []
        written = self.tokenizer.apply_chat_template(
            [{"role": "user", "content": [*content, {"type": "text", "text": text}]}],
            add_generation_prompt=True,
            tokenize=False,
        )
        ids: list[int] = self.tokenizer(written, add_special_tokens=False)["input_ids"]
        if ids.count(self.image_id) != with_image:
            raise ValueError(
                f"model.name: the chat template of {self.tokenizer.name_or_path} writes "
                f"{ids.count(self.image_id)} {IMAGE_TOKEN} for a question with "
                f"{int(with_image)} images ({text!r:.60}); take the token out of the question, "
                f"or give a checkpoint whose template is that of {self.name}."
            )
        return ids

    def _check_limits(self) -> None:
        """Refuse pixel limits that no image can be resized to.

        Raises:
            ValueError: If the smaller is the larger, or the larger not even one merged patch.
        """
        least, most, factor = self.resize.min_pixels, self.resize.max_pixels, self.resize.factor
        if most < factor**2:
            raise ValueError(
                f"model.image_size.max_pixels: {most} is less than the smallest image that "
                f"{self.name} sees, {factor} x {factor} = {factor**2} pixels; give at least that."
            )
        if least > most:
            raise ValueError(
                f"model.image_size: min_pixels {least} is more than max_pixels {most} (what is not "
                "set is as the checkpoint says); set both, the smaller first."
            )
