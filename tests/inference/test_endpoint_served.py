"""predict --endpoint with a real server: the same answers as the model itself gives."""

import json
import shutil
import threading
import time

import pytest
from served_models import ServedModel
from synthetic_rows import data_for
from tiny_models import small_config
from transformers.utils.import_utils import is_serve_available

from mm_numeric.cli import main as cli
from mm_numeric.inference.generate import predict
from mm_numeric.models.export import export
from mm_numeric.training.run import train

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not is_serve_available(), reason="pip install transformers[serving]"),
]

TASKS = {
    "clock": ("data.test.synthetic.rows=40",),
    "arithmetic": ("task=arithmetic", *data_for("arithmetic", 4, 40)),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Train a tiny Qwen2.5-VL; return its run, and a copy of it that asks another task."""
    folder = tmp_path_factory.mktemp("served")
    common = ("model.family=qwen2_5_vl", "objective=ce", "predict.max_new_tokens=6")
    for task, overrides in TASKS.items():
        config = small_config(folder / task, *common, *overrides)
        if task == "clock":
            first = train(config).parent
            export(first, folder / "exported")
        else:
            shutil.copytree(first, config.output_dir)
            (config.output_dir / "config.yaml").write_text(config.to_yaml(), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def server(runs):
    found = ServedModel(runs / "exported")
    yield found
    found.kill()


def lines(text):
    """Return rows without white space around the text, which this server removes."""
    return [{**row, "text": row["text"].strip()} for row in map(json.loads, text.splitlines())]


def predict_served(runs, server, task, name="served.jsonl"):
    out = runs / task / name
    words = ["predict", "--model", runs / task / "run", "--out", out]
    words += ["--endpoint", server.url, "--served-model", server.model]
    assert cli.main(list(map(str, words))) == 0
    return out.read_text(encoding="utf-8")


def predict_here(runs, task):
    out = runs / task / "local.jsonl"
    predict(runs / task / "run", None, out)
    return out.read_text(encoding="utf-8")


def test_a_server_gives_the_answers_that_the_model_gives(runs, server, capsys):
    """To texts; the next test asks about images."""
    served = predict_served(runs, server, "arithmetic")
    assert lines(served) == lines(predict_here(runs, "arithmetic"))
    assert len({line["text"] for line in lines(served)}) > 5
    said = capsys.readouterr().err
    assert "logprobs: ignored" in said
    assert "token ids: rejected; texts are as the server writes them" in said
    assert "constraints: structured_outputs is rejected, regex is rejected" in said


def test_a_killed_server_is_started_again_and_nothing_is_lost_or_twice(runs, server):
    out, answered = runs / "clock" / "killed.jsonl", []

    def kill_and_start():
        while not out.exists() or out.read_text(encoding="utf-8").count("\n") < 10:
            time.sleep(0.01)
        server.kill()
        answered.append(out.read_text(encoding="utf-8").count("\n"))
        server.start()

    thread = threading.Thread(target=kill_and_start)
    thread.start()
    served = predict_served(runs, server, "clock", out.name)
    thread.join()
    assert 10 <= answered[0] < 40
    assert lines(served) == lines(predict_here(runs, "clock"))
    assert len(lines(served)) == 40
