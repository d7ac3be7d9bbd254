"""The model card of an exported model: metadata for the hub, example code, facts of the training.

The example code is plain Python with transformers. It prints the answer to a question about an
image, and the boxes in this answer in pixels, with their labels and confidences.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import metadata_load, try_to_load_from_cache
from transformers import GenerationMixin

from mm_numeric.config.data import listed, named
from mm_numeric.config.schema import Config
from mm_numeric.data.images import FORMATS
from mm_numeric.families.family import Family
from mm_numeric.geometry.coordinate_formats import CoordinateFormat
from mm_numeric.io.escaping import markdown_code, markdown_fence, markdown_text
from mm_numeric.models.parameter_groups import table_text
from mm_numeric.models.precision import Precision
from mm_numeric.runs.results_file import TASK, ProtocolResults, rows_text
from mm_numeric.tasks.base import reads_boxes, reads_labels

CARD = "README.md"


class CardResults:
    """The metrics in a model card, from the sections of results.json; {} if there is none."""

    def __init__(self, sections: Mapping[str, ProtocolResults]) -> None:
        self.values: list[dict[str, Any]] = []
        self.table = "Not scored: `mm-numeric predict` and `mm-numeric score` before `export` do."
        if sections:
            self.table = "\n\n".join(self._tables(sections))

    def _tables(self, sections: Mapping[str, ProtocolResults]) -> Iterator[str]:
        for protocol, section in sections.items():
            if protocol != TASK:
                yield f"Protocol {markdown_code(protocol)}:"
            lines = ["| metric | value | 95 % interval |", "|---|---|---|"]
            for name, found in section["metrics"].items():
                values = (found["value"], found["low"], found["high"])
                shown = ("none" if n is None else f"{1.0 * n:.4g}" for n in values)
                lines.append("| {} | {} | {} to {} |".format(markdown_text(name), *shown))
                if found["value"] is not None:
                    self.values.append({"type": name, "value": found["value"]})
            yield "\n".join(lines)
            rows = rows_text(section["rows"], section["rows_due"])
            if "failures" in section:
                failed = sum(section["failures"].values())
                rows += f", {failed} answers could not be parsed"
            yield f"{rows}."


def model_card(
    config: Config,
    family: Family,
    model: Any,
    precision: Precision,
    facts: dict[str, Any],
    results: CardResults,
    folder: str,
) -> str:
    """Return the model card of a fine-tuned model as Markdown text.

    ``precision`` is the precision of the run, and ``facts`` the content of its run.json. ``folder``
    is the folder name in the example code.
    """
    whole = config.to_dict()
    frame = "None: the model reads text alone."
    ids = family.question(facts["first_prompt"], int(family.takes_images))
    one_token = " One image token stands for all tokens of the image." * family.takes_images
    prompt = markdown_fence(family.tokenizer.decode(ids))
    prompt = f"The first training row's prompt.{one_token}\n\n{prompt}"
    if family.takes_images:
        fields = {"resize": _set(family.resize), "coordinates": _set(family.coordinates)}
        frame = f"Image resizing and coordinate format:\n\n{_yaml(fields)}"
    read = facts["rows"] if facts["rows"] is not None else "a stream of"
    rows = f"{read} rows of {named(config.data.train)}"
    steps = f"{facts['steps']} steps of {facts['batch_rows']} rows; {rows}"
    fingerprint = facts["rows_sha256"] or "not kept"
    sections = {
        "Use": _use(config, family, model, precision, folder, facts["first_prompt"]),
        "Task": _yaml({**whole["task"], "version": facts["task_version"]}),
        "Prompt": prompt,
        "Frame": frame,
        "Training": f"From {markdown_code(config.model.name)} (revision "
        f"{markdown_text(config.model.revision)}), {markdown_text(steps, 600)}, "
        f"fingerprint {markdown_code(fingerprint)}.\n\n"
        + markdown_fence(table_text(facts["modules"]))
        + (f"\n\nAdapters, merged:\n\n{_yaml(whole['lora'])}" if config.lora else ""),
        "Objective": _yaml(whole["objective"]),
        "Metrics": results.table,
        "Versions": _yaml({"python": facts["python"], **facts["versions"]}),
    }
    body = "\n\n".join(f"## {title}\n\n{text}" for title, text in sections.items())
    front = yaml.safe_dump(_metadata(config, family, results, folder), sort_keys=False)
    return f"---\n{front}---\n\n# {markdown_text(config.title)}\n\n{body}\n"


def _metadata(config: Config, family: Family, results: CardResults, name: str) -> dict[str, Any]:
    """Return the metadata that the hub uses for its search and its table of results."""
    kind = "text2text-generation" if family.encoder_decoder else "text-generation"
    kind = "image-text-to-text" if family.takes_images else kind
    base = config.model.name
    head: dict[str, Any] = {"library_name": "transformers", "pipeline_tag": kind}
    if "/" in base and _is_hub_name(base):
        head["base_model"] = base
    head |= _license(base, config.model.revision)
    if datasets := [s.dataset for s in listed(config.data.train) if _is_hub_name(s.dataset)]:
        head["datasets"] = datasets
    head["tags"] = ["mm-numeric", config.task_name]
    if results.values:
        test = config.data.test
        rows = {"type": test.dataset or config.task_name, "name": test.name}
        task = {"type": kind, "name": config.task_name}
        result = {"task": task, "dataset": rows, "metrics": results.values}
        head["model-index"] = [{"name": name, "results": [result]}]
    return head


def _is_hub_name(name: str | None) -> bool:
    """Return True if ``name`` may be a hub name: it has the form of one, and is no path here."""
    is_name = re.fullmatch(r"\w[\w.-]*(?:/\w[\w.-]*)?", name or "") is not None
    return is_name and not Path(name or "").exists()


def _license(base: str, revision: str) -> dict[str, Any]:
    """Return the licence in the base model's card; {} if the card is not on this machine."""
    file = Path(base, CARD)
    if not Path(base).is_dir():
        is_named = "/" in base and _is_hub_name(base)
        cached = try_to_load_from_cache(base, CARD, revision=revision) if is_named else None
        file = Path(cached) if isinstance(cached, str) else file
    found = (metadata_load(file) or {}) if file.is_file() else {}
    return {key: value for key, value in found.items() if key.startswith("license")}


