"""Find out what a server with an OpenAI-compatible API really does, before it is relied on.

Servers accept fields that they ignore, with HTTP 200: ``transformers serve`` (5.23) ignores
``logprobs``, and vLLM ignores ``guided_regex``, which it once had. Others reject unknown fields.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from mm_numeric.families.family import Family
from mm_numeric.inference.chat_client import ChatClient, RejectedError, TryAgainError
from mm_numeric.log import logger

_REGEX, _MATCH = "(zq){3}", "zqzqzq"  # no model writes it as the answer to a question
_REGEX_FIELDS: dict[str, Callable[[str], dict[str, Any]]] = {
    "structured_outputs": lambda regex: {"structured_outputs": {"regex": regex}},  # vLLM
    "regex": lambda regex: {"regex": regex},  # SGLang
}


@dataclass(frozen=True)
class ServerAnswer:
    """One answer of a server."""

    text: str

    is_complete: bool
    """True if the answer ended before the token limit."""

    ids: list[int] | None
    """Its token ids, perhaps with the end token; None if the server returns none."""

    logprobs: list[tuple[float, bytes]]
    """Log probability and UTF-8 text of each token; empty if the server returns none."""


@dataclass(frozen=True)
class Abilities:
    """What a server does in addition to answering questions."""

    fields: dict[str, Any] = field(default_factory=dict)
    """Fields for every request that the server does not reject."""

    token_ids: bool = False
    """True if it returns the token ids of its answers."""

    regex: Callable[[str], dict[str, Any]] | None = None
    """Returns the fields that constrain an answer to a regular expression; None if none does."""


def read_answers(found: Any, where: str) -> list[ServerAnswer]:
    """Return the answers, at least one, in a chat completion, which is parsed JSON.

    Raises:
        TryAgainError: If it is no chat completion; the message begins with ``where``.
    """
    try:
        answers = [
            ServerAnswer(
                text=str(choice["message"]["content"] or ""),
                is_complete=choice["finish_reason"] == "stop",
                ids=choice.get("token_ids"),
                logprobs=[
                    (float(token["logprob"]), bytes(token.get("bytes") or token["token"].encode()))
                    for token in (choice.get("logprobs") or {}).get("content") or ()
                ],
            )
            for choice in found["choices"]
        ]
    except (LookupError, TypeError, ValueError, AttributeError):
        answers = []
    if not answers:
        raise TryAgainError(f"{where}: the answer {found!s:.80} is no chat completion")
    return answers


def prompt_tokens(found: Any) -> int | None:
    """Return the number of prompt tokens in a chat completion; None if it is not reported."""
    usage = found.get("usage")
    counted = usage.get("prompt_tokens") if isinstance(usage, dict) else None
    return counted if type(counted) is int else None


def probe(client: ChatClient, body: dict[str, Any], family: Family) -> Abilities:
    """Return what a server does, and log it, with one line for each ability.

    Args:
        client: The server.
        body: A request that the server has answered.
        family: The family of the served model.
    """
    wanted = {
        "skip_special_tokens": False,  # some families write coordinates with special tokens
        "repetition_penalty": 1.0,  # in place of that in the checkpoint's generation settings
        "stop_token_ids": family.stop_ids,
        "return_token_ids": True,
        "logprobs": True,
    }
    body = {**body, "max_tokens": 1}
    accepted, found = _accepted(client, body, wanted)
    (choice, *_) = read_answers(found, client.endpoint)
    regex = None
    said = []
    for name, fields in _REGEX_FIELDS.items():
        result = _try_regex(client, {**body, **accepted, **fields(_REGEX)})
        said.append(f"{name} is {result}")
        if result == "obeyed":
            regex = fields
            break
    counted = prompt_tokens(found)
    lines = {
        "prompt tokens": f"{counted}, as in {family.name}; compared for each row",
        "token ids": _returned(choice.ids is not None, "return_token_ids" in accepted),
        "logprobs": _returned(bool(choice.logprobs), "logprobs" in accepted),
        "constraints": ", ".join(said),
        "rejected fields": ", ".join(name for name in wanted if name not in accepted) or "none",
    }
    if choice.ids is None:  # transformers serve strips white space, llama.cpp special tokens
        lines["token ids"] += (
            "; texts are as the server writes them, perhaps without special tokens"
        )
    if counted is None:
        lines["prompt tokens"] = "not reported, so a wrong template or image size is not noticed"
    for name, text in lines.items():
        logger.info("%s: %s: %s", client.url, name, text)
    return Abilities(accepted, choice.ids is not None, regex)


def _accepted(
    client: ChatClient, body: dict[str, Any], wanted: dict[str, Any]
) -> tuple[dict[str, Any], Any]:
    """Return those of the ``wanted`` fields that are not rejected, and the answer with them."""

    def read(found: Any) -> Any:
        read_answers(found, client.endpoint)
        return found

    try:
        return wanted, client.complete({**body, **wanted}, read)
    except RejectedError:
        accepted = {}
    for name, value in wanted.items():
        try:
            client.complete({**body, name: value}, read)
            accepted[name] = value
        except RejectedError:
            continue
    return accepted, client.complete({**body, **accepted}, read)


def _try_regex(client: ChatClient, body: dict[str, Any]) -> str:
    """Return whether the server obeys, ignores or rejects the regular expression in a request."""

    def read(found: Any) -> str:
        return read_answers(found, client.endpoint)[0].text

    try:
        text = replace(client, attempts=2).complete({**body, "max_tokens": 16}, read)
    except (RejectedError, TryAgainError) as error:
        return f"rejected ({error})" if isinstance(error, TryAgainError) else "rejected"
    return "obeyed" if text == _MATCH else "ignored"


def _returned(is_returned: bool, is_accepted: bool) -> str:
    return "returned" if is_returned else "ignored" if is_accepted else "rejected"
