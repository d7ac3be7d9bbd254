"""Formats of detection data: YOLO, VOC, LabelMe, Label Studio, CVAT, Roboflow, hub data sets."""

import math

import pytest
from datasets import ClassLabel, Dataset, Features, List, Value
from datasets import Image as ImageFeature
from importing import json_file, make_image, outcome, text_folder
from PIL import Image

from mm_numeric.answers import Box, Instance
from mm_numeric.config.data import DataSource
from mm_numeric.data.examples import examples_and_errors, load_examples, rows_of_dataset
from mm_numeric.data.huggingface import with_instances
from mm_numeric.geometry.row_shapes import around, read_polygon
from mm_numeric.importers.coco import Coco
from mm_numeric.importers.cvat import Cvat
from mm_numeric.importers.label_studio import LabelStudio
from mm_numeric.importers.labelme import LabelMe
from mm_numeric.importers.prepare import prepare
from mm_numeric.importers.voc import Voc
from mm_numeric.importers.yolo import Yolo
from mm_numeric.io.files import parse_xml
from mm_numeric.tasks.detection import Detection

BOMB = '<!DOCTYPE x [<!ENTITY a "aa"><!ENTITY b "&a;&a;">]><annotation>&b;</annotation>'


def yolo_folder(folder, labels, config="train: images/train\nnames: [helmet, vest]\n"):
    """Write a YOLO data set of images of 200 x 100; return its folder."""
    for name, text in labels.items():
        make_image(folder / "images" / "train" / f"{name}.jpg", (200, 100))
        if text is not None:
            file = folder / "labels" / "train" / f"{name}.txt"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
    (folder / "data.yaml").write_text(config, encoding="utf-8")
    return folder


LABELS = {"1": "0 0.5 0.5 0.2 0.4\n1 0.1 0.1 0.4 0.1 0.4 0.3\n", "2": "", "3": None}


def test_yolo_has_boxes_polygons_and_images_without_objects(tmp_path):
    done = outcome(Yolo(split="train"), yolo_folder(tmp_path, LABELS))
    assert not done.bad
    first = {"image": "images/train/1.jpg", "width": 200, "height": 100}
    assert done.rows[0] == {
        "id": "images/train/1.jpg",
        **first,
        "instances": [
            {"box": [80, 30, 120, 70], "label": "helmet"},
            {"polygon": [20, 10, 80, 10, 80, 30], "label": "vest"},
        ],
    }
    assert [row["instances"] for row in done.rows[1:]] == [[], []]
    files = Yolo(split="train").files([tmp_path / "data.yaml"])
    assert [file.name for file in files] == ["data.yaml", "1.txt", "2.txt"]
    (tmp_path / "data.yaml").write_text("train: images/train\nnames: [helmet, vest, boot]\n")
    done = prepare("yolo", Yolo(split="train"), [tmp_path], tmp_path / "rows.jsonl")
    assert done.record["task"] == {"name": "detection", "classes": ["helmet", "vest", "boot"]}
    assert done.record["labels"] == {"helmet": 1, "vest": 1, "boot": 0}
    source = DataSource(path=str(tmp_path / "rows.jsonl"), images=str(tmp_path))
    found = load_examples(Detection(classes=("helmet", "vest")), source, tmp_path, training=True)
    assert found[0].answer.items[1] == Instance(Box(20, 10, 80, 30), "vest")
    assert found[0].prompt == found[2].prompt


def test_lines_of_yolo_that_ultralytics_accepts(tmp_path):
    """Small numbers as %g writes them, rounding beyond the edge, and an object twice."""
    lines = ("0 5e-05 0.1 0.4 0.1 0.4 1.0000001", "1 0.5 0.5 1.000001 1", "1 0.50 0.5 1 1.0")
    done = outcome(Yolo(split="train"), yolo_folder(tmp_path, {"1": "\n".join(lines)}))
    assert done.row["instances"] == [
        {"polygon": [0.01, 10, 80, 10, 80, 100], "label": "helmet"},
        {"box": [0, 0, 200, 100], "label": "vest"},
    ]
    assert done.left_out == {"repeated objects": 1}


