"""Tables that map names in configs and command-line options to import paths.

To add a task, model family, baseline, loss term, importer or scorer, add its file and one line in a
table here. The tables hold import paths instead of classes, so importing this module is fast.
"""

import importlib
import json
import os
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from importlib.machinery import ModuleSpec, PathFinder
from types import FrameType
from typing import Any

from mm_numeric.answers import (
    Box,
    Choice,
    ClockReading,
    ClockTime,
    Instances,
    Number,
    ShortAnswer,
    Text,
    TimeSpans,
)
from mm_numeric.io.log import logger

TASKS: Mapping[str, str] = {
    "approximate_numbers": "mm_numeric.tasks.number_questions:ApproximateNumbers",
    "arithmetic": "mm_numeric.tasks.number_questions:Arithmetic",
    "click": "mm_numeric.tasks.pointing:Click",
    "clock": "mm_numeric.tasks.clock:Clock",
    "clockbench": "mm_numeric.tasks.clockbench:ClockBench",
    "counting": "mm_numeric.tasks.counting:Counting",
    "detection": "mm_numeric.tasks.detection:Detection",
    "grounding": "mm_numeric.tasks.grounding:Grounding",
    "gsm8k": "mm_numeric.tasks.gsm8k:GSM8K",
    "mathematics": "mm_numeric.tasks.number_questions:Mathematics",
    "mathvista": "mm_numeric.tasks.mathvista:MathVista",
    "measurement": "mm_numeric.tasks.measurement:ReadInstrument",
    "multirc": "mm_numeric.tasks.multirc:MultiRC",
    "numbers": "mm_numeric.tasks.number_questions:Numbers",
    "pointing": "mm_numeric.tasks.pointing:Pointing",
    "rjokes": "mm_numeric.tasks.number_questions:RJokes",
    "temporal_spans": "mm_numeric.tasks.temporal_spans:FindSpans",
    "text_detection": "mm_numeric.tasks.text_detection:TextDetection",
    "text_spotting": "mm_numeric.tasks.text_spotting:TextSpotting",
}

GENERATORS: Mapping[str, str] = {
    "arithmetic": "mm_numeric.synthetic.sums:Arithmetic",
    "charts": "mm_numeric.synthetic.bar_charts:Charts",
    "clips": "mm_numeric.synthetic.clips:Clips",
    "clocks": "mm_numeric.synthetic.clock_faces:Clocks",
    "counts": "mm_numeric.synthetic.scenes:Counts",
    "instruments": "mm_numeric.synthetic.instruments:Instruments",
    "multiplication": "mm_numeric.synthetic.sums:Multiplication",
    "objects": "mm_numeric.synthetic.scenes:Objects",
    "phrases": "mm_numeric.synthetic.scenes:Phrases",
    "points": "mm_numeric.synthetic.scenes:Points",
    "screens": "mm_numeric.synthetic.screens:Screens",
    "words": "mm_numeric.synthetic.word_pages:Words",
}
"""Maps the name of a generator of synthetic rows to its class."""

FAMILIES: Mapping[str, str] = {
    "paligemma": "mm_numeric.families.paligemma:PaliGemma",
    "llava": "mm_numeric.families.llava:Llava",
    "yi_vl": "mm_numeric.families.yi_vl:YiVL",
    "qwen2_vl": "mm_numeric.families.qwen2_vl:Qwen2VL",
    "qwen2_5_vl": "mm_numeric.families.qwen2_5_vl:Qwen2_5VL",
    "qwen3_vl": "mm_numeric.families.qwen3_vl:Qwen3VL",
    "florence2": "mm_numeric.families.florence2:Florence2",
    "chat": "mm_numeric.families.chat:Chat",
    "causal_lm": "mm_numeric.families.causal_lm:CausalLM",
    "t5": "mm_numeric.families.t5:T5",
}

API = "api"
"""Family of models on a server with a chat API (``mm_numeric.families.api``). No weights, processor
or tokenizer are loaded. These models only work with ``predict --endpoint``, not for training."""

