"""compare --engine: the same table as here, on a Ray cluster with a node killed."""

import importlib.util
import os
import re
import signal
import threading
import time
from pathlib import Path

import pytest
import torch
from planned import seed_configs
from run_files import same
from tiny_models import small_config

from mm_numeric.cli import main as cli
from mm_numeric.comparison.engines.local import share_done
from mm_numeric.comparison.engines.ray import required_resources
from mm_numeric.comparison.plan import open_runs, overview
from mm_numeric.comparison.run import compare, execute_one, run_failed
from mm_numeric.config.compare import Resources
from mm_numeric.distributed.ray import map_tasks
from mm_numeric.evaluation.report.summary_file import read_summary
from mm_numeric.evaluation.score import score
from mm_numeric.inference.generate import predict
from mm_numeric.io.atomic_files import LockedError
from mm_numeric.io.files import read_json
from mm_numeric.registry import import_extra
from mm_numeric.runs.folder import claim

DISTILLED = "{name: distilled, preset: ce, with: {distil: {decode: median, keep: all}}}"
SMALL = ("compare.objectives=[ce]", "compare.control=null", "compare.seeds=[0, 1]",
         "trainer.max_steps=4", "compare.warm_start.max_steps=20", "compare.jobs=1",
         "compare.resources={cpus: 1, memory_gib: 0.5}", "data.test.synthetic.rows=4",
         )  # fmt: skip


def needs(package):
    found = importlib.util.find_spec(package) is not None
    return pytest.mark.skipif(not found, reason=f"needs the package {package}")


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """Return the folder of the comparison that this process has executed."""
    return compare(small_config(tmp_path_factory.mktemp("here"), *SMALL))


@pytest.mark.parametrize(
    ("trainer", "log", "share"),
    [
        ("max_steps=8", "", 0),
        ("max_steps=8", '{"step": 2}\n{"step": 4, "epoch": 0.1}\n', 0.5),
        ("max_steps=8", '{"step": 8}\n', 0.99),  # the test rows are not answered
        ("max_steps=8", '{"step": 2}\n{"st', 0),
        ("num_train_epochs=2", '{"step": 3, "epoch": 0.5}\n', 0.25),
    ],
)
def test_the_share_of_a_run_that_is_done_is_that_of_its_log(tmp_path, trainer, log, share):
    settings = ["trainer.max_steps=-1", f"trainer.{trainer}", "compare.warm_start={}"]
    run = open_runs(small_config(tmp_path, *settings), [0])[0]
    assert share_done(run) == 0
    run.config.output_dir.mkdir(parents=True)
    (run.config.output_dir / "log.jsonl").write_text(log)
    assert share_done(run) == share
    (run.config.output_dir / "results.json").write_text("{}")
    assert share_done(run) == 1


@pytest.fixture(scope="module")
def cluster():
    """Return a Ray cluster of two nodes with one core each, which this process is connected to."""
    pytest.importorskip("ray")
    import ray
    from ray.cluster_utils import Cluster

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    sizes = {"object_store_memory": 80 * 2**20, "memory": 2**30}
    head = {"num_cpus": 0, "include_dashboard": False, **sizes}
    found = Cluster(initialize_head=True, head_node_args=head)
    for _ in range(2):
        found.add_node(num_cpus=1, **sizes)
    os.environ["RAY_ADDRESS"] = found.address
    yield found
    ray.shutdown()
    found.shutdown()
    del os.environ["RAY_ADDRESS"]


def assert_same(folder, other):
    """Assert that two comparisons have the same table and weights, bit for bit."""
    assert read_summary(folder)["table"] == read_summary(other)["table"]
    for seed in (0, 1):
        for name in ("warm_start", "ce"):
            assert same(folder / f"seed{seed}" / name, other / f"seed{seed}" / name)


