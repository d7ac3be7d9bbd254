"""What is checked before tasks of Ray start; the nodes are those that Ray would report."""

from types import SimpleNamespace

import pytest

from mm_numeric.config.compare import Resources
from mm_numeric.distributed import ray as ray_tasks

GIB = 2**30
NODES = [
    {"Alive": True, "Resources": {"CPU": 6.0, "memory": 8.0 * GIB}},
    {"Alive": True, "Resources": {"CPU": 3.0, "GPU": 1.0, "memory": 2.0 * GIB}},
    {"Alive": True, "Resources": {}},
    {"Alive": False, "Resources": {"CPU": 64.0, "GPU": 8.0, "memory": 64.0 * GIB}},
]


@pytest.mark.parametrize(
    ("asked", "count"),
    [
        (Resources(), 9),
        (Resources(cpus=4), 1),
        (Resources(gpus=1, cpus=3), 1),
        (Resources(cpus=2, memory_gib=3), 2),
        (Resources(cpus=8), 0),
        (Resources(gpus=1, cpus=4), 0),
        (Resources(gpus=1, memory_gib=4), 0),
    ],
)
def test_tasks_are_counted_on_each_living_node(monkeypatch, asked, count):
    monkeypatch.setattr(ray_tasks, "connect", lambda: SimpleNamespace(nodes=lambda: NODES))
    if count:
        assert ray_tasks.parallel_tasks(asked) == count
        return
    for function in (ray_tasks.parallel_tasks, ray_tasks.remote):
        with pytest.raises(ValueError, match=f"no machine of the cluster has {asked} for a task"):
            function(asked)


def test_a_wrong_address_is_one_sentence(monkeypatch, logged):
    def init(**_):
        raise ConnectionError("Failed to connect to Ray cluster at node7:1")

    ray = SimpleNamespace(is_initialized=lambda: False, init=init)
    monkeypatch.setattr(ray_tasks, "import_extra", lambda *_: ray)
    monkeypatch.setenv("RAY_ADDRESS", "node7:1")
    monkeypatch.setenv("RAY_NUM_REDIS_GET_RETRIES", "1")
    message = r"RAY_ADDRESS \(node7:1\): no cluster \(Failed to connect .*; set it to the address"
    with pytest.raises(ValueError, match=message):
        ray_tasks.connect()
    assert "the Ray cluster of RAY_ADDRESS, node7:1" in logged.getvalue()
