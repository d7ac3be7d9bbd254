"""A judge extracts MathVista's answers: asked over HTTP, cached, and never trusted to succeed."""

import hashlib
import json
import threading

import pytest
from chat_server import chat_server, completion
from result_files import section, write_lines

from mm_numeric.answers import ShortAnswer
from mm_numeric.cli import main as cli
from mm_numeric.evaluation.answers.judge import Judge
from mm_numeric.evaluation.metrics.mathvista import judge_prompt
from mm_numeric.evaluation.score import score
from mm_numeric.inference.chat_client import OPENAI_KEY
from mm_numeric.tasks.mathvista import MathVista

FIVE = ShortAnswer(text="5", question_type="free_form", answer_type="integer")
SHAPE = ShortAnswer(
    text="square", question_type="multi_choice", answer_type="text", choices=("circle", "square")
)
ROWS = [("5", FIVE), ("square", SHAPE), ("", SHAPE), ("Five of them.", FIVE), ("The 2nd.", SHAPE)]
"""Responses and targets; MathVista's script asks its judge for the last two only."""

EXTRACTED = {"Five of them.": "5", "The 2nd.": "(B) square"}


def predictions(folder, rows=ROWS, **more):
    """Write predictions of MathVista; ``more`` has further fields of every row."""
    lines = [
        {
            "id": str(i),
            "task": "mathvista",
            "prompt": f"Question {i}",
            "text": text,
            "target": MathVista().record(target),
            **more,
        }
        for i, (text, target) in enumerate(rows)
    ]
    return write_lines(folder / "predictions.jsonl", lines)


def extract(prompt):
    """Answer as a judge that reads the response, which is the last but one paragraph."""
    return f" {EXTRACTED[prompt.split(chr(10) * 2)[-2]]}\n"


def quick(url, **changes):
    return Judge(**{"url": url, "wait_s": 0.0, "parallel": 1, **changes})


def results(folder):
    return section(folder)


