"""Checkpoints in the layout of the LLaVA code (LLaVA-1.5, Yi-VL): read into transformers' classes.

Such a folder has one flat config.json, which names a vision tower: a folder inside (Yi-VL) or a hub
name (LLaVA-1.5). Its weights are those of a language model with two guests, ``model.mm_projector``
and ``model.vision_tower``; a checkpoint without the latter has the tower's weights in the tower's
own folder. Every weight is used once, none is left over and none is missing, or it is an error.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from huggingface_hub import snapshot_download
from safetensors.torch import load_file
from torch import Tensor
from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, PreTrainedConfig

from mm_numeric.config.schema import ModelConfig
from mm_numeric.families.loading import quantization, refuse_gaps

_LANGUAGE_SETTINGS = (*LlamaConfig.__annotations__, "rope_theta", "rope_scaling")
"""What the config.json says of the language model; the last two are older than transformers 5."""

_TOWER = "model.vision_tower.vision_tower."
"""What the names of the tower's weights begin with in the checkpoint; in its own folder nothing."""

_NAMES = {
    r"lm_head\.": "lm_head.",
    r"model\.(embed_tokens|layers|norm)\.": r"model.language_model.\1.",
    rf"{re.escape(_TOWER)}(vision_model\.)?": "model.vision_tower.",
}
"""Beginnings of names in the original layout, and what the class of transformers has instead."""

_COMPUTED = re.compile(r".*\.(rotary_emb\.inv_freq|embeddings\.position_ids)")
"""What older versions saved beside what is learned."""

_READS_TEXT = re.compile(r"(text_model|text_projection|visual_projection)\..*|logit_scale")
"""The other half of CLIP, in the folder of a tower."""


