"""The report of a single run: what its folder has, and which command makes the rest."""

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import sys
import threading
import time

import pytest
from browser import dumped
from clock_reports import HOSTILE, html_cells
from PIL import Image
from result_files import write_lines

from mm_numeric.cli.main import main
from mm_numeric.config.reader import read_config
from mm_numeric.evaluation.report import report as report_module
from mm_numeric.evaluation.score import score
from mm_numeric.io import local_server
from mm_numeric.runs.folder import claim, write_config

FRAME = {"width_px": 100, "height_px": 100, "coordinates": {"format": "json"},
         "view": {"width_px": 100, "height_px": 100, "scale_x": 1, "scale_y": 1}}  # fmt: skip
"""The coordinates are pixels of an image of 100 x 100 pixels."""

MINUTES = (0, 40, 3, None, 12, 90)
"""How late the answer to each test row is; None for one that cannot be parsed."""


def answers():
    """Return the lines of predictions.jsonl: the true time is 7:05 in all rows."""
    times = [None if m is None else f"{7 + (5 + m) // 60}:{(5 + m) % 60:02d}" for m in MINUTES]
    return [
        {"id": f"test-{i}", "image": f"{i}.png", "task": "clock", "target": "7:05",
         "text": HOSTILE.replace("7:05", "noon") if time is None else time}
        for i, time in enumerate(times)
    ]  # fmt: skip


@pytest.fixture
def run(tmp_path):
    """Return the folder of a run that trains: config.yaml and log.jsonl, whose end is written."""
    folder = tmp_path / "mine"
    claim(folder, read_config("clock_tiny", [f"trainer.output_dir={folder}"]))
    lines = [
        {"step": k, "loss": 2 / k, "learning_rate": 1e-5 * k, "grad_norm": None,
         "components": {"ce": 1 / k, "emd": 1 / k}}
        for k in range(1, 101)
    ]  # fmt: skip
    write_lines(folder / "log.jsonl", [*lines, {"step": 100, "epoch": 1.0, "eval": {"exact": 0.5}}])
    with (folder / "log.jsonl").open("a") as file:
        file.write('{"step": 101, "lo')
    return folder


def report(folder):
    """Return both forms of the report that the command writes."""
    assert main(["report", str(folder)]) == 0
    return tuple((folder / f"report.{end}").read_text(encoding="utf-8") for end in ("html", "md"))


def test_a_run_that_trains_shows_its_curves_and_the_last_evaluation(run):
    page, twin = report(run)
    assert "**No answers have been scored yet.**" in twin
    assert "- Not finished: the log ends at step 100 of " in twin
    assert "| `emd` | `mine` | 1.0000 (step 1) | 0.0100 (step 100) | 0.0100 |" in twin
    assert "| `learning_rate` | `mine` | 1e-05 (step 1) | 0.0010 (step 100) | 1e-05 |" in twin
    assert "| `exact` | `mine` | 0.5000 (step 100) |" in twin
    assert "grad_norm" not in page
    assert page.count('role="img"') == 5
    (run / "evaluation").mkdir()
    write_lines(run / "evaluation" / "predictions.jsonl", answers())
    page, twin = report(run)
    assert "Not clearly better than guessing: within 5 min 33.3% (95% interval " in twin
    assert "on 6 answers of the evaluation at step 100; guessing has 100.0% (the best " in twin
    assert "Next: train" not in twin
    assert "Answers on the dial" in page


def test_a_run_that_evaluates_says_how_far_it_is(run):
    file = run / "progress.json"
    entries = {"step": 100, "answered": 48, "rows": 200, "tokens": 3412}
    file.write_text(json.dumps({**entries, "seconds_left": 83.2}))
    _, twin = report(run)
    told = "Evaluating at step 100: 48 of 200 rows are answered, 3,412 tokens generated"
    assert f"{told}, about 1 min 23 s left." in twin
    assert "Step 100 of 500 (20%)." in twin
    assert "Not finished" not in twin
    assert "--resume" not in twin
    file.write_text(json.dumps({**entries, "seconds_left": None}))
    page, twin = report(run)
    assert f"{told}.\n" in twin
    assert re.findall('<progress max="([0-9]+)" value="([0-9]+)"', page) == [
        ("500", "100"), ("200", "48")
    ]  # fmt: skip
    (run / "run.json").write_text('{"steps": 500}')  # now `predict` answers
    page, twin = report(run)
    assert f"\n\n{told.replace('Evaluating at step 100', 'Answering the test rows')}.\n" in twin
    assert page.count("<progress") == 1
    (run / "run.json").unlink()
    os.utime(file, (time.time() - 3600,) * 2)  # the process was killed
    assert "- Not finished: the log ends at step 100 of " in report(run)[1]
    file.write_text("{}")
    assert main(["report", str(run)]) == 2


