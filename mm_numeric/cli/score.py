"""The commands ``mm-numeric score`` and ``mm-numeric decode``, which read answers of any tool."""

import argparse
import re
import shlex
from pathlib import Path
from typing import Any

from mm_numeric.cli.overview import positive
from mm_numeric.cli.predict import add_connection, connection_of
from mm_numeric.config.decoding import MBR, MODE, check_decode
from mm_numeric.io.log import show
from mm_numeric.registry import PROTOCOLS, RANK_FIELDS

SIZES = ("min_pixels", "max_pixels", "image_max_pixels")
"""Names of the options of ``add_sizes``."""

_COCO = {
    "ties": "ties", "iou": "iou", "rank_by": "rank_by", "max_dets": "max_detections",
    "areas": "areas",
}  # fmt: skip
"""Options of the protocol coco_ap, and the fields of ``metrics.coco_ap.Rules`` that they set."""

_REQUIRED = {
    "--rows, the file of the rows that were answered, or --target": (
        "family", "frame", *SIZES, "images", "option", "id", "text", "list"
    ),
    "--truth, the true shapes": ("lines",),
    "--extract-with, the URL of a judge": ("extract_model", "timeout", "proxy"),
    "--protocol coco_ap": (*_COCO,),
}  # fmt: skip
"""Maps a required option, with its description, to the options that require it."""

_ONLY_JSONL = ("task", "keep", "partial", "extract_with", "rank_by")
"""Options for the rows of a .jsonl file, which are an error for detections (``--truth``)."""


def add_score_options(score: argparse.ArgumentParser) -> None:
    """Add the options of ``score``."""
    add_partial(score, "rows without an answer")
    score.add_argument(
        "predictions",
        type=Path,
        help="a .jsonl file with id, text and target; with --rows, answers of any tool; with "
        "--truth, detections of another tool",
    )
    score.add_argument(
        "--task",
        help="name of the task, if the rows do not contain it; or an import path such as "
        "my_tasks:Thermometer, which rows may not name themselves",
    )
    score.add_argument(
        "--scorer", help="import path of a scorer in place of the task's, such as my_tasks:SCORER"
    )
    score.add_argument(
        "--keep",
        choices=["last"],
        help="score the last of several rows with the same id (default: such rows are an error)",
    )
    score.add_argument(
        "--protocol",
        help=f"how shapes are matched and scored: {', '.join(PROTOCOLS)} (default: that of the "
        "task; icdar2015 for text files, labelled for COCO results)",
    )
    score.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="folder for results.json, which has a section for each --protocol, and scores.jsonl; "
        "for a file NAME.jsonl that predict did not write, NAME.results.json and NAME.scores.jsonl "
        "(default: that of the predictions)",
    )
    add_joined_rows(score)
    _add_truth(score)
    _add_coco(score)
    _add_judge(score)


def add_partial(parser: argparse.ArgumentParser, what: str) -> None:
    """Add the option that allows ``what``, such as rows without an answer."""
    parser.add_argument(
        "--partial",
        action="store_true",
        help=f"allow {what} (default: an error, if the number of rows is known)",
    )