@dataclass(frozen=True)
class OriginalLayout:
    """One checkpoint."""

    source: str
    """What it was found by, for errors."""

    folder: Path
    tower: Path
    """The folder of the vision tower."""

    raw: Mapping[str, Any]
    """Its config.json."""

    @classmethod
    def find(cls, source: str, revision: str) -> Self | None:
        """Return the checkpoint of a hub name or a folder if it has this layout.

        Raises:
            ValueError: If its vision tower is nowhere.
        """
        raw = read_raw_config(source, revision)
        if "mm_vision_tower" not in raw:
            return None
        folder = _fetched(source, revision)
        name = str(raw["mm_vision_tower"])
        towers = (folder / name, Path(name))
        tower = next((path for path in towers if (path / "config.json").is_file()), None)
        if tower is None:
            try:
                tower = _fetched(name, "main")
            except (OSError, ValueError) as error:  # a path is no hub name
                raise ValueError(
                    f"model.name: mm_vision_tower in the config.json of {source!r} is {name!r}, "
                    "which is neither a folder in it, nor another folder, nor a hub name that can "
                    "be reached; put the vision tower there."
                ) from error
        return cls(source, folder, tower, raw)

    def config(self, image_id: int = 0) -> LlavaConfig:
        """Return the configuration as transformers has it.

        Args:
            image_id: The token that stands for an image; the original has none.
        """
        layer = self.raw.get("mm_vision_select_layer", -2)
        whole = self.raw.get("mm_vision_select_feature", "patch") == "cls_patch"
        values = {name: self.raw.get(name) for name in _LANGUAGE_SETTINGS}
        language = {name: value for name, value in values.items() if value is not None}
        vision = CLIPVisionConfig.from_pretrained(self.tower)
        return LlavaConfig(
            vision_config=vision,
            text_config={**language, "model_type": "llama"},
            image_token_index=image_id,
            image_seq_length=(vision.image_size // vision.patch_size) ** 2 + whole,
            vision_feature_layer=layer,
            vision_feature_select_strategy="full" if whole else "default",
            dtype=self.raw.get("dtype", self.raw.get("torch_dtype")),
        )

    def load_model(
        self,
        model_class: Any,
        projector_type: str,
        projector: Mapping[str, str],
        image_id: int,
        model: ModelConfig,
    ) -> Any:
        """Load every weight into a class of transformers.

        Args:
            model_class: The class.
            projector_type: The ``mm_projector_type`` that it has.
            projector: The layers of the projector, and what the class calls them.
            image_id: The token that stands for an image.
            model: The settings; its ``name`` is not looked at.

        Raises:
            ValueError: If the checkpoint has another projector, if a weight is missing, left over,
                there twice or of another shape, or if there are no safetensors.
        """
        found = self.raw.get("mm_projector_type", "linear")
        if found != projector_type:
            raise ValueError(
                f"model.name: {self.source!r} has a projector of type {found!r}, and model.family "
                f"says one of type {projector_type!r}; set model.family to the family that it "
                "belongs to (llava: mlp2x_gelu, yi_vl: mlp2x_gelu_Norm)."
            )
        config = self.config(image_id)
        weights = self._weights(projector)
        with torch.device("meta"):
            wanted = {k: v.shape for k, v in model_class(config).state_dict().items()}
        self._refuse("lacks", wanted.keys() - weights.keys())
        self._refuse("has unknown", weights.keys() - wanted.keys())
        different = [name for name, shape in wanted.items() if weights[name].shape != shape]
        self._refuse("has in another shape", different)
        loaded, info = model_class.from_pretrained(
            None,
            config=config,
            state_dict=weights,
            dtype=model.dtype,
            attn_implementation=model.attention,
            quantization_config=quantization(model),
            output_loading_info=True,
        )
        refuse_gaps(info, self.source)
        return loaded

    def _weights(self, projector: Mapping[str, str]) -> dict[str, Tensor]:
        """Return the weights by the names that transformers has for them."""
        original = _read_weights(self.folder, self.source)
        if not any(name.startswith(_TOWER) for name in original):
            tower = _read_weights(self.tower, str(self.tower))
            seeing = {_TOWER + name: tower[name] for name in tower if not _READS_TEXT.match(name)}
            original = {**original, **seeing}
        layers = {
            rf"model\.mm_projector\.{number}\.": f"model.multi_modal_projector.{name}."
            for number, name in projector.items()
        }
        weights: dict[str, Tensor] = {}
        for name, weight in original.items():
            if _COMPUTED.fullmatch(name):
                continue
            new = _renamed(name, {**_NAMES, **layers})
            if new in weights:
                self._refuse("has more than once", [new])
            weights[new] = weight
        return weights

    def _refuse(self, what: str, names: Iterable[str]) -> None:
        """Refuse the checkpoint if there are such names."""
        if first := sorted(names):
            raise ValueError(
                f"model.name: {self.source!r} {what} {len(first)} weights "
                f"({', '.join(first[:3])}{' ...' if len(first) > 3 else ''}); give the folder of a "
                "complete checkpoint of this family."
            )


def read_raw_config(source: str, revision: str) -> dict[str, Any]:
    """Return what the config.json of a hub name or a folder holds."""
    raw, _ = PreTrainedConfig.get_config_dict(source, revision=revision)
    return raw


def _fetched(source: str, revision: str) -> Path:
    """Return the folder of a checkpoint, fetched if it is a hub name."""
    if Path(source).is_dir():
        return Path(source)
    return Path(
        snapshot_download(source, revision=revision, allow_patterns=["*.json", "*.safetensors"])
    )


def _read_weights(folder: Path, source: str) -> dict[str, Tensor]:
    """Return every weight of a folder; they stay on disk until they are used.

    Raises:
        ValueError: If there are none in safetensors.
    """
    index = folder / "model.safetensors.index.json"
    names = {"model.safetensors"}
    if index.is_file():
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    for name in sorted(names):
        if not (folder / name).is_file():
            raise ValueError(
                f"model.name: {source!r} has no {name}; weights are read from safetensors alone, "
                "so convert those of a .bin file first."
            )
    return {
        name: weight for file in sorted(names) for name, weight in load_file(folder / file).items()
    }


def _renamed(name: str, table: Mapping[str, str]) -> str:
    """Return the name that transformers has for a weight; as it is where there is none."""
    for beginning, new in table.items():
        if re.match(beginning, name):
            return re.sub(beginning, new, name, count=1)
    return name
