"""T5 and other encoder-decoder models based on it.

Prompt   the question, then ``</s>``, as input of the encoder
Answer   the text, then ``</s>``, as labels of the decoder. The decoder's input is the same sequence
         shifted right, after ``decoder_start_token_id``, so logits[i] predict labels[i]

T5's tokenizer replaces any run of white space by one space, and has no tokens for some characters.
T5 has single tokens for 123 and 3.5; ByT5 has one token per digit.
"""

from pathlib import Path
from typing import Any, ClassVar

from transformers import AutoModelForSeq2SeqLM, ByT5Tokenizer

from mm_numeric.families.family import Tokens
from mm_numeric.families.text_only import TextFamily

_TYPES = ("t5", "mt5", "umt5", "longt5")


class T5(TextFamily):
    """T5, Flan-T5, mT5, UMT5, LongT5 and ByT5 models, such as google-t5/t5-small."""

    name = "T5"
    supported = f"checkpoints of type {', '.join(_TYPES)}"
    model_class: ClassVar[Any] = AutoModelForSeq2SeqLM
    encoder_decoder = True
    module_patterns: ClassVar = {
        "embeddings": r"(shared|(encoder|decoder)\.embed_tokens)\.",
        "language": r"(encoder|decoder)\.(?!embed_tokens\.)",
        "head": r"lm_head\.",
    }
    lora_targets = (
        r"(encoder|decoder)\.block\.\d+\.layer\.\d+\."
        r"(\w+Attention\.[qkvo]|DenseReluDense\.(wi(_[01])?|wo))"
    )

    @classmethod
    def supports(cls, config: Any) -> bool:
        """Return True if a model configuration has the ``model_type`` of T5 or of a variant."""
        return config.model_type in _TYPES

    @classmethod
    def make_tiny(cls, folder: Path, seed: int) -> None:
        """Save a small, randomly initialised T5 model."""
        from mm_numeric.families.tiny import make_tiny_t5

        make_tiny_t5(folder, seed)

    def tokenize_question(self, text: str, with_image: bool) -> list[int]:
        """Return the token ids of a question, followed by the end token."""
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return [*ids, self.stop_ids[0]]

    def answer(self, text: str) -> Tokens:
        """Tokenise an answer and append the end token; raise ValueError if a token is ``<unk>``."""
        if isinstance(self.tokenizer, ByT5Tokenizer):  # one token per byte, and no offsets
            ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
            offsets = [(i, i + 1) for i, character in enumerate(text) for _ in character.encode()]
            return Tokens(ids=[*ids, self.stop_ids[0]], offsets=[*offsets, (0, 0)])
        answer = super().answer(text)
        if self.tokenizer.unk_token_id in answer.ids:
            start, end = answer.offsets[answer.ids.index(self.tokenizer.unk_token_id)]
            raise ValueError(
                f"the answer {text!r} holds {text[start:end]!r}, for which the tokenizer of "
                f"{self.tokenizer.name_or_path!r} has no token; write the answer without it."
            )
        return answer
