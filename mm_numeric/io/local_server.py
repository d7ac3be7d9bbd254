"""Serve pages to the browsers of this machine only."""

import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from mm_numeric.io.log import logger

HOST = "127.0.0.1"
_DEFAULT_PORT = 80  # browsers leave this port out of the host name

REQUEST_S = 30.0
"""Time limit in seconds to receive a complete request, and for the client to read the reply."""

MOST_CONNECTIONS = 32
"""Maximum number of connections, each with a thread; further connections are closed at once."""


class LocalServer(ThreadingHTTPServer):
    """A server that limits the number of connections and the duration of requests."""

    daemon_threads = True

    def __init__(self, *arguments: Any) -> None:
        self.free = threading.Semaphore(MOST_CONNECTIONS)
        self.reading: dict[socket.socket, float] = {}
        """Maps connections with incomplete requests to their deadlines."""
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Handle a connection in a thread of its own; close it if there are too many."""
        if not self.free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        self.reading[request] = time.monotonic() + REQUEST_S
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread could be started
            self._end(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Handle a connection, and allow another connection at the end."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._end(request)

    def _end(self, request: Any) -> None:
        self.reading.pop(request, None)
        self.free.release()

    def service_actions(self) -> None:
        """End the connections whose requests take too long; called twice a second."""
        for request, deadline in list(self.reading.items()):
            if time.monotonic() > deadline:
                with suppress(OSError):  # it has ended just now
                    request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log an error, escaped; ``socketserver`` would print it unescaped."""
        logger.exception("a request could not be answered:")


class LocalHandler(BaseHTTPRequestHandler):
    """Base class of request handlers.

    Other machines cannot connect, and a page of a website cannot read a reply, because requests
    with another host name get an error.
    """

    server: LocalServer
    timeout = REQUEST_S

    def handle(self) -> None:
        """Handle the request; ignore a client that disconnects or times out."""
        with suppress(ConnectionError, TimeoutError):
            super().handle()

    def body(self, length: int) -> bytes:
        """Read the body of a request; raise ConnectionError if it does not arrive as a whole."""
        found = self.rfile.read(length)
        if len(found) < length:
            raise ConnectionAbortedError
        self.server.reading.pop(self.connection, None)
        return found

    def parse_request(self) -> bool:
        """Parse a request; send an error unless it names this machine as its host."""
        if not super().parse_request():
            return False
        if self.command != "POST":  # the body of a POST request is still to come
            self.server.reading.pop(self.connection, None)
        port = self.connection.getsockname()[1]
        ports = [f":{port}"] + [""] * (port == _DEFAULT_PORT)
        hosts = [f"{name}{port}" for name in (HOST, "localhost") for port in ports]
        origin = self.headers.get("Origin")
        if self.headers.get("Host") in hosts and origin in (None, *(f"http://{h}" for h in hosts)):
            return True
        self.send_error(HTTPStatus.FORBIDDEN)
        return False

    def reply(self, status: HTTPStatus, kind: str, text: str, headers: Mapping[str, str]) -> None:
        """Send a text of the type ``text/KIND``, which browsers do not cache."""
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", f"text/{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Do not log each request."""


def local_server(handler: type[LocalHandler], port: int) -> LocalServer:
    """Return a server on 127.0.0.1; raise ValueError if the port cannot be used."""
    try:
        return LocalServer((HOST, port), handler)
    except (OSError, OverflowError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a port number"
        raise ValueError(
            f"--port {port}: cannot serve the page there ({reason}); choose another port."
        ) from error
