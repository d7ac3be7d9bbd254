"""Read the messages and image paths of conversation rows (LLaVA, ShareGPT, ms-swift, TRL)."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from mm_numeric.geometry.coordinates import COORDINATES
from mm_numeric.importers.importer import InvalidRowError, parse_text

_SPEAKERS = {"human": "user", "gpt": "assistant"}
_ROLES = ("system", "user", "assistant")


class Turn(NamedTuple):
    """One message of a conversation. Its ``role`` is ``system``, ``user`` or ``assistant``."""

    role: str
    text: str


def read_turns(row: Mapping[str, Any]) -> Iterator[Turn]:
    """Yield the messages of a row with ``conversations`` (LLaVA) or ``messages`` (ms-swift).

    The messages of TRL are in ``prompt`` and ``completion``.
    """
    raw = row.get("conversations") if row.get("messages") is None else row["messages"]
    if raw is None and isinstance(row.get("prompt"), list):
        raw = [*row["prompt"], *(row.get("completion") or ())]
    if not isinstance(raw, list):
        raise InvalidRowError("messages", 'there is no list "conversations" or "messages".')
    for i, message in enumerate(raw):
        if not isinstance(message, Mapping):
            raise InvalidRowError("messages", f"message {i} is not an object: {message!r:.40}.")
        speaker = message.get("role", message.get("from"))
        role = _SPEAKERS.get(speaker, speaker) if isinstance(speaker, str) else None
        if role not in _ROLES:
            why = f"message {i} has the role {speaker!r:.20}, not user or assistant."
            raise InvalidRowError("messages", why)
        yield Turn(role, parse_text(message.get("content", message.get("value")), f"message {i}"))


def read_images(row: Mapping[str, Any]) -> list[str]:
    """Return the image paths of a row. Its field ``image`` or ``images`` has one path or a list."""
    raw = row.get("images") if row.get("image") is None else row["image"]
    items = raw if isinstance(raw, list) else [] if raw is None else [raw]
    return [parse_text(i.get("path") if isinstance(i, Mapping) else i, "an image") for i in items]


def format_of_tokens(text: str) -> str | None:
    """Return the name of a coordinate format with tokens around boxes that a text has; or None."""
    for name, coordinates in COORDINATES.items():
        form = coordinates.text
        if (form.bins or form.open.startswith("<")) and form.read(text).shapes:
            return name
    return None


def strip_image_token(text: str) -> str:
    """Return a question without its ``<image>`` token."""
    return text.replace("<image>", "").strip()
