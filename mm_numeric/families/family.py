"""The base class of model families.

A family, such as Qwen2-VL, implements everything that differs between model types: prompts and
answers, image geometry and checkpoints. Training and prediction access models only through it.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

from PIL import Image
from torch import Tensor
from transformers import AddedToken, AutoConfig, AutoTokenizer, ProcessorMixin

from mm_numeric.answers import Mark
from mm_numeric.config.reader import read_coordinates
from mm_numeric.config.schema import ModelConfig
from mm_numeric.families.chat_template import (
    Shown,
    check_image_count,
    default_template,
    image_count,
    listed,
    message,
    render,
)
from mm_numeric.families.digits import with_digits
from mm_numeric.families.model_files import (
    check_image_token,
    check_model_type,
    check_saved_frame,
    load_weights,
    save_frame,
)
from mm_numeric.geometry.coordinates import Coordinates
from mm_numeric.geometry.frames import Frame, Resize
from mm_numeric.numbers.spans import TokenNumber, numbers_in_answer
from mm_numeric.numbers.vocabulary import NumberVocabulary

_QUESTION, _ANSWER = "QUESTION", "ANSWER"
_CACHED_QUESTIONS = 10_000  # most tasks ask the same question about every image


@dataclass(frozen=True)
class Prompts:
    """A batch of questions: their token ids and their preprocessed images."""

    ids: list[list[int]]
    """``ids[i]`` are the token ids of question i, with one placeholder token per image feature."""

    images: dict[str, Tensor]
    """Output of the image processor for all images of the batch; empty if there are none."""

    aligned: Mapping[str, list[list[int]]] = field(default_factory=dict)
    """Other inputs with one number per token of ``ids``, such as ``token_type_ids``. At the tokens
    of answers, they are 0."""


@dataclass(frozen=True)
class Tokens:
    """The token ids of an answer, and the start and end character of each token in its text."""

    ids: list[int]
    """Token ids of the answer and the end token."""

    offsets: list[tuple[int, int]]
    """Start and end character of each token in the text; (0, 0) for the end token."""


class Family(ABC):
    """Base class of model families. An instance holds a checkpoint's tokenizer and processor."""

    name: ClassVar[str]
    """Name of the family for error messages, as its authors write it: ``Qwen2-VL``."""

    tokenizer: Any
    image_processor: Any
    resize: Resize
    coordinates: Coordinates

    model_class: ClassVar[Any]

    module_patterns: ClassVar[Mapping[str, str]] = {
        "vision": r"model\.vision_tower\.",
        "projector": r"model\.multi_modal_projector\.",
        "embeddings": r"model\.language_model\.embed_tokens\.",
        "language": r"model\.language_model\.(?!embed_tokens\.)",
        "head": r"lm_head\.",
    }
    """Maps a module's name to a regular expression that matches the beginning of the names of the
    module's parameters. Each parameter of a model matches exactly one expression."""

    lora_targets: ClassVar[str] = r"model\.language_model\.layers\.\d+\.(self_attn|mlp)\.\w+_proj"
    """Regular expression that matches the full names of the language model's layers that get LoRA
    adapters, like PEFT's ``target_modules``."""

    processor: ProcessorMixin | None = None
    """A transformers processor with this family's tokenizer and image processor; None in families
    without a processor, such as text-only families."""

    image_prefix: ClassVar[str] = ""
    """Image token that ``processor`` expects before a question; empty if ``processor`` adds the
    token or has a chat template."""

    tensor_parallel: int = 1
    """Number of ranks over which ``load_model`` shards the weights (tensor parallelism)."""

    max_positions: int | None = None
    """Maximum sequence length of the model, in tokens; None if there is no limit. ``load_family``
    sets it from the configuration of the checkpoint."""

    encoder_decoder: ClassVar[bool] = False
    """True for encoder-decoder models, such as T5."""

    turn: ClassVar[str] = ""
    """Text that ends a decoded answer, such as ``###``; empty if only ``stop_ids`` end it."""

    lead: str = ""
    """Text between a prompt and its answer, such as the space after ``ASSISTANT:``."""

    template_options: Mapping[str, Any] = {}
    """Variables of the chat template. A server that runs the model has to set the same values."""

    stop_ids: list[int]
    """Ids of the tokens that end generation. The first one is the end token of training answers."""

    pad_id: int

    image_id: int
    """Id of the placeholder token of an image feature, in families that accept images."""

    tokens_per_image: int = 0
    """Number of placeholder tokens of an image, in families with the same number for all images."""

    decoder_start_id: int
    """Id of the first input token of the decoder, in encoder-decoder families."""

    default_coordinates: ClassVar[str] = "pixels_original"
    """Coordinate format of the family's pretraining: a name in ``COORDINATES``."""

    takes_images: ClassVar[bool] = True
    """True if models of the family accept images."""

    takes_several_images: ClassVar[bool] = False
    """True if a question may have several images, such as frames of a video."""

    image_settings: tuple[str, ...] = ()
    """Settings that are allowed in ``model.image_size``, such as ``max_pixels``."""

    image_inputs: ClassVar[tuple[str, ...]] = ("pixel_values",)
    """Names of the image processor's outputs that are passed to the model."""

    image_processor_class: ClassVar[Any]
    """Class of the image processor, in families that load it unchanged."""

    processor_class: ClassVar[Any] = None
    """Class of ``processor``, in families whose processor has no settings of its own."""

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

    @cached_property
    def _questions(self) -> dict[tuple[str, bool], list[int]]:  # cache of tokenize_question
        return {}

    def question(self, text: str, image_tokens: int) -> list[int]:
        """Return a question's token ids, with placeholder tokens for its images.

        ``image_tokens`` is the total number of placeholder tokens. Each image gets the same number.
        """
        count = image_count(text)
        if image_tokens and count > 1 and not self.takes_several_images:
            raise ValueError(
                f"the question has {count} images, and model.family {self.name} accepts one; set "
                "model.family to qwen2_vl, qwen2_5_vl, qwen3_vl or chat."
            )
        key = text, image_tokens > 0
        if key not in self._questions:
            if len(self._questions) >= _CACHED_QUESTIONS:
                self._questions.clear()
            self._questions[key] = self.tokenize_question(*key)
        ids = self._questions[key]
        if not image_tokens:
            return list(ids)
        own = [self.image_id] * (image_tokens // count)
        return [token for i in ids for token in (own if i == self.image_id else (i,))]

    @abstractmethod
    def tokenize_question(self, text: str, with_image: bool) -> list[int]:
        """Return a question's token ids, with one placeholder token in place of the image."""

    def chat_prompt(self, text: str, with_image: bool, answer: str | None = None) -> str:
        """Apply the chat template to a question with its answer or else a generation prompt."""
        if not self.chat_template:
            raise ValueError(
                f"model.name: the tokenizer has no chat template, which the prompts of {self.name} "
                "need; copy chat_template.jinja from the instruction-tuned checkpoint."
            )
        turns = [message("user", text, with_image)]
        turns += [] if answer is None else [message("assistant", answer)]
        return self.apply_template(turns, add_generation_prompt=answer is None)

    @property
    def chat_template(self) -> str:
        """The chat template of prompts; empty if there is none."""
        return default_template(self.tokenizer.chat_template) or ""

    def apply_template(self, turns: list[dict[str, Any]], *, add_generation_prompt: bool) -> str:
        """Apply the chat template to the messages of a conversation."""
        variables = self.template_variables(turns, add_generation_prompt=add_generation_prompt)
        try:
            if text := render(self.chat_template, variables):
                return text
            raise ValueError("it writes nothing")
        except ValueError as error:
            # With such a TypeError, the template appends the list of content parts to a string.
            is_text = "TypeError" in str(error) and isinstance(turns[0]["content"], list)
            takes = ", because it takes texts alone" * is_text
            raise ValueError(
                f"model.name: the chat template of {self.tokenizer.name_or_path!r} cannot be used "
                f"for prompts of {self.name}{takes} ({error}); copy chat_template.jinja from "
                "another checkpoint of this family."
            ) from error

    def template_variables(
        self, turns: list[dict[str, Any]], *, add_generation_prompt: bool
    ) -> dict[str, Any]:
        """Return the variables with which transformers renders a chat template."""
        variables = {"messages": turns, "tools": None, "documents": None}
        variables |= {**self.tokenizer.special_tokens_map, **self.template_options}
        return {**variables, "add_generation_prompt": add_generation_prompt}

    def text_around_answer(self) -> tuple[str, str]:
        """Return the chat template's text between prompt and answer, and its text after answers."""
        prompt = self.chat_prompt(_QUESTION, False)
        whole = self.chat_prompt(_QUESTION, False, _ANSWER)
        before, found, after = whole.rpartition(_ANSWER)
        if _QUESTION not in prompt or not found or "'text'" in whole:  # the list as text
            raise ValueError(
                f"model.name: the chat template of {self.tokenizer.name_or_path!r} does not write "
                'the text of {"type": "text", "text": ...}, a part of a message; copy '
                "chat_template.jinja from a newer revision of the checkpoint."
            )
        return before[len(prompt) :] if before.startswith(prompt) else "", after

    def answer(self, text: str) -> Tokens:
        """Tokenise ``lead`` and an answer, and append the end token."""
        tokens = self.tokenizer(
            self.lead + text, add_special_tokens=False, return_offsets_mapping=True
        )
        offsets = [
            (max(start - len(self.lead), 0), max(end - len(self.lead), 0))
            for start, end in tokens["offset_mapping"]
        ]
        return Tokens(ids=[*tokens["input_ids"], self.stop_ids[0]], offsets=[*offsets, (0, 0)])

    def check_image_tokens(self, text: str, ids: Sequence[int], count: int) -> None:
        """Raise ValueError unless the prompt ``ids`` of a question has ``count`` image tokens."""
        found = ids.count(self.image_id)
        if found != count:
            token = self.tokenizer.convert_ids_to_tokens(self.image_id)
            raise ValueError(
                f"the prompt of the question {text!r:.80} has {found} {token} instead of {count}; "
                f"remove {token} from the question, or correct the chat template of "
                f"{self.tokenizer.name_or_path}."
            )

    def text(self, ids: Sequence[int]) -> str:
        """Decode the generated tokens that come before the first end token, without ``lead``.

        Special tokens are kept in the text, because some families write coordinates with them.
        """
        written: str = self.tokenizer.decode(self.before_end(ids), skip_special_tokens=False)
        return written.removeprefix(self.lead)

    def before_end(self, ids: Sequence[int]) -> Sequence[int]:
        """Return the generated tokens before the first end token or padding token."""
        ends = {*self.stop_ids, self.pad_id}
        length = next((i for i, token in enumerate(ids) if token in ends), len(ids))
        return ids[:length]

    def vocabulary(self) -> NumberVocabulary:
        """Return the number tokens: digits and, if coordinates use them, tokens like <loc0012>."""
        digits = NumberVocabulary.from_tokenizer(self.tokenizer)
        tokens = self.location_tokens()
        return NumberVocabulary.from_tokens(self.tokenizer, tokens) | digits if tokens else digits

    def location_tokens(self) -> list[str]:
        """Return all location tokens in order; empty if coordinates are written with digits."""
        return [self.coordinates.text.bin(level) for level in range(self.coordinates.bins or 0)]

    def numbers(
        self, text: str, marks: Sequence[Mark], answer: Tokens, vocabulary: NumberVocabulary
    ) -> list[TokenNumber]:
        """Return the numbers of an answer, each with its value and the positions of its tokens.

        ``marks`` has the start and end of each number, as character indices in the answer ``text``.
        """
        return numbers_in_answer(text, marks, answer.ids, answer.offsets, vocabulary)

    def model_inputs(
        self, input_ids: Tensor, attention_mask: Tensor, answered: Tensor, images: dict[str, Tensor]
    ) -> dict[str, Any]:
        """Return the arguments of the model's ``forward`` for a padded batch.

        ``answered`` [b, t] is True at the tokens of an answer, including its end token, and
        ``images`` is ``Prompts.images``.
        """
        return {"input_ids": input_ids, "attention_mask": attention_mask, **images}

    def vision_inputs(self, sizes: Tensor, config: Any) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return model inputs that the vision tower would otherwise compute from image sizes.

        ``sizes`` [images, 3] is the ``image_grid_thw`` of the image processor, and ``config`` the
        ``vision_config`` of the model. Returns tensors for the device of the model, and arguments
        that stay on the CPU. Both are empty in families without such inputs.
        """
        return {}, {}

    def token_id(self, token: str) -> int:
        """Return the id of a token, or raise ValueError if the tokenizer has no such token."""
        found: int | None = self.tokenizer.convert_tokens_to_ids(token)
        if found is None or self.tokenizer.convert_ids_to_tokens(found) != token:  # <unk>
            raise ValueError(
                f"model.family: the tokenizer of {self.tokenizer.name_or_path} has no {token}, so "
                f"it is not a {self.name} checkpoint; correct model.family."
            )
        return found

    def prompts(
        self, texts: Sequence[str], images: Sequence[Shown], where: Sequence[str] | None = None
    ) -> Prompts:
        """Tokenise a batch of questions and preprocess their images.

        ``images`` and ``where`` have one entry per question. ``where`` is the file and line of each
        question, for error messages.
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
        """Return the token ids of the prompt for a question and its image or images."""
        own = listed(image)
        if own:
            check_image_count(text, len(own))
        return self.question(text, sum(self.image_tokens(*each.size) for each in own))

    def frame(self, width: int, height: int) -> Frame:
        """Return the frame of an image: how it is resized, and its coordinate format."""
        return Frame(width, height, self.resize.view(width, height), self.coordinates)

    def resize_image(self, image: Image.Image, size: tuple[int, int] | None = None) -> Image.Image:
        """Resize an image to the same size and with the same filter as the image processor.

        ``size`` is the original size, if the image was downscaled when it was loaded.
        """
        view = self.resize.view(*(size or image.size))
        return image.resize((view.width_px, view.height_px), self.image_processor.resample)

    def resize_image_once(
        self, image: Image.Image, size: tuple[int, int] | None = None
    ) -> Image.Image:
        """Resize an image, unless the image processor would resize the result to another size.

        The image processor computes the same pixels from the result as from the original. (With
        Qwen, a second resize may change the size if ``min_pixels`` is close to ``max_pixels``. Then
        return the image unchanged or, if it was downscaled at loading, in its original ``size``.)
        """
        size = size or image.size
        resized = self.resize_image(image, size)

        def is_seen_alike(shown: Image.Image) -> bool:
            view = self.resize.view(*shown.size)
            return (view.width_px, view.height_px) == resized.size

        if is_seen_alike(resized):
            return resized
        return image if image.size == size or is_seen_alike(image) else image.resize(size)

    def squash_to_square(self) -> None:
        """Set ``resize`` and ``tokens_per_image`` for an image processor that squashes to a square.

        Raises ValueError if the checkpoint's image processor crops images, does not resize to a
        square, or does not set ``image_seq_length``, the number of image tokens.
        """
        names = ["do_center_crop", "image_seq_length"]
        size, side = dict(self.image_processor.size), self.image_processor.size["height"]
        found = {"size": size} | {n: getattr(self.image_processor, n, None) for n in names}
        is_square = side is not None and side == size.get("width")
        if found["do_center_crop"] or not (is_square and found["image_seq_length"]):
            described = ", ".join(f"{name} {value}" for name, value in found.items())
            raise ValueError(
                f"model.family: the image processor of {self.tokenizer.name_or_path} has "
                f"{described}, and {self.name} needs a square without a crop "
                "and a number; correct model.family."
            )
        self.resize = Resize(kind="squash", side=side)
        self.tokens_per_image = getattr(self.image_processor, "image_seq_length", 0)

    def image_tokens(self, width: int, height: int) -> int:
        """Return the number of placeholder tokens for an image of ``width`` x ``height`` pixels."""
        return self.tokens_per_image

    def images(self, shown: Sequence[Image.Image]) -> dict[str, Tensor]:
        """Apply the image processor to one or more images, and return its outputs as a batch."""
        features = self.image_processor(images=list(shown), return_tensors="pt")
        return {name: features[name] for name in self.image_inputs}

    def num_image_features(self, images: dict[str, Tensor], config: Any) -> int | None:
        """Return the number of features of preprocessed images; None if it is not known."""
        return None

    @classmethod
    def load(cls, source: str, model: ModelConfig) -> Self:
        """Load the tokenizer and image processor of ``source``, a hub name or a folder.

        ``coordinates.tokens`` adds location tokens to the tokenizer. Raises ValueError if the
        checkpoint belongs to another family, or was trained with another image resizing or
        coordinate format than the config sets.
        """
        check_model_type(cls.model_class, cls.name, source, model)
        tokenizer = cls.load_tokenizer(source, model)
        tokenizer = with_digits(tokenizer, model.digits, source, model.revision)
        family = cls(tokenizer, cls.load_image_processor(source, model), model)
        if family.coordinates.tokens is not None:
            tokenizer.add_tokens(
                [AddedToken(token, normalized=False) for token in family.location_tokens()]
            )
        check_saved_frame(source, family.resize, family.coordinates, revision=model.revision)
        if model.image_size:  # its values replace those of the image processor in ``source``
            own = replace(model, image_size={})
            resize = cls(tokenizer, cls.load_image_processor(source, own), own).resize
            where = f"the image processor in {source}"
            check_saved_frame(source, resize, family.coordinates, where, revision=model.revision)
        if cls.takes_images:
            family.processor = family.make_processor(source, model)
        if cls.encoder_decoder:
            settings = cls.load_config(source, model).get_text_config()
            start = getattr(settings, "decoder_start_token_id", None)
            if start is None:
                raise ValueError(
                    f"model.name: the config.json of {source!r} has no decoder_start_token_id; add "
                    "it (0 for T5)."
                )
            family.decoder_start_id = start
        return family

    def save(self, folder: Path) -> None:
        """Save the tokenizer, the processors and ``frame.json`` (resizing, coordinate format)."""
        apart = [p for p in (self.tokenizer, self.image_processor) if p is not None]
        for part in apart if self.processor is None else [self.processor]:
            part.save_pretrained(folder)
        save_frame(folder, self.resize, self.coordinates)

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
            # transformers and tokenizers raise these types for a damaged file; remote code may, too
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
    def load_image_processor(cls, source: str, model: ModelConfig) -> Any:
        """Load the image processor and apply ``model.image_size``; None in text-only families."""
        return cls.image_processor_class.from_pretrained(source, revision=model.revision)

    def make_processor(self, source: str, model: ModelConfig) -> ProcessorMixin | None:
        """Return a transformers processor with this tokenizer and this image processor.

        The processor is saved with every model, so that other tools can load it with
        ``AutoProcessor``. For None, only the tokenizer and the image processor are saved.
        """
        if self.processor_class is None:
            return None
        return self.processor_class(self.image_processor, self.tokenizer)

    @classmethod
    def make_tiny(cls, folder: Path, seed: int) -> None:
        """Save a small, randomly initialised model; raise ValueError if the family has none."""
        raise ValueError(
            f"model.name: {cls.name} has no tiny model; set the name of a checkpoint, or "
            "model.family to qwen2_vl, qwen2_5_vl, qwen3_vl, causal_lm or t5."
        )

    def load_model(self, source: str, model: ModelConfig) -> Any:
        """Load all weights of a checkpoint from safetensors, or the shard of this rank."""
        if self.takes_images:
            check_image_token(self.image_id, self.load_config(source, model), source)
        ranks = self.tensor_parallel
        return load_weights(self.model_class, self.name, source, model, ranks=ranks)
