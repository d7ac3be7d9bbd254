"""Augmented training rows: legal for the task, and the same on any number of workers."""

import dataclasses
import json
from types import SimpleNamespace

import pytest
import torch
from PIL import Image
from rectangles import write_rectangles
from tiny_models import small_config, tiny_family
from torch.utils.data import DataLoader

from mm_numeric.answers import Example, Instances, Polygon
from mm_numeric.config.data import DataConfig, DataSource
from mm_numeric.config.reader import config_from_dict, read_config
from mm_numeric.data.augment import make_augmenter
from mm_numeric.data.collator import TrainingCollator
from mm_numeric.data.examples import load_examples
from mm_numeric.data.images import open_image
from mm_numeric.data.lengths import LengthLimit
from mm_numeric.data.streaming import EpochRows, ExampleStream
from mm_numeric.data.training_set import TrainingRows
from mm_numeric.tasks.detection import Detection
from mm_numeric.tasks.grounding import Grounding

MOVES = {"flip": 0.5, "crop": 0.5, "scale": 0.5, "rotate": 0.5}


def config_of(folder, operations, task="grounding", train=None, **data):
    write_rectangles(folder / "rows")
    rows = {"path": str(folder / "rows" / "rows.jsonl")}
    raw = {
        "task": task,
        "data": {"train": train or rows, "test": rows, "augment": operations, **data},
        "model": {"name": "tiny", "dtype": "float32"},
        "trainer": {"output_dir": str(folder / "run"), "max_steps": 4},
    }
    return config_from_dict(raw, where="test", title="test")


def augmented(folder, operations, task="grounding"):
    config = config_of(folder, {"operations": operations}, task)
    rows = load_examples(config.task, config.data.train, folder, training=True)
    return rows, make_augmenter(config, rows)


def look(example):
    pixels = open_image(example).tobytes()
    return example.id, example.prompt, example.answer, example.size_px, pixels


def test_a_row_depends_on_seed_epoch_and_id_alone(tmp_path):
    rows, augment = augmented(tmp_path, {**MOVES, "colour": 0.5})
    wanted = [look(augment.draw(row, 3).example) for row in rows]
    alone = dataclasses.replace(augment, rows=())
    assert [look(alone.draw(row, 3).example) for row in rows[::-1]] == wanted[::-1]
    for other in (
        [augment.draw(row, 4) for row in rows],
        [dataclasses.replace(augment, seed=1).draw(row, 3) for row in rows],
        [augment.draw(dataclasses.replace(row, repeat=1), 3) for row in rows],
    ):
        assert [look(own.example) for own in other] != wanted


@pytest.mark.slow
def test_workers_see_the_epoch_also_if_they_persist(tmp_path):
    rows, augment = augmented(tmp_path, MOVES)
    family = tiny_family()
    collate = TrainingCollator(family, Grounding(), family.vocabulary(), augment=augment)
    rows = EpochRows(rows)
    loader = DataLoader(
        rows, batch_size=4, collate_fn=collate, num_workers=2, persistent_workers=True
    )
    labels = []
    for epoch in range(2):
        rows.on_epoch_begin(None, SimpleNamespace(epoch=epoch), None)
        own = [rows[i] for i in range(len(rows))]
        plain = [collate(own[:4]), collate(own[4:])]
        for found, wanted in zip(loader, plain, strict=True):
            assert torch.equal(found["labels"], wanted["labels"])
            assert torch.equal(found["pixel_values"], wanted["pixel_values"])
        labels.append(plain[0]["labels"].tolist())
    assert labels[0] != labels[1]


def test_the_labels_are_those_of_the_changed_image(tmp_path):
    rows, augment = augmented(tmp_path, {"flip": 1.0})
    family = tiny_family()
    collate = TrainingCollator(family, Grounding(), family.vocabulary(), augment=augment)
    width, _ = Image.open(rows[0].image).size
    for row in rows:
        box = row.answer
        mirrored = dataclasses.replace(box, x1=width - box.x2, x2=width - box.x1)
        labels = collate([dataclasses.replace(row, epoch=0)])["labels"]
        written = Grounding().format(mirrored, family.frame(width, 60)).text
        assert family.tokenizer.decode(labels[:-1]) == written


