"""Write rows for ms-swift, LLaMA-Factory and TRL, which train on questions and answers as texts.

Coordinates are written in the frame of the model family. In rows for ms-swift, boxes and points
become ``<bbox>``, with pixels of the original image in ``objects``, if ms-swift writes coordinates
like the family. They then stay correct if ms-swift resizes images to other sizes.

Sources: modelscope/ms-swift 4.6.0, swift/template/base.py (normalize_bbox) and
swift/template/templates/qwen.py (replace_bbox); hiyouga/LLaMA-Factory 0.9.5,
src/llamafactory/data/converter.py and mm_plugin.py; huggingface/trl 1.16, trl/data_utils.py and
trl/trainer/sft_trainer.py.
"""

import json
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from mm_numeric.answers import IMAGE, Instances
from mm_numeric.geometry.coordinates import COORDINATES
from mm_numeric.geometry.frame_presets import FrameRule
from mm_numeric.geometry.frames import Frame
from mm_numeric.importers.export import TRAIN, Exporter, Sample
from mm_numeric.io.files import write_json
from mm_numeric.tasks.base import Task

_IMAGE_TAG = "<image>"


def _turns(prompt: str, answer: str) -> list[dict[str, str]]:
    question = prompt.replace(IMAGE, _IMAGE_TAG)
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


class MsSwift(Exporter):
    """Writes rows of ms-swift."""

    tool = "ms-swift 4.6.0"
    rotates_images = False
    tags = ("<image>", "<video>", "<audio>", "<bbox>", "<ref-object>", "<cot-process>",
            "<start-image>")  # fmt: skip

    def row(self, prompt: str, answer: str, frame: Frame | None) -> dict[str, Any]:
        """Return the messages, and the boxes and points in ``objects``."""
        if frame is None or not _is_rescaled(frame):
            return {"messages": _turns(prompt, answer)}
        text, objects = _with_placeholders(answer, frame)
        return {"messages": _turns(prompt, text), "objects": objects}

    def usage(self, folder: Path, name: str, frame: FrameRule | None) -> str:
        """Return the ``swift sft`` command with the environment variables that the rows require."""
        variables = []
        if frame is not None and frame.coordinates.format == "json":
            variables.append("QWENVL_BBOX_FORMAT=new")
        if frame is not None and frame.depends_on_limits:
            resize = frame.resize
            variables += [f"MIN_PIXELS={resize.min_pixels}", f"MAX_PIXELS={resize.max_pixels}"]
        return " ".join([*variables, f"swift sft --dataset {folder / TRAIN}"])


