"""Read the reply of a server with an OpenAI-compatible API: a chat completion in JSON."""

import json
import reprlib
from dataclasses import dataclass
from typing import Any

_MAX_ID = 2**31
"""Upper bound of token ids and of numbers of tokens."""

_LEAST_LOGPROB = -1e9
"""The log probability of an impossible token, which JSON may have as -Infinity."""

_ROUNDING = 1e-3
"""Largest log probability that is accepted: rounding may make it positive."""


class TryAgainError(ValueError):
    """A request failed; another attempt, after at least ``wait_s`` seconds, may succeed."""

    most_attempts = 1_000
    """Number of failures of this type after which the request is not sent again."""

    advice = "start the server, and run the same command again for the missing answers"

    def __init__(self, message: str, wait_s: float = 0.0) -> None:
        super().__init__(message)
        self.wait_s = wait_s


class TimedOutError(TryAgainError):
    """The whole reply did not arrive within the time limit."""

    most_attempts = 2
    advice = "see the log of the server, and run the same command again with a larger --timeout"


class BadReplyError(TryAgainError):
    """The server fails to answer this request, or its reply is not a valid chat completion."""

    most_attempts = 3
    advice = "see the log of the server, and run the same command again when it answers this row"


@dataclass(frozen=True)
class ServerAnswer:
    """One answer of a server."""

    content: str | None
    """Text of the answer; None if the server put it into another field, such as ``reasoning``."""

    finish_reason: str | None
    """Reason why the answer ended: ``stop``, ``length`` (the token limit), or another reason."""

    ids: list[int] | None
    """Token ids of the answer, perhaps with the end token; None if the server returns no ids."""

    logprobs: list[tuple[float, bytes]]
    """Log probability and UTF-8 text of each token; empty if the server returns no logprobs."""

    top_logprobs: list[dict[bytes, float]]
    """For each token of the answer, the log probabilities of the likeliest tokens at its position;
    {} for each token if the server returns no ``top_logprobs``."""

    other_fields: list[str]
    """Names of the other fields of the message that are not empty."""

    @property
    def is_complete(self) -> bool:
        """Return True if the answer ended before the token limit."""
        return self.finish_reason == "stop"

    @property
    def text(self) -> str:
        """Return the text of the answer; raise BadReplyError if ``content`` is None."""
        if self.content is None:
            names = ", ".join(self.other_fields)
            others = f", the message has {names}" if names else ""
            cure = "serve the model without a parser of reasoning or tools"
            if self.finish_reason == "length":
                cure = "the model used all tokens of the answer without writing any text"
            raise BadReplyError(f"the answer has no text (content is null{others}); {cure}")
        return self.content


@dataclass(frozen=True)
class Reply:
    """The reply to one request, with at least one answer."""

    answers: list[ServerAnswer]

    prompt_tokens: int | None
    """Number of prompt tokens; None if the server does not report it."""

    prompt_ids: list[int] | None
    """Token ids of the prompt; None if the server returns no ids."""


def read_reply(content: bytes, key: str = "") -> Reply:
    """Parse a chat completion; raise BadReplyError if it is invalid or a value is impossible.

    The error message contains the first characters of the reply, without the API ``key``.
    """
    start = content[:1000].decode("utf-8", "replace")
    start = " ".join((start.replace(key, "***") if key else start)[:80].split())
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        reason = "nested too deep" if isinstance(error, RecursionError) else error
        raise BadReplyError(f"the answer is not JSON ({reason}): {start}") from None
    found = found if isinstance(found, dict) else {}
    choices = found.get("choices")
    if not isinstance(choices, list) or not choices:
        raise BadReplyError(f"the answer {start} is not a chat completion")
    usage = found.get("usage")
    count = usage.get("prompt_tokens") if isinstance(usage, dict) else None
    return Reply(
        answers=[_answer(choice) for choice in choices],
        prompt_tokens=_check(_is_id(count), "prompt_tokens", count) if type(count) is int else None,
        prompt_ids=_ids(found, "prompt_token_ids"),
    )


def _answer(choice: Any) -> ServerAnswer:
    _check(isinstance(choice, dict), "choices", choice)
    message = choice.get("message")
    _check(isinstance(message, dict), "message", message)
    text, reason = message.get("content"), choice.get("finish_reason")
    logprobs = choice.get("logprobs") or {}
    _check(isinstance(logprobs, dict), "logprobs", logprobs)
    tokens = logprobs.get("content") or []
    _check(isinstance(tokens, list), "logprobs", tokens)
    return ServerAnswer(
        content=_check(text is None or _is_text(text), "content", text),
        finish_reason=_check(reason is None or _is_text(reason), "finish_reason", reason),
        ids=_ids(choice, "token_ids"),
        logprobs=[_logprob(token) for token in tokens],
        top_logprobs=_top_logprobs(tokens),
        other_fields=[
            str(key) for key in message if message[key] and key not in ("role", "content")
        ],
    )


def _logprob(token: Any) -> tuple[float, bytes]:
    _check(isinstance(token, dict), "logprobs", token)
    value, spelling = token.get("logprob"), token.get("bytes")
    _check(type(value) in (int, float) and value <= _ROUNDING, "logprob", value)
    if spelling:
        is_bytes = isinstance(spelling, list) and all(_is_id(b) and b < 256 for b in spelling)
        spelling = bytes(_check(is_bytes, "bytes", spelling))
    else:
        spelling = _check(_is_text(token.get("token")), "token", token.get("token")).encode()
    return float(min(max(value, _LEAST_LOGPROB), 0.0)), spelling


def _top_logprobs(tokens: list[Any]) -> list[dict[bytes, float]]:
    tops = [token.get("top_logprobs") or [] for token in tokens]
    for top in tops:
        _check(isinstance(top, list), "top_logprobs", top)
    return [{text: value for value, text in map(_logprob, top)} for top in tops]


def _ids(found: dict[str, Any], name: str) -> list[int] | None:
    ids = found.get(name)
    if ids is not None:
        _check(isinstance(ids, list), name, ids)
        for number in ids:
            _check(_is_id(number), name, number)
    return ids


def _is_id(value: Any) -> bool:
    return type(value) is int and 0 <= value < _MAX_ID


def _is_text(value: Any) -> bool:
    """Return True for a text that can be encoded as UTF-8: it has no lone surrogate."""
    return isinstance(value, str) and value.encode(errors="ignore").decode() == value


def _check(is_right: bool, name: str, value: Any) -> Any:
    """Return ``value``; raise BadReplyError, with the field ``name``, if ``is_right`` is False."""
    if not is_right:
        short = f"{reprlib.repr(value):.60}"  # a value may have 4,000 digits, or be nested deeply
        raise BadReplyError(f"the answer is not a chat completion: {name} is {short}")
    return value
