"""How published models write coordinates, with sources, for ``mm-numeric ls --coordinates``.

For the family ``chat``, the class of the transformers processor identifies the model.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from mm_numeric.answers import Box, Instance, Polygon
from mm_numeric.geometry.coordinates import COORDINATES, Coordinates
from mm_numeric.geometry.frame_presets import FAMILY_RESIZES
from mm_numeric.geometry.frames import Frame, Resize

NONE_PUBLISHED = "none published"


@dataclass(frozen=True)
class Convention:
    """The coordinates that a published model was trained to write."""

    models: str
    preset: str
    """A name in ``COORDINATES``."""

    source: str = NONE_PUBLISHED
    """Paper, file or web page in which the models' authors describe the coordinates."""

    family: str = "chat"
    """Value of ``model.family`` for these models."""

    format: str = ""
    """Text format of clicks, a name in ``COORDINATE_FORMATS``. Empty: the preset's format."""

    @property
    def coordinates(self) -> Coordinates:
        """Return the settings of the coordinates."""
        preset = COORDINATES[self.preset]
        return replace(preset, format=self.format) if self.format else preset

    @property
    def setting(self) -> str:
        """Return the value of ``model.coordinates`` in a config."""
        return f"{{preset: {self.preset}, format: {self.format}}}" if self.format else self.preset


_OTHER = Convention("other models", "relative_1000")
_QWEN3 = "QwenLM/Qwen3-VL, cookbooks/2d_grounding.ipynb"
_MOLMO2 = "arXiv:2601.10611"
_SCREENSPOT_PRO = "likaixin2000/ScreenSpot-Pro-GUI-Grounding, models"
_UI_TARS = "bytedance/UI-TARS, codes/ui_tars"
_GEMINI = "Google Cloud, Gemini: Bounding box detection"

_FAMILIES = (
    Convention("PaliGemma 1, 2", "paligemma", "arXiv:2407.07726", "paligemma"),
    Convention("LLaVA-1.5", "llava", "haotian-liu/LLaVA, llava_v1_5_mix665k.json", "llava"),
    Convention("Yi-VL", "yi_vl", NONE_PUBLISHED, "yi_vl"),
    Convention("Qwen2-VL", "qwen2_vl", "arXiv:2409.12191", "qwen2_vl"),
    Convention(
        "Qwen2.5-VL",
        "qwen2_5_vl",
        "QwenLM/Qwen2.5-VL, cookbooks/spatial_understanding.ipynb",
        "qwen2_5_vl",
    ),
    Convention("Qwen3-VL", "qwen3_vl", _QWEN3, "qwen3_vl"),
    Convention(
        "Florence-2",
        "florence2",
        "arXiv:2311.06242; huggingface/transformers, processing_florence2.py",
        "florence2",
    ),
)

CHAT: Mapping[str, Convention] = {
    "Qwen3VLProcessor": Convention(
        "Qwen3-VL-MoE, Qwen3.5, Qwen3.8",
        "qwen3_vl",
        f"{_QWEN3}; of Qwen3.8: voxel51/fiftyone, fiftyone/utils/qwen3_8.py",
    ),
    "InternVLProcessor": Convention(
        "InternVL 3, 3.5",
        "internvl",
        "internvl.readthedocs.io, Chat Data Format (its sample code rounds to the nearest)",
    ),
    "Gemma3Processor": Convention(
        "Gemma 3", "gemma3", f"{_GEMINI}; {NONE_PUBLISHED} for Gemma 3 itself"
    ),
    "Gemma4Processor": Convention("Gemma 4", "gemma3", _GEMINI),
    "Glm4vProcessor": Convention("GLM-4.1V, 4.5V", "glm_v", "zai-org/GLM-V, skill glmv-grounding"),
    "Glm46VProcessor": Convention("GLM-4.6V", "glm_v", "zai-org/GLM-V, skill glmv-grounding"),
    "Lfm2VlProcessor": Convention(
        "LFM2.5-VL",
        "qwen3_vl",
        "docs.liquid.ai, Vision capabilities (there with image_id; LFM2.5-VL-450M: 0 to 1)",
    ),
    "DeepseekOcr2Processor": Convention(
        "DeepSeek-OCR 2",
        "deepseek",
        "deepseek-ai/DeepSeek-VL2, README.md; deepseek-ai/DeepSeek-OCR, run_dpsk_ocr_image.py",
    ),
    "Molmo2Processor": Convention(
        "Molmo2", "relative_1000", f"{NONE_PUBLISHED} for boxes; 0 to 1000 for points: {_MOLMO2}"
    ),
    **{
        processor: Convention(models, "relative_1000")
        for processor, models in {
            "SmolVLMProcessor": "SmolVLM2",
            "Idefics3Processor": "Idefics3",
            "LlavaOnevisionProcessor": "LLaVA-OneVision",
            "LlavaNextProcessor": "LLaVA-NeXT",
            "PixtralProcessor": "Pixtral, Ministral 3, Mistral Small 3",
            "Llama4Processor": "Llama 4",
            "DeepseekVLProcessor": "DeepSeek-VL 1.3B",
            "DeepseekVLHybridProcessor": "DeepSeek-VL 7B",
            "AyaVisionProcessor": "Aya Vision",
            "Cohere2VisionProcessor": "Command A Vision",
        }.items()
    },
}
"""Maps the class name of a transformers processor to the convention of its models."""

