"""A client of a server that hangs, never ends, is broken, or answers what no server answers."""

import json
import math
import select
import socket
import threading
import time
from contextlib import contextmanager, suppress

import pytest
from chat_server import chat_server, completion

from mm_numeric.cli import main as cli
from mm_numeric.inference import chat_client
from mm_numeric.inference.chat_client import OPENAI_KEY, ChatClient, RejectedError
from mm_numeric.inference.chat_reply import BadReplyError, TimedOutError, TryAgainError, read_reply
from mm_numeric.io import log
from mm_numeric.io.log import Waiting

CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n5\r\nab"
CUT = b"Content-Length: 100\r\n\r\n{"
OK = b"HTTP/1.1 200 OK\r\n"
SEVEN = json.dumps(completion("7"))


def response(status, body):
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


def is_left(connection):
    """Return True if the client has closed the connection."""
    readable, _, _ = select.select([connection], [], [], 0.01)
    return bool(readable) and connection.recv(1) == b""


def hang(connection):
    while not is_left(connection):
        pass


def send_for_ever(start, more):
    """Return what sends ``start``, and ``more`` again and again until the client leaves."""

    def send(connection):
        connection.sendall(start)
        try:
            while not is_left(connection):
                connection.sendall(more)
        except OSError:  # the client has left while it was sent
            pass

    return send


@contextmanager
def server(*responses):
    """Send one response to each request, and close the connection; yield the URL.

    A response is its bytes, or a function of the connection.
    """
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve():
            for each in responses:
                connection, _ = listening.accept()
                with connection, connection.makefile("rb") as file:
                    length = 0
                    while (line := file.readline().strip()) != b"":
                        name, _, value = line.partition(b":")
                        length = int(value) if name.lower() == b"content-length" else length
                    file.read(length)
                    each(connection) if callable(each) else connection.sendall(each)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
        thread.join(10)
        assert not thread.is_alive()


def client(url, **changes):
    return ChatClient(**{"url": url, "wait_s": 0.0, "timeout_s": 5.0, **changes})


def text_of(reply):
    return reply.answers[0].text


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


ASKED = {"messages": [{"content": "How many?"}]}
"""A question."""


def test_a_proxy_of_the_environment_gets_nothing_unless_it_is_asked_for(monkeypatch):
    monkeypatch.setenv(OPENAI_KEY, "sk-own")
    with (
        chat_server(lambda _: "of the server") as (url, asked),
        chat_server(lambda _: "of the proxy") as (proxy, through),
    ):
        monkeypatch.setenv("http_proxy", proxy.removesuffix("/v1"))
        assert client(url).complete(ASKED, text_of) == "of the server"
        assert (len(asked), through) == (1, [])
        by_proxy = client(url, use_proxy=True)
        assert by_proxy.complete(ASKED, text_of) == "of the proxy"
        ((path, headers, body),) = through
        assert (path, body) == (f"{url}/chat/completions", ASKED)
        assert headers["Authorization"] == "Bearer sk-own"
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        assert by_proxy.complete(ASKED, text_of) == "of the server"
        assert (len(asked), len(through)) == (2, 1)


