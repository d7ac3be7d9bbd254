"""The benchmark of a GPU: failures, results in files, and the table."""

import json
import multiprocessing
import os
import re
import signal
import sys
import time
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from processes import python
from torch import nn

from mm_numeric.training.callbacks.json_log import JsonLog

SCRIPTS = Path(__file__).parents[2] / "scripts" / "benchmarks"
FORK = multiprocessing.get_context("fork")


@pytest.fixture
def parts(monkeypatch):
    """The modules that the script is made of."""
    monkeypatch.syspath_prepend(SCRIPTS)
    import _gpu_facts
    import _gpu_jobs
    import _gpu_model
    import _gpu_table
    import bench_gpu

    return SimpleNamespace(
        bench=bench_gpu, facts=_gpu_facts, jobs=_gpu_jobs, model=_gpu_model, table=_gpu_table
    )


def test_speed_and_memory_of_a_run_are_read_from_its_log(parts, tmp_path):
    import _gpu_works

    log = JsonLog(tmp_path / "run" / "log.jsonl")
    log.path.parent.mkdir()
    logs = {"loss": 0.5, "speed/seconds": 3.0, "memory/peak_gib": 1.5}
    state = SimpleNamespace(is_world_process_zero=True, global_step=4)
    log.on_log(None, state, None, logs=logs)
    log.on_log(None, state, None, logs={"eval_accuracy": 0.1})
    assert _gpu_works._last_logged(tmp_path) == logs


# A section at toy size; whole_benchmarks.py runs all of them


@pytest.mark.slow
def test_all_implementations_of_a_loss_have_one_value(tmp_path):
    path = tmp_path / "gpu.json"
    options = ["--toy", "--device", "cpu", "--commit", "abc1234", "--json", path]
    done = python(SCRIPTS / "bench_gpu.py", *options, "--only", "losses")
    assert done.returncode == 0, done.stdout + done.stderr + path.with_suffix(".log").read_text()
    results = json.loads(path.read_text(encoding="utf-8"))["results"]
    assert list(results) == ["losses"]
    logits = results["losses"]["16 supervised tokens, from logits"]
    same = pytest.approx(logits["torch, cross_entropy"]["loss"], abs=1e-4)
    for name in ("torch, cross_entropy compiled", "ours before, ce", "ours, ce"):
        assert logits[name]["loss"] == same
    for head in ("trained", "frozen"):
        found = results["losses"][f"16 supervised tokens, from hidden states, head {head}"]
        full = found["torch, cross_entropy on all logits"]["loss"]
        for name in ("ours before,", "ours,"):
            assert found[f"{name} from_hidden ce"]["loss"] == pytest.approx(full, abs=1e-3)
        ntil = found["ours, from_hidden ntil"]["loss"]
        on_torch = found["ours, from_losses ntil on torch's"]["loss"]
        assert on_torch == pytest.approx(ntil, abs=0.05)  # its losses are rounded to bf16
        assert ntil > full + 0.1
    for record in (r for job in results["losses"].values() for r in job.values()):
        if record["status"] == "ok":
            assert min(record["milliseconds"]) > 0
            assert record["peak_bytes"] >= 0  # a toy needs few pages, which may be used already


# Failures, crashes and time limits


def measurement(name, **options):
    """Do what the name says."""
    if name == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    if name == "hang":
        time.sleep(60)
    if name == "error":
        raise RuntimeError("the kernel\n  cannot " + "x" * 1000)
    if name == "memory":
        raise torch.OutOfMemoryError("CUDA out of memory")
    return {"process": os.getpid(), **options}


def run_all(parts, tmp_path, *names, seconds=20.0, left=lambda: 30.0, **options):
    """Return the records of measurements, in the order in which they were made."""
    job = parts.jobs.Job(title="t", names=names, function=measurement, seconds=seconds, **options)
    return list(parts.jobs.run(job, names, left, FORK, tmp_path / "log"))


@pytest.mark.slow
@pytest.mark.parametrize("shared", [False, True])
def test_a_crash_loses_no_results(parts, tmp_path, shared):
    names = ("first", "error", "memory", "crash", "last", "very last")
    found = dict(run_all(parts, tmp_path, *names, shared_process=shared, options={"size": 3}))
    assert list(found) == list(names)
    assert found["first"]["status"] == found["last"]["status"] == "ok"
    assert found["first"]["size"] == 3
    assert found["memory"]["status"] == "out of memory"
    assert found["crash"] == {"status": "failed", "reason": "the process was ended by SIGKILL"}
    assert found["error"]["reason"].startswith("RuntimeError: the kernel cannot xxx")
    assert len(found["error"]["reason"]) == 300
    assert "Traceback" in (tmp_path / "log").read_text()
    same = found["last"]["process"] == found["very last"]["process"]
    assert same == shared


@pytest.mark.slow
def test_a_measurement_that_hangs_is_ended_and_the_next_one_runs(parts, tmp_path):
    start = time.monotonic()
    found = dict(run_all(parts, tmp_path, "hang", "last", seconds=1, shared_process=True))
    assert found["hang"] == {"status": "failed", "reason": "not finished in 1 s"}
    assert found["last"]["status"] == "ok"
    assert time.monotonic() - start < 20


