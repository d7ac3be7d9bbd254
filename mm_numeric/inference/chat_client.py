"""Client of a server with an OpenAI-compatible API (``POST .../chat/completions``)."""

import http.client
import json
import os
import re
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from mm_numeric.log import logger

OPENAI_KEY = "OPENAI_API_KEY"
"""Environment variable with the API key; a server that needs no key is asked without one."""

T = TypeVar("T")

_REJECTED = {400, 422, 501}
_TRY_AGAIN = {408, 409, 425, 429, 500, 502, 503, 504}
_SECONDS = re.compile(r"[0-9]{1,6}(?:\.[0-9]{1,6})?")
_LONGEST_WAIT_S = 60.0


class TryAgainError(ValueError):
    """A request failed, and a further attempt may succeed, after at least ``wait_s`` seconds."""

    def __init__(self, message: str, wait_s: float = 0.0) -> None:
        super().__init__(message)
        self.wait_s = wait_s


class RejectedError(ValueError):
    """The server rejected the content of a request, such as a field that it does not know."""


@dataclass(frozen=True, kw_only=True)
class ChatClient:
    """Sends requests for chat completions to a server, again if the server is busy or fails."""

    key_name: ClassVar[str] = OPENAI_KEY
    """Environment variable that has the API key."""

    what: ClassVar[str] = "server"
    """What the server is to the user, for error messages."""

    model_option: ClassVar[str] = ""
    """Command line option that names the model on the server, for error messages."""

    url: str
    """Base URL such as ``https://api.openai.com/v1``, or the URL of ``.../chat/completions``."""

    attempts: int = 5
    """Number of times that a request is sent if the server is busy, fails or answers nothing."""

    wait_s: float = 1.0
    """Seconds to wait before the second attempt; the time doubles with each further attempt, up to
    one minute."""

    timeout_s: float = 120.0
    """Seconds to wait for each answer of the server."""

    def __post_init__(self) -> None:
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

    @property
    def endpoint(self) -> str:
        """Return the URL that requests are sent to."""
        base = self.url.rstrip("/")
        return base if base.endswith("/chat/completions") else f"{base}/chat/completions"

    def complete(
        self,
        request: Mapping[str, Any],
        read: Callable[[Any], T],
        stopped: threading.Event | None = None,
    ) -> T:
        """Send a request, and return ``read(answer)``, where the answer is parsed JSON.

        The request is sent again if the server cannot be reached, is busy or fails, or if ``read``
        raises ``TryAgainError``, but not after ``stopped`` is set by another thread.

        Raises:
            RejectedError: If the server rejects the content of the request.
            TryAgainError: If the last attempt failed.
            ValueError: If the server does not permit the request, or knows no such model or page.
        """
        for attempt in range(self.attempts):
            try:
                return read(self._send(request))
            except TryAgainError as error:
                problem = error
            if attempt + 1 < self.attempts:
                if attempt == 1:
                    logger.warning(
                        "%s, 2 times; trying again (%d attempts)", problem, self.attempts
                    )
                wait_s = max(min(self.wait_s * 2**attempt, _LONGEST_WAIT_S), problem.wait_s)
                if stopped is None:
                    time.sleep(wait_s)
                elif stopped.wait(wait_s):
                    raise problem
        raise type(problem)(f"{problem}, {self.attempts} times") from problem

    def _send(self, request: Mapping[str, Any]) -> Any:
        """Send a request once; raise ``TryAgainError`` for an error that may be temporary."""
        headers, key = {"Content-Type": "application/json"}, self._key()
        if key:
            headers["Authorization"] = f"Bearer {key}"
        body = json.dumps(request).encode()
        sent = urllib.request.Request(self.endpoint, data=body, headers=headers)
        try:
            with _OPENER.open(sent, timeout=self.timeout_s) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            problem = f"{self.endpoint}: HTTP {error.code} ({_detail(error, key)})"
            if error.code in _TRY_AGAIN:
                wait = error.headers.get("Retry-After", "")
                wait_s = float(wait) if _SECONDS.fullmatch(wait) else 0.0
                raise TryAgainError(problem, min(wait_s, _LONGEST_WAIT_S)) from error
            kind = RejectedError if error.code in _REJECTED else ValueError
            raise kind(problem + self._hint(error.code)) from error
        except (OSError, http.client.HTTPException) as error:  # URLError and TimeoutError, too
            reason = getattr(error, "reason", None) or error or type(error).__name__
            raise TryAgainError(f"{self.endpoint}: no answer ({reason})") from error
        except ValueError as error:
            raise TryAgainError(f"{self.endpoint}: the answer is not JSON ({error})") from error

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


class _RejectRedirects(urllib.request.HTTPRedirectHandler):
    """Rejects redirects, because urllib would send the API key to the other server."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Return None, so that the redirect is raised as an HTTPError."""


_OPENER = urllib.request.build_opener(_RejectRedirects)


def _detail(error: urllib.error.HTTPError, key: str | None) -> str:
    """Return the message in the body of an HTTP error without the API key, or else the reason."""
    try:
        body = json.loads(error.read(10_000).decode("utf-8", "replace"))
        found = body.get("error", body.get("detail"))  # "detail" of FastAPI, as in transformers
        text = found["message"] if isinstance(found, dict) else str(found or error.reason)
    except (ValueError, KeyError, TypeError, AttributeError, OSError, http.client.HTTPException):
        text = error.reason  # also where the connection ended within the body
    hidden = str(text).replace(key, "***") if key else str(text)
    return " ".join(hidden.split())[:200]
