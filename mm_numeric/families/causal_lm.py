"""Decoder-only language models: GPT-2, LLaMA, Qwen2.5, Granite, Yi and others.

Prompt   the checkpoint's chat template. If it has none: the BOS token (if the tokenizer adds one),
         the question, a line break
Answer   the answer's text, tokenised as a continuation of a prompt, then ``eos_token``

A line break separates question and answer, because no tokenizer merges it with a digit or letter
that follows. A space would become part of the answer's first token: ``Ġ42`` instead of ``42``.
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
    """Text-only decoders that ``AutoModelForCausalLM`` can load."""

    name = "causal_lm"
    supported = "decoders that read text alone"
    model_class: ClassVar[Any] = AutoModelForCausalLM
    module_patterns: ClassVar = {
        "embeddings": rf"(?!{_HEAD}){_EMBEDDINGS}",
        "language": rf"(?!{_HEAD})(?!{_EMBEDDINGS})",
        "head": _HEAD,
    }
    lora_targets = (
        r".*\.\d+\.(.*\.)?"
        r"(\w+_proj\w*|c_attn|c_fc|fc_in|fc_out|fc[12]|w[123]|query_key_value|dense\w*)"
    )

    def __init__(self, tokenizer: Any, image_processor: Any, model: ModelConfig) -> None:
        super().__init__(tokenizer, image_processor, model)
        adds_bos = tokenizer("a")["input_ids"][0] == tokenizer.bos_token_id
        self._bos = [tokenizer.bos_token_id] if adds_bos and not self.chat_template else []
        self._any_prompt = self._prompt_text("?")

    @classmethod
    def supports(cls, config: Any) -> bool:
        """Return True if a model configuration belongs to a text-only decoder."""
        known = type(config) in MODEL_FOR_CAUSAL_LM_MAPPING
        has_own_code = cls.model_class.__name__ in (getattr(config, "auto_map", None) or {})
        images = hasattr(config, "vision_config")
        return (known or has_own_code) and not config.is_encoder_decoder and not images

    @classmethod
    def make_tiny(cls, folder: Path, seed: int) -> None:
        """Save a small, randomly initialised GPT-2 model."""
        from mm_numeric.families.tiny import make_tiny_gpt2

        make_tiny_gpt2(folder, seed)

    def tokenize_question(self, text: str, with_image: bool) -> list[int]:
        """Return the token ids of a question."""
        ids = self.tokenizer(self._prompt_text(text), add_special_tokens=False)["input_ids"]
        return [*self._bos, *ids]

    def answer(self, text: str) -> Tokens:
        """Tokenise an answer and append the end token."""
        # SentencePiece adds a space to the beginning of a text, so tokenise prompt and answer.
        start = len(self._any_prompt)
        tokens = self.tokenizer(
            self._any_prompt + text, add_special_tokens=False, return_offsets_mapping=True
        )
        pairs = list(zip(tokens["input_ids"], tokens["offset_mapping"], strict=True))
        if any(first < start < last for _, (first, last) in pairs):
            return super().answer(text)  # the prompt's end and white space form one token
        answer = [(token, span) for token, span in pairs if span[0] >= start]
        return Tokens(
            ids=[*(token for token, _ in answer), self.stop_ids[0]],
            offsets=[*((first - start, last - start) for _, (first, last) in answer), (0, 0)],
        )

    def chat_prompt(self, text: str, with_image: bool, answer: str | None = None) -> str:
        """Apply the chat template to a question and, if given, its answer.

        Without an answer, the text ends with the generation prompt. The content of a message is a
        string, because some templates (Llama-2, Mistral) accept no list of content parts.
        """
        turns = [{"role": "user", "content": text}]
        turns += [] if answer is None else [{"role": "assistant", "content": answer}]
        return self.apply_template(turns, add_generation_prompt=answer is None)

    def _prompt_text(self, text: str) -> str:
        if not self.chat_template:
            return text if text.endswith("\n") else text + "\n"
        return self.chat_prompt(text, with_image=False)
