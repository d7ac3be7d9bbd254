"""Client for a judge: an LLM with an OpenAI-compatible API."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from mm_numeric.inference.chat_client import OPENAI_KEY, ChatClient, TryAgainError

KEY = OPENAI_KEY


@dataclass(frozen=True, kw_only=True)
class Judge(ChatClient):
    """An LLM with an OpenAI-compatible API that extracts answers from responses."""

    what: ClassVar[str] = "judge"
    model_option: ClassVar[str] = "--extract-model"

    model: str | None = None
    """Name of the model on the server; None for the model that the benchmark's script uses."""

    parallel: int = 8
    """Number of requests that are sent at the same time."""

    def ask(self, request: Mapping[str, Any]) -> str:
        """Send a request for a chat completion; return the text of the answer, stripped.

        If an answer has no text, the request is sent again. After the last attempt, ``""`` is
        returned. Raise ValueError if the judge cannot be reached, rejects
        the request, or reaches its token limit before it writes any text.
        """
        try:
            return self.complete(request, self._text)
        except _NoTextError:
            return ""

    def _text(self, found: Any) -> str:
        """Return the text of a chat completion; raise ``_NoTextError`` if it has none."""
        try:
            choice = found["choices"][0]
            text = choice["message"].get("content") or ""
            if not isinstance(text, str):
                raise TypeError
        except (LookupError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{self.endpoint}: the answer {json.dumps(found)[:80]} is not a chat completion"
            ) from error
        if not text.strip() and choice.get("finish_reason") == "length":
            raise ValueError(
                f"{self.endpoint}: the model used all tokens of the answer without writing any "
                "text; choose a model that does not reason first"
            )
        if not text.strip():
            raise _NoTextError(f"{self.endpoint}: the answer has no text")
        return text.strip()


class _NoTextError(TryAgainError):
    """The answer of a judge has no text."""