BASELINES: Mapping[str, str] = {
    "regression_head": "mm_numeric.baselines.regression_head:RegressionHead",
    "regression_transformer": "mm_numeric.baselines.regression_transformer:RegressionTransformer",
    "xval": "mm_numeric.baselines.xval:Xval",
}

PIXEL_OPERATIONS: Mapping[str, str] = {
    "blur": "mm_numeric.data.augmentations:blur",
    "colour": "mm_numeric.data.augmentations:colour",
    "jpeg": "mm_numeric.data.augmentations:jpeg",
}
AUGMENTATIONS: Mapping[str, str] = {
    **PIXEL_OPERATIONS,
    "crop": "mm_numeric.data.augmentations:crop",
    "flip": "mm_numeric.data.augmentations:flip",
    "mosaic": "mm_numeric.data.augmentations:mosaic",
    "rotate": "mm_numeric.data.augmentations:rotate",
    "scale": "mm_numeric.data.augmentations:scale",
}
"""Operations of ``data.augment``. Every task allows ``PIXEL_OPERATIONS``; the others must be listed
in the ``augmentations`` of the task."""

TERMS: Mapping[str, str] = {
    "digit_ce": "mm_numeric.losses.terms.digit_cross_entropy:PlaceWeightedCrossEntropy",
    "gce": "mm_numeric.losses.terms.soft_targets:GaussianCrossEntropy",
    "ntl_was": "mm_numeric.losses.terms.expected_distance:ExpectedDistance",
    "ntl_was_cdf": "mm_numeric.losses.terms.expected_distance:CumulativeDistance",
    "ntl_mse": "mm_numeric.losses.terms.expected_value:SquaredError",
    "ntl_mae": "mm_numeric.losses.terms.expected_value:AbsoluteError",
    "ntl_huber": "mm_numeric.losses.terms.expected_value:HuberError",
    "raft": "mm_numeric.losses.terms.expected_value:RegressionAware",
    "nl_ntl": "mm_numeric.losses.terms.whole_number:SymmetricPercentage",
    "rps": "mm_numeric.losses.terms.expected_distance:RankedProbability",
    "emd": "mm_numeric.losses.terms.expected_distance:DigitDistance",
    "emd_exp": "mm_numeric.losses.terms.expected_distance:PlaceWeightedDistance",
    "relative": "mm_numeric.losses.terms.whole_number:RelativeError",
    "magnitude": "mm_numeric.losses.terms.whole_number:MagnitudeError",
    "relative_soft": "mm_numeric.losses.terms.whole_number:SoftRelativeError",
    "magnitude_soft": "mm_numeric.losses.terms.whole_number:SoftMagnitudeError",
}

