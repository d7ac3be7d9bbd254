"""The command line program: ``mm-numeric COMMAND``.

Each command imports its modules when it is executed, so that ``--help`` does not import torch.
"""

import argparse
import gc
import os
import re
import shlex
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from mm_numeric.cli.arguments import GLOBAL_FLAGS, Run, make_parser
from mm_numeric.cli.completion import complete
from mm_numeric.cli.score import decode_answers, score_answers
from mm_numeric.distributed.ranks import EveryRankError, is_lost_rank
from mm_numeric.io.atomic_files import atomic_file
from mm_numeric.io.files import (
    disk_full_message,
    is_disk_full,
    is_memory_full,
    memory_full_message,
    set_limit,
)
from mm_numeric.io.log import (
    ALL_RANKS,
    escape_libraries,
    logger,
    rank,
    set_verbosity,
    show,
    user_warnings_only,
)
from mm_numeric.registry import missing_package


def main(argv: Sequence[str] | None = None) -> int:
    """Execute one command and return its exit code.

    0: success. 1: ``check-data`` or ``prepare`` found errors in the data, or ``doctor`` in the
    installation. 2: an error that the user can fix, with one message on stderr, or no command was
    given. 130: interrupted by Ctrl-C. 141: stdout was closed.
    """
    # Imports create a million objects that are never freed. With Python's threshold of 700 new
    # objects, garbage collection would take a tenth of the time until a command starts.
    gc.set_threshold(max(20_000, gc.get_threshold()[0]), *gc.get_threshold()[1:])
    escape_libraries()
    parser = make_parser(
        {
            "ls": _ls,
            "cp": _cp,
            "check": _imported("check"),
            "prepare": _prepare,
            "check-data": _check_data,
            "labels": _imported("labels"),
            "run": _imported("run"),
            "train": _train,
            "predict": _predict,
            "demo": _imported("demo"),
            "calibrate": _calibrate,
            "decode": decode_answers,
            "score": score_answers,
            "compare": _compare,
            "export": _export,
            "push": _push,
            "report": _report,
            "doctor": _imported("doctor"),
        }
    )
    complete(parser)
    arguments, rest = parser.parse_known_args(argv)
    if "command" not in arguments and not rest:
        print(f"{parser.format_usage()}\n{parser.description}", file=sys.stderr)  # noqa: T201
        return 2  # the exit code for missing arguments
    if rest:
        # argparse fills a positional list only once: overrides after an option are left over.
        overrides = all("=" in word and not word.startswith("-") for word in rest)
        if not overrides or "overrides" not in arguments:
            getattr(arguments, "parser", parser).reject(rest)
        arguments.overrides = [*arguments.overrides, *rest]
    set_verbosity(verbose="verbose" in arguments, quiet="quiet" in arguments)
    try:
        set_limit(arguments)
        with user_warnings_only():
            arguments.command(arguments)
        sys.stdout.flush()  # raises BrokenPipeError here and not when Python exits
    except ModuleNotFoundError as error:
        scores = arguments.command in (_prepare, _report, score_answers, decode_answers)
        return _exit_code(ValueError(missing_package(error, "eval" if scores else "train")))
    except (Exception, KeyboardInterrupt) as error:
        return _exit_code(error)
    return 0


def _exit_code(error: BaseException) -> int:
    """Log an error that the user can fix and return the exit code; re-raise other errors."""
    if isinstance(error, KeyboardInterrupt):
        logger.error("interrupted; finished work is kept.", extra=ALL_RANKS)
        _show_notes(error)
        return 130
    if isinstance(error, BrokenPipeError):  # `mm-numeric ls | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    message, extra = str(error), ALL_RANKS
    if os.environ.get("MM_NUMERIC_DEBUG"):
        raise error
    if is_disk_full(error):
        message = disk_full_message(error, "repeat the command; finished work is kept")
    elif is_memory_full(error):
        message = memory_full_message(error)
    elif is_lost_rank(error):
        message = f"rank {rank()}: another rank has ended or cannot be reached; see its messages. "
        message += "Finished work is kept: repeat the command (train: with --resume)."
    elif isinstance(error, OSError) and error.filename is not None:
        message = f"{error.filename}: {error.strerror}."
    elif not isinstance(error, ValueError):
        raise error
    elif isinstance(error, EveryRankError):  # raised on all ranks; rank 0 reports it
        extra = {}
    logger.debug("traceback of the error:", exc_info=error, extra=extra)
    logger.error("%s", message, extra=extra)
    _show_notes(error)
    return 2


def _show_notes(error: BaseException) -> None:
    for note in getattr(error, "__notes__", ()):
        show(note)


def _imported(module: str) -> Run:
    """Return a function that imports ``mm_numeric.cli.MODULE`` and calls its function MODULE."""

    def run(arguments: argparse.Namespace) -> None:
        getattr(import_module(f"mm_numeric.cli.{module}"), module)(arguments)

    return run


