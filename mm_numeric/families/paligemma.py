"""PaliGemma 1 and 2.

Image     squashed to the square that the checkpoint was made for (224, 448 or 896 pixels a side);
          one token a patch, as many as the image processor's ``image_seq_length`` says
Prompt    ``<image>`` for each patch, ``<bos>``, the question, a line break
Answer    the text, then ``<eos>``
Places    0 to 1023 of the image, y first, one token each: ``<loc0012><loc0345>...``

The question is seen in both directions and the answer in one. ``token_type_ids`` (0 in the
question, 1 in the answer) is all that transformers (5.23) needs for it, in training as in
generation. Without it eager attention sees both in one direction, and sdpa, in a batch without
padding, both in both: answers would be trained on while they are seen.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from PIL import Image
from torch import Tensor
from transformers import AutoConfig, PaliGemmaForConditionalGeneration, SiglipImageProcessorPil

from mm_numeric.config.schema import ModelConfig
from mm_numeric.families.family import Family
from mm_numeric.geometry.frames import Resize

IMAGE_TOKEN = "<image>"


class PaliGemma(Family):
    """The family of google/paligemma-3b-pt-224, google/paligemma2-3b-pt-224 and their sizes."""

    name = "PaliGemma"
    model_class: ClassVar[Any] = PaliGemmaForConditionalGeneration
    habit = "paligemma"
    parts: ClassVar = {
        "vision": r"model\.vision_tower\.",
        "projector": r"model\.multi_modal_projector\.",
        "embeddings": r"model\.language_model\.embed_tokens\.",
        "language": r"model\.language_model\.(?!embed_tokens\.)",
        "head": r"lm_head\.",
    }
    lora_targets = r"model\.language_model\.layers\.\d+\.(self_attn|mlp)\.\w+_proj"

    def __init__(self, tokenizer: Any, image_processor: Any, model: ModelConfig) -> None:
        """Wrap the tokenizer and the image processor of a checkpoint; neither is changed."""
        super().__init__(tokenizer, image_processor, model)
        self.image_id = self.token_id(IMAGE_TOKEN)
        self.token_id("<bos>")
        self.pad_id = self.token_id("<pad>")
        self.stop_ids = [self.token_id("<eos>")]
        size = image_processor.size
        patches = getattr(image_processor, "image_seq_length", None)
        if patches is None or size["height"] != size["width"]:
            raise ValueError(
                f"model.family: the image processor of {tokenizer.name_or_path} has size "
                f"{dict(size)} and image_seq_length {patches}, where that of {self.name} has "
                "a square and a number; set model.family to the family that it belongs to."
            )
        self.patches: int = patches
        self.resize = Resize(kind="squash", side=size["height"])

    @classmethod
    def _load_image_processor(cls, source: str, model: ModelConfig) -> Any:
        return SiglipImageProcessorPil.from_pretrained(source, revision=model.revision)

    @classmethod
    def make_tiny(cls, folder: Path, seed: int) -> None:
        """Make a small PaliGemma 1 from code; see ``mm_numeric.families.tiny_paligemma``."""
        from mm_numeric.families.tiny_paligemma import make_tiny_paligemma

        make_tiny_paligemma(folder, seed)

    def load_model(self, source: str, model: ModelConfig) -> Any:
        """Load the weights of a checkpoint, every one, from safetensors.

        Raises:
            ValueError: If the attention that is asked for cannot do what the checkpoint needs.
        """
        if model.attention not in ("sdpa", "eager"):
            # transformers would run flash attention, and let an answer see what is behind it.
            raise ValueError(
                f"model.attention: {self.name} sees the question in both directions and the "
                f"answer in one, which sdpa and eager can do; set it to one of them, not "
                f"{model.attention}."
            )
        config = AutoConfig.from_pretrained(
            source, revision=model.revision, trust_remote_code=model.trust_remote_code
        )
        if model.attention == "sdpa" and config.get_text_config().model_type == "gemma2":
            raise ValueError(
                f"model.attention: {source!r} is a PaliGemma 2, whose attention has soft-capped "
                "logits, which sdpa cannot do; set model.attention to eager."
            )
        return super().load_model(source, model)

    def image_tokens(self, width: int, height: int) -> int:
        """Return the number of patches, the same for every image."""
        return self.patches

    def _tokenised(self, text: str, with_image: bool) -> list[int]:
        """Return the tokens of a question, one placeholder standing for the image."""
        ids: list[int] = self.tokenizer(f"<bos>{text}\n", add_special_tokens=False)["input_ids"]
        if self.image_id in ids:
            raise ValueError(
                f"the prompt {text!r:.80} holds {IMAGE_TOKEN}, which is put before the question by "
                "itself, once for each patch of its image; take it out of the prompt."
            )
        return [self.image_id] * with_image + ids

    def images(self, shown: Sequence[Image.Image]) -> dict[str, Tensor]:
        """Return images as squares, [n, 3, side, side]."""
        features = self.image_processor(images=list(shown), return_tensors="pt")
        return {"pixel_values": features["pixel_values"]}

    def features(self, images: dict[str, Tensor], config: Any) -> int:
        """Return the number of patches, of all images together."""
        count, _, height, width = images["pixel_values"].shape
        patch = config.vision_config.patch_size
        return count * (height // patch) * (width // patch)

    def model_inputs(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        answered: Tensor,
        images: dict[str, Tensor],
    ) -> dict[str, Any]:
        """Return what ``PaliGemmaForConditionalGeneration.forward`` takes for a padded batch."""
        return {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "token_type_ids": answered.long(),
            **images,
        }