@pytest.mark.parametrize(
    "config",
    [
        "path: .\ntrain: [images/train]\nnames: {0: helmet, 1: vest}\n",
        "train: ../images/train\nval: ../valid/images\nnc: 2\nnames: [helmet, vest]\n",  # Roboflow
        "path: /no/such/folder\ntrain: list.txt\nnames: [helmet, vest]\n",
    ],
)
def test_each_form_of_data_yaml_has_the_same_rows(tmp_path, config):
    expected = outcome(Yolo(split="train"), yolo_folder(tmp_path / "a", LABELS)).rows
    folder = yolo_folder(tmp_path / "b" / "c", LABELS, config)
    lines = "".join(f"./images/train/{name}.jpg\n" for name in LABELS)
    (folder / "list.txt").write_text(lines, encoding="utf-8")
    assert outcome(Yolo(split="train"), folder).rows == expected


@pytest.mark.parametrize(
    ("line", "kind", "why"),
    [
        ("2 0.5 0.5 0.1 0.1", "class", "the class '2' is not a number in names (0 to 1)"),
        ("helmet 0.5 0.5 0.1 0.1", "class", "the class 'helmet' is not a number in names"),
        ("0 0.5 0.5 0.1", "numbers", "expected 4 numbers after the class, or points, found 3"),
        ("0 50 50 10 10", "numbers", "coordinates are fractions of the image, from 0 to 1"),
        ("0 0.5 0.5 1.02 0.1", "numbers", "coordinates are fractions of the image, from 0 to 1"),
        ("0 0.5 0.5 nan 0.1", "numbers", "'nan' is not a number"),
        ("0 0.5 0.5 0 0.1", "box", "has no area"),
    ],
)
def test_a_bad_line_of_yolo_leaves_its_image_out(tmp_path, line, kind, why):
    labels = {"1": f"0 0.5 0.5 0.2 0.4\n{line}\n", "2": "0 0.5 0.5 0.2 0.4"}
    done = outcome(Yolo(split="train"), yolo_folder(tmp_path, labels))
    assert done.kinds == [kind]
    assert why in done.why
    assert done.bad[0].where.endswith("1.txt, line 2")
    assert [row["image"] for row in done.rows] == ["images/train/2.jpg"]


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ("train: images/train\n", r"data\.yaml: no names \(a list of classes"),
        ("names: [a]\nval: images/train\n", r"no split 'train' \(a folder of images\); it has val"),
        ("names: [a]\ntrain: images/none\n", r"the images of train are missing"),
        ("- a\n", r"data\.yaml: expected settings as"),
        # Four keypoints of x and y are eight more numbers: as many as a polygon may have.
        ("names: [a]\ntrain: images/train\nkpt_shape: [4, 2]\n", r"kpt_shape declares keypoints"),
    ],
)
def test_a_bad_data_yaml_is_one_sentence(tmp_path, config, why):
    folder = yolo_folder(tmp_path, {"1": ""}, config)
    with pytest.raises(ValueError, match=why):
        outcome(Yolo(split="train"), folder)
    with pytest.raises(ValueError, match="there is no such YAML file"):
        outcome(Yolo(split="train"), folder / "images")


def voc_object(box, name="dog", more=""):
    edges = "".join(
        f"<{k}>{v}</{k}>" for k, v in zip(("xmin", "ymin", "xmax", "ymax"), box, strict=True)
    )
    return f"<object><name>{name}</name>{more}<bndbox>{edges}</bndbox></object>"


def voc(*objects, size="<size><width>640</width><height>480</height></size>"):
    return f"<annotation><filename>1.jpg</filename>{size}{''.join(objects)}</annotation>"


