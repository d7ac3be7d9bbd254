"""predict on any number of ranks, in real processes over gloo: always the same file."""

import json
import signal

import predict_ranks
import pytest
import torch
from tiny_models import small_config

from mm_numeric.cli import main as cli
from mm_numeric.config.compare import Resources
from mm_numeric.inference import generate
from mm_numeric.inference.generate import predict
from mm_numeric.inference.predictions_file import answer_order
from mm_numeric.models.loading import load_family, model_source, share_weights
from mm_numeric.training.run import train

RULES = ("greedy", "median")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return a finished run, and its predictions by one rank in batches of 2."""
    folder = tmp_path_factory.mktemp("run")
    train(small_config(folder, "trainer.max_steps=20", "trainer.learning_rate=3.0e-3"))
    predict(folder / "run", None, folder / "run" / "predictions.jsonl", batch_size=2)
    return folder / "run"


def files(folder):
    """Return the names of the files that are left in a folder of predictions."""
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


@pytest.mark.slow
def test_any_number_of_ranks_writes_the_same_file_also_after_a_kill(run, tmp_path):
    """Killed on two ranks, resumed on three with another one killed, and finished by two."""
    whole = (run / "predictions.jsonl").read_bytes()
    out, text = tmp_path / "new" / "p.jsonl", tmp_path / "output.txt"
    words = ["--model", run, "--out", out, "--batch-size", "2"]
    codes = predict_ranks.run(text, words, ranks=2, killed=(1, 2))
    assert codes[1] == -signal.SIGKILL
    assert codes[0] != 0
    assert files(out.parent) == ["p.jsonl", "p.jsonl.made_by.json", "p.jsonl.rank1"]
    lines = answer_order(whole.decode().splitlines(keepends=True))
    # Of the six batches, rank 0 has answered three, and rank 1 one.
    assert out.read_text() == "".join(lines[i] for i in (0, 1, 4, 5, 8, 9))
    part = out.with_name("p.jsonl.rank1")
    assert part.read_text() == "".join(lines[2:4])
    part.write_text(part.read_text()[:-9])  # and the end of a line was not written
    assert predict_ranks.run(text, words, ranks=3, killed=(0, 1))[0] == -signal.SIGKILL
    assert out.with_name("p.jsonl.rank1").read_text() == "".join(lines[6:8])
    assert predict_ranks.run(text, words, ranks=2) == [0, 0], text.read_text()
    assert text.read_text().count("new answers") == 1
    assert out.read_bytes() == whole
    assert files(out.parent) == ["p.jsonl", "p.jsonl.made_by.json"]
    assert predict_ranks.run(text, words, ranks=3) == [0, 0, 0]
    assert f"0 new answers: {out}" in text.read_text()
    assert cli.main(["score", str(out)]) == 0


@pytest.mark.slow
def test_ranks_share_the_rows_of_several_rules_and_one_reports_an_error(run, tmp_path):
    alone, out, text = tmp_path / "alone.jsonl", tmp_path / "p.jsonl", tmp_path / "output.txt"
    words = ["--model", run, "--batch-size", "4", "--limit", "10", "--decode", "median"]
    assert cli.main(["predict", *map(str, words), "--out", str(alone)]) == 0
    assert predict_ranks.run(text, [*words, "--out", out], ranks=2) == [0, 0], text.read_text()
    assert out.read_bytes() == alone.read_bytes()
    assert len(alone.read_text().splitlines()) == 10
    words += ["--out", out, "--mass", "0.5"]
    assert predict_ranks.run(text, words, ranks=2) == [2, 2]
    found = [line for line in text.read_text().splitlines() if line.startswith("mm-numeric: ")]
    assert len(found) == 1
    assert "with other settings (decode.mass is" in found[0]


@pytest.mark.slow
def test_two_ranks_share_the_weights_of_a_model(run, tmp_path):
    out, text = tmp_path / "p.jsonl", tmp_path / "output.txt"
    words = ["--model", run, "--out", out, "--batch-size", "2", "--tensor-parallel"]
    assert predict_ranks.run(text, words, ranks=2) == [0, 0], text.read_text()
    assert out.read_bytes() == (run / "predictions.jsonl").read_bytes()
    assert files(tmp_path) == ["output.txt", "p.jsonl", "p.jsonl.made_by.json"]
    out.unlink()
    assert predict_ranks.run(text, words, ranks=3) == [2, 2, 2]
    assert "3 ranks cannot share the 4 key-value heads of" in text.read_text()


@pytest.mark.slow
def test_weights_that_cannot_be_shared_are_one_sentence(run, tmp_path):
    with pytest.raises(ValueError, match=r"tensor_parallel: there is one rank; start several"):
        predict(run, None, tmp_path / "p.jsonl", tensor_parallel=True)
    config = small_config(tmp_path, "model.family=t5", "task=arithmetic")
    source = model_source(config, tmp_path)
    family = load_family(config, source)
    with pytest.raises(ValueError, match="no tensor parallel plan for a model like"):
        share_weights(family, source, config.model, 2)


@pytest.mark.slow
def test_a_rank_whose_folder_is_not_shared_is_reported(run, tmp_path, monkeypatch):
    monkeypatch.setattr("mm_numeric.inference.generate._append_answers", lambda *args: None)
    with pytest.raises(ValueError, match=r"p\.jsonl: the answers to 12 rows are missing"):
        predict(run, None, tmp_path / "p.jsonl")


@pytest.mark.slow
def test_answers_in_another_order_are_sorted_and_a_deleted_file_is_not_resumed(run, tmp_path):
    out, part = tmp_path / "p.jsonl", tmp_path / "p.jsonl.rank7"
    whole = (run / "predictions.jsonl").read_text()
    predict(run, None, out, batch_size=2)
    lines = out.read_text().splitlines(keepends=True)
    out.write_text("".join(lines[4:]))
    part.write_text("".join(lines[:5]))
    assert predict(run, None, out, batch_size=2) == 0
    assert out.read_text() == whole
    assert not part.exists()
    out.unlink()
    part.write_text(json.dumps({**json.loads(lines[0]), "text": "other"}) + "\n")
    assert predict(run, None, out, batch_size=2, limit=1) == 1
    assert json.loads(out.read_text())["text"] == json.loads(lines[0])["text"]


def test_a_task_that_starts_again_keeps_its_complete_answers(run, tmp_path, monkeypatch):
    """Two tasks, called here; the first one had been lost in its second answer."""
    out, whole = tmp_path / "p.jsonl", (run / "predictions.jsonl").read_text()
    lines, answered = answer_order(whole.splitlines(keepends=True)), []

    def lose_and_map(function, shares, common, asked):
        assert [number for number, _ in shares] == [1, 2]
        out.with_name("p.jsonl.rank1").write_text("".join(lines[:2]) + lines[4][:-9])
        for share in shares:
            function(share, common)

    original = generate.generate
    monkeypatch.setattr(generate, "generate", lambda *args, **more: answered.append(args[2]) or
                        original(*args, **more))  # fmt: skip
    monkeypatch.setattr(generate, "parallel_tasks", lambda asked: 2)
    monkeypatch.setattr(generate, "map_tasks", lose_and_map)
    threads = Resources(cpus=torch.get_num_threads())
    assert predict(run, None, out, batch_size=2, on_ray=threads) == 12
    assert out.read_text() == whole
    assert len(answered) == 5
    assert files(tmp_path) == ["p.jsonl", "p.jsonl.made_by.json"]


def test_tasks_are_not_started_by_several_ranks(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match=r"--engine ray .* without a launcher such as torchrun"):
        predict(tmp_path, None, tmp_path / "p.jsonl", on_ray=Resources())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--engine", "ray"], "--engine ray requires --resources, such as gpus=1 cpus=4."),
        (["--resources", "gpus=1"], "--resources requires --engine ray."),
        (["--engine", "ray", "--resources", "gpus=2"], "gpus is 0 or 1, not 2; a task"),
    ],
)
def test_resources_and_engine_belong_together(words, message, capsys):
    assert cli.main(["predict", "--model", "run", *words]) == 2
    assert message in capsys.readouterr().err