_report = _imported("report")


def _ls(arguments: argparse.Namespace) -> None:
    from mm_numeric.config.catalog import shipped
    from mm_numeric.geometry.conventions import conventions_text

    show(conventions_text() if arguments.coordinates else shipped(everything=arguments.all))


def _cp(arguments: argparse.Namespace) -> None:
    from mm_numeric.config.reader import find_config
    from mm_numeric.config.trainer_settings import deepspeed_settings

    settings = deepspeed_settings().get(arguments.config)
    source = settings or find_config(arguments.config)
    if arguments.file.exists():
        raise ValueError(f"{arguments.file} exists; name another file.")
    if not arguments.file.parent.is_dir():
        raise ValueError(f"{arguments.file.parent}: there is no such folder.")
    text, folder = source.read_text(encoding="utf-8"), ""
    command = f"check {arguments.file}"
    if settings:
        command = f"train ... trainer.deepspeed={arguments.file}"
    else:
        text, folder = _renamed(text, source.stem, arguments.file)
        folder = folder and f", with the output folder {folder}"
    with atomic_file(arguments.file) as file:
        file.write(text.encode())
    show(f"{arguments.file}: copied from {source.name}{folder}; use it with `mm-numeric {command}`")


def _renamed(text: str, name: str, file: Path) -> tuple[str, str]:
    """Return a config for a copy in ``file``, and its output folder, "" if the config sets none.

    Otherwise, the copy would train into the folder of the config ``name``, from which it is copied,
    and the commands in its header would use that config.
    """
    found = re.search(r"^ +output_dir: *([^\s'\"]+)", text, re.MULTILINE)
    folder = re.sub(r"[^\w.-]", "_", file.stem)
    folder = Path(found[1]).with_name(folder).as_posix() if found else ""
    for old, new in ((found and found[1], folder), (name, str(file))):
        if old:
            used = rf"(output_dir: *|mm-numeric [\w-]+ (?:--model )?|output_dir=){re.escape(old)}"
            text = re.sub(used, r"\g<1>" + new.replace("\\", r"\\"), text)
    return text, folder


def _prepare(arguments: argparse.Namespace) -> None:
    from mm_numeric.cli.prepare import run

    # argparse.REMAINDER takes the global options too.
    words = [word for word in arguments.words if word not in GLOBAL_FLAGS]
    if len(words) < len(arguments.words):
        verbose, quiet = (flag in arguments.words for flag in GLOBAL_FLAGS)
        set_verbosity(verbose=verbose, quiet=quiet)
    if not run(arguments.format, words):
        sys.exit(1)


def _check_data(arguments: argparse.Namespace) -> None:
    from mm_numeric.config.reader import read_config

    # The config is validated before the imports below load torch.
    config = read_config(arguments.config, arguments.overrides)
    config.require_weights()
    from mm_numeric.evaluation.check_data.check import check_data
    from mm_numeric.evaluation.check_data.html_page import page_of, write_check_page
    from mm_numeric.evaluation.check_data.text import report_text

    page = arguments.page or page_of(config)
    if page.is_dir():
        raise ValueError(f"--page: {page} is a folder; name a file in it.")
    report = check_data(config, limit=arguments.limit, size_px=arguments.size)
    write_check_page(report, page, samples=arguments.samples)
    *lines, last = report_text(report).split("\n")
    show("\n".join([*lines, f"page: {page.resolve()}", last]))
    if not report.ready:
        sys.exit(1)


def _train(arguments: argparse.Namespace) -> None:
    from mm_numeric.config.reader import read_config

    config = read_config(arguments.config, arguments.overrides)
    from mm_numeric.api import train
    from mm_numeric.distributed.ranks import leave_process_group, num_ranks
    from mm_numeric.training.errors import StoppedError

    stop: StoppedError | None = None
    try:
        run = train(
            config,
            resume=arguments.resume,
            stoppable=True,
            trust_remote_code=arguments.trust_remote_code,
        )
    except StoppedError as error:
        logger.warning("%s", error)
        stop = error
    leave_process_group()
    if stop is not None:
        if num_ranks() == 1 and stop.resumable:  # a launcher needs another command
            flags = ["--trust-remote-code"] if arguments.trust_remote_code else []
            words = [arguments.config, *arguments.overrides, "--resume", *flags]
            show(f"next: mm-numeric train {shlex.join(words)}")
        if stop.received == signal.SIGINT:
            sys.exit(130)
    elif rank() == 0:
        from mm_numeric.runs.trust import FLAG, code_of_predictions

        flag = f" {FLAG}" if code_of_predictions(config.to_dict()) else ""
        show(f"trained: {run.model}")
        show(f"next: mm-numeric predict --model {shlex.quote(str(config.output_dir))}{flag}")


