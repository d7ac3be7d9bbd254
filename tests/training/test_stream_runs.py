"""Runs on streams: they resume at the right row, and two ranks share the rows of one."""

import json

import pytest
import torch
from mixed_rows import write_mixed
from rank_runs import run
from run_files import cut_off, log, weights
from tiny_models import small_config

from mm_numeric.training.run import train

pytestmark = pytest.mark.slow


def job(folder, rows, *overrides):
    one, other = (f"{{path: {file}, weight: {weight}}}" for file, weight in rows)
    return small_config(
        folder,
        "task={name: 'mixed_rows:Counts'}",
        f"data={{train: [{one}, {other}], test: {{path: {rows[0][0]}}}}}",
        "data.stream=true",
        "data.shuffle_rows=3",
        "objective=ntil_soft",
        "trainer.max_steps=4",
        "trainer.warmup_steps=0",
        "trainer.logging_steps=1",
        "trainer.save_steps=2",
        "trainer.save_total_limit=null",
        "trainer.adam_epsilon=1.0e-5",  # see test_ranks
        *overrides,
    )


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """Seven rows, with images and without, and three more that are as frequent."""
    folder = tmp_path_factory.mktemp("rows")
    one = write_mixed(folder / "one", "tptpttt")
    other = write_mixed(folder / "other", "ttp", id_prefix="other ")
    return (one, 1), (other, 1)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, rows):
    folder = tmp_path_factory.mktemp("whole")
    train(job(folder, rows))
    return folder


@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_over_a_stream_goes_on_where_it_was(tmp_path, rows, whole, workers):
    """Bit for bit, and whoever reads the rows."""
    config = job(tmp_path, rows, f"trainer.dataloader_num_workers={workers}")
    train(config)
    cut_off(tmp_path / "run", 2)
    train(config, resume=True)
    wanted = weights(whole / "run")
    assert all(
        torch.equal(value, wanted[name]) for name, value in weights(tmp_path / "run").items()
    )
    for line, other in zip(log(tmp_path / "run"), log(whole / "run"), strict=True):
        assert (line["loss"], line["epoch"]) == (other["loss"], other["epoch"])
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (facts["rows"], facts["steps"]) == (None, 4)


def test_a_run_that_skips_no_rows_begins_its_stream_again(tmp_path, rows):
    config = job(tmp_path, rows, "trainer.ignore_data_skip=true")
    train(config)
    cut_off(tmp_path / "run", 2)
    train(config, resume=True)
    assert [line["step"] for line in log(tmp_path / "run")] == [1, 2, 3, 4]


@pytest.mark.slow
def test_two_ranks_share_rows_and_one_goes_on_with_them(tmp_path, rows, whole):
    """Of a stream, and of a list that is grouped by length; both are cut off within an epoch."""
    twelve = write_mixed(tmp_path / "twelve", "tpttptptttpt")  # else ranks share 13 otherwise
    ways = {
        "stream": ["trainer.dataloader_num_workers=1"],
        "grouped": [
            "data.stream=false",
            f"data.train={{path: {twelve}}}",
            "trainer.train_sampling_strategy=group_by_length",
        ],
    }
    train(job(tmp_path / "alone", rows, *ways["grouped"]))
    wanted = dict.fromkeys(ways, weights(whole / "run"))
    wanted["grouped"] = weights(tmp_path / "alone" / "run")
    files = []
    for name, overrides in ways.items():
        two = ("trainer.per_device_train_batch_size=2", "trainer.ddp_timeout=100")
        config = job(tmp_path / name, rows, *two, *overrides)
        (tmp_path / name).mkdir()
        (tmp_path / name / "job.yaml").write_text(config.to_yaml())
        files.append(str(tmp_path / name / "job.yaml"))
    for ranks, step in ((2, 2), (2, 2), (1, None)):
        run(ranks, files)
        for name in ways:
            for weight, value in weights(tmp_path / name / "run").items():
                torch.testing.assert_close(
                    value, wanted[name][weight], rtol=0, atol=1e-5, msg=f"{name} {ranks} {weight}"
                )
            if step is not None:
                cut_off(tmp_path / name / "run", step)


def test_a_stream_without_a_last_step_is_rejected(tmp_path, rows):
    for setting, message in (
        ("trainer.max_steps=-1", r"data\.stream: .* set trainer\.max_steps\.$"),
        (
            "trainer.train_sampling_strategy=group_by_length",
            r"rows of a stream cannot be grouped by",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            job(tmp_path, rows, setting)
