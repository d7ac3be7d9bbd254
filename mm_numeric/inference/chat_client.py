"""Client of a server with an OpenAI-compatible API (``POST .../chat/completions``)."""

import http.client
import io
import json
import os
import re
import socket
import ssl
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, TypeVar

from mm_numeric.inference.chat_reply import (
    BadReplyError,
    Reply,
    TimedOutError,
    TryAgainError,
    read_reply,
)
from mm_numeric.io.log import logger

OPENAI_KEY = "OPENAI_API_KEY"
"""Environment variable with the API key. It may be unset if the server needs no key."""

T = TypeVar("T")

_REJECTED = {400, 422, 501}
_TRY_AGAIN = {408, 409, 425, 429, 502, 503, 504}
_SECONDS = re.compile(r"[0-9]{1,6}(?:\.[0-9]{1,6})?")
_LONGEST_WAIT_S = 60.0
_LONGEST_TIMEOUT_S = 1_000_000  # sockets have a limit

_REPLY_BYTES, _TOKEN_BYTES = 4 << 20, 1 << 10
"""Largest size of a reply: ``_REPLY_BYTES``, plus ``_TOKEN_BYTES`` for each requested token."""


class RejectedError(ValueError):
    """The server rejected the content of a request, such as a field that it does not know."""


