"""CVAT for images: boxes, rotated boxes and polygons."""

import pytest
from importing import outcome, text_folder

from mm_numeric.importers.cvat import Cvat
from mm_numeric.importers.prepare import prepare

BOMB = '<!DOCTYPE x [<!ENTITY a "aa"><!ENTITY b "&a;&a;">]><annotation>&b;</annotation>'


def cvat(*shapes, more=""):
    image = '<image id="0" name="dir/1.jpg" width="640" height="480">'
    return (
        f"<annotations><version>1.1</version>{image}{''.join(shapes)}</image>{more}</annotations>"
    )


CVAT_BOX = '<box label="dog" xtl="10" ytl="20" xbr="110" ybr="70" {}/>'


def test_cvat_has_boxes_rotated_boxes_and_polygons(tmp_path):
    shapes = [
        CVAT_BOX.format(""),
        CVAT_BOX.format('rotation="90.0"'),
        '<polygon label="cat" points="1,2;3.5,4;5,6"><attribute name="a">b</attribute></polygon>',
        '<polyline label="road" points="1,2;3,4"/>',
        '<tag label="night"/>',
    ]
    done = outcome(Cvat(), text_folder(tmp_path / "a", **{"1__xml": cvat(*shapes)}))
    box, turned, polygon = done.row["instances"]
    assert box == {"box": [10, 20, 110, 70], "label": "dog"}
    assert turned["polygon"] == pytest.approx([85, -5, 85, 95, 35, 95, 35, -5])
    assert polygon == {"polygon": [1, 2, 3.5, 4, 5, 6], "label": "cat"}
    assert done.row["image"] == "dir/1.jpg"
    assert done.left_out == {"shapes that are neither boxes nor polygons (polyline)": 1}


def test_cvat_declares_labels(tmp_path):
    labels = "".join(
        f"<label><name>{name}</name><type>{kind}</type></label>"
        for name, kind in (("owl", "any"), ("dog", "rectangle"), ("night", "tag"))
    )
    meta = f"<meta><task><labels>{labels}</labels></task></meta>"
    folder = text_folder(tmp_path / "a", **{"1__xml": cvat(CVAT_BOX.format(""), more=meta)})
    record = prepare("cvat", Cvat(), [folder], tmp_path / "rows.jsonl").record
    assert record["labels"] == {"owl": 0, "dog": 1}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (BOMB, "the XML has a document type"),
        ("<annotations><track/></annotations>", "tracks of a video; export it as CVAT for images"),
        (cvat(CVAT_BOX.format("").replace("10", "nan")), "is not a number"),
        (cvat('<box label="dog" xtl="1"/>'), "'' is not a number"),
        (cvat('<polygon points="1,2;3,4;5,6"/>'), "label must be a non-empty text"),
        (cvat('<polygon label="a" points="1,2"/>'), "at least three points"),
        (cvat().replace('"640"', '"a"'), "are not a size in pixels"),
    ],
)
def test_a_bad_file_of_cvat(tmp_path, text, why):
    done = outcome(Cvat(), text_folder(tmp_path / "a", **{"1__xml": text}))
    assert why in done.why
    assert not done.rows
