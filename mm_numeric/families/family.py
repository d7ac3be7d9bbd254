"""The base class of model families, and two of the classes that it consists of.

A family, such as Qwen2-VL, implements everything that differs between model types:

``Prompting``       prompts, answers, special tokens, inputs of ``forward``
``ImageGeometry``   resizing, image tokens, coordinate frames
``Checkpoint``      model class, parameter names, loading

Training and prediction access models only through ``Family``.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self

from PIL import Image
from torch import Tensor
from transformers import AutoConfig, AutoTokenizer, ProcessorMixin

from mm_numeric.config.reader import read_coordinates
from mm_numeric.config.schema import ModelConfig
from mm_numeric.families.digits import with_digits
from mm_numeric.families.model_files import (
    check_model_type,
    check_saved_frame,
    load_weights,
    save_frame,
)
from mm_numeric.families.prompting import (
    Prompting,
    Prompts,
    Shown,
    Tokens,
    check_image_count,
    listed,
)
from mm_numeric.geometry.coordinates import Coordinates
from mm_numeric.geometry.frames import Frame, Resize

__all__ = ["Family", "Prompts", "Tokens"]


class ImageGeometry(ABC):
    """Base class of ``Family`` that handles images: resizing, image tokens, coordinate systems."""

    default_coordinates: ClassVar[str] = "pixels_original"
    """How coordinates were written in the pretraining of the family: a name in ``COORDINATES``."""

    takes_images: ClassVar[bool] = True
    """True if models of the family accept images."""

    takes_several_images: ClassVar[bool] = False
    """True if a question may have several images, such as frames of a video."""

    image_settings: ClassVar[tuple[str, ...]] = ()
    """Names of the settings that ``model.image_size`` may have, such as ``max_pixels``."""

    image_inputs: ClassVar[tuple[str, ...]] = ("pixel_values",)
    """Names of the image processor's outputs that are passed to the model."""

    image_processor: Any

    resize: Resize
    coordinates: Coordinates

    def frame(self, width: int, height: int) -> Frame:
        """Return how an image of this size is resized and how its coordinates are written.

        Raises:
            ValueError: If the family cannot resize an image of this size.
        """
        return Frame(width, height, self.resize.view(width, height), self.coordinates)

    def resize_image(self, image: Image.Image) -> Image.Image:
        """Resize an image to the same size and with the same filter as the image processor."""
        view = self.resize.view(*image.size)
        return image.resize((view.width_px, view.height_px), self.image_processor.resample)

    def resize_image_once(self, image: Image.Image) -> Image.Image:
        """Resize an image, or return it as it is if the processor would then resize it again.

        Whoever applies the image processor to the result computes the same pixels as for the
        original. (With Qwen, a second resize may change the size if ``min_pixels`` is close to
        ``max_pixels``.)
        """
        resized = self.resize_image(image)
        view = self.resize.view(*resized.size)
        return resized if (view.width_px, view.height_px) == resized.size else image

    @abstractmethod
    def image_tokens(self, width: int, height: int) -> int:
        """Return the number of placeholder tokens for an image of ``width`` x ``height`` pixels."""

    def images(self, shown: Sequence[Image.Image]) -> dict[str, Tensor]:
        """Apply the image processor to one or more images, and return its outputs as a batch."""
        features = self.image_processor(images=list(shown), return_tensors="pt")
        return {name: features[name] for name in self.image_inputs}

    @abstractmethod
    def num_image_features(self, images: dict[str, Tensor], config: Any) -> int | None:
        """Return the number of image features that the model computes for preprocessed images.

        None if the family does not know it.
        """


