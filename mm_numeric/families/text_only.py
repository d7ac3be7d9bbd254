"""What the families without images have in common."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

from PIL import Image
from torch import Tensor
from transformers import AutoConfig

from mm_numeric.config.schema import ModelConfig
from mm_numeric.families.family import Family
from mm_numeric.families.loading import BASELINE
from mm_numeric.geometry.frames import Resize


class TextFamily(Family):
    """A family that reads text alone."""

    takes_images = False
    kind: ClassVar[str]
    """Which checkpoints belong to it, for errors."""

    def __init__(self, tokenizer: Any, image_processor: Any, model: ModelConfig) -> None:
        """Wrap the tokenizer of a checkpoint; it is not changed.

        Raises:
            ValueError: If it has no token that ends a text.
        """
        super().__init__(tokenizer, image_processor, model)
        if tokenizer.eos_token_id is None:
            raise ValueError(
                f"model.name: the tokenizer of {tokenizer.name_or_path!r} has no eos_token, so "
                "that an answer has no end; name one in its tokenizer_config.json."
            )
        self.stop_ids = [tokenizer.eos_token_id]
        self.pad_id = self.stop_ids[0] if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        self.resize = Resize(kind="none")

    @classmethod
    def load(cls, source: str, model: ModelConfig) -> Self:
        """Load the tokenizer of a checkpoint.

        Args:
            source: A hub name or a folder.
            model: The settings; its ``name`` is not looked at.

        Raises:
            ValueError: If the checkpoint is of another family.
        """
        config = AutoConfig.from_pretrained(
            source, revision=model.revision, trust_remote_code=model.trust_remote_code
        )
        if not cls.fits(config):
            raise ValueError(
                f"model.name: {source!r} is a checkpoint of type {config.model_type!r}, and "
                f"model.family says {cls.name}, which is for {cls.kind}; set model.family to the "
                "family that it belongs to."
            )
        saved = getattr(config, BASELINE, None)
        if saved is not None and saved["name"] != _name(model.baseline):
            raise ValueError(
                f"model.baseline: the model in {source!r} was trained as {saved['name']}, and here "
                f"model.baseline is {_name(model.baseline)}; set it as it was, or start from "
                "another checkpoint."
            )
        return super().load(source, model)

    @classmethod
    @abstractmethod
    def fits(cls, config: Any) -> bool:
        """Return whether a checkpoint with this config belongs to the family."""

    @classmethod
    def _load_image_processor(cls, source: str, model: ModelConfig) -> None:
        return None

    def image_tokens(self, width: int, height: int) -> int:
        """Return 0: there are no images."""
        return 0

    def images(self, shown: Sequence[Image.Image]) -> dict[str, Tensor]:
        """Refuse images.

        Raises:
            ValueError: Always.
        """
        raise ValueError(f"{self.name} takes no images; give None for each question.")

    def features(self, images: dict[str, Tensor], config: Any) -> int:
        """Return 0: there are no images."""
        return 0

    def model_inputs(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        answered: Tensor,
        images: dict[str, Tensor],
    ) -> dict[str, Any]:
        """Return what the model's forward takes for a padded batch."""
        return {"input_ids": input_ids, "attention_mask": attention_mask}


def _name(baseline: Any) -> Any:
    """Return the name in ``model.baseline``."""
    return baseline["name"] if isinstance(baseline, Mapping) else baseline
