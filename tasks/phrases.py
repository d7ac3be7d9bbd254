"""Questions about phrases, of which an image may have several."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from mm_numeric.answers import Example


def check_phrase_prompt(prompt: str) -> None:
    """Raise ValueError if a prompt has no place for the phrase."""
    if "{phrase}" not in prompt:
        raise ValueError(f"prompt needs {{phrase}} where the phrase goes, not {prompt!r}")


def one_per_phrase(example: Example, phrases: Sequence[str]) -> Iterator[Example]:
    """Yield an example for each phrase, which replaces ``{phrase}`` in the prompt of ``example``.

    If there are several phrases, their numbers are appended to the id: ``7.0``, ``7.1``.
    """
    for i, phrase in enumerate(phrases):
        identity = example.id if len(phrases) == 1 else f"{example.id}.{i}"
        yield replace(example, id=identity, prompt=example.prompt.replace("{phrase}", phrase))
