"""Serve pages to the browsers of this machine, and to nobody else."""

from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

HOST = "127.0.0.1"
_DEFAULT_PORT = 80  # a browser leaves it out of the host name


class LocalHandler(BaseHTTPRequestHandler):
    """Base class of request handlers.

    Other machines cannot connect, and a page of a website cannot read an answer, because its host
    name is another.
    """

    def parse_request(self) -> bool:
        """Parse a request; send an error unless it names this machine as its host."""
        if not super().parse_request():
            return False
        port = self.connection.getsockname()[1]
        ports = [f":{port}"] + [""] * (port == _DEFAULT_PORT)
        hosts = [f"{name}{port}" for name in (HOST, "localhost") for port in ports]
        origin = self.headers.get("Origin")
        if self.headers.get("Host") in hosts and origin in (None, *(f"http://{h}" for h in hosts)):
            return True
        self.send_error(HTTPStatus.FORBIDDEN)
        return False

    def reply(self, status: HTTPStatus, kind: str, text: str, headers: Mapping[str, str]) -> None:
        """Send a text of the type ``text/KIND``, which no browser stores."""
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
        """Write no line for each request."""


def local_server(handler: type[LocalHandler], port: int) -> ThreadingHTTPServer:
    """Return a server on 127.0.0.1; raise ValueError if the port cannot be used."""
    try:
        return ThreadingHTTPServer((HOST, port), handler)
    except (OSError, OverflowError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a port number"
        raise ValueError(
            f"--port {port}: cannot serve the page there ({reason}); choose another port."
        ) from error