def test_a_trained_run_names_its_settings_and_the_command_that_makes_the_rest(run):
    adapted = ["modules={language: adapted}", "lora={rank: 4, alpha: 8}", "objective=ntil"]
    batch = ["trainer.per_device_train_batch_size=2", "trainer.gradient_accumulation_steps=4"]
    config = read_config("clock_tiny", [f"trainer.output_dir={run}", *adapted, *batch])
    write_config(run, config)
    facts = {"steps": 100, "rows": 5, "seconds": 75.2}
    (run / "run.json").write_text(json.dumps(facts | {"batch_rows": 16}))
    _, twin = report(run)
    assert "| objective | ntil" in twin
    assert "| adapters | LoRA, rank 4, alpha 8" in twin
    assert "| rows per step | 16 = 2 per device × 4 of gradient accumulation × 2 devices" in twin
    (run / "run.json").write_text(json.dumps(facts | {"batch_rows": 8}))
    assert "4 of gradient accumulation × 1 device |" in report(run)[1]
    assert "| learning rate | 0." in twin
    assert "- Training finished: 100 steps in 1 min 15 s." in twin
    for after, told in ((60, "; after the resume, 40 steps in 1 min 15 s"), (100, "")):
        (run / "run.json").write_text(json.dumps(facts | {"resumed_after": after}))
        assert f"- Training finished: 100 steps{told}.\n" in report(run)[1]
    (run / "run.json").write_text(json.dumps(facts | {"batch_rows": 16}))
    assert f"`mm-numeric predict --model {run}` answers them" in twin
    write_lines(run / "predictions.jsonl", answers())
    (run / "run.json").write_text(json.dumps(facts | {"rows": None}))
    _, twin = report(run)
    assert "| training rows | a stream" in twin
    assert f"`mm-numeric score {run}/predictions.jsonl` scores them" in twin


def test_a_scored_run_has_its_metrics_and_answers_the_worst_first(run):
    for i in range(len(MINUTES)):
        Image.new("RGB", (20, 16), (i * 40, 90, 200)).save(run / f"{i}.png")
    write_lines(run / "predictions.jsonl", answers())
    metrics = score(run / "predictions.jsonl").metrics()
    page, twin = report(run)
    assert "<li>Next: train for more steps or on more rows." in page
    assert "add rows, <code>data.augment</code>, or start from" in page
    assert "add rows, `data.augment`, or start from" in twin
    found = metrics["within_5_minutes"]
    expected = [f"{100 * found[end]:.1f}" for end in ("value", "low", "high")]
    shown = next(
        row[1] for row in html_cells(page, "metrics") if " ".join(row[0]) == "within 5 min ↑"
    )
    assert re.findall(r"[\d.]+", " ".join(shown)) == expected
    order = re.findall(r"<small>(\d).png · id test-\1 · ", page)
    assert order == ["3", "5", "1", "4", "2", "0"]
    assert page.count("data:image/png") == len(MINUTES)
    text = page.split('<section id="failures">')[1].split("</section>")[0]
    assert "&lt;script&gt;alert(&#39;noon&#39;)" in text
    assert "<script" not in page


def test_the_metrics_by_category_and_the_verdict_are_those_of_all_rows(run):
    kinds = ["zebra", "aardvark", "zebra", "aardvark", "aardvark", "zebra"]
    rows = [{**row, "buckets": {"category": k}} for row, k in zip(answers(), kinds, strict=True)]
    write_lines(run / "predictions.jsonl", rows)
    score(run / "predictions.jsonl")
    _, twin = report(run)
    assert "clearly better than guessing: within 5 min 33.3% (95%" in twin
    assert re.search(r"\| zebra \| 3 \| 66.7% \| [\d.]+% \| [\d.]+% \|", twin)