IMPORTERS: Mapping[str, str] = {
    "rows": "mm_numeric.importers.own_rows:Rows",
    "coco": "mm_numeric.importers.coco:Coco",
    "yolo": "mm_numeric.importers.yolo:Yolo",
    "voc": "mm_numeric.importers.voc:Voc",
    "dota": "mm_numeric.importers.dota:Dota",
    "refcoco": "mm_numeric.importers.refcoco:RefCoco",
    "charades_sta": "mm_numeric.importers.moments:CharadesSta",
    "qvhighlights": "mm_numeric.importers.moments:QvHighlights",
    "activitynet": "mm_numeric.importers.moments:ActivityNet",
    "icdar2015": "mm_numeric.importers.scene_text:Icdar2015",
    "mmocr": "mm_numeric.importers.mmocr:MMOCR",
    "totaltext": "mm_numeric.importers.scene_text:TotalText",
    "ctw1500": "mm_numeric.importers.scene_text:CTW1500",
    "hiertext": "mm_numeric.importers.text_json:HierText",
    "textocr": "mm_numeric.importers.text_json:TextOCR",
    "llava": "mm_numeric.importers.llava:LlavaImporter",
    "mathematics": "mm_numeric.importers.mathematics:MathematicsImporter",
    "rjokes": "mm_numeric.importers.rjokes:RJokesImporter",
    "mathvista": "mm_numeric.importers.mathvista:MathVistaImporter",
    "clockbench": "mm_numeric.importers.clockbench:ClockBenchImporter",
    "gsm8k": "mm_numeric.importers.gsm8k:GSM8KImporter",
    "multirc": "mm_numeric.importers.multirc:MultiRCImporter",
    "tallyqa": "mm_numeric.importers.tallyqa:TallyQA",
    "measurebench": "mm_numeric.importers.measurebench:MeasureBench",
    "chartqa": "mm_numeric.importers.charts:ChartQA",
    "plotqa": "mm_numeric.importers.charts:PlotQA",
    "screenspot": "mm_numeric.importers.clicks:ScreenSpot",
    "osworld_g": "mm_numeric.importers.clicks:OsWorldG",
    "pixmo_points": "mm_numeric.importers.pointing:PixMoPoints",
    "where2place": "mm_numeric.importers.pointing:Where2Place",
    "refspatial": "mm_numeric.importers.pointing:RefSpatial",
}

EXPORTERS: Mapping[str, str] = {
    "ms-swift": "mm_numeric.importers.export_texts:MsSwift",
    "llamafactory": "mm_numeric.importers.export_texts:LlamaFactory",
    "trl": "mm_numeric.importers.export_texts:Trl",
}
"""Tools that ``mm-numeric prepare --to`` writes data sets for."""

_FORMATS: Mapping[str, str] = {
    "detection": "coco yolo voc dota",
    "grounding": "refcoco llava",
    "temporal_spans": "charades_sta qvhighlights activitynet",
    "text_detection": "icdar2015 mmocr totaltext ctw1500",
    "text_spotting": "hiertext textocr",
    "mathematics": "mathematics",
    "rjokes": "rjokes",
    "mathvista": "mathvista",
    "gsm8k": "gsm8k",
    "multirc": "multirc",
    "clockbench": "clockbench",
    "counting": "tallyqa",
    "measurement": "measurebench",
    "approximate_numbers": "chartqa plotqa",
    "click": "screenspot osworld_g",
    "pointing": "pixmo_points where2place refspatial",
}
TASK_OF_FORMAT: Mapping[str, str] = {
    name: task for task, names in _FORMATS.items() for name in names.split()
}
"""Maps a format of ``mm-numeric prepare`` to the task of its rows. ``score`` uses it if no task is
named. Rows of ``grounding`` and ``detection`` are distinguished by their fields (``task_of_row``),
because one format may have both. The format ``rows`` is for several tasks."""


def task_of_row(row: Mapping[str, Any]) -> str | None:
    """Return ``grounding`` for a row with a box, ``detection`` for instances, otherwise None."""
    # A table writes null into the columns that a row does not use.
    if any(row.get(name) is not None for name in ("box", "box_xyxy", "box_xywh")):
        return "grounding"
    return "detection" if row.get("instances") is not None else None


SCORERS: Mapping[type, str] = {
    Box: "mm_numeric.evaluation.metrics.boxes:BOXES",
    Instances: "mm_numeric.evaluation.metrics.detection:TEXT_DETECTION",
    ClockTime: "mm_numeric.evaluation.metrics.clock:TIMES",
    ClockReading: "mm_numeric.evaluation.metrics.clockbench:CLOCKBENCH",
    Number: "mm_numeric.evaluation.metrics.number_errors:NUMBERS",
    ShortAnswer: "mm_numeric.evaluation.metrics.mathvista:MATHVISTA",
    Text: "mm_numeric.evaluation.metrics.text:TEXTS",
    TimeSpans: "mm_numeric.evaluation.metrics.temporal_spans:SPANS",
    Choice: "mm_numeric.evaluation.metrics.text:CHOICES",
}
"""Maps each answer type to its scorer. A task or a config with ``scorer`` overrides it."""

