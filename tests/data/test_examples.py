"""Rows and images: what can be read is read, and what cannot is named with its file and line."""

import gzip
import importlib
import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image
from tiny_models import small_config

from mm_numeric.answers import ClockTime, Example
from mm_numeric.config.data import DataSource
from mm_numeric.data.examples import examples_to_answer, generated_rows, load_examples
from mm_numeric.data.images import open_image
from mm_numeric.io.files import read_rows
from mm_numeric.synthetic.clock_faces import Clocks
from mm_numeric.tasks.clock import Clock

REAL_CLOCKS = Path(__file__).parents[3] / "shared" / "data" / "clocks" / "labels.csv"


def rows_file(folder, text, name="rows.jsonl"):
    """Write rows, and the images a.png and images/b.png."""
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    (folder / "images").mkdir(exist_ok=True)
    Image.new("RGB", (4, 4)).save(folder / "a.png")
    Image.new("RGB", (4, 4)).save(folder / "images" / "b.png")
    return path


def load(path, **more):
    return load_examples(Clock(), DataSource(path=str(path), **more), path.parent, training=False)


SET = (
    "set data.test.images (for evaluate.data: evaluate.data.images; for --data: --images) to the "
    "folder of the images"
)
TWO_ROWS = (
    '{"id": "one", "image": "a.png", "time": "7:05"}\n\n'
    '{"file": "b.png", "hour": 12, "minute": 0}\n   \n'
)


@pytest.mark.parametrize("text", [TWO_ROWS, "\ufeff" + TWO_ROWS, TWO_ROWS.replace("\n", "\r\n")])
def test_jsonl_rows_arrive(tmp_path, text):
    path = rows_file(tmp_path, text)
    first, second = load(path)
    assert (first.id, first.answer, first.image) == ("one", ClockTime(7, 5), tmp_path / "a.png")
    assert (second.id, second.answer) == ("b.png", ClockTime(12, 0))
    assert second.image == tmp_path / "images" / "b.png"
    assert second.where == f"{path}, line 3"


@pytest.mark.parametrize(
    "text",
    [
        "file,hour,minute\na.png,7,5\n\nb.png,12,0\n",
        "\ufefffile,hour,minute\r\na.png,7,5\r\nb.png,12,00",
        'minute,file,hour\n"5","a.png","7"\n0,b.png,12\n',
        'file;time;"note, if any"\na.png;7:05;"noon; or not"\nb.png;12:00;a, b\n',
        "file\ttime\na.png\t07:05\nb.png\t12:00\n",
    ],
)
def test_csv_rows_arrive(tmp_path, text):
    first, second = load(rows_file(tmp_path, text, "rows.csv"))
    assert (first.id, first.answer) == ("a.png", ClockTime(7, 5))
    assert (second.id, second.answer) == ("b.png", ClockTime(12, 0))


def test_packed_rows_arrive(tmp_path):
    first, second = load(rows_file(tmp_path, gzip.compress(TWO_ROWS.encode()), "rows.jsonl.gz"))
    assert (first.id, second.id) == ("one", "b.png")
    assert second.where == f"{tmp_path / 'rows.jsonl.gz'}, line 3"


@pytest.mark.parametrize(
    ("raw", "name", "message"),
    [
        (b"{}", "rows.jsonl.gz", r"rows\.jsonl\.gz: cannot be read \(Not a gzipped file"),
        (
            gzip.compress(b"{}" * 99, mtime=0)[:-9],
            "rows.jsonl.gz",
            r"cannot be read \(Compressed file ended",
        ),
        (
            gzip.compress(b"{}", mtime=0),
            "rows.gz",
            r"rows\.gz: rows are read from .*, not 'no extension'\.",
        ),
    ],
)
def test_bad_packed_rows_are_one_sentence(tmp_path, raw, name, message):
    with pytest.raises(ValueError, match=message):
        load(rows_file(tmp_path, raw, name))


def test_an_id_of_zero_is_an_id(tmp_path):
    lines = [f'{{"id": {i}, "image": "a.png", "time": "7:05"}}' for i in (0, 1)]
    assert [e.id for e in load(rows_file(tmp_path, "\n".join(lines)))] == ["0", "1"]


