"""How a family's weights, tokenizer and processors are loaded."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from transformers import AutoConfig, AutoProcessor, AutoTokenizer, ProcessorMixin

from mm_numeric.config.schema import ModelConfig
from mm_numeric.families.loading import load_weights


class Checkpoint(ABC):
    """The storage side of a family: model class, parameter names and loading."""

    name: ClassVar[str]
    model_class: ClassVar[Any]

    module_patterns: ClassVar[Mapping[str, str]] = {
        "vision": r"model\.vision_tower\.",
        "projector": r"model\.multi_modal_projector\.",
        "embeddings": r"model\.language_model\.embed_tokens\.",
        "language": r"model\.language_model\.(?!embed_tokens\.)",
        "head": r"lm_head\.",
    }
    """A regular expression for each module (vision, projector, language, embeddings, head), matched
    at the beginning of a parameter's name. Every parameter matches exactly one of them."""

    lora_targets: ClassVar[str] = r"model\.language_model\.layers\.\d+\.(self_attn|mlp)\.\w+_proj"
    """A regular expression for the full names of the language model's linear layers, in the form of
    PEFT's ``target_modules``."""

    @classmethod
    def load_config(cls, source: str, model: ModelConfig) -> Any:
        """Load the configuration of a checkpoint."""
        return AutoConfig.from_pretrained(
            source, revision=model.revision, trust_remote_code=model.trust_remote_code
        )

    @classmethod
    def load_tokenizer(cls, source: str, model: ModelConfig) -> Any:
        """Load the tokenizer of a checkpoint."""
        return AutoTokenizer.from_pretrained(
            source, revision=model.revision, trust_remote_code=model.trust_remote_code
        )

    @classmethod
    @abstractmethod
    def load_image_processor(cls, source: str, model: ModelConfig) -> Any:
        """Load the image processor with ``model.image_size`` applied; None for a text family."""

    @classmethod
    def load_processor(cls, source: str, model: ModelConfig) -> ProcessorMixin | None:
        """Load the whole processor of a checkpoint; None if it has none or it cannot be made here.

        The processors of the Qwen-VL families hold a video processor, which needs torchvision, and
        torchvision has no build for the CPU build of torch 2.13.
        """
        try:
            found = AutoProcessor.from_pretrained(
                source, revision=model.revision, trust_remote_code=model.trust_remote_code
            )
        except (ImportError, AttributeError, OSError, ValueError):
            return None
        return found if isinstance(found, ProcessorMixin) else None

    @classmethod
    @abstractmethod
    def make_tiny(cls, folder: Path, seed: int) -> None:
        """Save a small model of the family's real class with its tokenizer and image processor."""

    def load_model(self, source: str, model: ModelConfig) -> Any:
        """Load all weights of a checkpoint from safetensors."""
        return load_weights(self.model_class, self.name, source, model)
