"""What ``train`` writes for each logged step, on a terminal and in a pipe."""

import json
import re
from types import SimpleNamespace

import pytest
import tqdm
from run_files import write_config

from mm_numeric.cli import main as cli
from mm_numeric.io.log import stage
from mm_numeric.training.callbacks.log_lines import WIDTH, TrainingBar, wrapped

NUMBER = r"-?[0-9.]+(?:e-?[0-9]+)?"


@pytest.mark.slow
@pytest.mark.parametrize("terminal", [False, True])
def test_a_line_of_each_logged_step(tmp_path, capsys, terminal):
    overrides = (
        "objective=ntil", "trainer.max_steps=5", "trainer.logging_steps=2",
        "trainer.save_strategy='no'", f"trainer.disable_tqdm={str(not terminal).lower()}",
    )  # fmt: skip
    config = str(write_config(tmp_path, *overrides))
    assert cli.main(["train", config]) == 0
    said = capsys.readouterr().err
    bars = re.findall(r"training: 100%.* 5/5 .*loss=\S+", said)
    assert bool(bars) is terminal
    assert (tmp_path / "run" / "report.html").is_file()
    assert "{'" not in said
    logged = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").open()]
    assert [line["step"] for line in logged] == [2, 4, 5]  # and the last
    found = re.findall(r"(?<![^\r\n])step \d.*\n(?: {4}.*\n)*", said)
    assert len(found) == 3
    for text, line in zip(found, logged, strict=True):
        assert all(len(part) <= WIDTH for part in text.split("\n"))
        pattern = (
            rf"step (\d)/5  loss ({NUMBER})  lr ({NUMBER})  {NUMBER} rows/s  \d:\d\d:\d\d left  "
        )
        step, loss, rate = re.match(pattern, text).groups()
        assert int(step) == line["step"]
        assert float(loss) == pytest.approx(line["loss"], rel=1e-3)
        assert float(rate) == pytest.approx(line["learning_rate"], rel=1e-2, abs=1e-12)
        for name, value in line["components"].items():
            assert float(re.search(rf"  {name} ({NUMBER})", text)[1]) == pytest.approx(
                value, rel=6e-3
            )
    assert "0:00:00 left" in found[2]


def test_a_resumed_bar_estimates_the_time_left_from_its_own_steps(monkeypatch):
    now = 0.0
    monkeypatch.setattr(tqdm.std, "time", lambda: now)
    state = SimpleNamespace(is_world_process_zero=True, max_steps=150, global_step=75)
    bar = TrainingBar()
    with stage("2/5"):
        bar.on_train_begin(None, state, None)
    for state.global_step in range(76, 101):
        now += 2.0
        bar.on_step_end(None, state, None)
    text = str(bar.training_bar)
    bar.training_bar.close()
    assert text.startswith("2/5 training:  67%|")
    assert "| 100/150 [00:50<01:40, " in text


def test_items_are_wrapped_and_none_is_lost():
    items = ["step 1/9", *(f"component_{i} {i / 7:.3g}" for i in range(20))]
    lines = wrapped(items).split("\n")
    assert max(map(len, lines)) <= WIDTH
    assert [word for line in lines for word in line.strip().split("  ")] == items
    assert all(line.startswith("    component_") for line in lines[1:])