def test_a_row_that_became_too_long_is_used_as_it_is(tmp_path):
    rows, augment = augmented(tmp_path, {"scale": {"probability": 1, "least": 0.5, "most": 0.5}})
    family = tiny_family()
    collate = TrainingCollator(family, Grounding(), family.vocabulary(), augment=augment)
    row = dataclasses.replace(rows[0], epoch=0)
    assert collate.augmented(row) is not row
    short = dataclasses.replace(collate, length_limit=LengthLimit(1, "stop"))
    assert short.augmented(row) is row


def test_a_row_without_an_epoch_as_in_an_evaluation_stays(tmp_path):
    rows, augment = augmented(tmp_path, {"flip": 1.0})
    assert augment(rows[0]) is rows[0]
    assert augment(dataclasses.replace(rows[0], epoch=0)) is not rows[0]


def test_an_unreadable_image_is_reported_with_its_row(tmp_path):
    rows, augment = augmented(tmp_path, {"flip": 1.0})
    rows[0].image.write_bytes(b"no image")
    row = dataclasses.replace(rows[0], epoch=0)
    assert augment(row) is row


def test_a_row_that_no_draw_fits_is_named(tmp_path):
    rows, augment = augmented(tmp_path, {"crop": 1.0, "blur": 1.0})
    left = dataclasses.replace(rows[0], prompt="the box at the left")
    found = augment.draw(left, 0)
    assert (found.applied, found.rejected) == (("blur",), ("crop",))
    assert found.example.answer == rows[0].answer


def test_a_row_without_an_image_stays(tmp_path):
    _, augment = augmented(tmp_path, {"flip": 1.0})
    row = Example(id="0", image=None, prompt="1+1=", answer=None, where="here", epoch=0)
    assert augment(row) is row


def test_mosaic_has_the_objects_of_four_rows_with_one_question(tmp_path):
    folder = tmp_path / "rows"
    rows = [json.loads(line) for line in write_rectangles(folder).read_text().splitlines()]
    lines = []
    for i, row in enumerate(rows):
        instances = [{"box": row["box"], "label": "box"}]
        classes = ["box"] if i < 6 else ["box", "other"]
        row = {"id": row["id"], "image": row["image"], "instances": instances, "classes": classes}
        lines.append(json.dumps(row))
    (folder / "detection.jsonl").write_text("\n".join(lines))
    train = {"path": str(folder / "detection.jsonl")}
    config = config_of(tmp_path, {"operations": {"mosaic": 1.0}}, "detection", train)
    rows = load_examples(config.task, config.data.train, tmp_path, training=True)
    augment = make_augmenter(config, rows)
    for row in rows[:6]:
        found = augment.draw(row, 0)
        assert found.applied == ("mosaic",)
        assert len(found.example.answer.items) == 4
        assert found.example.size_px == (80, 60)
    assert augment.draw(rows[7], 0).rejected == ("mosaic",)  # two rows ask for both classes


def test_rotated_boxes_begin_at_the_topmost_corner_again():
    task = Detection(shape="rotated_box")
    row = {"instances": [{"rotated_box": [40, 30, 20, 10, 30]}]}
    (item,) = task.read_shapes(row, "here")
    other = Polygon(item.shape.points[2:] + item.shape.points[:2])
    moved = Instances((dataclasses.replace(item, shape=other),))
    assert task.moved_answer(moved) == Instances((item,))


def test_repeated_rows_of_a_stream_and_of_weights_are_counted(tmp_path):
    write_rectangles(tmp_path / "a", 2)
    source = DataSource(path=str(tmp_path / "a" / "rows.jsonl"))
    data = DataConfig(train=source, test=source, stream=True)
    stream = ExampleStream(Grounding(), data, seed=None).examples()
    assert [next(stream).repeat for _ in range(5)] == [0, 0, 1, 1, 2]
    write_rectangles(tmp_path / "b", 6)
    rows = tmp_path / "b" / "rows.jsonl"
    rows.write_text(rows.read_text().replace('"id": "', '"id": "b'))
    train = [
        {"path": str(tmp_path / "a" / "rows.jsonl"), "weight": 1},
        {"path": str(rows), "weight": 1},
    ]
    config = config_of(tmp_path, {"operations": {"flip": 0.5}}, train=train)
    family = tiny_family()
    collate = TrainingCollator(family, Grounding(), family.vocabulary())
    epoch = TrainingRows(config).for_trainer(collate)
    own = [row.repeat for row in epoch if not row.id.startswith("b")]
    assert own == [0, 0, 1, 1, 2, 2][: len(own)]
    assert len(own) >= 5


