"""Base class for the images of a model family: resizing, image tokens, coordinate systems."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from PIL import Image
from torch import Tensor

from mm_numeric.geometry.coordinates import Coordinates
from mm_numeric.geometry.frames import Frame, Resize


class ImageGeometry(ABC):
    """Base class of ``Family`` that handles images: resizing, image tokens, coordinate systems."""

    default_coordinates: ClassVar[str] = "pixels_original"
    """How coordinates were written in the pretraining of the family: a name in ``COORDINATES``."""

    takes_images: ClassVar[bool] = True
    """True if models of the family accept images."""

    takes_several_images: ClassVar[bool] = False
    """True if a question may have several images, such as frames of a video."""

    image_settings: ClassVar[tuple[str, ...]] = ()
    """Names of the settings that ``model.image_size`` may have, such as ``max_pixels``."""

    image_inputs: ClassVar[tuple[str, ...]] = ("pixel_values",)
    """Names of the image processor's outputs that are passed to the model."""

    image_processor: Any

    resize: Resize
    coordinates: Coordinates

    def frame(self, width: int, height: int) -> Frame:
        """Return how an image of this size is resized and how its coordinates are written.

        Raises:
            ValueError: If the family cannot resize an image of this size.
        """
        return Frame(width, height, self.resize.view(width, height), self.coordinates)

    def resize_image(self, image: Image.Image) -> Image.Image:
        """Resize an image to the same size and with the same filter as the image processor."""
        view = self.resize.view(*image.size)
        return image.resize((view.width_px, view.height_px), self.image_processor.resample)

    def resize_image_once(self, image: Image.Image) -> Image.Image:
        """Resize an image, or return it as it is if the processor would then resize it again.

        Whoever applies the image processor to the result computes the same pixels as for the
        original. (With Qwen, a second resize may change the size if ``min_pixels`` is close to
        ``max_pixels``.)
        """
        resized = self.resize_image(image)
        view = self.resize.view(*resized.size)
        return resized if (view.width_px, view.height_px) == resized.size else image

    @abstractmethod
    def image_tokens(self, width: int, height: int) -> int:
        """Return the number of placeholder tokens for an image of ``width`` x ``height`` pixels."""

    def images(self, shown: Sequence[Image.Image]) -> dict[str, Tensor]:
        """Apply the image processor to one or more images, and return its outputs as a batch."""
        features = self.image_processor(images=list(shown), return_tensors="pt")
        return {name: features[name] for name in self.image_inputs}

    @abstractmethod
    def num_image_features(self, images: dict[str, Tensor], config: Any) -> int | None:
        """Return the number of image features that the model computes for preprocessed images.

        None if the family does not know it.
        """
