"""Convert questions and answers to token ids, and generated token ids to text."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

from PIL import Image
from torch import Tensor

from mm_numeric.answers import IMAGE, Mark
from mm_numeric.families.chat_template import default_template, render
from mm_numeric.geometry.coordinates import Coordinates
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
    """More inputs with one number per token of ``ids``, such as ``token_type_ids``. They are 0 for
    the tokens of answers."""


Shown = Image.Image | Sequence[Image.Image] | None
"""The images of a question: none, one, or several of one size."""


def listed(shown: Shown) -> list[Image.Image]:
    """Return the images of a question as a list."""
    if shown is None:
        return []
    return [shown] if isinstance(shown, Image.Image) else list(shown)


def image_count(text: str) -> int:
    """Return the number of images of a question with images: the number of ``IMAGE``, or 1."""
    return max(text.count(IMAGE), 1)


def check_image_count(text: str, count: int) -> None:
    """Raise ValueError if a question with ``count`` images has another number of places."""
    if image_count(text) != count:
        raise ValueError(
            f"the question {text!r:.60} has {image_count(text)} places for images, and {count} "
            "images; write mm_numeric.answers.IMAGE once for each image."
        )


def message_content(text: str, images: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the content of a chat message: each image in place of an ``IMAGE`` of the text.

    A text without ``IMAGE`` follows its image. Without images, the text is returned unchanged.
    """
    if not images:
        return [{"type": "text", "text": text}]
    check_image_count(text, len(images))
    first, *rest = text.split(IMAGE) if IMAGE in text else ("", text)
    content: list[Mapping[str, Any]] = [{"type": "text", "text": first}] if first else []
    for image, piece in zip(images, rest, strict=True):
        content.append(image)
        if piece:
            content.append({"type": "text", "text": piece})
    return content


@dataclass(frozen=True)
class Tokens:
    """The token ids of an answer, and the start and end of each token in the answer's text."""

    ids: list[int]
    """Token ids of the answer and the end token."""

    offsets: list[tuple[int, int]]
    """Start and end character of each token in the text; (0, 0) for the end token."""


class Prompting(ABC):
    """The text methods of a model family: build prompts, tokenise answers, decode output."""

    name: ClassVar[str]
    """Name of the family as its authors write it, for error messages: ``Qwen2-VL``."""

    takes_several_images: ClassVar[bool]
    encoder_decoder: ClassVar[bool] = False
    """True for encoder-decoder models, such as T5."""

    turn: ClassVar[str] = ""
    """Text that ends an answer when it is decoded, such as ``###``; empty if only tokens do."""

    lead: str = ""
    """Text between a prompt and its answer, such as the space after ``ASSISTANT:``."""

    template_options: Mapping[str, Any] = {}
    """Arguments of the chat template, which a server has to use, too."""

    tokenizer: Any
    coordinates: Coordinates

    stop_ids: list[int]
    """Ids of the tokens that end generation. The first one is the end token of training answers."""

    pad_id: int

    image_id: int
    """Id of the placeholder token of an image feature, in families that accept images."""

    decoder_start_id: int
    """Id of the first input token of the decoder, in encoder-decoder families."""

    @cached_property
    def _questions(self) -> dict[tuple[str, bool], list[int]]:  # cache of tokenize_question
        return {}

    def question(self, text: str, image_tokens: int) -> list[int]:
        """Return a question's token ids, with placeholder tokens for its images.

        ``image_tokens`` is the number of placeholders of all images, which have equal numbers.
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
        """Apply the chat template to a question and the generation prompt, or to its answer."""
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
        variables = {"tools": None, "documents": None, **self.tokenizer.special_tokens_map}
        variables |= {"add_generation_prompt": add_generation_prompt, **self.template_options}
        try:
            if text := render(self.chat_template, {"messages": turns, **variables}):
                return text
            raise ValueError("it writes nothing")
        except ValueError as error:
            # It adds the list of a message's parts to a text.
            is_text = "TypeError" in str(error) and isinstance(turns[0]["content"], list)
            takes = ", because it takes texts alone" * is_text
            raise ValueError(
                f"model.name: the chat template of {self.tokenizer.name_or_path!r} cannot be used "
                f"for prompts of {self.name}{takes} ({error}); copy chat_template.jinja from "
                "another checkpoint of this family."
            ) from error

    def text_around_answer(self) -> tuple[str, str]:
        """Return the text that the chat template writes between prompt and answer, and after it."""
        prompt = self.chat_prompt(_QUESTION, False)
        whole = self.chat_prompt(_QUESTION, False, _ANSWER)
        before, found, after = whole.rpartition(_ANSWER)
        if _QUESTION not in prompt or not found or "'text'" in whole:  # a list of parts as text
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

    def with_known_tokens(self, text: str, answer: Tokens) -> Tokens:
        """Return the tokens of an answer, or raise ValueError if one of them is ``<unk>``."""
        if self.tokenizer.unk_token_id in answer.ids:
            start, end = answer.offsets[answer.ids.index(self.tokenizer.unk_token_id)]
            raise ValueError(
                f"the answer {text!r} holds {text[start:end]!r}, for which the tokenizer of "
                f"{self.tokenizer.name_or_path!r} has no token; write the answer without it."
            )
        return answer

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
        """Return the number tokens: digits and, if coordinates use them, tokens like <loc0012>.

        A token that is a point of a grid has no value: the difference of the numbers of two cells
        is not their distance.
        """
        digits = NumberVocabulary.from_tokenizer(self.tokenizer)
        bins = self.coordinates.bins
        if bins is None or self.coordinates.text.columns:
            return digits
        tokens = [self.coordinates.text.bin(level) for level in range(bins)]
        return NumberVocabulary.from_tokens(self.tokenizer, tokens) | digits

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

        Args:
            input_ids: [b, t] token ids of b samples: a prompt and, in training, its answer.
            attention_mask: [b, t] 1 at tokens, 0 at padding.
            answered: [b, t] True at the tokens of an answer, including its end token; else False.
            images: Output of the image processor (``Prompts.images``).
        """
        return {"input_ids": input_ids, "attention_mask": attention_mask, **images}

    def token_id(self, token: str) -> int:
        """Return the id of a token, or raise ValueError if the tokenizer has no such token."""
        found: int | None = self.tokenizer.convert_tokens_to_ids(token)
        if found is None or self.tokenizer.convert_ids_to_tokens(found) != token:  # <unk>
            raise ValueError(
                f"model.family: the tokenizer of {self.tokenizer.name_or_path} has no {token}, so "
                f"it is not a {self.name} checkpoint; correct model.family."
            )
        return found


def message(role: str, text: str, with_image: bool = False, shown: Shown = None) -> dict[str, Any]:
    """Return a message of a conversation; its images may follow later."""
    images: list[dict[str, Any]] = [{"type": "image"}] * (with_image * image_count(text))
    if shown is not None:
        images = [{"type": "image", "image": image} for image in listed(shown)]
    return {"role": role, "content": message_content(text, images)}
