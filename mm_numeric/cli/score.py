"""Options of ``mm-numeric score`` for answers of other programs, and for the protocol coco_ap."""

import argparse
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mm_numeric.registry import RANK_FIELDS

_SIZES = ("min_pixels", "max_pixels", "image_max_pixels")


def add_joined_rows(score: argparse.ArgumentParser) -> None:
    """Add ``--rows``, a file of the rows that another program answered, and related options."""
    joined = score.add_argument_group(
        "answers of other tools",
        "Targets and image sizes come from the rows that were answered. Files of ms-swift, "
        "LLaMA-Factory, lmms-eval, VLMEvalKit (.xlsx, .tsv, .json), OpenAI batches and TRL "
        "(.parquet) are recognised; --id and --text name the fields of other files.",
    )
    joined.add_argument(
        "--rows", type=Path, metavar="FILE", help="rows that were answered, in the order asked"
    )
    frames = joined.add_mutually_exclusive_group()
    frames.add_argument(
        "--family",
        metavar="NAME",
        help="model family whose coordinates the answers have, such as qwen2_5_vl, with the image "
        "sizes of its published checkpoints",
    )
    frames.add_argument(
        "--frame",
        metavar="NAME",
        help="format of the coordinates, such as pixels_original or relative_1000; or the folder "
        "of the model that wrote them (with frame.json)",
    )
    _add_sizes(joined)
    joined.add_argument(
        "--images",
        metavar="FOLDER",
        help="folder of the images, if the rows have no width and height (default: that of --rows)",
    )
    joined.add_argument(
        "--option",
        action="append",
        metavar="NAME=VALUE",
        help="option of the task, such as ask=each; may be repeated",
    )
    joined.add_argument(
        "--id", metavar="FIELD", help="field of the answers with the id of the row; a.b is b in a"
    )
    joined.add_argument("--text", metavar="FIELD", help="field of the answers with the text")


def _add_sizes(joined: argparse._ArgumentGroup) -> None:
    for name, what in (("--min-pixels", "smallest"), ("--max-pixels", "largest")):
        joined.add_argument(
            name,
            type=int,
            metavar="N",
            help=f"{what} area of a resized image, if the tool changed it (Qwen families, and "
            "--frame pixels_resized)",
        )
    joined.add_argument(
        "--image-max-pixels",
        type=int,
        metavar="N",
        help="area above which the tool shrank images before the model resized them "
        "(LLaMA-Factory's image_max_pixels, by default 589824)",
    )


def check_predictions(path: Path) -> None:
    """Raise ValueError if ``path`` is a run folder, or the missing predictions of a run."""
    from mm_numeric.runs.folder import CONFIG, PREDICTIONS

    run = path if path.is_dir() else path.parent
    if (run / CONFIG).is_file() and not path.is_file():
        file = run / PREDICTIONS
        first = "" if file.is_file() else f"run `mm-numeric predict --model {run}`, and then "
        what = "a run folder" if path.is_dir() else "there is no such file"
        raise ValueError(f"{path}: {what}; {first}score {file}.")


def prepared_rows(arguments: argparse.Namespace) -> Any:
    """Return the values of ``--rows`` and its related options, or None without ``--rows``."""
    names = ("family", "frame", *_SIZES, "images", "option", "id", "text")
    given = [name for name in names if getattr(arguments, name) is not None]
    if arguments.rows is None:
        if given:
            option = f"--{given[0].replace('_', '-')}"
            raise ValueError(f"{option} requires --rows, the file of the rows that were answered.")
        return None
    if arguments.truth is not None:
        raise ValueError("--rows and --truth both name the correct answers; remove one of them.")
    from mm_numeric.evaluation.answers.prepared_rows import PreparedRows
    from mm_numeric.geometry.frame_presets import AreaLimits, FrameRule
    from mm_numeric.settings import with_override

    frame, limits = None, AreaLimits(**{name: getattr(arguments, name) for name in _SIZES})
    if arguments.family is not None:
        frame = FrameRule.of_family(arguments.family, limits)
    elif arguments.frame is not None:
        frame = FrameRule.named(arguments.frame, limits)
    elif limits.given:
        raise ValueError(
            "--min-pixels, --max-pixels and --image-max-pixels require --family, or --frame "
            "pixels_resized."
        )
    options: dict[str, Any] = {}
    for option in arguments.option or ():
        options = with_override(options, option)
    return PreparedRows(
        path=arguments.rows,
        frame=frame,
        options=options,
        images=arguments.images,
        id_field=arguments.id,
        text_field=arguments.text,
    )


def add_ranking(score: argparse.ArgumentParser, positive: Callable[[str], int]) -> None:
    """Add the options of the protocol coco_ap; ``positive`` parses a whole number of at least 1."""
    score.add_argument(
        "--ties",
        metavar="ORDER",
        help="order of equal scores under coco_ap: official (as in pycocotools; default) or "
        "averaged over all orders, which also allows results without scores",
    )
    score.add_argument(
        "--iou",
        choices=["bbox", "segm"],
        help="shapes that coco_ap compares: bbox (boxes; default) or segm (masks of COCO files, as "
        "polygons or RLE)",
    )
    score.add_argument(
        "--rank-by",
        choices=RANK_FIELDS,
        help="field of the answers in a .jsonl file that coco_ap ranks by (default: scores, the "
        "confidence of each object; token_scores is the mean probability of its tokens)",
    )
    score.add_argument(
        "--max-dets",
        type=positive,
        nargs="+",
        metavar="N",
        help="detections per image and label under coco_ap: AR for each N, and AP for the largest "
        "(default: 1 10 100)",
    )
    score.add_argument(
        "--areas",
        type=_area,
        nargs="+",
        metavar="NAME=MIN:MAX",
        help="area ranges under coco_ap, in square pixels (default: small=0:1024 medium=1024:9216 "
        "large=9216:1e10)",
    )


def ranking_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the options of the protocol coco_ap; raise ValueError if another protocol is used."""
    names = {"ties": "ties", "iou": "iou", "max_dets": "max_detections", "areas": "areas"}
    names["rank_by"] = "rank_by"
    given = {name: getattr(arguments, name) for name in names}
    settings = {names[name]: value for name, value in given.items() if value is not None}
    if settings and arguments.protocol != "coco_ap":
        used = next(name for name in names if names[name] in settings).replace("_", "-")
        raise ValueError(f"--{used} requires --protocol coco_ap.")
    if "rank_by" in settings and arguments.truth is not None:
        raise ValueError("--rank-by is for a .jsonl file of answers; remove it, or --truth.")
    if "areas" in settings:
        settings["areas"] = dict(settings["areas"])
    return settings


def _area(text: str) -> tuple[str, tuple[float, float]]:
    number = r"[0-9]+(?:\.[0-9]*)?(?:e[0-9]+)?"
    found = re.fullmatch(f"([a-z][a-z0-9_]*)=({number}):({number})", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text:.40} is not a range such as small=0:1024")
    return found[1], (float(found[2]), float(found[3]))