@pytest.mark.parametrize("count", [2, 25])
def test_the_page_of_a_detector_has_the_scores_of_the_most_frequent_labels(run, count):
    """Label k has k true boxes, all found, and the last label another wrong box."""
    write_config(run, read_config("detection_tiny", [f"trainer.output_dir={run}"]))
    rows = []
    for k in range(1, count + 1):
        boxes = [{"bbox_2d": [9 * i, 0, 9 * i + 8, 8], "label": f"label{k}"} for i in range(k)]
        target = [{"box": own["bbox_2d"], "label": own["label"]} for own in boxes]
        boxes += [{"bbox_2d": [0, 50, 9, 70], "label": f"label{k}"}] * (k == count)
        row = {
            "id": str(k),
            "task": "detection",
            "target": target,
            "frame": FRAME | {"width_px": 300},
        }
        rows.append(row | {"text": json.dumps(boxes)})
    write_lines(run / "predictions.jsonl", rows)
    score(run / "predictions.jsonl")
    page, twin = report(run)
    f1 = f"{100 * 2 * count / (2 * count + 1):.1f}%"
    assert f"| label{count} | {count} | {count + 1} | {f1} |" in twin
    table = twin.split("*Metrics by label")[1].split("\n\n")[1]
    labels = re.findall(r"\| label(\d+) \| (\d+) \|", table)
    shown = range(count, max(count - 20, 0), -1)
    assert labels == [(str(k), str(k)) for k in shown]
    assert (": the 20 most frequent of 25 (results.json has all)" in page) == (count > 20)


def test_a_page_has_the_metrics_of_all_protocols(run):
    """Whatever the protocol that was scored first."""
    write_config(run, read_config("text_detection_tiny", [f"trainer.output_dir={run}"]))
    whole = [[1, 2, 30, 40]]
    row = {"task": "text_detection", "target": [{"box": own} for own in whole], "frame": FRAME}
    text = json.dumps([{"bbox_2d": own} for own in whole])
    lines = [{**row, "id": str(i), "text": text, "scores": [own]} for i, own in enumerate((0.5, 1))]
    write_lines(run / "predictions.jsonl", lines)
    words = ["score", str(run / "predictions.jsonl")]
    assert main([*words, "--protocol", "coco_ap"]) == 0
    _, twin = report(run)
    assert "Metrics of the protocol coco_ap" in twin
    assert "AP 100.0% (95% interval 15.8 to 100.0), on 2 answers.**" in twin
    assert "Every answer could be parsed." in twin
    assert main([*words, "--protocol", "deteval_total_text"]) == 0
    assert main(words) == 0
    _, twin = report(run)
    names = [line.strip("# *") for line in twin.splitlines() if "Metrics o" in line]
    assert names == [
        "Metrics on the test rows",
        "Metrics of the protocol coco_ap, on 2 rows",
        "Metrics of the protocol deteval_total_text, on 2 rows",
    ]
    assert len(list(run.glob("scores*.jsonl"))) == 3


@pytest.mark.parametrize("version", [None, 2, "1"])
def test_results_of_another_version_are_one_sentence(run, capsys, version):
    content = {"protocols": {}} if version is None else {"version": version}
    (run / "results.json").write_text(json.dumps(content))
    write_lines(run / "predictions.jsonl", answers())
    for words in (["report", run], ["score", run / "predictions.jsonl"]):
        assert main([str(word) for word in words]) == 2
        was = "no version" if version is None else f"the version {version!r}"
        assert capsys.readouterr().err == (
            f"mm-numeric: {run}/results.json: it has {was} of the format, and this mm-numeric "
            "reads version 1; delete it and score again.\n"
        )


@pytest.mark.parametrize(
    ("settings", "lines", "words"),
    [
        (
            ["trainer.max_steps=200"],
            [{"step": k, "speed": {"seconds": 2.0 * k}} for k in (10, 20, 50)],
            "Step 50 of 200 (25%), about 5 min 0 s left.",
        ),
        (
            ["trainer.max_steps=-1", "trainer.num_train_epochs=4"],
            [{"step": 30, "epoch": 0.5}],
            "Step 30 of 240 (12%).",
        ),
        (  # resumed: the clock starts again
            ["trainer.max_steps=100"],
            [{"step": k, "speed": {"seconds": s}} for k, s in ((40, 400), (50, 10), (60, 20))],
            "Step 60 of 100 (60%), about 0 min 40 s left.",
        ),
    ],
)
def test_a_run_that_trains_has_a_bar_of_steps_and_the_time_left(run, settings, lines, words):
    write_config(run, read_config("clock_tiny", [f"trainer.output_dir={run}", *settings]))
    write_lines(run / "log.jsonl", [{"loss": 1.0, **line} for line in lines])
    page, twin = report(run)
    assert words in twin
    assert f'value="{lines[-1]["step"]}"' in page.split("<progress")[1].split(">")[0]
    anchors = re.findall('<section id="(.*?)">', page)
    assert anchors[:2] == ["steps", "curves"]
    (run / "run.json").write_text(json.dumps({"steps": 200}))
    assert "<progress" not in report(run)[0]


