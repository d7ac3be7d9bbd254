"""Training as a user starts it: real processes, killed and resumed, on one rank and on two."""

import json
import multiprocessing
import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image
from run_files import same, weights, write_config
from safetensors.torch import load_file, save_file
from tiny_models import small_config, tiny_checkpoint
from train_runs import run_to_error, start

from mm_numeric.data.training_set import TrainingRows
from mm_numeric.io.atomic_files import locked
from mm_numeric.runs.folder import last_checkpoint
from mm_numeric.runs.manifest import write_manifest
from mm_numeric.training.callbacks.evaluation import check_test_rows, evaluation_data
from mm_numeric.training.run import train

SHORT = ("trainer.max_steps=2", "trainer.save_strategy='no'")


@pytest.mark.slow
def test_same_seed_same_weights_other_seed_other_weights(tmp_path):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        train(small_config(tmp_path / name, f"trainer.seed={seed}", *SHORT))
    assert same(tmp_path / "a" / "run", tmp_path / "b" / "run")
    assert not same(tmp_path / "a" / "run", tmp_path / "c" / "run")


def test_a_run_is_not_trained_over(tmp_path):
    config = small_config(tmp_path, *SHORT)
    train(config)
    with pytest.raises(ValueError, match=r"already contains this run: add --resume"):
        train(config)
    other = small_config(tmp_path, *SHORT, "objective=emd")
    with pytest.raises(
        ValueError, match=r"contains another run: objective\.balance|objective\.name"
    ):
        train(other)
    with pytest.raises(ValueError, match=r"trainer\.max_steps is 2 there and 3 here"):
        train(small_config(tmp_path, *SHORT, "trainer.max_steps=3"), resume=True)


@pytest.mark.slow
def test_a_run_killed_after_its_last_checkpoint_ends_with_the_same_weights(tmp_path):
    """A schedule that does not end at 0 shows a step too many."""
    schedule = "trainer.lr_scheduler_type=constant_with_warmup"
    config = small_config(tmp_path, schedule, "trainer.max_steps=2")
    train(config)
    run = tmp_path / "run"
    whole = weights(run)
    shutil.rmtree(run / "model")
    (run / "run.json").unlink()
    train(config, resume=True)
    assert all(torch.equal(whole[name], value) for name, value in weights(run).items())
    assert json.loads((run / "run.json").read_text())["steps"] == 2
    written = (run / "run.json").stat().st_mtime_ns
    train(config, resume=True)
    assert (run / "run.json").stat().st_mtime_ns == written


@pytest.mark.slow
def test_a_checkpoint_that_lacks_a_weight_is_rejected(tmp_path):
    config = small_config(tmp_path, "trainer.max_steps=2")
    train(config)
    (tmp_path / "run" / "run.json").unlink()
    file = tmp_path / "run" / "checkpoint-2" / "model.safetensors"
    kept = load_file(file)
    kept.pop("model.norm.weight")
    save_file(kept, file, metadata={"format": "pt"})
    write_manifest(file.parent)
    with pytest.raises(ValueError, match=r"checkpoint-2: 1 missing_keys \(.*norm\.weight"):
        train(config, resume=True)


@pytest.mark.slow
def test_a_checkpoint_that_is_damaged_is_one_sentence(tmp_path):
    config = small_config(tmp_path, "trainer.max_steps=2")
    train(config)
    (tmp_path / "run" / "run.json").unlink()
    checkpoint = tmp_path / "run" / "checkpoint-2"
    for name, message in (
        ("model.safetensors", r"model\.safetensors: not a whole file of weights \(.*\); delete"),
        (
            "optimizer.pt",
            r"optimizer\.pt: it cannot be read as tensors \(RuntimeError: .*\); delete",
        ),
    ):
        whole = (checkpoint / name).read_bytes()
        (checkpoint / name).write_bytes(whole[:1000])
        damaged = rf"checkpoint-2: {name} is not as saved, .*; restore the"
        with pytest.raises(ValueError, match=damaged):
            train(config, resume=True)
        write_manifest(checkpoint)  # as if the file were too large for a checksum
        with pytest.raises(ValueError, match=message):
            train(config, resume=True)
        (checkpoint / name).write_bytes(whole)
        write_manifest(checkpoint)


