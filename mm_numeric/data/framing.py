"""How the picture of a row is seen: opened, framed, and made smaller where its row is too long."""

from PIL import Image

from mm_numeric.answers import Example
from mm_numeric.data.image_cache import PictureCache
from mm_numeric.data.images import open_picture
from mm_numeric.data.lengths import Fit
from mm_numeric.families.family import Family
from mm_numeric.geometry.frames import Frame

Seen = tuple[Image.Image | None, Frame | None]
"""A picture, and the frame that it is seen in."""


def framed(
    family: Family,
    example: Example,
    *,
    fit: Fit | None = None,
    cache: PictureCache | None = None,
) -> Seen:
    """Load the picture of an example, and say how it is seen; None for one without a picture.

    Args:
        family: Who sees it.
        example: With its picture.
        fit: What is done where the row is too long; None where no row is.
        cache: Where pictures are kept as the family sees them.

    Raises:
        TooLongError: If the row is too long.
        ValueError: If the picture cannot be read, is of another size than its row says, or has no
            place in the family's frame.
    """
    if example.image is None:
        if fit is not None:
            fit.frame(example, None)
        return None, None
    if cache is None or not family.takes_pictures:
        picture = open_picture(example)
        size = picture.size
    else:
        picture, size = cache.open(family, example)
    refuse_other_size(example, size)
    frame = frame_of(family, example, size)
    fitted = frame if fit is None else fit.frame(example, frame)
    if fitted is not None and fitted != frame:
        picture = open_picture(example) if cache is not None else picture
        seen = fitted.view.width_px, fitted.view.height_px
        return picture.resize(seen, family.image_processor.resample), fitted
    return picture, frame


def refuse_other_size(example: Example, size: tuple[int, int]) -> None:
    """Refuse a row that says another size than its upright picture has.

    Raises:
        ValueError: If it does: its coordinates would be those of another picture.
    """
    if example.size_px not in (None, size):
        raise ValueError(
            f"{example.where}: the row says width and height {example.size_px}, and the upright "
            f"picture {example.image} has {size}; coordinates are those of the upright picture (as "
            "its EXIF says): correct the row."
        )


def frame_of(family: Family, example: Example, size: tuple[int, int]) -> Frame:
    """Return how a picture of so many pixels is seen.

    Raises:
        ValueError: If it has no place in the family's frame, or the family takes no pictures.
    """
    if not family.takes_pictures:
        raise ValueError(
            f"{example.where}: the row has a picture, and model.family {family.name} takes none; "
            "set model.family to one that does, or take the picture out of the row."
        )
    try:
        return family.frame(*size)
    except ValueError as error:
        raise ValueError(f"{example.where}: {error}; crop it or take its row out.") from error