@pytest.mark.slow
def test_a_watched_page_keeps_its_place_and_what_is_unfolded(monkeypatch, tmp_path):
    """The page counts how often it was made; its own script records the scroll position."""
    monkeypatch.setattr(report_module, "_SCRIPT", report_module._SCRIPT.replace("10 * 1000", "200"))
    made = []

    def make():
        made.append(None)
        script = (
            "addEventListener('load', () => scrollTo(0, 900));"
            "setInterval(() => { document.documentElement.dataset.y = scrollY; }, 100);"
        )
        return (
            f"<!doctype html><html><head><script>{script}</script></head><body><main>"
            f"<details{' open' * (len(made) == 1)}>x</details><p>made {len(made)}</p>"
            "<p style='height: 5000px'></p></main></body></html>"
        )

    server = report_module.page_server(make, 0)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        shown = dumped(f"http://127.0.0.1:{server.server_port}/")
    finally:
        server.shutdown()
        server.server_close()
    thread.join()
    assert int(re.search("<p>made ([0-9]+)", shown)[1]) > 1
    assert 'data-y="900"' in shown
    assert '<details open="">' in shown


def test_folders_without_a_report_are_one_sentence(tmp_path, capsys):
    assert main(["report", str(tmp_path)]) == 2
    assert (
        "contains neither summary.json of a comparison nor config.yaml" in capsys.readouterr().err
    )
    (tmp_path / "config.yaml").write_text("task: clock\n")
    (tmp_path / "seed0").mkdir()
    assert main(["report", str(tmp_path)]) == 2
    assert "contains a comparison that is not finished" in capsys.readouterr().err


def test_a_stored_run_of_a_built_in_task_adds_nothing_to_the_import_path(run, tmp_path):
    config = run / "config.yaml"
    stored = config.read_text(encoding="utf-8")
    assert "plugins: null\n" in stored
    config.write_text(stored.replace("plugins: null\n", f"plugins: {tmp_path}\n"))
    (run / "evaluation").mkdir()
    write_lines(run / "evaluation" / "predictions.jsonl", answers())
    before = list(sys.path)
    _, twin = report(run)
    assert "on 6 answers of the evaluation at step 100" in twin  # the task is imported
    assert sys.path == before


@pytest.mark.slow
def test_a_browser_leaves_the_default_port_out_of_the_host_name(monkeypatch):
    server = report_module.page_server(lambda: "a page", 0)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    port, found = server.server_port, []
    try:
        for default in (80, port):  # a test may not listen on port 80
            monkeypatch.setattr(local_server, "_DEFAULT_PORT", default)
            hosts = ("localhost", "127.0.0.1", f"localhost:{port}", "elsewhere.example")
            found.append([get(port, host=host)[0] for host in hosts])
    finally:
        server.shutdown()
        server.server_close()
    thread.join()
    assert found == [[403, 403, 200, 403], [200, 200, 200, 403]]


def get(port, path="/", host=None):
    """Request a page of the server on a port; return the status, headers and text."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("GET", path, headers={"Host": host or f"127.0.0.1:{port}"})
    answer = connection.getresponse()
    found = answer.status, answer.headers, answer.read().decode()
    connection.close()
    return found


def test_a_watched_page_is_made_anew_until_ctrl_c(run, capsys):
    """The requests come from a thread, which ends the command by the signal of Ctrl-C."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["report", str(run), "--watch", "--port", str(port)]) == 2
    assert f"--port {port}: cannot serve the page there (" in capsys.readouterr().err
    answers = []

    def ask():
        try:
            request()
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    def request():
        while not answers:
            time.sleep(0.02)
            with contextlib.suppress(ConnectionRefusedError):
                answers.append(get(port))
        write_lines(run / "log.jsonl", [{"step": 7, "loss": 1.0}])
        answers.append(get(port, host=f"localhost:{port}"))
        (run / "log.jsonl").write_text("half\n")
        answers.extend([get(port), get(port, "/config.yaml"), get(port, host="elsewhere.example")])

    thread = threading.Thread(target=ask, daemon=True)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # pytest-xdist ignores it
    try:
        thread.start()
        assert main(["report", str(run), "--watch", "--port", str(port)]) == 0
    finally:
        signal.signal(signal.SIGINT, before)
    thread.join()
    out, err = capsys.readouterr()
    assert out.startswith(f"report: http://127.0.0.1:{port}/ (")
    assert err == ""
    assert [status for status, _, _ in answers] == [200, 200, 500, 404, 403]
    first, second, broken = (text for _, _, text in answers[:3])
    assert "the log ends at step 100 of" in first
    assert "the log ends at step 7 of" in second
    assert "log.jsonl, line 1: not JSON" in broken
    assert '<meta http-equiv="refresh" content="10">' in first
    assert [own[1]["Refresh"] for own in answers[:3]] == [None, None, "10"]
    assert not (run / "report.html").exists()
