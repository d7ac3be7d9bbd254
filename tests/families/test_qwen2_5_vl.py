"""Qwen2.5-VL: boxes are pixels of the resized image, so its size must be that of training."""

import json
import shutil

import pytest
import yaml
from tiny_models import TINY
from tiny_qwens import box_config, checkpoint, qwen

from mm_numeric.answers import Box
from mm_numeric.cli import main as cli
from mm_numeric.config.schema import ModelConfig
from mm_numeric.families.qwen2_5_vl import Qwen2_5VL
from mm_numeric.tasks.grounding import Grounding
from mm_numeric.training.run import train

MAX_PIXELS = 6 * 28**2
OTHER = 12 * 28**2


def test_boxes_are_pixels_of_the_resized_image():
    frame = qwen(Qwen2_5VL).frame(100, 60)
    assert (frame.view.width_px, frame.view.height_px) == (112, 56)
    text = Grounding().format(Box(10, 20, 40, 50), frame).text
    assert text == '[{"bbox_2d": [11, 19, 45, 47]}]'  # x * 1.12, y * 56 / 60
    assert Grounding().parse(text, frame).x1 == pytest.approx(11 / 1.12)


def test_the_far_corner_is_the_size_less_one():
    frame = qwen(Qwen2_5VL).frame(100, 60)
    text = Grounding().format(Box(0, 0, 100, 60), frame).text
    assert text == '[{"bbox_2d": [0, 0, 111, 55]}]'


def test_the_same_box_reads_otherwise_at_other_limits():
    """The reason for frame.json: the text of a box does not show which frame it is in."""
    small = Qwen2_5VL.load(
        checkpoint(Qwen2_5VL), ModelConfig(name="x", image_size={"max_pixels": 3136})
    )
    frames = qwen(Qwen2_5VL).frame(112, 112), small.frame(112, 112)
    texts = [Grounding().format(Box(28, 28, 84, 84), frame).text for frame in frames]
    assert texts == ['[{"bbox_2d": [28, 28, 84, 84]}]', '[{"bbox_2d": [14, 14, 42, 42]}]']
    assert Grounding().parse(texts[1], frames[0]) == Box(14, 14, 42, 42)


# A model is loaded in the frame that it was trained in


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of two steps with its own max_pixels."""
    folder = tmp_path_factory.mktemp("frame")
    config = box_config(folder, "qwen2_5_vl", f"model.image_size.max_pixels={MAX_PIXELS}")
    train(config)
    return config


@pytest.fixture
def run(trained, tmp_path):
    """A copy of it, for a test to change."""
    return shutil.copytree(trained.output_dir, tmp_path / "run")


def said(capsys, *arguments):
    """Run a command that must fail, and return its error message."""
    capsys.readouterr()
    assert cli.main([str(argument) for argument in arguments]) == 2
    return capsys.readouterr().err.splitlines()[-1]


@pytest.mark.slow
def test_the_frame_is_saved_next_to_the_weights_with_its_image_processor(run):
    frame = json.loads((run / "model" / "frame.json").read_text())
    assert frame["resize"]["max_pixels"] == MAX_PIXELS
    processor = json.loads((run / "model" / "processor_config.json").read_text())
    assert processor["image_processor"]["size"] == {
        "shortest_edge": 56**2,
        "longest_edge": MAX_PIXELS,
    }


@pytest.mark.slow
def test_predict_sees_images_as_training_did(run, tmp_path):
    out = tmp_path / "p.jsonl"
    assert cli.main(["predict", "--model", str(run), "--out", str(out)]) == 0
    frames = [json.loads(line)["frame"] for line in out.open()]
    assert [(f["view"]["width_px"], f["view"]["height_px"]) for f in frames] == [(84, 28), (28, 84)]
    assert frames == [Qwen2_5VL.load(f"{run}/model", TINY).frame(*size).to_dict()
                      for size in ((100, 60), (70, 112))]  # fmt: skip


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (
            f"image_size: {{max_pixels: {OTHER}}}",
            f"max_pixels {MAX_PIXELS}, and here it is {OTHER}",
        ),
        (
            f"image_size: {{max_pixels: {MAX_PIXELS}, min_pixels: 784}}",
            "min_pixels 3136, and here it",
        ),
        ("coordinates: qwen3_vl", "max_value None, and here it is 1000"),
    ],
)
def test_predict_rejects_another_frame_in_the_config(run, capsys, setting, message):
    raw = yaml.safe_load((run / "config.yaml").read_text())
    raw["model"].update(yaml.safe_load(setting))
    (run / "config.yaml").write_text(yaml.safe_dump(raw))
    sentence = said(capsys, "predict", "--model", run)
    part = setting.partition(":")[0]
    assert sentence.startswith(f"mm-numeric: model.{part}: the model in {run}/model was trained wi")
    assert message in sentence
    assert "its coordinates would be read in another frame. Set the same value, or" in sentence


@pytest.mark.parametrize("edge", ["shortest_edge", "longest_edge"])
def test_predict_rejects_an_image_processor_that_was_changed(run, capsys, edge):
    """Also if config.yaml sets the limit again, because other engines read this file only."""
    file = run / "model" / "processor_config.json"
    raw = json.loads(file.read_text())
    raw["image_processor"]["size"][edge] += 784
    file.write_text(json.dumps(raw))
    sentence = said(capsys, "predict", "--model", run)
    assert (
        f"the model in {run}/model was trained with {'min' if edge[0] == 's' else 'max'}"
        in sentence
    )
    assert "its coordinates would be read in another frame." in sentence


@pytest.mark.slow
def test_training_goes_on_in_the_same_frame_alone(run, capsys, tmp_path):
    name = f"model.name={run / 'model'}"
    config = box_config(tmp_path / "on", "qwen2_5_vl", "trainer.max_steps=1", name)
    (tmp_path / "on.yaml").write_text(config.to_yaml())
    sentence = said(capsys, "train", tmp_path / "on.yaml", f"model.image_size.max_pixels={OTHER}")
    assert f"trained with max_pixels {MAX_PIXELS}, and here it is {OTHER}" in sentence
    assert f"or delete {run}/model/frame.json to train the model for the new frame." in sentence
    assert cli.main(["train", str(tmp_path / "on.yaml")]) == 0  # the limits come with the folder
    kept = [json.loads((folder / "model" / "frame.json").read_text())
            for folder in (run, config.output_dir)]  # fmt: skip
    assert kept[0] == kept[1]