def test_voc_counts_pixels_from_1(tmp_path):
    text = voc(
        voc_object((1, 1, 640, 480)),
        voc_object((10, 20, 30, 40), "cat", "<difficult>1</difficult>"),
    )
    folder = text_folder(tmp_path / "a", **{"1__xml": text})
    assert outcome(Voc(), folder).row == {
        "id": "1", "image": "1.jpg", "width": 640, "height": 480,
        "instances": [
            {"box": [0, 0, 640, 480], "label": "dog"},
            {"box": [9, 19, 30, 40], "label": "cat", "ignore": True},
        ],
    }  # fmt: skip
    zero = text_folder(tmp_path / "b", **{"1__xml": voc(voc_object((0, 5, 10, 10)))})
    assert outcome(Voc(zero_based=True), zero).row["instances"][0]["box"] == [0, 5, 10, 10]
    assert "counts pixels from 1; add --zero-based" in outcome(Voc(), zero).why
    no_size = text_folder(tmp_path / "c", **{"1__xml": voc(size="<size><width>0</width></size>")})
    assert outcome(Voc(), no_size).row == {"id": "1", "image": "1.jpg", "instances": []}
    indented = text_folder(tmp_path / "d", **{"1__xml": voc().replace("1.jpg", "\n  1.jpg\n")})
    assert outcome(Voc(), indented).row["image"] == "1.jpg"


@pytest.mark.parametrize(
    ("text", "kind", "why"),
    [
        (BOMB, "xml", "the XML has a document type (<!DOCTYPE ...>); remove it."),
        (BOMB.encode("utf-16"), "xml", "the XML has a document type"),
        (voc()[:40], "xml", "invalid or truncated XML"),
        ("<annotations/>", "xml", "expected <annotation>, found <annotations>."),
        (voc(voc_object((9, 9, 5, 20))), "box", "is reversed"),
        (voc("<object><name>dog</name></object>"), "box", "has no bndbox with xmin"),
        (voc(voc_object((1, 2, "x", 4))), "numbers", "'x' is not a number"),
        (voc(voc_object((1, 2, 3, 4), "")), "text", "name must be a non-empty text"),
        (voc().replace("1.jpg", ""), "text", "filename must be a non-empty text"),
    ],
)
def test_a_bad_file_of_voc(tmp_path, text, kind, why):
    done = outcome(Voc(), text_folder(tmp_path / "a", **{"1__xml": text}))
    assert done.kinds == [kind]
    assert why in done.why
    assert not done.rows


def test_entities_that_read_files_are_not_read(tmp_path):
    secret = tmp_path / "secret.txt"
    secret.write_text("secret")
    text = f'<!DOCTYPE a [<!ENTITY x SYSTEM "file://{secret}">]><a>&x;</a>'
    with pytest.raises(ValueError, match="document type"):
        parse_xml(text)
    assert parse_xml("<a>&lt;b&gt;</a>").text == "<b>"


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


def labelme(*shapes, **more):
    return {"imagePath": "..\\images\\1.jpg", "imageWidth": 640, "imageHeight": 480,
            "shapes": list(shapes), **more}  # fmt: skip


def shape(kind, points, label="dog"):
    return {"label": label, "shape_type": kind, "points": points, "flags": {}}


def test_labelme_has_rectangles_polygons_and_circles(tmp_path):
    raw = labelme(
        shape("rectangle", [[110, 90], [10, 20]]),
        shape("polygon", [[1, 2], [3, 4], [5, 9.5]], "cat"),
        shape("circle", [[100, 100], [103, 104]], "ball"),
        shape("line", [[1, 2], [3, 4]]),
    )
    done = outcome(LabelMe(), json_file(tmp_path / "1.json", raw))
    assert done.row == {
        "id": "1", "image": "1.jpg", "width": 640, "height": 480,
        "instances": [
            {"box": [10, 20, 110, 90], "label": "dog"},
            {"polygon": [1, 2, 3, 4, 5, 9.5], "label": "cat"},
            {"box": [95, 95, 105, 105], "label": "ball"},
        ],
    }  # fmt: skip
    assert done.left_out == {"shapes without an area ('line')": 1}