RISKS: Mapping[str, str] = {
    "absolute": "mm_numeric.inference.risks:ABSOLUTE",
    "accuracy_at_T": "mm_numeric.inference.risks:accuracy_at",
    "circular_minutes": "mm_numeric.inference.risks:CIRCULAR_MINUTES",
    "exact": "mm_numeric.inference.risks:EXACT",
    "f1_at_T": "mm_numeric.inference.risks:f1_at",
    "iou": "mm_numeric.inference.risks:IOU",
    "panoptic_quality": "mm_numeric.inference.risks:PANOPTIC_QUALITY",
    "quantile_T": "mm_numeric.inference.risks:quantile",
    "relative": "mm_numeric.inference.risks:RELATIVE",
    "within_T_minutes": "mm_numeric.inference.risks:within_minutes",
}
"""Risks (costs of answers) that decoding can minimise. A config has a number in place of T, as in
``accuracy_at_0.5``. An entry with T is a function that returns the risk for this number."""

RISK_OF_ANSWER: Mapping[type, str] = {
    Box: "iou",
    Instances: "panoptic_quality",
    ClockTime: "circular_minutes",
    Number: "absolute",
}
"""Maps an answer type to its risk. The risk of all other answer types is ``exact``. A task can set
another risk with its attribute ``risk``."""

REWARDS: Mapping[str, str] = {
    "acc": "mm_numeric.rewards.rules:accuracy",
    "correct": "mm_numeric.rewards.rules:CORRECT",
    "f1": "mm_numeric.rewards.rules:f1",
    "format": "mm_numeric.rewards.rules:FORMAT",
    "iou": "mm_numeric.rewards.rules:IOU",
    "point_f1": "mm_numeric.rewards.rules:POINT_F1",
    "point_gaussian": "mm_numeric.rewards.rules:POINT_GAUSSIAN",
    "relative_error": "mm_numeric.rewards.rules:RELATIVE_ERROR",
    "time": "mm_numeric.rewards.rules:TIME",
}
"""Reward rules. The entry of a rule with a threshold, such as ``acc@0.5``, is a function that
returns the rule for a threshold. Without ``@``, the threshold is 0.5."""

REPORT_SECTIONS: Mapping[str, str] = {
    "clock": "mm_numeric.evaluation.report.clock_gallery:sections",
    "numbers": "mm_numeric.evaluation.report.number_answers:sections",
    "points": "mm_numeric.evaluation.report.shape_gallery:point_sections",
    "shapes": "mm_numeric.evaluation.report.shape_gallery:sections",
    "spans": "mm_numeric.evaluation.report.span_gallery:sections",
}
"""Optional report chapters, and the function that writes each; a task lists the chapters that it
needs in ``report_sections``."""

LOCAL_ENGINE = "local"

ENGINES: Mapping[str, str] = {
    LOCAL_ENGINE: "mm_numeric.comparison.engines.local:execute",
    "ray": "mm_numeric.comparison.engines.ray:execute",
}
"""Functions that execute the runs of a comparison. Their arguments are the comparison's config,
folder and unfinished runs (``comparison.plan.Run``, each after the runs that it waits for)."""

PROTOCOLS: Mapping[str, str] = {
    "icdar2015": "mm_numeric.evaluation.metrics.detection:TEXT_DETECTION",
    "icdar2015_end_to_end": "mm_numeric.evaluation.metrics.text_spotting:TEXT_SPOTTING",
    "labelled": "mm_numeric.evaluation.metrics.detection:LABELLED_DETECTION",
    "deteval_total_text": "mm_numeric.evaluation.metrics.deteval:DETEVAL_TOTAL_TEXT",
    "coco_ap": "mm_numeric.evaluation.metrics.coco_ap:COCO_AP",
}
"""Evaluation protocols for lists of shapes. The first one is the default for text detection."""