@pytest.mark.parametrize(
    ("augment", "message"),
    [
        ({}, "the setting 'operations' is missing"),
        ({"operations": {}}, r"operations must name at least one operation, such as {flip: 0\.5}"),
        ({"operations": {"flop": 0.5}}, "there is no operation 'flop'. Did you mean 'flip'?"),
        ({"operations": {"flip": 2}}, r"operations\.flip has a probability from 0 to 1"),
        ({"operations": {"flip": {"angle": 3}}}, r"operations\.flip has a probability"),
        ({"operations": {"flip": 0.5}, "kept": 0}, "kept is above 0 and at most 1, not 0"),
        ({"operations": {"mosaic": 0.5}}, "mosaic would change the correct answers of the "),
    ],
)
def test_bad_settings_are_one_sentence(tmp_path, augment, message):
    with pytest.raises(ValueError, match=message):
        config_of(tmp_path, augment)


def test_operations_that_change_the_answer_of_a_task_are_rejected(tmp_path):
    message = r"flip would change .* the task clock; remove it\. Legal for this task: blur, colour"
    with pytest.raises(ValueError, match=message):
        small_config(tmp_path, "data.augment={operations: {flip: 0.5}}")
    for task in ("click", "text_detection"):
        with pytest.raises(ValueError, match=f"answers of the task {task}; remove it"):
            config_of(tmp_path, {"operations": {"flip": 0.5}}, task)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"degrees": 90}, r"rotate: degrees is a number from 0 to 45, not 90\.$"),
        ({"degrees": "5"}, r"rotate: degrees is a number from 0 to 45, not '5'\.$"),
        ({"angle": 5}, r"rotate: there is no option 'angle'\. Known: degrees\.$"),
    ],
)
def test_a_bad_option_of_an_operation_is_one_sentence(tmp_path, options, message):
    config = config_of(tmp_path, {"operations": {"rotate": {"probability": 0.5, **options}}})
    with pytest.raises(ValueError, match=message):
        make_augmenter(config, [])


def test_a_prompt_with_left_in_it_is_rejected(tmp_path):
    task = {"name": "grounding", "prompt": "Give left, top, right, bottom of: {phrase}"}
    config = config_of(tmp_path, {"operations": {"flip": 0.5}}, task)
    with pytest.raises(ValueError, match=r"task\.prompt has the word 'left'"):
        make_augmenter(config, [])


@pytest.mark.parametrize("cache", ["image_cache", "vision_cache"])
def test_caches_of_changed_images_are_rejected(tmp_path, cache):
    message = f"augment changes the images in every epoch, and {cache} would"
    with pytest.raises(ValueError, match=message):
        config_of(tmp_path, {"operations": {"blur": 0.5}}, **{cache: str(tmp_path)})


def test_mosaic_of_a_stream_is_rejected(tmp_path):
    with pytest.raises(ValueError, match="mosaic draws from all training rows, and a stream"):
        config_of(tmp_path, {"operations": {"mosaic": 0.5}}, "detection", stream=True)


def test_an_operation_of_your_own_is_found_next_to_the_config(tmp_path):
    (tmp_path / "my_operations.py").write_text(
        "def grey(scene, rng, *, share=1.0):\n"
        "    return scene.with_pixels(lambda image: image.convert('L').convert('RGB'))\n"
    )
    own = {"my_operations:grey": {"probability": 1.0, "share": 0.5}}
    config = config_of(tmp_path, {"operations": {"blur": 1.0}}).to_dict()
    config["data"]["augment"]["operations"] = own
    del config["objective"]
    (tmp_path / "own.yaml").write_text(json.dumps(config))
    config = read_config(tmp_path / "own.yaml")
    assert config.plugins == str(tmp_path)
    rows = load_examples(config.task, config.data.train, tmp_path, training=True)
    augment = make_augmenter(config, rows)
    assert open_image(augment.draw(rows[0], 0).example).getpixel((0, 0)) == (76, 76, 76)  # red
