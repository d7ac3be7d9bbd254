"""Language models that go on with a text: GPT-2, LLaMA, Qwen2.5, Granite, Yi ...

Prompt    the checkpoint's own chat template; without one the text as the task has it, behind the
          token that begins a text if the tokenizer adds one. Such a text ends with a line break:
          one is added where it has none. No tokenizer joins a line break to a digit or a letter
          behind it, so that prompt and answer are tokenised as the one text that they are; a space
          would go into the answer's first token (``Ġ42``, of another alphabet than ``42``)
Answer    the text, tokenised as it is behind a question, then the tokenizer's ``eos_token``
"""

from pathlib import Path
from typing import Any, ClassVar

from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoModelForCausalLM

from mm_numeric.config.schema import ModelConfig
from mm_numeric.families.family import Tokens
from mm_numeric.families.text_only import TextFamily

_HEAD = r"(\w*head|embed_out)\."
_EMBEDDINGS = r".*\b(wte|wpe|\w*embed\w*)\."


class CausalLM(TextFamily):
    """Every decoder of transformers that reads text alone, through ``AutoModelForCausalLM``."""

    name = "causal_lm"
    kind = "decoders that read text alone"
    model_class: ClassVar[Any] = AutoModelForCausalLM
    parts: ClassVar = {
        "embeddings": rf"(?!{_HEAD}){_EMBEDDINGS}",
        "language": rf"(?!{_HEAD})(?!{_EMBEDDINGS})",
        "head": _HEAD,
    }
    lora_targets = (
        r".*\.\d+\.(.*\.)?(\w+_proj|c_attn|c_fc|fc_in|fc_out|fc[12]|query_key_value|dense\w*)"
    )

    def __init__(self, tokenizer: Any, image_processor: Any, model: ModelConfig) -> None:
        """Wrap the tokenizer of a checkpoint; it is not changed."""
        super().__init__(tokenizer, image_processor, model)
        begins = tokenizer("a")["input_ids"][0] == tokenizer.bos_token_id
        self._begin = [tokenizer.bos_token_id] if begins and not tokenizer.chat_template else []
        self._before = self._written("?")

    @classmethod
    def fits(cls, config: Any) -> bool:
        """Return whether a checkpoint with this config is a decoder that reads text alone."""
        ours = type(config) in MODEL_FOR_CAUSAL_LM_MAPPING
        its_own = cls.model_class.__name__ in (getattr(config, "auto_map", None) or {})
        images = hasattr(config, "vision_config")
        return (ours or its_own) and not config.is_encoder_decoder and not images

    @classmethod
    def make_tiny(cls, folder: Path, seed: int) -> None:
        """Make a GPT-2 from code; see ``mm_numeric.families.tiny_text``."""
        from mm_numeric.families.tiny_text import make_tiny_gpt2

        make_tiny_gpt2(folder, seed)

    def _tokenised(self, text: str, with_image: bool) -> list[int]:
        """Return the tokens of a question."""
        ids = self.tokenizer(self._written(text), add_special_tokens=False)["input_ids"]
        return [*self._begin, *ids]

    def answer(self, text: str) -> Tokens:
        """Write an answer and its end.

        SentencePiece writes a space in front of a text that stands alone, hence the question.
        """
        start = len(self._before)
        tokens = self.tokenizer(
            self._before + text, add_special_tokens=False, return_offsets_mapping=True
        )
        pairs = list(zip(tokens["input_ids"], tokens["offset_mapping"], strict=True))
        if any(first < start < last for _, (first, last) in pairs):
            return super().answer(text)  # it begins with white space, which joined the question's
        behind = [(token, span) for token, span in pairs if span[0] >= start]
        return Tokens(
            ids=[*(token for token, _ in behind), self.stop_ids[0]],
            offsets=[*((first - start, last - start) for _, (first, last) in behind), (0, 0)],
        )

    def _written(self, text: str) -> str:
        """Return a question as the model reads it, up to where its answer begins."""
        if not self.tokenizer.chat_template:
            return text if text.endswith("\n") else text + "\n"
        written: str = self.tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, tokenize=False
        )
        return written
