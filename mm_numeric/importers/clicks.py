"""Import ScreenSpot (v1, v2), ScreenSpot-Pro and OSWorld-G: instructions and elements to click on.

    v1, v2  [{"img_filename": "web_3b0ad239.png", "bbox": [42, 1102, 197, 70], "instruction": "...",
              "data_type": "text", "data_source": "shop"}, ...]
    Pro     [{"id": "blender_windows_0", "img_filename": "blender_windows/a.png", "bbox": [x1, y1,
              x2, y2], "img_size": [3840, 2160], "instruction": "...", "ui_type": "icon",
              "platform": "windows", "application": "blender", "group": "Creative"}, ...]

``bbox`` is x, y, width, height in v1 and v2, and x1, y1, x2, y2 in Pro. Only Pro has an
``img_size``. The platform of v1 and v2 is the word mobile, desktop or web in the file name.

    OSWorld-G  [{"id": "0lp8IshCDB", "image_path": "0lp8IshCDB.png", "image_size": [1920, 1080],
                 "instruction": "Select 'As Attachment'", "box_type": "bbox",
                 "box_coordinates": [x, y, w, h], "GUI_types": ["Text"]}, ...]

For the ``box_type`` ``bbox``, ``box_coordinates`` are x, y, width and height; for ``polygon``, the
corners [x1, y1, x2, y2, ...]; for ``refusal``, the element is not on the screen. The ``GUI_types``,
joined with commas, become ``ui_type``.

Sources: https://github.com/njucckevin/SeeClick (ScreenSpot), OS-Copilot/ScreenSpot-v2 on the hub;
https://github.com/likaixin2000/ScreenSpot-Pro-GUI-Grounding, eval_screenspot_pro.py;
https://github.com/xlang-ai/OSWorld-G, benchmark, read as in evaluation/holo_osworld_g.py of the
fork Onifin/Holo3.1-OSWorld-G and in osworld_g of lmms-eval.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mm_numeric.importers.importer import (
    ImageImporter,
    InvalidRowError,
    parse_box,
    parse_number_list,
    parse_polygon,
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
        """Convert an instruction and the box of the element to click on."""
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


@dataclass(frozen=True, kw_only=True)
class OsWorldG(ImageImporter):
    """Importer for OSWorld-G, one row per instruction."""

    def row(self, raw: Mapping[str, Any], identity: str) -> dict[str, Any]:
        """Convert an instruction, and the box or polygon of the element if it is on the screen."""
        kind, place = raw.get("box_type"), raw.get("box_coordinates")
        region: dict[str, Any]
        if kind == "bbox":
            region = {"box": parse_box(place, xywh=True)}
        elif kind == "polygon":
            region = {"polygon": parse_polygon(place)}
        elif kind == "refusal":
            region = {"instances": []}
        else:
            raise InvalidRowError(
                "box_type", f"box_type is bbox, polygon or refusal, not {shorten(kind)}."
            )
        types = raw.get("GUI_types") or []
        if not isinstance(types, list):
            raise InvalidRowError("GUI_types", f"GUI_types is a list, not {shorten(types)}.")
        return {
            "id": str(raw.get("id") or identity),
            **self.folder.fields(
                text_field(raw, "image_path"), width_and_height(raw.get("image_size"), "image_size")
            ),
            "phrase": text_field(raw, "instruction"),
            **region,
            **({"ui_type": ", ".join(parse_text(t, "GUI_types") for t in types)} if types else {}),
        }
