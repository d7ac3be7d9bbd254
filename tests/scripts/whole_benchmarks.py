"""The benchmarks from start to end at toy size, which ``.ci/run`` runs after the tests."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from processes import python

SCRIPTS = Path(__file__).parents[2] / "scripts"
TITLE = "tiny Qwen2.5-VL, LoRA, 2 rows of 48 tokens"


def test_every_script_loads_all_it_needs_in_a_new_process(tmp_path):
    """The other tests run scripts in processes that have imported most of it before."""
    code = "import runpy, sys\nfor path in sys.argv[2:]: runpy.run_path(path)"
    code = "import sys\nsys.path[:0] = sys.argv[1], sys.argv[1] + '/benchmarks'\n" + code
    scripts = [*SCRIPTS.rglob("bench_*.py"), *SCRIPTS.glob("figures_*.py")]
    assert len(scripts) >= 6
    command = [sys.executable, "-c", code, SCRIPTS, *scripts]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    """The records of a toy run on the CPU by section, title and name, and its Markdown page."""
    path = tmp_path_factory.mktemp("bench") / "gpu.json"
    options = ["--toy", "--device", "cpu", "--commit", "abc1234", "--json", path]
    done = python(SCRIPTS / "benchmarks" / "bench_gpu.py", *options, timeout=600)
    log = path.with_suffix(".log").read_text(encoding="utf-8")
    assert done.returncode == 0, done.stdout + done.stderr + log
    return json.loads(path.read_text(encoding="utf-8"))["results"], path.with_suffix(
        ".md"
    ).read_text()


def test_everything_is_measured_or_has_a_reason(toy):
    results, page = toy
    assert page.startswith("# bench_gpu: ")
    assert "Commit abc1234, toy size: the times mean nothing, no GPU, torch " in page
    assert list(results) == ["hardware", "losses", "training", "flash", "answers", "images",
                             "resume", "works", "batches"]  # fmt: skip
    need_gpu = {"Liger, CE", "Liger, fused linear CE", "cut-cross-entropy",
                "transformers.Trainer, Liger's loss", "ours, from_losses ntil on Liger's",
                "ours, from_losses ntil on cut-cross-entropy"}  # fmt: skip
    never = {"NumericTrainer, ce, flash_attention_2", "padding-free, flash_attention_2"}
    for jobs in results.values():
        for title, job in jobs.items():
            assert f"\n| {title} | " in page
            for name, record in job.items():
                assert f"\n| {name} | " in page
                is_missing = name in need_gpu | never
                assert record["status"] == ("not available" if is_missing else "ok"), record
                assert not is_missing or record["reason"]
    liger = results["training"][TITLE]["transformers.Trainer, Liger's loss"]
    assert liger["reason"] == "the kernels of liger-kernel need a GPU"


def test_commands_work_and_resuming_is_exact_on_a_cpu(toy):
    found = toy[0]["works"]
    for run in ("all weights", "LoRA", "DeepSpeed ZeRO-2"):
        assert found[run]["train --resume"]["distance_of_change"] == 0
        assert found[run]["train --resume"]["loss"] == found[run]["train with bf16"]["loss"]
        assert found[run]["predict"]["answers"] == 4
        assert found[run]["export"]["tensors"] > 40


def test_all_trainers_and_batches_have_one_loss(toy):
    results = toy[0]
    found = results["training"][TITLE]
    ours = found["NumericTrainer, ce"]
    for name in ("transformers.Trainer", "transformers.Trainer, logits_to_keep", "trl.SFTTrainer"):
        assert found[name]["loss"] == pytest.approx(ours["loss"], abs=2e-3)
    assert found["NumericTrainer, ntil"]["loss"] > ours["loss"] + 0.1
    assert ours["tokens_per_second"] == pytest.approx(2 * 48 / ours["median_seconds"])
    assert ours["mfu"] is None
    assert found["estimate of check-data"]["peak_bytes"] > 0
    assert results["resume"]["LoRA"]["train --resume"]["distance_of_change"] == 0
    (answers,) = results["answers"].values()
    assert answers["greedy"]["answer"] == "8:14"  # the most likely tokens
    assert answers["median"]["answer"] == "8:15"
    assert answers["mbr"]["positions"] > answers["greedy"]["positions"] == 48 + 4
    for job in [*results["batches"].values(), *results["images"].values()]:
        done = [record for record in job.values() if record["status"] == "ok"]
        assert len(done) >= 2
        for record in done:
            assert record["loss"] == pytest.approx(done[0]["loss"], rel=1e-4)
            assert min(record["seconds_per_step"]) > 0


def test_the_memory_of_a_step_of_every_trainer(tmp_path):
    path = tmp_path / "training.json"
    # Tensors of more than 32 MiB, which are returned to the operating system when they are freed.
    sizes = {"vocabulary": 151936, "hidden": 64, "layers": 1, "prompt": 94, "answer": 6}
    sizes["rounds"] = 1
    options = [word for name, size in sizes.items() for word in (f"--{name}", size)]
    done = python(SCRIPTS / "benchmarks" / "bench_training.py", *options, "--json", path)
    assert done.returncode == 0, done.stderr
    results = json.loads(path.read_text(encoding="utf-8"))["results"]
    table, logits = 151936 * 64 * 4, 151936 * 4
    for name in ("transformers.Trainer", "trl.SFTTrainer"):
        assert results[name]["peak_bytes"] > 2 * 100 * logits  # log-softmax and a gradient
    # The gradients of the head and of the embeddings, and no third for their sum; or the logits of
    # the answer and their gradient.
    # A few pages of them may have been used before.
    assert 1.9 * table < results["NumericTrainer, ce"]["peak_bytes"] < 2.5 * table