def _predict(arguments: argparse.Namespace) -> None:
    if arguments.images and not arguments.data:
        raise ValueError("--images is the image folder of --data; add --data or remove --images.")
    # argparse adds overrides that follow --model RUN to the list of runs.
    words = [w for w in arguments.model[1:] if "=" in w and not Path(w).exists()]
    runs = [Path(word) for word in arguments.model if word not in words]
    arguments.overrides = [*words, *arguments.overrides]
    if arguments.image or arguments.ask is not None or arguments.draw:
        if len(runs) > 1:
            raise ValueError("--image asks one model; name one run with --model.")
        from mm_numeric.cli.ask import ask

        ask(arguments, runs[0])
        return
    if not arguments.data and not arguments.training_rows:
        from mm_numeric.runs.folder import check_test_rows

        check_test_rows(runs[0], arguments.overrides)
    from mm_numeric.api import predict
    from mm_numeric.cli.predict import (
        coco_results,
        endpoint_of,
        predict_settings,
        ray_resources,
    )
    from mm_numeric.distributed.ranks import leave_process_group

    names = ("images", "training_rows", "trust_remote_code", "overrides", "limit")
    predictions = predict(
        runs,
        arguments.data,
        arguments.out,
        **{name: getattr(arguments, name) for name in names},
        endpoint=endpoint_of(arguments),
        on_ray=ray_resources(arguments),
        **predict_settings(arguments),
    )
    leave_process_group()
    if rank() == 0:
        show(f"{predictions.count} new answers: {predictions.path}")
        if arguments.results:
            show(f"COCO results: {coco_results(predictions, arguments.data)}")
        show(f"next: {_next_of_answers(predictions.config, predictions.path, arguments)}")


def _calibrate(arguments: argparse.Namespace) -> None:
    from mm_numeric.api import calibrate
    from mm_numeric.cli.predict import predict_settings
    from mm_numeric.evaluation.report.confidence_section import calibration_text
    from mm_numeric.runs.folder import CALIBRATION, decoded_name

    run, settings = arguments.run, predict_settings(arguments)
    trust = arguments.trust_remote_code
    found = calibrate(
        run, arguments.data, images=arguments.images, trust_remote_code=trust, **settings
    )
    show(calibration_text(found))
    show(f"calibration: {run / decoded_name(CALIBRATION, found.rule)}")
    rule = f"--decode {found.rule}"
    if arguments.decode_for:
        rule = f"--decode-for {arguments.decode_for}"
    show(f"next: mm-numeric predict --model {shlex.quote(str(run))} {rule}")


def _next_of_answers(config: Any, out: Path, arguments: argparse.Namespace) -> str:
    """Return the command that trains on the answers in a file, or scores them."""
    if arguments.training_rows:
        return f"mm-numeric train CONFIG {shlex.quote(f'data.train.answers={out}')}"
    option = f" --task {config.task_name}" if ":" in config.task_name else ""
    option += f" --scorer {config.task.scorer}" if config.task.scorer else ""
    plugins = f"PYTHONPATH={shlex.quote(config.plugins)} " if config.plugins and option else ""
    partial = " --partial" if arguments.limit else ""
    return f"{plugins}mm-numeric score {shlex.quote(str(out))}{option}{partial}"


def _compare(arguments: argparse.Namespace) -> None:
    from mm_numeric.comparison.rows import read_comparison

    config = read_comparison(arguments.config, arguments.overrides)
    if arguments.plan:
        from mm_numeric.comparison.plan import plan_text

        show(plan_text(config, arguments.seeds))
        return
    from mm_numeric.api import compare
    from mm_numeric.comparison.engines.local import exit_with_parent
    from mm_numeric.comparison.run import RunFailedError

    exit_with_parent()
    try:
        runs = compare(
            config, seeds=arguments.seeds, engine=arguments.engine, partial=arguments.partial
        )
    except RunFailedError as error:
        message, code = error.args
        logger.error("%s", message)
        sys.exit(code)
    if arguments.seeds is None:
        from mm_numeric.cli.report import show_report

        # summary.json names the task of this config, which the user trusts.
        show_report(runs.folder, trust_remote_code=True, partial=arguments.partial)


def _export(arguments: argparse.Namespace) -> None:
    from mm_numeric.models.export import export
    from mm_numeric.models.model_card import CARD

    export(arguments.run, arguments.out, trust_remote_code=arguments.trust_remote_code)
    show(f"exported: {arguments.out}; {arguments.out / CARD} describes it and how to load it")


def _push(arguments: argparse.Namespace) -> None:
    from mm_numeric.models.export import push

    trust = arguments.trust_remote_code
    url = push(arguments.run, arguments.repo, private=arguments.private, trust_remote_code=trust)
    show(f"uploaded: {url}")
