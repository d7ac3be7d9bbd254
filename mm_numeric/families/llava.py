r"""The LLaVA-1.5 model family.

Image         padded to a square with the mean colour, then resized to the size of the image
              processor (336 pixels); one token per patch. The image processor of transformers crops
              by default; here it pads
Prompt        the checkpoint's chat template. If it has none, the prompt of the original code, with
              its system prompt (original layout), or llava-hf's: ``USER: <image>\n... ASSISTANT:``
Answer        a space, the text, then ``</s>``
Coordinates   relative to the padded square, from 0 to 1, three decimals: ``[x1, y1, x2, y2]``

A checkpoint can have the file layout of transformers or of the original LLaVA code (see
``mm_numeric.families.llava_layout``). In the original layout the tokenizer has no image token, and
``<unk>`` is the image placeholder, because a new token would need another embedding row. Text never
contains ``<unk>``: unknown characters are tokenised as bytes.
"""

import json
from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar

import torch
from PIL import Image
from torch import Tensor
from transformers import (
    CONFIG_MAPPING,
    MODEL_MAPPING,
    LlamaTokenizer,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaImageProcessorPil,
    LlavaProcessor,
)
from transformers.utils import has_file

from mm_numeric.compat import tokenizer_settings
from mm_numeric.config.schema import ModelConfig
from mm_numeric.families.chat_template import default_template
from mm_numeric.families.family import Family
from mm_numeric.families.llava_layout import OriginalLayout, read_raw_config
from mm_numeric.families.model_files import processor_template
from mm_numeric.geometry.frames import Resize

_IMAGE = "<image>"
"""The image token in chat templates, unless the tokenizer has another one."""


def turns_template(system: str, roles: Mapping[str, str], after: Mapping[str, str]) -> str:
    """Return a Jinja chat template that writes ``system``, then the messages.

    ``roles`` and ``after`` map a role to the text before and after its messages. The template is
    saved with the tokenizer, so that other tools write the same prompts.
    """
    return (
        f"{{{{ {system!r} }}}}"
        "{% for message in messages %}"
        f"{{{{ {dict(roles)!r}[message['role']] }}}}"
        "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
        "{% for part in message['content'] %}"
        "{% if part['type'] == 'image' %}"
        f"{_IMAGE}{{{{ '\\n' }}}}"
        "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}"
        f"{{{{ {dict(after)!r}[message['role']] }}}}"
        "{% endfor %}"
        f"{{% if add_generation_prompt %}}{roles['assistant'].rstrip()}{{% endif %}}"
    )


_LLAVA = {"user": "USER: ", "assistant": "ASSISTANT: "}, {"user": " ", "assistant": "</s>"}

LLAVA_HF = turns_template("", *_LLAVA)
"""Prompts of llava-hf, for a checkpoint in the layout of transformers without a template."""

LLAVA_V1 = turns_template(
    "A chat between a curious user and an artificial intelligence assistant. The assistant gives "
    "helpful, detailed, and polite answers to the user's questions. ",
    *_LLAVA,
)
"""Prompts with which LLaVA-1.5 was trained (``preprocess_v1``, ``conv_vicuna_v1`` in its code)."""