def test_shapes_of_labelme_with_one_group_are_one_object(tmp_path):
    """Such as a dog after a tree; another label or no group is another object."""
    parts = (
        shape("polygon", [[20, 10], [30, 10], [30, 20]]),
        shape("rectangle", [[1, 5], [4, 9]]),
        shape("polygon", [[50, 10], [60, 10], [60, 25]]),
    )
    cat = shape("rectangle", [[1, 2], [3, 4]], "cat")
    grouped = [{**own, "group_id": 1} for own in (*parts, cat)]
    raw = labelme(*grouped, {**parts[1], "group_id": 2}, {**parts[1], "group_id": None}, parts[1])
    done = outcome(LabelMe(), json_file(tmp_path / "1.json", raw))
    assert done.row["instances"] == [
        {"box": [1, 5, 60, 25], "label": "dog"},
        {"box": [1, 2, 3, 4], "label": "cat"},
        *[{"box": [1, 5, 4, 9], "label": "dog"}] * 3,
    ]
    assert done.left_out == {"further shapes of an object (group_id)": 2}


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        ([], 'not a file of LabelMe: there is no list "shapes"'),
        (labelme(imagePath=None), "imagePath must be a non-empty text"),
        (labelme(shape("rectangle", [[1, 2]])), "a rectangle has two points, not 1"),
        (labelme(shape("polygon", [[1, 2], [3, 4]])), "at least three points"),
        (labelme(shape("polygon", "no")), "points is a list"),
        (labelme(shape("rectangle", [[1, 2], [1, 9]])), "has no area"),
        (labelme(shape("rectangle", [[1, 2], [3, "x"]])), "'x' is not a number"),
        (labelme(7), "expected an object, found 7"),
    ],
)
def test_a_bad_file_of_labelme(tmp_path, raw, why):
    done = outcome(LabelMe(), json_file(tmp_path / "1.json", raw))
    assert why in done.why
    assert not done.rows


def studio(*results, **more):
    annotation = {"result": list(results), "was_cancelled": False}
    image = "http://localhost:8080/data/upload/2/0ab1c2d3-1%20a.jpg"
    return {"id": 12, "data": {"image": image}, "annotations": [annotation], **more}


def result(value, kind="rectanglelabels", **more):
    size = {"original_width": 200, "original_height": 100}
    return {"type": kind, **size, "value": {kind: ["dog"], **value}, **more}


RECTANGLE = {"x": 10, "y": 20, "width": 30, "height": 40, "rotation": 0}


def test_label_studio_has_percent_and_rotation(tmp_path):
    results = [
        result(RECTANGLE),
        result({**RECTANGLE, "rotation": 90}),
        result({"points": [[10, 10], [50, 10], [50, 50]]}, "polygonlabels"),
        result({"format": "rle"}, "brushlabels"),
    ]
    tasks = [
        studio(*results),
        {"id": 13, "data": {"image": "/data/local-files/?d=x/2.jpg"}, "annotations": []},
        {
            **studio(),
            "id": 14,
            "annotations": [{"was_cancelled": True}, *studio()["annotations"] * 2],
        },
    ]
    done = outcome(LabelStudio(), json_file(tmp_path / "a.json", tasks))
    assert not done.bad
    box, turned, polygon = done.rows[0]["instances"]
    assert done.rows[0]["image"] == "0ab1c2d3-1 a.jpg"
    assert box == {"box": [20, 20, 80, 60], "label": "dog"}
    assert turned["polygon"] == pytest.approx([20, 20, 20, 80, -20, 80, -20, 20])
    assert polygon["polygon"] == [20, 10, 100, 10, 100, 50]
    assert [row["id"] for row in done.rows] == ["12", "14"]
    assert done.rows[1]["instances"] == []
    assert done.left_out == {
        "tasks without an annotation": 1,
        "further annotations of the same task": 1,
        "results that are neither boxes nor polygons ('brushlabels')": 1,
    }
    make_image(tmp_path / "images" / "1 a.jpg", (200, 100))
    found = outcome(LabelStudio(images=tmp_path / "images"), tmp_path / "a.json")
    assert found.rows[0]["image"] == "1 a.jpg"


