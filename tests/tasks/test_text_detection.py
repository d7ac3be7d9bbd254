"""Rows of words: their order and form, and what is left out."""

from mm_numeric.answers import Box, Instance, Instances
from mm_numeric.geometry.coordinates import COORDINATES
from mm_numeric.geometry.frames import Frame, Resize
from mm_numeric.tasks.text_detection import TextDetection

FRAME = Frame(640, 480, Resize(kind="none").view(640, 480), COORDINATES["qwen3_vl"])
QUAD = [10, 10, 100, 12, 98, 40, 9, 38]


def detected(*instances, task=None, **changes):
    row = {"id": "1", "image": "a.png", "instances": list(instances), **changes}
    (example,) = (task or TextDetection()).examples([("r, line 1", row)], training=True)
    return example


def test_words_are_written_in_reading_order_without_the_ignored():
    low, high = [10, 300, 100, 300, 100, 340, 10, 340], QUAD
    example = detected(
        {"polygon": low, "label": "b"}, {"polygon": high}, {"box": [1, 1, 9, 9], "ignore": True}
    )
    text = TextDetection().format(example.answer, FRAME).text
    assert text == (
        '[{"poly_2d": [16, 21, 156, 25, 153, 83, 14, 79]}, '
        '{"poly_2d": [16, 625, 156, 625, 156, 708, 16, 708]}]'
    )
    assert len(TextDetection().parse(text, FRAME).items) == 2
    record = TextDetection().record(example.answer)
    assert TextDetection().recorded(record) == example.answer
    assert record[2] == {"box": [1, 1, 9, 9], "ignore": True}  # the truth stays as the rows have it


def test_words_may_be_boxes_and_in_the_order_of_the_rows():
    task = TextDetection(shape="box", order="rows")
    low = [[10, 300], [100, 302], [100, 340]]
    example = detected({"polygon": low}, {"polygon": QUAD}, task=task)
    assert example.answer == Instances(
        (Instance(Box(10, 300, 100, 340)), Instance(Box(9, 10, 100, 40)))
    )


def test_an_image_without_words_says_so():
    text = TextDetection().format(detected().answer, FRAME).text
    assert text == "[]"
    assert TextDetection().parse(text, FRAME) == Instances(())
