"""T5: an encoder reads the question, a decoder of its own writes the answer.

Prompt    the text, then ``</s>``
Answer    the text, then ``</s>``; the decoder begins with the token that the checkpoint names, and
          each of its rows predicts the label that stands there (a causal model's the next one)

SentencePiece reads every run of white space as one space, and what it has no token for cannot be
written. Digits are as the checkpoint has them: T5's own tokenizer writes 123 and 3.5 as one token,
ByT5's every digit by itself.
"""

from pathlib import Path
from typing import Any, ClassVar, Self

from transformers import AutoConfig, AutoModelForSeq2SeqLM, ByT5Tokenizer

from mm_numeric.config.schema import ModelConfig
from mm_numeric.families.family import Tokens
from mm_numeric.families.text_only import TextFamily

_TYPES = ("t5", "mt5", "umt5", "longt5")


class T5(TextFamily):
    """The family of google-t5/t5-small and its kin: Flan-T5, mT5, UMT5, LongT5, ByT5."""

    name = "T5"
    kind = f"checkpoints of type {', '.join(_TYPES)}"
    model_class: ClassVar[Any] = AutoModelForSeq2SeqLM
    encoder_decoder = True
    parts: ClassVar = {
        "embeddings": r"(shared|(encoder|decoder)\.embed_tokens)\.",
        "language": r"(encoder|decoder)\.(?!embed_tokens\.)",
        "head": r"lm_head\.",
    }
    lora_targets = (
        r"(encoder|decoder)\.block\.\d+\.layer\.\d+\."
        r"(\w+Attention\.[qkvo]|DenseReluDense\.(wi(_[01])?|wo))"
    )

    @classmethod
    def load(cls, source: str, model: ModelConfig) -> Self:
        """Load the tokenizer of a checkpoint, and the token that its decoder begins with.

        Raises:
            ValueError: If the checkpoint is of another family, or names no such token.
        """
        family = super().load(source, model)
        config = AutoConfig.from_pretrained(
            source, revision=model.revision, trust_remote_code=model.trust_remote_code
        )
        start = getattr(config, "decoder_start_token_id", None)
        if start is None:
            raise ValueError(
                f"model.name: the config.json of {source!r} has no decoder_start_token_id, so that "
                "it is not known what an answer begins with; add it (T5's own is 0)."
            )
        family.decoder_start_id = start
        return family

    @classmethod
    def fits(cls, config: Any) -> bool:
        """Return whether a checkpoint with this config is a T5."""
        return config.model_type in _TYPES

    @classmethod
    def make_tiny(cls, folder: Path, seed: int) -> None:
        """Make a T5 from code; see ``mm_numeric.families.tiny_text``."""
        from mm_numeric.families.tiny_text import make_tiny_t5

        make_tiny_t5(folder, seed)

    def _tokenised(self, text: str, with_image: bool) -> list[int]:
        """Return the tokens of a question, its end included."""
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return [*ids, self.stop_ids[0]]

    def answer(self, text: str) -> Tokens:
        """Write an answer and its end.

        Raises:
            ValueError: If the tokenizer has no token for a character of it.
        """
        if isinstance(self.tokenizer, ByT5Tokenizer):  # a token a byte, and no offsets
            ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
            offsets = [(i, i + 1) for i, character in enumerate(text) for _ in character.encode()]
            return Tokens(ids=[*ids, self.stop_ids[0]], offsets=[*offsets, (0, 0)])
        answer = super().answer(text)
        if self.tokenizer.unk_token_id in answer.ids:
            start, end = answer.offsets[answer.ids.index(self.tokenizer.unk_token_id)]
            raise ValueError(
                f"the answer {text!r} holds {text[start:end]!r}, which the tokenizer of "
                f"{self.tokenizer.name_or_path!r} has no token for; write the answer without it."
            )
        return answer