RANK_FIELDS = ("scores", "token_scores")
"""Fields of a row of a predictions file that have one number for each shape of the answer. COCO's
average precision can rank by either; the first is the default."""

EXTRA_OF: Mapping[str, str] = {
    "PIL": "eval",
    "jinja2": "eval",
    "markupsafe": "eval",
    "pycocotools": "eval",
    "shapely": "eval",
    "tqdm": "eval",
    "accelerate": "train",
    "fsspec": "train",
    "huggingface_hub": "train",
    "peft": "train",
    "safetensors": "train",
    "tokenizers": "train",
    "torch": "train",
    "transformers": "train",
}
"""Each package that scoring and training import, and the extra of mm-numeric that installs it; the
extra ``train`` includes ``eval``. The losses only need torch, not an extra."""


_THRESHOLD = re.compile(r"(?<=_)[0-9]+(?:\.[0-9]+)?(?=_|$)")


def split_threshold(name: str) -> tuple[str, float | None]:
    """Split the name of a risk: ``accuracy_at_0.5`` -> (``accuracy_at_T``, 0.5).

    The first item is a key of ``RISKS``, if the risk exists. A name without a number and an import
    path are returned unchanged, with None. ``within_1_minute`` gives (``within_T_minutes``, 1).
    """
    found = _THRESHOLD.search(name)
    if found is None or ":" in name:
        return name, None
    key = f"{name[: found.start()]}T{name[found.end() :]}"
    return re.sub("_minute$", "_minutes", key), float(found[0])


def choose(name: str, table: Mapping[str, Any], what: str, where: str) -> Any:
    """Return the object that a config or an option names, and import it if necessary.

    ``name`` is a key of ``table``, such as ``clock``, or an import path ``package.module:Name``.
    The values of ``table`` are objects or import paths. In error messages, ``what`` describes the
    object ("loss term"), and ``where`` is the file and field that contain the name.
    """
    if name not in table and ":" not in name:
        raise unknown(name, table, what, where)
    entry = table.get(name, name)
    return load(entry, where) if isinstance(entry, str) else entry


def scorer_of(task: Any, name: str, answer: Any, where: str) -> Any:
    """Return the ``Scorer`` named by the config, else by the task class, else by the answer type.

    If ``task.main_category`` is set, the scorer's main metric is computed on the rows of this
    category. ``name`` (of the task) and ``where`` (its file) are for error messages.
    """
    path = task.scorer or type(task).scorer or SCORERS.get(type(answer))
    if path is None:
        raise ValueError(f"{where}: the task {name!r} has no `scorer`; add one to score it.")
    if not isinstance(path, str):
        raise ValueError(
            f"{where}: the scorer of the task {name!r} is an object; set its import path, such as "
            "scorer = 'my_tasks:SCORER'."
        )
    scorer = load(path, where)
    if not hasattr(scorer, "metrics"):  # evaluation.metrics.base.Scorer, which loads numpy
        raise ValueError(f"{where}: {path!r} is no Scorer; see docs/extending.md for one.")
    return replace(scorer, main_category=task.main_category) if task.main_category else scorer


