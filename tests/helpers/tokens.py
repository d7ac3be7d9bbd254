"""A toy tokenizer and batches of labels for the tests: one character a token, ids out of order."""

import random

import torch
from torch import Tensor

from mm_numeric.numbers.spans import IGNORE_INDEX
from mm_numeric.numbers.vocabulary import NumberVocabulary

SPELLED = "x7 30:a.9,51b-284(6)cd"
"""Token i is character i: the digits are out of order, with other tokens between them."""


class ToyTokenizer:
    """As much of a tokenizer as the library needs, backed by a dict."""

    name_or_path = "toy"

    def __init__(self, vocabulary: dict[str, int] | None = None) -> None:
        """Take a vocabulary of your own, or that of ``SPELLED``."""
        self.vocabulary = vocabulary or {token: i for i, token in enumerate(SPELLED)}

    def get_vocab(self) -> dict[str, int]:
        """Return the id of each token."""
        return dict(self.vocabulary)

    def ids(self, text: str) -> list[int]:
        """Return one id for each character."""
        return [self.vocabulary[character] for character in text]


TOKENIZER = ToyTokenizer()
VOCABULARY = NumberVocabulary.from_tokenizer(TOKENIZER)
SIZE = len(SPELLED)


def labels_of(*texts: str, width: int | None = None) -> Tensor:
    """Return labels [b, t] of some texts; ``_`` and the padding are not trained on."""
    width = width or max(map(len, texts))
    rows = []
    for text in texts:
        ids = [IGNORE_INDEX if c == "_" else TOKENIZER.vocabulary[c] for c in text]
        rows.append(ids + [IGNORE_INDEX] * (width - len(ids)))
    return torch.tensor(rows)


def random_text(source: random.Random) -> str:
    """Write text and numbers of every kind, after a prompt that is not trained on."""
    pieces = ["____", " ", "ab", ":", ", ", "-", ".", "(", "____"]
    for _ in range(source.randint(1, 4)):
        whole = str(source.randrange(10 ** source.randint(1, 5))).zfill(source.randint(1, 3))
        fraction = f".{source.randrange(1000)}" if source.random() < 0.4 else ""
        sign = "-" if source.random() < 0.3 else ""
        pieces.append(sign + whole + fraction)
    source.shuffle(pieces)
    return "__" + "".join(pieces)


def batch(seed: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Return logits [4, t, v] and labels [4, t]: three samples with numbers, and one without."""
    source = random.Random(seed)
    labels = labels_of(random_text(source), random_text(source), "__ab, x.", random_text(source))
    return random_logits(labels, seed, dtype), labels


def random_logits(labels: Tensor, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return logits [b, t, v]: random ones, that know the label at about half of the positions."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(*labels.shape, SIZE, generator=generator, dtype=torch.float64)
    knows = torch.rand(labels.shape, generator=generator) < 0.5
    label = torch.nn.functional.one_hot(labels.clamp(min=0), SIZE)
    return (logits + 6 * (knows[..., None] * label)).to(dtype)


def sure_logits(*texts: str, height: float = 60.0) -> Tensor:
    """Return logits [b, t, v] of a model that is certain of some texts, float64."""
    labels = labels_of(*texts).clamp(min=0)
    return height * torch.nn.functional.one_hot(labels, SIZE).double()
