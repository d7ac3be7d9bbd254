"""Import ScreenSpot (v1, v2) and ScreenSpot-Pro: instructions and the elements to click on.

    v1, v2  [{"img_filename": "web_3b0ad239.png", "bbox": [42, 1102, 197, 70], "instruction": "...",
              "data_type": "text", "data_source": "shop"}, ...]
    Pro     [{"id": "blender_windows_0", "img_filename": "blender_windows/a.png", "bbox": [x1, y1,
              x2, y2], "img_size": [3840, 2160], "instruction": "...", "ui_type": "icon",
              "platform": "windows", "application": "blender", "group": "Creative"}, ...]

``bbox`` is x, y, width, height in v1 and v2, and x1, y1, x2, y2 in Pro, whose entries have an
``img_size``. The platform of v1 and v2 is the word mobile, desktop or web in the name of the file.

Source: https://github.com/njucckevin/SeeClick (ScreenSpot), OS-Copilot/ScreenSpot-v2 on the hub;
https://github.com/likaixin2000/ScreenSpot-Pro-GUI-Grounding, eval_screenspot_pro.py.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from mm_numeric.importers.files import FileImporter, ImageFolder, rows_from_objects
from mm_numeric.importers.importer import (
    ImagesFolder,
    ImportedItem,
    InvalidRowError,
    Row,
    parse_box,
    parse_number_list,
    parse_text,
    shorten,
)

_PLATFORMS = ("mobile", "desktop", "web")
_PRO = ("ui_type", "platform", "application", "group")


@dataclass(frozen=True, kw_only=True)
class ScreenSpot(FileImporter):
    """Importer for ScreenSpot and ScreenSpot-Pro, one row per instruction."""

    endings = (".json", ".jsonl")

    images: ImagesFolder = None

    def rows(self, files: Sequence[Path]) -> Iterator[ImportedItem]:
        """Yield one row per instruction; an invalid instruction or box yields an error."""
        return rows_from_objects(files, partial(_row, ImageFolder(self.images)))


def _row(
    image_folder: ImageFolder, where: str, identity: str, raw: Mapping[str, Any]
) -> Iterator[ImportedItem]:
    size = raw.get("img_size")
    is_pro, declared = size is not None, None
    if is_pro:
        edges = parse_number_list(size)
        if len(edges) != 2:
            raise InvalidRowError("image", f"img_size is [width, height], not {shorten(size)}.")
        declared = int(edges[0]), int(edges[1])
        groups = {name: raw.get(name) for name in _PRO}
    else:
        named = [name for name in _PLATFORMS if name in identity]
        platform = named[0] if named else None
        groups = {"ui_type": raw.get("data_type"), "platform": platform}
        groups["application"] = raw.get("data_source")
    yield Row(
        where,
        {
            "id": str(raw.get("id") or identity),
            **image_folder.fields(parse_text(raw.get("img_filename"), "img_filename"), declared),
            "phrase": parse_text(raw.get("instruction"), "instruction"),
            "box": parse_box(raw.get("bbox"), xywh=not is_pro),
            **{name: parse_text(group, name) for name, group in groups.items() if group},
        },
    )
