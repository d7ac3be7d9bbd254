"""Shell completion: commands, options, configs and settings, as argcomplete prints them."""

import os
from contextlib import suppress
from pathlib import Path

import pytest

from mm_numeric.cli import main as cli
from mm_numeric.cli.completion import overridden_settings, setting_names


def test_settings_are_completed():
    assert {"data.train.path", "trainer.learning_rate", "plugins"} <= set(setting_names())
    assert "objective.numeric_weight=" in overridden_settings()
    assert len(setting_names()) == len(set(setting_names()))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("typed", "completions"),
    [
        ("tra", {"train"}),
        ("train --res", {"--resume"}),
        ("train clock_", {"clock_tiny", "clock_qwen2_vl_2b"}),
        ("train min", {"mine.yaml"}),
        ("train mine.yaml trainer.learn", {"trainer.learning_rate="}),
        ("check --explain data.max", {"data.max_tokens"}),
    ],
)
def test_what_the_shell_shows(typed, completions, tmp_path, monkeypatch):
    """In a process of its own, which argcomplete ends."""
    pytest.importorskip("argcomplete")
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").touch()
    Path("mine.png").touch()
    line = f"mm-numeric {typed}"
    shell = {"_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line))}
    if (child := os.fork()) == 0:
        os.environ |= {**shell, "_ARGCOMPLETE_STDOUT_FILENAME": "shown"}
        with suppress(BaseException):
            cli.main([])
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert {word.strip() for word in Path("shown").read_text().split("\013")} == completions
