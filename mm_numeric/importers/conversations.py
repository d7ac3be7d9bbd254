"""Conversations about images: who says what, and which images they are about."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from mm_numeric.importers.importer import RefusedError, text_of

_SPEAKERS = {"human": "user", "gpt": "assistant"}
_ROLES = ("system", "user", "assistant")


class Turn(NamedTuple):
    """One message."""

    role: str
    """system, user or assistant."""

    text: str


def read_turns(row: Mapping[str, Any]) -> Iterator[Turn]:
    """Yield the messages of ``conversations`` (from, value) or ``messages`` (role, content).

    Raises:
        RefusedError: If there are none, or one is not a message.
    """
    raw = row.get("conversations") if row.get("messages") is None else row["messages"]
    if not isinstance(raw, list):
        raise RefusedError("messages", 'there is no list "conversations" or "messages".')
    for i, message in enumerate(raw):
        if not isinstance(message, Mapping):
            raise RefusedError("messages", f"message {i} is not an object: {message!r:.40}.")
        speaker = message.get("role", message.get("from"))
        role = _SPEAKERS.get(speaker, speaker) if isinstance(speaker, str) else None
        if role not in _ROLES:
            raise RefusedError("messages", f"message {i} is from {speaker!r:.20}, not user or gpt.")
        yield Turn(role, text_of(message.get("content", message.get("value")), f"message {i}"))


def read_images(row: Mapping[str, Any]) -> list[str]:
    """Return the images of a row: ``image`` or ``images``, a path, or a list of them.

    Raises:
        RefusedError: If one is not a path.
    """
    raw = row.get("images") if row.get("image") is None else row["image"]
    items = raw if isinstance(raw, list) else [] if raw is None else [raw]
    return [text_of(i.get("path") if isinstance(i, Mapping) else i, "an image") for i in items]


def question_of(text: str) -> str:
    """Return a question without the mark of its image."""
    return text.replace("<image>", "").strip()