@pytest.fixture(autouse=True)
def no_key_and_no_proxy(monkeypatch):
    for name in (OPENAI_KEY, "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


def test_the_prompt_is_that_of_the_published_script():
    """The digest is of demo_prompt.strip() in evaluation/prompts/ext_ans.py of MathVista."""
    prompt = judge_prompt("Q", "R")
    assert prompt.endswith("Extracted answer: B\n\nQ\n\nR\n\nExtracted answer: ")
    examples = prompt.removesuffix("\n\nQ\n\nR\n\nExtracted answer: ")
    digest = hashlib.sha256(examples.encode()).hexdigest()
    assert digest.startswith("2c251ab9e219c5d7")


def test_a_judge_is_asked_as_the_published_script_asks(tmp_path, monkeypatch):
    monkeypatch.setenv(OPENAI_KEY, "secret")
    path = predictions(tmp_path)
    with chat_server(extract) as (url, requests):
        scores = score(path, judge=quick(url))
    assert [body for *_, body in requests] == [
        {
            "model": "gpt-4-0613",
            "messages": [{"role": "user", "content": judge_prompt(f"Question {i}", text)}],
            "temperature": 0,
            "max_tokens": 256,
        }
        for i, text in ((3, "Five of them."), (4, "The 2nd."))
    ]
    assert {where for where, *_ in requests} == {"/v1/chat/completions"}
    assert requests[0][1]["Authorization"] == "Bearer secret"
    assert [row["extraction"] for row in scores.rows] == ["5", "square", "", "5", "(B) square"]
    assert [row["official"] for row in scores.rows] == [1, 1, 0, 1, 1]
    assert [row["rules"] for row in scores.rows] == [1, 1, 0, 0, 0]
    found = results(tmp_path)
    assert found["metrics"]["official"]["value"] == 0.8
    assert found["metrics"]["rules"]["value"] == 0.4
    assert found["rules"]["judge"]["model"] == "gpt-4-0613"
    assert found["rules"]["judge"]["url"] == f"{url}/chat/completions"
    assert "secret" not in json.dumps(found)
    assert "secret" not in (tmp_path / "extractions.jsonl").read_text(encoding="utf-8")


def test_what_was_asked_is_not_asked_again(tmp_path):
    path = predictions(tmp_path)
    with chat_server(extract) as (url, requests):
        first = score(path, judge=quick(url))
        assert score(path, judge=quick(url)).rows == first.rows
        assert len(requests) == 2
        score(path, judge=quick(url, model="other"))
        assert [body["model"] for *_, body in requests[2:]] == ["other", "other"]
        changed = predictions(tmp_path, [*ROWS[:4], ("Five of them.", FIVE)])
        score(changed, judge=quick(url))  # another question with the same response
        assert len(requests) == 5


@pytest.mark.parametrize("end", ['{"key": "0", "extr', "\n"])
def test_a_cache_of_a_killed_process_is_used(tmp_path, end):
    path = predictions(tmp_path)
    with chat_server(extract) as (url, requests):
        score(path, judge=quick(url))
        file = tmp_path / "extractions.jsonl"
        file.write_text(file.read_text(encoding="utf-8") + end, encoding="utf-8")
        score(path, judge=quick(url))
        assert len(requests) == 2
        lines = file.read_text(encoding="utf-8").split()
        assert len([line for line in lines if line.startswith('{"key"')]) == 2


def test_a_failing_judge_loses_nothing(tmp_path):
    path, broken = predictions(tmp_path), [True]

    def fails_at_the_last(prompt):
        if "The 2nd." in prompt and broken:
            return 500, {"error": {"message": "out of\nmemory"}}
        return extract(prompt)

    with chat_server(fails_at_the_last) as (url, requests):
        with pytest.raises(ValueError, match="out of memory") as error:
            score(path, judge=quick(url, attempts=3))
        assert str(error.value) == (
            f"the row '4': {url}/chat/completions: HTTP 500 (out of memory), 3 times; 1 new "
            f"answers are stored in {tmp_path / 'extractions.jsonl'}: run the same "
            "command again to ask for the 1 that are missing."
        )
        assert len(requests) == 4
        assert not (tmp_path / "results.json").exists()
        broken.clear()
        score(path, judge=quick(url))
        assert len(requests) == 5
    assert results(tmp_path)["metrics"]["official"]["value"] == 0.8


@pytest.mark.parametrize(
    ("answer", "sent", "message"),
    [
        ((401, {"error": {"message": "bad key"}}), 1, r"HTTP 401 \(bad key\); set OPENAI_API_KEY"),
        ((404, {"error": "no such model"}), 1, r"HTTP 404 \(no such model\); check the URL"),
        ((307, b"", {"Location": "/other"}), 1, r"HTTP 307 \(Temporary Redirect\)"),
        ((429, b"slow"), 2, r"HTTP 429 \(Too Many Requests\), 2 times"),
        ((200, b"<html>"), 2, r"the answer is not JSON .*, 2 times"),
        ((200, {"choices": []}), 2, r"the answer \{.*\} is not a chat completion, 2 times"),
        ((200, completion(None)), 2, r"no text \(content is null\); serve the model without a"),
        ((200, completion(None, "length")), 1, r"used all tokens of the answer without writing"),
    ],
)
def test_every_failure_is_one_sentence(tmp_path, answer, sent, message):
    path = predictions(tmp_path, ROWS[3:4])
    with (
        chat_server(lambda _: answer) as (url, requests),
        pytest.raises(ValueError, match=message) as error,
    ):
        score(path, judge=quick(url, attempts=2))
    assert "\n" not in str(error.value)
    assert len(requests) == sent


def test_a_server_that_is_not_there_is_one_sentence(tmp_path):
    with chat_server(extract) as (url, _):
        pass
    with pytest.raises(ValueError, match=r"no answer \(.*refused\), 2 times; 0 new answers"):
        score(predictions(tmp_path), judge=quick(url, attempts=2))


def test_a_busy_judge_is_asked_again_and_an_empty_answer_counts_as_empty(tmp_path):
    answers = [(503, b""), "", "", ""]
    with chat_server(lambda _: answers.pop(0)) as (url, _):
        scores = score(predictions(tmp_path, ROWS[3:4]), judge=quick(url, attempts=4))
    assert answers == []
    assert scores.rows[0]["extraction"] == ""
    assert scores.failures == {"empty answer": 1}


@pytest.mark.parametrize(
    ("reason", "fields"), [("content_filter", {}), ("stop", {"refusal": "I cannot."})]
)
def test_an_answer_that_is_withheld_counts_as_empty(tmp_path, reason, fields):
    """A row that a filter rejects for ever must not prevent the score of the others."""
    withheld = completion(None, reason)
    withheld["choices"][0]["message"] |= fields
    with chat_server(lambda _: (200, withheld)) as (url, requests):
        scores = score(predictions(tmp_path, ROWS[3:4]), judge=quick(url, attempts=2))
    assert len(requests) == 2
    assert scores.failures == {"empty answer": 1}


def test_a_judge_waits_as_long_as_the_server_says(tmp_path, monkeypatch):
    waits, wait = [], threading.Event.wait

    def recorded(event, seconds=None):
        return wait(event) if seconds is None else waits.append(seconds)

    monkeypatch.setattr(threading.Event, "wait", recorded)
    answers = [(429, b"", {"Retry-After": "7"}), (429, b"", {"Retry-After": "Tue"}), "5"]
    with chat_server(lambda _: answers.pop(0)) as (url, _):
        score(predictions(tmp_path, ROWS[3:4]), judge=quick(url, wait_s=1.0))
    assert waits == [7.0, 2.0]


@pytest.mark.slow
def test_a_judge_that_hangs_is_reported_and_ends(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("mm_numeric.io.log.WAITING_S", 0.05)
    ended = threading.Event()
    with chat_server(lambda _: ended.wait(10) and "5") as (url, _):
        with pytest.raises(ValueError, match=r"no whole answer in 0\.2 s, 2 times; 0 new answers"):
            score(predictions(tmp_path), judge=quick(url, timeout_s=0.2, parallel=2))
        ended.set()
    assert f"waiting for an answer of {url} (0 s so far)" in capsys.readouterr().err


def test_published_extractions_are_used_and_only_the_missing_are_asked(tmp_path):
    with chat_server(extract) as (url, requests):
        score(predictions(tmp_path, extraction="C"), judge=quick(url))
        assert requests == []
        found = results(tmp_path)["metrics"]
        scores = score(predictions(tmp_path, extraction="C"))
    assert results(tmp_path)["metrics"] == found
    assert scores.scorer.protocols["judge"] == {"extraction": "that of the rows"}
    assert {row["extraction"] for row in scores.rows} == {"C"}


def test_parse_failures_are_those_of_the_extractions(tmp_path):
    scores = score(predictions(tmp_path, [("", FIVE), ("5", FIVE)], extraction="5"))
    assert scores.failures == {}
    assert scores.columns["unreadable"].tolist() == [0, 0]
    scores = score(predictions(tmp_path, [("", FIVE), ("5", FIVE)], extraction="5 g"))
    assert scores.failures == {"no number": 2}
    assert scores.columns["official"].tolist() == [0, 0]


def test_rows_with_and_without_an_extraction_need_a_judge(tmp_path):
    path = predictions(tmp_path)
    lines = path.read_text(encoding="utf-8").splitlines()
    lines[0] = json.dumps({**json.loads(lines[0]), "extraction": [9, 7]})
    path.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(ValueError, match=r"id '1': no extraction, and other rows have one; add it"):
        score(path)
    with chat_server(extract) as (url, requests):
        scores = score(path, judge=quick(url))
        assert len(requests) == 2
    assert scores.rows[0]["extraction"] == "[9, 7]"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"extraction": {"a": 1}}, r"id '0': the extraction \{'a': 1\} is not a text\."),
        ({"prompt": None}, r"id '3': no \"query\" or \"prompt\" \(a text\), the question"),
    ],
)
def test_a_row_that_no_judge_can_extract_is_one_sentence(tmp_path, more, message):
    with pytest.raises(ValueError, match=message):
        score(predictions(tmp_path, **more), judge=quick("http://127.0.0.1:9/v1"))


def test_the_command_line_asks_a_judge(tmp_path, capsys):
    path = predictions(tmp_path)
    with chat_server(extract) as (url, requests):
        words = ["score", str(path), "--extract-with", url, "--extract-model", "judge-7b"]
        assert cli.main(words) == 0
    assert {body["model"] for *_, body in requests} == {"judge-7b"}
    assert "official" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--extract-with", "api.openai.com"], "'api.openai.com' is not the URL of a judge"),
        (["--extract-with", "https://me:key@host/v1"], "has no user, password or query"),
        (["--extract-model", "m"], "--extract-model requires --extract-with, the URL of"),
        (["--timeout", "9"], "--timeout requires --extract-with, the URL"),
        (["--extract-with", "http://h", "--protocol", "labelled"], "cannot be combined with"),
        (["--extract-with", "http://h", "--task", "gsm8k"], "the task is scored without a judge"),
    ],
)
def test_a_bad_judge_is_one_sentence(tmp_path, capsys, words, message):
    line = {"id": "1", "text": "5", "target": "5"}
    path = tmp_path / "predictions.jsonl"
    path.write_text(json.dumps(line), encoding="utf-8")
    assert cli.main(["score", str(path), *words]) == 2
    assert message in capsys.readouterr().err
