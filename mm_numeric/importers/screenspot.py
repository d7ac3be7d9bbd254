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

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mm_numeric.importers.importer import (
    ImageImporter,
    InvalidRowError,
    parse_box,
    parse_number_list,
    parse_text,
    shorten,
    text_field,
)

_PLATFORMS = ("mobile", "desktop", "web")
_PRO = ("ui_type", "platform", "application", "group")


@dataclass(frozen=True, kw_only=True)
class ScreenSpot(ImageImporter):
    """Importer for ScreenSpot and ScreenSpot-Pro, one row per instruction."""

    def row(self, raw: Mapping[str, Any], identity: str) -> dict[str, Any]:
        """Convert an instruction and its element."""
        size = raw.get("img_size")
        if size is not None:
            groups = {name: raw.get(name) for name in _PRO}
        else:
            named = [name for name in _PLATFORMS if name in identity]
            platform = named[0] if named else None
            groups = {"ui_type": raw.get("data_type"), "platform": platform}
            groups["application"] = raw.get("data_source")
        image = text_field(raw, "img_filename")
        return {
            "id": str(raw.get("id") or identity),
            **self.folder.fields(
                image, None if size is None else width_and_height(size, "img_size")
            ),
            "phrase": text_field(raw, "instruction"),
            "box": parse_box(raw.get("bbox"), xywh=size is None),
            **{name: parse_text(group, name) for name, group in groups.items() if group},
        }


def width_and_height(value: Any, name: str) -> tuple[int, int]:
    """Read the size of an image, [width, height] in pixels, from the field ``name``."""
    edges = parse_number_list(value)
    if len(edges) != 2:
        raise InvalidRowError("image", f"{name} is [width, height], not {shorten(value)}.")
    return int(edges[0]), int(edges[1])
