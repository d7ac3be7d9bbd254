"""``mm-numeric doctor`` finds what is wrong with an installation."""

import re
import tempfile

import pytest
import torch

from mm_numeric.cli import doctor as cli_doctor
from mm_numeric.cli import main as cli

REQUIRED = ["torch>=2", "numpy<1", "nowhere>=3", 'datasets; extra == "datasets"',
            'elsewhere>=1; extra == "more"', 'nobody; extra == "test"',
            'mm-numeric[eval]; extra == "train"', 'numpy>99; extra == "train"',
            'torch<2; extra == "train"', 'peft<0.1; extra == "more"']  # fmt: skip


@pytest.mark.slow
def test_a_working_installation(capsys):
    assert cli.main(["doctor"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert re.search(r"^ok +mm-numeric \S+, Python 3", out)
    assert f"ok       torch {torch.__version__}\n" in out
    loss = re.search(r"\nok +training step of a tiny model: loss (\d+\.\d+), \d+\.\d s\n$", out)
    assert 3 < float(loss[1]) < 30
    assert ("missing  GPU: none" in out) is not torch.cuda.is_available()


def no_folder(*_):
    raise FileNotFoundError("no folder for temporary files")


def test_what_is_needed_and_wrong_is_exit_code_1(capsys, monkeypatch):
    monkeypatch.setattr(cli_doctor, "requires", lambda name: REQUIRED)
    monkeypatch.setattr(tempfile, "mkdtemp", no_folder)
    with pytest.raises(SystemExit, match=r"^1$"):
        cli.main(["doctor"])
    lines = capsys.readouterr().out.splitlines()
    assert re.match(r"WRONG    numpy \S+: pip install 'numpy<1'$", lines[2])
    assert lines[3] == "WRONG    nowhere is not installed: pip install 'nowhere>=3'"
    assert lines[5] == "missing  elsewhere: optional; pip install 'mm-numeric[more]'"
    assert not any("nobody" in line or "mm-numeric None" in line for line in lines)
    assert sum("numpy" in line for line in lines) == 1
    # All packages of the extra `train` are installed; of the extra `more`, one is not.
    assert re.match(r"WRONG    torch \S+: pip install 'torch<2'$", lines[1])
    assert re.match(
        r"missing  peft \S+: the extra more needs peft<0.1; pip install \S+more\]'$", lines[6]
    )
    assert lines[-1].startswith("WRONG    training step: FileNotFoundError: ")
