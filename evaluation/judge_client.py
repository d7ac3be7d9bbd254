"""Client for a judge: an LLM with an OpenAI-compatible API (``POST .../chat/completions``)."""

import http.client
import json
import os
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

KEY = "OPENAI_API_KEY"
"""Environment variable with the API key; a server that needs no key is asked without one."""

_TRY_AGAIN = {408, 409, 425, 429, 500, 502, 503, 504}
_HINTS = {
    401: f"; set {KEY} to a valid key",
    403: f"; set {KEY} to a valid key",
    404: "; check the URL, and name a model of the server with --extract-model",
}
_SECONDS = re.compile(r"[0-9]{1,6}(?:\.[0-9]{1,6})?")
_LONGEST_WAIT_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Judge:
    """An LLM with an OpenAI-compatible API that extracts answers from responses."""

    url: str
    """Base URL such as ``https://api.openai.com/v1``, or the URL of ``.../chat/completions``."""

    model: str | None = None
    """Name of the model on the server; None for the model that the benchmark's script uses."""

    attempts: int = 5
    """Number of times that a request is sent if the server is busy, fails or answers nothing."""

    wait_s: float = 1.0
    """Seconds to wait before the second attempt; the time doubles with each further attempt."""

    timeout_s: float = 120.0
    """Seconds to wait for each answer of the server."""

    parallel: int = 8
    """Number of requests that are sent at the same time."""

    def __post_init__(self) -> None:
        parts = urllib.parse.urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(
                f"{self.url!r:.80} is not the URL of a judge; write one such as "
                "https://api.openai.com/v1 or http://localhost:8000/v1."
            )
        if parts.username is not None or parts.query:
            raise ValueError(
                "the URL of a judge has no user, password or query, because results.json stores "
                f"it; set {KEY} instead."
            )

    @property
    def endpoint(self) -> str:
        """Return the URL that requests are sent to."""
        base = self.url.rstrip("/")
        return base if base.endswith("/chat/completions") else f"{base}/chat/completions"

    def ask(self, request: Mapping[str, Any]) -> str:
        """Send a request for a chat completion; return the text of the answer, stripped.

        If an answer has no text, the request is sent again. After the last attempt, ``""`` is
        returned. Raise ValueError if the judge cannot be reached, rejects
        the request, or reaches its token limit before it writes any text.
        """
        problem: _TryAgainError | None = None
        for attempt in range(self.attempts):
            if attempt:
                wait_s = self.wait_s * 2 ** (attempt - 1)
                time.sleep(max(wait_s, problem.wait_s if problem else 0))
            try:
                text = self._send(request)
            except _TryAgainError as error:
                problem = error
                continue
            if text:
                return text
            problem = None
        if problem is not None:
            raise ValueError(f"{problem}, {self.attempts} times")
        return ""

    def _send(self, request: Mapping[str, Any]) -> str:
        """Send a request once; raise ``_TryAgainError`` for an error that may be temporary."""
        headers = {"Content-Type": "application/json"}
        if os.environ.get(KEY):
            headers["Authorization"] = f"Bearer {os.environ[KEY]}"
        body = json.dumps(request).encode()
        sent = urllib.request.Request(self.endpoint, data=body, headers=headers)
        try:
            with _OPENER.open(sent, timeout=self.timeout_s) as answer:
                found = json.load(answer)
        except urllib.error.HTTPError as error:
            problem = f"{self.endpoint}: HTTP {error.code} ({_detail(error)})"
            if error.code in _TRY_AGAIN:
                wait = error.headers.get("Retry-After", "")
                wait_s = float(wait) if _SECONDS.fullmatch(wait) else 0.0
                raise _TryAgainError(problem, min(wait_s, _LONGEST_WAIT_S)) from error
            raise ValueError(problem + _HINTS.get(error.code, "")) from error
        except (OSError, http.client.HTTPException) as error:  # URLError and TimeoutError, too
            reason = getattr(error, "reason", None) or error or type(error).__name__
            raise _TryAgainError(f"{self.endpoint}: no answer ({reason})") from error
        except ValueError as error:
            raise _TryAgainError(f"{self.endpoint}: the answer is not JSON ({error})") from error
        return _text(found, self.endpoint)


class _TryAgainError(ValueError):
    """A request failed, and a further attempt may succeed, after at least ``wait_s`` seconds."""

    def __init__(self, message: str, wait_s: float = 0.0) -> None:
        super().__init__(message)
        self.wait_s = wait_s


class _RejectRedirects(urllib.request.HTTPRedirectHandler):
    """Rejects redirects, because urllib would send the API key to the other server."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Return None, so that the redirect is raised as an HTTPError."""


_OPENER = urllib.request.build_opener(_RejectRedirects)


def _detail(error: urllib.error.HTTPError) -> str:
    """Return the message in the body of an HTTP error, or else the reason phrase."""
    text = error.read(10_000).decode("utf-8", "replace")
    try:
        found = json.loads(text)["error"]
        text = found["message"] if isinstance(found, dict) else str(found)
    except (ValueError, KeyError, TypeError):
        text = str(error.reason)
    return " ".join(text.split())[:200]


def _text(found: Any, endpoint: str) -> str:
    """Return the text of a chat completion, ``""`` if it has none."""
    try:
        choice = found["choices"][0]
        text = choice["message"].get("content") or ""
        if not isinstance(text, str):
            raise TypeError
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{endpoint}: the answer {json.dumps(found)[:80]} is not a chat completion"
        ) from error
    if not text.strip() and choice.get("finish_reason") == "length":
        raise ValueError(
            f"{endpoint}: the model used all tokens of the answer without writing any text; choose "
            "a model that does not reason first"
        )
    return text.strip()