def test_a_failure_names_the_server_and_the_proxy(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        nobody = f"127.0.0.1:{listening.getsockname()[1]}"
    url, proxy = f"http://{nobody}/v1", "http://name:secret@127.0.0.1:1/"
    monkeypatch.setenv("http_proxy", proxy)
    start = rf"^http://{nobody}/v1/chat/completions: no answer \(.*refused\)"
    with pytest.raises(TryAgainError, match=f"{start} through the proxy 127.0.0.1:1/$"):
        client(url, use_proxy=True, attempts=1).complete({}, text_of)
    remedy = "without the proxy 127.0.0.1:1/, which --proxy env uses"
    with pytest.raises(TryAgainError, match=f"{start}, {remedy}$"):
        client(url, attempts=1).complete({}, text_of)
    monkeypatch.setenv("no_proxy", "*")
    with pytest.raises(TryAgainError, match=f"{start}$"):
        client(url, use_proxy=True, attempts=1).complete({}, text_of)


def test_a_proxy_that_does_not_connect_is_named(monkeypatch):
    """An https server is asked by CONNECT: the proxy sees neither question nor key."""
    with server(response("502 Bad Gateway", ""), response("403 Forbidden", "")) as proxy:
        proxy = proxy.removesuffix("/v1")
        monkeypatch.setenv("https_proxy", proxy)
        with pytest.raises(TryAgainError, match=f"Tunnel .*502 .* through the proxy {proxy}$"):
            client("https://h/v1", use_proxy=True, attempts=1).complete({}, text_of)
        monkeypatch.setenv("http_proxy", proxy)
        with pytest.raises(ValueError, match=rf"HTTP 403 \(.*\) through the proxy {proxy};"):
            client("http://h/v1", use_proxy=True).complete({}, text_of)


def test_the_reply_of_a_proxy_leaves_the_timeout_to_the_handshake(monkeypatch):
    """It was read in slices of .2 s; a handshake after the tunnel may take longer."""
    accepted, waited = b"HTTP/1.1 200 Connection established\r\n\r\n", []
    monkeypatch.setattr(
        "ssl.SSLContext.wrap_socket", lambda _, tunnel, **__: waited.append(tunnel.gettimeout())
    )
    with server(accepted) as proxy:
        monkeypatch.setenv("https_proxy", proxy.removesuffix("/v1"))
        with suppress(TryAgainError, AttributeError):  # the socket without a handshake is None
            client("https://h/v1", use_proxy=True, attempts=1).complete({}, text_of)
    assert waited
    assert min(waited) > 1


@pytest.mark.parametrize(
    "words",
    [["predict", "--model", "run", "--served-model", "x", "--endpoint"],
     ["score", "x.jsonl", "--extract-with"]],
)  # fmt: skip
def test_the_option_of_the_proxy_needs_one(words, capsys, monkeypatch):
    assert cli.main([*words, "http://localhost:1/v1", "--proxy", "env"]) == 2
    assert "--proxy env: the environment has no http_proxy; set it" in capsys.readouterr().err
    assert cli.main([*words[:-1], "--proxy", "env"]) == 2
    assert "--proxy" in capsys.readouterr().err


@pytest.mark.parametrize("body", [CHUNKED, CUT, b"Transfer-Encoding: chunked\r\n\r\n"])
@pytest.mark.parametrize("status", [b"HTTP/1.1 503 Service Unavailable\r\n", OK])
def test_a_reply_whose_body_is_cut_is_tried_again(status, body):
    with server(status + body, response("200 OK", SEVEN)) as url:
        assert client(url).complete({}, text_of) == "7"


@pytest.mark.parametrize("size", [b"-1", b"-5", b"zz", b""])
def test_an_impossible_size_of_a_chunk_is_one_sentence(size):
    reply = OK + b"Transfer-Encoding: chunked\r\n\r\n" + size + b"\r\n" + SEVEN.encode()
    with server(reply) as url, pytest.raises(ValueError, match=f"^{url}/chat/completions: "):
        client(url, attempts=1).complete({}, text_of)


def test_a_chunk_of_negative_size_is_not_read_for_ever(monkeypatch):
    monkeypatch.setattr(chat_client, "_REPLY_BYTES", 1000)
    start = OK + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n"
    with (
        server(send_for_ever(start, b"a" * 1000)) as url,
        pytest.raises(ValueError, match="the reply has no end; check the URL"),
    ):
        client(url).complete({}, text_of)


@pytest.mark.parametrize("message", [None, 7, ["no", "such", "field"]])
def test_the_message_of_an_error_may_be_no_text(message):
    body = json.dumps({"error": {"message": message}})
    with (
        server(response("400 Bad Request", body)) as url,
        pytest.raises(RejectedError, match="HTTP 400"),
    ):
        client(url).complete({}, text_of)


def test_the_body_of_an_error_may_be_nested_too_deep():
    with (
        server(response("400 Bad Request", '{"error": ' + "[" * 9000)) as url,
        pytest.raises(RejectedError, match=r"HTTP 400 \(Bad Request\)$"),
    ):
        client(url).complete({}, text_of)


@pytest.mark.slow
@pytest.mark.parametrize(
    "slow",
    [
        hang,
        send_for_ever(b"", b"H"),
        send_for_ever(OK, b"a: b"),
        send_for_ever(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        send_for_ever(OK + b"Content-Length: 100000\r\n\r\n", b" "),
        send_for_ever(OK + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
        send_for_ever(b"HTTP/1.1 500 No\r\n\r\n", b" "),
    ],
    ids=["nothing", "status", "header", "continue", "body", "chunks", "error"],
)
def test_a_server_that_hangs_or_is_slow_ends_after_two_timeouts(slow):
    started = time.monotonic()
    with server(slow, slow) as url, pytest.raises(TryAgainError) as error:
        client(url, timeout_s=0.1, attempts=2).complete({}, text_of)
    assert str(error.value) in (
        f"{url}/chat/completions: no whole answer in 0.1 s, 2 times",
        f"{url}/chat/completions: HTTP 500 (No), 2 times",
    )
    assert time.monotonic() - started < 10


def test_the_second_timeout_is_the_last_attempt():
    with server(hang, hang) as url, pytest.raises(TimedOutError, match=r"in 0\.1 s, 2 times$"):
        client(url, timeout_s=0.1, attempts=10).complete({}, text_of)


@pytest.mark.parametrize("head", [b"\r\n", b"Content-Length: 9000000000\r\n\r\n"])
def test_a_body_without_end_is_read_up_to_a_limit(monkeypatch, head):
    monkeypatch.setattr("mm_numeric.inference.chat_client._REPLY_BYTES", 1 << 20)
    with (
        server(send_for_ever(OK + head, b" " * 65536)) as url,
        pytest.raises(ValueError, match=r"completions: the reply is larger than 2 MiB; check") as e,
    ):
        client(url).complete({"max_tokens": 64, "n": 16}, text_of)
    assert not isinstance(e.value, TryAgainError)


@pytest.mark.parametrize(
    "body",
    ["<html>", "[" * 100_000, '{"choices": []}', "7", '"\\ud800"'],
    ids=["html", "deep", "no-choices", "number", "surrogate"],
)
def test_an_invalid_reply_is_requested_three_times(body, capsys):
    with (
        server(*[response("200 OK", body)] * 3) as url,
        pytest.raises(BadReplyError, match=r"the answer .* not .*, 3 times$") as error,
    ):
        client(url, attempts=10).complete({}, text_of)
    assert len(str(error.value)) < 300
    assert len(capsys.readouterr().err.splitlines()) == 1  # the second one


def test_a_reply_that_repeats_the_api_key_is_shown_without_it(monkeypatch, capsys):
    key = "sk-very-secret-1234"
    monkeypatch.setenv("OPENAI_API_KEY", key)
    bodies = [f"{'x' * 70}{key}", f'{{"choices": "{key}"}}', f"<p>{key}"]
    with (
        server(*[response("200 OK", body) for body in bodies]) as url,
        pytest.raises(BadReplyError, match=r"<p>\*\*\*, 3 times$"),
    ):
        client(url).complete({}, text_of)
    assert key[:9] not in capsys.readouterr().err


def test_an_error_500_is_permanent_after_three_attempts_and_a_busy_server_is_not():
    busy, failing = response("503 Busy", ""), response("500 No", "")
    with (
        server(*[busy] * 4, *[failing] * 3) as url,
        pytest.raises(BadReplyError, match=r"HTTP 500 \(No\), 7 times"),
    ):
        client(url, attempts=10).complete({}, text_of)


def test_another_thread_ends_a_request():
    found = []
    with server(hang) as url:
        own = client(url, timeout_s=60)

        def ask():
            with pytest.raises(TryAgainError):
                own.complete({}, text_of)
            found.append("ended")

        thread = threading.Thread(target=ask)
        thread.start()
        time.sleep(0.05)
        own.stopped.set()
        thread.join(5)
    assert found == ["ended"]


def changed(**changes):
    """Return the body of a chat completion with changed fields of its only answer."""
    found = completion("7")
    found["choices"][0] |= changes
    return json.dumps(found).encode()


def logprob(**changes):
    return {"logprobs": {"content": [{"token": "7", "logprob": -1.0, **changes}]}}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"message": "7"}, "message is '7'"),
        ({"message": {"content": ["7"]}}, r"content is \['7'\]"),
        ({"message": {"content": "\ud800"}}, "content is"),
        ({"finish_reason": 7}, "finish_reason is 7"),
        ({"token_ids": [10**30]}, "token_ids is 10000"),
        ({"token_ids": [-5]}, "token_ids is -5"),
        ({"token_ids": [True]}, "token_ids is True"),
        ({"token_ids": 5}, "token_ids is 5"),
        ({"logprobs": [1]}, r"logprobs is \[1\]"),
        ({"logprobs": {"content": 5}}, "logprobs is 5"),
        ({"logprobs": {"content": ["7"]}}, "logprobs is '7'"),
        (logprob(logprob=1e308), r"logprob is 1e\+308"),
        (logprob(logprob=10**400), "logprob is 1000"),
        (logprob(logprob=math.nan), "logprob is nan"),
        (logprob(logprob=None), "logprob is None"),
        (logprob(bytes=10**9), "bytes is 1000000000"),
        (logprob(bytes=[256]), r"bytes is \[256\]"),
        (logprob(token=None), "token is None"),
    ],
)
def test_an_impossible_value_of_a_reply_is_one_sentence(changes, message):
    with pytest.raises(
        BadReplyError, match=f"the answer is not a chat completion: {message}"
    ) as error:
        read_reply(changed(**changes))
    assert len(str(error.value)) < 120


