"""Pascal VOC, and XML that no importer reads."""

import pytest
from importing import outcome, text_folder

from mm_numeric.importers.voc import Voc
from mm_numeric.io.files import parse_xml

BOMB = '<!DOCTYPE x [<!ENTITY a "aa"><!ENTITY b "&a;&a;">]><annotation>&b;</annotation>'


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
