"""What a training step costs on the simulated device: at most the figures of the documentation.

``python tests/helpers/step_costs.py`` prints the table, and for one case what causes its costs.
"""

import functools
import re

import pytest
import simulated_device
from import_graph import ROOT
from step_costs import CASES, costs_of
from tiny_models import ROOT as FOLDER

pytestmark = [
    pytest.mark.device,
    pytest.mark.skipif(not simulated_device.is_installed(), reason="needs --simulated-device"),
]
PAGE = ROOT / "docs" / "training" / "waiting.md"
ROW = re.compile(r"^\| (.+?) \|((?: [\d,]+ \|){6})", re.M)
TABLE = {
    name: [int(cell.replace(",", "")) for cell in re.findall(r"[\d,]+", cells)]
    for name, cells in ROW.findall(PAGE.read_text("utf-8").partition("<!-- after -->")[2])
}
"""For each case: waits, uploads and kernels of an ordinary step, and of a logged one."""


@functools.cache
def measured(name):
    """Return the costs of an ordinary step and of a logged one, measured once."""
    return costs_of(name, FOLDER / f"waiting-{list(CASES).index(name)}")


def test_the_table_has_every_case():
    assert list(TABLE) == list(CASES)


@pytest.mark.parametrize("name", CASES)
def test_a_step_costs_at_most_what_the_table_says(name):
    steps = measured(name)
    found = [count for costs in steps for count in costs.totals().values()]
    more = [f"{a} > {b}" for a, b in zip(found, TABLE[name], strict=True) if a > b]
    assert not more, [costs.waits | costs.uploads for costs in steps]


@pytest.mark.parametrize("name", CASES)
def test_no_upload_makes_the_host_wait(name):
    for costs in measured(name):
        assert [cause for cause in costs.uploads if not cause.startswith("non-blocking ")] == []


def test_no_upload_of_a_stream_makes_the_host_wait(monkeypatch, tmp_path):
    monkeypatch.setitem(CASES, "stream", ("data.stream=true",))
    for costs in costs_of("stream", tmp_path):
        assert [cause for cause in costs.uploads if not cause.startswith("non-blocking ")] == []


def test_a_numeric_loss_adds_fewer_than_120_kernels():
    (ours, _), (cross_entropy, _) = measured("llava"), measured("llava, objective: ce")
    assert ours.kernels.total() - cross_entropy.kernels.total() < 120