def test_a_deep_value_of_a_reply_is_one_sentence():
    deep = b"[" * 900 + b"]" * 900
    with pytest.raises(BadReplyError, match=r"(content is \[\[\[|nested too deep)"):
        read_reply(changed(message={"content": 5}).replace(b"5", deep))


def test_log_probabilities_of_impossible_and_of_certain_tokens_are_read():
    for written, value in ((-math.inf, 0.0), (-(10**400), 0.0), (1e-6, 1.0), (-9999.0, 0.0)):
        (answer,) = read_reply(changed(**logprob(logprob=written))).answers
        assert [math.exp(found) for found, _ in answer.logprobs] == [value]


@pytest.mark.parametrize("usage", [None, [], {}, {"prompt_tokens": None}, {"prompt_tokens": "7"}])
def test_prompt_tokens_may_be_missing(usage):
    found = completion("7")
    assert read_reply(json.dumps({**found, "usage": usage}).encode()).prompt_tokens is None
    seven = json.dumps({**found, "usage": {"prompt_tokens": 7}}).encode()
    assert read_reply(seven).prompt_tokens == 7
    for wrong in (-5, 10**30):
        wrong_usage = {**found, "usage": {"prompt_tokens": wrong}}
        with pytest.raises(BadReplyError, match=f"prompt_tokens is {str(wrong)[:5]}"):
            read_reply(json.dumps(wrong_usage).encode())


def test_a_text_that_is_null_is_no_empty_text():
    assert read_reply(changed(message={"content": ""})).answers[0].text == ""
    message = {"role": "assistant", "content": None, "reasoning": "hm"}
    with pytest.raises(BadReplyError, match=r"null, the message has reasoning\); serve the model"):
        _ = read_reply(changed(message=message)).answers[0].text
    with pytest.raises(BadReplyError, match=r"null\); the model used all tokens"):
        _ = read_reply(changed(message={"content": None}, finish_reason="length")).answers[0].text


def test_a_wait_is_reported_every_30_seconds(monkeypatch, capsys):
    assert log.WAITING_S == 30
    monkeypatch.setattr(log, "WAITING_S", 0.02)
    with server(hang) as url:
        own = client(url, timeout_s=0.1, attempts=1)
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(1) as pool, pytest.raises(TimedOutError):
            Waiting("an answer").result(pool.submit(own.complete, {}, text_of))
    lines = capsys.readouterr().err.splitlines()
    assert 2 <= len(lines) <= 6
    assert set(lines) == {"mm-numeric: waiting for an answer (0 s so far)"}