_READ_IMAGE = (
    f'image = Image.open("image.png", formats={json.dumps(FORMATS)})',
    'image = ImageOps.exif_transpose(image).convert("RGBA")',
    'white = Image.new("RGBA", image.size, "white")',
    'image = Image.alpha_composite(white, image).convert("RGB")',
)
"""Lines of the example code that read an image in the same way as training does."""

_AFTER_PROMPT = 'inputs["input_ids"].shape[1] :'


def _use(
    config: Config, family: Family, model: Any, precision: Precision, folder: str, question: str
) -> str:
    kind = type(model)
    text = f"Weights are {str(model.dtype).removeprefix('torch.')}."
    if getattr(family.processor, "video_processor", None) is not None:
        text += (
            " The processor also reads videos, so that it needs torchvision (`pip install "
            "torchvision`)."
        )
    autos = ["AutoProcessor" if family.takes_images else "AutoTokenizer"]
    own: list[str] = []
    if not kind.__module__.startswith("transformers."):
        own.append(f"from {kind.__module__} import {kind.__name__}")
        text += (
            " Loading needs mm-numeric (`pip install 'mm-numeric[train]'`): transformers has no "
            f"class for {family.name}, and the class in its config.json would leave weights out."
        )
    elif family.takes_images:
        autos.append("AutoModelForImageTextToText")
    else:
        autos.append(kind.__name__)
    name = kind.__name__ if own else autos[-1]
    path = json.dumps(folder, ensure_ascii=False)  # a JSON string is also a Python string
    boxes = _boxes(config, family)
    lines = [f"model = {name}.from_pretrained({path})"]
    if family.takes_images:
        # A class with its own `generate` uses the settings of its inner model, which has none.
        has_own = kind.generate is not GenerationMixin.generate
        settings = ", generation_config=model.generation_config" * has_own
        lines += [
            f"processor = AutoProcessor.from_pretrained({path})",
            *_image_lines(family, precision, question, settings, has_boxes=bool(boxes)),
        ]
    else:
        lines += [
            f"tokenizer = AutoTokenizer.from_pretrained({path})",
            *_text_lines(family, precision, question),
        ]
    imports = [
        *_standard_imports(boxes),
        *([] if precision.autocast is None else ["import torch"]),
        *(["from PIL import Image, ImageOps"] if family.takes_images else []),
        f"from transformers import {', '.join(sorted(autos))}",
    ]
    code = "\n".join([*imports, *own, "", *lines, "print(text)", *boxes])
    return f"{text}\n\n{markdown_fence(code, 'python')}"


