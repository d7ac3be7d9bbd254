"""The command line: ``mm-numeric COMMAND``.

Commands import what they need when they run, so that ``--help`` loads no torch.
"""

import argparse
import os
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mm_numeric.log import ALL_RANKS, logger, rank, set_verbosity, warnings_as_messages

EXAMPLES = """\
examples:
  mm-numeric ls                                        list tasks, families, losses and configs
  mm-numeric cp clock_tiny mine.yaml                   copy a shipped config
  mm-numeric check mine.yaml                           validate it and print it with all defaults
  mm-numeric prepare coco instances_val2017.json --out val.jsonl    convert a published format
  mm-numeric check-data mine.yaml                      validate the data before training
  mm-numeric train mine.yaml objective=emd             train, with one setting changed
  mm-numeric predict --model runs/mine --data test.jsonl --out predictions.jsonl
  mm-numeric score predictions.jsonl                   metrics, intervals, parse failures
  mm-numeric score submit.zip --truth gt.zip           score detections of another tool (ICDAR)
  mm-numeric compare clock_tiny                        compare objectives over several seeds
  mm-numeric export runs/mine --out my-model           merge adapters and write a model card
  torchrun --nproc-per-node 8 -m mm_numeric train mine.yaml
"""

_GLOBAL_FLAGS = ("--verbose", "--quiet")

_Run = Callable[[argparse.Namespace], None]
_Add = Callable[[str, str, _Run], argparse.ArgumentParser]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        0 on success, 1 if ``check-data`` or ``prepare`` found errors in the data, 2 for an error
        that the user can fix (one message on stderr), 130 if interrupted, 141 if stdout is closed.
    """
    parser = _parser()
    arguments, rest = parser.parse_known_args(argv)
    if rest:
        # argparse fills a positional list only once: overrides after an option are left over.
        overrides = all("=" in word and not word.startswith("-") for word in rest)
        if not overrides or "overrides" not in arguments:
            parser.error(f"unrecognized arguments: {' '.join(rest)}")
        arguments.overrides += rest
    set_verbosity(verbose="verbose" in arguments, quiet="quiet" in arguments)
    try:
        with warnings_as_messages():
            arguments.command(arguments)
        sys.stdout.flush()  # raises BrokenPipeError here and not when Python exits
    except (ValueError, OSError, KeyboardInterrupt) as error:
        return _exit_code(error)
    return 0


def _exit_code(error: BaseException) -> int:
    """Log an error as one message and return the exit code; raise what is not a user's error."""
    if isinstance(error, KeyboardInterrupt):
        logger.error("interrupted; finished work is kept.", extra=ALL_RANKS)
        return 130
    if isinstance(error, BrokenPipeError):  # `mm-numeric ls | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    message, extra = str(error), ALL_RANKS
    if os.environ.get("MM_NUMERIC_DEBUG"):
        raise error
    if isinstance(error, OSError):
        if error.filename is None:
            raise error
        message = f"{error.filename}: {error.strerror}."
    else:
        from mm_numeric.training.errors import EveryRankError

        if isinstance(error, EveryRankError):  # raised on all ranks; rank 0 reports it
            extra = {}
    logger.debug("traceback of the error:", exc_info=error, extra=extra)
    logger.error("%s", message, extra=extra)
    return 2


def _parser() -> argparse.ArgumentParser:
    shared = _global_options()
    parser = argparse.ArgumentParser(
        prog="mm-numeric",
        description="Fine-tune and evaluate models whose answers are numbers.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[shared],
    )
    # DeepSpeed's launcher puts it before the command; the rank is read from the environment.
    parser.add_argument("--local_rank", type=int, help=argparse.SUPPRESS)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def add(name: str, text: str, run: _Run) -> argparse.ArgumentParser:
        description = text[0].upper() + text[1:] + "."
        added = commands.add_parser(name, help=text, description=description, parents=[shared])
        added.set_defaults(command=run)
        return added

    add("ls", "list tasks, families, coordinate formats, losses and configs", _ls)
    for add_command in (
        _add_cp,
        _add_check,
        _add_prepare,
        _add_check_data,
        _add_train,
        _add_predict,
        _add_score,
        _add_compare,
        _add_export,
        _add_report,
    ):
        add_command(add)
    return parser


