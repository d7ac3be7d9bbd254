"""Serve a report page to the browsers of this machine, and refresh it while a run trains."""

from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

HOST = "127.0.0.1"
SECONDS = 10  # between two refreshes
_DEFAULT_PORT = 80  # a browser leaves it out of the host name


def page_server(make: Callable[[], str], port: int) -> ThreadingHTTPServer:
    """Return a server whose only page is the text that ``make`` returns, made again each time.

    The browser loads the page again every 10 seconds, without a script: the server says so in the
    header ``Refresh``. If ``make`` fails, the page is the error message. Other machines
    cannot connect, and a page of a website cannot read this one, because its host name is another.

    Raises ValueError if the port cannot be used.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            ports = [f":{server.server_port}"] + [""] * (server.server_port == _DEFAULT_PORT)
            known = [f"{name}{port}" for name in (HOST, "localhost") for port in ports]
            if self.headers.get("Host") not in known:
                self.send_error(HTTPStatus.FORBIDDEN)
            elif self.path != "/":
                self.send_error(HTTPStatus.NOT_FOUND)
            else:
                self._send_page()

        def _send_page(self) -> None:
            status, kind = HTTPStatus.OK, "html"
            try:
                text = make()
            except (ValueError, OSError) as error:
                status, kind, text = HTTPStatus.INTERNAL_SERVER_ERROR, "plain", str(error)
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", f"text/{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("Refresh", str(SECONDS))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            """Write no line for each request."""

    try:
        server = ThreadingHTTPServer((HOST, port), Handler)
    except (OSError, OverflowError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a port number"
        raise ValueError(
            f"--port {port}: cannot serve the page there ({reason}); choose another port."
        ) from error
    return server
