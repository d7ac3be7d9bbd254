"""The command line. Nothing heavy is imported before it is needed: ``--help`` loads no torch."""

import argparse
import os
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

EXAMPLES = """\
examples:
  mm-numeric ls                                        what ships: tasks, families, losses, configs
  mm-numeric cp clock_tiny mine.yaml                   copy a config and make it yours
  mm-numeric check mine.yaml                           read it strictly; nothing is loaded
  mm-numeric prepare coco instances_val2017.json --out val.jsonl    rows of a published format
  mm-numeric check-data mine.yaml                      look at what would be trained
  mm-numeric train mine.yaml objective=emd             train, with one value changed
  mm-numeric predict --model runs/mine --data test.jsonl --out predictions.jsonl
  mm-numeric score predictions.jsonl                   metrics, intervals, parse failures
  mm-numeric score submit.zip --truth gt.zip           detections of any tool, as ICDAR scores them
  mm-numeric compare clock_tiny                        which objective is best, and by how much
  mm-numeric export runs/mine --out my-model           adapters merged, with a model card
  torchrun --nproc-per-node 8 -m mm_numeric train mine.yaml
"""

_CONFIG_HELP = "a YAML file, or the name of a shipped config"
_OVERRIDE_HELP = "a setting to change, such as trainer.learning_rate=1.0e-4"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        0 when all is well, 1 where ``check-data`` or ``prepare`` finds faults, 2 for what the user
        can mend (one sentence on stderr), 130 when stopped.
    """
    parser = _parser()
    arguments, rest = parser.parse_known_args(argv)
    if rest:
        # argparse takes a list of overrides only once: what stands behind an option is left over.
        overrides = all("=" in word and not word.startswith("-") for word in rest)
        if not overrides or "overrides" not in arguments:
            parser.error(f"unrecognized arguments: {' '.join(rest)}")
        arguments.overrides += rest
    command: Callable[[argparse.Namespace], None] = arguments.command
    try:
        command(arguments)
        sys.stdout.flush()  # a closed pipe is found here, not at the end of Python
    except ValueError as error:
        if os.environ.get("MM_NUMERIC_DEBUG"):
            raise
        if not getattr(error, "is_said", False):  # by another rank
            print(f"mm-numeric: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("mm-numeric: stopped; what was finished is kept.", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `mm-numeric ls | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        if os.environ.get("MM_NUMERIC_DEBUG") or error.filename is None:
            raise
        print(f"mm-numeric: {error.filename}: {error.strerror}.", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mm-numeric",
        description="Fine-tune and evaluate models whose answers are numbers.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    # DeepSpeed's launcher puts it before the command; the rank is read from the environment.
    parser.add_argument("--local_rank", type=int, help=argparse.SUPPRESS)
    verbs = parser.add_subparsers(metavar="COMMAND", required=True)

    def verb(
        name: str, text: str, run: Callable[[argparse.Namespace], None]
    ) -> argparse.ArgumentParser:
        added = verbs.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        added.set_defaults(command=run)
        return added

    verb("ls", "list tasks, families, coordinates, losses and configs", _ls)

    cp = verb("cp", "copy a shipped config to a file of your own", _cp)
    cp.add_argument(
        "config", help="the name of a shipped config, or of DeepSpeed's settings: zero2"
    )
    cp.add_argument("file", type=Path, help="where to; an existing file is not overwritten")

    check = verb(
        "check", "read a config strictly and print it with every default filled in", _check
    )
    check.add_argument("config", help=_CONFIG_HELP)
    check.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help=_OVERRIDE_HELP)

    prepare = verb("prepare", "turn a published format into rows, with checksums", _prepare)
    prepare.epilog = "mm-numeric prepare FORMAT --help says what a format takes"
    prepare.add_argument("format", metavar="FORMAT", help="a format that `mm-numeric ls` lists")
    prepare.add_argument(
        "words", nargs=argparse.REMAINDER, metavar="INPUT ... --out ROWS.jsonl", help="files"
    )

    look = verb(
        "check-data", "show what would be trained, and what to fix before it is", _check_data
    )
    look.add_argument("config", help=_CONFIG_HELP)
    look.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help=_OVERRIDE_HELP)
    look.add_argument(
        "--page", type=Path, help="the HTML page (default: OUTPUT_DIR.check-data.html)"
    )
    look.add_argument(
        "--size",
        type=_size,
        metavar="WIDTHxHEIGHT",
        help="take images that are not here, and whose rows do not say it, to be so large",
    )
    look.add_argument("--limit", type=_positive, help="only the first so many questions of each")
    look.add_argument(
        "--samples", type=_positive, default=12, help="questions on the page (default: 12)"
    )

    train = verb("train", "fine-tune a model from a config", _train)
    train.add_argument("config", help=_CONFIG_HELP)
    train.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help=_OVERRIDE_HELP)
    train.add_argument("--resume", action="store_true", help="go on from the last checkpoint")

    predict = verb("predict", "answer rows with a trained model", _predict)
    predict.add_argument("--model", type=Path, required=True, help="the folder of a finished run")
    predict.add_argument("--data", help="rows as .jsonl or .csv (default: the run's test rows)")
    predict.add_argument("--images", help="the folder that the rows' image names start from")
    predict.add_argument(
        "--out", type=Path, help="where answers are appended (default: MODEL/predictions.jsonl)"
    )
    predict.add_argument("--batch-size", type=_positive, help="rows at a time")
    predict.add_argument("--max-new-tokens", type=_positive, help="where an answer is cut off")
    predict.add_argument("--limit", type=_positive, help="only the first so many rows")

    score = verb("score", "score predictions, with intervals and parse failures by reason", _score)
    score.add_argument(
        "predictions",
        type=Path,
        help="a .jsonl file with id, text and target; with --truth, detections of another tool",
    )
    score.add_argument("--task", help="the task, where the rows do not name it")
    score.add_argument("--out", type=Path, help="the folder for results.json and scores.jsonl")
    score.add_argument(
        "--truth",
        type=Path,
        help="ground truth beside a folder or zip of text files (ICDAR), or COCO's instances file "
        "beside a list of results; nothing is written without --out",
    )
    score.add_argument(
        "--protocol",
        help="how shapes are judged: icdar2015, labelled, deteval_total_text, deteval_icdar2013, "
        "coco_ap",
    )
    score.add_argument(
        "--lines", help="what a line of the text files holds: box, quad, polygon, polygon_yx"
    )
    score.add_argument(
        "--ties", help="of coco_ap: official (pycocotools' order) or averaged (scores may lack)"
    )

    compare = verb(
        "compare", "compare objectives from one warm start, over several seeds", _compare
    )
    compare.add_argument("config", help=_CONFIG_HELP)
    compare.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help=_OVERRIDE_HELP)
    compare.add_argument(
        "--seeds", type=int, nargs="+", help="only these seeds, for machines that share the work"
    )

    export = verb("export", "write a run as a model that stands alone, with a model card", _export)
    export.add_argument("run", type=Path, help="the folder of a finished run")
    export.add_argument("--out", type=Path, required=True, help="a folder that does not exist yet")

    report = verb("report", "write the page of a comparison again", _report)
    report.add_argument("folder", type=Path, help="the output_dir of a comparison")
    return parser


def _ls(_: argparse.Namespace) -> None:
    from mm_numeric.config.catalog import shipped

    print(shipped())


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
    read = f"`mm-numeric check {arguments.file}` reads it."
    named = f"`mm-numeric train ... trainer.deepspeed={arguments.file}` takes it."
    print(f"{arguments.file}: a copy of {source.name}; {named if settings else read}")


def _check(arguments: argparse.Namespace) -> None:
    import yaml

    from mm_numeric.comparison.rows import read_comparison
    from mm_numeric.config.training_arguments import BY_MACHINE, trainer_defaults

    config = read_comparison(arguments.config, arguments.overrides)
    print(config.to_yaml(), end="")
    defaults = {"trainer": trainer_defaults(config.trainer)}
    text = yaml.safe_dump(defaults, sort_keys=True, width=100)
    print("\n# What `trainer` leaves to transformers.TrainingArguments:")
    print("\n".join(f"# {line}" for line in text.splitlines()))
    print(f"# and what is chosen by the machine: {', '.join(BY_MACHINE)}.")


def _prepare(arguments: argparse.Namespace) -> None:
    from mm_numeric.importers.prepare import run

    if not run(arguments.format, arguments.words):
        sys.exit(1)


def _check_data(arguments: argparse.Namespace) -> None:
    from mm_numeric.config.reader import read_config

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


def _train(arguments: argparse.Namespace) -> None:
    from mm_numeric.config.reader import read_config

    config = read_config(arguments.config, arguments.overrides)
    from mm_numeric.training.errors import StoppedError
    from mm_numeric.training.run import leave_ranks, train

    first = int(os.environ.get("RANK", "0")) == 0
    try:
        model = train(config, resume=arguments.resume, stoppable=True)
    except StoppedError as stopped:
        if first:
            print(f"mm-numeric: {stopped}", file=sys.stderr)
        model = None
    leave_ranks()
    if first and model is not None:
        print(f"trained: {model}")
        print(f"next: mm-numeric predict --model {config.output_dir}")


def _predict(arguments: argparse.Namespace) -> None:
    from mm_numeric.config.data import DataSource

    if arguments.images and not arguments.data:
        raise ValueError("--images says where the images of --data are; give --data too.")
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
    print(f"{count} rows answered now: {out}")
    print(f"next: mm-numeric score {out}")


def _score(arguments: argparse.Namespace) -> None:
    predictions, ranked = arguments.predictions, arguments.protocol == "coco_ap"
    if arguments.ties and not ranked:
        raise ValueError("--ties is about --protocol coco_ap; leave it out.")
    if arguments.truth is not None:
        if arguments.task or predictions.suffix == ".jsonl":
            raise ValueError("a .jsonl file with a task holds its own targets; leave --truth out.")
        _score_files(arguments, ranked)
        return
    of_text = predictions.is_dir() or predictions.suffix == ".zip"
    if arguments.lines or of_text or (ranked and predictions.suffix != ".jsonl"):
        raise ValueError(f"{predictions}: files of other tools are scored against --truth.")
    more = {"task_name": arguments.task, "out": arguments.out}
    if ranked:
        from mm_numeric.evaluation.score_external import rank_predictions, ranked_table

        figures = rank_predictions(predictions, ties=arguments.ties or "official", **more)
        print(ranked_table(figures))
        return
    from mm_numeric.evaluation.score import results_table, score

    print(results_table(score(predictions, protocol=arguments.protocol, **more)))


def _score_files(arguments: argparse.Namespace, ranked: bool) -> None:
    from mm_numeric.evaluation.score import results_table
    from mm_numeric.evaluation.score_external import rank_files, ranked_table, score_files

    paths, more = (arguments.predictions, arguments.truth), {"lines": arguments.lines}
    if ranked:
        ties = arguments.ties or "official"
        print(ranked_table(rank_files(*paths, ties=ties, out=arguments.out, **more)))
    else:
        scores = score_files(*paths, protocol=arguments.protocol, out=arguments.out, **more)
        print(results_table(scores))


def _compare(arguments: argparse.Namespace) -> None:
    from mm_numeric.comparison.rows import read_comparison
    from mm_numeric.comparison.run import SeedFailedError, compare, end_with_parent

    end_with_parent()
    config = read_comparison(arguments.config, arguments.overrides)
    try:
        folder = compare(config, seeds=arguments.seeds)
    except SeedFailedError as error:
        sentence, code = error.args
        print(f"mm-numeric: {sentence}", file=sys.stderr)
        sys.exit(code)
    if arguments.seeds is None:
        _show_report(folder)


def _export(arguments: argparse.Namespace) -> None:
    from mm_numeric.models.export import CARD, export

    export(arguments.run, arguments.out)
    print(f"exported: {arguments.out}; {arguments.out / CARD} says what it is and how to load it")


def _report(arguments: argparse.Namespace) -> None:
    _show_report(arguments.folder)


def _show_report(folder: Path) -> None:
    """Write the page and its Markdown twin, and print the table and where they are."""
    from mm_numeric.comparison.summary import summary_table
    from mm_numeric.evaluation.report.report import write_report
    from mm_numeric.evaluation.report.results import read_summary

    print(summary_table(read_summary(folder)))
    page, markdown = write_report(folder)
    print(f"report: {page.resolve()}")
    print(f"        {markdown.resolve()}")


def _size(text: str) -> tuple[int, int]:
    found = re.fullmatch("([1-9][0-9]{0,5})x([1-9][0-9]{0,5})", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text:.40} is not a size such as 640x480")
    return int(found[1]), int(found[2])


def _positive(text: str) -> int:
    if not re.fullmatch("[0-9]{1,18}", text) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text:.40} is not a whole number of at least 1")
    return int(text)
