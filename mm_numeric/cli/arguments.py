"""The arguments of each ``mm-numeric`` command, with their help texts."""

import argparse
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

from mm_numeric import __version__
from mm_numeric.cli.completion import (
    complete_with,
    config_names,
    overridden_settings,
    setting_names,
)
from mm_numeric.cli.overview import EXAMPLES, CommandParser, overview, positive
from mm_numeric.cli.predict import add_decoding, add_endpoint, add_results
from mm_numeric.cli.score import add_decode_options, add_partial, add_score_options
from mm_numeric.config.decoding import DECODE_RULES
from mm_numeric.io.files import add_limit_option
from mm_numeric.registry import ENGINES, LOCAL_ENGINE

GLOBAL_FLAGS = ("--verbose", "--quiet")
"""Options that each command accepts, before or after the name of the command."""

Run = Callable[[argparse.Namespace], None]
_Add = Callable[[str, str], argparse.ArgumentParser]


def make_parser(commands: Mapping[str, Run]) -> CommandParser:
    """Return the argument parser of ``mm-numeric``.

    Parsing stores the function of the chosen command as ``arguments.command`` and its parser as
    ``arguments.parser``. Without a command, neither exists.
    """
    shared = _global_options()
    parser = CommandParser(
        prog="mm-numeric",
        usage="mm-numeric [-h] [--version] [--verbose | --quiet] COMMAND ...",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[shared],
    )
    version = f"mm-numeric {__version__}"
    parser.add_argument("--version", action="version", version=version, help="print the version")
    # DeepSpeed's launcher puts this option before the command. The rank is read from RANK.
    parser.add_argument("--local_rank", type=int, help=argparse.SUPPRESS)
    subparsers = parser.add_subparsers(prog="mm-numeric", metavar="COMMAND", help=argparse.SUPPRESS)
    texts = {}

    def add(name: str, text: str) -> argparse.ArgumentParser:
        texts[name] = text
        description = text[0].upper() + text[1:] + "."
        added = subparsers.add_parser(name, description=description, parents=[shared])
        added.set_defaults(command=commands[name], parser=added)
        return added

    _add_ls(add)
    _add_cp(add)
    _add_check(add)
    _add_prepare(add)
    _add_check_data(add)
    _add_labels(add)
    _add_config(add("run", "check the data, train, predict, score and report; resumable"))
    _add_train(add("train", "fine-tune a model from a config"))
    _add_predict(add)
    _add_demo(add)
    _add_calibrate(add)
    add_decode_options(
        add("decode", "choose one answer from several texts of each question, of any model")
    )
    add_score_options(
        add("score", "score predictions, with intervals and counts of parse failures")
    )
    _add_compare(add)
    _add_export(add)
    _add_report(add)
    add("doctor", "check the installation and the GPU, and try one training step")
    parser.description = (
        f"Fine-tune and evaluate models whose answers are numbers.\n\n{overview(texts)}\n\n"
        "`mm-numeric COMMAND --help` lists the options of a command."
    )
    return parser


def _global_options() -> CommandParser:
    shared = CommandParser(add_help=False)
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
    add_limit_option(shared)
    return shared


def _add_config(parser: argparse.ArgumentParser, nargs: Literal["?"] | None = None) -> None:
    text = "path of a YAML file, or name of a shipped config"
    complete_with(config_names, parser.add_argument("config", nargs=nargs, help=text))
    _add_overrides(
        parser,
        "setting to change, such as trainer.learning_rate=1.0e-4; `mm-numeric check --explain "
        "trainer` explains the settings of a section",
    )


def _add_overrides(parser: argparse.ArgumentParser, text: str) -> None:
    overrides = parser.add_argument(
        "overrides",
        nargs="*",
        default=[],  # otherwise argparse calls it required
        metavar="KEY=VALUE",
        help=text,
    )
    complete_with(overridden_settings, overrides)


