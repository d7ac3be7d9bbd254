"""Reject a run folder whose config would execute Python code without the user's permission.

A config that the user names on the command line may import modules. But a run folder may come from
somebody else: its config may import modules, or use the Python code of a checkpoint, only with
``--trust-remote-code``.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mm_numeric.io.files import read_json
from mm_numeric.losses.presets import PRESETS
from mm_numeric.registry import BASELINES, FAMILIES, GENERATORS, RISKS, SCORERS, TASKS
from mm_numeric.settings import setting_at

FLAG = "--trust-remote-code"

REMOTE_CODE = "model.trust_remote_code"


def named_code(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a config that would import a module or execute checkpoint code.

    An example is ``{"task": "my_tasks:Compass", "model.trust_remote_code": True}``. Python files
    with custom losses are not included, because only training imports them.
    """
    model = raw.get("model")
    model = model if isinstance(model, Mapping) else {}
    task = raw["task"] if isinstance(raw.get("task"), Mapping) else {}
    names: dict[str, tuple[Any, Mapping[Any, Any]]] = {
        "task": (_name(raw.get("task"), "name"), TASKS),
        "task.scorer": (task.get("scorer"), SCORERS),
        "model.family": (model.get("family"), FAMILIES),
        "model.baseline": (_name(model.get("baseline"), "name"), BASELINES),
        "objective": (_name(raw.get("objective"), "preset"), PRESETS),
    }
    for path in ("data.train", "data.test", "evaluate.data", "compare.select_on"):
        value = setting_at(raw, path)
        sources = {path: value}
        if isinstance(value, list):
            sources = {f"{path}.{i}": source for i, source in enumerate(value)}
        for where, source in sources.items():
            names[f"{where}.synthetic"] = setting_at(source, "synthetic.name"), GENERATORS
    found: dict[str, Any] = {
        setting: name
        for setting, (name, table) in names.items()
        if isinstance(name, str) and ":" in name and name not in (*table, *table.values())
    }
    if model.get("trust_remote_code"):
        found[REMOTE_CODE] = model["trust_remote_code"]
    return found


def code_of_predictions(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of ``named_code``, and a custom risk, which ``predict`` would import.

    The risk is not in ``named_code``, because it may change between predictions of a run.
    """
    predict = raw.get("predict")
    risk = _name(predict.get("decode") if isinstance(predict, Mapping) else None, "for")
    found = named_code(raw)
    if isinstance(risk, str) and ":" in risk and risk not in RISKS.values():
        found["predict.decode.for"] = risk
    return found


def require_no_code(raw: Mapping[str, Any], run: Path, weights: Path) -> None:
    """Raise ValueError if the config ``raw`` of a run folder would execute Python code.

    The error message lists the Python classes of the checkpoint in the folder ``weights``.
    """
    found = code_of_predictions(raw)
    if not found:
        return
    uses = [f"import {name} ({key})" for key, name in found.items() if key != REMOTE_CODE]
    if REMOTE_CODE in found:
        classes = checkpoint_code(weights)
        what = ", ".join(classes) if classes else "whatever its base model brings"
        uses.append(f"execute Python code of the checkpoint ({REMOTE_CODE}: {what})")
    raise ValueError(
        f"{run}: the config of this run would {' and '.join(uses)}, but a stored run may not "
        f"execute code by itself; if you trust whoever made it, add {FLAG}."
    )


def checkpoint_code(folder: Path) -> list[str]:
    """Return the custom Python classes that a checkpoint's JSON files list in ``auto_map``."""
    found: dict[str, None] = {}
    for file in sorted(folder.glob("*.json")):
        try:
            content = read_json(file)
        except ValueError:
            continue  # only for an error message, so unreadable files are left out
        classes = content.get("auto_map") if isinstance(content, Mapping) else None
        for names in classes.values() if isinstance(classes, Mapping) else ():
            for name in names if isinstance(names, list) else [names]:
                if name:
                    found[f"{name} in {file.name}"] = None
    return list(found)


def _name(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, Mapping) else value