CLICKS = (
    Convention(
        "Qwen2.5-VL, tool computer_use",
        "qwen2_5_vl",
        f"QwenLM/Qwen2.5-VL, cookbooks/computer_use.ipynb; {_SCREENSPOT_PRO}/qwen2_5vl.py",
        "qwen2_5_vl",
        "computer_use",
    ),
    Convention(
        "Qwen2.5-VL, tool mobile_use",
        "qwen2_5_vl",
        "QwenLM/Qwen2.5-VL, cookbooks/mobile_agent.ipynb",
        "qwen2_5_vl",
        "mobile_use",
    ),
    Convention(
        "Qwen3-VL, tool computer_use",
        "qwen3_vl",
        "QwenLM/Qwen3-VL, cookbooks/computer_use.ipynb",
        "qwen3_vl",
        "computer_use",
    ),
    Convention(
        "Qwen3-VL, tool mobile_use",
        "relative_999",
        "QwenLM/Qwen3-VL, cookbooks/mobile_agent.ipynb (a screen of 999 x 999)",
        "qwen3_vl",
        "mobile_use",
    ),
    Convention(
        "Aguvis, Kimi-VL",
        "unit_3",
        f"xlang-ai/aguvis, src/aguvis/constants.py; {_SCREENSPOT_PRO}/kimivl.py",
        format="pyautogui",
    ),
    Convention(
        "OpenCUA",
        "qwen2_5_vl",
        "xlang-ai/OpenCUA, README.md (coordinate_type qwen25)",
        "qwen2_5_vl",
        "pyautogui",
    ),
    Convention("UI-TARS 1", "relative_1000", f"{_UI_TARS}/action_parser.py", "qwen2_vl", "ui_tars"),
    Convention(
        "UI-TARS 1.5",
        "qwen2_5_vl",
        f"{_UI_TARS}/action_parser.py (model_type qwen25vl)",
        "qwen2_5_vl",
        "ui_tars",
    ),
    Convention(
        "Doubao 1.5 UI-TARS, Seed1.5-VL",
        "relative_1000",
        f"{_UI_TARS}/prompt.py (GROUNDING_DOUBAO)",
        format="ui_tars_point",
    ),
    Convention(
        "Molmo",
        "percent",
        "arXiv:2409.17146; allenai/molmo2, olmo/preprocessing/point_formatter.py "
        "(LegacyPointFormatting)",
        format="molmo",
    ),
    Convention("Rex-Omni", "rex_omni", "IDEA-Research/Rex-Omni, rex_omni/parser.py", "qwen2_5_vl"),
)
"""How models that operate a screen write a click. The tasks ``click`` and ``pointing`` parse all of
these formats, whatever the preset's text format, if the preset writes digits. To score answers, any
preset with the same range can be used."""


def convention_of(processor: object) -> Convention:
    """Return how the models of a transformers processor write coordinates.

    For models whose authors did not publish this, coordinates are from 0 to 1000.
    """
    return CHAT.get(type(processor).__name__, _OTHER)


def conventions_text() -> str:
    """Return a text that lists, for every model, the coordinates, an example and the source."""
    box = Instance(Box(50.0, 100.0, 320.0, 350.0), "red car")
    point = Instance(Polygon(((320.0, 120.0),)))
    return "\n".join(
        [
            "The box 50, 100, 320, 350 in pixels of an image of 640 x 480:",
            *(_example(convention, box) for convention in (*_FAMILIES, *CHAT.values(), _OTHER)),
            "The point 320, 120 in this image, as an answer to click and pointing (`score` needs "
            "--family, or --frame with any preset of the same range):",
            *(_example(convention, point) for convention in CLICKS),
        ]
    )


def _example(convention: Convention, shape: Instance) -> str:
    r"""Return the lines about one convention; line breaks in its example are shown as ``\n``."""
    resize = FAMILY_RESIZES.get(convention.preset, Resize(kind="none"))
    frame = Frame(640, 480, resize.view(640, 480), convention.coordinates)
    text = frame.write([shape]).text.replace("\n", "\\n")
    return (
        f"{convention.models} (family {convention.family}, coordinates {convention.setting})\n"
        f"  text    {text}\n"
        f"  source  {convention.source}"
    )
