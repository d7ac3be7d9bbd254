"""What a family of models has to say about itself.

A family owns everything that differs between model classes: how a prompt is written, how an image
becomes numbers, where the model sees a place of it, what ends an answer, which parameters are which
part, and which class is loaded. Training, prediction and the tests go through this class alone.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

from PIL import Image
from torch import Tensor
from transformers import AutoConfig, AutoTokenizer

from mm_numeric.answers import Example, Mark
from mm_numeric.config.reader import read_coordinates
from mm_numeric.config.schema import ModelConfig
from mm_numeric.families.digits import with_digits
from mm_numeric.families.loading import (
    check_saved_frame,
    check_type,
    load_weights,
    save_frame,
)
from mm_numeric.geometry.frames import Frame, Resize
from mm_numeric.losses.objective import Objective
from mm_numeric.losses.spec import ObjectiveSpec
from mm_numeric.numbers.spans import TokenNumber, numbers_in_answer
from mm_numeric.numbers.vocabulary import NumberVocabulary
from mm_numeric.tasks.base import Task

_QUESTIONS_KEPT = 10_000  # of those that were tokenised: most tasks ask the same one


@dataclass(frozen=True)
class Prompts:
    """Questions as the model takes them."""

    ids: list[list[int]]
    """The tokens of each, one placeholder for each image feature included."""

    images: dict[str, Tensor]
    """What the image processor makes of their images, all together; empty without images."""


@dataclass(frozen=True)
class Tokens:
    """An answer as the model is to write it."""

    ids: list[int]
    """Its tokens, the one that ends it included."""

    offsets: list[tuple[int, int]]
    """First and last-plus-one character of each; (0, 0) for the end."""


class Family(ABC):
    """One family of models, with the tokenizer and the image processor of one checkpoint."""

    name: ClassVar[str]
    """As its authors write it, for errors: ``Qwen2-VL``."""

    model_class: ClassVar[Any]
    """The class of transformers that is trained."""

    habit: ClassVar[str] = "pixels_original"
    """How the family writes coordinates unless told otherwise: a key of ``COORDINATES``."""

    takes_images: ClassVar[bool] = True

    encoder_decoder: ClassVar[bool] = False
    """Whether the answer goes to a decoder of its own (T5)."""

    ends_answers: ClassVar[bool] = True
    """Whether a token ends an answer; not where it is one number and nothing else."""

    parts: ClassVar[Mapping[str, str]]
    """A regular expression for each part (vision, projector, language, embeddings, head), matched
    from the beginning of a parameter's name; every parameter is in exactly one."""

    lora_targets: ClassVar[str]
    """A regular expression for the full names of the linear layers of the language model, as PEFT's
    ``target_modules`` takes it."""

    image_settings: ClassVar[tuple[str, ...]] = ()
    """What ``model.image_size`` may change: names among the fields of ``Resize``."""

    stop_ids: list[int]
    """The tokens that end generation; the first ends a trained answer."""

    pad_id: int

    image_id: int
    """The placeholder of an image feature, where the family sees images."""

    decoder_start_id: int
    """What a decoder of its own begins with."""

    resize: Resize
    """What is done to every image."""

    def __init__(self, tokenizer: Any, image_processor: Any, model: ModelConfig) -> None:
        """Wrap the tokenizer and the image processor of a checkpoint; neither is changed."""
        self.tokenizer = tokenizer
        self.image_processor = image_processor
        choice = self.habit if model.coordinates is None else model.coordinates
        self.coordinates = read_coordinates(choice, "model.coordinates")
        for setting in model.image_size:
            if setting not in self.image_settings:
                known = ", ".join(self.image_settings) or "none"
                raise ValueError(
                    f"model.image_size.{setting}: {self.name} has no such setting. Known: {known}."
                )
        self._questions: dict[tuple[str, bool], list[int]] = {}

    # -- loading and saving -------------------------------------------------------------------

    @classmethod
    def load(cls, source: str, model: ModelConfig) -> Self:
        """Load tokenizer and image processor of a checkpoint.

        Args:
            source: A hub name or a folder.
            model: The settings; its ``name`` is not looked at.

        Raises:
            ValueError: If the checkpoint is of another family, or was trained in another frame.
        """
        check_type(cls.model_class, cls.name, source, model)
        tokenizer = with_digits(cls._load_tokenizer(source, model), model.digits, source)
        family = cls(tokenizer, cls._load_image_processor(source, model), model)
        check_saved_frame(source, family.resize, family.coordinates)
        if model.image_size:  # would hide a change of the image processor next to the weights
            own = replace(model, image_size={})
            resize = cls(tokenizer, cls._load_image_processor(source, own), own).resize
            where = f"the image processor in {source}"
            check_saved_frame(source, resize, family.coordinates, where)
        return family

    @classmethod
    def _load_tokenizer(cls, source: str, model: ModelConfig) -> Any:
        """Load the tokenizer."""
        return AutoTokenizer.from_pretrained(
            source, revision=model.revision, trust_remote_code=model.trust_remote_code
        )

    @classmethod
    def load_config(cls, source: str, model: ModelConfig) -> Any:
        """Load the configuration of a checkpoint, as transformers has it."""
        return AutoConfig.from_pretrained(
            source, revision=model.revision, trust_remote_code=model.trust_remote_code
        )

    @classmethod
    @abstractmethod
    def _load_image_processor(cls, source: str, model: ModelConfig) -> Any:
        """Load the image processor, set as ``model.image_size`` says; None for text alone."""

    @classmethod
    @abstractmethod
    def make_tiny(cls, folder: Path, seed: int) -> None:
        """Make a small model of the family's real class from code, and save it with the rest."""

    def load_model(self, source: str, model: ModelConfig) -> Any:
        """Load the weights of a checkpoint, every one, from safetensors."""
        return load_weights(self.model_class, self.name, source, model)

    def save(self, folder: Path) -> None:
        """Save tokenizer, image processor and frame beside the weights."""
        self.tokenizer.save_pretrained(folder)
        if self.image_processor is not None:
            self.image_processor.save_pretrained(folder)
        save_frame(folder, self.resize, self.coordinates)

    # -- images and places ------------------------------------------------------------------

    def frame(self, width: int, height: int) -> Frame:
        """Return how an upright image of so many pixels is seen, and places in it are written.

        Raises:
            ValueError: If such an image cannot be resized as the family does.
        """
        return Frame(width, height, self.resize.view(width, height), self.coordinates)

    def as_seen(self, image: Image.Image) -> Image.Image:
        """Resize an image as the image processor does, which then leaves it as it is.

        Raises:
            ValueError: If such an image cannot be resized as the family does.
        """
        view = self.resize.view(*image.size)
        return image.resize((view.width_px, view.height_px), self.image_processor.resample)

    @abstractmethod
    def image_tokens(self, width: int, height: int) -> int:
        """Return how many placeholders an image of so many pixels takes in the prompt."""

    # -- text ---------------------------------------------------------------------------------

    def question(self, text: str, image_tokens: int) -> list[int]:
        """Return the tokens of a question, with so many placeholders; 0 where it has no image.

        Raises:
            ValueError: If it cannot be asked so.
        """
        key = text, image_tokens > 0
        if key not in self._questions:
            if len(self._questions) >= _QUESTIONS_KEPT:
                self._questions.clear()
            self._questions[key] = self._tokenised(*key)
        ids = self._questions[key]
        if not image_tokens:
            return list(ids)
        at = ids.index(self.image_id)
        return [*ids[:at], *[self.image_id] * image_tokens, *ids[at + 1 :]]

    @abstractmethod
    def _tokenised(self, text: str, with_image: bool) -> list[int]:
        """Return the tokens of a question, one placeholder standing for the image."""

    @abstractmethod
    def images(self, shown: Sequence[Image.Image]) -> dict[str, Tensor]:
        """Return what the image processor makes of images, at least one, all together."""

    @abstractmethod
    def features(self, images: dict[str, Tensor], config: Any) -> int:
        """Return how many image features a model makes of what ``images`` returned.

        Args:
            images: All together.
            config: Of the model, in transformers' class; it says how large a patch is.
        """

    def prompts(
        self,
        texts: Sequence[str],
        images: Sequence[Image.Image | None],
        where: Sequence[str] | None = None,
    ) -> Prompts:
        """Write questions.

        Args:
            texts: What is asked.
            images: What each is about; None for nothing to see.
            where: File and line of each, for errors.

        Raises:
            ValueError: If one cannot be asked so.
        """
        ids = []
        for i, (text, image) in enumerate(zip(texts, images, strict=True)):
            try:
                image_tokens = 0 if image is None else self.image_tokens(*image.size)
                ids.append(self.question(text, image_tokens))
            except ValueError as error:
                raise ValueError(f"{where[i]}: {error}" if where else str(error)) from error
        shown = [image for image in images if image is not None]
        return Prompts(ids=ids, images=self.images(shown) if shown else {})

    def answer(self, text: str) -> Tokens:
        """Write an answer and its end."""
        tokens = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        offsets = [(start, end) for start, end in tokens["offset_mapping"]]
        return Tokens(ids=[*tokens["input_ids"], self.stop_ids[0]], offsets=[*offsets, (0, 0)])

    def text(self, ids: Sequence[int]) -> str:
        """Return what was generated up to its end; the special tokens of coordinates survive."""
        ends = {*self.stop_ids, self.pad_id}
        length = next((i for i, token in enumerate(ids) if token in ends), len(ids))
        return self.tokenizer.decode(ids[:length], skip_special_tokens=False)

    def vocabulary(self) -> NumberVocabulary:
        """Return the number tokens: digits, and the location tokens if coordinates are written so.

        Raises:
            ValueError: If the tokenizer has no location tokens and they are asked for.
        """
        digits = NumberVocabulary.from_tokenizer(self.tokenizer)
        bins = self.coordinates.bins
        if bins is None:
            return digits
        tokens = [self.coordinates.text.bin(level) for level in range(bins)]
        return NumberVocabulary.from_tokens(self.tokenizer, tokens) | digits

    def numbers(
        self, text: str, marks: Sequence[Mark], answer: Tokens, vocabulary: NumberVocabulary
    ) -> list[TokenNumber]:
        """Find the marked numbers of an answer in its tokens.

        Raises:
            ValueError: If a mark is not a number, or in no number token.
        """
        return numbers_in_answer(text, marks, answer.ids, answer.offsets, vocabulary)

    # -- training -----------------------------------------------------------------------------

    def fit(self, task: Task, examples: Sequence[Example]) -> None:  # noqa: B027
        """Measure what has to be known of the rows trained on, which most families need not."""

    def objective(self, spec: ObjectiveSpec, vocabulary: NumberVocabulary) -> Objective:
        """Return what the model is trained on.

        Raises:
            ValueError: If a term does not exist, or refuses its options or roles.
        """
        return Objective(spec, vocabulary)

    @abstractmethod
    def model_inputs(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        answered: Tensor,
        images: dict[str, Tensor],
    ) -> dict[str, Any]:
        """Return what the model's forward takes for a padded batch.

        Args:
            input_ids: [b, t] prompts, in training with their answers behind them.
            attention_mask: [b, t] 0 at padding.
            answered: [b, t] bool, the tokens of the answer and its end; all False in generation.
            images: ``Prompts.images``.
        """

    def token_id(self, token: str) -> int:
        """Return the id of a token that every checkpoint of this family has.

        Raises:
            ValueError: If the tokenizer lacks it.
        """
        vocabulary = self.tokenizer.get_vocab()
        if token not in vocabulary:
            raise ValueError(
                f"model.family: the tokenizer of {self.tokenizer.name_or_path} has no {token}, so "
                f"it is not a {self.name} checkpoint; set model.family to the family that it "
                "belongs to."
            )
        return vocabulary[token]
