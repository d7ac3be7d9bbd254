"""Load an image, and compute its frame, which converts pixels to coordinates for the model."""

from PIL import Image

from mm_numeric.answers import Example
from mm_numeric.data.image_cache import ImageCache
from mm_numeric.data.images import open_image
from mm_numeric.data.lengths import LengthLimit
from mm_numeric.families.family import Family
from mm_numeric.geometry.frames import Frame

FramedImage = tuple[Image.Image | None, Frame | None]
"""An image and its frame (how the model sees it); (None, None) if the row has no image."""


def load_framed_image(
    family: Family,
    example: Example,
    *,
    length_limit: LengthLimit | None = None,
    image_cache: ImageCache | None = None,
) -> FramedImage:
    """Load the image of an example and compute its frame; both are None without an image.

    The frame converts between pixels of the image and the coordinates that the model reads and
    writes. If the example exceeds the token limit ``length_limit``, the image is downscaled or
    ``TooLongError`` is raised. Images that are in ``image_cache`` are not decoded again.
    """
    if example.image is None:
        if length_limit is not None:
            length_limit.frame(example, None)
        return None, None
    if image_cache is None or not family.takes_images:
        image = open_image(example)
        size = image.size
    else:
        image, size = image_cache.open(family, example)
    check_declared_size(example, size)
    frame = compute_frame(family, example, size)
    limited = frame if length_limit is None else length_limit.frame(example, frame)
    if limited is not None and limited != frame:
        # Downscale the original: a cached image has been resized already.
        image = open_image(example) if image_cache is not None else image
        new_size = limited.view.width_px, limited.view.height_px
        return image.resize(new_size, family.image_processor.resample), limited
    return image, frame


def check_declared_size(example: Example, size: tuple[int, int]) -> None:
    """Raise ValueError if a sample states a wrong image size; ``size`` is the actual size."""
    if example.size_px not in (None, size):
        raise ValueError(
            f"{example.where}: the row declares width and height {example.size_px}, but the "
            f"upright image {example.image} (after its EXIF rotation) has {size}; correct the row."
        )


def compute_frame(family: Family, example: Example, size: tuple[int, int]) -> Frame:
    """Return the frame of an image, which converts pixels to coordinates for the model."""
    if not family.takes_images:
        raise ValueError(
            f"{example.where}: the row has an image, but model.family {family.name} accepts none; "
            "set model.family to one that does, or remove the image from the row."
        )
    try:
        return family.frame(*size)
    except ValueError as error:
        raise ValueError(f"{example.where}: {error}; crop it or remove its row.") from error