def test_a_line_ends_only_where_a_line_ends(tmp_path):
    text = "a\u2028b\x85c\x0bd"
    path = rows_file(tmp_path, json.dumps({"text": text}, ensure_ascii=False).encode())
    assert [row for _, row in read_rows(path)] == [{"text": text}]
    path = rows_file(tmp_path, f'text,n\n"{text}\ne",1\n', "rows.csv")
    assert [row for _, row in read_rows(path)] == [{"text": f"{text}\ne", "n": "1"}]


GOOD = '{"id": "x", "image": "a.png", "time": "7:05"}\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD + "{", r"rows\.jsonl, line 2: not JSON \(Expecting property name"),
        (GOOD + "[1]", r'rows\.jsonl, line 2: expected an object \{"id": \.\.\.\}, found \[1\]\.'),
        pytest.param(
            GOOD + "9" * 5000,
            r"rows\.jsonl, line 2: not JSON \(Exceeds the limit",
            id="long number",
        ),
        pytest.param(
            GOOD + "[" * 100_000,
            r"rows\.jsonl, line 2: not JSON \(maximum recursion depth",
            id="many brackets",
        ),
        (
            GOOD + r'{"image": "a.png", "a": "b\ud83d"}',
            r"line 2: '\\ud83d' is an unpaired surrogate",
        ),
        ("", r"rows\.jsonl: no rows; give at least one\."),
        ("\n \n", r"rows\.jsonl: no rows"),
        (b"\xff\xfe{}", r"rows\.jsonl: not UTF-8 \(it is UTF-16\)"),
        (
            GOOD + GOOD,
            r"line 2: the id 'x' is already used in .*rows\.jsonl, line 1; give each row",
        ),
        ('{"time": "7:05"}', r'line 1: no image; each row needs "image" \(a path\)\.'),
        ('{"image": 7, "time": "7:05"}', r"line 1: no image"),
        ('{"image": "", "time": "7:05"}', r"line 1: no image"),
        ('{"image": "a.png"}', r'line 1: no time; each row needs "time", or "hour" and "minute"\.'),
        ('{"image": "a.png", "hour": 7}', r"line 1: no time"),
        ('{"image": "a.png", "time": "25:00"}', r"'25:00' is not a time on a .* 12, not 25\.$"),
        ('{"image": "a.png", "time": "0:30"}', r"'0:30' is not a time on a 12-hour dial"),
        ('{"image": "a.png", "time": "7:60"}', r"'7:60' .* the minute is 0 to 59, not 60\.$"),
        ('{"image": "a.png", "time": "seven"}', r"time 'seven' is not written as \"H:MM\""),
        ('{"image": "a.png", "time": 705}', r"time 705 is not written"),
        ('{"image": "a.png", "time": "7:05:30"}', r"is not written as"),
        ('{"image": "a.png", "hour": 7.9, "minute": 5}', r"hour 7\.9, minute 5' is not a time"),
        ('{"image": "a.png", "hour": true, "minute": 5}', r"hour True, minute 5' is not a time"),
        ('{"image": "a.png", "hour": Infinity, "minute": 5}', r"hour inf, minute 5' is not a time"),
        ('{"image": "a.png", "hour": [7], "minute": 5}', r"hour \[7\], minute 5' is not a time"),
        ('{"image": "a.png", "hour": 13, "minute": 5}', r"'hour 13, minute 5' .* 1 to 12, not 13"),
    ],
)
def test_a_bad_jsonl_row_is_one_sentence(tmp_path, text, message):
    path = rows_file(tmp_path, text)
    with pytest.raises(ValueError, match=message) as caught:
        load(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "file,hour,minute\na.png,7,5\nb.png,7\n",
            r"rows\.csv, line 3: expected 3 fields \(file, hour, minute\) as in the header",
        ),
        ("file,hour,minute\na.png,7,5,6\n", r"line 2: expected 3 fields"),
        ("file,hour,minute\n", r"rows\.csv: no rows"),
        ("", r"rows\.csv: no rows"),
        ("file,hour\na.png,7\n", r"rows\.csv, line 2: no time"),
        ("file,hour,minute\na.png,,5\n", r"line 2: 'hour , minute 5' is not a time"),
        ("file,hour,minute\na.png,7.5,5\n", r"line 2: 'hour 7\.5, minute 5' is not a time"),
        pytest.param(
            "file,hour,minute\na.png," + "7" * (17 << 20),
            r"line 2: not CSV \(field larger than",
            id="long field",
        ),
        ("hour,minute\n7,5\n", r"line 2: no image"),
        ("file,time,time\na.png,7:05,8:05\n", r"line 1: the header has 'time' twice; rename or"),
    ],
)
def test_a_bad_csv_row_is_one_sentence(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        load(rows_file(tmp_path, text, "rows.csv"))


def test_a_field_of_a_table_may_be_long(tmp_path):
    """As an answer with its reasoning, or an image in base64."""
    file = rows_file(tmp_path, "question\tanswer\n1=\t" + "b" * 200_000, "rows.tsv")
    ((_, row),) = read_rows(file)
    assert len(row["answer"]) == 200_000


def test_the_header_of_a_single_column_may_have_a_semicolon(tmp_path):
    file = rows_file(tmp_path, '"question; in words"\nWhat; why?\n', "rows.csv")
    assert [row for _, row in read_rows(file)] == [{"question; in words": "What; why?"}]


def test_columns_without_a_name_are_ignored(tmp_path):
    text = "file,time,,\na.png,7:05,,\n"  # as a spreadsheet writes empty columns
    assert len(load(rows_file(tmp_path, text, "rows.csv"))) == 1


@pytest.mark.parametrize("text", ["[%s]", '{"data_list": [%s], "metainfo": {}}'])
def test_a_json_file_holds_a_list_of_rows(tmp_path, text):
    file = rows_file(tmp_path, text % GOOD.replace("\n", ""), "rows.json")
    assert [e.where for e in load(file)] == [f"{file}, row 1"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", r"rows\.json: not JSON \("),
        ("{}", r"rows\.json: expected a list of rows, or an object with one list of rows\."),
        ("[7]", r"rows\.json, row 1: expected an object"),
    ],
)
def test_a_bad_json_file_is_one_sentence(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        load(rows_file(tmp_path, text, "rows.json"))


def test_a_file_that_is_not_there_or_of_another_kind(tmp_path):
    with pytest.raises(ValueError, match=r"none\.jsonl: there is no such file\."):
        load(tmp_path / "none.jsonl")
    with pytest.raises(
        ValueError, match=r"rows are read from \.jsonl, \.json, \.csv or \.tsv, not '\.txt'\."
    ):
        load(rows_file(tmp_path, GOOD, "rows.txt"))
    with pytest.raises(
        ValueError,
        match=r"rows are read from \.jsonl, \.json, \.csv or \.tsv, not 'no extension'\.",
    ):
        load(rows_file(tmp_path, GOOD, "rows"))
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(ValueError, match=r"folder\.jsonl: cannot be read"):
        load(tmp_path / "folder.jsonl")


def test_a_missing_image_names_where_it_was_looked_for(tmp_path):
    path = rows_file(tmp_path, GOOD + '{"image": "c.png", "time": "7:05"}')
    with pytest.raises(ValueError, match="there is no image") as caught:
        load(path)
    places = f"{tmp_path / 'c.png'} or {tmp_path / 'images' / 'c.png'}"
    assert str(caught.value) == f"{path}, line 2: there is no image {places}; {SET}."


def test_the_folder_of_the_images_can_be_given(tmp_path):
    path = rows_file(tmp_path, '{"image": "b.png", "time": "7:05"}')
    (example,) = load(path, images=str(tmp_path / "images"))
    assert example.image == tmp_path / "images" / "b.png"
    with pytest.raises(ValueError, match=r"there is no image \S+/other/b\.png; set "):
        load(path, images=str(tmp_path / "other"))


def test_an_image_name_that_is_no_name(tmp_path):
    path = rows_file(tmp_path, json.dumps({"image": "iVBOR" * 1000, "time": "7:05"}))
    with pytest.raises(ValueError, match="there is no image"):
        load(path)


def make_image(path):
    return open_image(Example(id="x", image=path, prompt="", answer=None, where="r, line 1"))


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "BMP", "WEBP"])
def test_a_cut_off_image_is_rejected_or_read_but_never_a_crash(tmp_path, kind):
    path = tmp_path / f"a.{kind.lower()}"
    Image.effect_noise((24, 24), 50).save(path, kind)
    whole = path.read_bytes()
    rejected = 0
    for length in range(0, len(whole), max(1, len(whole) // 40)):
        path.write_bytes(whole[:length])
        try:
            assert make_image(path).size == (24, 24)
        except ValueError as error:
            assert str(error).startswith(f"r, line 1: the image {path} cannot be read (")  # noqa: PT017
            rejected += 1
    assert rejected > 30


def test_an_image_whose_exif_is_damaged_is_rejected(tmp_path):
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "hello"
    path = tmp_path / "a.jpg"
    Image.new("RGB", (6, 4)).save(path, exif=exif)
    whole = path.read_bytes()
    text, number = b"\x01\x0e\x00\x02\x00\x00\x00\x06", b"\x01\x0e\x00\x0b\x00\x00\x00\x01"
    assert text in whole
    path.write_bytes(whole.replace(text, number))  # the text has the type of one float
    with pytest.raises(ValueError, match=r"^r, line 1: the image \S+a\.jpg cannot be read \("):
        make_image(path)


def test_rows_without_a_question_are_rejected(tmp_path):
    class Silent(Clock):
        def examples(self, rows, *, training):
            return iter(())

    path = rows_file(tmp_path, GOOD + GOOD)
    with pytest.raises(
        ValueError, match=r"rows\.jsonl: none of its 2 rows contains a question; give at least"
    ):
        load_examples(Silent(), DataSource(path=str(path)), tmp_path, training=True)


def test_a_file_that_is_no_image_is_rejected(tmp_path):
    path = tmp_path / "a.png"
    path.write_text("not an image", encoding="utf-8")
    message = r"^r, line 1: the image \S+a\.png cannot be read \(.*\); replace it or remove its row"
    with pytest.raises(ValueError, match=message):
        make_image(path)
    with pytest.raises(ValueError, match="cannot be read"):
        make_image(tmp_path)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_an_image_is_turned_upright(tmp_path, orientation):
    upright = Image.new("RGB", (6, 4), "white")
    upright.putpixel((0, 0), (255, 0, 0))
    upright.putpixel((5, 0), (0, 0, 255))
    undo = {  # how a camera that says so has stored it
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    stored = upright.transpose(undo[orientation]) if orientation > 1 else upright
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored.save(tmp_path / "a.png", exif=exif)
    assert make_image(tmp_path / "a.png").tobytes() == upright.tobytes()


@pytest.mark.parametrize("mode", ["L", "LA", "RGBA", "P", "1", "I;16", "CMYK"])
def test_every_kind_of_image_becomes_rgb(tmp_path, mode):
    path = tmp_path / ("a.tiff" if mode == "CMYK" else "a.png")
    Image.new(mode, (5, 3)).save(path)
    assert make_image(path).mode == "RGB"
    assert make_image(path).size == (5, 3)


FACES = Clocks(rows=2, seed=3, size_px=16)


def source_of(generator):
    return DataSource(synthetic=generator)


def test_synthetic_rows_are_kept(tmp_path):
    source = source_of(replace(FACES, rows=4))
    first = load_examples(Clock(), source, tmp_path, training=False)
    assert [e.id for e in first] == [f"3-{i:06d}" for i in range(4)]
    (folder,) = tmp_path.iterdir()
    (folder / "images" / "000000.png").write_bytes(b"mine")
    again = load_examples(Clock(), source, tmp_path, training=False)
    assert again == first
    assert (folder / "images" / "000000.png").read_bytes() == b"mine"
    assert list(tmp_path.iterdir()) == [folder]


@pytest.mark.parametrize(
    "other", [replace(FACES, seed=4), replace(FACES, rows=3), replace(FACES, image_noise=0.0)]
)
def test_what_looks_different_is_kept_apart(tmp_path, other):
    path = generated_rows(source_of(FACES), tmp_path)
    assert generated_rows(source_of(other), tmp_path).parent != path.parent


def test_rows_of_an_edited_generator_are_generated_again(tmp_path, monkeypatch):
    """Shipped generators have a version instead, so that their rows survive an update."""
    module = tmp_path / "edited.py"
    monkeypatch.setitem(sys.modules, "edited", None)  # removed after the test
    monkeypatch.delitem(sys.modules, "edited")
    monkeypatch.syspath_prepend(str(tmp_path))
    own = "from mm_numeric.synthetic.clock_faces import Clocks\nclass Own(Clocks):\n    a = 1\n"
    paths = []
    for text in (own, own, own.replace("1", "2")):
        module.write_text(text, "utf-8")
        made = importlib.import_module("edited").Own(rows=1, size_px=16)
        paths.append(generated_rows(source_of(made), tmp_path / "cache"))
    assert paths[0] == paths[1] != paths[2]


def test_labels_with_noise_share_the_images(tmp_path):
    exact = generated_rows(source_of(FACES), tmp_path)
    noisy = replace(FACES, noise_minutes=90.0)
    others = (noisy, replace(noisy, noise_seed=1), replace(FACES, outliers=1.0))
    paths = [generated_rows(source_of(own), tmp_path) for own in others]
    assert {path.parent for path in paths} == {exact.parent}
    texts = [path.read_text(encoding="utf-8") for path in (exact, *paths)]
    assert len(set(texts)) == 4
    written = others[0].write(tmp_path / "by itself")
    assert written.read_text(encoding="utf-8") == texts[1]


class Interrupted(Clocks):
    """Clocks whose drawing is cut off."""

    def write(self, folder):
        replace(FACES, rows=self.rows - 1).write(folder)
        raise KeyboardInterrupt


def test_interrupted_drawing_is_not_taken_for_a_whole_one(tmp_path, monkeypatch):
    source = source_of(Interrupted(rows=3, seed=3, size_px=16))
    with pytest.raises(KeyboardInterrupt):
        generated_rows(source, tmp_path)
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(Interrupted, "write", Clocks.write)
    path = generated_rows(source, tmp_path)
    assert len(path.read_text(encoding="utf-8").splitlines()) == 3


class Slow(Clocks):
    """Clocks during whose drawing another process finishes the same images."""

    def write(self, folder):
        super().write(folder.with_name(folder.name.partition(".")[0]))
        return super().write(folder)


def test_two_processes_may_draw_the_same_images(tmp_path):
    path = generated_rows(source_of(Slow(rows=2, size_px=16)), tmp_path)
    assert path.is_file()
    assert [folder.name for folder in tmp_path.iterdir()] == [path.parent.name]


@pytest.mark.skipif(not REAL_CLOCKS.is_file(), reason="the real clocks are not here")
def test_the_real_clocks_are_all_read():
    examples = load(REAL_CLOCKS)
    assert len(examples) == 144
    assert Counter(e.answer.hour for e in examples) == Counter(dict.fromkeys(range(1, 13), 12))
    assert all(e.answer.minute % 5 == 0 for e in examples)
    assert open_image(examples[0]).mode == "RGB"


def test_reading_rows_loads_no_torch():
    code = (
        "import sys, mm_numeric.data.examples;"
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_training_rows_that_are_skipped_are_not_answered(tmp_path, logged):
    path = rows_file(tmp_path, TWO_ROWS)
    (tmp_path / "a.png").write_bytes(b"no image")
    sources = [f"data.{name}={{path: {path}}}" for name in ("train", "test")]
    for skip, wanted in (("stop", ["one", "b.png"]), ("skip", ["b.png"])):
        config = small_config(tmp_path, *sources, f"data.on_bad_image={skip}")
        rows = examples_to_answer(config, config.data.train)
        assert [row.id for row in rows] == wanted
    assert len(examples_to_answer(config, None)) == 2  # also if the test rows are the same
    assert f"row not answered: {path}, line 1: the image" in logged.getvalue()