class Llava(Family):
    """LLaVA-1.5 models, such as llava-hf/llava-1.5-7b-hf and liuhaotian/llava-v1.5-7b."""

    name = "LLaVA-1.5"
    model_class: ClassVar[Any] = LlavaForConditionalGeneration
    default_coordinates = "llava"

    projector_type: ClassVar[str] = "mlp2x_gelu"
    """Required value of ``mm_projector_type`` in config.json of the original layout."""

    projector: ClassVar[Mapping[str, str]] = {"0": "linear_1", "2": "linear_2"}
    """Maps the projector's layer names in the original layout to those in ``model_class``."""

    def __init__(self, tokenizer: Any, image_processor: Any, model: ModelConfig) -> None:
        super().__init__(tokenizer, image_processor, model)
        self.image_token = image_token(tokenizer)
        self.image_id = self.token_id(self.image_token)
        self.stop_ids = [tokenizer.eos_token_id]
        pad_id = tokenizer.pad_token_id
        # A padding token must not be the image token.
        self.pad_id = self.stop_ids[0] if pad_id in (None, self.image_id) else pad_id
        self.resize = Resize(kind="letterbox", side=image_processor.size["height"])
        self.tokens_per_image = int(image_processor.image_tokens)
        if not tokenizer.tokenize("(")[0].startswith("▁"):  # the tokenizer writes no space itself
            self.lead, _ = self.text_around_answer()

    def prompt_text(self, text: str, with_image: bool) -> str:
        """Return the text of the prompt for a question, without the BOS token."""
        return self.chat_prompt(text, with_image).removeprefix(self.tokenizer.bos_token or "")

    def tokenize_question(self, text: str, with_image: bool) -> list[int]:
        """Return a question's token ids, with one placeholder token in place of the image."""
        ids: list[int] = self.tokenizer(self.prompt_text(text, with_image))["input_ids"]
        self.check_image_tokens(text, ids, int(with_image))
        return ids

    def resize_image(self, image: Image.Image, size: tuple[int, int] | None = None) -> Image.Image:
        """Pad an image to a square and resize it, like the image processor."""
        width, height = image.size
        side = max(width, height)
        colour = tuple(int(mean * 255) for mean in self.image_processor.image_mean)
        square = Image.new("RGB", (side, side), colour)
        square.paste(image, ((side - width) // 2, (side - height) // 2))
        return super().resize_image(square)

    def num_image_features(self, images: dict[str, Tensor], config: Any) -> int:
        """Return the total number of image features that the model computes for a batch."""
        count, _, height, width = images["pixel_values"].shape
        return count * _features_per_image(height, width, config)

    @classmethod
    def load_tokenizer(cls, source: str, model: ModelConfig) -> Any:
        """Load the tokenizer of a checkpoint, and set its chat template if it has none."""
        tokenizer = cls._plain_tokenizer(source, model)
        own = default_template(tokenizer.chat_template) or processor_template(
            source, model.revision
        )
        template = cls.template(own, source, model)
        shown = image_token(tokenizer)
        if shown != _IMAGE and tokenizer.tokenize(f"{shown}\n")[1:] != tokenizer.tokenize("\n"):
            # LLaVA's code tokenises the text after an image alone: it begins with a space.
            shown += " "
        tokenizer.chat_template = template.replace(_IMAGE, shown)
        return tokenizer

    @classmethod
    def template(cls, own: str | None, source: str, model: ModelConfig) -> str:
        """Return the chat template of a checkpoint whose tokenizer has the template ``own``."""
        if own:
            return own
        return LLAVA_HF if OriginalLayout.find(source, model.revision) is None else LLAVA_V1

    @classmethod
    def _plain_tokenizer(cls, source: str, model: ModelConfig) -> Any:
        if has_file(source, "tokenizer.json", revision=model.revision):
            return super().load_tokenizer(source, model)
        if not has_file(source, "tokenizer.model", revision=model.revision):
            raise ValueError(
                f"model.name: {source!r} has neither a tokenizer.json nor a tokenizer.model; set "
                "the folder of a complete checkpoint."
            )
        # From a tokenizer.model of type `llava`, AutoTokenizer makes a tokenizer that does not add
        # LLaMA's space before a text. Its tokens would differ from those of the original training.
        settings = tokenizer_settings(source, model.revision)
        add_bos = settings.get("add_bos_token", True)  # LLaMA's default
        return LlamaTokenizer.from_pretrained(
            source, revision=model.revision, add_bos_token=add_bos
        )

    @classmethod
    def load_image_processor(cls, source: str, model: ModelConfig) -> Any:
        """Load an image processor that pads images and resizes them to its own size.

        Its attribute ``image_tokens`` is the number of image features per image.
        """
        config = cls.load_config(source, model)
        original = OriginalLayout.find(source, model.revision)
        source = source if original is None else str(original.tower)
        processor = LlavaImageProcessorPil.from_pretrained(source, revision=model.revision)
        side = _side(processor)
        changes = {
            "do_pad": True,
            "do_center_crop": False,
            "size": {"height": side, "width": side},
            "crop_size": {"height": side, "width": side},
            "image_tokens": _features_per_image(side, side, config),
        }
        return LlavaImageProcessorPil.from_dict({**processor.to_dict(), **changes})

    @classmethod
    def load_config(cls, source: str, model: ModelConfig) -> LlavaConfig:
        """Load the configuration of a checkpoint in the file layout of LLaVA or of transformers."""
        original = OriginalLayout.find(source, model.revision)
        if original is not None:
            return original.config()
        # Yi-VL and LLaVA share LlavaConfig; transformers would drop Yi-VL's other weights silently.
        raw, wanted = read_raw_config(source, model.revision), cls.model_class.__name__
        found = raw.get("architectures") or [raw.get("model_type")]
        if wanted not in found:
            raise ValueError(
                f"model.name: {source!r} is a checkpoint of {found[0]}, and {cls.name} is "
                f"{wanted}; correct model.family."
            )
        return LlavaConfig.from_dict(raw)

    def make_processor(self, source: str, model: ModelConfig) -> LlavaProcessor:
        """Return a LlavaProcessor that writes one image token per image feature."""
        config = self.load_config(source, model)
        patch, strategy = config.vision_config.patch_size, config.vision_feature_select_strategy
        # The processor counts patches, adds this number, and subtracts 1 for "default".
        patches = (self.resize.side // patch) ** 2
        return LlavaProcessor(
            self.image_processor,
            self.tokenizer,
            patch_size=patch,
            vision_feature_select_strategy=strategy,
            num_additional_image_tokens=self.tokens_per_image - patches + (strategy == "default"),
            image_token=self.image_token,
            chat_template=self.tokenizer.chat_template,
        )

    def load_model(self, source: str, model: ModelConfig) -> Any:
        """Load safetensors weights, saved in the file layout of transformers or of LLaVA's code."""
        original = OriginalLayout.find(source, model.revision)
        if original is None:
            return super().load_model(source, model)
        layers = self.projector_type, self.projector
        return original.load_model(self.model_class, *layers, self.image_id, model)


def image_token(tokenizer: Any) -> str:
    """Return the placeholder token of an image feature in LLaVA's prompts."""
    vocabulary = tokenizer.get_vocab()
    return "<unk>" if "<unk>" in vocabulary and _IMAGE not in vocabulary else _IMAGE


def _side(processor: Any) -> int:
    size = processor.crop_size if processor.do_center_crop else processor.size
    return int(size.get("height") or size["shortest_edge"])


def _features_per_image(height: int, width: int, config: LlavaConfig) -> int:
    """Return how many features the model gets for one resized image."""
    tokens = _tower_tokens(height, width, config.vision_config.to_json_string())
    return tokens - (config.vision_feature_select_strategy == "default")


@cache  # check-data asks for each row
def _tower_tokens(height: int, width: int, settings: str) -> int:
    """Return how many tokens a vision tower computes for one resized image.

    The number cannot be derived from the image size alone, because towers differ in class and
    register tokens. The tower is built without weights, in up to half a second.
    """
    values = json.loads(settings)
    kind = CONFIG_MAPPING[values["model_type"]]
    with torch.device("meta"):
        tower = MODEL_MAPPING[kind](kind.from_dict(values))
        try:
            features = tower(torch.empty(1, 3, height, width)).last_hidden_state
        except ValueError as error:
            raise ValueError(
                f"model.name: the image processor makes images of {width} x {height} pixels, and "
                f"the vision tower rejects them: {error} Correct preprocessor_config.json."
            ) from error
    return int(features.shape[1])