class _Plugins:
    """Imports plugin modules that trusted configs name, and what these import from their folders.

    If these folders were on ``sys.path`` instead, every library would find its optional imports
    there: a file ``wandb.py`` of a run folder would be executed.
    """

    def __init__(self, folders: Iterable[str] = (), names: Iterable[str] = ()) -> None:
        self.folders, self.names = list(folders), set(names)
        self._found: dict[str, str] = {}  # the folder of each module

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Find a module in the folders, after all other finders. See ``sys.meta_path``."""
        importer = _importer()
        if path is not None or not (name in self.names or importer in self._found):
            return None
        for folder in self.folders if name in self.names else [self._found[importer]]:
            if (spec := PathFinder.find_spec(name, [folder])) is not None:
                self._found[name] = folder
                self.add(name=name)
                return spec
        return None

    def add(self, folder: str | None = None, name: str | None = None) -> None:
        """Add a folder, or the name of a module that may be imported from any of the folders."""
        if folder is not None and folder not in self.folders:
            self.folders.append(folder)
        if name is not None:
            self.names.add(name)
        # Data loaders and Ray send objects of these modules to other processes.
        os.environ[PLUGINS] = json.dumps([self.folders, sorted(self.names)])


PLUGINS = "MM_NUMERIC_PLUGINS"
"""Environment variable that passes the folders and names of ``_Plugins`` to child processes."""

_PLUGINS = _Plugins(*json.loads(os.environ.get(PLUGINS, "[]")))
sys.meta_path.append(_PLUGINS)


def _importer() -> str:
    """Return the name of the module or package whose code imports a module now."""
    frame: FrameType | None = sys._getframe(2)
    name = "importlib"
    while frame is not None and name == "importlib":
        name = str(frame.f_globals.get("__name__")).partition(".")[0]
        frame = frame.f_back
    return name


def load(path: str, where: str) -> Any:
    """Import and return the object at ``package.module:Name``.

    Modules that are not installed are found next to the config and in the working directory.
    """
    module, _, attribute = path.partition(":")
    name = module.partition(".")[0]
    if name != "mm_numeric":
        _PLUGINS.add(os.getcwd(), name)
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError, TypeError) as error:  # ":X", ".a:X"
        hint = ""
        if isinstance(error, ModuleNotFoundError):
            if _package(error) in EXTRA_OF:
                raise
            hint = " Modules are found next to the config, in the working folder and in PYTHONPATH."
        raise ValueError(f"{where}: {path!r} cannot be imported ({error}).{hint}") from error


def import_from(folder: str) -> None:
    """Let ``load`` find modules in a folder, in this process and in its child processes."""
    if folder not in (*_PLUGINS.folders, os.getcwd()):
        logger.info("modules of the config are also imported from %s", folder)
    _PLUGINS.add(folder)


def missing_package(error: ModuleNotFoundError, extra: str = "eval") -> str:
    """Return an error message with the extra of mm-numeric that installs the missing package.

    ``extra`` is the extra that the caller needs in any case. Re-raises the error if no extra has
    the package.
    """
    package = _package(error)
    if package not in EXTRA_OF:
        raise error
    extra = max(extra, EXTRA_OF[package])  # "train", if either is
    return f"{package} is not installed; run `pip install 'mm-numeric[{extra}]'`."


def _package(error: ModuleNotFoundError) -> str:
    return (error.name or "").partition(".")[0]


def import_extra(package: str, where: str, extra: str) -> Any:
    """Import an optional package; raise ValueError if it is not installed.

    ``where`` is the option that needs it, and ``extra`` the extra of mm-numeric that installs it.
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise ValueError(
            f"{where}: {package} is not installed ({error}); run `pip install "
            f"'mm-numeric[{extra}]'`."
        ) from error


def unknown(
    name: object, known: Iterable[str], what: str, where: str, meant: str | None = None
) -> ValueError:
    """Return a ValueError with the known names, or the three most similar if there are over 40.

    ``meant`` is the name that ``name`` most likely stands for; None to search for a similar one.
    """
    names = sorted(known)
    near = [meant] if meant else get_close_matches(str(name), names, n=1)
    near = near or [n for n in names if n == str(name).lower()]
    hint = f" Did you mean {near[0]!r}?" if near else ""
    if not near and "." in str(name) and what != "setting":
        hint = " An import path has a colon before the name: package.module:Name."
    listed = f"Known: {', '.join(names) or 'none'}."
    if len(names) > 40:
        within = [known_name for known_name in names if str(name) in known_name]
        nearest = [*near, *within, *get_close_matches(str(name), names, n=3, cutoff=0)]
        listed = f"Nearest of {len(names)}: {', '.join(list(dict.fromkeys(nearest))[:3])}."
    return ValueError(f"{where}: there is no {what} {name!r}.{hint} {listed}")
