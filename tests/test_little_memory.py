"""Commands in little memory, and the memory that an image takes."""

import json
import re
from pathlib import Path

import pytest
from finished_runs import copy_and_enter
from PIL import Image
from processes import python

pytestmark = pytest.mark.slow  # processes with large images

SMALL_MEMORY = """
import resource, sys
from mm_numeric.cli.main import main
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (200 << 20),) * 2)
sys.exit(main(sys.argv[1:]))
"""
"""Runs a command, which can have 200 MiB more than it has at its start."""


def test_memory_that_is_not_there_is_one_sentence(finished_runs, tmp_path, monkeypatch):
    copy_and_enter(finished_runs, tmp_path / "files", monkeypatch)
    Path("small.py").write_text(SMALL_MEMORY)
    config = json.loads(Path("run/model/config.json").read_text())
    Path("run/model/config.json").write_text(json.dumps({**config, "n_positions": 6_000_000}))
    row = {"id": "1", "image": "a.png", "hour": 3, "minute": 20}
    Path("rows.jsonl").write_text(json.dumps(row) + "\n")
    Image.new("RGB", (10_000, 10_000)).save("a.png", compress_level=1)
    image = ["check-data", "clock_tiny", "data.train.synthetic=null", "data.train.path=rows.jsonl"]
    for words, reason in (
        (["predict", "--model", "run", "--data", "test.jsonl", "--out", "p.jsonl"], "alloc_cpu"),
        (image, "MemoryError"),
    ):
        found = python("small.py", *words, cwd=Path.cwd())
        assert found.returncode == 2, found.stderr
        *_, error = found.stderr.splitlines()
        assert re.match(r"mm-numeric: .*there is not enough memory \(.*\); use a smaller", error)
        assert reason in error
        assert "Traceback" not in found.stderr


MEASURED = """
import resource, sys
from pathlib import Path
from mm_numeric.data.images import open_sized
from mm_numeric.answers import Example
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
own = Example(id="1", image=Path(sys.argv[1]), prompt="", answer=None, where="a row")
image, size = open_sized(own)
print(*image.size, *size, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
"""


@pytest.mark.parametrize(("name", "most_mib"), [("a.jpg", 220), ("a.png", 400), ("rgba.png", 400)])
def test_the_memory_of_a_large_image(tmp_path, name, most_mib):
    """Pillow needs 229 MiB for 60 million pixels of RGB; two such images would be 458."""
    mode = "RGBA" if name == "rgba.png" else "RGB"
    image = Image.new(mode, (10_000, 6_000), (200, 100, 50, 255)[: len(mode)])
    image.save(tmp_path / name, **({} if name == "a.jpg" else {"compress_level": 1}))
    (tmp_path / "measured.py").write_text(MEASURED)
    found = python("measured.py", name, cwd=tmp_path)
    *sizes, mib = map(int, found.stdout.split())
    assert sizes == [5_000, 3_000, 10_000, 6_000]
    assert mib < most_mib
