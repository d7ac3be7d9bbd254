"""A model on a server that returns only answers, for ``predict --endpoint``.

Prompt    the text of the task; the server applies its own chat template
Images    as they are, or resized as by Qwen2.5-VL if coordinates are pixels of the resized image
Frame     ``model.coordinates``, a required setting for tasks whose answers are coordinates
"""

from typing import Any, NoReturn, Self

from PIL import Image

from mm_numeric.config.schema import ModelConfig
from mm_numeric.families.family import Family
from mm_numeric.geometry.frame_presets import FAMILY_RESIZES, AreaLimits
from mm_numeric.geometry.frames import Resize
from mm_numeric.registry import API


class Api(Family):
    """A model on a server. It has no weights, processor or tokenizer, and cannot be trained."""

    name = API
    takes_several_images = True
    image_settings = ("min_pixels", "max_pixels")

    def __init__(self, tokenizer: Any, image_processor: Any, model: ModelConfig) -> None:
        super().__init__(tokenizer, image_processor, model)
        self.stop_ids = []
        self.resize = Resize(kind="none")
        if isinstance(model.coordinates, str) and model.coordinates in FAMILY_RESIZES:
            self.resize = FAMILY_RESIZES[model.coordinates]
        elif self.coordinates.space == "resized" and self.coordinates.max_value is None:
            self.resize = FAMILY_RESIZES["qwen2_5_vl"]
        if model.image_size:
            if self.resize.kind != "smart":
                raise ValueError(
                    "model.image_size: these coordinates do not depend on the size of a resized "
                    "image; remove it."
                )
            limits = AreaLimits(**model.image_size)
            self.resize = limits.applied(self.resize, "model.image_size")

    @classmethod
    def load(cls, source: str, model: ModelConfig) -> Self:
        """Return the family without loading any file of ``source``."""
        return cls(None, None, model)

    def resize_image(self, image: Image.Image, size: tuple[int, int] | None = None) -> Image.Image:
        """Resize an image like Qwen2.5-VL if coordinates are pixels of the resized image.

        Otherwise return the image in its original ``size``, even if it was downscaled at loading.
        """
        size = size or image.size
        if self.resize.kind != "smart":
            return image if image.size == size else image.resize(size)
        view = self.resize.view(*size)
        return image.resize((view.width_px, view.height_px), Image.Resampling.BICUBIC)

    def tokenize_question(self, text: str, with_image: bool) -> NoReturn:
        """Raise ValueError, because there is no tokenizer."""
        raise ValueError(f"model.family: {self.name} has no tokenizer; name another family.")
