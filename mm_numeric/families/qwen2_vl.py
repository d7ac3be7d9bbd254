"""Qwen2-VL.

Picture   smart-resize to multiples of patch size x merge size, between the pixel limits that the
          checkpoint's image processor holds; one token for each merged patch
Prompt    the checkpoint's own chat template
Answer    the text, then ``<|im_end|>``

The tokenizer and the image processor are loaded one by one, and the image processor on its PIL
backend: Qwen2VLProcessor cannot be made without torchvision, which its video processor needs.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from PIL import Image
from torch import Tensor
from transformers import AutoTokenizer, Qwen2VLForConditionalGeneration, Qwen2VLImageProcessorPil

from mm_numeric.families.family import Prompts, Tokens
from mm_numeric.frames import Frame

IMAGE_TOKEN = "<|image_pad|>"
END_TOKEN = "<|im_end|>"


class Qwen2VL:
    """The family of Qwen/Qwen2-VL-2B-Instruct and its sizes."""

    def __init__(self, tokenizer: Any, image_processor: Any) -> None:
        """Wrap the tokenizer and the image processor of a checkpoint; neither is changed."""
        self.tokenizer = tokenizer
        self.image_processor = image_processor
        self.image_id = self._id(IMAGE_TOKEN)
        end_id = self._id(END_TOKEN)
        self.pad_id: int = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else end_id
        self.stop_ids = [end_id]
        self._prompt_ids: dict[str, list[int]] = {}

    @classmethod
    def load(cls, source: str, revision: str = "main") -> Self:
        """Load tokenizer and image processor of a checkpoint."""
        return cls(
            AutoTokenizer.from_pretrained(source, revision=revision),
            Qwen2VLImageProcessorPil.from_pretrained(source, revision=revision),
        )

    @classmethod
    def make_tiny(cls, folder: Path, seed: int) -> None:
        """Make a model of a million parameters from code; see ``mm_numeric.families.tiny``."""
        from mm_numeric.families.tiny import make_tiny_qwen2_vl

        make_tiny_qwen2_vl(folder, seed)

    def load_model(self, source: str, revision: str, dtype: str, attention: str) -> Any:
        """Load the weights of a checkpoint, from safetensors."""
        return Qwen2VLForConditionalGeneration.from_pretrained(
            source,
            revision=revision,
            dtype=dtype,
            attn_implementation=attention,
            use_safetensors=True,
        )

    def prompts(self, texts: Sequence[str], pictures: Sequence[Image.Image]) -> Prompts:
        """Write questions, each about a picture."""
        features = self.image_processor(images=list(pictures), return_tensors="pt")
        grids = features["image_grid_thw"]
        ids = []
        for text, patches in zip(texts, grids.prod(dim=1).tolist(), strict=True):
            written = self._written(text)
            at = written.index(self.image_id)
            placeholders = [self.image_id] * (patches // self.image_processor.merge_size**2)
            ids.append([*written[:at], *placeholders, *written[at + 1 :]])
        pixels = {"pixel_values": features["pixel_values"], "image_grid_thw": grids}
        return Prompts(ids=ids, pictures=pixels)

    def frame(self, width: int, height: int) -> Frame:
        """Return how a picture of so many pixels is seen."""
        size = self.image_processor.size
        return Frame.smart_resize(
            width,
            height,
            factor=self.image_processor.patch_size * self.image_processor.merge_size,
            min_pixels=size["shortest_edge"],
            max_pixels=size["longest_edge"],
        )

    def answer(self, text: str) -> Tokens:
        """Write an answer and its end."""
        tokens = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        offsets = [(start, end) for start, end in tokens["offset_mapping"]]
        return Tokens(ids=[*tokens["input_ids"], self.stop_ids[0]], offsets=[*offsets, (0, 0)])

    def model_inputs(
        self, input_ids: Tensor, attention_mask: Tensor, pictures: dict[str, Tensor]
    ) -> dict[str, Any]:
        """Return what ``Qwen2VLForConditionalGeneration.forward`` takes for a padded batch."""
        return {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "mm_token_type_ids": (input_ids == self.image_id).int(),
            **pictures,
        }

    def save(self, folder: Path) -> None:
        """Save tokenizer and image processor beside the weights."""
        self.tokenizer.save_pretrained(folder)
        self.image_processor.save_pretrained(folder)

    def _written(self, text: str) -> list[int]:
        """Return the tokens of a question, one placeholder standing for the picture."""
        if text not in self._prompt_ids:
            self._prompt_ids[text] = self._tokenised(text)
        return self._prompt_ids[text]

    def _tokenised(self, text: str) -> list[int]:
        content = [{"type": "image"}, {"type": "text", "text": text}]
        written = self.tokenizer.apply_chat_template(
            [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=False
        )
        return self.tokenizer(written, add_special_tokens=False)["input_ids"]

    def _id(self, token: str) -> int:
        """Return the id of a token that every checkpoint of this family has."""
        vocabulary = self.tokenizer.get_vocab()
        if token not in vocabulary:
            name = self.tokenizer.name_or_path
            raise ValueError(
                f"model.family: the tokenizer of {name} has no {token}, so it is not a Qwen2-VL "
                "checkpoint; set model.family to the family that it belongs to."
            )
        return vocabulary[token]
