r"""LLaVA-1.5.

Image     padded to a square with the mean colour, then resized to the side of the vision tower
          (336); one token a patch. transformers' image processor would crop the middle out of a
          image instead: its padding is switched on here, its cropping off.
Prompt    the checkpoint's own chat template, or what that of llava-hf writes:
          ``USER: <image>\n... ASSISTANT:``
Answer    the text, then ``</s>``
Places    0 to 1 of the padded square, three decimals, ``[x1, y1, x2, y2]``

Checkpoints are loaded as transformers writes them, or in the layout of the LLaVA code itself: see
``mm_numeric.families.llava_layout``. There ``<unk>`` stands for the image: such a tokenizer has
no token for it, and a token of its own would need a row in the embeddings that is never looked at.
No text becomes ``<unk>``, because what the vocabulary lacks is written in bytes.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from PIL import Image
from torch import Tensor
from transformers import (
    LlamaTokenizer,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaImageProcessorPil,
)
from transformers.utils import has_file

from mm_numeric.compat import tokenizer_settings
from mm_numeric.config.schema import ModelConfig
from mm_numeric.families.family import Family
from mm_numeric.families.llava_layout import OriginalLayout, read_raw_config
from mm_numeric.geometry.frames import Resize


class Llava(Family):
    """The family of llava-hf/llava-1.5-7b-hf and liuhaotian/llava-v1.5-7b."""

    name = "LLaVA-1.5"
    model_class: ClassVar[Any] = LlavaForConditionalGeneration
    habit = "llava"
    parts: ClassVar = {
        "vision": r"model\.vision_tower\.",
        "projector": r"model\.multi_modal_projector\.",
        "embeddings": r"model\.language_model\.embed_tokens\.",
        "language": r"model\.language_model\.(?!embed_tokens\.)",
        "head": r"lm_head\.",
    }
    lora_targets = r"model\.language_model\.layers\.\d+\.(self_attn|mlp)\.\w+_proj"

    image_placeholder: ClassVar[str] = "<image>"
    """What stands for the image in the text of a prompt; a token, where the tokenizer has it."""

    projector_type: ClassVar[str] = "mlp2x_gelu"
    """``mm_projector_type`` in the configuration of a checkpoint in the original layout."""

    projector: ClassVar[Mapping[str, str]] = {"0": "linear_1", "2": "linear_2"}
    """The layers of its projector, and what ``model_class`` calls them."""

    def __init__(self, tokenizer: Any, image_processor: Any, model: ModelConfig) -> None:
        """Wrap the tokenizer and the image processor of a checkpoint; neither is changed."""
        super().__init__(tokenizer, image_processor, model)
        vocabulary = tokenizer.get_vocab()
        self.marks_are_tokens = self.image_placeholder in vocabulary
        stands_in = "<unk>" in vocabulary and not self.marks_are_tokens
        self.image_id = self.token_id("<unk>" if stands_in else self.image_placeholder)
        self.stop_ids = [tokenizer.eos_token_id]
        pad_id = tokenizer.pad_token_id
        # Padding is not to be taken for an image.
        self.pad_id = self.stop_ids[0] if pad_id in (None, self.image_id) else pad_id
        self.resize = Resize(kind="letterbox", side=image_processor.size["height"])

    @classmethod
    def _load_tokenizer(cls, source: str, model: ModelConfig) -> Any:
        """Load the tokenizer.

        Where there is only a tokenizer.model, AutoTokenizer makes one for the type ``llava`` that
        leaves out the space a text of LLaMA begins with: answers would be cut up otherwise than
        behind their prompts.
        """
        if has_file(source, "tokenizer.json", revision=model.revision):
            return super()._load_tokenizer(source, model)
        if not has_file(source, "tokenizer.model", revision=model.revision):
            raise ValueError(
                f"model.name: {source!r} has neither a tokenizer.json nor a tokenizer.model; give "
                "the folder of a complete checkpoint."
            )
        settings = tokenizer_settings(source, model.revision)
        begins = settings.get("add_bos_token", True)  # as LLaMA's does by default
        return LlamaTokenizer.from_pretrained(source, revision=model.revision, add_bos_token=begins)

    @classmethod
    def _load_image_processor(cls, source: str, model: ModelConfig) -> Any:
        """Load the image processor, set to what the vision tower sees.

        Its ``image_tokens`` is the number of features of an image, which the processor of
        transformers counts by the same rule.
        """
        config = cls.load_config(source, model)
        original = OriginalLayout.find(source, model.revision)
        source = source if original is None else str(original.tower)
        processor = LlavaImageProcessorPil.from_pretrained(source, revision=model.revision)
        side = config.vision_config.image_size
        changes = {
            "do_pad": True,
            "do_center_crop": False,
            "size": {"height": side, "width": side},
            "crop_size": {"height": side, "width": side},
            "image_tokens": _features(side, side, config),
        }
        return LlavaImageProcessorPil.from_dict({**processor.to_dict(), **changes})

    @classmethod
    def load_config(cls, source: str, model: ModelConfig) -> LlavaConfig:
        """Load the configuration of a checkpoint in either layout.

        Raises:
            ValueError: If it is of another class. Yi-VL's has the same configuration and other
                weights, which would be left out without a word.
        """
        original = OriginalLayout.find(source, model.revision)
        if original is not None:
            return original.config()
        raw, wanted = read_raw_config(source, model.revision), cls.model_class.__name__
        found = raw.get("architectures") or [raw.get("model_type")]
        if wanted not in found:
            raise ValueError(
                f"model.name: {source!r} is a checkpoint of {found[0]}, and model.family says "
                f"{cls.name}, which is {wanted}; set model.family to the family that it belongs to."
            )
        return LlavaConfig.from_dict(raw)

    @classmethod
    def make_tiny(cls, folder: Path, seed: int) -> None:
        """Make a model of half a million parameters; see ``mm_numeric.families.tiny_llava``."""
        from mm_numeric.families.tiny_llava import make_tiny_llava

        make_tiny_llava(folder, seed)

    def load_model(self, source: str, model: ModelConfig) -> Any:
        """Load the weights of a checkpoint in either layout, every one, from safetensors."""
        original = OriginalLayout.find(source, model.revision)
        if original is None:
            loaded = super().load_model(source, model)
        else:
            kind = (self.projector_type, self.projector)
            loaded = original.load_model(self.model_class, *kind, self.image_id, model)
        if loaded.config.image_token_id != self.image_id:
            raise ValueError(
                f"model.name: in {source!r} the tokenizer's token for an image is "
                f"{self.image_id}, and the model's is {loaded.config.image_token_id}; set "
                "image_token_index in its config.json to that of the tokenizer."
            )
        return loaded

    def as_seen(self, image: Image.Image) -> Image.Image:
        """Pad an image to a square and resize it, as the image processor does."""
        width, height = image.size
        side = max(width, height)
        colour = tuple(int(mean * 255) for mean in self.image_processor.image_mean)
        square = Image.new("RGB", (side, side), colour)
        square.paste(image, ((side - width) // 2, (side - height) // 2))
        return super().as_seen(square)

    def image_tokens(self, width: int, height: int) -> int:
        """Return the number of patches of the square."""
        return int(self.image_processor.image_tokens)

    def images(self, shown: Sequence[Image.Image]) -> dict[str, Tensor]:
        """Return images as padded squares, [n, 3, side, side]."""
        features = self.image_processor(images=list(shown), return_tensors="pt")
        return {"pixel_values": features["pixel_values"]}

    def features(self, images: dict[str, Tensor], config: Any) -> int:
        """Return the number of features, of all images together."""
        count, _, height, width = images["pixel_values"].shape
        return count * _features(height, width, config)

    def model_inputs(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        answered: Tensor,
        images: dict[str, Tensor],
    ) -> dict[str, Any]:
        """Return what ``LlavaForConditionalGeneration.forward`` takes for a padded batch."""
        return {"input_ids": input_ids, "attention_mask": attention_mask, **images}

    def prompt_text(self, text: str, with_image: bool) -> str:
        """Return a question as the model is asked it, without the token that begins a text."""
        if not self.tokenizer.chat_template:
            image = f"{self.image_placeholder}\n" if with_image else ""
            return f"USER: {image}{text} ASSISTANT:"
        content = [{"type": "image"}] if with_image else []
        written: str = self.tokenizer.apply_chat_template(
            [{"role": "user", "content": [*content, {"type": "text", "text": text}]}],
            add_generation_prompt=True,
            tokenize=False,
        )
        return written.removeprefix(self.tokenizer.bos_token or "")

    def _tokenised(self, text: str, with_image: bool) -> list[int]:
        """Return the tokens of a question, one placeholder standing for the image.

        Where the mark is no token, the text on either side of it is cut up by itself, as in the
        original code.
        """
        written = self.prompt_text(text, with_image)
        first, *rest = [written] if self.marks_are_tokens else written.split(self.image_placeholder)
        ids: list[int] = self.tokenizer(first)["input_ids"]
        for piece in rest:
            ids += [self.image_id, *self.tokenizer(piece, add_special_tokens=False)["input_ids"]]
        if ids.count(self.image_id) != with_image:
            raise ValueError(
                f"the prompt {written!r:.200} has {ids.count(self.image_id)} places for an image "
                f"instead of {int(with_image)}; take {self.image_placeholder} out of the question, "
                "or correct the chat template of the tokenizer."
            )
        return ids


def _features(height: int, width: int, config: LlavaConfig) -> int:
    """Return how many features a model with such a configuration makes of an image as seen."""
    vision = config.vision_config
    patches = (height // vision.patch_size) * (width // vision.patch_size)
    of_no_patch = int(vision.model_type == "clip_vision_model")
    return int(patches + of_no_patch - (config.vision_feature_select_strategy == "default"))
