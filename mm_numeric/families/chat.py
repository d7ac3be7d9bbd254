r"""The family ``chat``: any image-text model of transformers, with the checkpoint's own processor.

Image         resized and cut into tiles by the processor, which also counts its tokens;
              ``model.image_size`` changes settings of its image processor, such as
              ``max_patches``. Coordinates are relative to the original image, because this family
              does not know the size of the resized image
Prompt        the processor's chat template, without thinking
Answer        the text, then the token that the chat template writes after it
Coordinates   the format that the model's authors published (``mm_numeric.geometry.conventions``),
              or from 0 to 1000

Families with a module of their own, such as Qwen2.5-VL, also support coordinates in pixels of the
resized image. For them, ``check-data`` also checks the number of image features.
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property
from inspect import signature
from typing import Any, ClassVar

import torch
from PIL import Image
from torch import Tensor
from transformers import AutoModelForImageTextToText, AutoProcessor, ProcessorMixin
from transformers.utils import is_torchvision_available

from mm_numeric.compat import (
    concrete_classes,
    fixed_image_settings,
    num_image_tokens,
    video_settings_alone,
)
from mm_numeric.config.schema import ModelConfig
from mm_numeric.families.chat_template import Shown, default_template, image_count, message
from mm_numeric.families.family import Family, Prompts
from mm_numeric.families.model_files import load_weights
from mm_numeric.geometry.conventions import convention_of
from mm_numeric.geometry.frames import Resize

_SIDE_PX = 224  # width and height of the first test image of ``_uncounted``
_PROJECTORS = (
    r"((multi_modal|mm)_)?projector\.|connector\.|aligner\.|embed_vision\.|image_newline|"
    r"(visual\.)?(merger|deepstack_merger_list)\.|resampler_model\.|vision_projection\.|"
    r"(layerwise|spatial)_projectors\."
)
_INNER = r"(model\.)?"  # in Llama 4, only parameters of the language model have this prefix
_LANGUAGE = rf"{_INNER}(language_model|text_model)\.(?!lm_head\.){_INNER}"


class Chat(Family):
    """Any model of ``AutoModelForImageTextToText`` that has a processor and a chat template."""

    name = "chat"
    takes_several_images = True
    dtype = torch.float32
    """dtype of image tensors. ``load_model`` sets the model's dtype, because some models do not
    convert image tensors."""

    model_class: ClassVar[Any] = AutoModelForImageTextToText
    module_patterns: ClassVar[Mapping[str, str]] = {
        "vision": rf"{_INNER}(?!model\.|(language|text)_model\.|lm_head\.|{_PROJECTORS})",
        "projector": rf"{_INNER}({_PROJECTORS})",
        "embeddings": rf"{_LANGUAGE}embed_tokens\.",
        "language": rf"{_LANGUAGE}(?!model\.|embed_tokens\.)",
        "head": r"(language_model\.)?lm_head\.",
    }
    lora_targets = (  # without the routers of mixture-of-experts layers
        rf"{_LANGUAGE}layers\.\d+\.(self_attn|linear_attn|conv|mlp|feed_forward)\."
        r"(\w+\.)?\w+(?<!router)(?<!gate)"
    )

    def __init__(self, tokenizer: Any, image_processor: Any, model: ModelConfig) -> None:
        processor = image_processor  # the whole processor; see load_image_processor
        if "cross_attention_mask" in processor.model_input_names:
            raise ValueError(
                f"model.name: a {type(processor).__name__} belongs to a model that reads images by "
                "cross-attention, and family chat trains models that read them as tokens of the "
                "prompt; choose another model."
            )
        if model.coordinates is None:
            model = replace(model, coordinates=convention_of(processor).preset)
        self.image_settings = _image_settings(processor)
        super().__init__(tokenizer, processor.image_processor, model)
        if self.coordinates.space == "resized" and self.coordinates.max_value is None:
            raise ValueError(
                "model.coordinates: they are pixels of the resized image, which family chat does "
                "not know; set pixels_original, relative_1000 or another preset."
            )
        processor.tokenizer = tokenizer
        self.processor: Any = processor
        self.resize = Resize(kind="none")
        self.template = default_template(processor.chat_template or tokenizer.chat_template) or ""
        image_token = getattr(processor, "image_token", None)
        if not self.template or image_token is None or tokenizer.pad_token_id is None:
            raise ValueError(
                f"model.name: {tokenizer.name_or_path} has no chat template, no padding token, or "
                f"no image token in its {type(processor).__name__}, and family chat needs all "
                "three; set a checkpoint with them, or another model.family."
            )
        if "enable_thinking" in self.template:  # the answer directly follows the prompt
            self.template_options = {"enable_thinking": False}
        if not tokenizer.chat_template:  # in older checkpoints, only the processor has one
            tokenizer.chat_template = self.template
        self.image_token: str = image_token
        self.image_id = self.token_id(image_token)
        self.pad_id = tokenizer.pad_token_id
        self.lead, end_id = self._around_answer()
        ends = (end_id, tokenizer.eos_token_id)
        self.stop_ids = list(dict.fromkeys(token for token in ends if token is not None))

    @property
    def chat_template(self) -> str:
        """The chat template of the processor, or else of the tokenizer."""
        return self.template

    def tokenize_question(self, text: str, with_image: bool) -> list[int]:
        """Return a question's token ids, with one placeholder token in place of each image."""
        prompt, bos = self.chat_prompt(text, with_image), self.tokenizer.bos_token
        has_bos = bos is not None and prompt.startswith(bos)
        ids: list[int] = self.tokenizer(prompt, add_special_tokens=not has_bos)["input_ids"]
        self.check_image_tokens(text, ids, with_image * image_count(text))
        return ids

    def prompts(
        self, texts: Sequence[str], images: Sequence[Shown], where: Sequence[str] | None = None
    ) -> Prompts:
        """Apply the processor to a batch of questions and their images."""
        for i, text in enumerate(texts):
            if self.image_token in text:
                place = f"{where[i]}: " if where else ""
                raise ValueError(
                    f"{place}the question {text!r:.80} has {self.image_token}; remove it."
                )
        ids: list[list[int]] = [[] for _ in texts]
        aligned: dict[str, list[list[int]]] = {}
        tensors: dict[str, Tensor] = {}
        for with_image in (True, False):  # processors do not accept both in one batch
            rows = [i for i, image in enumerate(images) if (image is not None) is with_image]
            if not rows:
                continue
            encoded = self._encode([message("user", texts[i], with_image, images[i]) for i in rows])
            masks = encoded.pop("attention_mask").bool()
            for name, tensor in encoded.items():
                if name != "input_ids" and not name.endswith("token_type_ids"):
                    is_float = tensor.is_floating_point()
                    tensors[name] = tensor.to(self.dtype) if is_float else tensor
                    continue
                found = ids if name == "input_ids" else aligned.setdefault(name, [[] for _ in ids])
                for i, values, mask in zip(rows, tensor, masks, strict=True):
                    found[i] = values[mask].tolist()
        for values in aligned.values():
            values[:] = [row or [0] * len(i) for row, i in zip(values, ids, strict=True)]
        return Prompts(ids=ids, images=tensors, aligned=aligned)

    def prompt_ids(self, text: str, image: Shown) -> list[int]:
        """Return the processor's token ids, including the tokens between and around tiles."""
        return self.prompts([text], [image]).ids[0]

    def _encode(self, turns: list[dict[str, Any]]) -> dict[str, Tensor]:
        """Apply the processor to one user message per row, and return padded tensors."""
        prompts = [self.apply_template([turn], add_generation_prompt=True) for turn in turns]
        try:
            encoded: dict[str, Tensor] = self.processor.apply_chat_template(
                [[{**turn, "prompt": text}] for turn, text in zip(turns, prompts, strict=True)],
                chat_template="{{ messages[0]['prompt'] }}",  # already rendered by ``render``
                tokenize=True,
                return_dict=True,
                return_tensors="pt",
                processor_kwargs={"padding": True},
            )
        except ValueError as error:
            if "Unable to convert output" not in str(error) or len(turns) == 1:
                raise
            raise ValueError(
                f"{type(self.processor).__name__} cannot put images with different numbers of "
                "tiles into one batch; set trainer.per_device_train_batch_size and "
                "predict.batch_size to 1."
            ) from error
        return encoded

    def _around_answer(self) -> tuple[str, int | None]:
        """Return the text between a prompt and its answer, and the id of the end token.

        Most templates have no such text; Idefics3's has a space. If the template writes no special
        token after an answer, the end token is the tokenizer's ``eos_token``.
        """
        lead, after = self.text_around_answer()
        added = self.tokenizer.added_tokens_decoder
        for token in self.tokenizer(after, add_special_tokens=False)["input_ids"]:
            if token in added and added[token].special:
                return lead, token
        return lead, self.tokenizer.eos_token_id

    def image_tokens(self, width: int, height: int) -> int:
        """Return the number of tokens of an image, including those between and around its tiles."""
        count, uncounted = num_image_tokens(self.processor, width, height), self._uncounted
        if count is None or uncounted is None:
            return self._expanded(width, height)
        return count + uncounted

    @cached_property
    def _uncounted(self) -> int | None:
        """Number of an image's tokens that the processor's own count leaves out.

        For Gemma 3, these are line breaks. None if the processor cannot count tokens, or if the
        number grows with the image's height (Apertus 1.5 has a token at the end of each row).
        """
        found = set[int]()
        for height in (_SIDE_PX, 2 * _SIDE_PX):
            count = num_image_tokens(self.processor, _SIDE_PX, height)
            if count is None:
                return None
            found.add(self._expanded(_SIDE_PX, height) - count)
        return found.pop() if len(found) == 1 else None

    def _expanded(self, width: int, height: int) -> int:
        prompt = self.prompts(["?"], [Image.new("RGB", (width, height))])
        return len(prompt.ids[0]) - len(self.question("?", 1)) + 1

    @classmethod
    def load_image_processor(cls, source: str, model: ModelConfig) -> ProcessorMixin:
        """Load the processor. Without torchvision, load only settings of its video processor."""
        with nullcontext() if is_torchvision_available() else video_settings_alone():
            found = AutoProcessor.from_pretrained(
                source, revision=model.revision, trust_remote_code=model.trust_remote_code
            )
        if not isinstance(found, ProcessorMixin) or not hasattr(found, "image_processor"):
            raise ValueError(
                f"model.name: {source!r} has no processor with an image processor, and family chat "
                "needs one; correct model.family."
            )
        for name in model.image_size.keys() & _image_settings(found):
            setattr(found.image_processor, name, model.image_size[name])
        return found

    def make_processor(self, source: str, model: ModelConfig) -> ProcessorMixin:
        """Return the processor of the checkpoint."""
        return self.processor

    def load_model(self, source: str, model: ModelConfig) -> Any:
        """Load all weights; raise ValueError unless the model predicts the next token."""
        config = self.load_config(source, model)
        classes = concrete_classes(self.model_class)
        # Not `classes or {}`: its truth value imports the config of every image-text model.
        kind = None if classes is None else classes.get(type(config), None)
        if kind is None:
            raise ValueError(
                f"model.name: transformers has no image-text model for the {type(config).__name__} "
                f"of {source!r}; correct model.name or model.family."
            )
        if config.is_encoder_decoder or "labels" not in signature(kind.forward).parameters:
            raise ValueError(
                f"model.name: {source!r} is a {kind.__name__}, and family chat trains models that "
                "predict the next token after a prompt; choose another model."
            )
        loaded = load_weights(
            self.model_class, self.name, source, model, ranks=self.tensor_parallel
        )
        self.dtype = loaded.dtype
        return loaded


def _image_settings(processor: Any) -> tuple[str, ...]:
    """Return the names of the image processor's int and bool settings that a config can change."""
    saved = processor.image_processor.to_dict()  # another setting would be lost with the weights
    fixed = fixed_image_settings(processor)
    return tuple(n for n in sorted(saved) if n not in fixed and type(saved[n]) in (int, bool))