def _add_limit(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument(
        "--limit", type=positive, metavar="N", help=f"use only {what} (default: all)"
    )


def _add_engine(
    parser: argparse.ArgumentParser, text: str, engines: tuple[str, ...] = (LOCAL_ENGINE, "ray")
) -> None:
    text += "; all machines need the same folders and packages (default: local)"
    parser.add_argument("--engine", choices=engines, default=LOCAL_ENGINE, help=text)


def _add_trust(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--trust-remote-code",
        action="store_true",
        help="permit the Python code that the config of the run names: modules of a task, family "
        "or baseline, and the code of a checkpoint (default: an error that names the code)",
    )


def _add_ls(add: _Add) -> None:
    listed = add("ls", "list tasks, families, coordinate formats, losses and configs")
    listed.add_argument(
        "--all", action="store_true", help="also list the variants and controls of objectives"
    )
    listed.add_argument(
        "--coordinates",
        action="store_true",
        help="print how each model writes coordinates, with an example and its source",
    )


def _add_cp(add: _Add) -> None:
    cp = add("cp", "copy a shipped config to a new file")
    cp.add_argument(
        "config", help="name of a shipped config, or of shipped DeepSpeed settings such as zero2"
    )
    cp.add_argument("file", type=Path, help="file to write; an existing file is not overwritten")


def _add_check(add: _Add) -> None:
    check = add("check", "validate a config and print it with all defaults, or explain a setting")
    _add_config(check, nargs="?")
    explain = check.add_argument(
        "--explain",
        metavar="KEY",
        help="print type, default and meaning of a setting, such as trainer.learning_rate, or of "
        "all settings of a section, such as data.train",
    )
    complete_with(setting_names, explain)


def _add_prepare(add: _Add) -> None:
    prepare = add("prepare", "convert a published data format to rows, with checksums")
    prepare.epilog = "`mm-numeric prepare FORMAT --help` lists the options of a format."
    prepare.add_argument("format", metavar="FORMAT", help="a format listed by `mm-numeric ls`")
    prepare.add_argument(
        "words",
        nargs=argparse.REMAINDER,
        metavar="INPUT ... --out ROWS.jsonl",
        help="input files or folders, and options of the format",
    )


def _add_check_data(add: _Add) -> None:
    check_data = add("check-data", "validate the data of a config and show samples")
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
    _add_limit(check_data, "the first N questions of each data source")
    check_data.add_argument(
        "--samples",
        type=positive,
        default=12,
        metavar="N",
        help="number of questions shown on the page (default: 12)",
    )


def _add_labels(add: _Add) -> None:
    labels = add("labels", "find wrong labels, or estimate their errors from a second labelling")
    labels.add_argument(
        "--data", type=Path, required=True, metavar="FILE", help="rows as .jsonl or .csv"
    )
    labels.add_argument(
        "--again",
        type=Path,
        metavar="FILE",
        help="rows of --data with a second label, 50 or more, with the same ids: estimate the "
        "errors of the labels in --data, and print which loss and rule fit them",
    )
    labels.add_argument("--task", help="name of the task, such as clock, or an import path")
    labels.add_argument(
        "--option",
        action="append",
        metavar="NAME=VALUE",
        help="option of the task, such as shape=polygon; may be repeated",
    )
    labels.add_argument(
        "--log", action="store_true", help="compare numbers by their ratio, not their difference"
    )
    labels.add_argument(
        "--out",
        type=Path,
        metavar="PATH",
        help="with RUN: folder of labels.html and labels.csv (default: RUN/labels; with --folds, "
        "OUTPUT_DIR.labels)",
    )
    _add_ranking(labels)
    _add_overrides(labels, "with --folds: setting of the config to change")
    _add_trust(labels)


def _add_ranking(labels: argparse.ArgumentParser) -> None:
    labels.add_argument(
        "run",
        nargs="?",
        metavar="RUN",
        help="folder of a finished run that was not trained on these rows; with --folds, a config",
    )
    labels.add_argument(
        "--folds",
        type=positive,
        metavar="N",
        help="train N models with the config RUN, each on all rows but one fold, which it judges; "
        "an interrupted command continues",
    )
    labels.add_argument(
        "--decode",
        choices=DECODE_RULES,
        help="rule that chooses the answer that a label is compared with (default: median for "
        "numbers and times, mbr for other answers)",
    )
    labels.add_argument(
        "--keep", type=Path, metavar="FILE", help="write the rows without the worst ones to FILE"
    )
    labels.add_argument(
        "--worst",
        type=float,
        metavar="Q",
        help="share of the rows that --keep leaves out, in percent (default: 5)",
    )
    labels.add_argument(
        "--images",
        metavar="FOLDER",
        help="folder that image paths in the rows are relative to (default: that of --data)",
    )


def _add_train(train: argparse.ArgumentParser) -> None:
    _add_config(train)
    train.add_argument(
        "--resume", action="store_true", help="resume from the last checkpoint of the run folder"
    )
    train.add_argument(
        "--trust-remote-code",
        action="store_true",
        help="with --resume: load a checkpoint of DeepSpeed or FSDP also if its files could "
        "execute code (default: an error that names the file)",
    )


def _add_predict(add: _Add) -> None:
    predict = add("predict", "generate answers with a trained model")
    _add_overrides(
        predict,
        "setting of the sections task, data or predict to change, such as task.other_labels=drop",
    )
    predict.add_argument(
        "--model",
        nargs="+",
        required=True,
        metavar="RUN",
        help="folder of a finished run; with --endpoint also a config of the served model; several "
        "runs are an ensemble, whose distributions of answers are averaged before --decode chooses",
    )
    rows = predict.add_mutually_exclusive_group()
    rows.add_argument(
        "--data", metavar="FILE", help="rows as .jsonl or .csv (default: test rows of the run)"
    )
    rows.add_argument(
        "--training-rows",
        action="store_true",
        help="answer the training rows of the run, to train on these answers (data.train.answers)",
    )
    predict.add_argument(
        "--images",
        metavar="FOLDER",
        help="folder that image paths in the rows are relative to (default: that of --data)",
    )
    _add_ask(predict)
    predict.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="file to append predictions to (default: RUN/predictions.jsonl, or "
        "RUN/predictions.RULE.jsonl for another rule than greedy; training_answers in place of "
        "predictions with --training-rows)",
    )
    add_results(predict)
    add_endpoint(predict)
    _add_engine(predict, "ray shares the rows between tasks of the Ray cluster of RAY_ADDRESS")
    predict.add_argument(
        "--resources",
        nargs="+",
        metavar="KEY=VALUE",
        help="what each task of --engine ray reserves, such as gpus=1 cpus=4 memory_gib=16",
    )
    add_decoding(predict)
    _add_limit(predict, "N rows, spread evenly over the file")
    _add_trust(predict)