def add_decode_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``decode``."""
    add_partial(parser, "rows without an answer")
    parser.add_argument(
        "answers",
        type=Path,
        help="file with several texts of each question: rows with the same id, or a list `texts`, "
        "with optional `weights` or `logprobs`; or a file of another tool",
    )
    parser.add_argument(
        "--rule",
        choices=("mean", "median", MBR, MODE),
        default=MBR,
        help="rule that chooses the answer: mean (least squared error), median (least absolute "
        "error), mbr (least expected risk; default), or mode (the most frequent answer)",
    )
    parser.add_argument(
        "--for",
        dest="risk",
        metavar="RISK",
        help="risk of mbr, such as accuracy_at_0.5 (default: that of the task)",
    )
    parser.add_argument(
        "--task", help="name of the task, or an import path such as my_tasks:Thermometer"
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="predictions file to write (default: ANSWERS.RULE.jsonl)",
    )
    add_joined_rows(parser, required=True)


def add_joined_rows(parser: argparse.ArgumentParser, *, required: bool = False) -> None:
    """Add the options that join answers of any tool with the rows that were answered."""
    joined = parser.add_argument_group(
        "answers of other tools",
        "Targets and image sizes come from the rows that were answered. Files of ms-swift, "
        "LLaMA-Factory, lmms-eval, lm-eval, VLMEvalKit (.xlsx, .tsv, .json), MathVista, LLaVA, "
        "VLM-R1, OpenAI batches and TRL (.parquet) are recognised; --id and --text name the fields "
        "of other files.",
    )
    joined.add_argument(
        "--rows",
        type=Path,
        required=required,
        metavar="FILE",
        help="rows that were answered, in the order asked",
    )
    if not required:
        joined.add_argument(
            "--target",
            metavar="FIELD",
            help="field of the answers with the correct answer, in place of --rows: a text as the "
            "model writes it, or a value such as a box in pixels",
        )
    add_family(joined, "whose coordinates the answers have", "that wrote them")
    add_sizes(joined)
    joined.add_argument(
        "--images",
        metavar="FOLDER",
        help="folder of the images, if the rows have no width and height (default: that of --rows)",
    )
    joined.add_argument(
        "--id", metavar="FIELD", help="field of the answers with the id of the row; a.b is b in a"
    )
    joined.add_argument("--text", metavar="FIELD", help="field of the answers with the text")
    joined.add_argument(
        "--list",
        metavar="FIELD",
        help="field of a .json file with the list of answers, if it has several lists",
    )


def add_family(group: argparse._ArgumentGroup, whose: str, which: str) -> None:
    """Add the options of the model whose coordinates are read or written, and of the task."""
    frames = group.add_mutually_exclusive_group()
    frames.add_argument(
        "--family",
        metavar="NAME",
        help=f"model family {whose}, such as qwen2_5_vl, with the image sizes of its published "
        "checkpoints",
    )
    frames.add_argument(
        "--frame",
        metavar="NAME",
        help="format of the coordinates, such as pixels_original or relative_1000; or the folder "
        f"of the model {which} (with frame.json)",
    )
    group.add_argument(
        "--option",
        action="append",
        metavar="NAME=VALUE",
        help="option of the task, such as ask=each; may be repeated",
    )


def add_sizes(joined: argparse._ArgumentGroup) -> None:
    """Add the options for the limits to which a tool resizes images."""
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


def _add_truth(score: argparse.ArgumentParser) -> None:
    files = score.add_argument_group("detections of any detector")
    files.add_argument(
        "--truth",
        type=Path,
        metavar="PATH",
        help="ground truth: a folder or zip of text files (ICDAR), a COCO instances file, or a CSV "
        "file with the columns image, x1, y1, x2, y2 and label; nothing is written without --out",
    )
    files.add_argument(
        "--lines",
        help="shape in each line of the text files: box, quad, polygon, polygon_yx "
        "(default: detected from the first line)",
    )


def _add_judge(score: argparse.ArgumentParser) -> None:
    judge = score.add_argument_group("answers that a judge extracts (MathVista)")
    judge.add_argument(
        "--extract-with",
        metavar="URL",
        help="URL of a judge, an LLM with an OpenAI-compatible API such as "
        "https://api.openai.com/v1, that extracts MathVista's answers; it gets the API key in "
        "OPENAI_API_KEY, and its answers are stored in extractions.jsonl",
    )
    judge.add_argument(
        "--extract-model",
        metavar="NAME",
        help="model of --extract-with (default: gpt-4-0613, as in MathVista's script)",
    )
    add_connection(judge, "--extract-with", 120)


def _add_coco(score: argparse.ArgumentParser) -> None:
    coco = score.add_argument_group("--protocol coco_ap")
    coco.add_argument(
        "--ties",
        metavar="ORDER",
        help="order of equal scores: official (as in pycocotools; default) or "
        "averaged over all orders, which also allows results without scores",
    )
    coco.add_argument(
        "--iou",
        choices=["bbox", "segm"],
        help="shapes that are compared: bbox (boxes; default) or segm (masks of COCO files, as "
        "polygons or RLE)",
    )
    coco.add_argument(
        "--rank-by",
        choices=RANK_FIELDS,
        help="field of the answers in a .jsonl file to rank by (default: scores, the confidence of "
        "each object; token_scores is the mean probability of its tokens)",
    )
    coco.add_argument(
        "--max-dets",
        type=positive,
        nargs="+",
        metavar="N",
        help="detections per image and label: AR for each N, and AP for the largest "
        "(default: 1 10 100)",
    )
    coco.add_argument(
        "--areas",
        type=_area,
        nargs="+",
        metavar="NAME=MIN:MAX",
        help="area ranges, in square pixels (default: small=0:1024 medium=1024:9216 "
        "large=9216:1e10)",
    )


def _area(text: str) -> tuple[str, tuple[float, float]]:
    number = r"[0-9]+(?:\.[0-9]*)?(?:e[0-9]+)?"
    found = re.fullmatch(f"([a-z][a-z0-9_]*)=({number}):({number})", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text:.40} is not a range such as small=0:1024")
    return found[1], (float(found[2]), float(found[3]))


def score_answers(arguments: argparse.Namespace) -> None:
    """Score answers, and print the metrics."""
    predictions, truth = arguments.predictions, arguments.truth
    is_text = predictions.is_dir() or predictions.suffix == ".zip"
    _check_options(arguments)
    _check_predictions(predictions)
    is_ranked = arguments.protocol == "coco_ap"
    rows_are_missing = arguments.rows is None and arguments.target is None
    is_foreign = is_text or (is_ranked and predictions.suffix != ".jsonl")
    if truth is None and (rows_are_missing or predictions.suffix in (".csv", ".tsv")):
        from mm_numeric.evaluation.answers.detections import is_table

        if is_foreign or is_table(predictions):
            raise ValueError(f"{predictions}: files of other tools require --truth.")
    rows = prepared_rows(arguments)
    from mm_numeric.evaluation.answers.judge import Judge
    from mm_numeric.evaluation.metrics.coco_ap import Rules
    from mm_numeric.evaluation.score import score
    from mm_numeric.evaluation.score_text import results_table

    values = {field: getattr(arguments, name) for name, field in _COCO.items()}
    settings = {field: value for field, value in values.items() if value is not None}
    if "areas" in settings:
        settings["areas"] = dict(settings["areas"])
    judge = None
    if arguments.extract_with:
        connection = connection_of(arguments)
        judge = Judge(url=arguments.extract_with, model=arguments.extract_model, **connection)
    scores = score(
        predictions,
        task_name=arguments.task,
        scorer=arguments.scorer,
        protocol=Rules(**settings) if is_ranked else arguments.protocol,
        keep=arguments.keep,
        judge=judge,
        rows=rows,
        partial=arguments.partial,
        truth=truth,
        lines=arguments.lines,
        out=arguments.out,
    )
    show(results_table(scores))


def decode_answers(arguments: argparse.Namespace) -> None:
    """Decode answers, and write a predictions file."""
    path, rule, risk = arguments.answers, arguments.rule, arguments.risk
    if risk is not None:
        if rule != MBR:
            raise ValueError(f"--for is the risk of --rule {MBR}, and the rule is {rule}.")
        check_decode({"for": risk})
    out = arguments.out or path.with_name(f"{path.stem}.{rule}.jsonl")
    if out.suffix != ".jsonl" or out.resolve() == path.resolve():
        raise ValueError(f"--out {out}: name another file, which ends in .jsonl.")
    from mm_numeric.evaluation.answers.several_texts import decode_texts
    from mm_numeric.evaluation.answers.source import AnswerSource

    source = AnswerSource(predictions=path, task_name=arguments.task, partial=arguments.partial)
    found = decode_texts(source, prepared_rows(arguments), out, rule, risk)
    show(f"{found.answers} answers of {found.texts} texts ({found.parsed} parsed): {out}")
    partial = " --partial" if arguments.partial else ""
    # The rows of the file name the task, unless it is an import path.
    named = arguments.task is not None and ":" in arguments.task
    task = f" --task {arguments.task}" if named else ""
    show(f"next: mm-numeric score {shlex.quote(str(out))}{task}{partial}")


def _check_options(arguments: argparse.Namespace) -> None:
    def given(name: str) -> bool:
        return getattr(arguments, name) not in (None, False)

    def flag(name: str) -> str:
        return f"--{name.replace('_', '-')}"

    missing = [arguments.rows or arguments.target, arguments.truth, arguments.extract_with]
    missing.append(arguments.protocol if arguments.protocol == "coco_ap" else None)
    for (other, names), value in zip(_REQUIRED.items(), missing, strict=True):
        for name in filter(given, names if value is None else ()):
            raise ValueError(f"{flag(name)} requires {other}.")
    if given("truth") and arguments.predictions.suffix == ".jsonl":
        raise ValueError(
            f"{arguments.predictions}: --truth is for detections, which are text files or COCO "
            "JSON; the rows of a .jsonl file of answers have a target."
        )
    sources = [flag(name) for name in ("rows", "target", "truth") if given(name)]
    if len(sources) > 1:
        both = " and ".join(sources)
        raise ValueError(f"{both} name the correct answers; keep one of them.")
    for name in _ONLY_JSONL:
        if given("truth") and given(name):
            raise ValueError(
                f"{flag(name)} is for a .jsonl file of answers, or for --rows, and --truth is for "
                "detections; remove one of them."
            )
    for name in ("extract_with", "scorer"):
        if given(name) and given("protocol"):
            raise ValueError(f"{flag(name)} cannot be combined with --protocol.")


def _check_predictions(path: Path) -> None:
    """Raise ValueError if ``path`` is a run folder, or the missing predictions of a run."""
    from mm_numeric.runs.folder import CONFIG, PREDICTIONS

    run = path if path.is_dir() else path.parent
    if (run / CONFIG).is_file() and not path.is_file():
        file = run / PREDICTIONS
        first = "" if file.is_file() else f"run `mm-numeric predict --model {run}`, and then "
        what = "a run folder" if path.is_dir() else "there is no such file"
        raise ValueError(f"{path}: {what}; {first}score {file}.")


def prepared_rows(arguments: argparse.Namespace) -> Any:
    """Return the values of ``--rows`` or ``--target`` and related options; None without both."""
    target = getattr(arguments, "target", None)
    if arguments.rows is None and target is None:
        return None
    from mm_numeric.evaluation.answers.source import PreparedRows

    frame, options = read_family(arguments)
    return PreparedRows(
        path=arguments.rows or arguments.predictions,
        frame=frame,
        options=options,
        images=arguments.images,
        id_field=arguments.id,
        text_field=arguments.text,
        list_field=arguments.list,
        target_field=target,
    )


def read_family(arguments: argparse.Namespace) -> tuple[Any, dict[str, Any]]:
    """Return the frame of ``--family`` or ``--frame`` (None without both) and the task options."""
    from mm_numeric.geometry.frame_presets import AreaLimits, FrameRule
    from mm_numeric.settings import with_override

    frame, limits = None, AreaLimits(**{name: getattr(arguments, name) for name in SIZES})
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
    return frame, options
