"""Chat messages with images, and rendering them with the chat templates of checkpoints.

A chat template is untrusted code: it may loop forever, or write gigabytes. The sandbox of Jinja
blocks access to files and modules, but limits neither time nor memory. So templates are rendered in
a separate process, which is started for the first text and used for all later ones.
"""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from multiprocessing import util
from pathlib import Path
from time import monotonic
from typing import Any

from PIL import Image

from mm_numeric.answers import IMAGE
from mm_numeric.io.escaping import plain

SECONDS = 10.0
"""Maximum time to render one text."""

CHARACTERS = 4 << 20
"""Maximum length of one rendered text."""

_PROGRAM = Path(__file__).with_name("template_process.py")


Shown = Image.Image | Sequence[Image.Image] | None
"""The images of a question: none, one, or several of one size."""


def listed(shown: Shown) -> list[Image.Image]:
    """Return the images of a question as a list."""
    if shown is None:
        return []
    return [shown] if isinstance(shown, Image.Image) else list(shown)


def image_count(text: str) -> int:
    """Return how often ``IMAGE`` is in the text of a question with images; 1 if it is not."""
    return max(text.count(IMAGE), 1)


def check_image_count(text: str, count: int) -> None:
    """Raise ValueError unless the text of a question has one ``IMAGE`` for each of its images."""
    if image_count(text) != count:
        raise ValueError(
            f"the question {text!r:.60} has {image_count(text)} places for images, and {count} "
            "images; write mm_numeric.answers.IMAGE once for each image."
        )


def message_content(text: str, images: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the content parts of a chat message. Each ``IMAGE`` in the text becomes an image.

    If the text has no ``IMAGE``, the image comes before it. Without images, return the text.
    """
    if not images:
        return [{"type": "text", "text": text}]
    check_image_count(text, len(images))
    first, *rest = text.split(IMAGE) if IMAGE in text else ("", text)
    content: list[Mapping[str, Any]] = [{"type": "text", "text": first}] if first else []
    for image, piece in zip(images, rest, strict=True):
        content.append(image)
        if piece:
            content.append({"type": "text", "text": piece})
    return content


def message(role: str, text: str, with_image: bool = False, shown: Shown = None) -> dict[str, Any]:
    """Return a chat message. Its images are ``shown`` or, if ``with_image``, placeholders."""
    images: list[dict[str, Any]] = [{"type": "image"}] * (with_image * image_count(text))
    if shown is not None:
        images = [{"type": "image", "image": image} for image in listed(shown)]
    return {"role": role, "content": message_content(text, images)}


def default_template(found: Any) -> str | None:
    """Return the chat template in a checkpoint's settings; None if there is none.

    If the settings map names to templates, the template named ``default`` is returned.
    """
    if isinstance(found, Mapping):
        found = found.get("default")
    if found and not isinstance(found, str):
        raise ValueError(
            f"model.name: the chat template of the checkpoint is {found!r:.40}, not text; correct "
            "chat_template in its tokenizer_config.json."
        )
    return found or None


def render(template: str, variables: Mapping[str, Any]) -> str:
    """Render a chat template as transformers does.

    ``variables`` are JSON values; any other value is replaced by its type's name (``<Image>``).
    Raises ValueError if the template has an error, or exceeds a limit of time, length or memory.
    The error message is the reason, on one line without invisible characters.
    """
    request = {"template": template, "variables": variables}
    limits = {"seconds": SECONDS, "characters": CHARACTERS}
    return _rendered(json.dumps({**request, **limits}, default=lambda x: f"<{type(x).__name__}>"))


@lru_cache(maxsize=1024)  # many rows have the same question
def _rendered(request: str) -> str:
    answer = _PROGRAMS.setdefault(os.getpid(), _Program()).ask(request)
    if "text" not in answer:
        raise ValueError(plain(answer["error"]))
    return str(answer["text"])


class _Program:
    """The child process that runs ``template_process``."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def ask(self, request: str) -> dict[str, str]:
        """Send a request, and return the answer."""
        line, seconds = "", 0.0
        with self._lock:
            for _ in range(2):  # a signal to all processes of a job may have ended the child
                started = monotonic()
                with suppress(BrokenPipeError):
                    line = self._line(request)
                seconds = monotonic() - started
                if line or seconds > SECONDS:
                    break
        if line:
            return json.loads(line)
        late = f"it takes more than {SECONDS:g} s"
        return {"error": late if seconds > SECONDS else "it makes Python crash"}

    def _line(self, request: str) -> str:
        if self._process is None:
            self._process = _start()
        process, self._process = self._process, None
        assert process.stdin is not None
        assert process.stdout is not None
        line = ""
        try:
            process.stdin.write(request + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        finally:
            if line:
                self._process = process
            else:  # also after an interrupt: the next request must not read this request's answer
                _end(process)
        return line


def _start() -> subprocess.Popen[str]:
    path = json.dumps([folder for folder in sys.path if folder])
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", str(_PROGRAM), path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        encoding="utf-8",
    )
    # Data loader workers skip atexit, and in a container, orphaned processes may never end.
    util.Finalize(None, _end, (process,), exitpriority=0)
    assert process.stdout is not None
    if process.stdout.readline() != "ready\n":
        raise RuntimeError(f"{_PROGRAM} cannot be started")
    return process


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


_PROGRAMS: dict[int, _Program] = {}
"""Maps process ids to programs. A forked data loader worker must not use its parent's program."""
