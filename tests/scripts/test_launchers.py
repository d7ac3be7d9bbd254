"""The launchers start what they say, one process for each GPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from documents import blocks

SCRIPTS = Path(__file__).parents[2] / "scripts"
STAND_INS = {  # of what is not here: a cluster, and GPUs to count
    "python": 'if [ "$1" = -c ]; then echo 8; else printf "%s\\n" "$@"; fi',
    "scontrol": '[ "$*" = "show hostnames a[1-2]" ] && printf "a1\\na2\\n"',
    "srun": 'shift; SLURM_GPUS_ON_NODE=4 exec "$@"',
}
SLURM = {"SLURM_JOB_NODELIST": "a[1-2]", "SLURM_NNODES": "2", "SLURM_JOB_ID": "77"}


@pytest.fixture
def started(tmp_path):
    """Return a function that starts a launcher, and returns the words of the last command."""
    for name, body in STAND_INS.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)

    def start(name, *arguments, **variables):
        path = f"{tmp_path}:{os.environ['PATH']}"
        done = subprocess.run([SCRIPTS / name, *arguments], env={"PATH": path, **variables},
                              capture_output=True, text=True, check=True)  # fmt: skip
        return done.stdout.splitlines()

    return start


def test_one_node(started):
    launched = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    train = ["-m", "mm_numeric", "train", "my job.yaml", "trainer.deepspeed=zero2"]
    assert started("train_node", *train[3:]) == [*launched, "8", *train]
    assert started("train_node", *train[3:], RANKS="2") == [*launched, "2", *train]


def test_many_nodes(started):
    words = started("train_slurm", "my job.yaml", "objective=ce", **SLURM)
    assert words == [
        "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "4",
        "--rdzv-backend", "c10d", "--rdzv-endpoint", "a1:29500", "--rdzv-id", "77",
        "-m", "mm_numeric", "train", "my job.yaml", "objective=ce",
    ]  # fmt: skip
    again = started("train_slurm", "my job.yaml", PORT="1234", SLURM_RESTART_COUNT="1", **SLURM)
    assert again[-2:] == ["my job.yaml", "--resume"]
    assert "a1:1234" in again


def test_the_script_of_the_documentation_compares_the_seed_of_its_job(started, tmp_path):
    (script,) = blocks("docs/clusters.md", "bash")
    (tmp_path / "mm-numeric").write_text('#!/bin/sh\nprintf "%s\\n" "$OMP_NUM_THREADS" "$@"\n')
    (tmp_path / "compare_seeds").write_text(script)
    for name in ("mm-numeric", "compare_seeds"):
        (tmp_path / name).chmod(0o755)
    job = {"SLURM_ARRAY_TASK_ID": "3", "SLURM_CPUS_PER_TASK": "8"}
    words = started(tmp_path / "compare_seeds", "my job.yaml", **job)
    assert words == ["8", "compare", "my job.yaml", "--seeds", "3"]


@pytest.mark.slow
def test_a_job_that_starts_again_resumes_what_it_has_saved(started, tmp_path):
    """A job that was stopped before its first checkpoint begins anew."""
    python = 'if [ "$1" = -c ]; then exec ' + sys.executable + ' "$@"; fi; printf "%s\\n" "$@"'
    (tmp_path / "python").write_text(f"#!/bin/sh\n{python}\n")
    words = ["clock_tiny", f"trainer.output_dir={tmp_path / 'my run'}"]
    again = {"SLURM_RESTART_COUNT": "1", "PYTHONPATH": str(SCRIPTS.parent), **SLURM}
    assert started("train_slurm", *words, **again)[-2:] == words
    (tmp_path / "my run" / "checkpoint-5").mkdir(parents=True)
    assert started("train_slurm", *words, **again)[-2:] == words  # killed while it was saved
    (tmp_path / "my run" / "checkpoint-5" / "manifest.json").write_text("{}")
    assert started("train_slurm", *words, **again)[-3:] == [*words, "--resume"]
