"""Load an image, and compute its frame, which converts pixels to coordinates for the model."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from mm_numeric.answers import Example
from mm_numeric.data.image_cache import ImageCache
from mm_numeric.data.images import open_image, open_sized
from mm_numeric.families.chat_template import Shown
from mm_numeric.families.family import Family
from mm_numeric.geometry.frames import Frame

FramedImage = tuple[Shown, Frame | None]
"""The image of a row (or its images, all of one size), and the frame that converts pixels to
coordinates for the model; (None, None) if the row has no image."""


def load_framed_image(
    family: Family,
    example: Example,
    *,
    image_cache: ImageCache | None = None,
    fitted: Callable[[Frame | None], Frame | None] | None = None,
) -> FramedImage:
    """Load the images of an example and compute their frame; both are None without an image.

    Images that are in ``image_cache`` are not decoded again. ``fitted`` maps the usual frame to the
    frame to use, in which the image of a long sample is smaller.
    """
    if example.image is None:
        if fitted is not None:
            fitted(None)
        return None, None
    opened = []
    for source in example.images:
        own = replace(example, image=source)
        if image_cache is None or not family.takes_images:
            opened.append(open_sized(own))
        else:
            opened.append(image_cache.open(family, own))
    images, sizes = zip(*opened, strict=True)
    check_sizes(example, sizes)
    frame = compute_frame(family, example, sizes[0])
    if image_cache is None:
        # The image processor would compute the size of an image from its reduced size.
        images = tuple(
            image if image.size == size else family.resize_image_once(image, size)
            for image, size in opened
        )
    smaller = None if fitted is None else fitted(frame)
    if smaller is not None and smaller != frame:
        # Downscale the originals: cached images have been resized already.
        size = smaller.view.width_px, smaller.view.height_px
        if image_cache is not None:
            images = tuple(open_image(replace(example, image=own)) for own in example.images)
        images = tuple(image.resize(size, family.image_processor.resample) for image in images)
        frame = smaller
    return images if len(images) > 1 else images[0], frame


def check_sizes(example: Example, sizes: Sequence[tuple[int, int]]) -> None:
    """Raise ValueError if image sizes of a sample differ, or are not what the row declares."""
    if len(set(sizes)) > 1:
        raise ValueError(
            f"{example.where}: the images of a row have one size, and these have "
            f"{' and '.join(f'{w} x {h}' for w, h in dict.fromkeys(sizes))}; resize them."
        )
    size = sizes[0]
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
        raise ValueError(f"{example.where}: {error}; crop it or leave it out.") from error