@pytest.mark.slow
@needs("ray")
def test_a_cluster_that_loses_a_node_writes_the_same_table(here, cluster, tmp_path):
    folder = tmp_path / "compare"
    lost = []

    def kill_a_node():
        """Kill a node when both have saved a checkpoint."""
        while len({p.parent for p in folder.glob("seed*/*/checkpoint-*/manifest.json")}) < 2:
            time.sleep(0.02)
        node = sorted(cluster.worker_nodes, key=id)[0]
        raylet = node.all_processes["raylet"][0].process.pid
        children = Path(f"/proc/{raylet}/task/{raylet}/children").read_text()
        for pid in [str(raylet), *children.split()]:
            os.kill(int(pid), signal.SIGKILL)
        lost.append(node)

    killer = threading.Thread(target=kill_a_node, daemon=True)
    killer.start()
    compare(small_config(tmp_path, *SMALL), engine="ray")
    assert lost
    facts = [read_json(path) for path in folder.glob("seed*/*/run.json")]
    assert any(own["resumed"] for own in facts)
    assert_same(folder, here)


@pytest.mark.slow
def test_the_plan_names_the_runs_in_order_and_what_they_wait_for(tmp_path, capsys):
    """A distilled row waits for the row that is its teacher, although it is listed before it."""
    file = tmp_path / "small.yaml"
    rows = f"compare.objectives=[emd, {DISTILLED}, {{name: plain, preset: ce}}]"
    tune = ("compare.tune={trainer.learning_rate: [1.0e-3, 2.0e-3]}",
            "compare.select_on={synthetic: {name: clocks, rows: 4, seed: 9}}")  # fmt: skip
    file.write_text(small_config(tmp_path, *SMALL, rows, "compare.seeds=[3]").to_yaml())
    assert cli.main(["compare", str(file), "--plan"]) == 0
    lines = [line.split("  ") for line in capsys.readouterr().out.splitlines()]
    assert [[cell.strip() for cell in line if cell] for line in lines] == [
        ["run", "waits for", "state"],
        ["seed3/warm_start", "-", "open"],
        ["seed3/emd", "seed3/warm_start", "open"],
        ["seed3/plain", "seed3/warm_start", "open"],
        ["seed3/distilled", "seed3/warm_start, seed3/plain", "open"],
        ["each run asks for 0 GPU, 1 CPU, 0.5 GiB"],
    ]
    assert cli.main(["compare", str(file), "--plan", *tune, "compare.resources=null"]) == 0
    text = capsys.readouterr().out
    assert "seed1001/plain_learning_rate_0.002" in text
    assert "seed3/plain " in text
    assert "trials are finished, the settings of the other runs are the best ones\n" in text
    assert text.endswith("compare.resources is not set (--engine ray uses it)\n")
    assert cli.main(["compare", str(file), "compare.seeds=[3, 4]", "--plan", "--seeds", "4"]) == 0
    text = capsys.readouterr().out
    assert "seed4/plain" in text
    assert "seed3" not in text
    assert cli.main(["compare", str(file), "--plan", "--seeds", "5"]) == 2
    assert "compare.seeds: 5 is not one of [3]" in capsys.readouterr().err
    assert cli.main(["compare", str(file), "--plan", "compare=null"]) == 2
    assert "no section `compare`; see" in capsys.readouterr().err
    assert not (tmp_path / "compare").exists()
    other = small_config(
        tmp_path, *SMALL, rows, "compare.seeds=[3]", "trainer.seed=9", "task.prompt=When"
    )
    warm = seed_configs(other, 3)[0].output_dir
    claim(warm, other)
    (warm / "run.json").touch()
    assert cli.main(["compare", str(file), "--plan"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["seed3/warm_start", "-", "another", "run"]
    assert re.search("another run: .* folder, such as compare.output_dir=", lines[-1])


def test_a_comparison_says_how_many_runs_it_trains(tmp_path):
    config = small_config(tmp_path, "compare.seeds=[3, 4]", "compare.objectives=[ce, emd]")
    assert overview(config, (3, 4)) == (
        "8 runs: for each of 2 seeds 1 warm start and ce, ce_times_1.3 as a control "
        "(compare.control=null leaves it out), emd; 0 are finished."
    )


@pytest.mark.parametrize(
    ("resources", "message"),
    [
        ("{gpus: 2}", r"compare\.resources: gpus is 0 or 1, not 2; a task uses"),
        ("{cpus: 0}", r"compare\.resources: cpus must be at least 1, not 0"),
        ("{memory_gib: 0}", r"compare\.resources: memory_gib is above 0, not 0"),
        ("{gpu: 1}", r"there is no setting 'gpu'\. Did you mean 'gpus'"),
    ],
)
def test_resources_that_no_run_can_use_are_one_sentence(tmp_path, resources, message):
    with pytest.raises(ValueError, match=message):
        small_config(tmp_path, f"compare.resources={resources}")


def test_what_an_engine_needs_is_one_sentence(tmp_path):
    config = small_config(tmp_path)
    with pytest.raises(ValueError, match=r"compare\.resources: --engine ray reserves"):
        required_resources(config)
    with pytest.raises(ValueError, match=r"not installed .*run `pip install 'mm-numeric\[ray\]'`"):
        import_extra("not_a_package", "--engine ray", "ray")
    with pytest.raises(ValueError, match="--seeds cannot be combined with --engine ray"):
        compare(config, seeds=[0], engine="ray")
    message, code = run_failed("seed0/ce", ValueError("x.png: there is no such file.")).args
    assert message.startswith("seed0/ce failed: x.png: there is no such file. Finished runs are")
    assert (code, run_failed("seed0/ce", MemoryError()).args[1]) == (2, 1)


@pytest.mark.slow
def test_a_run_waits_until_a_lost_process_has_released_its_files(tmp_path, monkeypatch):
    config = small_config(tmp_path, *SMALL)
    folder = tmp_path / "compare"
    folder.mkdir()
    (folder / "config.yaml").write_text(config.to_yaml())
    tried = []

    def execute(run):
        tried.append(run.name)
        if len(tried) == 1:
            raise LockedError
        run.answers.mkdir(parents=True)
        (run.answers / "results.json").touch()

    monkeypatch.setattr("mm_numeric.comparison.run._run", execute)
    execute_one(folder, "seed1/ce", torch.get_num_threads())
    execute_one(folder, "seed1/ce", torch.get_num_threads())
    assert tried == ["seed1/ce", "seed1/ce"]


@pytest.mark.slow
@needs("ray")
def test_tasks_answer_and_score_the_same_rows(here, cluster, tmp_path):
    """In 2 shares, of which a lost task has left an answer and a part of the next one."""
    run, alone, out = here / "seed0" / "ce", tmp_path / "alone.jsonl", tmp_path / "p.jsonl"
    predict(run, None, alone, batch_size=1)
    lines = alone.read_text().splitlines(keepends=True)
    predict(run, None, out, batch_size=1, limit=1)
    part = tmp_path / "p.jsonl.rank1"
    part.write_text(lines[1] + lines[2][:-9])
    words = ["predict", "--model", run, "--out", out, "--batch-size", 1, "--engine", "ray"]
    assert cli.main([*map(str, words), "--resources", "cpus=1"]) == 0
    assert out.read_bytes() == alone.read_bytes()
    assert not part.exists()
    score(alone, out=tmp_path / "alone")
    assert cli.main(["score", str(out), "--out", str(tmp_path / "ray"), "--engine", "ray"]) == 0
    scores = [(tmp_path / name / "scores.jsonl").read_bytes() for name in ("alone", "ray")]
    assert scores[0] == scores[1]
    results = [read_json(tmp_path / name / "results.json") for name in ("alone", "ray")]
    assert results[0] | {"predictions": ""} == results[1] | {"predictions": ""}
    with pytest.raises(ValueError, match="no machine of the cluster has 1 GPU, 1 CPU for a task"):
        predict(run, None, tmp_path / "q.jsonl", on_ray=Resources(gpus=1))
    asked = "compare.resources={cpus: 1000}"
    with pytest.raises(ValueError, match="no machine of the cluster has 0 GPU, 1000 CPU"):
        compare(small_config(tmp_path, *SMALL, asked), engine="ray")


@pytest.mark.slow
@needs("ray")
def test_a_task_that_fails_cancels_the_others(cluster, tmp_path):
    def fail_or_wait(item, folder):
        if item == 0:
            raise ValueError("row 1: no target")
        time.sleep(1)
        (folder / str(item)).touch()

    with pytest.raises(ValueError, match="row 1: no target"):
        map_tasks(fail_or_wait, range(9), tmp_path)
    time.sleep(3)
    assert len(list(tmp_path.iterdir())) < 4
