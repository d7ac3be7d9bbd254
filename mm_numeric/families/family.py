"""What a family of models has to say about itself.

A family owns everything that differs between model classes: how a prompt is written, how a picture
becomes numbers, what ends an answer, and which class is loaded. Training, prediction and the tests
go through this protocol alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

from PIL import Image
from torch import Tensor

from mm_numeric.frames import Frame


@dataclass(frozen=True)
class Prompts:
    """Questions as the model takes them."""

    ids: list[list[int]]
    """The tokens of each, one placeholder for each image feature included."""

    pictures: dict[str, Tensor]
    """What the image processor makes of their pictures, all together."""


@dataclass(frozen=True)
class Tokens:
    """An answer as the model is to write it."""

    ids: list[int]
    """Its tokens, the one that ends it included."""

    offsets: list[tuple[int, int]]
    """First and last-plus-one character of each; (0, 0) for the end."""


class Family(Protocol):
    """One family of models, with the tokenizer and the image processor of one checkpoint."""

    tokenizer: Any
    pad_id: int
    stop_ids: list[int]

    @classmethod
    def load(cls, source: str, revision: str) -> Self:
        """Load tokenizer and image processor of a checkpoint."""

    @classmethod
    def make_tiny(cls, folder: Path, seed: int) -> None:
        """Make a small model of the family's real class from code, and save it with the rest."""

    def load_model(self, source: str, revision: str, dtype: str, attention: str) -> Any:
        """Load the weights of a checkpoint."""

    def prompts(self, texts: Sequence[str], pictures: Sequence[Image.Image]) -> Prompts:
        """Write questions, each about a picture."""

    def frame(self, width: int, height: int) -> Frame:
        """Return how a picture of so many pixels is seen."""

    def answer(self, text: str) -> Tokens:
        """Write an answer and its end."""

    def model_inputs(
        self, input_ids: Tensor, attention_mask: Tensor, pictures: dict[str, Tensor]
    ) -> dict[str, Any]:
        """Return what the model's forward takes for a padded batch."""

    def save(self, folder: Path) -> None:
        """Save tokenizer and image processor beside the weights."""