@pytest.mark.slow
def test_what_is_not_reached_in_time_has_no_record(parts, tmp_path):
    assert run_all(parts, tmp_path, "first", left=lambda: 0.0) == []
    remaining = iter([30.0, 30.0, 0.5, 0.5, 0.0])
    found = run_all(parts, tmp_path, "first", "hang", "last", left=lambda: next(remaining))
    assert [name for name, _ in found] == ["first"]
    # No process starts for what is not installed.
    missing = run_all(parts, tmp_path, "crash", unavailable={"crash": "x is not installed"})
    assert missing == [("crash", {"status": "not available", "reason": "x is not installed"})]


# Results that are in the file


@pytest.fixture
def bench(parts, monkeypatch, tmp_path):
    """A function that runs a benchmark of one section, and returns it and its records."""

    def start(names=("first", "error"), *, again=False, commit="abc1234"):
        job = parts.jobs.Job(
            title="t", names=names, function=lambda name: measurement(name), seconds=20
        )
        sections = {"losses": (lambda device, toy: [job], 100)}
        monkeypatch.setattr(parts.bench, "SECTIONS", sections)
        monkeypatch.setattr(parts.bench, "context", lambda: FORK)
        options = SimpleNamespace(device="cpu", toy=True, only=["losses"], seconds=100.0,
                                  again=again, commit=commit, json=tmp_path / "b.json")  # fmt: skip
        made = parts.bench.Bench(options)
        made.run_section("losses")
        return made, json.loads(options.json.read_text())["results"]["losses"]["t"]

    monkeypatch.setattr(parts.table, "COLUMNS", {"losses": {"process": lambda r: "1"}})
    return start


@pytest.mark.slow
def test_a_second_run_measures_what_has_no_result_of_its_commit(bench, tmp_path):
    made, first = bench()
    assert made.exit_code() == 1
    _, second = bench(("first", "error", "last"))
    assert second["first"] == first["first"]
    assert second["error"]["status"] == "failed"
    assert second["last"]["status"] == "ok"
    made, third = bench(("first",), again=True)
    assert third["first"]["process"] != first["first"]["process"]
    assert made.exit_code() == 0
    before = (tmp_path / "b.json").read_text()
    with pytest.raises(SystemExit, match="has results with commit abc1234, and here it is def0"):
        bench(commit="def0")
    assert (tmp_path / "b.json").read_text() == before
    bench(("first",), commit="def0", again=True)
    assert "abc1234" not in (tmp_path / "b.json").read_text()
    (tmp_path / "b.json").write_text("[1]")
    with pytest.raises(SystemExit, match=r"b\.json is not from bench_gpu"):
        bench()


def test_a_gpu_that_an_import_has_used_is_measured_all_the_same(parts, monkeypatch, capsys):
    """No process that is forked from this one could use it."""
    methods = []

    def run(job, names, left, processes, log):
        methods.append(processes.get_start_method())
        reason = "RuntimeError: Cannot re-initialize CUDA in forked subprocess"
        failed = {"status": "failed", "reason": reason}
        yield "device", {"status": "ok"} if methods[-1] == "spawn" else failed

    monkeypatch.setattr(parts.bench, "run", run)
    monkeypatch.setattr(parts.bench, "context", lambda: FORK)
    options = SimpleNamespace(device="cuda", toy=True, seconds=9.0, again=False, commit="a",
                              json=Path("nowhere.json"))  # fmt: skip
    made = parts.bench.Bench(options)
    assert methods == ["fork", "spawn"]
    assert made.processes.get_start_method() == "spawn"
    assert (
        "Cannot re-initialize CUDA in forked subprocess): each imports" in capsys.readouterr().out
    )


# Versions and options


def test_versions_that_are_not_allowed_end_it(parts, monkeypatch, capsys):
    import _gpu_versions

    here = {}
    monkeypatch.setattr(_gpu_versions, "version", lambda name: here.get(name) or version(name))
    assert _gpu_versions.check_versions() is None
    here["transformers"] = "5.12.0"
    with pytest.raises(SystemExit) as ended:
        _gpu_versions.check_versions()
    assert ended.value.code == 2
    message = capsys.readouterr().err
    assert re.match(
        r"bench_gpu: transformers 5\.12\.0 is not \S*5\.15\S*\. It installs no", message
    )
    assert len(message.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--only", "speed"], "argument --only: invalid choice: 'speed'"),
        (["--device", "cpu"], "--device cpu needs --toy"),
        (["--toy", "--seconds", "0"], "--seconds must be > 0"),
        (["--toy", "--json", "/nowhere/b.json"], "--json: there is no folder /nowhere"),
        (["--device", "cuda"], "torch sees no GPU here; --toy runs everything at a tiny size"),
    ],
)
def test_a_mistake_is_one_sentence(parts, monkeypatch, capsys, tmp_path, words, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["bench_gpu.py", *words])
    with pytest.raises(SystemExit) as ended:
        parts.bench.arguments()
    assert ended.value.code == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


