"""How the image of a row is seen: opened, framed, and made smaller where its row is too long."""

from PIL import Image

from mm_numeric.answers import Example
from mm_numeric.data.image_cache import ImageCache
from mm_numeric.data.images import open_image
from mm_numeric.data.lengths import Fit
from mm_numeric.families.family import Family
from mm_numeric.geometry.frames import Frame

Seen = tuple[Image.Image | None, Frame | None]
"""An image, and the frame that it is seen in."""


def framed(
    family: Family,
    example: Example,
    *,
    fit: Fit | None = None,
    cache: ImageCache | None = None,
) -> Seen:
    """Load the image of an example, and say how it is seen; None for one without an image.

    Args:
        family: Who sees it.
        example: With its image.
        fit: What is done where the row is too long; None where no row is.
        cache: Where images are kept as the family sees them.

    Raises:
        TooLongError: If the row is too long.
        ValueError: If the image cannot be read, is of another size than its row says, or has no
            place in the family's frame.
    """
    if example.image is None:
        if fit is not None:
            fit.frame(example, None)
        return None, None
    if cache is None or not family.takes_images:
        image = open_image(example)
        size = image.size
    else:
        image, size = cache.open(family, example)
    refuse_other_size(example, size)
    frame = frame_of(family, example, size)
    fitted = frame if fit is None else fit.frame(example, frame)
    if fitted is not None and fitted != frame:
        image = open_image(example) if cache is not None else image
        seen = fitted.view.width_px, fitted.view.height_px
        return image.resize(seen, family.image_processor.resample), fitted
    return image, frame


def refuse_other_size(example: Example, size: tuple[int, int]) -> None:
    """Refuse a row that says another size than its upright image has.

    Raises:
        ValueError: If it does: its coordinates would be those of another image.
    """
    if example.size_px not in (None, size):
        raise ValueError(
            f"{example.where}: the row says width and height {example.size_px}, and the upright "
            f"image {example.image} has {size}; coordinates are those of the upright image (as "
            "its EXIF says): correct the row."
        )


def frame_of(family: Family, example: Example, size: tuple[int, int]) -> Frame:
    """Return how an image of so many pixels is seen.

    Raises:
        ValueError: If it has no place in the family's frame, or the family takes no images.
    """
    if not family.takes_images:
        raise ValueError(
            f"{example.where}: the row has an image, and model.family {family.name} takes none; "
            "set model.family to one that does, or take the image out of the row."
        )
    try:
        return family.frame(*size)
    except ValueError as error:
        raise ValueError(f"{example.where}: {error}; crop it or take its row out.") from error