def _is_rescaled(frame: Frame) -> bool:
    """Return True if ms-swift can compute coordinates in this format from pixels."""
    return frame.coordinates in [COORDINATES[n] for n in ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")]


def _with_placeholders(answer: str, frame: Frame) -> tuple[str, dict[str, Any]]:
    """Replace labels and shapes by ``<ref-object>`` and ``<bbox>`` where ms-swift restores them.

    ``bbox`` has the coordinates in pixels of the original image, from which ms-swift computes the
    numbers of the answer.
    """
    objects: dict[str, list[Any]] = {"ref": [], "bbox": []}
    found, form = frame.read(answer), frame.coordinates.text
    if not isinstance(found, Instances):  # no coordinates, such as a time
        return answer, objects
    ends = [0, *(end for _, end in found.spans)]
    starts = [*(start for start, _ in found.spans), len(answer)]
    between = [answer[end:start] for end, start in zip(ends, starts, strict=True)]
    shapes = [answer[slice(*span)] for span in found.spans]
    for i, item in enumerate(found.items):
        levels = [frame.encode(point) for point in item.shape.points]
        written = next((w for w in _as_swift_writes(levels) if shapes[i].endswith(w)), None)
        if written is None:  # a polygon
            continue
        shapes[i] = f"{shapes[i].removesuffix(written)}<bbox>"
        objects["bbox"].append([number for point in item.shape.points for number in point])
        if item.label:
            ref = json.dumps(item.label, ensure_ascii=False)[1:-1] if form.quoted else item.label
            around = (form.label_open, form.label_close)
            inner = "<ref-object>".join(around) if form.quoted else "<ref-object>"
            at = i if form.label_first else i + 1
            if ref.join(around) in between[at]:  # not the "text_content" of a word
                between[at] = between[at].replace(ref.join(around), inner, 1)
                objects["ref"].append(ref)
    text = "".join(part for pair in zip(between, [*shapes, ""], strict=True) for part in pair)
    return text, objects


def _as_swift_writes(levels: list[tuple[int, int]]) -> list[str]:
    """Return the two texts that ms-swift writes for a box or point, [] for other shapes.

    The first is for ``QWENVL_BBOX_FORMAT=new``, the second for ``legacy``, the default.
    """
    if len(levels) > 2:
        return []
    points = ",".join(f"({x},{y})" for x, y in levels)
    return [str([n for level in levels for n in level]), f"<|box_start|>{points}<|box_end|>"]


class LlamaFactory(Exporter):
    """Writes rows of LLaMA-Factory, and ``dataset_info.json``, which describes the rows."""

    tool = "LLaMA-Factory 0.9.5"
    files = frozenset({TRAIN, "dataset_info.json"})
    rotates_images = False
    image_max_pixels = 768 * 768
    tags = ("<image>", "<video>", "<audio>")

    def row(self, prompt: str, answer: str, frame: Frame | None) -> dict[str, Any]:
        """Return the messages; raise ValueError if the tool would enlarge a small image.

        Only coordinates in pixels of the resized image would then be wrong.
        """
        in_pixels = frame is not None and frame.coordinates.max_value is None
        if in_pixels and frame is not None and frame.coordinates.space == "resized":
            width, height = frame.width_px, frame.height_px
            if min(width, height) < 28 or width * height < 32 * 32:
                raise ValueError(
                    f"its image of {width} x {height} pixels is one that {self.tool} enlarges, and "
                    "the coordinates are pixels of the resized image"
                )
        return {"messages": _turns(prompt, answer)}

    def write(self, task: Task, samples: Iterator[Sample], folder: Path, name: str) -> None:
        """Write the rows and dataset_info.json."""
        super().write(task, samples, folder, name)
        tags = {"role_tag": "role", "content_tag": "content", "user_tag": "user"}
        description = {
            "file_name": TRAIN,
            "formatting": "sharegpt",
            "columns": {"messages": "messages", "images": "images"},
            "tags": {**tags, "assistant_tag": "assistant", "system_tag": "system"},
        }
        write_json(folder / "dataset_info.json", {name: description}, indent=1)

    def usage(self, folder: Path, name: str, frame: FrameRule | None) -> str:
        """Return the data settings, and the image size for which the rows are written."""
        limit = ""
        if frame is not None and frame.depends_on_limits:
            limit = f" image_max_pixels={frame.image_max_pixels}"
        return f"dataset_dir={folder} dataset={name} media_dir=.{limit}"


class Trl(Exporter):
    """Writes prompts and completions for TRL, which trains on completions only."""

    tool = "TRL 1.16"

    def row(self, prompt: str, answer: str, frame: Frame | None) -> dict[str, Any]:
        """Return the prompt and the completion. TRL itself puts a single image before the text."""
        parts: Any = prompt.removeprefix(IMAGE)
        if IMAGE in parts:
            texts = [{"type": "text", "text": text} for text in prompt.split(IMAGE)]
            pairs = [[{"type": "image"}, text] for text in texts[1:]]
            parts = [p for p in (texts[0], *chain(*pairs)) if p.get("text") != ""]
        question = {"role": "user", "content": parts}
        return {"prompt": [question], "completion": [{"role": "assistant", "content": answer}]}

    def usage(self, folder: Path, name: str, frame: FrameRule | None) -> str:
        """Return the expression that loads the rows with their images."""
        file = str(folder / TRAIN)
        return (
            f'load_dataset("json", data_files={file!r}, split="train")'
            '.cast_column("images", List(Image()))'
        )
