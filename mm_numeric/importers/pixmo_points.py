"""Import PixMo-Points: rows of allenai/pixmo-points, saved as JSON lines.

    {"image_url": "https://...", "image_sha256": "...", "label": "dogs", "count": 2,
     "points": [{"x": 35.5, "y": 40.2}, {"x": 70.0, "y": 38.9}], "collection_method": "pointing"}

``datasets`` writes them with ``to_json``. Rows of allenai/pixmo-points-eval have ``masks``, too:
for each point the pixels of its object, [points, height, width], as true and false.

Points are in percent of width and height, so that ``--images`` is needed: ``point_scale=100`` in
the classes ``PixMoPoints`` and ``PixMoPointsEval`` of https://github.com/allenai/molmo,
olmo/data/pixmo_datasets.py, although the card of the data set says pixels. The file name of an
image is the SHA-256 of its URL, as ``download_pixmo_urls`` of olmo/data/download_urls.py saves it;
a row may have another one in ``image``.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mm_numeric.geometry.masks import mask_of, mask_row
from mm_numeric.importers.importer import (
    ImageImporter,
    InvalidRowError,
    parse_number_list,
    parse_text,
    round_coordinates,
    shorten,
    text_field,
)

_PERCENT = 100
_BEYOND = 1  # percent of the image by which a point may lie outside; it is moved to the edge


@dataclass(frozen=True, kw_only=True)
class PixMoPoints(ImageImporter):
    """Importer for PixMo-Points: all points of the objects with a label, one row per label."""

    def row(self, raw: Mapping[str, Any], identity: str) -> dict[str, Any]:
        """Convert the points of a label; the list may be empty."""
        url, points = text_field(raw, "image_url"), raw.get("points")
        if not isinstance(points, list) or not all(isinstance(p, Mapping) for p in points):
            raise InvalidRowError(
                "points", f'points is a list of {{"x": x, "y": y}}, not {shorten(points)}.'
            )
        name = raw.get("image") or hashlib.sha256(url.encode()).hexdigest()
        image = self.folder.fields_with_size(parse_text(name, "image"), None)
        edges = image["width"], image["height"]
        places = [
            round_coordinates(
                n / _PERCENT * edge for n, edge in zip(_percents(p), edges, strict=True)
            )
            for p in points
        ]
        found: dict[str, Any] = {"points": places}
        if raw.get("masks"):
            masks = _masks(raw["masks"], (len(places), image["height"], image["width"]))
            found = {
                "instances": [{"mask": m, "point": p} for m, p in zip(masks, places, strict=True)]
            }
        method = raw.get("collection_method")
        return {
            "id": identity,
            **image,
            "phrase": text_field(raw, "label"),
            **found,
            **({} if method is None else {"category": parse_text(method, "collection_method")}),
        }


def _percents(point: Mapping[str, Any]) -> list[float]:
    """Return x and y of a point in percent, moved to the edge of the image if just outside."""
    found = parse_number_list([point.get("x"), point.get("y")])
    if not all(-_BEYOND <= n <= _PERCENT + _BEYOND for n in found):
        raise InvalidRowError(
            "points",
            f"x and y are percent of width and height, from 0 to {_PERCENT}, not {shorten(found)}.",
        )
    return [min(max(n, 0), _PERCENT) for n in found]


def _masks(value: Any, shape: tuple[int, int, int]) -> list[dict[str, Any]]:
    """Convert masks [points, height, width] of a row, which has this shape, to run lengths."""
    try:
        pixels = np.asarray(value, dtype=np.bool_)
    except ValueError as error:
        raise InvalidRowError(
            "masks", f"the masks have rows of several lengths ({error})."
        ) from error
    if pixels.shape != shape or not pixels.any(axis=(1, 2)).all():
        raise InvalidRowError(
            "masks",
            f"masks are [points, height, width] = {list(shape)}, each with a pixel, not "
            f"{list(pixels.shape)}.",
        )
    return [mask_row(mask_of(own)) for own in pixels]