class Checkpoint(ABC):
    """Base class of ``Family`` that handles checkpoints: model class, parameter names, loading."""

    name: ClassVar[str]
    model_class: ClassVar[Any]

    module_patterns: ClassVar[Mapping[str, str]] = {
        "vision": r"model\.vision_tower\.",
        "projector": r"model\.multi_modal_projector\.",
        "embeddings": r"model\.language_model\.embed_tokens\.",
        "language": r"model\.language_model\.(?!embed_tokens\.)",
        "head": r"lm_head\.",
    }
    """Maps each module to a regular expression that matches the beginning of its parameters' names.
    Every parameter of a model matches exactly one of them."""

    lora_targets: ClassVar[str] = r"model\.language_model\.layers\.\d+\.(self_attn|mlp)\.\w+_proj"
    """Regular expression that matches the full names of the language model's layers that get LoRA
    adapters, like PEFT's ``target_modules``."""

    processor: ProcessorMixin | None = None
    """A transformers processor with this family's tokenizer and image processor; None in families
    of text and in those that make none."""

    image_prefix: ClassVar[str] = ""
    """Text of an image that ``processor`` expects before a question; empty if it adds it itself or
    has a chat template."""

    tensor_parallel: int = 1
    """Number of ranks that share the weights of the model that ``load_model`` loads."""

    @classmethod
    def load_config(cls, source: str, model: ModelConfig) -> Any:
        """Load the configuration of a checkpoint."""
        return AutoConfig.from_pretrained(
            source, revision=model.revision, trust_remote_code=model.trust_remote_code
        )

    @classmethod
    def load_tokenizer(cls, source: str, model: ModelConfig) -> Any:
        """Load the tokenizer of a checkpoint."""
        try:
            tokenizer = AutoTokenizer.from_pretrained(
                source, revision=model.revision, trust_remote_code=model.trust_remote_code
            )
        except Exception as error:
            # transformers and tokenizers raise these for wrong values; a model's own code may, too.
            its_file = Path(source, "tokenizer.json").is_file() and not model.trust_remote_code
            if type(error) not in (Exception, TypeError, KeyError) or not its_file:
                raise
            other = "" if type(error) is Exception else " or tokenizer_config.json"
            raise OSError(f"{source}/tokenizer.json{other} is damaged ({error})") from error
        if not tokenizer("a", add_special_tokens=False)["input_ids"]:
            raise OSError(
                f"there is no vocabulary of its tokenizer, such as {source}/tokenizer.json"
            )
        return tokenizer

    @classmethod
    @abstractmethod
    def load_image_processor(cls, source: str, model: ModelConfig) -> Any:
        """Load the image processor, with the sizes of ``model.image_size``; None if text-only."""

    def make_processor(self, source: str, model: ModelConfig) -> ProcessorMixin | None:
        """Return a transformers processor with this tokenizer and this image processor.

        It is saved with every model, so that other tools load it with ``AutoProcessor``. If it is
        None, only the tokenizer and the image processor are saved.
        """
        return None

    @classmethod
    def make_tiny(cls, folder: Path, seed: int) -> None:
        """Save a small, randomly initialised model with a tokenizer and an image processor.

        Raises ValueError in families without a recipe for such a model.
        """
        raise ValueError(
            f"model.name: {cls.name} has no tiny model; set the name of a checkpoint, or "
            "model.family to qwen2_vl, qwen2_5_vl, qwen3_vl, causal_lm or t5."
        )

    def load_model(self, source: str, model: ModelConfig) -> Any:
        """Load all weights of a checkpoint from safetensors, or this rank's part of them."""
        ranks = self.tensor_parallel
        return load_weights(self.model_class, self.name, source, model, ranks=ranks)


class Family(Prompting, ImageGeometry, Checkpoint):
    """Base class of model families. An instance holds a checkpoint's tokenizer and processor."""

    max_positions: int | None = None
    """Length of the longest sequence that the model can process, in tokens; None if there is no
    limit. ``load_family`` sets it from the configuration of the checkpoint."""

    def __init__(self, tokenizer: Any, image_processor: Any, model: ModelConfig) -> None:
        self.tokenizer = tokenizer
        self.image_processor = image_processor
        choice = self.default_coordinates if model.coordinates is None else model.coordinates
        self.coordinates = read_coordinates(choice, "model.coordinates")
        for setting in model.image_size:
            if setting not in self.image_settings:
                known = ", ".join(self.image_settings) or "none"
                raise ValueError(
                    f"model.image_size.{setting}: {self.name} has no such setting. Known: {known}."
                )

    @classmethod
    def load(cls, source: str, model: ModelConfig) -> Self:
        """Load the tokenizer and image processor of ``source``, a hub name or a folder.

        Raises:
            ValueError: If the checkpoint belongs to another family, or was trained with another
                image resizing or coordinate format than that of the config.
        """
        check_model_type(cls.model_class, cls.name, source, model)
        tokenizer = cls.load_tokenizer(source, model)
        tokenizer = with_digits(tokenizer, model.digits, source, model.revision)
        family = cls(tokenizer, cls.load_image_processor(source, model), model)
        check_saved_frame(source, family.resize, family.coordinates, revision=model.revision)
        if model.image_size:  # would hide a changed image processor next to the weights
            own = replace(model, image_size={})
            resize = cls(tokenizer, cls.load_image_processor(source, own), own).resize
            where = f"the image processor in {source}"
            check_saved_frame(source, resize, family.coordinates, where, revision=model.revision)
        if cls.takes_images:
            family.processor = family.make_processor(source, model)
        return family

    def save(self, folder: Path) -> None:
        """Save the tokenizer, the processors and ``frame.json`` (resizing, coordinate format)."""
        apart = [p for p in (self.tokenizer, self.image_processor) if p is not None]
        for part in apart if self.processor is None else [self.processor]:
            part.save_pretrained(folder)
        save_frame(folder, self.resize, self.coordinates)

    def prompts(
        self,
        texts: Sequence[str],
        images: Sequence[Shown],
        where: Sequence[str] | None = None,
    ) -> Prompts:
        """Tokenise a batch of questions and preprocess their images.

        ``images`` has one entry per question, which is None for a question without an image, and a
        list of images of one size for a question with several.
        ``where`` has the file and line of each question, for error messages.
        """
        ids = []
        for i, (text, image) in enumerate(zip(texts, images, strict=True)):
            try:
                ids.append(self.prompt_ids(text, image))
            except ValueError as error:
                raise ValueError(f"{where[i]}: {error}" if where else str(error)) from error
        shown = [own for image in images for own in listed(image)]
        return Prompts(ids=ids, images=self.images(shown) if shown else {})

    def prompt_ids(self, text: str, image: Shown) -> list[int]:
        """Return the token ids that the model reads for a question and its image or images."""
        own = listed(image)
        if own:
            check_image_count(text, len(own))
        return self.question(text, sum(self.image_tokens(*each.size) for each in own))
