"""Words with their texts: published examples, each family's form, and the lexicon."""

import random
import re
from dataclasses import replace

import pytest

from mm_numeric.answers import Box, Instance, Instances, Polygon
from mm_numeric.config.decoding import PredictConfig
from mm_numeric.config.reader import read_config
from mm_numeric.geometry.coordinates import COORDINATES, Coordinates
from mm_numeric.geometry.frames import Frame, Resize
from mm_numeric.inference.list_limits import ListLimits
from mm_numeric.rewards import reward
from mm_numeric.tasks.text_spotting import TextSpotting

QUAD = [10, 10, 100, 12, 98, 40, 9, 38]
TASK = TextSpotting()


def frame(preset, width=1000, height=1000):
    return Frame(width, height, Resize(kind="none").view(width, height), COORDINATES[preset])


def words_of(*instances, task=TASK):
    row = {"id": "1", "image": "a.png", "instances": list(instances)}
    (example,) = task.examples([("r, line 1", row)], training=True)
    return example.answer


def read(text, preset, task=TASK):
    return [(item.label, item.shape.points) for item in task.parse(text, frame(preset)).items]


def test_the_answer_of_qwens_cookbook_is_read():
    """QwenLM/Qwen3-VL, cookbooks/ocr.ipynb: the first two lines that the model reads."""
    text = (
        '```json\n[\n\t{"bbox_2d": [108, 175, 496, 230], "text_content": "AuntieAnne\'s"},\n'
        '\t{"bbox_2d": [49, 429, 252, 450], "text_content": "CINNAMON SUGAR"}\n]\n```'
    )
    assert read(text, "qwen3_vl") == [
        ("AuntieAnne's", ((108, 175), (496, 230))),
        ("CINNAMON SUGAR", ((49, 429), (252, 450))),
    ]
    written = TASK.format(TASK.parse(text, frame("qwen3_vl")), frame("qwen3_vl"))
    assert written.text == (
        '[{"bbox_2d": [108, 175, 496, 230], "text_content": "AuntieAnne\'s"}, '
        '{"bbox_2d": [49, 429, 252, 450], "text_content": "CINNAMON SUGAR"}]'
    )
    # The digits of coordinates are numbers, and those of the format are none.
    assert [written.text[m.start : m.end] for m in written.marks[:4]] == [
        "108",
        "175",
        "496",
        "230",
    ]
    assert {written.text[i] for i in written.format_digits} == {"2"}


def test_brackets_are_part_of_a_word_written_in_location_tokens():
    place = replace(
        frame("relative_1000"),
        coordinates=Coordinates(max_value=999, format="location", tokens=1000),
    )
    quad = {"polygon": QUAD}
    boxes = ({"box": [0, 0, 9, 9], "text": text} for text in ("[06]", "[]", "a[<1"))
    words = words_of(*boxes, quad | {"text": "[EXIT]"})
    written = TASK.format(words, place).text
    assert [i.label for i in TASK.parse(written, place).items] == ["[06]", "[]", "a[<1", "[EXIT]"]
    for text in ("a[", "<loc", "b<loc0001>"):  # would be read as the beginning of a shape
        with pytest.raises(ValueError, match="contains text of the coordinate format"):
            TASK.format(words_of(quad | {"text": text}), place)


def test_the_example_of_florence_2_is_read_and_written():
    """huggingface/transformers, test_processing_florence2.py, parse_ocr_from_text_and_spans."""
    text = (
        "Hello<loc_100><loc_100><loc_200><loc_100><loc_200><loc_200><loc_100><loc_200>"
        "World<loc_300><loc_300><loc_400><loc_300><loc_400><loc_400><loc_300><loc_400>"
    )
    found = read(text, "florence2")
    assert [label for label, _ in found] == ["Hello", "World"]
    corners = ((100, 100), (200, 100), (200, 200), (100, 200))
    assert found[0][1] == tuple((x + 0.5, y + 0.5) for x, y in corners)  # transformers: the middle
    boxes = words_of(
        {"box": [100, 100, 200, 200], "text": "Hello"},
        {"box": [300, 300, 400, 400], "text": "World"},
    )
    assert TASK.format(boxes, frame("florence2")).text == text
    cut = TASK.parse(text[: -len("<loc_400>")], frame("florence2"))
    assert (len(cut.items), cut.cut) == (1, True)
    many = words_of({"polygon": [1, 1, 9, 1, 9, 9, 5, 9, 1, 9], "text": "arc"})
    with pytest.raises(ValueError, match=r"the word 'arc' has 5 points.*task.shape to box"):
        TASK.format(many, frame("florence2"))