def _global_options() -> argparse.ArgumentParser:
    """Return the options that may stand before or after the command."""
    shared = argparse.ArgumentParser(add_help=False)
    level = shared.add_mutually_exclusive_group()
    # A default would overwrite the value that was given before the command.
    level.add_argument(
        "--verbose",
        action="store_true",
        default=argparse.SUPPRESS,
        help="also write debug messages, and the traceback of an error",
    )
    level.add_argument(
        "--quiet",
        action="store_true",
        default=argparse.SUPPRESS,
        help="write only errors to stderr, and no progress bars",
    )
    return shared


def _add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", help="path of a YAML file, or name of a shipped config")
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="KEY=VALUE",
        help="setting to change, such as trainer.learning_rate=1.0e-4",
    )


def _add_limit(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument(
        "--limit", type=_positive, metavar="N", help=f"use only the first N {what} (default: all)"
    )


def _ls(_: argparse.Namespace) -> None:
    from mm_numeric.config.catalog import shipped

    print(shipped())


def _add_cp(add: _Add) -> None:
    cp = add("cp", "copy a shipped config to a new file", _cp)
    cp.add_argument(
        "config", help="name of a shipped config, or of shipped DeepSpeed settings such as zero2"
    )
    cp.add_argument("file", type=Path, help="file to write; an existing file is not overwritten")


def _cp(arguments: argparse.Namespace) -> None:
    from mm_numeric.config.reader import find_config
    from mm_numeric.config.training_arguments import deepspeed_settings

    settings = deepspeed_settings().get(arguments.config)
    source = settings or find_config(arguments.config)
    if arguments.file.exists():
        raise ValueError(f"{arguments.file} exists; name another file.")
    if not arguments.file.parent.is_dir():
        raise ValueError(f"{arguments.file.parent}: there is no such folder.")
    shutil.copyfile(source, arguments.file)
    command = f"check {arguments.file}"
    if settings:
        command = f"train ... trainer.deepspeed={arguments.file}"
    print(f"{arguments.file}: copied from {source.name}; use it with `mm-numeric {command}`")


def _add_check(add: _Add) -> None:
    _add_config(add("check", "validate a config and print it with all defaults", _check))


def _check(arguments: argparse.Namespace) -> None:
    import yaml

    from mm_numeric.comparison.rows import read_comparison
    from mm_numeric.config.training_arguments import BY_MACHINE, trainer_defaults

    config = read_comparison(arguments.config, arguments.overrides)
    print(config.to_yaml(), end="")
    defaults = {"trainer": trainer_defaults(config.trainer)}
    text = yaml.safe_dump(defaults, sort_keys=True, width=100)
    print("\n# Defaults of transformers.TrainingArguments for the rest of `trainer`:")
    print("\n".join(f"# {line}" for line in text.splitlines()))
    print(f"# Chosen by the machine: {', '.join(BY_MACHINE)}.")


def _add_prepare(add: _Add) -> None:
    prepare = add("prepare", "convert a published data format to rows, with checksums", _prepare)
    prepare.epilog = "`mm-numeric prepare FORMAT --help` lists the options of a format."
    prepare.add_argument("format", metavar="FORMAT", help="a format listed by `mm-numeric ls`")
    prepare.add_argument(
        "words",
        nargs=argparse.REMAINDER,
        metavar="INPUT ... --out ROWS.jsonl",
        help="input files or folders, and options of the format",
    )


def _prepare(arguments: argparse.Namespace) -> None:
    from mm_numeric.importers.command import run

    # argparse.REMAINDER takes the global options too.
    words = [word for word in arguments.words if word not in _GLOBAL_FLAGS]
    if len(words) < len(arguments.words):
        verbose, quiet = (flag in arguments.words for flag in _GLOBAL_FLAGS)
        set_verbosity(verbose=verbose, quiet=quiet)
    if not run(arguments.format, words):
        sys.exit(1)


def _add_check_data(add: _Add) -> None:
    check_data = add("check-data", "validate the data of a config and show samples", _check_data)
    _add_config(check_data)
    check_data.add_argument(
        "--page",
        type=Path,
        metavar="FILE",
        help="HTML page to write (default: OUTPUT_DIR.check-data.html)",
    )
    check_data.add_argument(
        "--size",
        type=_size,
        metavar="WIDTHxHEIGHT",
        help="image size in pixels to assume when neither the file nor the row gives one",
    )
    _add_limit(check_data, "questions of each data source")
    check_data.add_argument(
        "--samples",
        type=_positive,
        default=12,
        metavar="N",
        help="number of questions shown on the page (default: 12)",
    )


def _check_data(arguments: argparse.Namespace) -> None:
    from mm_numeric.config.reader import read_config

    # The config is validated before the imports below load torch.
    config = read_config(arguments.config, arguments.overrides)
    from mm_numeric.evaluation.check_data.check import check_data
    from mm_numeric.evaluation.check_data.html_page import write_check_page
    from mm_numeric.evaluation.check_data.text import report_text

    folder = config.output_dir.resolve()  # "." has no name
    page = arguments.page or folder.with_name(f"{folder.name}.check-data.html")
    if page.is_dir():
        raise ValueError(f"--page: {page} is a folder; name a file in it.")
    report = check_data(config, limit=arguments.limit, size_px=arguments.size)
    write_check_page(report, page, samples=arguments.samples)
    *lines, last = report_text(report).split("\n")
    print("\n".join([*lines, f"page: {page.resolve()}", last]))
    if not report.ready:
        sys.exit(1)


def _add_train(add: _Add) -> None:
    train = add("train", "fine-tune a model from a config", _train)
    _add_config(train)
    train.add_argument(
        "--resume", action="store_true", help="resume from the last checkpoint of the run folder"
    )


def _train(arguments: argparse.Namespace) -> None:
    from mm_numeric.config.reader import read_config

    config = read_config(arguments.config, arguments.overrides)
    from mm_numeric.training.errors import StoppedError
    from mm_numeric.training.run import leave_process_group, train

    try:
        model = train(config, resume=arguments.resume, stoppable=True)
    except StoppedError as stopped:
        logger.warning("%s", stopped)
        model = None
    leave_process_group()
    if rank() == 0 and model is not None:
        print(f"trained: {model}")
        print(f"next: mm-numeric predict --model {config.output_dir}")


def _add_predict(add: _Add) -> None:
    predict = add("predict", "generate answers with a trained model", _predict)
    predict.add_argument(
        "--model", type=Path, required=True, metavar="RUN", help="folder of a finished run"
    )
    predict.add_argument(
        "--data", metavar="FILE", help="rows as .jsonl or .csv (default: test rows of the run)"
    )
    predict.add_argument(
        "--images",
        metavar="FOLDER",
        help="folder that image paths in the rows are relative to (default: that of --data)",
    )
    predict.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="file to append predictions to (default: RUN/predictions.jsonl)",
    )
    predict.add_argument(
        "--batch-size",
        type=_positive,
        metavar="N",
        help="batch size in rows (default: predict.batch_size of the run's config)",
    )
    predict.add_argument(
        "--max-new-tokens",
        type=_positive,
        metavar="N",
        help="maximum number of new tokens (default: predict.max_new_tokens of the run's config)",
    )
    _add_limit(predict, "rows")