def _add_ask(predict: argparse.ArgumentParser) -> None:
    predict.add_argument(
        "--image",
        nargs="+",
        type=Path,
        default=[],
        metavar="IMAGE",
        help="print the answer to the question of the task about each image, and its confidence; a "
        "folder means all images in it",
    )
    predict.add_argument(
        "--ask",
        metavar="QUESTION",
        help="question to ask, or the phrase in the prompt of a task such as grounding (default: "
        "the question of the training rows)",
    )
    predict.add_argument(
        "--draw",
        type=Path,
        metavar="FILE",
        help="image file to draw the answer to --image to; a folder for several images",
    )


def _add_demo(add: _Add) -> None:
    demo = add("demo", "serve a local page that answers questions about dropped images")
    demo.add_argument(
        "--model", type=Path, required=True, metavar="RUN", help="folder of a finished run"
    )
    demo.add_argument(
        "--port", type=int, default=8766, help="port on 127.0.0.1, 0: any (default: 8766)"
    )
    _add_trust(demo)


def _add_calibrate(add: _Add) -> None:
    calibrate = add("calibrate", "fit the confidences of a run to rows whose answers are known")
    calibrate.add_argument("run", type=Path, help="folder of a finished run")
    calibrate.add_argument(
        "--data",
        required=True,
        metavar="FILE",
        help="rows as .jsonl or .csv with correct answers, 250 or more; training and test "
        "questions of the run are left out",
    )
    calibrate.add_argument(
        "--images",
        metavar="FOLDER",
        help="folder that image paths in the rows are relative to (default: that of --data)",
    )
    add_decoding(calibrate)
    _add_trust(calibrate)


def _add_compare(add: _Add) -> None:
    compare = add("compare", "compare objectives over several seeds")
    _add_config(compare)
    compare.add_argument(
        "--seeds",
        type=int,
        nargs="+",
        metavar="SEED",
        help="run only these seeds, in this process, and write no report, to split the work "
        "between machines (default: compare.seeds of the config)",
    )
    text = "ray uses the Ray cluster of RAY_ADDRESS, and compare.resources"
    _add_engine(compare, text, tuple(ENGINES))
    add_partial(compare, "test rows without an answer")
    compare.add_argument(
        "--plan",
        action="store_true",
        help="print the runs, the runs that each waits for, and the resources; run nothing",
    )


def _add_export(add: _Add) -> None:
    export = add("export", "merge a run's adapters and export it with a model card")
    export.add_argument("run", type=Path, help="folder of a finished run")
    export.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="FOLDER",
        help="folder to create; an existing folder is not overwritten",
    )
    _add_trust(export)
    push = add("push", "export a run and upload it to the Hugging Face hub")
    push.add_argument("run", type=Path, help="folder of a finished run")
    push.add_argument("repo", help="repository of the hub, USER/NAME; created if it is missing")
    push.add_argument("--private", action="store_true", help="create a private repository")
    _add_trust(push)


def _add_report(add: _Add) -> None:
    report = add("report", "write the report page of a run or of a comparison")
    report.add_argument("folder", type=Path, help="output folder of `train` or `compare`")
    output = report.add_mutually_exclusive_group()
    output.add_argument(
        "--format",
        choices=["html", "md", "latex", "csv"],
        help="write only one file: report.html, report.md, report.tex (all tables; needs the "
        "package booktabs) or report.csv (the table of metrics) (default: html and md)",
    )
    output.add_argument(
        "--watch",
        action="store_true",
        help="write nothing; serve the page to the browsers of this machine, and update it every "
        "10 seconds, until Ctrl-C",
    )
    output.add_argument(
        "--summary",
        action="store_true",
        help="write nothing; print ten lines of Markdown for a pull request or a chat",
    )
    report.add_argument(
        "--table",
        metavar="NAME",
        help="write nothing; print one table as --format md, latex or csv: metrics, failures, and "
        "so on (report.tex lists all names)",
    )
    add_partial(report, "results without the answers to some test rows")
    report.add_argument(
        "--port", type=int, default=8765, help="port of --watch on 127.0.0.1 (default: 8765)"
    )
    report.add_argument(
        "--trust-remote-code",
        action="store_true",
        help="import the module of a task that the folder names by an import path "
        "(default: leave out the chapters of that task)",
    )


def _size(text: str) -> tuple[int, int]:
    found = re.fullmatch("([1-9][0-9]{0,5})x([1-9][0-9]{0,5})", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text:.40} is not a size such as 640x480")
    return int(found[1]), int(found[2])