@pytest.mark.slow
def test_a_run_that_failed_before_a_step_does_not_block_its_correction(tmp_path):
    with pytest.raises(ValueError, match=r"model\.name: 'no/such' cannot be loaded"):
        train(small_config(tmp_path, "model.name=no/such", "trainer.max_steps=1"))
    train(small_config(tmp_path, "trainer.max_steps=1"))


@pytest.mark.slow
def test_two_processes_do_not_train_in_one_folder(tmp_path):
    with locked(tmp_path / "run"), pytest.raises(ValueError, match="another process is using"):
        train(small_config(tmp_path))
    train(small_config(tmp_path, "trainer.max_steps=1"))


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
def test_an_unreadable_image_is_named_with_its_row(tmp_path, workers):
    (tmp_path / "a.png").write_text("not an image")
    Image.new("RGB", (60, 60)).save(tmp_path / "b.png")
    rows = [{"id": name, "image": f"{name}.png", "time": "7:05"} for name in "ab"]
    source = rows_file(tmp_path, *rows)
    message = r"^\S*rows\.jsonl, line 1: the image .*a\.png cannot be"
    with pytest.raises(ValueError, match=message) as error:
        train(small_config(tmp_path, source, f"trainer.dataloader_num_workers={workers}"))
    assert "\n" not in str(error.value)
    assert not multiprocessing.active_children()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ("label_smoothing_factor=0.1", "the objective is the loss"),
        ("average_tokens_across_devices=false", "counts over all ranks"),
        ("remove_unused_columns=true", "reads examples, not columns"),
        ("auto_find_batch_size=true", "a step would have other rows"),
        ("resume_from_checkpoint=x", "--resume"),
    ],
)
def test_settings_that_would_do_nothing_are_rejected(tmp_path, setting, why):
    with pytest.raises(ValueError, match=why):
        small_config(tmp_path, f"trainer.{setting}")


SHARING = r"accelerator_config: each rank must read the same"


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("lr_scheduler_kwargs={nonsense: 1}", r"lr_scheduler_kwargs: .*argument 'nonsense'\.$"),
        ("accelerator_config={split_batches: true}", SHARING),
        ("accelerator_config={dispatch_batches: true}", SHARING),
        ("accelerator_config={even_batches: false}", SHARING),
    ],
)
def test_settings_that_would_change_the_rows_of_a_step_are_rejected(tmp_path, setting, message):
    config = small_config(tmp_path, f"trainer.{setting}")
    with pytest.raises(ValueError, match=rf"trainer\.{message}"):
        train(config)


@pytest.mark.slow
def test_what_cannot_be_resumed_is_not(tmp_path):
    config = small_config(tmp_path, "trainer.save_only_model=true", "trainer.max_steps=2")
    train(config)
    (tmp_path / "run" / "run.json").unlink()
    with pytest.raises(ValueError, match="lack the state of the optimiser"):
        train(config, resume=True)