def _predict(arguments: argparse.Namespace) -> None:
    from mm_numeric.config.data import DataSource

    if arguments.images and not arguments.data:
        raise ValueError("--images is the image folder of --data; add --data or remove --images.")
    from mm_numeric.inference.generate import predict
    from mm_numeric.run_folder import PREDICTIONS

    source = DataSource(path=arguments.data, images=arguments.images) if arguments.data else None
    out = arguments.out or arguments.model / PREDICTIONS
    count = predict(
        arguments.model,
        source,
        out,
        batch_size=arguments.batch_size,
        max_new_tokens=arguments.max_new_tokens,
        limit=arguments.limit,
    )
    print(f"{count} new answers: {out}")
    print(f"next: mm-numeric score {out}")


def _add_score(add: _Add) -> None:
    score = add("score", "score predictions, with intervals and counts of parse failures", _score)
    score.add_argument(
        "predictions",
        type=Path,
        help="a .jsonl file with id, text and target; with --truth, detections of another tool",
    )
    score.add_argument("--task", help="name of the task, if the rows do not contain it")
    score.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="folder for results.json and scores.jsonl (default: that of the predictions)",
    )
    score.add_argument(
        "--truth",
        type=Path,
        metavar="PATH",
        help="ground truth: a folder or zip of text files (ICDAR), or a COCO instances file; "
        "nothing is written without --out",
    )
    score.add_argument(
        "--protocol",
        help="how shapes are matched and scored: icdar2015, labelled, deteval_total_text, "
        "deteval_icdar2013, coco_ap (default: that of the task; "
        "icdar2015 for text files, labelled for COCO results)",
    )
    score.add_argument(
        "--lines",
        help="shape in each line of the text files: box, quad, polygon, polygon_yx "
        "(default: detected from the first line)",
    )
    score.add_argument(
        "--ties",
        metavar="ORDER",
        help="order of equal scores under coco_ap: official (as in pycocotools; default) or "
        "averaged over all orders, which also allows results without scores",
    )