@dataclass(frozen=True, kw_only=True)
class ChatClient:
    """Sends requests for chat completions; tries again if the server is busy or fails."""

    key_name: ClassVar[str] = OPENAI_KEY
    """Environment variable that has the API key."""

    what: ClassVar[str] = "server"
    """A description of the server, for error messages."""

    model_option: ClassVar[str] = ""
    """Command line option that names the model on the server, for error messages."""

    url: str
    """Base URL such as ``https://api.openai.com/v1``, or the URL of ``.../chat/completions``."""

    attempts: int = 5
    """Largest number of attempts if the server is busy, fails or does not answer."""

    wait_s: float = 1.0
    """Seconds to wait before the second attempt. The wait doubles with each further attempt, up to
    one minute."""

    timeout_s: float = 120.0
    """Seconds within which the whole reply to a request must arrive."""

    use_proxy: bool = False
    """Send requests through the proxy that ``http_proxy`` or ``https_proxy`` names, unless
    ``no_proxy`` lists the server. An ``http`` proxy can read questions, answers and the API key."""

    stopped: threading.Event = field(default_factory=threading.Event, compare=False, repr=False)
    """Set by another thread to end the requests of this client."""

    def __post_init__(self) -> None:
        if not 0 < self.timeout_s <= _LONGEST_TIMEOUT_S:
            raise ValueError(
                f"the timeout of a {self.what} is above 0 and at most {_LONGEST_TIMEOUT_S:,} "
                f"seconds, not {self.timeout_s:g}."
            )
        parts = urllib.parse.urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(
                f"{self.url!r:.80} is not the URL of a {self.what}; write one such as "
                "https://api.openai.com/v1 or http://localhost:8000/v1."
            )
        if parts.username is not None or parts.query:
            raise ValueError(
                f"the URL of a {self.what} has no user, password or query, because it is stored in "
                f"files; set {self.key_name} instead."
            )
        if self.use_proxy and parts.scheme not in urllib.request.getproxies_environment():
            raise ValueError(
                f"--proxy env: the environment has no {parts.scheme}_proxy; set it, or remove "
                "--proxy."
            )

    @property
    def endpoint(self) -> str:
        """Return the URL that requests are sent to."""
        base = self.url.rstrip("/")
        return base if base.endswith("/chat/completions") else f"{base}/chat/completions"

    def _way(self) -> str:
        """Return a note for error messages on the proxy of the environment; "" without a proxy."""
        parts = urllib.parse.urlsplit(self.url)
        proxy = urllib.request.getproxies_environment().get(parts.scheme)
        if proxy is None or urllib.request.proxy_bypass(parts.netloc):
            return ""
        proxy = proxy.rpartition("@")[2]  # without its password
        if self.use_proxy:
            return f" through the proxy {proxy}"
        return f", without the proxy {proxy}, which --proxy env uses"

    def complete(self, request: Mapping[str, Any], read: Callable[[Reply], T]) -> T:
        """Send a request, and return ``read(reply)``.

        The request is sent again if the server cannot be reached, is busy or fails, or if ``read``
        raises ``TryAgainError``. It is not sent again after another thread has set ``stopped``.

        Raises:
            RejectedError: If the server rejects the content of the request.
            TryAgainError: If the last attempt failed, or too many attempts failed in the same way.
            ValueError: If the API key is not accepted, if the server has no such model or URL, or
                if the reply is too large.
        """
        failures = Counter[type[TryAgainError]]()
        for attempt in range(self.attempts):
            try:
                return read(self._send(request))
            except TryAgainError as error:
                kind, problem, cause = type(error), f"{self.endpoint}: {error}", error
            failures[kind] += 1
            if attempt + 1 == self.attempts or failures[kind] == kind.most_attempts:
                break
            if attempt == 1:
                logger.warning("%s, 2 times; trying again", problem)
            if self.stopped.wait(max(min(self.wait_s * 2**attempt, _LONGEST_WAIT_S), cause.wait_s)):
                break
        times = f", {failures.total()} times" if failures.total() > 1 else ""
        raise kind(f"{problem}{times}") from cause

    def _send(self, request: Mapping[str, Any]) -> Reply:
        """Send a request once; raise ``TryAgainError`` for an error that may be temporary."""
        headers, key = {"Content-Type": "application/json"}, self._key()
        if key:
            headers["Authorization"] = f"Bearer {key}"
        tokens = request.get("max_tokens", 0) * request.get("n", 1)
        body, size = json.dumps(request).encode(), _REPLY_BYTES + _TOKEN_BYTES * tokens
        limits = self.timeout_s, size, self.stopped
        try:
            content = post(self.endpoint, body, headers, *limits, use_proxy=self.use_proxy)
        except urllib.error.HTTPError as error:
            way = self._way() if self.use_proxy else ""
            problem = f"HTTP {error.code} ({_detail(error, key)}){way}"
            if error.code == 500:
                raise BadReplyError(problem) from error
            if error.code in _TRY_AGAIN:
                wait = error.headers.get("Retry-After", "")
                wait_s = float(wait) if _SECONDS.fullmatch(wait) else 0.0
                raise TryAgainError(problem, min(wait_s, _LONGEST_WAIT_S)) from error
            kind = RejectedError if error.code in _REJECTED else ValueError
            raise kind(f"{self.endpoint}: {problem}{self._hint(error.code)}") from error
        except ReplySizeError as error:
            raise ValueError(f"{self.endpoint}: {error}; check the URL.") from error
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error or type(error).__name__  # of URLError
            if isinstance(reason, ssl.SSLCertVerificationError | http.client.InvalidURL):
                text = f"{self.endpoint}: no answer ({reason}){self._way()}; check the URL."
                raise ValueError(text) from error
            if isinstance(reason, TimeoutError) and reason.errno is None:
                text = f"no whole answer in {self.timeout_s:g} s{self._way()}"
                raise TimedOutError(text) from error
            raise TryAgainError(f"no answer ({reason}){self._way()}") from error
        return read_reply(content, key or "")

    def _key(self) -> str | None:
        key = os.environ.get(self.key_name, "").strip()
        if not (key.isascii() and key.isprintable()):  # http.client would show it
            raise ValueError(
                f"{self.key_name} is no API key: it has a line break or a character that is not "
                "ASCII; set it again."
            )
        return key or None

    def _hint(self, status: int) -> str:
        if status in (401, 403):
            return f"; set {self.key_name} to a valid key"
        if status == 404:
            return f"; check the URL, and name a model of the server with {self.model_option}"
        return ""


_NO_DETAIL = (
    *(ValueError, LookupError, TypeError, AttributeError, RecursionError),  # other JSON, or none
    *(OSError, http.client.HTTPException),  # the connection ended within the body
)


def _detail(error: urllib.error.HTTPError, key: str | None) -> str:
    """Return the message of an HTTP error, or else its reason phrase; hide the API ``key``."""
    try:
        body = json.loads(error.read(10_000).decode("utf-8", "replace"))
        found = body.get("error", body.get("detail"))  # "detail" of FastAPI, as in transformers
        text = found["message"] if isinstance(found, dict) else str(found or error.reason)
    except _NO_DETAIL:
        text = error.reason
    hidden = str(text).replace(key, "***") if key else str(text)
    return " ".join(hidden.split())[:200]


_SLICE_S = 0.2
"""Seconds between two checks whether another thread has set ``stopped``."""

_FRAMED = 4
"""Largest ratio of the bytes of a chunked reply to the bytes of its content."""


class ReplySizeError(ValueError):
    """Raised if a reply is larger than the limit."""