def test_label_studio_has_regions_of_the_template_for_ocr(tmp_path):
    """A region has one result for each tag: <Rectangle> or <Polygon>, <Labels>, <TextArea>."""
    box = {name: RECTANGLE[name] for name in ("x", "y", "width", "height")}
    points = {"points": [[10, 10], [50, 10], [50, 50]]}
    results = [
        {**result(own, kind), "id": name}
        for name, own, kinds in (
            ("a", box, ("rectangle", "labels", "textarea")),
            ("b", points, ("polygon", "labels", "textarea")),
            ("c", box, ("rectangle", "textarea")),  # no label was chosen
            ("d", {"start": 0, "end": 5}, ("labels",)),
        )
        for kind in kinds
    ]
    done = outcome(LabelStudio(), json_file(tmp_path / "a.json", [studio(*results)]))
    assert done.row["instances"] == [
        {"box": [20, 20, 80, 60], "label": "dog"},
        {"polygon": [20, 10, 100, 10, 100, 50], "label": "dog"},
        {"box": [20, 20, 80, 60]},
    ]
    assert done.left_out == {
        "results that are neither boxes nor polygons ('textarea')": 3,
        "results that are neither boxes nor polygons ('labels')": 1,
    }
    local = studio(data={"image": "/data/local-files/?d=x%5C2.jpg"})  # of Windows
    assert outcome(LabelStudio(), json_file(tmp_path / "b.json", [local])).row["image"] == "2.jpg"


def test_the_size_of_an_image_is_that_of_the_first_result_with_one(tmp_path):
    indoor = {"type": "choices", "value": {"choices": ["indoor"]}}
    done = outcome(
        LabelStudio(), json_file(tmp_path / "a.json", [studio(indoor, result(RECTANGLE))])
    )
    assert (done.row["width"], done.row["height"]) == (200, 100)


def test_rotation_turns_clockwise_about_a_corner(tmp_path):
    """A square of 2 x 2 pixels turned by 45 degrees: its right corner goes down."""
    square = result({"x": 50, "y": 50, "width": 1, "height": 2, "rotation": 45})
    done = outcome(LabelStudio(), json_file(tmp_path / "a.json", [studio(square)]))
    points = read_polygon(done.row["instances"][0]["polygon"], "test").points
    half = math.sqrt(2)
    assert points[1] == pytest.approx((100 + half, 50 + half), abs=1e-5)
    assert points[3] == pytest.approx((100 - half, 50 + half), abs=1e-5)


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        ({"image": "1.jpg", "label": []}, 'no list "annotations"; export as JSON, not as JSON-MIN'),
        (studio(data={}), "data.image must be a non-empty text"),
        (studio(result({**RECTANGLE, "x": None})), "None is not a number"),
        (studio(result({**RECTANGLE, "width": 0})), "has no area"),
        (studio(result(RECTANGLE, original_width=None)), "not a size in pixels"),
        (studio(result({**RECTANGLE, "rectanglelabels": []})), "has one label, not []"),
        (studio(3), "result is a list of objects"),
    ],
)
def test_a_bad_task_of_label_studio(tmp_path, raw, why):
    done = outcome(LabelStudio(), json_file(tmp_path / "a.json", [raw]))
    assert why in done.bad[0].why
    assert not done.rows


def test_the_coco_file_of_roboflow_is_read(tmp_path):
    """It has a category for the project, which no object has, and images without objects."""
    raw = {
        "info": {"year": "2024", "url": "https://public.roboflow.com"},
        "licenses": [{"id": 1, "url": "", "name": "CC BY 4.0"}],
        "categories": [
            {"id": 0, "name": "hard-hats", "supercategory": "none"},
            {"id": 1, "name": "helmet", "supercategory": "hard-hats"},
        ],
        "images": [
            {"id": i, "license": 1, "file_name": f"{i}_png.rf.0a.jpg", "height": 416, "width": 416,
             "date_captured": "2024-01-01T00:00:00+00:00", "extra": {"name": "a.png"}}
            for i in range(2)
        ],
        "annotations": [
            {"id": 0, "image_id": 0, "category_id": 1, "bbox": [179, 85, 18, 16.5], "area": 297,
             "segmentation": [], "iscrowd": 0}
        ],
    }  # fmt: skip
    path = json_file(tmp_path / "_annotations.coco.json", raw)
    done = prepare("coco", Coco(), [path], tmp_path / "rows.jsonl")
    assert done.bad == 0
    assert done.record["task"] == {"name": "detection", "classes": ["helmet"]}
    assert done.record["counts"]["rows without instances"] == 1