def _score(arguments: argparse.Namespace) -> None:
    predictions, is_ranked = arguments.predictions, arguments.protocol == "coco_ap"
    if arguments.ties and not is_ranked:
        raise ValueError("--ties requires --protocol coco_ap.")
    if arguments.truth is not None:
        if arguments.task or predictions.suffix == ".jsonl":
            raise ValueError("--truth cannot be combined with --task or a .jsonl file of answers.")
        _score_files(arguments, is_ranked)
        return
    is_text = predictions.is_dir() or predictions.suffix == ".zip"
    if arguments.lines or is_text or (is_ranked and predictions.suffix != ".jsonl"):
        raise ValueError(f"{predictions}: files of other tools require --truth.")
    options: dict[str, Any] = {"task_name": arguments.task, "out": arguments.out}
    if is_ranked:
        from mm_numeric.evaluation.score_external import rank_predictions, ranked_table

        metrics = rank_predictions(predictions, ties=arguments.ties or "official", **options)
        print(ranked_table(metrics))
        return
    from mm_numeric.evaluation.score import results_table, score

    print(results_table(score(predictions, protocol=arguments.protocol, **options)))


def _score_files(arguments: argparse.Namespace, is_ranked: bool) -> None:
    from mm_numeric.evaluation.score import results_table
    from mm_numeric.evaluation.score_external import rank_files, ranked_table, score_files

    paths = (arguments.predictions, arguments.truth)
    options: dict[str, Any] = {"lines": arguments.lines, "out": arguments.out}
    if is_ranked:
        print(ranked_table(rank_files(*paths, ties=arguments.ties or "official", **options)))
    else:
        print(results_table(score_files(*paths, protocol=arguments.protocol, **options)))


def _add_compare(add: _Add) -> None:
    compare = add("compare", "compare objectives from one warm start over several seeds", _compare)
    _add_config(compare)
    compare.add_argument(
        "--seeds",
        type=int,
        nargs="+",
        metavar="SEED",
        help="run only these seeds and write no report, to split the work between machines "
        "(default: compare.seeds of the config)",
    )


def _compare(arguments: argparse.Namespace) -> None:
    from mm_numeric.comparison.rows import read_comparison
    from mm_numeric.comparison.run import SeedFailedError, compare, exit_with_parent

    exit_with_parent()
    config = read_comparison(arguments.config, arguments.overrides)
    try:
        folder = compare(config, seeds=arguments.seeds)
    except SeedFailedError as error:
        message, code = error.args
        logger.error("%s", message)
        sys.exit(code)
    if arguments.seeds is None:
        _show_report(folder)


def _add_export(add: _Add) -> None:
    export = add("export", "merge a run's adapters and export it with a model card", _export)
    export.add_argument("run", type=Path, help="folder of a finished run")
    export.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="FOLDER",
        help="folder to create; an existing folder is not overwritten",
    )


def _export(arguments: argparse.Namespace) -> None:
    from mm_numeric.models.export import CARD, export

    export(arguments.run, arguments.out)
    print(f"exported: {arguments.out}; {arguments.out / CARD} describes it and how to load it")


def _add_report(add: _Add) -> None:
    report = add("report", "write the report of a comparison again", _report)
    report.add_argument("folder", type=Path, help="compare.output_dir of a comparison")
    report.add_argument(
        "--format",
        choices=["html", "md", "latex", "csv"],
        help="write only one file: report.html, report.md, report.tex (all tables; needs the "
        "package booktabs) or report.csv (the table of metrics) (default: html and md)",
    )


def _report(arguments: argparse.Namespace) -> None:
    _show_report(arguments.folder, [arguments.format] if arguments.format else ["html", "md"])


def _show_report(folder: Path, formats: Sequence[str] = ("html", "md")) -> None:
    """Write the report in some formats, and print its table and the paths of the files."""
    from mm_numeric.comparison.summary import summary_table
    from mm_numeric.evaluation.report.report import write_report
    from mm_numeric.evaluation.report.results import read_summary

    print(summary_table(read_summary(folder)))
    for index, path in enumerate(write_report(folder, formats)):
        print(f"{'' if index else 'report:':<7} {path.resolve()}")


def _size(text: str) -> tuple[int, int]:
    found = re.fullmatch("([1-9][0-9]{0,5})x([1-9][0-9]{0,5})", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text:.40} is not a size such as 640x480")
    return int(found[1]), int(found[2])


def _positive(text: str) -> int:
    if not re.fullmatch("[0-9]{1,18}", text) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text:.40} is not a whole number of at least 1")
    return int(text)
