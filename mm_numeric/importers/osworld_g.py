"""Import OSWorld-G: ``OSWorld-G.json`` and ``OSWorld-G_refined.json``, lists of instructions.

    [{"id": "0lp8IshCDB", "image_path": "0lp8IshCDB.png", "image_size": [1920, 1080],
      "instruction": "Select 'As Attachment'", "box_type": "bbox", "box_coordinates": [x, y, w, h],
      "GUI_types": ["Text"]}, ...]

``box_coordinates`` are x, y, width and height of a ``bbox``, or the corners [x1, y1, x2, y2, ...]
of a ``polygon``. An instruction of type ``refusal`` is about an element that is not on the screen.
``GUI_types`` become ``ui_type``, joined with a comma.

Source: https://github.com/xlang-ai/OSWorld-G, benchmark; read as in evaluation/holo_osworld_g.py of
the fork Onifin/Holo3.1-OSWorld-G and in osworld_g of lmms-eval.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mm_numeric.importers.importer import (
    ImageImporter,
    InvalidRowError,
    parse_box,
    parse_polygon,
    parse_text,
    shorten,
    text_field,
)
from mm_numeric.importers.screenspot import width_and_height


@dataclass(frozen=True, kw_only=True)
class OsWorldG(ImageImporter):
    """Importer for OSWorld-G, one row per instruction."""

    def row(self, raw: Mapping[str, Any], identity: str) -> dict[str, Any]:
        """Convert an instruction and its element, if there is one."""
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
                text_field(raw, "image_path"),
                width_and_height(raw.get("image_size"), "image_size"),
            ),
            "phrase": text_field(raw, "instruction"),
            **region,
            **({"ui_type": ", ".join(parse_text(t, "GUI_types") for t in types)} if types else {}),
        }