# Computed figures


def test_the_peak_is_that_of_the_device(parts):
    peaks = {
        "NVIDIA H100 80GB HBM3": 989, "NVIDIA H100 PCIe": 756, "NVIDIA H200": 989,
        "NVIDIA GH200 480GB": 989, "NVIDIA A100-SXM4-80GB": 312, "NVIDIA L40S": 362,
        "NVIDIA L4": 121, "NVIDIA GeForce RTX 4090": 165.2, "Tesla V100-SXM2-32GB": None,
    }  # fmt: skip
    assert {device: parts.facts.peak_tflops(device) for device in peaks} == peaks


def test_the_real_model_is_qwen2_5_vl_7b(parts):
    """The hub's checkpoint Qwen/Qwen2.5-VL-7B-Instruct has 8,292,166,656 parameters."""
    config = parts.model.qwen2_5_vl(toy=False)
    model = parts.model.make_model(config, "meta")
    assert sum(p.numel() for p in model.parameters()) == 8_292_166_656
    batch = parts.model.repeated(parts.model.make_batch(config, parts.model.ROW), 2)
    assert batch["input_ids"].shape == (2, 1000)
    assert (batch["labels"] != -100).sum() == 2 * 24
    assert (batch["input_ids"] == config.image_token_id).sum() == 2 * 900
    assert batch["pixel_values"].shape == (2 * 4 * 900, 3 * 2 * 14 * 14)


def test_operations_are_two_for_each_weight_and_position(parts):
    config = parts.model.qwen2_5_vl(toy=True)
    model = parts.model.make_model(config, "cpu")
    batch = parts.model.make_batch(config, parts.model.TOY_ROW)
    found = parts.model.step_flops(model, batch, head_positions=8)
    sizes = {name: module.weight.numel() for name, module in model.named_modules()
             if isinstance(module, nn.Linear)}  # fmt: skip
    positions = {"language": 48, "lm_head": 8, "merger": 16, "visual": 64}  # merges 2 x 2 patches
    wanted = {True: 0, False: 0}
    for name, size in sizes.items():
        where = next(part for part in positions if part in name)
        wanted["visual" in name] += 2 * size * positions[where]
    assert found == 2 * (wanted[False] + 2 * 48**2 * 64 * 2) + wanted[True]


@pytest.mark.parametrize("is_trained", [False, True])
def test_the_losses_before_are_cross_entropy(parts, monkeypatch, is_trained):
    import _gpu_before as before

    monkeypatch.setattr(before, "CHUNK", 40)
    hidden, head = torch.randn(7, 5, requires_grad=True), torch.randn(20, 5)
    head.requires_grad_(is_trained)
    labels, leaves = torch.randint(20, (7,)), [hidden, head][: 1 + is_trained]
    losses = (
        nn.functional.cross_entropy(hidden @ head.T, labels, reduction="none"),
        before.CrossEntropy.apply(hidden @ head.T, labels),
        before.LinearCrossEntropy.apply(hidden, head, labels),
    )
    wanted, *found = [(own, *torch.autograd.grad(own.square().sum(), leaves)) for own in losses]
    for own in found:
        torch.testing.assert_close(own, wanted)


def test_the_table_of_a_gpu(parts):
    head = {"device": "NVIDIA H100 80GB HBM3", "memory_gib": 79.1, "driver": "580.1",
            "cuda": "13.0", "commit": "abc1234", "toy": False, "torch": "2.11.0",
            "python": "3.12.3", **dict.fromkeys(parts.facts.PACKAGES, "1.0"),
            "flash-attn": "not installed"}  # fmt: skip
    estimate = {"status": "ok", "peak_bytes": 1 << 30}
    fast = {"status": "ok", "seconds_per_step": [0.25, 0.125, 0.5], "tokens_per_second": 4192.0,
            "mfu": 0.3456, "peak_bytes": 3 << 29, "loss": 11.0}  # fmt: skip
    large = {"status": "out of memory", "reason": "the device has too little memory"}
    records = {"estimate": estimate, "a": fast, "b": large, "c": None}
    page = parts.table.markdown(head, {"training": {"7B": records}})
    assert page.splitlines()[2:5] == [
        "Commit abc1234, 79.1 GiB, driver 580.1, CUDA 13.0, torch 2.11.0.",
        "transformers 1.0, accelerate 1.0, peft 1.0, trl 1.0, deepspeed 1.0, triton 1.0, "
        "liger-kernel 1.0, cut-cross-entropy 1.0, Python 3.12.3.",
        "Not installed: flash-attn.",
    ]
    assert page.splitlines()[-6:] == [
        "| 7B | ms per step | tokens/s | MFU | peak GiB | loss |",
        "| :-- | --: | --: | --: | --: | --: |",
        "| estimate |  |  |  | 1.0 |  |",
        "| a | 250.0 (125.0 to 500.0) | 4,192 | 34.6% | 1.5 | 11.0000 |",
        "| b | out of memory: the device has too little memory |  |  |  |  |",
        "| c | not run |  |  |  |  |",
    ]