def _standard_imports(lines: Sequence[str]) -> list[str]:
    used = [name for name in ("json", "re") if any(f"{name}." in line for line in lines)]
    return [*(f"import {name}" for name in used), *[""] * bool(used)]


def _image_lines(
    family: Family, precision: Precision, question: str, settings: str, *, has_boxes: bool
) -> list[str]:
    answer = "1:" if family.encoder_decoder else _AFTER_PROMPT
    lead = f".removeprefix({json.dumps(family.lead)})" if family.lead.strip() else ""
    end = json.dumps(family.tokenizer.convert_ids_to_tokens(family.stop_ids[0]))
    lines = _generation(f"ids = model.generate(**inputs{settings})[0, {answer}]", precision)
    if has_boxes:
        settings += ", output_logits=True, return_dict_in_generate=True"
        lines = [
            *_generation(f"out = model.generate(**inputs{settings})", precision),
            f"ids = out.sequences[0, {answer}]",
            "probs = [own[0].float().softmax(-1)[i].item() for own, i in zip(out.logits, ids)]",
        ]
    return [
        *_READ_IMAGE,
        f"question = {json.dumps(question, ensure_ascii=False)}",
        *_image_inputs(family),
        *lines,
        f"text = processor.decode(ids).partition({end})[0]{lead}.strip()",
    ]


def _text_lines(family: Family, precision: Precision, question: str) -> list[str]:
    answer = "" if family.encoder_decoder else f", {_AFTER_PROMPT}"
    return [
        f"prompt = {json.dumps(family.tokenizer.decode(family.question(question, 0)))}",
        'inputs = tokenizer(prompt, add_special_tokens=False, return_tensors="pt")',
        *_generation(f"ids = model.generate(**inputs)[0{answer}]", precision),
        "text = tokenizer.decode(ids, skip_special_tokens=True).strip()",
    ]


def _generation(line: str, precision: Precision) -> list[str]:
    """Return the line of the example code that generates, with the autocast of the training."""
    if precision.autocast is None:
        return [line]
    dtype = f"torch.{precision.autocast}"
    return [f"with torch.autocast(model.device.type, {dtype}):  # as in training", f"    {line}"]


def _image_inputs(family: Family) -> list[str]:
    """Return the lines of the example code that turn ``image`` and ``question`` into ``inputs``."""
    template = getattr(family.processor, "chat_template", None)
    if not template:
        text = f'"{family.image_prefix}" + question' if family.image_prefix else "question"
        return [f'inputs = processor(images=image, text={text}, return_tensors="pt")']
    thinking = "    enable_thinking=False,\n" * ("enable_thinking" in str(template))
    return [
        'content = [{"type": "image", "image": image}, {"type": "text", "text": question}]',
        "inputs = processor.apply_chat_template(",
        '    [{"role": "user", "content": content}],',
        "    add_generation_prompt=True,",
        f"{thinking}    tokenize=True,",
        "    return_dict=True,",
        '    return_tensors="pt",',
        ").to(model.device, model.dtype)",
    ]


