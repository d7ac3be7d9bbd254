"""Export the model of a finished run as a folder that transformers can load."""

import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import yaml

from mm_numeric.config.baseline import read_baseline
from mm_numeric.config.data import named
from mm_numeric.config.schema import Config
from mm_numeric.escaping import markdown_code, markdown_fence, markdown_text
from mm_numeric.families.family import Family
from mm_numeric.files import read_json, stored_content
from mm_numeric.models.adapters import merged
from mm_numeric.models.loading import load_family, load_model, quiet_unless_terminal
from mm_numeric.models.parameter_groups import table_text
from mm_numeric.run_folder import FINISHED, MODEL, RESULTS, locked, read_run

CARD = "README.md"


def export(run: Path, out: Path, *, trust_remote_code: bool = False) -> None:
    """Save the model of a finished run, with tokenizer and model card, in a new folder.

    The folder also contains the image processor and the settings for image size and coordinates.
    Adapters are merged into the weights without changing their dtype. If the model was quantised
    for training, adapters are merged into the original weights. A run that trained a published
    baseline method, such as xVal, cannot be exported: transformers has no class for its model.
    Set ``trust_remote_code`` if the run needs custom code, of its config or its checkpoint.
    """
    quiet_unless_terminal()
    config = read_run(run, trust_remote_code=trust_remote_code)
    if config.model.baseline is not None:
        name = read_baseline(config.model.baseline, f"{run}, model.baseline").name
        raise ValueError(
            f"{run}: a model of {name} cannot be exported, because transformers has no class for "
            "it; predict with the run itself."
        )
    with locked(out):
        if out.exists():
            raise ValueError(f"{out} exists; name a folder that does not, or delete it.")
        unfinished = out.with_name(f"{out.name}.unfinished")
        if unfinished.exists():  # of a killed process
            shutil.rmtree(unfinished)
        try:
            _save(config, run, unfinished, out.name)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
        unfinished.rename(out)


def _save(config: Config, run: Path, folder: Path, name: str) -> None:
    """Save the model of a run (adapters merged), its tokenizer and its model card in a folder."""
    config = replace(config, model=replace(config.model, quantize=None))
    family = load_family(config, str(run / MODEL))
    model = merged(load_model(config, family, str(run / MODEL)))
    folder.mkdir(parents=True)
    model.save_pretrained(folder)
    family.save(folder)
    facts = read_json(run / FINISHED)
    with stored_content(run / RESULTS, "score again"):
        metrics = _metrics(read_json(run / RESULTS) if (run / RESULTS).is_file() else None)
    with stored_content(run / FINISHED):
        card = model_card(config, family, model, facts, metrics, name)
    (folder / CARD).write_text(card, encoding="utf-8")


def model_card(
    config: Config,
    family: Family,
    model: Any,
    facts: dict[str, Any],
    metrics: str,
    folder: str,
) -> str:
    """Return the model card of a fine-tuned model as Markdown text.

    ``facts`` is the content of run.json, ``metrics`` are the results as Markdown, and ``folder`` is
    the folder name in the example code.
    """
    whole = config.to_dict()
    frame = "None: the model reads text alone."
    if family.takes_images:
        fields = {"resize": _set(family.resize), "coordinates": _set(family.coordinates)}
        frame = f"Image resizing and coordinate format:\n\n{_yaml(fields)}"
    head = {"library_name": "transformers", "tags": ["mm-numeric", config.task_name]}
    if "/" in config.model.name and not Path(config.model.name).exists():
        head["base_model"] = config.model.name
    modules = facts.get("modules", facts.get("parts"))  # version 0.1 wrote "parts"
    read = facts["rows"] if facts["rows"] is not None else "a stream of"
    rows = f"{read} rows of {named(config.data.train)}"
    steps = f"{facts['steps']} steps of {facts['batch_rows']} rows; {rows}"
    fingerprint = facts.get("rows_sha256") or "not kept"
    sections = {
        "Load": _loading(family, model, folder),
        "Task": _yaml({**whole["task"], "version": facts["task_version"]}),
        "Prompt": _prompt(config, family),
        "Frame": frame,
        "Training": f"From {markdown_code(config.model.name)} (revision "
        f"{markdown_text(config.model.revision)}), {markdown_text(steps, 600)}, "
        f"fingerprint {markdown_code(fingerprint)}.\n\n"
        + (markdown_fence(table_text(modules)) if modules else "")
        + (f"\n\nAdapters, merged:\n\n{_yaml(whole['lora'])}" if config.lora else ""),
        "Objective": _yaml(whole["objective"]),
        "Metrics": metrics,
        "Versions": _yaml({"python": facts["python"], **facts["versions"]}),
    }
    body = "\n\n".join(f"## {title}\n\n{text}" for title, text in sections.items())
    front = yaml.safe_dump(head, sort_keys=False)
    return f"---\n{front}---\n\n# {markdown_text(config.title)}\n\n{body}\n"


def _loading(family: Family, model: Any, folder: str) -> str:
    kind = type(model)
    autos = ["AutoImageProcessor"] * family.takes_images + ["AutoTokenizer"]
    text = f"Weights are {str(model.dtype).removeprefix('torch.')}."
    if kind.__module__.startswith("transformers."):
        imports = f"from transformers import {', '.join(sorted([*autos, kind.__name__]))}\n"
    else:
        imports = f"from transformers import {', '.join(autos)}\n"
        imports += f"\nfrom {kind.__module__} import {kind.__name__}\n"
        text += (
            " Loading needs mm-numeric (`pip install 'mm-numeric[train]'`): transformers has no "
            f"class for {family.name}, and the class in its config.json would leave weights out."
        )
    path = json.dumps(folder, ensure_ascii=False)  # a Python text too
    lines = [f"model = {kind.__name__}.from_pretrained({path})"]
    lines += [f"tokenizer = AutoTokenizer.from_pretrained({path})"]
    if family.takes_images:
        lines += [f"image_processor = AutoImageProcessor.from_pretrained({path})"]
    code = "\n".join([imports, *lines])
    return f"{text}\n\n{markdown_fence(code, 'python')}"


def _prompt(config: Config, family: Family) -> str:
    question = str(config.task.options().get("prompt", "{question}"))
    ids = family.question(question, int(family.takes_images))
    note = "One image token stands for all tokens of the image.\n\n" if family.takes_images else ""
    return note + markdown_fence(family.tokenizer.decode(ids))


def _metrics(results: dict[str, Any] | None) -> str:
    if results is None:
        return "Not scored: `mm-numeric predict` and `mm-numeric score` before `export` do."
    lines = ["| metric | value | 95 % interval |", "|---|---|---|"]
    for name, found in results["metrics"].items():
        keys = ("value", "low", "high")
        shown = ("none" if found[key] is None else f"{1.0 * found[key]:.4g}" for key in keys)
        lines.append("| {} | {} | {} to {} |".format(markdown_text(name), *shown))
    failed = sum(results["failures"].values())
    return "\n".join([*lines, "", f"{results['rows']} rows, {failed} answers could not be parsed."])


def _yaml(value: dict[str, Any]) -> str:
    """Return settings as YAML in a Markdown code block."""
    plain = json.loads(json.dumps(value))
    text = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=100)
    return markdown_fence(text, "yaml")


def _set(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass object as a dict, without fields that are None."""
    return {name: own for name, own in asdict(value).items() if own is not None}