@pytest.mark.parametrize(
    ("preset", "text"),
    [
        ("paligemma", "<loc0205><loc0102><loc0409><loc0307> [06]"),
        ("qwen2_vl", "<|object_ref_start|>[06]<|object_ref_end|><|box_start|>"
         "(100,200),(300,400)<|box_end|>"),
        ("llava", '[{"bbox_2d": [0.100, 0.200, 0.300, 0.400], "text_content": "[06]"}]'),
        ("qwen3_vl", '[{"bbox_2d": [100, 200, 300, 400], "text_content": "[06]"}]'),
        ("gemma3", '[{"box_2d": [200, 100, 400, 300], "label": "[06]"}]'),
    ],
)  # fmt: skip
def test_the_form_of_each_family(preset, text):
    answer = words_of({"box": [100.0, 200.0, 300.0, 400.0], "text": " [06]\n"})
    assert TASK.format(answer, frame(preset)).text == text
    (item,) = TASK.parse(text, frame(preset)).items
    assert item.label == "[06]"
    twice = TASK.format(Instances((item, item)), frame(preset)).text
    limits = ListLimits(TASK, PredictConfig(max_objects=1))
    short = limits.shorten(twice, TASK.parse(twice, frame(preset)), frame(preset))
    assert short.text == text
    if text[0] == "[":
        fenced = f"```json\n{text}\n```"
        assert reward("format", task=TASK).score(fenced, answer, frame(preset)).value == 1


@pytest.mark.parametrize(
    ("family", "prompt", "shape"),
    [
        ("paligemma", "ocr", "box"),
        ("florence2", "<OCR_WITH_REGION>", "polygon"),
        ("qwen3_vl", "Spotting all the text in the image with word-level", "box"),
        ("llava", "Read every word, and locate it.", "polygon"),
    ],
)
def test_each_family_is_asked_as_it_was_trained(family, prompt, shape, tmp_path):
    config = read_config(
        "text_detection_tiny", [f"model={{family: {family}, name: tiny}}", "task=text_spotting"]
    )
    assert config.task.prompt.startswith(prompt)
    assert config.task.shape == shape


def test_a_format_of_words_alone_is_for_no_other_task():
    written = "model.coordinates={preset: florence2, format: florence2_words}"
    read_config("text_detection_tiny", [written, "task=text_spotting"])
    with pytest.raises(ValueError, match=r"only .* text_spotting.* 'text_detection'; .* florence2"):
        read_config("text_detection_tiny", [written])


@pytest.mark.parametrize("preset", ["qwen3_vl", "gemma3", "relative_1000", "glm_v"])
def test_any_text_is_written_and_parsed_again(preset):
    draw, task = random.Random(preset), TextSpotting(order="rows")
    grammar = re.compile(task.grammar(frame(preset)))
    characters = "aZ09é日'\"\\/[](){}<>,;:.-|\U0001f600 "
    for _ in range(60):
        items = [
            Instance(
                Polygon(tuple((draw.randint(0, 1000), draw.randint(0, 1000)) for _ in range(4))),
                "".join(draw.choices(characters, k=draw.randint(1, 9))).strip() or "x",
            )
            for _ in range(draw.randint(0, 4))
        ]
        answer = Instances(tuple(items))
        text = task.format(answer, frame(preset)).text
        assert task.parse(text, frame(preset)) == answer
        assert grammar.fullmatch(text)


def test_the_text_of_a_row_is_the_answer_and_an_empty_one_is_ignored():
    answer = words_of(
        {"polygon": QUAD, "text": "Genaxis  Theatre", "label": "word"},
        {"polygon": QUAD, "text": "###", "ignore": True},
        {"polygon": QUAD, "text": " "},
    )
    assert [(i.label, i.ignore) for i in answer.items] == [
        ("Genaxis Theatre", False), ("", True), ("", True)
    ]  # fmt: skip
    assert TASK.recorded(TASK.record(answer)) == answer
    with pytest.raises(ValueError, match=r"r, line 1, instances.0: no text; .*text_detection"):
        words_of({"polygon": QUAD})
    with pytest.raises(ValueError, match=r"instances.0: expected an object"):
        words_of("x")


def distance(a, b):
    """Edit distance, from the definition."""
    if not a or not b:
        return len(a) + len(b)
    return min(
        distance(a[1:], b) + 1, distance(a, b[1:]) + 1, distance(a[1:], b[1:]) + (a[0] != b[0])
    )


def test_a_word_becomes_the_nearest_of_the_lexicon(tmp_path):
    """As in AdelaiDet, text_evaluation.py: the first with the least distance, if below 1.5."""
    draw, left_out = random.Random(1), 0
    for number in range(100):
        known = ["".join(draw.choices("abAB1", k=draw.randint(1, 4))) for _ in range(4)]
        word = "".join(draw.choices("abB2", k=draw.randint(1, 4)))
        file = tmp_path / f"{number}.txt"
        file.write_text("\ufeff" + "\r\n".join(known) + "\n\n", encoding="utf-8", newline="")
        text = TASK.format(Instances((Instance(Box(1, 2, 3, 4), word),)), frame("qwen3_vl")).text
        (item,) = TextSpotting(lexicon=str(file)).parse(text, frame("qwen3_vl")).items
        distances = [distance(word.upper(), own.upper()) for own in known]
        nearest = min(distances)
        own = known[distances.index(nearest)] if nearest < 1.5 else word
        assert (item.label, item.ignore) == (own, nearest > 1.5)
        left_out += item.ignore
    assert 10 < left_out < 90


def test_a_missing_lexicon_is_named():
    text = '[{"bbox_2d": [1, 2, 3, 4], "text_content": "a"}]'
    with pytest.raises(ValueError, match=r"task.lexicon: missing.txt cannot be read"):
        TextSpotting(lexicon="missing.txt").parse(text, frame("qwen3_vl"))
