"""A page for the browsers of this machine: clients that leave, wait, or are too many."""

import socket
import threading
import time
from contextlib import contextmanager
from http import HTTPStatus

import pytest

from mm_numeric.io import local_server as module
from mm_numeric.io.local_server import LocalHandler, local_server

HEAD = "POST / HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nContent-Length: 9\r\n\r\n"


class Handler(LocalHandler):
    """Answers with a text that is larger than the buffers of a connection."""

    def do_GET(self):  # noqa: N802
        self.reply(HTTPStatus.OK, "plain", "a" * 10_000_000, {})

    def do_POST(self):  # noqa: N802
        self.reply(HTTPStatus.OK, "plain", self.body(9).decode(), {})


@contextmanager
def served(handler=Handler):
    """Yield the port of a server, and the server."""
    server = local_server(handler, 0)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server.server_port, server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def connected(port, text=""):
    found = socket.create_connection(("127.0.0.1", port), timeout=10)
    found.sendall(text.format(port).encode())
    return found


def wait_for(condition):
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def is_idle(server):
    return not server.reading and server.free._value == module.MOST_CONNECTIONS


def test_clients_that_leave_leave_no_trace(capfd):
    with served() as (port, server):
        texts = [HEAD, HEAD + "abc", HEAD + "abcdefghi", HEAD.replace("POST", "GET"), "GE", ""]
        for text in texts:
            client = connected(port, text)
            # The connection is reset, so that the answer to it fails.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            client.close()
        wait_for(lambda: is_idle(server))
        with connected(port, HEAD + "abcdefghi") as client:
            assert client.makefile().read().endswith("\nabcdefghi")
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("text", ["", "GET / HT", HEAD, HEAD + "abc"])
def test_a_request_that_does_not_arrive_is_ended(monkeypatch, text):
    monkeypatch.setattr(module, "REQUEST_S", 0.1)
    with served() as (port, server), connected(port, text) as client:
        start = time.monotonic()
        try:
            while client.recv(1000):  # the end, perhaps after an error
                client.sendall(b"a")  # one byte now and then moves no deadline
        except ConnectionError:
            pass
        assert time.monotonic() - start < 5
        wait_for(lambda: is_idle(server))


def test_there_are_not_more_connections_than_permitted(monkeypatch):
    monkeypatch.setattr(module, "MOST_CONNECTIONS", 2)
    with served() as (port, server):
        first, second = connected(port, HEAD), connected(port, HEAD)
        wait_for(lambda: len(server.reading) == 2)
        with connected(port) as third:
            assert third.recv(1) == b""
        first.close()
        second.sendall(b"abcdefghi")
        assert second.makefile().read().endswith("\nabcdefghi")
        second.close()


def test_an_error_of_the_page_is_logged_with_its_text_escaped(capfd):
    class Failing(Handler):
        def do_GET(self):  # noqa: N802
            raise ValueError("\x1b[31mowned")

    with served(Failing) as (port, _), connected(port, HEAD.replace("POST", "GET")) as client:
        assert client.makefile().read() == ""
    written = capfd.readouterr().err
    assert written.startswith("mm-numeric: a request could not be answered:")
    assert r"\x1b[31mowned" in written
    assert "\x1b" not in written