def post(
    url: str,
    content: bytes,
    headers: Mapping[str, str],
    timeout_s: float,
    max_bytes: int,
    stopped: threading.Event,
    *,
    use_proxy: bool = False,
) -> bytes:
    """Send a request, and return the body of the reply. A redirect raises an HTTPError.

    The time limit of urllib applies to each read from the socket: a server that sends one byte
    every two seconds never exceeds it. Here ``timeout_s`` and ``max_bytes`` limit the whole reply.
    If another thread sets ``stopped``, reading ends with a TimeoutError. Proxies of the environment
    are only used if ``use_proxy`` is True.

    Raises:
        urllib.error.HTTPError: If the status is not 2xx. The same time limit applies to reading the
            body of this error.
        OSError: If the server cannot be reached, or does not answer in time.
        http.client.HTTPException: If the reply is not valid HTTP, or is incomplete.
        ReplySizeError: If the reply is too large.
    """
    request = _Request(url, data=content, headers=dict(headers))
    request.deadline = _Deadline(timeout_s, stopped, _FRAMED * (max_bytes + _REPLY_BYTES))
    proxies = urllib.request.getproxies_environment() if use_proxy else {}
    handlers = (urllib.request.ProxyHandler(proxies), _HTTP, _HTTPS, _RejectRedirects)
    opener = urllib.request.build_opener(*handlers)  # its default handler uses system proxies
    with opener.open(request, timeout=timeout_s) as reply:
        try:
            found: bytes = reply.read(max_bytes + 1)
        except ReplySizeError:
            raise
        except ValueError as error:  # such as a negative length of a chunk
            raise http.client.HTTPException(f"no valid HTTP: {error}") from error
        if len(found) > max_bytes:
            raise ReplySizeError(f"the reply is larger than {max_bytes / 2**20:.0f} MiB")
        if reply.length:  # bytes that are missing: `read` with a limit does not report them
            raise http.client.IncompleteRead(found, reply.length)
    return found


class _Deadline:
    def __init__(self, timeout_s: float, stopped: threading.Event, max_bytes: int) -> None:
        self._end, self._stopped = time.monotonic() + timeout_s, stopped
        self._bytes_left = max_bytes

    def received(self, count: int) -> int:
        """Count ``count`` new bytes, and return ``count``; raise ReplySizeError above the limit."""
        self._bytes_left -= count
        if self._bytes_left < 0:
            raise ReplySizeError("the reply has no end")
        return count

    def next_wait_s(self) -> float:
        """Return the timeout of the next read in seconds; raise TimeoutError after the deadline."""
        left = self._end - time.monotonic()
        if left <= 0 or self._stopped.is_set():
            raise TimeoutError("timed out")
        return min(left, _SLICE_S)


class _Request(urllib.request.Request):
    deadline: _Deadline


class _SocketReader(io.RawIOBase):
    """Reads a socket until a deadline."""

    def __init__(self, deadline: _Deadline, connected: socket.socket, file: Any) -> None:
        self._deadline, self._socket, self._file = deadline, connected, file

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        before = self._socket.gettimeout()
        try:
            while True:
                self._socket.settimeout(self._deadline.next_wait_s())
                try:
                    return self._deadline.received(self._socket.recv_into(buffer))
                except TimeoutError:
                    continue
        finally:  # a proxy's reply is followed by the TLS handshake on the same socket
            self._socket.settimeout(before)

    def close(self) -> None:
        self._file.close()  # the last user of the socket
        super().close()


class _Reply(http.client.HTTPResponse):
    def __init__(self, deadline: _Deadline, connected: socket.socket, **options: Any) -> None:
        super().__init__(connected, **options)
        self.fp: Any = io.BufferedReader(_SocketReader(deadline, connected, self.fp))


def _connection(
    kind: type[http.client.HTTPConnection], deadline: _Deadline, host: str, **options: Any
) -> http.client.HTTPConnection:
    connection: Any = kind(host, **options)
    connection.response_class = partial(_Reply, deadline)
    return connection


class _HTTP(urllib.request.HTTPHandler):
    def http_open(self, request: Any) -> Any:
        kind = partial(_connection, http.client.HTTPConnection, request.deadline)
        return self.do_open(kind, request)


class _HTTPS(urllib.request.HTTPSHandler):
    def https_open(self, request: Any) -> Any:
        kind = partial(_connection, http.client.HTTPSConnection, request.deadline)
        return self.do_open(kind, request)


class _RejectRedirects(urllib.request.HTTPRedirectHandler):
    """Rejects redirects, because urllib would send the API key to the other server."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Return None, so that the redirect is raised as an HTTPError."""