def test_a_folder_with_something_else_in_it_is_left_alone(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").write_text("mine")
    with pytest.raises(ValueError, match="is not empty and contains no run"):
        train(small_config(tmp_path))
    assert (tmp_path / "run" / "thesis.tex").read_text() == "mine"


def test_a_user_s_own_config_in_the_folder_is_left_alone(tmp_path):
    (tmp_path / "run").mkdir()
    own = "# my notes\n" + small_config(tmp_path).to_yaml()
    (tmp_path / "run" / "config.yaml").write_text(own)
    with pytest.raises(ValueError, match="is not empty and contains no run"):
        train(small_config(tmp_path))
    assert (tmp_path / "run" / "config.yaml").read_text() == own


@pytest.mark.slow
def test_a_checkpoint_that_was_cut_off_is_not_resumed_from(tmp_path):
    steps = ("trainer.max_steps=3", "trainer.save_steps=1", "trainer.save_total_limit=null")
    train(small_config(tmp_path, *steps))
    run = tmp_path / "run"
    assert last_checkpoint(run).name == "checkpoint-3"
    (run / "checkpoint-3" / "manifest.json").unlink()  # written when every rank has saved
    assert last_checkpoint(run).name == "checkpoint-2"
    for step in (2, 1):
        (run / f"checkpoint-{step}" / "manifest.json").unlink()
    message = (
        r"no checkpoint to resume from \(checkpoint-1, checkpoint-2, checkpoint-3: saved incom"
    )
    (run / "run.json").unlink()
    with pytest.raises(ValueError, match=message):
        train(small_config(tmp_path, *steps), resume=True)


def rows_file(folder: Path, *rows: dict) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"data.train={{path: {folder / 'rows.jsonl'}}}"


def test_a_wrong_row_ends_the_run_before_anything_is_written(tmp_path):
    Image.new("RGB", (60, 60)).save(tmp_path / "a.png")
    source = rows_file(tmp_path, {"id": "1", "image": "a.png", "time": "25:00"})
    with pytest.raises(ValueError, match=r"rows\.jsonl, line 1: '25:00' is not a time"):
        train(small_config(tmp_path, source))
    assert not (tmp_path / "run").exists()


def test_a_wrong_test_row_ends_the_run_before_anything_is_written(tmp_path):
    """Such as a class that only the test rows have, with which ``predict`` would not start."""
    Image.new("RGB", (60, 60)).save(tmp_path / "a.png")
    for name, label in (("train", "cup"), ("test", "mouse")):
        row = {"id": "1", "image": "a.png", "instances": [{"box": [1, 2, 30, 40], "label": label}]}
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row))
    sources = [f"data.{name}={{path: {tmp_path / name}.jsonl}}" for name in ("train", "test")]
    task = "task={name: detection, classes: [cup]}"
    with pytest.raises(ValueError, match=r"test\.jsonl, line 1: the label 'mouse' is not among"):
        train(small_config(tmp_path, task, *sources))
    with pytest.raises(ValueError, match=r"absent\.jsonl"):
        train(small_config(tmp_path, f"data.test={{path: {tmp_path / 'absent.jsonl'}}}"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("test", "stream", "warned"),
    [
        ("rows", "false", True),
        ("rows", "true", True),
        ("copy", "false", True),  # of the same questions
        ("other", "false", False),  # about the same image
    ],
)
def test_a_run_on_its_test_rows_is_warned_about(tmp_path, logged, test, stream, warned):
    Image.new("RGB", (60, 60)).save(tmp_path / "a.png")
    row = {"id": "1", "image": "a.png", "phrase": "a cup", "box": [1, 2, 30, 40]}
    for name, own in (("rows", row), ("copy", row), ("other", {**row, "phrase": "a hat"})):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(own))
    sources = [
        f"data.{split}={{path: {tmp_path / name}.jsonl}}"
        for split, name in (("train", "rows"), ("test", test))
    ]
    config = small_config(tmp_path, "task=grounding", *sources, f"data.stream={stream}")
    check_test_rows(config, evaluation_data(config), TrainingRows(config))
    assert ("every test question is a training question" in logged.getvalue()) == warned


def without_digit(folder: Path, digit: str) -> Path:
    """Copy the tiny checkpoint, with one digit taken out of its tokenizer."""
    for file in Path(tiny_checkpoint()).iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["§"] = vocabulary.pop(digit)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder


def test_a_tokenizer_without_a_digit_is_rejected(tmp_path):
    (tmp_path / "model").mkdir()
    folder = without_digit(tmp_path / "model", "7")
    with pytest.raises(ValueError, match=r"no token for the digit 7"):
        train(small_config(tmp_path, f"model.name={folder}"))


@pytest.mark.slow
def test_what_a_user_can_mend_is_one_sentence_and_exit_code_2(tmp_path):
    good = write_config(tmp_path)
    assert "no checkpoint to resume from" in run_to_error(start(good, "--resume"))
    sentence = run_to_error(start(good, "model.name=no/such-model"))
    assert "model.name: 'no/such-model' cannot be loaded" in sentence
    sentence = run_to_error(start(good, "trainer.lr_scheduler_type=cosin"))
    assert "trainer.lr_scheduler_type: cosin is not a valid" in sentence


@pytest.mark.slow
def test_a_real_folder_takes_the_place_of_tiny(tmp_path):
    train(small_config(tmp_path, f"model.name={tiny_checkpoint()}", "trainer.max_steps=1"))
    assert (tmp_path / "run" / "model" / "model.safetensors").is_file()
    assert not (tmp_path / "run" / "init").exists()
