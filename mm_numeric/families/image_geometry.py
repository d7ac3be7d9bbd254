"""Image geometry: how a family resizes images, and in which frame it writes coordinates."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from PIL import Image
from torch import Tensor

from mm_numeric.geometry.coordinates import Coordinates
from mm_numeric.geometry.frames import Frame, Resize


class ImageGeometry(ABC):
    """The image side of a family: resizing, image tokens and coordinate frames."""

    default_coordinates: ClassVar[str] = "pixels_original"
    """The coordinate format of the family's pretraining: a key of ``COORDINATES``."""

    takes_images: ClassVar[bool] = True
    """Whether the family accepts images."""

    image_settings: ClassVar[tuple[str, ...]] = ()
    """Fields of ``Resize`` that ``model.image_size`` may change."""

    image_inputs: ClassVar[tuple[str, ...]] = ("pixel_values",)
    """Outputs of the image processor that the model needs."""

    image_processor: Any

    resize: Resize
    coordinates: Coordinates

    def frame(self, width: int, height: int) -> Frame:
        """Return the coordinate frame of an upright image of this size in pixels.

        Raises:
            ValueError: If the family cannot resize an image of this size.
        """
        return Frame(width, height, self.resize.view(width, height), self.coordinates)

    def resize_image(self, image: Image.Image) -> Image.Image:
        """Resize an image exactly as the image processor does, which then leaves it unchanged."""
        view = self.resize.view(*image.size)
        return image.resize((view.width_px, view.height_px), self.image_processor.resample)

    @abstractmethod
    def image_tokens(self, width: int, height: int) -> int:
        """Return the number of placeholders of an image of this size in the prompt."""

    def images(self, shown: Sequence[Image.Image]) -> dict[str, Tensor]:
        """Return the image processor's output for one or more images, as one batch."""
        features = self.image_processor(images=list(shown), return_tensors="pt")
        return {name: features[name] for name in self.image_inputs}

    @abstractmethod
    def num_image_features(self, images: dict[str, Tensor], config: Any) -> int:
        """Return how many image features a model of this config computes from ``images``."""
