"""The base class of text-only model families."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from mm_numeric.config.schema import ModelConfig
from mm_numeric.families.family import Family
from mm_numeric.families.model_files import BASELINE
from mm_numeric.geometry.frames import Resize


class TextFamily(Family):
    """Base class of families whose models read only text."""

    takes_images = False
    supported: ClassVar[str]
    """Description of the family's checkpoints, for error messages."""

    def __init__(self, tokenizer: Any, image_processor: Any, model: ModelConfig) -> None:
        super().__init__(tokenizer, image_processor, model)
        if tokenizer.eos_token_id is None:
            raise ValueError(
                f"model.name: the tokenizer of {tokenizer.name_or_path!r} has no eos_token; set "
                "one in its tokenizer_config.json."
            )
        self.stop_ids = [tokenizer.eos_token_id]
        self.pad_id = self.stop_ids[0] if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        self.resize = Resize(kind="none")

    @classmethod
    def load(cls, source: str, model: ModelConfig) -> Self:
        """Load the tokenizer.

        Raises ValueError if the checkpoint belongs to another family, or was trained with another
        ``model.baseline`` than the config sets.
        """
        config = cls.load_config(source, model)
        if not cls.supports(config):
            raise ValueError(
                f"model.name: {source!r} is a checkpoint of type {config.model_type!r}, and "
                f"{cls.name} is for {cls.supported}; correct model.family."
            )
        saved = getattr(config, BASELINE, None)
        if saved is not None and saved["name"] != _name(model.baseline):
            raise ValueError(
                f"model.baseline: the model in {source!r} was trained as {saved['name']}, not as "
                f"{_name(model.baseline)}; set the same baseline, or use another checkpoint."
            )
        return super().load(source, model)

    @classmethod
    @abstractmethod
    def supports(cls, config: Any) -> bool:
        """Return True if a checkpoint with this config.json belongs to the family."""

    @classmethod
    def load_image_processor(cls, source: str, model: ModelConfig) -> None:
        """Return None: there are no images to process."""
        return


def _name(baseline: Any) -> Any:
    return baseline["name"] if isinstance(baseline, Mapping) else baseline
