"""Load checkpoints in the file layout of the original LLaVA code (LLaVA-1.5, Yi-VL).

The checkpoint has the weights of the language model, the projector (``model.mm_projector``) and,
in some cases, the vision tower (``model.vision_tower``). If the vision tower is missing, it is
loaded from the subfolder (Yi-VL) or hub checkpoint (LLaVA-1.5) that config.json names. Any other
missing or unused weight is an error.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from huggingface_hub import snapshot_download
from safetensors.torch import load_file
from torch import Tensor
from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, PreTrainedConfig

from mm_numeric.config.schema import ModelConfig
from mm_numeric.families.model_files import quantization, require_all_weights, require_no_weights

_LANGUAGE_SETTINGS = (*LlamaConfig.__annotations__, "rope_theta", "rope_scaling")
"""Keys of config.json for the language model. LlamaConfig of transformers 5 lacks the last two."""

_TOWER = "model.vision_tower.vision_tower."
"""Prefix of the vision tower's weight names; the tower's own checkpoint has no prefix."""

_NAMES = {
    r"lm_head\.": "lm_head.",
    r"model\.(embed_tokens|layers|norm)\.": r"model.language_model.\1.",
    rf"{re.escape(_TOWER)}(vision_model\.)?": "model.vision_tower.",
}
"""Maps prefixes of weight names in the original layout (regex) to prefixes in transformers."""

_COMPUTED = re.compile(r".*\.(rotary_emb\.inv_freq|embeddings\.position_ids)")
"""Names of buffers that old versions of transformers saved. Newer versions compute them."""

_TEXT_TOWER = re.compile(r"(text_model|text_projection|visual_projection)\..*|logit_scale")
"""Names of CLIP's weights that the vision tower does not use."""


@dataclass(frozen=True)
class OriginalLayout:
    """A checkpoint in the file layout of the original LLaVA code."""

    source: str
    """Hub name or folder of the checkpoint, for error messages."""

    folder: Path
    tower: Path
    """Folder of the vision tower's own checkpoint."""

    raw: Mapping[str, Any]
    """Content of config.json."""

    @classmethod
    def find(cls, source: str, revision: str) -> Self | None:
        """Find the files of a checkpoint; None if it is not in LLaVA's own layout."""
        raw = read_raw_config(source, revision)
        if "mm_vision_tower" not in raw:
            return None
        folder = _local_folder(source, revision)
        name = str(raw["mm_vision_tower"])
        towers = (folder / name, Path(name))
        tower = next((path for path in towers if (path / "config.json").is_file()), None)
        if tower is None:
            try:
                tower = _local_folder(name, "main")
            except (OSError, ValueError) as error:  # a path is not a valid hub name
                raise ValueError(
                    f"model.name: mm_vision_tower in the config.json of {source!r} is {name!r}, "
                    "neither a folder nor a hub name that can be reached; correct it."
                ) from error
        return cls(source, folder, tower, raw)

    def config(self, image_id: int = 0) -> LlavaConfig:
        """Convert config.json to a LlavaConfig of transformers; ``image_id`` is the image token."""
        layer = self.raw.get("mm_vision_select_layer", -2)
        class_token = self.raw.get("mm_vision_select_feature", "patch") == "cls_patch"
        values = {name: self.raw.get(name) for name in _LANGUAGE_SETTINGS}
        language = {name: value for name, value in values.items() if value is not None}
        vision = CLIPVisionConfig.from_pretrained(self.tower)
        return LlavaConfig(
            vision_config=vision,
            text_config={**language, "model_type": "llama"},
            image_token_index=image_id,
            image_seq_length=(vision.image_size // vision.patch_size) ** 2 + class_token,
            vision_feature_layer=layer,
            vision_feature_select_strategy="full" if class_token else "default",
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
        """Rename the checkpoint's weights and load them into the transformers ``model_class``.

        ``projector_type`` is the value of ``mm_projector_type`` that config.json must have.
        ``projector`` maps the projector's layer numbers in the original code to names in
        ``model_class``.
        """
        found = self.raw.get("mm_projector_type", "linear")
        if found != projector_type:
            raise ValueError(
                f"model.name: {self.source!r} has a projector of type {found!r}, and model.family "
                f"one of type {projector_type!r}; set model.family to llava (mlp2x_gelu) or yi_vl "
                "(mlp2x_gelu_Norm)."
            )
        config = self.config(image_id)
        weights = self._weights(projector)
        with torch.device("meta"):
            wanted = {k: v.shape for k, v in model_class(config).state_dict().items()}
        require_no_weights(self.source, "lacks", wanted.keys() - weights.keys())
        require_no_weights(self.source, "has unknown", weights.keys() - wanted.keys())
        different = [name for name, shape in wanted.items() if weights[name].shape != shape]
        require_no_weights(self.source, "has in another shape", different)
        loaded, info = model_class.from_pretrained(
            None,
            config=config,
            state_dict=weights,
            dtype=model.dtype,
            attn_implementation=model.attention,
            quantization_config=quantization(model),
            output_loading_info=True,
        )
        require_all_weights(info, self.source)
        return loaded

    def _weights(self, projector: Mapping[str, str]) -> dict[str, Tensor]:
        original = _read_weights(self.folder, self.source)
        if not any(name.startswith(_TOWER) for name in original):
            tower = _read_weights(self.tower, str(self.tower))
            vision = {_TOWER + name: tower[name] for name in tower if not _TEXT_TOWER.match(name)}
            original = {**original, **vision}
        layers = {
            rf"model\.mm_projector\.{number}\.": f"model.multi_modal_projector.{name}."
            for number, name in projector.items()
        }
        weights: dict[str, Tensor] = {}
        for name, weight in original.items():
            if _COMPUTED.fullmatch(name):
                continue
            new = _renamed(name, _NAMES | layers)
            if new in weights:
                require_no_weights(self.source, "has more than once", [new])
            weights[new] = weight
        return weights


def read_raw_config(source: str, revision: str) -> dict[str, Any]:
    """Return the content of a checkpoint's config.json; ``source`` is a hub name or a folder."""
    raw, _ = PreTrainedConfig.get_config_dict(source, revision=revision)
    return raw


def _local_folder(source: str, revision: str) -> Path:
    if Path(source).is_dir():
        return Path(source)
    return Path(
        snapshot_download(source, revision=revision, allow_patterns=["*.json", "*.safetensors"])
    )


def _read_weights(folder: Path, source: str) -> dict[str, Tensor]:
    index = folder / "model.safetensors.index.json"
    names = {"model.safetensors"}
    if index.is_file():
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    for name in sorted(names):
        if not (folder / name).is_file():
            raise ValueError(
                f"model.name: {source!r} has no {name}; convert its weights to safetensors."
            )
    return {
        name: weight for file in sorted(names) for name, weight in load_file(folder / file).items()
    }


def _renamed(name: str, table: Mapping[str, str]) -> str:
    """Replace the prefix of a weight's name; ``table`` maps old prefixes (regex) to new ones."""
    for beginning, new in table.items():
        if re.match(beginning, name):
            return re.sub(beginning, new, name, count=1)
    return name
