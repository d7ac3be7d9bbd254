"""The tests marked ``device`` pass on the simulated device, in a process of its own.

One file: ./scripts/test --simulated-device tests/losses/test_devices.py
"""

import pytest
from processes import Job
from simulated_runs import TESTS, run_tests
from torch.utils import backend_registration

pytestmark = pytest.mark.skipif(
    not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"),
    reason="this torch has no backends in Python",
)

MARKED = [
    str(path.relative_to(TESTS))
    for path in sorted(TESTS.rglob("test_*.py"))
    if "pytest.mark.device\n" in path.read_text("utf-8").replace(",\n", "\n")
]


@pytest.mark.slow
def test_all_files_pass(tmp_path):
    assert {"losses/test_devices.py", "test_simulated_device.py"} < set(MARKED)
    job = Job(run_tests, MARKED, tmp_path / "output.txt")
    assert job.wait() == [0], job.text()
    skipped = [line for line in job.text().splitlines() if line.startswith("skipped: ")]
    assert all(line == "skipped: 1 x flash-attn needs its package and a GPU" for line in skipped)
