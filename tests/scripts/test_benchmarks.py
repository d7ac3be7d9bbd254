"""The benchmark and the figures of the losses, run at a tiny size."""

import ctypes
import json
import math
import re
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from objective_steps import SPECS
from processes import python

from mm_numeric.losses import cross_entropy
from mm_numeric.registry import TERMS

pytestmark = pytest.mark.slow  # each starts the script

PRESETS = [name for name in SPECS if not name.endswith("_published")]
SCRIPTS = Path(__file__).parents[2] / "scripts"
TINY = ["--vocabulary", "200", "--rows", "16", "--width", "32", "--repeats", "1"]


def run(script, *arguments):
    """Run a script to its end, and return what it prints."""
    done = python(SCRIPTS / script, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    """What the default run writes, and the file."""
    path = tmp_path_factory.mktemp("bench") / "bench.json"
    printed = run("benchmarks/bench_losses.py", *TINY, "--device", "cpu", "--json", path)
    assert "torch CE + ntloss WAS" in printed
    return json.loads(path.read_text(encoding="utf-8")), path


@pytest.fixture
def parts(monkeypatch):
    """The modules that the scripts are made of."""
    monkeypatch.syspath_prepend(SCRIPTS)
    monkeypatch.syspath_prepend(SCRIPTS / "benchmarks")
    import _bench
    import _measure
    import _targets

    return SimpleNamespace(bench=_bench, measure=_measure, targets=_targets)


def test_everyone_is_measured(bench):
    assert bench[0]["targets"] == []  # they are for sizes of their own
    results = {(each["block"], each["name"]): each for each in bench[0]["results"]}
    assert len(results) == len(bench[0]["results"])
    full = {name for block, name in results if block == "CE, from logits"}
    forms = {f"torch CE + ntloss {form}" for form in ("WAS", "MSE", "MAE", "Huber", "number level")}
    assert full == {"torch CE", *PRESETS, *forms}
    for share in (0, 50, 95):
        padded = f"CE, from logits [b, t, v] and labels [b, t], shift=True, {share}% ignored"
        assert {name for block, name in results if block == padded} == {"torch CE", *PRESETS}
    for (block, name), each in results.items():
        assert each["waits"] is None
        assert each["peak_bytes"] >= 0  # of a few pages, which may have been used before
        if block.startswith("From hidden"):
            assert each["milliseconds"] == []
        else:
            assert min(each["milliseconds"]) > 0, name
            assert each["ratio"] > 0
        assert (each["rival_ratio"] is not None) == (block.startswith("CE") and bool(each["rival"]))


def test_memory_of_every_library_is_measured(parts):
    """64 MiB of torch and 96 MiB of numpy, of which a quarter is used; the first 64 are freed."""

    def step():
        torch.ones(16 << 20)
        pages = np.zeros(96 << 20, np.uint8)
        pages[: 24 << 20] = 1
        torch.ones(4 << 20)

    mib = 1 << 20
    assert parts.measure.peak_cpu(step) == pytest.approx(64 * mib, abs=4 * mib)

    def held():
        first = torch.ones(16 << 20)
        pages = np.zeros(96 << 20, np.uint8)
        pages[: 24 << 20] = 1
        return first, pages

    assert parts.measure.peak_cpu(held) == pytest.approx(88 * mib, abs=4 * mib)


def test_freed_memory_is_not_used_unseen(parts):
    """64 MiB in blocks of 64 KiB, which glibc keeps when they are freed."""
    small = [torch.ones(1 << 14) for _ in range(1024)]
    hold = torch.ones(1 << 14)  # at the end of the heap, so that nothing below it is returned
    del small

    def step():
        return [torch.ones(1 << 14) for _ in range(1024)]

    assert parts.measure.peak_cpu(step) > 60 << 20
    del hold


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_from_hidden_takes_the_memory_of_one_chunk(monkeypatch, parts, dtype):
    """The logits are 64 MiB in float32; a chunk of them is 8 MiB."""
    monkeypatch.setattr(cross_entropy, "_FROZEN_CPU_CHUNK", 1 << 21)
    labels = torch.arange(256)
    head = torch.zeros(1 << 16, 8, dtype=dtype)
    hidden = torch.zeros(256, 8, dtype=dtype, requires_grad=True)
    loss_of = parts.bench.objective_of("ce", parts.bench.Setting(vocabulary=1 << 16))
    spans = loss_of.spans(labels[None])

    def step():
        loss_of.from_hidden(hidden, head, labels, spans).loss.backward()

    # After other tests, glibc would keep freed chunks, and not use them for the next ones. With
    # this M_MMAP_THRESHOLD, it returns blocks of a MiB or more; 32 MiB is its largest own choice.
    glibc, threshold = ctypes.CDLL(None), -3
    glibc.mallopt(threshold, 1 << 20)
    # Four chunks. The first step of a process also makes what the kernels of a dtype need.
    peak = min(parts.measure.peak_cpu(step) for _ in range(2))
    glibc.mallopt(threshold, 32 << 20)
    assert peak < 32 << 20


def test_targets(parts):
    result = parts.measure.Result
    made = {"compiled": False, "rival": "", "waits": None}
    hidden = parts.bench.HIDDEN_TRAINED
    rows = [
        result(name=name, block=block, peak_bytes=100, head_gradient_bytes=75, ratios=[x], **made)
        for name, block, x in (
            ("ntl_was", parts.bench.FULL, 0.801),
            ("ntil", parts.bench.FULL, 0.8),
            ("nl_ntl", f"{parts.bench.PADDED}, 50% ignored", 0.31),
            ("ntl_was alone, reweighed", parts.bench.ALONE, 0.25),
            ("from_hidden ce", hidden, 1.0),
        )
    ]
    rows[-1].peak_ratio = 0.4
    found = {each["what"]: (each["measured"], each["met"]) for each in parts.targets.targets(rows)}
    assert found == {
        "ntl_was, from logits, time x torch CE": (0.801, False),
        "ntil, from logits, time x torch CE": (0.8, True),
        "nl_ntl, 50% ignored, time x torch CE": (0.31, True),
        "ntl_was alone, reweighed, times as fast as ntloss": (4.0, True),
        "from_hidden ce, head trained, peak x torch CE on all logits": (0.4, False),
        "from_hidden ce, head trained, peak x torch CE on all logits, "
        "less the gradient of the head": (0.1, True),
    }


def test_labels_have_the_share_of_digits(parts):
    for share in (0.0, 0.3, 0.75):
        labels = parts.bench.Setting(vocabulary=1000, rows=1000, digits=share).labels()
        assert ((labels >= 15) & (labels < 25)).sum() == pytest.approx(1000 * share, abs=2)


def test_ours_alone_is_what_ntloss_says(parts):
    setting = parts.bench.Setting(vocabulary=200, rows=64)
    compared = 0
    for block in parts.bench.blocks(setting, list(PRESETS), repeats=1):
        if block.title == parts.bench.ALONE:
            theirs, ours = (each.step(*each.inputs) for each in block.contenders)
            torch.testing.assert_close(ours.float(), theirs)
            compared += 1
    assert compared == 6  # the one that can be reweighed, both ways


BENCH = "benchmarks/bench_losses.py"


@pytest.mark.parametrize(
    ("script", "arguments", "message"),
    [
        (BENCH, "--preset ntl_wass", "there is no preset 'ntl_wass'. Did you mean 'ntl_was'?"),
        (BENCH, "--digits 0.9", "--digits must be 0 to 0.75"),
        (BENCH, "--json /nowhere/bench.json", "--json: there is no folder /nowhere"),
        (
            "figures_losses.py",
            "--out . --bench a.json",
            "a.json is not from bench_losses.py --json",
        ),
    ],
)
def test_a_mistake_is_one_sentence(tmp_path, monkeypatch, script, arguments, message):
    monkeypatch.chdir(tmp_path)
    Path("a.json").write_text("[1]", encoding="utf-8")
    done = python(SCRIPTS / script, *arguments.split())
    assert done.returncode == 2
    assert message in done.stderr.splitlines()[-1]


def test_a_gpu_is_asked_for_time_memory_and_waits(parts, monkeypatch):
    """With a stand-in for a GPU: what is asked of it, in which order, and what comes of it."""
    asked = []

    class Event:
        def __init__(self, *, enable_timing):
            assert enable_timing

        def record(self):
            asked.append("record")

        def elapsed_time(self, end):
            asked.append("elapsed")
            return 7.0

    calls = {"synchronize": None, "reset_peak_memory_stats": None, "memory_allocated": 100,
             "max_memory_allocated": 350}  # fmt: skip
    for name, answer in calls.items():
        monkeypatch.setattr(torch.cuda, name, lambda n=name, a=answer: asked.append(n) or a)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", asked.append)

    def step(inputs):
        asked.append("step")
        warnings.warn("called a synchronizing CUDA operation (Triggered ...)", stacklevel=1)
        return inputs.sum()

    leaf = torch.ones(2, requires_grad=True)
    made = [parts.measure.Contender(name=name, step=step, inputs=(leaf,)) for name in ("a", "b")]
    block = parts.measure.Block(title="both", contenders=made, repeats=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first, other = parts.measure.measure(
            [block], SimpleNamespace(type="cuda"), backward=True, report=lambda line: None
        )
    assert (other.peak_bytes, other.waits, other.milliseconds) == (250, 1, [7.0])
    assert (other.ratio, first.ratio, len(first.milliseconds)) == (1.0, 1.0, 2)
    assert leaf.grad is None
    timed = ["step", "synchronize", "record", "step", "record", "synchronize", "elapsed"]
    assert asked[-3 * len(timed) :] == 3 * timed
    peak = ["synchronize", "reset_peak_memory_stats", "memory_allocated", "step"]
    peak += ["synchronize", "max_memory_allocated"]
    assert asked[:10] == ["step", *peak, "warn", "step", "default"]


def test_the_figures_plot_what_the_losses_say(bench, tmp_path):
    run("figures_losses.py", "--out", tmp_path / "new", "--bench", bench[1])
    figures = {path.stem: path for path in (tmp_path / "new").glob("*.svg")}
    assert set(figures) == {"predicted_digit", "two_probabilities", "overhead"}
    numbers = {}
    for name, path in figures.items():
        assert path.read_text(encoding="utf-8").startswith("<svg xmlns=")
        assert "var(--" not in path.read_text(encoding="utf-8")
        numbers[name] = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    by_digit = numbers["predicted_digit"]["losses"]
    assert set(by_digit) == {"ce", *TERMS}
    rest = 0.01 / 9
    wanted = [0.99 * abs(d - 5) + rest * (25 - abs(d - 5)) for d in range(10)]
    assert by_digit["ntl_was"] == pytest.approx(wanted)
    wrong, right = -math.log(rest), -math.log(0.99)
    assert by_digit["ce"] == pytest.approx([wrong] * 5 + [right] + [wrong] * 4)
    split = numbers["two_probabilities"]
    at = {tuple(pair): i for i, pair in enumerate(split["probabilities"])}
    losses = {
        name: [values[at[p]] for p in ((0, 0), (0.5, 0.5), (1, 0))]
        for name, values in split["losses"].items()
    }
    assert losses["ntl_was"] == pytest.approx([0, 4, 4], abs=0.01)
    assert losses["ntl_mse"] == pytest.approx([0, 0, 16], abs=0.05)
    assert losses["rps"] == pytest.approx([0, 2, 4], abs=0.02)
    assert losses["ce"] == pytest.approx([0, 9.21, 9.21], abs=0.01)
    assert set(numbers["overhead"]["milliseconds"]) > {"torch CE", "ntl_was"}


def test_the_figures_of_the_pages(tmp_path):
    run("figures_losses.py", "--pages", "--out", tmp_path)
    images = (SCRIPTS.parent / "docs" / "images").glob("predicted_*_*.svg")
    assert {path.name for path in tmp_path.glob("*")} == {path.name for path in images}


def test_the_figure_of_times_needs_no_file(parts, monkeypatch):
    import figures_losses

    monkeypatch.setattr(figures_losses, "SMALL", parts.bench.Setting(vocabulary=200, rows=16))
    numbers = figures_losses.small_bench()
    assert {"torch CE", *PRESETS} < set(numbers["milliseconds"])
    assert ">ntil_soft</text>" in figures_losses.draw_overhead(numbers)


def test_scoring_is_timed():
    sizes = ["--images", 5, "--pairs", 400, "--repeats", 1, "--boxes", 300, "--rows", 200]
    lines = run("benchmarks/bench_scoring.py", *sizes).splitlines()
    assert [line.split(",")[0].split("  ")[0] for line in lines[2:4]] == ["ICDAR 2015", "DetEval"]
    assert "400 pairs of boxes, 10 x 10 in 4 images" in lines
    assert "ICDAR 2015 of 5 images, next to a loop; counts equal: True" in lines
    (line,) = [line for line in lines if line.startswith("  pycocotools")]
    assert float(line.split()[-1]) < 1e-9
    assert re.fullmatch(r" +200 clock times +\d+\.\d s of processor time +\d+ MiB", lines[-1])


def test_a_frozen_tower_takes_fewer_operations(tmp_path):
    lines = run("benchmarks/bench_frozen_tower.py", "--toy", "--rounds", "1").splitlines()
    rows = [
        line.rsplit(maxsplit=3)[1:] for line in lines if "Trainer, ce" in line or "tower" in line
    ]
    (ours, seconds, loss), (differentiated, _, same) = rows
    assert float(ours) < 0.95 * float(differentiated)
    assert float(seconds) > 0
    assert loss == same
    assert lines[-1].endswith(": met")


def test_a_step_of_every_trainer_is_measured(tmp_path):
    """whole_benchmarks.py checks the memory, with a large vocabulary."""
    path = tmp_path / "training.json"
    sizes = {"vocabulary": 300, "hidden": 32, "layers": 1, "prompt": 20, "answer": 6, "rounds": 1}
    options = [word for name, size in sizes.items() for word in (f"--{name}", size)]
    run("benchmarks/bench_training.py", *options, "--json", path)
    found = json.loads(path.read_text(encoding="utf-8"))
    results = found["results"]
    *theirs, ce, ntil = results
    assert (theirs, ce, ntil) == (
        ["transformers.Trainer", "trl.SFTTrainer", "transformers.Trainer, logits_to_keep"],
        "NumericTrainer, ce",
        "NumericTrainer, ntil",
    )
    for name in theirs:
        assert results[name]["loss"] == pytest.approx(results[ce]["loss"], abs=1e-5)
    assert results[ntil]["loss"] > results[ce]["loss"] + 0.1
    for result in results.values():
        assert 0 < result["seconds_before_optimizer"][0] < result["seconds"][0]
    assert [each["what"] for each in found["targets"] if "loss" in each["what"]] == [
        f"difference from {name}'s loss" for name in theirs
    ]


def test_kernels_are_exact_and_read_as_many_bytes_as_documented():
    printed = run("benchmarks/bench_kernels.py", "--preset", "ntl_was")
    errors, counts = printed.strip().split("\n\n")
    bounds = {"float32": 1e-5, "float16": 1e-3, "bfloat16": 2**-6}
    for _, dtype, *found in map(str.split, errors.splitlines()[1:]):
        assert max(map(float, found)) < bounds[dtype]
    page = (SCRIPTS.parent / "docs" / "losses" / "cost.md").read_text("utf-8")
    documented = re.findall(r"\| (\d+) \| (\d+) \| (\d+) \|$", page, re.M)
    found = [[float(value) for value in line.split()[-3:]] for line in counts.splitlines()[1:]]
    assert found == [[float(value) for value in row] for row in documented]