def hub_folder(folder, objects, feature):
    """Save a data set with the column ``objects``, as on the hub; return its folder."""
    images = [Image.new("RGB", (100, 80), (i, 0, 0)) for i in range(len(objects))]
    columns = {"image_id": list(range(len(objects))), "image": images, "objects": objects}
    features = Features({"image_id": Value("int64"), "image": ImageFeature(), "objects": feature})
    Dataset.from_dict(columns, features=features).save_to_disk(folder)
    return DataSource(dataset=str(folder))


FIELDS = {
    "id": Value("int64"),
    "bbox": List(Value("float32"), length=4),
    "category": ClassLabel(names=["Coverall", "Mask"]),
}
CPPE5 = [
    {"id": [1, 2], "bbox": [[10.0, 20.0, 30.0, 40.0], [0.0, 0.0, 5.0, 6.0]], "category": [1, 0]},
    {"id": [], "bbox": [], "category": []},
]


@pytest.mark.slow
@pytest.mark.parametrize("lists", [True, False])
@pytest.mark.parametrize("stream", [True, False])
def test_objects_of_a_hub_data_set_are_instances(tmp_path, lists, stream):
    """cppe-5 has lists of the same length; others have a list with a mapping for each object."""
    feature, objects = {key: List(kind) for key, kind in FIELDS.items()}, CPPE5
    if not lists:
        feature = List(FIELDS)
        objects = [[dict(zip(row, own, strict=True)) for own in zip(*row.values(), strict=True)]
                   for row in CPPE5]  # fmt: skip
    source = hub_folder(tmp_path / "hub", objects, feature)
    rows = [row.row for row in rows_of_dataset(source, tmp_path, stream=stream)]
    assert rows[0]["instances"] == [
        {"box": [10, 20, 40, 60], "label": "Mask"},
        {"box": [0, 0, 5, 6], "label": "Coverall"},
    ]
    assert rows[1]["instances"] == []
    found = load_examples(Detection(classes=("Mask", "Coverall")), source, tmp_path, training=True)
    assert around(found[0].answer.items[0].shape) == Box(10, 20, 40, 60)
    assert found[1].image is not None


def test_a_number_is_named_by_the_classes_of_its_own_field():
    """An object may have two numbers, of which one field has the names."""
    names = ("label", ["Coverall", "Mask"])
    objects = [
        {"bbox": [0, 0, 5, 6], "category": 0, "label": 1},
        {"bbox": [0, 0, 5, 6], "category": 17, "label": None},
        {"bbox": [0, 0, 5, 6], "category": "glove", "label": 1},
    ]
    row = with_instances({"objects": objects}, names, "row 0", xywh=True)
    assert [own["label"] for own in row["instances"]] == ["Mask", "17", "glove"]


def test_bad_objects_and_boxes_by_corners(tmp_path):
    feature = {"bbox": List(List(Value("float32"))), "category": List(Value("string"))}
    objects = [
        {"bbox": [[10.0, 20.0, 30.0, 40.0]], "category": ["mask"]},
        {"bbox": [[1.0, 2.0, 3.0]], "category": ["mask"]},
        {"bbox": [[1.0, 2.0, 3.0, 4.0]], "category": []},
    ]
    folder = hub_folder(tmp_path / "hub", objects, feature).dataset
    source = DataSource(dataset=folder, boxes="xyxy")
    (first, none), (_, three), (_, lengths) = examples_and_errors(
        Detection(), source, tmp_path, training=True
    )
    assert none is None
    assert first.answer.items == (Instance(Box(10, 20, 30, 40), "mask"),)
    assert "a box is [x1, y1, x2, y2], not 3 numbers" in str(three)
    assert "its lists have different lengths (bbox 1, category 0)" in str(lengths)
    with pytest.raises(ValueError, match="boxes require dataset"):
        DataSource(path="a.jsonl", boxes="xyxy")
    with pytest.raises(ValueError, match="boxes"):
        DataSource(dataset="a", boxes="corners")
