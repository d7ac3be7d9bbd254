"""Sample answers in the form that each model's authors document, and their boxes."""

import pytest

from mm_numeric.cli.main import main
from mm_numeric.geometry.conventions import _FAMILIES, CHAT, NONE_PUBLISHED
from mm_numeric.geometry.coordinates import COORDINATES
from mm_numeric.geometry.frame_presets import FAMILY_RESIZES
from mm_numeric.geometry.frames import Frame, Resize
from mm_numeric.registry import FAMILIES, choose

SAMPLES = {  # a text in the documented form, the size of its image, and the box in pixels
    "paligemma": ("<loc0256><loc0512><loc0768><loc1023> cat", (1023, 1023), (512, 256, 1023, 768)),
    "llava": ("[0.25, 0.5, 0.75, 0.9]", (500, 500), (125, 250, 375, 450)),
    "qwen2_vl": (
        "<|object_ref_start|>the eyes on a giraffe<|object_ref_end|>"
        "<|box_start|>(176,106),(232,160)<|box_end|>",
        (2000, 1000),
        (352, 106, 464, 160),
    ),
    "qwen2_5_vl": (
        '```json\n[\n\t{"bbox_2d": [341, 258, 397, 360], "label": "top cake"}\n]\n```',
        (644, 476),  # multiples of 28: the image is not resized
        (341, 258, 397, 360),
    ),
    "qwen3_vl": ('{"bbox_2d": [74, 361, 324, 808]}', (500, 2000), (37, 722, 162, 1616)),
    "internvl": (
        "<ref>the yellow car</ref><box>[[100, 200, 300, 400]]</box>",
        (1000, 2000),
        (100, 400, 300, 800),
    ),
    "gemma3": (
        '[{"box_2d": [234, 649, 650, 863], "label": "Search button"}]',
        (2000, 1000),
        (1298, 234, 1726, 650),
    ),
    "florence2": (  # the car of the model card
        "car<loc_52><loc_332><loc_932><loc_774>",
        (640, 480),
        (33.6, 159.6, 596.8, 371.76),
    ),
    "deepseek": (
        "<|ref|>The giraffe at the back.<|/ref|><|det|>[[580, 270, 999, 900]]<|/det|>",
        (1998, 999),
        (1160, 270, 1998, 900),
    ),
    "glm_v": (
        "The coordinates of the second bottle of beer from the right on the table are "
        "<|begin_of_box|>[[94,598,177,991]]<|end_of_box|>.",
        (500, 1000),
        (47, 598, 88.5, 991),
    ),
}
EVERY = (*_FAMILIES, *CHAT.values())


@pytest.mark.parametrize("preset", SAMPLES)
def test_a_documented_answer_is_read_as_the_documented_box(preset):
    text, size, wanted = SAMPLES[preset]
    view = FAMILY_RESIZES.get(preset, Resize(kind="none")).view(*size)
    coordinates = COORDINATES[preset]
    (found,) = Frame(*size, view, coordinates).read(text).items
    # A coordinate that was rounded down is read as the centre of its step.
    half = max(size) / 2000 if coordinates.rounding == "floor" else 0
    assert [*found.shape.points[0], *found.shape.points[1]] == pytest.approx(wanted, abs=half + 0.6)


def test_the_image_id_of_lfm2_5_vl_is_skipped():
    text = '[{"image_id": 0, "bbox_2d": [74, 361, 324, 808], "label": "target"}]'
    frame = Frame(1000, 1000, Resize(kind="none").view(1000, 1000), COORDINATES["qwen3_vl"])
    (found,) = frame.read(text).items
    assert [*found.shape.points[0], *found.shape.points[1]] == [74, 361, 324, 808]
    assert found.label == "target"


def test_every_published_convention_has_a_sample_and_a_source():
    published = {each.preset for each in EVERY if NONE_PUBLISHED not in each.source}
    assert published == set(SAMPLES)
    assert {each.preset for each in EVERY} - published == {"relative_1000", "yi_vl"}


def test_families_with_a_file_of_their_own_use_their_convention():
    for each in _FAMILIES:
        assert choose(each.family, FAMILIES, "family", "test").default_coordinates == each.preset


def test_processors_of_the_table_exist():
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES

    assert set(CHAT) <= set(PROCESSOR_MAPPING_NAMES.values())


def test_ls_prints_every_convention_with_its_source(capsys):
    assert main(["ls", "--coordinates"]) == 0
    printed = capsys.readouterr().out
    assert all(line.startswith(("The", " ")) or "(family" in line for line in printed.splitlines())
    for each in EVERY:
        assert f"{each.models} (family {each.family}, coordinates {each.preset})" in printed
        assert f"source  {each.source}" in printed
    assert "<ref>red car</ref><box>[[78, 208, 500, 729]]</box>" in printed
    assert "other models (family chat, coordinates relative_1000)" in printed