def _boxes(config: Config, family: Family) -> list[str]:
    """Return the lines of the example code that print the boxes in ``text``, in image pixels.

    Each box is printed with its label, if the task has labels, and its confidence. Returns [] if
    the task's answers have no boxes, or have polygons that this code could not distinguish from
    boxes.
    """
    frame = family.frame(640, 480)
    if not family.takes_images or not reads_boxes(config.task, frame):
        return []
    text = config.task.text_frame(frame).coordinates.text
    has_polygons = getattr(config.task, "shape", "box") != "box"
    if text.points or (has_polygons and text.bins and not text.open):
        return []
    left, top = (" - left", " - top") if _is_padded(family) else ("", "")
    box = f"[x1 * step_x{left}, y1 * step_y{top}, x2 * step_x{left}, y2 * step_y{top}]"
    label = _label(text) if reads_labels(config.task, frame) else []
    return [
        "",
        f"# {'Label, box' if label else 'Box'} (x1, y1, x2, y2 in pixels of the image), and",
        "# confidence (mean probability of the tokens of the box)",
        "width, height = image.size",
        *_steps(family),
        f"pattern = {_raw(text.box_pattern)}",
        "parts = re.split(pattern, text)  # text, 4 numbers, text, ...",
        "spans = [found.span() for found in re.finditer(pattern, text)]",
        "skipped = processor.decode(ids).find(text)",
        "ends = [len(processor.decode(ids[: n + 1])) - skipped for n in range(len(ids))]",
        *(['label = ""'] if text.shares_labels and label else []),
        "for i in range(1, len(parts), 5):",
        "    box = parts[i : i + 4]",
        *(f"    {line}" for line in (*label, *_levels(family))),
        "    start, stop = spans[i // 5]",
        "    own = [p for p, end in zip(probs, ends) if start < end <= stop]",
        f"    print({'label, ' * bool(label)}{box}, round(sum(own) / max(1, len(own)), 4))",
    ]


def _label(text: CoordinateFormat) -> list[str]:
    """Return the lines of Python code that find the label in the text next to a box."""
    part = "parts[i - 1]" if text.label_first else "parts[i + 4]"
    opened, closed = text.label_open.strip(), text.label_close.strip()
    if text.quoted:  # the opening text ends with the quotation mark of the label
        pattern = re.escape(opened.lstrip(", ")[:-1]).replace("\\ ", " ") + r'("(?:[^"\\]|\\.)*")'
        return [
            f"found = re.search({_raw(pattern)}, {part})",
            'label = json.loads(found[1]) if found else ""',
        ]
    if opened and closed:
        part += f".rpartition({json.dumps(opened)})[2].partition({json.dumps(closed)})[0]"
    return [f'label = {part}.strip("[]; ,\\n"){" or label" * text.shares_labels}']


def _raw(pattern: str) -> str:
    quote = "'" if '"' in pattern else '"'
    return f"r{quote}{pattern}{quote}"


def _is_padded(family: Family) -> bool:
    return family.coordinates.space == "resized" and family.resize.kind == "letterbox"


def _steps(family: Family) -> list[str]:
    """Return the lines of Python code that compute the image pixels per unit of a coordinate."""
    most, resize = family.coordinates.max_value, family.resize
    if _is_padded(family):
        return [
            "side = max(width, height)  # of the padded image",
            "left, top = (side - width) // 2, (side - height) // 2",
            f"step_x = step_y = side / {most or resize.side}",
        ]
    if most is not None:
        return [f"step_x, step_y = width / {most}, height / {most}"]
    if family.coordinates.space == "original" or resize.kind == "none":
        return ["step_x = step_y = 1"]
    if resize.kind == "squash":
        return [f"step_x, step_y = width / {resize.side}, height / {resize.side}"]
    patch = family.image_processor.patch_size
    return [
        f'_, rows, columns = inputs["image_grid_thw"][0].tolist()  # of {patch} pixels each',
        f"step_x, step_y = width / (columns * {patch}), height / (rows * {patch})",
    ]


def _levels(family: Family) -> list[str]:
    """Return the lines of Python code that compute x1, y1, x2 and y2 from the numbers of a box."""
    coordinates = family.coordinates
    numbers = "map(float, box)"
    if coordinates.rounding == "floor":  # a coordinate stands for the middle of its interval
        middle, most = f"float(n) + {0.5 / 10**coordinates.decimals:g}", coordinates.max_value
        numbers = f"({middle if most is None else f'min({middle}, {most})'} for n in box)"
    names = "x1, y1, x2, y2" if coordinates.order == "xy" else "y1, x1, y2, x2"
    return [f"{names} = {numbers}"]


def _yaml(value: dict[str, Any]) -> str:
    plain = json.loads(json.dumps(value))
    text = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=100)
    return markdown_fence(text, "yaml")


def _set(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass object as a dict, without fields that are None."""
    return {name: own for name, own in asdict(value).items() if own is not None}
