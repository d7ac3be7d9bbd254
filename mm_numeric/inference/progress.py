"""A progress bar of answered rows.

A batch may take minutes, so the bar also moves while a batch is generated: it counts answered rows
plus the estimated finished part of the current batch. It also shows the number of generated tokens
and the time left.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from mm_numeric.io.files import write_json
from mm_numeric.io.log import progress

_WRITTEN_S = 2.0  # seconds between two writes of the progress


class ProgressFile:
    """Writes the progress of answers to progress.json, from which a page of the run shows it.

    The file has ``step`` (the training step of the answering model, or None), ``rows``,
    ``answered`` rows, generated ``tokens`` and ``seconds_left``. It is written at most every 2
    seconds. With the path None, nothing is written.
    """

    def __init__(self, path: Path | None) -> None:
        self.path, self.step = path, None
        self._written = -math.inf

    def __call__(self, shown: "AnswerProgress") -> None:
        """Write the progress, unless it was written less than 2 seconds ago."""
        now = time.monotonic()
        if self.path is not None and now - self._written >= _WRITTEN_S:
            self._written = now
            counts = {"rows": shown.total, "answered": shown.answered, "tokens": shown.tokens}
            left = {"seconds_left": shown.seconds_left()}
            write_json(self.path, {"step": self.step, **counts, **left})

    def delete(self) -> None:
        """Delete the file, if it exists."""
        self._written = -math.inf
        if self.path is not None:
            self.path.unlink(missing_ok=True)


class AnswerProgress:
    """A progress bar of answered rows and generated tokens.

    Args:
        desc: Title of the bar, such as ``answering``.
        rows: Number of rows.
        max_new_tokens: Largest number of tokens of an answer. The bar assumes this number of
            forward passes for the first batch, and that of the longest batch so far for the others.
        on_change: Called with this object before and after each batch, and after each forward pass.
    """

    def __init__(
        self,
        desc: str,
        rows: int,
        max_new_tokens: int,
        on_change: Callable[["AnswerProgress"], None] = lambda _: None,
    ) -> None:
        self.bar = progress(desc=desc, unit="row", total=rows)
        self.on_change = on_change
        self.total, self.answered, self.tokens = rows, 0, 0
        self._shown, self._expected, self._longest = 0.0, max_new_tokens, 0
        self._began = time.monotonic()

    def __enter__(self) -> "AnswerProgress":
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.close()

    @contextmanager
    def batch(self, model: Any, rows: int) -> Iterator[None]:
        """Return a context in which ``model`` generates the answers to the next ``rows`` rows."""
        passes = 0

        def count(head: Any, inputs: Any, logits: Tensor) -> None:
            nonlocal passes
            passes += 1
            # The first pass reads the prompts, and generates one token for each prompt.
            self.tokens += len(logits) if passes == 1 else math.prod(logits.shape[:-1])
            self._show(self.answered + rows * min(1.0, passes / (self._expected + 1)))

        # ``generate`` may call an inner model only, as in PEFT: a hook on ``model`` would not run.
        head = model.get_output_embeddings()
        self._show(self.answered)
        hook = None if head is None else head.register_forward_hook(count)
        try:
            yield
        finally:
            if hook is not None:
                hook.remove()
        self._longest = max(self._longest, passes)
        self._expected = self._longest
        self.advance(rows)

    def advance(self, rows: int = 1) -> None:
        """Count rows as answered."""
        self.answered += rows
        self._show(self.answered)

    def set_total(self, rows: int) -> None:
        """Change the total number of rows of the bar."""
        self.total = self.bar.total = rows

    def seconds_left(self) -> float | None:
        """Return the estimated time left; None if nothing has been generated."""
        if not self._shown:
            return None
        return (time.monotonic() - self._began) * (self.total / self._shown - 1)

    def _show(self, rows: float) -> None:
        self._shown = max(self._shown, rows)
        if self.tokens:
            self.bar.set_postfix_str(f"{self.tokens:,} tokens", refresh=False)
        self.bar.update(math.floor(self._shown) - self.bar.n)
        self.on_change(self)
