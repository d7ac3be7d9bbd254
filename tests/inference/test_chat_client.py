"""A server whose HTTP errors are broken themselves."""

import json
import socket
import threading
from contextlib import contextmanager

import pytest

from mm_numeric.inference.chat_client import ChatClient, RejectedError

CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n5\r\nab"
CUT = b"Content-Length: 100\r\n\r\n{"


def response(status, body):
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


@contextmanager
def server(*responses):
    """Send one response to each request, and close the connection; yield the URL."""
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
                    connection.sendall(each)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
        thread.join(10)


@pytest.mark.parametrize("body", [CHUNKED, CUT, b"Transfer-Encoding: chunked\r\n\r\n"])
def test_an_error_whose_body_is_cut_is_tried_again(body):
    busy = b"HTTP/1.1 503 Service Unavailable\r\n" + body
    with server(busy, response("200 OK", '{"found": 1}')) as url:
        client = ChatClient(url=url, wait_s=0.0, timeout_s=5)
        assert client.complete({}, lambda answer: answer) == {"found": 1}


@pytest.mark.parametrize("message", [None, 7, ["no", "such", "field"]])
def test_the_message_of_an_error_may_be_no_text(message):
    body = json.dumps({"error": {"message": message}})
    with server(response("400 Bad Request", body)) as url:
        client = ChatClient(url=url, wait_s=0.0, timeout_s=5)
        with pytest.raises(RejectedError, match="HTTP 400"):
            client.complete({}, lambda answer: answer)
