"""score says in one line if another published frame reads the answers much better."""

import pytest
from result_files import write_lines

from mm_numeric.cli import main as cli
from mm_numeric.evaluation.score import score
from mm_numeric.geometry.coordinates import COORDINATES
from mm_numeric.geometry.frame_presets import FAMILY_RESIZES, FrameRule, published_frames
from mm_numeric.tasks.grounding import Grounding

SIZE = 1920, 1080
BOXES = [(90 * i, 40 * i, 90 * i + 200, 40 * i + 150) for i in range(20)]


def write(folder, written, declared, boxes=BOXES):
    """Write answers in a frame, of which a share is right, that are declared to be in another."""
    task, lines = Grounding(), []
    for i, box in enumerate(boxes):
        target = task.recorded(list(box))
        lines.append(
            {"id": str(i), "task": "grounding", "target": list(box), "frame": declared.to_dict(),
             "text": task.format(target, written).text if i % 10 < 7 else "I see none."}
        )  # fmt: skip
    return write_lines(folder / "predictions.jsonl", lines)


def frame_of(option):
    return published_frames()[option].frame(*SIZE)


@pytest.mark.parametrize(
    ("written", "declared"),
    [
        ("--family qwen2_5_vl", "--family qwen3_vl"),
        ("--family qwen3_vl", "--family qwen2_5_vl"),
        ("--frame pixels_original", "--frame relative_1000"),
        ("--frame percent", "--family llava"),
    ],
)
def test_a_frame_that_reads_the_answers_much_better_is_named(tmp_path, capsys, written, declared):
    path = write(tmp_path, frame_of(written), frame_of(declared))
    assert cli.main(["score", str(path)]) == 0
    said = [line for line in capsys.readouterr().err.splitlines() if "another frame" in line]
    assert said == [
        f"mm-numeric: {path}: the answers seem to be in another frame: Acc@0.5 of the first 20 is "
        f"0.00 % in the declared one, and 70.00 % with {written}; check --family, --frame or the "
        "field frame of the answers."
    ]
    assert score(path, write=False).metrics()["accuracy_at_0.5"]["value"] == 0  # it is only named


@pytest.mark.parametrize("count", [20, 9])
def test_answers_in_their_frame_or_a_few_wrong_ones_are_no_case(tmp_path, capsys, count):
    own, other = frame_of("--family qwen2_5_vl"), frame_of("--family qwen3_vl")
    write(tmp_path, own, own if count == 20 else other, BOXES[:count])
    assert cli.main(["score", str(tmp_path / "predictions.jsonl")]) == 0
    assert "frame" not in capsys.readouterr().err


def test_every_frame_that_has_a_name_is_compared():
    found = published_frames()
    assert len(found) == len(COORDINATES) - 1  # pixels_resized needs limits of the area
    assert found["--family qwen2_vl"] == FrameRule.of_family("qwen2_vl")
    assert {f"--family {name}" for name in FAMILY_RESIZES} < set(found)
