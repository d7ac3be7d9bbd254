"""A resumed run keeps the number of rows per step on any number of ranks."""

import pytest
from tiny_models import small_config

from mm_numeric.distributed.deepspeed import with_universal_checkpoint
from mm_numeric.runs.resume import with_same_rows, write_step


@pytest.fixture
def checkpoint(tmp_path):
    folder = tmp_path / "checkpoint-4"
    (folder / "global_step4").mkdir(parents=True)
    return folder


def here(monkeypatch, ranks: int) -> None:
    monkeypatch.setenv("WORLD_SIZE", str(ranks))
    monkeypatch.setenv("RANK", "0")


@pytest.mark.parametrize(
    ("saved", "ranks", "size", "parts", "wanted"),
    [
        ((1, 8), 1, 4, 2, (4, 2)),
        ((1, 8), 2, 4, 2, (4, 1)),
        ((2, 16), 1, 4, 2, (4, 4)),
        ((1, 8), 4, 4, 2, (1, 2)),  # smaller micro-batches, as many of them
        ((1, 6), 6, 2, 3, (1, 1)),
        ((2, 8), 2, 8, 1, (4, 1)),  # from one rank to two, and from there to two again
    ],
)
def test_rows_are_kept(tmp_path, checkpoint, capsys, saved, ranks, size, parts, wanted):
    config = small_config(tmp_path, f"trainer.per_device_train_batch_size={size}",
                          f"trainer.gradient_accumulation_steps={parts}")  # fmt: skip
    write_step(checkpoint, ranks=saved[0], rows=saved[1])
    found = with_same_rows(config, checkpoint, ranks).trainer
    assert (found["per_device_train_batch_size"], found["gradient_accumulation_steps"]) == wanted
    said = capsys.readouterr().err
    assert bool(said) == (wanted != (size, parts))
    assert not said or f"so that a step keeps its {saved[1]} rows." in said


def test_rows_that_cannot_be_shared_are_one_sentence(tmp_path, checkpoint):
    write_step(checkpoint, ranks=2, rows=8)
    message = r"checkpoint-4: a step has 8 rows on 2 ranks, and 3 ranks cannot share them equally"
    with pytest.raises(ValueError, match=message):
        with_same_rows(small_config(tmp_path), checkpoint, 3)


def test_zero_2_is_read_by_other_ranks_and_zero_3_by_as_many(tmp_path, checkpoint, monkeypatch):
    write_step(checkpoint, ranks=2, rows=8)
    config = small_config(tmp_path, "trainer.deepspeed=zero2")
    here(monkeypatch, 2)
    assert with_universal_checkpoint(config, checkpoint) is config
    here(monkeypatch, 1)
    settings = with_universal_checkpoint(config, checkpoint).trainer["deepspeed"]
    assert settings["checkpoint"] == {"load_universal": True}
    assert settings["zero_optimization"]["stage"] == 2
    with pytest.raises(
        ValueError, match="saved by 2 ranks with settings of accelerate launch, which requires"
    ):
        with_universal_checkpoint(small_config(tmp_path), checkpoint)
    (checkpoint / "global_step4" / "zero_pp_rank_0_mp_rank_00_model_states.pt").touch()
    message = (
        r"saved by 2 ranks with ZeRO-3, which requires the same number of ranks; resume with 2 "
    )
    with pytest.raises(ValueError, match=message):
        with_universal_checkpoint(config, checkpoint)
