"""What a run folder contains, whatever trained the run."""

from importlib.metadata import PackageNotFoundError, version

import mm_numeric
from mm_numeric import run_folder


def test_a_checkout_that_is_not_installed_can_finish_a_run(tmp_path, monkeypatch):
    """A checkout on PYTHONPATH has no package metadata, as on a machine without a network."""

    def installed(name):
        if name == "mm-numeric":
            raise PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(run_folder, "version", installed)
    run_folder.finish(tmp_path, {"steps": 3})
    found = run_folder.read_json(tmp_path / run_folder.FINISHED)
    assert found["versions"]["mm-numeric"] == mm_numeric.__version__
    assert found["versions"]["torch"] == version("torch")
